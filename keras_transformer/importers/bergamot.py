"""Bergamot's models, which Firefox translates with: an encoder of the paper, an SSRU decoder.

A folder holds `model.*.bin`, in Marian's binary format, and `vocab.*.spm`, or `srcvocab.*.spm`
and `trgvocab.*.spm`. A lexical shortlist beside them, `lex.*.bin`, is no part of the model:
`load_shortlist` reads it for a search.

What differs from our models is absorbed by the order of numbers, so that nothing of it is left:

- Ids: `</s>` is 0 and `<unk>` 1 there. The rows of the tables are put in our order.
- Positions: sines, then cosines there, of frequencies 10000^(-i / (D/2 - 1)); interleaved here, of
  frequencies base^(-2i/D). The channels of every vector are put in our order, and
  base = 10000^(D / (D - 2)) gives the same frequencies.
- The decoder starts with a vector of zeros there: the begin token's row is zeros here.

Shapes: V vocabulary there, D d_model, F d_ff.
"""

import pathlib

import numpy as np

from keras_transformer.importers.assignment import assign_weights
from keras_transformer.importers.checkpoint import check_sizes
from keras_transformer.importers.marian_binary import read_model, read_shortlist
from keras_transformer.importers.pieces import (
    piece_ids,
    piece_names,
    read_spm,
    renumbered,
    special_id,
)
from keras_transformer.importers.vocabulary import logit_bias, our_ids, row_order, rows
from keras_transformer.layers.positions import SinusoidalPositionEncoding
from keras_transformer.models import Transformer
from keras_transformer.special_ids import END_ID

# What the configuration has to say, where it says anything.
ARCHITECTURE = {
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
DEPTHS = ("enc-depth", "dec-depth")
# Parts of a block there and here, and their axes: D, channels of the vectors between blocks, which
# are put in our order; H, those of all heads together, and F, which keep theirs.
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
# The matrix of the logits, where it is not that of the embeddings.
OUTPUT = "decoder_ff_logit_out_Wt"
# Sublayers of a block there and here, and what the norm behind them is called there.
SELF = ("self", "self_attention", ATTENTION, "Wo_ln")
RECURRENT = ("rnn", "self_attention", SSRU, "ffn_ln")
CONTEXT = ("context", "cross_attention", ATTENTION, "Wo_ln")
NETWORK = ("ffn", "feed_forward", FEED_FORWARD, "ffn_ln")


def load(folder, **options):
    """A `Transformer` with the weights of one of Bergamot's models, and its tokenizer.

    Firefox searches greedily and never writes the unknown token:
    `GreedySearch(allow_unknown=False)`.

    The models are students of larger ones and do not stand dropout: with 0.1 the loss begins at 15
    nats a token instead of 8 where Firefox' Portuguese-English trains on, on summaries. So
    `dropout` is 0.0 here unless it is given.

    Args:
        folder: path of the folder with `model.*.bin` and `vocab.*.spm`.
        **options: arguments of `Transformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `(model, tokenizer)`. Where source and target have vocabularies of their own, `tokenizer` is
        a pair, of the source and of the target.

    Raises:
        FileNotFoundError: a file is missing, or there are several of a kind.
        ValueError: a file is cut off or of another format; the configuration is of another
            architecture; a tensor is missing, left over or misshapen. The message names each.

    Example:

    >>> model, tokenizer = load("models/enpt")  # doctest: +SKIP
    """
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
    return model, tokenizers[0] if len(tokenizers) == 1 else tuple(tokenizers)


def load_shortlist(folder):
    """The lexical shortlist of a folder, `lex.*.bin`, with our ids.

    Args:
        folder: path of the folder, with the vocabularies of `load`.

    Returns:
        `search.Shortlist`, for `search.Shortlisted` and for `export_onnx(shortlist=...)`. It allows
        exactly what Firefox allows for one sentence.

    Raises:
        FileNotFoundError, ValueError: as `load`; or the shortlist is of another vocabulary.

    Example:

    >>> shortlist = load_shortlist("models/enpt")  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    theirs = read_shortlist(_only(folder, "lex*.bin"))
    orders = [_row_order(piece_ids(text)) for text in _vocabularies(folder)]
    source, target = orders[0], orders[-1]
    counts = np.diff(theirs.offsets)
    if len(counts) != int(max(source)) + 1:
        raise ValueError(
            f"The shortlist is of {len(counts)} source ids, but the vocabulary has "
            f"{int(max(source)) + 1}. Are the files of one model?"
        )
    ours = np.full(int(max(target)) + 1, END_ID)
    for number, row in our_ids(target).items():
        ours[number] = row
    table = np.full((len(source), counts.max(initial=1)), END_ID)
    for row, number in enumerate(source):
        if number >= 0:
            found = theirs.ids[theirs.offsets[number] : theirs.offsets[number + 1]]
            table[row, : len(found)] = ours[found]
    always = (target >= 0) & (target < theirs.first_count)
    # Searches are TensorFlow's; models are read where it is not installed, too.
    from keras_transformer.search.shortlist import Shortlist

    return Shortlist(table, always, multiple=8, fill=target >= 0)


def _vocabularies(folder):
    """The SentencePiece models of a folder, bytes: one, or the source's and the target's."""
    if list(folder.glob("srcvocab*.spm")):
        files = [_only(folder, "srcvocab*.spm"), _only(folder, "trgvocab*.spm")]
    else:
        files = [_only(folder, "vocab*.spm")]
    return [read_spm(file) for file in files]


def _row_order(ids):
    """Their ids of our rows, (V,)."""
    unknown, end = special_id(ids, "<unk>"), special_id(ids, "</s>")
    return row_order(len(ids), pad=None, unknown=unknown, begin=None, end=end)


def mapped_weights(arrays, config, order, target_order=None):
    """`{our path: array}` of all weights of a model, as `assign_weights` takes it.

    Args:
        arrays, config: what `marian_binary.read_model` gives.
        order, target_order: their ids of our rows, see `vocabulary.row_order`; the second where
            the target has a vocabulary of its own.

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


def _tables(tensors, order, target_order):
    """Embeddings and what gives the logits."""
    sides = {"token_embedding": ("Wemb", order)}
    if target_order is not None:
        sides = {
            "source_embedding": ("encoder_Wemb", order),
            "target_embedding": ("decoder_Wemb", target_order),
        }
    mapped = {}
    for side, (name, own) in sides.items():  # the last one gives the logits, too
        size = int(max(own)) + 1
        mapped[f"{side}/embeddings"] = tensors.take(name, "VD", own, V=size)
    if OUTPUT in tensors.left:
        mapped[f"{side}/output_kernel"] = tensors.take(OUTPUT, "VD", own, V=size).T
    bias = tensors.take("decoder_ff_logit_out_b", "V", V=size)
    return {**mapped, f"{side}/output_bias": logit_bias(own, bias)}


class _Tensors:
    """The arrays of a model, each to be taken once."""

    def __init__(self, arrays, d_model, d_ff):
        self.left, self.problems = dict(arrays), []
        self.sizes = {"D": d_model, "H": d_model, "F": d_ff}
        self.order = channel_order(d_model)

    def take(self, name, axes, order=None, **sizes):
        """An array of these axes, with its channels in our order, and its rows in `order`."""
        shape = tuple({**self.sizes, **sizes}[axis] for axis in axes)
        array = self.left.pop(name, None)
        if array is None or array.shape not in (shape, (1, *shape)):
            found = "is missing" if array is None else f"has shape {array.shape}, not {shape}"
            self.problems.append(f"{name} {found}")
            return np.broadcast_to(np.float32(0), shape)  # `finish` refuses it
        array = array.reshape(shape)
        for number, axis in enumerate(axes):
            array = np.take(array, self.order, number) if axis == "D" else array
        return array if order is None else rows(array, order)

    def finish(self):
        """Refuses arrays that were missing or misshapen, or that nobody took."""
        problems = self.problems + [f"{name} is left over" for name in self.left]
        if problems:
            raise ValueError(
                f"{len(problems)} tensors are not those of the model that its configuration "
                f"describes: {'; '.join(problems)}."
            )


def channel_order(d_model):
    """Which of their channels stands at each of ours: sines and cosines in turn."""
    return np.arange(d_model).reshape(2, -1).T.ravel()


def _recurrent(config):
    return config["transformer-decoder-autoreg"] == "rnn"


def _sizes(arrays, config, orders):
    """The arguments of our `Transformer`."""
    d_model = config["dim-emb"]
    return dict(
        vocab_size=len(orders[0]),
        target_vocab_size=len(orders[1]) if len(orders) > 1 else None,
        num_layers=(config["enc-depth"], config["dec-depth"]),
        d_model=d_model,
        num_heads=config["transformer-heads"],
        d_ff=config["transformer-dim-ffn"],
        activation=config["transformer-ffn-activation"],
        positions=SinusoidalPositionEncoding(base=10000.0 ** (d_model / (d_model - 2))),
        use_bias=True,
        epsilon=1e-6,
        output_bias=True,
        tie_output=OUTPUT not in arrays,
        recurrent_decoder=_recurrent(config),
    )


def _check_architecture(config):
    """Refuses a configuration of another architecture."""
    wrong = [
        f"{key} is {config[key]!r}, not {value!r}"
        for key, value in ARCHITECTURE.items()
        if config.get(key, value) != value
    ]
    wrong += [
        f"{key} is {config.get(key)!r}, no positive number"
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
    if config.get("transformer-ffn-activation") not in ("relu", "swish", "gelu"):
        wrong.append(f"transformer-ffn-activation is {config.get('transformer-ffn-activation')!r}")
    if not wrong and (config["dim-emb"] % 2 or config["dim-emb"] < 4):
        wrong.append(f"dim-emb is {config['dim-emb']}, no even number of at least 4")
    if wrong:
        raise ValueError(f"The model is of another architecture: {'; '.join(wrong)}.")


def _only(folder, pattern):
    """The only file of a pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise FileNotFoundError(
            f"{folder} must hold one file {pattern}, but there are {len(found)}: {names}."
        )
    return found[0]
