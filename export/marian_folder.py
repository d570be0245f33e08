"""Export to a folder of Marian's models in Hugging Face's form (OPUS-MT).

`transformers` reads it as `MarianMTModel` and `MarianTokenizer`, and so do the tools that were made
for such folders. It is the inverse of `importers.marian`, and is proven by it.

Shapes: D d_model, V vocabulary here, U there, P positions.
"""

import json

import keras
import numpy as np

from keras_transformer.export.encoder_decoder import (
    CONFIG_FILE,
    PRODUCER,
    check_translator,
    depths,
    differences,
    position_tables,
    refuse,
    weights_of,
    why_not_made_of,
)
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.staging import ExportError, Progress, staged
from keras_transformer.importers import mapping, marian, pieces
from keras_transformer.layers.blocks import gelu_tanh
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID

ACTIVATIONS = {
    keras.activations.relu: "relu",
    keras.activations.silu: "swish",
    keras.activations.gelu: "gelu",
    gelu_tanh: "gelu_new",
    keras.activations.tanh: "tanh",
}
WEIGHTS_FILE = "model.safetensors"
SPM_FILES = ("source.spm", "target.spm")
VOCABULARIES = ("vocab.json", "target_vocab.json")
TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
FILES = (
    CONFIG_FILE, WEIGHTS_FILE, *SPM_FILES, *VOCABULARIES, TOKENIZER_CONFIG, GENERATION_CONFIG
)  # fmt: skip
# Positions of a model that has no end of its own, as OPUS-MT's have.
POSITIONS = 512
# The axis of each weight that goes along the channels between blocks, by the end of its path.
CHANNELS = {
    "query/kernel": 0, "key/kernel": 0, "value/kernel": 0, "hidden/kernel": 0, "output/kernel": 1,
    "output/bias": 0, "gamma": 0, "beta": 0, "embeddings": 1, "output_kernel": 0,
}  # fmt: skip
# Largest difference of logits that were read back, relative to their size.
TOLERANCE = 1e-5


def export_marian(model, path, tokenizer, *, target_tokenizer=None, max_length=None, verbose=True):
    """Writes the folder of a Marian model that `transformers` reads, with the same tokens.

    The model's ids become Marian's: the end token is 0, the unknown one 1. Padding is the last id
    and begins what is written, as it does there; with two vocabularies it is 2.

    Before the folder appears `importers.marian` has read it, and its logits and its tokens of texts
    have been held to those of the model.

    Args:
        model: `Transformer`, post-norm with epsilon 1e-5 and sinusoidal positions: the paper's. The
            channels of its vectors are put in Marian's order, all sines first.
        path: folder to write. An earlier export at this place is replaced in one move, at the end.
        tokenizer: `Tokenizer` of what the model reads.
        target_tokenizer: `Tokenizer` of what it writes. Defaults to `None`: `tokenizer`.
        max_length: most tokens of a text. Defaults to `None`: 512, or what the model can hold.
        verbose: whether to tell on stderr what is being done. Defaults to `True`.

    Raises:
        ImportError: `safetensors` is not installed.
        TypeError, ValueError: an argument of the wrong kind, or a model that such a folder cannot
            hold, before anything is done.
        ExportError: what was read back is another model. What was at `path` is as before.

    Example:

    >>> export_marian(model, "out/marian", tokenizer)  # doctest: +SKIP
    >>> theirs = transformers.MarianMTModel.from_pretrained("out/marian")  # doctest: +SKIP
    """
    serialised = _safetensors()
    check_translator(model, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    if tokenizer is None:
        raise TypeError("A Marian folder has its vocabulary in it: pass tokenizer, a Tokenizer.")
    max_length = max_length or model.max_length or POSITIONS
    found = differences(model, ACTIVATIONS)
    order = None
    if not found:
        model = as_float32(model)
        order, found = _channel_order(model, max_length)
        found += _more_differences(model)
    refuse("A Marian folder", found)
    given = tokenizer, target_tokenizer or tokenizer
    names, models = zip(*(pieces.published(one.model) for one in given), strict=True)
    words = _vocabularies(model, names)
    tell = Progress(verbose)
    with staged(path, why_not_made_of(*FILES)) as folder:
        with tell("writing"):
            config = _config(model, max_length)
            tensors = _tensors(model, config, order)
            (folder / WEIGHTS_FILE).write_bytes(serialised(tensors, metadata={"format": "pt"}))
            _write_json(folder / CONFIG_FILE, {**config, **PRODUCER})
            _write_json(folder / GENERATION_CONFIG, _generation(config))
            _write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(model, max_length))
            for name, content in zip(SPM_FILES, models, strict=True):
                (folder / name).write_bytes(content)
            for name, ids in zip(VOCABULARIES, words, strict=False):
                _write_json(folder / name, ids)
        with tell("proving it by reading it back"):
            _prove(folder, model, given, max_length)


def _safetensors():
    """The function that makes the bytes of `model.safetensors`."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise ImportError(
            "Writing .safetensors needs the package of that name. Install it with: "
            "pip install 'keras-transformer-onnx[import]'"
        ) from error
    return save


def _more_differences(model):
    """What CTranslate2 holds and Marian's architecture does not, list of str."""
    wrong = {
        "norm_first=True": model.norm_first,
        "embedding_norm=True": model.embedding_norm,
        f"epsilon={model.epsilon}": model.epsilon != marian.EPSILON,
    }
    return [name for name, there in wrong.items() if there]


def _channel_order(model, length):
    """Our channel at each of theirs (D,), and a list that names positions of another kind."""
    theirs = marian.half_sinusoids(length, model.d_model)  # (P, D)
    same = np.arange(model.d_model)
    for order in (same, np.r_[same[::2], same[1::2]]):
        if all(np.allclose(t[:, order], theirs, atol=1e-3) for t in position_tables(model, length)):
            return order, []
    kind = type(model.encoder_stack.positions).__name__
    return same, [f"positions={kind} that are not the paper's sinusoids of base 10000"]


def _rows(size, shared):
    """Our id at each of theirs, (U,). Padding has no row of its own: it begins, as ours does not.

    It is the last id, as tools expect it; but the two vocabularies of a model need one id for it.
    """
    others = range(BEGIN_ID + 2, size)
    return [END_ID, UNKNOWN_ID, *others, BEGIN_ID] if shared else [
        END_ID, UNKNOWN_ID, BEGIN_ID, *others
    ]  # fmt: skip


def _vocabularies(model, names):
    """`{piece: their id}` of the source and the target, or one of both in a list.

    Args:
        names: of each side the piece at each of our ids, see `pieces.published`.

    Raises:
        ValueError: a tokenizer has more ids than the model, or two tokenizers of one vocabulary
            mean different pieces by an id.
    """
    shared = model.target_vocab_size is None
    sizes = [model.vocab_size, model.target_vocab_size or model.vocab_size]
    for own, size in zip(names, sizes, strict=True):
        if len(own) > size:
            raise ValueError(
                f"A tokenizer has {len(own)} ids, but the model {size}. Pass the ones that it was "
                "trained with."
            )
    if shared:
        source, target = ([*own, *[None] * (sizes[0] - len(own))] for own in names)
        pairs = list(zip(source, target, strict=True))
        apart = [
            (i, *pair) for i, pair in enumerate(pairs) if None not in pair and len({*pair}) > 1
        ]
        if apart:
            raise ValueError(
                f"The model has one vocabulary, but its two tokenizers mean different pieces by "
                f"{len(apart)} ids, such as (id, source, target) {apart[:3]}. A Marian folder has "
                "one vocab.json for such a model: pass the tokenizers that it was trained with."
            )
        names, sizes = [[one or two for one, two in pairs]], sizes[:1]
    return [_vocabulary(own, size, shared) for own, size in zip(names, sizes, strict=True)]


def _vocabulary(names, size, shared):
    """`{piece: their id}` of one side."""
    special = {END_ID: "</s>", UNKNOWN_ID: "<unk>", BEGIN_ID: "<pad>"}
    named = {i: name for i, name in enumerate(names) if name is not None} | special
    return {named.get(row, f"<{row}>"): i for i, row in enumerate(_rows(size, shared))}


def _config(model, max_length):
    """The content of `config.json`."""
    encoder, decoder = depths(model)
    shared = model.target_vocab_size is None
    pad = model.vocab_size - 2 if shared else 2  # see `_rows`
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size - 1,
        "decoder_vocab_size": (model.target_vocab_size or model.vocab_size) - 1,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": model.tie_output,
        "d_model": model.d_model,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": ACTIVATIONS[keras.activations.get(model.activation)],
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "max_position_embeddings": max_length,
        "static_position_embeddings": True,
        "scale_embedding": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "eos_token_id": 0,
        "unk_token_id": 1,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _generation(config):
    """The content of `generation_config.json`: padding is never written."""
    names = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
    more = {"max_length": config["max_position_embeddings"], "num_beams": 1}
    return {**{key: config[key] for key in names}, "bad_words_ids": [[config["pad_token_id"]]],
            **more}  # fmt: skip


def _tokenizer_config(model, max_length):
    """The content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": max_length,
        "separate_vocabs": model.target_vocab_size is not None,
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }


def _tensors(model, config, order):
    """`{their name: array}` of all weights, with channels in their order."""
    arrays = {path: _in_order(path, array, order) for path, array in weights_of(model).items()}
    blocks = mapping.encoder_decoder_blocks("model.", depths(model), model.d_model, model.d_ff)
    tensors = mapping.unmapped(arrays, blocks)
    shared = config["share_encoder_decoder_embeddings"]
    owners = {"encoder": "source_embedding", "decoder": "target_embedding"}
    if shared:
        owners = dict.fromkeys(owners, "token_embedding")
    tables = {f"model.{side}.embed_tokens.weight": own for side, own in owners.items()}
    if shared:
        copies = {} if model.tie_output else tables  # `transformers` would tie nothing at all
        tables = {"model.shared.weight": "token_embedding", **copies}
    for name, own in tables.items():  # the last one gives the logits, too
        table = arrays[f"{own}/embeddings"]
        rows = _rows(len(table), shared)
        tensors[name] = table[rows]
    if not model.tie_output:
        tensors["lm_head.weight"] = np.ascontiguousarray(arrays[f"{own}/output_kernel"].T[rows])
    bias = arrays.get(f"{own}/output_bias", np.zeros(len(table), np.float32))
    return {**tensors, "final_logits_bias": bias[None, rows]}


def _in_order(path, array, order):
    """A weight with its channels in their order."""
    for end, axis in CHANNELS.items():
        if path.endswith(f"/{end}"):
            return np.take(array, order, axis)
    return array


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _prove(folder, model, tokenizers, max_length):
    """Raises `ExportError` unless the folder, read back, is the same model and the same tokens."""
    again, read = marian.load(folder)
    read = read if isinstance(read, tuple) else (read, read)
    for own, other in zip(tokenizers, read, strict=True):
        texts = [own.decode([i]) for i in range(4, min(own.vocab_size, 200))]
        if own.encode(texts) != other.encode(texts):
            raise ExportError(
                "The tokenizer that was read back gives other ids. Please report it, with the "
                "tokenizer's model."
            )
    random, longest = np.random.default_rng(0), min(max_length, 23)
    lengths = range(1, longest, 3)
    source = [random.integers(4, model.vocab_size, n).tolist() for n in lengths]
    size = model.target_vocab_size or model.vocab_size
    target = [random.integers(4, size, n).tolist() for n in lengths]
    inputs = {
        "source_ids": pad_rows([[*row, END_ID] for row in source]),
        "target_ids": pad_rows([[BEGIN_ID, *row] for row in target]),
    }
    written = inputs["target_ids"] > 0
    # Padding is no row of theirs, and nobody writes it.
    expected, found = (np.asarray(one(inputs))[written][:, UNKNOWN_ID:] for one in (model, again))
    error = float(np.abs(expected - found).max()) / max(1.0, float(np.abs(expected).max()))
    if not error <= TOLERANCE:
        raise ExportError(
            f"Parity of the logits that were read back: they differ from Keras' by {error:.2g} of "
            f"their size, {TOLERANCE:.2g} is allowed. Please report it with the model's "
            "configuration."
        )
