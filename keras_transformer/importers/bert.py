"""BERT and its relatives of the same form (MiniLM), and their sentence vectors.

It is the encoder of the paper, post-norm, with learned positions, segments, and a norm behind them.
What differs is absorbed: its embedding is not multiplied by √D, so the matrix is smaller here. What
BERT adds for its own training (`pooler`, `cls`) is not read.
"""

import os
import pathlib

import keras
import numpy as np

from keras_transformer.importers import checkpoint, json_pieces, mapping, vocabulary
from keras_transformer.importers.assignment import assign_weights
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import TransformerEncoder

# What `config.json` may leave out: the defaults of its class.
DEFAULTS = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
FIXED = {
    "add_cross_attention": False,
    "is_decoder": False,
    "position_embedding_type": "absolute",
}
LAYERS = "num_hidden_layers"
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # our ids 0 to 3
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")  # not the encoder's


def load_model(folder, order=None, segments=False, **options):
    """A `TransformerEncoder` with the weights of a BERT folder of Hugging Face's.

    Its ids are in our order. A row of one text is `[CLS]`, which is our begin token 2, its tokens
    and `[SEP]`, our end token 3.

    Args:
        folder: str or path, with `config.json`, `vocab.txt` or `tokenizer.json`, and
            `model.safetensors` (or `pytorch_model.bin`).
        order: their id of each of our rows. Defaults to `row_order` of the configuration and the
            vocabulary; with it the folder needs none.
        segments: whether the model reads `segment_ids`, for two texts in a row. `False`: one text,
            whose segment is added to the positions. Defaults to `False`.
        **options: arguments of `TransformerEncoder` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `TransformerEncoder`.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture, a vocabulary without one of the special tokens; a tensor
            is missing, left over or misshapen; a file that is truncated, or a pickle with code.

    Example:

    >>> encoder = load_model("all-MiniLM-L6-v2")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors = _read_tensors(folder, config)
    order = row_order(config, read_vocabulary(folder)) if order is None else order
    arrays = mapped_weights(config, tensors, order, segments)
    model = TransformerEncoder(
        len(order),
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["intermediate_size"],
        **{
            "dropout": config["hidden_dropout_prob"],
            "attention_dropout": config["attention_probs_dropout_prob"],
            "activation": checkpoint.activation(config, "hidden_act"),
            "positions": LearnedPositionEncoding(config["max_position_embeddings"]),
            "use_bias": True,
            "epsilon": config["layer_norm_eps"],
            "embedding_norm": True,
            "num_segments": config["type_vocab_size"] if segments else None,
            **options,
        },
    )
    assign_weights(model, arrays)
    return model


def load(folder, **options):
    """As `load_model`, and the tokenizer of the folder, with our ids.

    Its rows begin with `[CLS]`, so that a row of one text is what it gives and the end token.

    Args:
        folder: str or path; `tokenizer.json` in it is read, or `vocab.txt`.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`, the second a `JsonTokenizer`.
    """
    model, pieces = load_model(folder, **options), read_vocabulary(folder)
    path, order = pathlib.Path(folder) / "tokenizer.json", row_order(read_config(folder), pieces)
    if path.exists():
        known = json_pieces.read_tokenizer(path)
    else:
        known = json_pieces.word_pieces(folder, pieces)
    return model, json_pieces.renumbered(known, order, SPECIAL[2])


def load_sentence_encoder(folder, **options):
    """A model from ids to one vector of length 1 a text, as Sentence-Transformers has it.

    The mean of the encoder's vectors, padding left out, divided by its length.

    Args:
        folder: as in `load_model`; its `1_Pooling/config.json`, if there is one, must ask for the
            mean.
        **options: as in `load_model`.

    Returns:
        Functional model from `source_ids` (B, S) to (B, D).
    """
    pooling = pathlib.Path(folder) / "1_Pooling" / "config.json"
    if pooling.exists():
        asked = [name for name, on in checkpoint.read_json(pooling).items() if on is True]
        modes = [name for name in asked if name.startswith("pooling_mode_")]
        if modes != ["pooling_mode_mean_tokens"]:
            raise ValueError(f"{pooling} asks for {modes}, but only the mean can be imported.")
    encoder = load_model(folder, **options)
    mean = SequencePooling(name="mean")(encoder.output)
    vectors = keras.layers.UnitNormalization(dtype="float32", name="vector")(mean)
    return keras.Model(encoder.input, vectors, name="sentence_encoder")


def read_config(folder):
    """The configuration of a BERT folder, complete and one that our model can do."""
    return checkpoint.read_config(folder, "bert", (*SIZES, LAYERS), DEFAULTS, FIXED)


def _read_tensors(folder: str | os.PathLike, config: dict) -> dict[str, np.ndarray]:
    """All tensors, `{their name: array}`, after a look at the sizes of the configuration."""
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, (*SIZES, "type_vocab_size"), [LAYERS])
    return tensors


def read_vocabulary(folder):
    """`{word piece: their id}` of `vocab.txt`, or of `tokenizer.json` where there is none."""
    path = pathlib.Path(folder) / "vocab.txt"
    if not path.exists():
        return json_pieces.read_tokenizer(path.with_name("tokenizer.json"))["model"]["vocab"]
    try:
        pieces = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}.") from error
    return {piece: id for id, piece in enumerate(pieces) if piece}


def row_order(config, pieces):
    """Their ids of our rows, (V,)."""
    missing = [piece for piece in SPECIAL if piece not in pieces]
    if missing:
        raise ValueError(f"The vocabulary lacks {missing}.")
    return vocabulary.row_order(config["vocab_size"], *(pieces[piece] for piece in SPECIAL))


def mapped_weights(config, tensors, order, segments=False):
    """`{our path: array}` of BERT's tensors, after a check of their names and shapes."""
    tensors = {_today(name): array for name, array in tensors.items()}
    d_model, length = config["hidden_size"], config["max_position_embeddings"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d_model),
        "embeddings.position_embeddings.weight": (length, d_model),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d_model),
    }
    targets = {name: mapping.Target(shape) for name, shape in shapes.items()}
    targets |= mapping.norm("embeddings.LayerNorm", d_model, "source_embedding_norm")
    targets |= _blocks(config)
    spare = [name for name in tensors if name.startswith(HEADS)]
    tensors = mapping.checked(tensors, targets, spare=[*spare, "embeddings.position_ids"])

    words, positions, types = (tensors[name] for name in shapes)
    arrays = mapping.mapped(tensors, targets)
    arrays["token_embedding/embeddings"] = vocabulary.rows(words, order) * d_model**-0.5
    if segments:  # the first row is padding's
        arrays["segment_embedding/embeddings"] = np.concatenate([types[:1], types])
    else:
        positions = positions + types[0]
    return {**arrays, "source_positions/embeddings": positions}


def _today(name):
    """A name as it is written today, without the name of the part that a head was put on."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _blocks(config):
    """`{their name: Target}` of the blocks."""
    d_model, d_ff, targets = config["hidden_size"], config["intermediate_size"], {}
    for i in range(config["num_hidden_layers"]):
        theirs, ours = f"encoder.layer.{i}", f"encoder_block_{i}"
        for name, inputs, outputs, path in (
            ("attention.self.query", d_model, d_model, "self_attention/query"),
            ("attention.self.key", d_model, d_model, "self_attention/key"),
            ("attention.self.value", d_model, d_model, "self_attention/value"),
            ("attention.output.dense", d_model, d_model, "self_attention/output"),
            ("intermediate.dense", d_model, d_ff, "feed_forward/hidden"),
            ("output.dense", d_ff, d_model, "feed_forward/output"),
        ):
            targets |= mapping.linear(f"{theirs}.{name}", inputs, outputs, f"{ours}/{path}")
        for name, path in (
            ("attention.output.LayerNorm", "self_attention_norm"),
            ("output.LayerNorm", "feed_forward_norm"),
        ):
            targets |= mapping.norm(f"{theirs}.{name}", d_model, f"{ours}/{path}")
    return targets
