"""Serves exported artefacts with ONNX Runtime, without TensorFlow and Keras.

    Translator("out/onnx").translate(["A man rides a bicycle."])
    Generator("out/story").generate(["Once upon a time"], seed=7)
    Predictor("out/sentiment").predict(["What a film!"])
    python -m keras_transformer.export.runtime out/onnx < in.txt > out.txt
    python -m keras_transformer.export.runtime --check out/onnx

What lives here, from the bottom up:

- `mapped_model` and `session`: ONNX Runtime with an artefact; `steps`: the loop of a search, where
  it is not in the graph;
- `lines`, `rows`, `text_rows`: what may be read, and as what the model reads it;
- `batching`: batches, worker threads, faults kept apart;
- `runner`: what serves an artefact, whatever its task; `search_runner`: if it holds a search;
- `translator`: text to text; `generator`: prompt to text; `transcriber`: arrays to text;
  `predictor`: labels, tags, answers, vectors; `by_task`: the one of them that an artefact needs;
- `text_session`: the model from strings to strings; `shell`: the command line, with `written`, what
  it writes, and `progress`;
- `check`: what is wrong with serving here, from `installation`, what is found on the machine,
  `faults`, what that means, and `trials` of providers.

What may be imported: NumPy, ONNX Runtime, SentencePiece, and of this package `export.artefact` and
what that imports. A new kind of answer of a search is one file beside `translator` and its line in
`by_task`; of a forward pass, a class in `export.artefact.heads`.
"""

from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.artefact.results import Answer, Labels, Outputs, Tags, Vector
from keras_transformer.export.runtime.by_task import answers, open_runner
from keras_transformer.export.runtime.generator import Generation, Generator
from keras_transformer.export.runtime.predictor import Predictor
from keras_transformer.export.runtime.session import ProviderError
from keras_transformer.export.runtime.text_session import open_text_model
from keras_transformer.export.runtime.transcriber import Transcriber
from keras_transformer.export.runtime.translator import Translation, Translator

__all__ = [
    "Answer",
    "ArtefactError",
    "Generation",
    "Generator",
    "Labels",
    "Outputs",
    "Predictor",
    "ProviderError",
    "Tags",
    "Transcriber",
    "Translation",
    "Translator",
    "Vector",
    "answers",
    "open_runner",
    "open_text_model",
]
