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

Firefox searches greedily and never writes the unknown token: `GreedySearch(allow_unknown=False)`.
The models were distilled from larger ones, and dropout harms their fine-tuning: with 0.1 the loss
of the Portuguese-English model on summaries starts at 15 nats per token instead of 8. So `dropout`
defaults to 0.0.

Shapes: V Bergamot's vocabulary, D d_model.
"""

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.importers.activations import MARIAN
from keras_transformer.importers.checkpoint import check_origin, check_sizes
from keras_transformer.importers.mapping import our_ids, row_order
from keras_transformer.importers.marian_binary import read_model
from keras_transformer.importers.marian_shortlist import read_shortlist
from keras_transformer.importers.pieces import (
    Vocabulary,
    piece_ids,
    piece_names,
    read_spm,
    renumbered,
    special_id,
)
from keras_transformer.importers.tables import (
    Arrays,
    Loader,
    ModelLoader,
    Origin,
    RowOrders,
    Special,
    Table,
)
from keras_transformer.layers.positions import SinusoidalPositionEncoding
from keras_transformer.special_ids import END_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Ids, StrPath

if TYPE_CHECKING:
    from keras_transformer.search.shortlist import Shortlist

__all__ = ["load", "load_model", "load_shortlist", "row_orders"]

# The only supported values of keys that the configuration may omit.
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
# The supported values of other keys.
CHOICES = {
    "transformer-decoder-autoreg": ("rnn", "self-attention"),
    "transformer-ffn-activation": tuple(MARIAN),
}
SIZES = ("dim-emb", "transformer-heads", "transformer-dim-ffn")
DEPTHS = ("enc-depth", "dec-depth")
PARTS = {"kernel": "W", "bias": "b", "gamma": "scale", "beta": "bias"}
PROJECTIONS = {"*q": "query", "*k": "key", "*v": "value", "*o": "output"}


def _attention(side: str, theirs: str, ours: str) -> dict[str, str]:
    """Returns the rows of an attention layer and of the norm after it."""
    start, path = f"{side}_l#_{theirs}", f"{side}_block_#/{ours}"
    rows = {f"{start}_{name}": f"{path}/{layer}" for name, layer in PROJECTIONS.items()}
    return {**rows, f"{start}_Wo_ln_*": f"{path}_norm"}


TENSORS = {
    **_attention("encoder", "self", "self_attention"),
    **_attention("decoder", "context", "cross_attention"),
    "@_l#_ffn_*1": "@_block_#/feed_forward/hidden",
    "@_l#_ffn_*2": "@_block_#/feed_forward/output",
    "@_l#_ffn_ffn_ln_*": "@_block_#/feed_forward_norm",
    "decoder_ff_logit_out_b": "target_embedding/output_bias",
}
# Instead of the decoder's self-attention.
RECURRENT = {
    "decoder_l#_rnn_*": "decoder_block_#/self_attention/input",
    "decoder_l#_rnn_*f": "decoder_block_#/self_attention/forget",
    "decoder_l#_rnn_ffn_ln_*": "decoder_block_#/self_attention_norm",
}
SELF = _attention("decoder", "self", "self_attention")
# The tables of one vocabulary, and of two.
TABLES = (
    {"Wemb": "token_embedding/embeddings"},
    {
        "encoder_Wemb": "source_embedding/embeddings",
        "decoder_Wemb": "target_embedding/embeddings",
    },
)
# The matrix of the logits, if it is not tied to the embeddings.
OUTPUT = {"decoder_ff_logit_out_Wt": "target_embedding/output_kernel"}


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
    orders = [row_order(*_special(piece_ids(text))) for text in _vocabularies(folder)]
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


def _special(ids: Mapping[str, int]) -> Special:
    """Returns the number of Bergamot's ids and its special ids."""
    return len(ids), None, special_id(ids, "<unk>"), None, special_id(ids, "</s>")


def _read_files(folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
    check_origin(folder, "bergamot")
    path = _only(folder, "model*.bin")
    tensors, config = read_model(path)
    _check_architecture(config)
    check_sizes(path, config, tensors, SIZES, DEPTHS)
    return {**config, "vocabularies": _vocabularies(folder)}, tensors


def make_table(config: dict[str, Any], tensors: Arrays, options: dict[str, Any]) -> Table:
    d_model, texts = config["dim-emb"], config["vocabularies"]
    recurrent = config["transformer-decoder-autoreg"] == "rnn"
    output = OUTPUT if OUTPUT.keys() & tensors.keys() else {}
    return Table(
        TENSORS | (RECURRENT if recurrent else SELF) | TABLES[len(texts) - 1] | output,
        sizes={"D": d_model, "F": config["transformer-dim-ffn"]},
        layers=dict(zip(("encoder", "decoder"), map(config.get, DEPTHS), strict=True)),
        num_heads=config["transformer-heads"],
        special=[_special(piece_ids(text)) for text in texts],
        without=r"\w+/self_attention/input/bias",
        parts=PARTS,
        transposed=False,
        first_block=1,
        channels=np.arange(d_model).reshape(2, -1).T.ravel(),  # sines and cosines alternate
        settings={
            "dropout": 0.0,
            "activation": MARIAN[config["transformer-ffn-activation"]],
            "positions": SinusoidalPositionEncoding(base=10000.0 ** (d_model / (d_model - 2))),
            "epsilon": 1e-6,
            "recurrent_decoder": recurrent,
        },
    )


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> Vocabulary:
    texts = config["vocabularies"]

    def make(orders: list[Ids]) -> Tokenizer | tuple[Tokenizer, Tokenizer]:
        pairs = zip(texts, orders, strict=True)
        found = [renumbered(text, piece_names(piece_ids(text), order)) for text, order in pairs]
        return found[0] if len(found) == 1 else (found[0], found[1])

    return Vocabulary(make)


def _check_architecture(config: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a configuration of another architecture."""
    choices = {key: (value,) for key, value in ARCHITECTURE.items() if key in config} | CHOICES
    if config.get("transformer-decoder-autoreg") == "rnn":
        choices["dec-cell"] = ("ssru",)
    wrong = [
        f"{key} is {config.get(key)!r}, not {' or '.join(map(repr, values))}"
        for key, values in choices.items()
        if config.get(key) not in values
    ]
    wrong += [
        f"{key} is {config.get(key)!r}, not a positive integer"
        for key in (*SIZES, *DEPTHS)
        if not isinstance(config.get(key), int) or config[key] < 1
    ]
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


ORIGIN = Origin("bergamot", _read_files, make_table, _vocabulary, "model*.bin")
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
