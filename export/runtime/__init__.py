"""Serves exported artefacts with ONNX Runtime or LiteRT, without TensorFlow or Keras.

    Translator("out/onnx").translate(["A man rides a bicycle."])
    Generator("out/story").generate(["Once upon a time"], seed=7)
    Predictor("out/sentiment").predict(["What a film!"])
    for segment in Transcriber("out/whisper").transcribe("a.wav"): print(segment.text)
    python -m keras_transformer.export.runtime out/onnx < in.txt > out.txt
    python -m keras_transformer.export.runtime --check out/onnx
    python -m keras_transformer.export.runtime out/whisper a.wav --format srt

Contents, from the bottom up:

- `engine`, the parts of an engine that the classes need; `mapped_model`, `session` and
  `steps_session`: ONNX Runtime with an artefact; `litert_session`: LiteRT with one; `sessions`
  opens the one that the manifest names; `text_session`: strings in and out;
- `lines`: reads and checks lines, and writes results;
- `input_readers` and `text_readers`: turn arrays and texts into rows of the model;
- `options`: turns options of a call into inputs of the model;
- `batching`: batches, worker threads, and faults of single rows;
- `hypotheses`: pieces and words of a hypothesis, alternatives to a word, and text that grows while
  a search runs;
- `runner`: the base of the classes that serve an artefact; `streaming`: of those with a search;
  `glossary_runner` and `glossaries`: of those whose searches take terms;
- `searches`: `Translator` and `Generator`; `speech`: `Transcriber`, and the rest of Whisper;
- `predictor`: models without a search, and `open_runner`, which finds the class by the task;
- `check`: finds out whether this machine can serve;
- `console` and `__main__`: the command line.

Imports: NumPy, SentencePiece, `export.artefact`, and modules of this package without a framework;
ONNX Runtime or LiteRT when a folder is opened. A new task with a search is a class in `searches`; a
new task without one is a head in `export.artefact.task_heads`; a new engine is a module like
`litert_session` and its line in `sessions`.
"""

from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.artefact.results import (
    Alternative,
    Answer,
    Details,
    Generation,
    Labels,
    Outputs,
    Results,
    Tags,
    Translation,
    Vector,
)
from keras_transformer.export.runtime.engine import ProviderError
from keras_transformer.export.runtime.predictor import Predictor, open_runner
from keras_transformer.export.runtime.searches import Generator, Translator
from keras_transformer.export.runtime.speech.tokens import SpeechOptions
from keras_transformer.export.runtime.speech.transcriber import Transcriber
from keras_transformer.export.runtime.speech.transcription import Transcription
from keras_transformer.export.runtime.speech.transcripts import Segment, Word
from keras_transformer.export.runtime.text_session import open_text_model

__all__ = [
    "Alternative",
    "Answer",
    "ArtefactError",
    "Details",
    "Generation",
    "Generator",
    "Labels",
    "Outputs",
    "Predictor",
    "ProviderError",
    "Results",
    "Segment",
    "SpeechOptions",
    "Tags",
    "Transcriber",
    "Transcription",
    "Translation",
    "Translator",
    "Vector",
    "Word",
    "open_runner",
    "open_text_model",
]
