"""Marian's translation models in Hugging Face's layout (OPUS-MT): folders with `config.json`.

They are the paper's model, post-norm, with biases in attention and on the logits. The importer
stores Marian's sinusoids (all sines, then all cosines) as a table of positions and puts the rows of
the vocabulary in our order. For an embedding without the scale √D it divides the matrix by √D and
multiplies the last norm by it.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.importers import checkpoint, mapping, pieces
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

# Defaults of keys that `config.json` may omit.
DEFAULTS: dict[str, Any] = {
    "activation_function": "gelu",
    "attention_dropout": 0.0,
    "decoder_vocab_size": None,
    "dropout": 0.1,
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "unk_token_id": 1,
}
FIXED = {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False}
EPSILON = 1e-5
MOST_POSITIONS = 65_536


def load_model(folder: StrPath, orders: Sequence[Ids] | None = None, **options: Any) -> Transformer:
    """Loads a `Transformer` from a Marian folder in Hugging Face's layout.

    Its ids are in our order.

    Args:
        folder: str or path-like, with `config.json` and `model.safetensors` (or
            `pytorch_model.bin`).
        orders: the origin's ids of our rows, (V,) each, of the source and of the target. Defaults
            to `row_orders` of the configuration.
        **options: arguments of `Transformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `Transformer`, with a table of positions that is not trainable.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture; sizes that differ between the sides; a tensor that is
            missing, left over or misshapen; a truncated file, or a pickle with code.

    Example:

    >>> model = load_model("opus-mt-en-de")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors = _read_tensors(folder, config)
    return _model(config, tensors, row_orders(config) if orders is None else orders, options)


def _read_tensors(folder: StrPath, config: dict[str, Any]) -> dict[str, Array]:
    """Reads all tensors by name, and checks the sizes in the configuration."""
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    sizes = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_attention_heads")
    layers = ("encoder_layers", "decoder_layers")
    checkpoint.check_sizes(path, config, tensors, (*sizes, "encoder_ffn_dim"), layers)
    if config["max_position_embeddings"] > MOST_POSITIONS:  # the table need not be in the file
        raise ValueError(
            f"{path} says max_position_embeddings={config['max_position_embeddings']}, but at most "
            f"{MOST_POSITIONS} are supported."
        )
    return tensors


def _model(
    config: dict[str, Any],
    tensors: dict[str, Array],
    orders: Sequence[Ids],
    options: dict[str, Any],
) -> Transformer:
    """Creates the model of a configuration after a check of all tensors."""
    arrays = mapped_weights(config, tensors, orders)
    shared = config["share_encoder_decoder_embeddings"]
    model = Transformer(
        len(orders[0]),
        (config["encoder_layers"], config["decoder_layers"]),
        config["d_model"],
        config["encoder_attention_heads"],
        config["encoder_ffn_dim"],
        **{
            "dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "activation": checkpoint.activation(config, "activation_function"),
            "positions": LearnedPositionEncoding(
                config["max_position_embeddings"], trainable=False
            ),
            "target_vocab_size": None if shared else len(orders[1]),
            "use_bias": True,
            "epsilon": EPSILON,
            "tie_output": config["tie_word_embeddings"],
            "output_bias": True,
            **options,
        },
    )
    mapping.assign_weights(model, arrays)
    return model


def load(
    folder: StrPath, **options: Any
) -> tuple[Transformer, Tokenizer | tuple[Tokenizer, Tokenizer]]:
    """Loads the model of `load_model`, and the tokenizers of the folder with our ids.

    A text may begin with a language token of the vocabulary, such as ">>fra<<".

    Args:
        folder: str or path-like, also with `vocab.json`, `source.spm` and `target.spm`, and with
            `target_vocab.json` if the two sides have separate vocabularies.
        **options: as in `load_model`.

    Returns:
        `(model, tokenizer)`, or `(model, (source, target))` if the two tokenizers differ.

    Raises:
        OSError, ValueError: as `load_model`; a vocabulary lacks `</s>` or `<unk>`, or gives them
            other ids than `config.json`; a file is not a SentencePiece model.

    Example:

    >>> model, tokenizers = load("opus-mt-en-de")  # doctest: +SKIP
    """
    folder, config = pathlib.Path(folder), read_config(folder)
    tensors = _read_tensors(folder, config)
    models = [pieces.read_spm(folder / f"{side}.spm") for side in ("source", "target")]
    if config["share_encoder_decoder_embeddings"]:
        ids = [_read_vocabulary(folder / "vocab.json", config)] * 2
        unknown = [pieces.unknown_pieces(ids[0], *models)] * 2
    else:
        names = ("vocab.json", "target_vocab.json")
        ids = [_read_vocabulary(folder / name, config) for name in names]
        unknown = [pieces.unknown_pieces(*own) for own in zip(ids, models, strict=True)]
    orders = row_orders(config, [len(own) for own in unknown])
    model = _model(config, tensors, orders, options)
    names = [pieces.piece_names(*own) for own in zip(ids, orders, unknown, strict=True)]
    return with_tokenizers(model, pieces.renumbered_sides(models, names))


def _read_vocabulary(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Reads a dict from piece to the origin's id, of `vocab.json`."""
    ids = checkpoint.check_ids(path, checkpoint.read_json(path))
    for piece, name in (("</s>", "eos_token_id"), ("<unk>", "unk_token_id")):
        if pieces.special_id(ids, piece) != config[name]:
            raise ValueError(
                f"{path} numbers {piece!r} as {ids[piece]}, but config.json says "
                f"{name}={config[name]}. Check that both files belong to one model."
            )
    return ids


def read_config(folder: StrPath) -> dict[str, Any]:
    """Reads and checks the complete configuration of a Marian folder."""
    names = ("layers", "attention_heads", "ffn_dim")
    both = [(f"encoder_{name}", f"decoder_{name}") for name in names]
    needed = ("vocab_size", "d_model", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    needed = [*needed, *(name for pair in both for name in pair)]
    config = checkpoint.read_config(folder, "marian", needed, DEFAULTS, FIXED)
    for pair in both[1:]:
        if config[pair[0]] != config[pair[1]]:
            raise ValueError(
                f"{' and '.join(pair)} are {[config[name] for name in pair]}, but the two sides of "
                "our model have the same heads and feed-forward networks."
            )
    config["decoder_vocab_size"] = config.get("decoder_vocab_size") or config["vocab_size"]
    return config


def row_orders(config: Mapping[str, Any], copies: Sequence[int] = (0, 0)) -> list[Ids]:
    """Returns the origin's ids of our rows, of the source and of the target, (V,) each.

    `copies` rows of the unknown token follow on each side, for pieces that the tokenizer produces
    and the vocabulary lacks (see `pieces`).
    """
    special = [config[f"{name}_token_id"] for name in ("pad", "unk", "decoder_start", "eos")]
    sizes = config["vocab_size"], config["decoder_vocab_size"]
    return [mapping.row_order(n, *special, more) for n, more in zip(sizes, copies, strict=True)]


def mapped_weights(
    config: Mapping[str, Any], tensors: Mapping[str, Array], orders: Sequence[Ids]
) -> dict[str, Array]:
    """Checks Marian's tensors, and returns a dict from our path to array."""
    d_model, length = config["d_model"], config["max_position_embeddings"]
    depths = config["encoder_layers"], config["decoder_layers"]
    blocks = mapping.encoder_decoder_blocks("model.", depths, d_model, config["encoder_ffn_dim"])
    shapes, copies = _tables(config)
    for name, original in copies.items():  # some files hold only one of the copies
        if name in tensors and original not in tensors:
            tensors = {**tensors, original: tensors[name]}
    tables = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    shapes |= {name: (length, d_model) for name in tables if name in tensors}
    targets = {**blocks, **{name: mapping.Target(shape) for name, shape in shapes.items()}}
    tensors = mapping.checked(tensors, targets, copies)

    arrays = mapping.mapped(tensors, targets)
    sinusoids = half_sinusoids(length, d_model)
    for side, name in zip(("source", "target"), tables, strict=True):
        arrays[f"{side}_positions/embeddings"] = tensors.get(name, sinusoids)
    return {**arrays, **_embeddings(config, tensors, orders, arrays)}


def _tables(config: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Returns shapes of embeddings and logits by name, and the originals of their copies."""
    d_model = config["d_model"]
    sizes = {"encoder": config["vocab_size"], "decoder": config["decoder_vocab_size"]}
    both = {f"model.{side}.embed_tokens.weight": (sizes[side], d_model) for side in sizes}
    shapes, last = both, "model.decoder.embed_tokens.weight"
    copies = {}
    if config["share_encoder_decoder_embeddings"]:
        last = "model.shared.weight"
        shapes, copies = {last: (sizes["encoder"], d_model)}, dict.fromkeys(both, last)
    if config["tie_word_embeddings"]:
        copies["lm_head.weight"] = last
    else:
        shapes["lm_head.weight"] = (sizes["decoder"], d_model)
    return {**shapes, "final_logits_bias": (1, sizes["decoder"])}, copies


def _embeddings(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    orders: Sequence[Ids],
    arrays: Mapping[str, Array],
) -> dict[str, Array]:
    """Returns the arrays of embeddings, logits and the norm before the logits, by our paths."""
    if config["share_encoder_decoder_embeddings"]:
        names = {"token_embedding": "model.shared.weight"}
    else:
        names = {
            "source_embedding": "model.encoder.embed_tokens.weight",
            "target_embedding": "model.decoder.embed_tokens.weight",
        }
    last = f"decoder_block_{config['decoder_layers'] - 1}/feed_forward_norm"
    return mapping.embedding_weights(
        {
            ours: (tensors[theirs], order)
            for (ours, theirs), order in zip(names.items(), orders, strict=False)
        },
        tensors["final_logits_bias"][0],
        kernel=None if config["tie_word_embeddings"] else tensors["lm_head.weight"],
        scale=1.0 if config["scale_embedding"] else config["d_model"] ** -0.5,
        last_norm=mapping.norm_weights(arrays, last),
    )


def half_sinusoids(length: int, d_model: int) -> Array:
    """Returns Marian's table of positions (length, D): all sines, then all cosines."""
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # (D / 2,)
    angles = np.arange(length)[:, None] * frequencies  # (length, D / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
