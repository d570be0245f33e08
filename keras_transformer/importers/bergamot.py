"""Bergamot's models, which Firefox uses for translation: the paper's encoder, an SSRU decoder.

A folder holds `model.*.bin` in Marian's binary format, and `vocab.*.spm`, or `srcvocab.*.spm` and
`trgvocab.*.spm`. A lexical shortlist beside them, `lex.*.bin`, is not part of the model;
`load_shortlist` reads it for a search.

The importer removes each difference from our models by reordering numbers:

- Ids: Bergamot has `</s>` at 0 and `<unk>` at 1. The importer puts the rows of the tables in our
  order.
- Positions: Bergamot has all sines, then all cosines, of frequencies 10000^(-i / (D/2 - 1)); ours
  alternate, with frequencies base^(-2i/D). The importer puts the channels of every vector in our
  order, and base = 10000^(D / (D - 2)) gives the same frequencies.
- Bergamot's decoder starts with a vector of zeros, so the row of our begin token is zeros.

Shapes: V Bergamot's vocabulary, D d_model, F d_ff.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.importers.checkpoint import check_origin, check_sizes
from keras_transformer.importers.mapping import assign_weights, logit_bias, our_ids, row_order, rows
from keras_transformer.importers.marian_binary import read_model, read_shortlist
from keras_transformer.importers.pieces import (
    piece_ids,
    piece_names,
    read_spm,
    renumbered,
    special_id,
)
from keras_transformer.layers.blocks import gelu_sigmoid
from keras_transformer.layers.positions import SinusoidalPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.special_ids import END_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

if TYPE_CHECKING:
    from keras_transformer.search.shortlist import Shortlist

# The only supported values of these keys of the configuration.
ARCHITECTURE: dict[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-ffn-depth": 2,
    "transformer-train-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "input-types": [],
    "output-omit-bias": False,
    "lemma-dim-emb": 0,
    "ulr": False,
}
SIZES = ("dim-emb", "transformer-heads", "transformer-dim-ffn")
# Marian computes "gelu" as a swish with the factor 1.702.
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": gelu_sigmoid}
DEPTHS = ("enc-depth", "dec-depth")
# From Bergamot's name of a part of a block to ours, and its axes. The channels of D, the vectors
# between blocks, are put in our order; H (all heads together) and F keep theirs.
ATTENTION = {
    "Wq": ("query/kernel", "DH"),
    "Wk": ("key/kernel", "DH"),
    "Wv": ("value/kernel", "DH"),
    "Wo": ("output/kernel", "HD"),
    "bq": ("query/bias", "H"),
    "bk": ("key/bias", "H"),
    "bv": ("value/bias", "H"),
    "bo": ("output/bias", "D"),
}
FEED_FORWARD = {
    "W1": ("hidden/kernel", "DF"),
    "b1": ("hidden/bias", "F"),
    "W2": ("output/kernel", "FD"),
    "b2": ("output/bias", "D"),
}
SSRU = {
    "W": ("input/kernel", "DD"),
    "Wf": ("forget/kernel", "DD"),
    "bf": ("forget/bias", "D"),
}
# The matrix of the logits, if it is not tied to the embeddings.
OUTPUT = "decoder_ff_logit_out_Wt"
# Sublayers of a block: Bergamot's name, ours, the parts, and Bergamot's name of the norm after it.
SELF = ("self", "self_attention", ATTENTION, "Wo_ln")
RECURRENT = ("rnn", "self_attention", SSRU, "ffn_ln")
CONTEXT = ("context", "cross_attention", ATTENTION, "Wo_ln")
NETWORK = ("ffn", "feed_forward", FEED_FORWARD, "ffn_ln")


def load(
    folder: StrPath, **options: Any
) -> tuple[Transformer, Tokenizer | tuple[Tokenizer, Tokenizer]]:
    """Loads one of Bergamot's models as a `Transformer`, and its tokenizer.

    Firefox searches greedily and never writes the unknown token:
    `GreedySearch(allow_unknown=False)`.

    The models were distilled from larger ones, and dropout harms their fine-tuning: with 0.1 the
    loss of the Portuguese-English model on summaries starts at 15 nats per token instead of 8. So
    `dropout` defaults to 0.0.

    Args:
        folder: str or path-like, the folder with `model.*.bin` and `vocab.*.spm`.
        **options: arguments of `Transformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `(model, tokenizer)`, or `(model, (source, target))` if source and target have separate
        vocabularies.

    Raises:
        FileNotFoundError: a file is missing, or several files match.
        ValueError: a file is truncated or of another format; the configuration describes another
            architecture; a tensor is missing, left over or misshapen. The message names each.

    Example:

    >>> model, tokenizer = load("models/enpt")  # doctest: +SKIP
    """
    check_origin(folder, "bergamot")
    folder = pathlib.Path(folder)
    path = _only(folder, "model*.bin")
    arrays, config = read_model(path)
    _check_architecture(config)
    check_sizes(path, config, arrays, SIZES, DEPTHS)
    texts = _vocabularies(folder)
    ids = [piece_ids(text) for text in texts]
    orders = [_row_order(own) for own in ids]
    weights = mapped_weights(arrays, config, *orders)
    model = Transformer(**_sizes(arrays, config, orders) | {"dropout": 0.0, **options})
    assign_weights(model, weights)
    tokenizers = [
        renumbered(text, piece_names(own, order))
        for text, own, order in zip(texts, ids, orders, strict=True)
    ]
    return with_tokenizers(model, tokenizers[0] if len(tokenizers) == 1 else tuple(tokenizers))


def load_shortlist(folder: StrPath) -> "Shortlist":
    """Loads the lexical shortlist of a folder, `lex.*.bin`, with our ids.

    Args:
        folder: str or path-like, a folder with the vocabularies of `load`.

    Returns:
        `Shortlist`, for `Shortlisted` and for `export_onnx(shortlist=...)`. It allows exactly the
        tokens that Firefox allows for one sentence.

    Raises:
        FileNotFoundError, ValueError: as `load`; or the shortlist has another vocabulary.

    Example:

    >>> shortlist = load_shortlist("models/enpt")  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    theirs = read_shortlist(_only(folder, "lex*.bin"))
    orders = [_row_order(piece_ids(text)) for text in _vocabularies(folder)]
    source, target = orders[0], orders[-1]
    sizes = int(max(source)) + 1, int(max(target)) + 1
    counts = np.diff(theirs.offsets)
    highest = max(theirs.first_count - 1, int(theirs.ids.max(initial=0)))
    if len(counts) != sizes[0] or highest >= sizes[1]:
        raise ValueError(
            f"The shortlist has {len(counts)} source ids and target ids up to {highest}, but the "
            f"vocabularies have {sizes[0]} and {sizes[1]} ids. Check that the files belong to one "
            "model."
        )
    ours = np.full(sizes[1], END_ID)
    for number, row in our_ids(target).items():
        ours[number] = row
    table = np.full((len(source), counts.max(initial=1)), END_ID)
    for row, number in enumerate(source):
        if number >= 0:
            candidates = theirs.ids[theirs.offsets[number] : theirs.offsets[number + 1]]
            table[row, : len(candidates)] = ours[candidates]
    always = (target >= 0) & (target < theirs.first_count)
    # Imported here, because searches need TensorFlow and models do not.
    from keras_transformer.search.shortlist import Shortlist

    return Shortlist(table, always, multiple=8, fill=target >= 0)


def _vocabularies(folder: pathlib.Path) -> list[bytes]:
    """Reads the SentencePiece models of a folder: one, or the source's and the target's."""
    if list(folder.glob("srcvocab*.spm")):
        files = [_only(folder, "srcvocab*.spm"), _only(folder, "trgvocab*.spm")]
    else:
        files = [_only(folder, "vocab*.spm")]
    return [read_spm(file) for file in files]


def _row_order(ids: Mapping[str, int]) -> Ids:
    """Returns Bergamot's ids of our rows."""
    unknown, end = special_id(ids, "<unk>"), special_id(ids, "</s>")
    return row_order(len(ids), pad=None, unknown=unknown, begin=None, end=end)


def mapped_weights(
    arrays: Mapping[str, Array],
    config: Mapping[str, Any],
    order: Ids,
    target_order: Ids | None = None,
) -> dict[str, Array]:
    """Returns a dict from our path to array of all weights, for `assign_weights`.

    Args:
        arrays, config: result of `marian_binary.read_model`.
        order, target_order: Bergamot's ids of our rows, see `mapping.row_order`; the second if the
            target has a separate vocabulary.

    Raises:
        ValueError: a tensor is missing, left over or misshapen. The message names each.
    """
    tensors = _Tensors(arrays, config["dim-emb"], config["transformer-dim-ffn"])
    mapped = _tables(tensors, order, target_order)
    own = RECURRENT if _recurrent(config) else SELF
    for side, depth, sublayers in (
        ("encoder", config["enc-depth"], (SELF, NETWORK)),
        ("decoder", config["dec-depth"], (own, CONTEXT, NETWORK)),
    ):
        for block in range(depth):
            for theirs, ours, parts, norm in sublayers:
                before = f"{side}_l{block + 1}_{theirs}_"
                path = f"{side}_block_{block}/{ours}"
                for name, (part, axes) in parts.items():
                    mapped[f"{path}/{part}"] = tensors.take(before + name, axes)
                mapped[f"{path}_norm/gamma"] = tensors.take(f"{before}{norm}_scale", "D")
                mapped[f"{path}_norm/beta"] = tensors.take(f"{before}{norm}_bias", "D")
    tensors.finish()
    return mapped


def _tables(tensors: "_Tensors", order: Ids, target_order: Ids | None) -> dict[str, Array]:
    """Returns embeddings, and matrix and bias of the logits."""
    sides = {"token_embedding": ("Wemb", order)}
    if target_order is not None:
        sides = {
            "source_embedding": ("encoder_Wemb", order),
            "target_embedding": ("decoder_Wemb", target_order),
        }
    mapped = {}
    for side, (name, own) in sides.items():  # the last one also computes the logits
        size = int(max(own)) + 1
        mapped[f"{side}/embeddings"] = tensors.take(name, "VD", own, V=size)
    if OUTPUT in tensors.left:
        mapped[f"{side}/output_kernel"] = tensors.take(OUTPUT, "VD", own, V=size).T
    bias = tensors.take("decoder_ff_logit_out_b", "V", V=size)
    return {**mapped, f"{side}/output_bias": logit_bias(own, bias)}


class _Tensors:
    """The arrays of a model. `take` returns each once, and `finish` reports misfits."""

    def __init__(self, arrays: Mapping[str, Array], d_model: int, d_ff: int) -> None:
        self.left, self.problems = dict(arrays), []
        self.sizes = {"D": d_model, "H": d_model, "F": d_ff}
        self.order = channel_order(d_model)

    def take(self, name: str, axes: str, order: Ids | None = None, **sizes: int) -> Array:
        """Returns an array with these axes, its channels in our order and its rows in `order`."""
        shape = tuple({**self.sizes, **sizes}[axis] for axis in axes)
        array = self.left.pop(name, None)
        if array is None or array.shape not in (shape, (1, *shape)):
            found = "is missing" if array is None else f"has shape {array.shape}, not {shape}"
            self.problems.append(f"{name} {found}")
            return np.broadcast_to(np.float32(0), shape)  # `finish` raises
        array = array.reshape(shape)
        for number, axis in enumerate(axes):
            array = np.take(array, self.order, number) if axis == "D" else array
        return array if order is None else rows(array, order)

    def finish(self) -> None:
        """Raises `ValueError` if an array was missing, misshapen or left over."""
        problems = self.problems + [f"{name} is left over" for name in self.left]
        if problems:
            raise ValueError(
                f"{len(problems)} tensors differ from the model that the configuration describes: "
                f"{'; '.join(problems)}."
            )


def channel_order(d_model: int) -> Ids:
    """Returns Bergamot's channel at each of ours, (D,): sines and cosines alternate."""
    return np.arange(d_model).reshape(2, -1).T.ravel()


def _recurrent(config: Mapping[str, Any]) -> bool:
    return config["transformer-decoder-autoreg"] == "rnn"


def _sizes(
    arrays: Mapping[str, Array], config: Mapping[str, Any], orders: Sequence[Ids]
) -> dict[str, Any]:
    """Returns the arguments of our `Transformer`."""
    d_model = config["dim-emb"]
    return dict(
        vocab_size=len(orders[0]),
        target_vocab_size=len(orders[1]) if len(orders) > 1 else None,
        num_layers=(config["enc-depth"], config["dec-depth"]),
        d_model=d_model,
        num_heads=config["transformer-heads"],
        d_ff=config["transformer-dim-ffn"],
        activation=ACTIVATIONS[config["transformer-ffn-activation"]],
        positions=SinusoidalPositionEncoding(base=10000.0 ** (d_model / (d_model - 2))),
        use_bias=True,
        epsilon=1e-6,
        output_bias=True,
        tie_output=OUTPUT not in arrays,
        recurrent_decoder=_recurrent(config),
    )


def _check_architecture(config: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a configuration of another architecture."""
    wrong = [
        f"{key} is {config[key]!r}, not {value!r}"
        for key, value in ARCHITECTURE.items()
        if config.get(key, value) != value
    ]
    wrong += [
        f"{key} is {config.get(key)!r}, not a positive integer"
        for key in (*SIZES, *DEPTHS)
        if not isinstance(config.get(key), int) or config[key] < 1
    ]
    autoregression = config.get("transformer-decoder-autoreg")
    if autoregression not in ("rnn", "self-attention"):
        wrong.append(
            f"transformer-decoder-autoreg is {autoregression!r}, neither rnn nor self-attention"
        )
    if autoregression == "rnn" and config.get("dec-cell") != "ssru":
        wrong.append(f"dec-cell is {config.get('dec-cell')!r}, not 'ssru'")
    if config.get("transformer-ffn-activation") not in ACTIVATIONS:
        wrong.append(f"transformer-ffn-activation is {config.get('transformer-ffn-activation')!r}")
    if not wrong and (config["dim-emb"] % 2 or config["dim-emb"] < 4):
        wrong.append(f"dim-emb is {config['dim-emb']}, not an even number of at least 4")
    if wrong:
        raise ValueError(f"The model has another architecture: {'; '.join(wrong)}.")


def _only(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    """Returns the only file that matches a pattern."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise FileNotFoundError(
            f"{folder} must hold one file {pattern}, but holds {len(files)}: {names}."
        )
    return files[0]
