"""Serves exported artefacts with ONNX Runtime, without TensorFlow and Keras.

    Translator("out/onnx").translate(["A man rides a bicycle."])
    python -m keras_transformer.export.runtime out/onnx < in.txt > out.txt

What lives here: what an artefact is (`signature`), reading and checking one (`artefact`), ONNX
Runtime's session, what turns text into text (`translator`), and the command line (`shell`).

What may be imported: NumPy, ONNX Runtime, SentencePiece, and of this package the tokenizer and the
special ids. A new kind of answer is one file beside `translator`.
"""

from keras_transformer.export.runtime.artefact import ArtefactError
from keras_transformer.export.runtime.session import ProviderError
from keras_transformer.export.runtime.translator import Translation, Translator

__all__ = ["ArtefactError", "ProviderError", "Translation", "Translator"]
