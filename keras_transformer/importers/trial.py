"""One sentence, or a short recording, through the runtime that serves an export.

The proof of an export compares it with Keras on random ids. It does not show that the tokenizer,
the languages and the suppressed tokens of a folder fit its model. This trial shows the user the
result of real input.
"""

import pathlib
import warnings

import numpy as np

from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.artefact.signature import ONNX_RUNTIME
from keras_transformer.export.runtime import Transcriber
from keras_transformer.export.runtime.predictor import open_runner
from keras_transformer.sound.samples import read_blocks
from keras_transformer.types import StrPath

SENTENCE = "Good morning. How are you today?"
QUESTION = "Who is in the house?", "Good morning. Anna and Ben are in the house."
RECORDING = pathlib.Path(__file__).with_name("good_morning.ogg")  # espeak-ng says SENTENCE
MOST = 200  # characters of a result


def try_out(folder: StrPath) -> str:
    """Runs a sentence through an artefact, and returns a line with the sentence and its result.

    Args:
        folder: str or path-like, an artefact with a tokenizer. A model of sound hears a recording.

    Returns:
        A line for the user. Warns if the result is empty.

    Raises:
        ValueError: the runtime gives an error for the sentence.
    """
    on_onnx = engine_of(read_artefact(folder).manifest) == ONNX_RUNTIME
    runner = open_runner(folder, ["CPUExecutionProvider"] if on_onnx else None)
    note = ""
    item = QUESTION if runner.manifest["task"] == "answer" else SENTENCE
    given = repr(item)
    inputs = {value["name"]: value for value in runner.manifest["inputs"]}
    if "pixels" in inputs:
        item, given = np.full(inputs["pixels"]["axes"][1:], 128.0, np.float32), "a grey picture"
    elif isinstance(runner, Transcriber):
        try:
            item = np.concatenate([*read_blocks(RECORDING.read_bytes())])
        except ImportError as error:
            return f"no recording was tried: {error}"
        given = f"a recording of {SENTENCE!r}"
    if getattr(runner, "hears", False):
        transcript = runner.transcribe(item, temperatures=(0.0,))
        found = "".join(segment.text for segment in transcript).strip()
        note = f" (language {transcript.language}, {transcript.language_probability:.2f})"
    else:
        (result,) = runner.results([item])
        if result.error is not None:
            raise ValueError(
                f"The exported file failed for {given}: {result.error}. Check that the tokenizer "
                "in the folder belongs to the model."
            )
        found = result.line()
    if not found:
        warnings.warn(
            f"The model writes nothing for {given}{note}. If it was trained on English, check the "
            "tokenizer, the languages and the suppressed tokens of its folder.",
            stacklevel=2,
        )
    return f"{given} gives {found[:MOST]!r}{'...' * (len(found) > MOST)}{note}"
