"""Serves exported artefacts with ONNX Runtime, without TensorFlow and Keras.

    Translator("out/onnx").translate(["A man rides a bicycle."])
    python -m keras_transformer.export.runtime out/onnx < in.txt > out.txt

What lives here, from the bottom up:

- `signature`: names of inputs, outputs, axes and files; `manifest`: the file that lists them all;
- `artefact`: reads a folder and checks it; `mapped_model` and `session`: ONNX Runtime with it;
- `lines`: what a line of text may be; `batching`: batches, worker threads, faults kept apart;
- `translator`: text to text; `shell`: the command line.

What may be imported: NumPy, ONNX Runtime, SentencePiece, and of this package the tokenizer and the
special ids. A new kind of answer (a continuation of a prompt, labels, vectors) is one file beside
`translator` that is built of the same parts.
"""

from keras_transformer.export.runtime.artefact import ArtefactError
from keras_transformer.export.runtime.session import ProviderError
from keras_transformer.export.runtime.translator import Translation, Translator

__all__ = ["ArtefactError", "ProviderError", "Translation", "Translator"]
