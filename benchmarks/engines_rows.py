"""Rows of the table of engines: kinds of task, searches, precisions and Whisper."""

import dataclasses
from typing import Any

import keras
import kinds_models
import kinds_others
import numpy as np
from kinds_rows import VOCABULARY, Row

import keras_transformer as kt

KINDS = {row.name: row for row in [*kinds_models.ROWS, *kinds_others.ROWS]}
TAKEN = (
    "classes",
    "classes, class token",
    "tags",
    "spans of two texts",
    "vectors",
    "pictures to class",
    "series to series",
    "sound to class",
    "recurrent layers and attention",
    "several outputs",
    "text and numbers",
    "a model used twice",
    "MobileNetV2",
    "ViT",
    "BERT",
    "GPT-2",
    "T5",
    "language model, logits",
    "language model, greedy",
    "language model, sampling",
    "pictures to text, greedy",
    "text to text, beam 4",
    "sound to text, beam 4",
)
# Tokens of the small Whisper: times begin at `FIRST`.
FIRST, NO_TIMES, NO_SPEECH, FRAMES = 61, 59, 53, 32


@dataclasses.dataclass(frozen=True)
class Exported(Row):
    """A kind of task with arguments of its export.

    Attributes:
        precision: as in `export_onnx`. Defaults to "float32".
        shortlist: function that returns a `Shortlist`. Defaults to `None`: no shortlist.
    """

    precision: str = "float32"
    shortlist: Any = None


def like(kind: str, name: str = "", **changes: Any) -> Exported:
    """Returns a row of the table of kinds with some changes."""
    return Exported(**{**vars(KINDS[kind]), "name": name or kind, **changes})


def translating(name: str, search: Any = None, **changes: Any) -> Exported:
    """Returns a row of the translator with another search, precision or shortlist."""
    search = search or (lambda: kt.BeamSearch(4, 0.6))
    return like("text to text, beam 4", f"text to text, {name}", search=search, **changes)


def constrained():
    rules = [kt.ForbiddenWords(), kt.RepetitionPenalty(1.2), kt.NoRepeatNgrams(3)]
    return kt.BeamSearch(3, 0.6, constraints=rules)


def shortlist():
    table = np.random.default_rng(4).integers(4, VOCABULARY, (VOCABULARY, 5))
    return kt.Shortlist(table, np.arange(VOCABULARY) < 9)


def recurrent_translator():
    return kt.Transformer(VOCABULARY, **kinds_models.SHAPE, recurrent_decoder=True)


def whisper():
    """Builds a small Whisper: two convolutions and blocks, and a decoder that reads its start."""
    features = keras.Input((FRAMES, 20), name="features")
    x = kt.MaskedConv1D(kinds_models.D, 3, activation="gelu")(features)
    x = kt.MaskedConv1D(kinds_models.D, 3, strides=2, activation="gelu")(x)
    encoder = keras.Model(features, kinds_models.blocks(kt.SinusoidalPositionEncoding()(x)))
    return kt.Transformer(VOCABULARY, **kinds_models.SHAPE, encoder=encoder, reads_start=True)


def speech_search():
    rules = kt.TimestampRules(FIRST, NO_TIMES, (7,), (13,))
    return kt.SpeechSearch(2, no_speech=NO_SPEECH, constraints=[rules])


def windows(rng, real):
    shape = (len(real), FRAMES, 20)
    start = np.array([[2, 41], [2, NO_TIMES], [2, 43]], np.int32)
    return {
        "features": rng.standard_normal(shape).astype("float32"),
        "start_ids": start[np.arange(len(real)) % 3],
    }


ROWS = [
    *map(like, TAKEN),
    translating("greedy", kt.GreedySearch),
    translating("sampling", lambda: kt.Sampling(0.9, 20, 0.95, num_samples=2)),
    translating(
        "scores and alignments",
        lambda: kt.BeamSearch(3, 0.6, token_scores=True, alignments=True),
    ),
    translating("constraints", constrained),
    translating("terms", lambda: kt.BeamSearch(4, 0.6, constraints=[kt.Terms()])),
    translating("recurrent decoder", build=recurrent_translator),
    translating("shortlist", shortlist=shortlist),
    Exported("Whisper", whisper, windows, speech_search, sides=(), sequence=False),
    like("tags", "tags, int8", precision="int8"),
    translating("int8", precision="int8"),
    translating("int16x8", precision="int16x8"),
    translating("weight_int8", precision="weight_int8"),
    translating("weight_int4", precision="weight_int4"),
    translating("float16", precision="float16"),
]
