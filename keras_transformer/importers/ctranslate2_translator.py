"""CTranslate2's `TransformerSpec`: translation models such as Argos' and OpenNMT's.

They are the paper's model: pre-norm or post-norm, with one or two vocabularies. Positions are
sinusoids or a table. The importer recognises other attention, gated networks and other norms by the
names of their tensors, and refuses them.

Shapes: D d_model, F d_ff, V our number of ids.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.importers import checkpoint, mapping, pieces
from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers.ctranslate2_binary import Specification
from keras_transformer.layers.positions import LearnedPositionEncoding, SinusoidalPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids

EPSILON = 1e-5  # where the configuration does not give one
PADDING = ("<blank>", "<pad>")  # of OpenNMT and of others
# Tables this close to sinusoids are sinusoids that were rounded to 16 bits.
ROUNDING = 2e-3
# SentencePiece models: one for both sides, beside CTranslate2's files or above (Argos); or two.
SHARED_TOKENIZERS = ("tokenizer.model", "sentencepiece.model", "../sentencepiece.model")
SIDE_TOKENIZERS = (("source.spm", "target.spm"), ("tokenizer.model", "target_tokenizer.model"))


def load_translator(
    folder: pathlib.Path, specification: Specification, options: Mapping[str, Any]
) -> tuple[Transformer, Tokenizer | tuple[Tokenizer, Tokenizer]]:
    """Loads the model of `make_translator`, and its tokenizers with our ids."""
    models, reads_end = _read_tokenizers(folder)
    vocabularies = [layout.ids(names) for names in _vocabularies(folder)]
    shared = vocabularies[0] == vocabularies[1]
    sides = [models, models] if shared else [models[:1], models[1:]]
    unknown = [
        pieces.unknown_pieces(ids, *side) for ids, side in zip(vocabularies, sides, strict=True)
    ]
    orders = _orders(folder, specification, [len(side) for side in unknown])
    model = make_translator(folder, specification, {"reads_end": reads_end, **options}, orders)
    names = [pieces.piece_names(*side) for side in zip(vocabularies, orders, unknown, strict=True)]
    return with_tokenizers(model, pieces.renumbered_sides(models, names))


def make_translator(
    folder: pathlib.Path,
    specification: Specification,
    options: Mapping[str, Any],
    orders: Sequence[Ids] | None = None,
) -> Transformer:
    """Returns the model of a `TransformerSpec`.

    Args:
        folder: path of the folder.
        specification: content of `model.bin`.
        options: arguments of `Transformer` that do not change weights.
        orders: CTranslate2's ids of our rows, (V,) each, of the source and of the target. Defaults
            to the order of the vocabularies.
    """
    tensors, config = specification.tensors, checkpoint.read_json(folder / "config.json")
    orders = _orders(folder, specification) if orders is None else orders
    tables = ["encoder/embeddings_0/weight", "decoder/embeddings/weight"]
    (_, d_model), _ = (layout.shape(tensors, name, 2) for name in tables)
    d_ff, _ = layout.shape(tensors, "encoder/layer_0/ffn/linear_0/weight", 2)
    kernel, bias = "decoder/projection/weight", "decoder/projection/bias"
    shared = all(np.array_equal(*pair) for pair in (orders, [tensors[name] for name in tables]))
    tied = np.array_equal(tensors.get(kernel), tensors[tables[1]])
    use_bias = "encoder/layer_0/self_attention/linear_0/bias" in tensors
    norm_first = bool(layout.setting(specification, "pre_norm", 1))
    embedding_norm = "encoder/layernorm_embedding/gamma" in tensors

    targets = layout.block_targets(tensors, d_model, d_ff, use_bias)
    for side, text in layout.SIDES.items():
        if norm_first:
            targets |= layout.norm(f"{side}/layer_norm", d_model, f"{side}_norm")
        if embedding_norm:
            targets |= layout.norm(f"{side}/layernorm_embedding", d_model, f"{text}_embedding_norm")
    positions, position_targets = _positions(tensors, d_model)
    targets |= position_targets
    sizes = [len(names) for names in _vocabularies(folder)]
    targets |= {n: mapping.Target((size, d_model)) for n, size in zip(tables, sizes, strict=True)}
    targets[kernel] = mapping.Target((sizes[1], d_model))
    if bias in tensors:
        targets[bias] = mapping.Target((sizes[1],))
    tensors = mapping.checked(tensors, targets)

    arrays = mapping.mapped(tensors, targets)
    last = "decoder_norm"
    if not norm_first:
        last = f"decoder_block_{layout.depth(tensors, 'decoder') - 1}/feed_forward_norm"
    names = ["token_embedding"] if shared else ["source_embedding", "target_embedding"]
    embeddings = [(tensors[table], order) for table, order in zip(tables, orders, strict=True)]
    arrays |= mapping.embedding_weights(
        dict(zip(names, embeddings, strict=False)),
        tensors.get(bias),
        kernel=None if tied else tensors[kernel],
        scale=layout.scale(specification, d_model) * d_model**-0.5,
        last_norm=mapping.norm_weights(arrays, last),
    )
    settings = {
        "activation": layout.activation(specification),
        "norm_first": norm_first,
        "positions": positions,
        "target_vocab_size": None if shared else len(orders[1]),
        "use_bias": use_bias,
        "epsilon": _epsilon(config),
        "embedding_norm": embedding_norm,
        "tie_output": tied,
        "output_bias": True,
    }
    heads = {layout.heads(specification, side) for side in layout.SIDES}
    if len(heads) > 1:
        raise ValueError(f"The sides have {sorted(heads)} heads, but our sides share one number.")
    depths = tuple(layout.depth(tensors, side) for side in layout.SIDES)
    model = Transformer(len(orders[0]), depths, d_model, heads.pop(), d_ff, **settings | options)
    mapping.assign_weights(model, arrays)
    return model


def _orders(
    folder: pathlib.Path, specification: Specification, copies: Sequence[int] = (0, 0)
) -> list[Ids]:
    """Returns CTranslate2's ids of our rows, of source and target; `copies` as in `marian`."""
    path = folder / "config.json"
    config, orders = checkpoint.read_json(path), []
    tokens = [config.get(f"{name}_token") for name in ("unk", "decoder_start", "eos")]
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError(
            f"{path} must name the unknown token, the decoder's start and the end token, but has "
            f"{tokens!r:.100}."
        )
    for names, more in zip(_vocabularies(folder), copies, strict=True):
        ids = layout.ids(names)
        pad = next((ids[piece] for piece in PADDING if piece in ids), None)
        unknown, end = (pieces.special_id(ids, piece) for piece in (tokens[0], tokens[2]))
        begin = ids.get(tokens[1])
        if layout.setting(specification, "start_from_zero_embedding", 0):
            begin = None  # a row of zeros
        orders.append(mapping.row_order(len(names), pad, unknown, begin, end, more))
    return orders


def _vocabularies(folder: pathlib.Path) -> list[list[str]]:
    """Reads the pieces of source and target, in the order of their ids."""
    if any((folder / f"shared_vocabulary{kind}").exists() for kind in (".json", ".txt")):
        return [layout.read_vocabulary(folder, "shared_vocabulary")] * 2
    return [layout.read_vocabulary(folder, f"{text}_vocabulary") for text in layout.SIDES.values()]


def _epsilon(config: Mapping[str, Any]) -> float:
    epsilon = config.get("layer_norm_epsilon") or EPSILON
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise ValueError(f"config.json says layer_norm_epsilon={epsilon!r:.50}.")
    return epsilon


def _positions(tensors: Mapping[str, Array], d_model: int) -> tuple[Any, mapping.Targets]:
    """Returns a model's `positions` and the targets of their tables; sinusoids have no weights."""
    tables = {text: f"{side}/position_encodings/encodings" for side, text in layout.SIDES.items()}
    lengths = {layout.shape(tensors, name, 2)[0] for name in tables.values()}
    length = max(lengths)
    if d_model % 2 == 0:
        nothing = np.zeros((1, length, d_model), "float32")
        sinusoids = np.asarray(SinusoidalPositionEncoding()(nothing))[0]
        shapes = {name: tensors[name].shape for name in tables.values()}
        if all(
            shape[1] == d_model
            and np.allclose(tensors[name], sinusoids[: shape[0]], rtol=0, atol=ROUNDING)
            for name, shape in shapes.items()
        ):
            return "sinusoidal", {name: mapping.Target(shape) for name, shape in shapes.items()}
    targets = {
        name: mapping.Target((length, d_model), (f"{text}_positions/embeddings",))
        for text, name in tables.items()
    }
    return LearnedPositionEncoding(length, trainable=False), targets


def _read_tokenizers(folder: pathlib.Path) -> tuple[list[bytes], bool]:
    """Reads the SentencePiece models of both sides, and whether sources have an end token.

    In OPUS-MT's folders the tokenizer adds this token, otherwise CTranslate2.
    """
    config = checkpoint.read_json(folder / "config.json")
    if config.get("add_source_bos"):
        raise ValueError(
            f"{folder / 'config.json'} says add_source_bos=true, but `Translator` reads sources "
            "without a begin token. Use load_model, and pass ids."
        )
    reads_end = config.get("add_source_eos") is True
    for pair in SIDE_TOKENIZERS:
        if all((folder / name).exists() for name in pair):
            models = [pieces.read_spm(folder / name) for name in pair]
            return models, reads_end or pair == SIDE_TOKENIZERS[0]
    for name in SHARED_TOKENIZERS:
        if (folder / name).exists():
            return [pieces.read_spm(folder / name)] * 2, reads_end
    raise FileNotFoundError(
        f"{folder} has no SentencePiece model: {SHARED_TOKENIZERS} or {SIDE_TOKENIZERS}. Copy it "
        "there, or use load_model."
    )
