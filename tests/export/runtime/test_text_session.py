"""Sessions of text models, from strings to strings: opened, or refused with the reason."""

import sys
import types

import onnx
import pytest
from helpers import artefacts, runtime_process

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import ArtefactError, open_text_model

TEXT = {
    "inputs": [artefacts.described("text", "string")],
    "outputs": [artefacts.described("texts", "string"), artefacts.described("scores", "float32")],
}
# Returns its text with score 0. It uses only ONNX's operators and needs no extensions.
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
echo (string[batch] text) => (string[batch, beam] texts, float[batch, beam] scores)
<int64[1] last = {1}>
{
    texts = Unsqueeze (text, last)
    two_axes = Shape (texts)
    scores = ConstantOfShape (two_axes)
}
"""


@pytest.fixture(scope="module")
def text_folder(tokenizer, tmp_path_factory):
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    files = {signature.TEXT_MODEL_FILE: model}.items()
    return artefacts.write(tmp_path_factory.mktemp("text"), tokenizer, files=files, text=TEXT)


@pytest.fixture
def alone(monkeypatch):
    """Removes TensorFlow from the imported modules."""
    for name in ("tensorflow", "tensorflow_text"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_text"])
def test_a_text_model_is_refused_beside_tensorflow(text_folder, alone, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    message = f"This process has imported {name}. .*segmentation fault.*Translator"
    with pytest.raises(RuntimeError, match=message):
        open_text_model(text_folder)


def test_missing_extensions_are_named(text_folder, alone, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(ImportError, match="pip install onnxruntime-extensions"):
        open_text_model(text_folder)


OPEN = """
from keras_transformer.export.runtime import ArtefactError, open_text_model
texts, scores = open_text_model(sys.argv[1], threads=1).run(None, {"text": ["a man", ""]})
print(texts.tolist(), scores.tolist())
try:
    open_text_model(sys.argv[2])
except ArtefactError as error:
    print(error)
"""


def test_a_text_model_is_opened_without_a_framework(text_folder, tokenizer, tmp_path):
    files = {signature.TEXT_MODEL_FILE: b"not a model"}.items()
    damaged = artefacts.write(tmp_path, tokenizer, files=files, text=TEXT)
    texts, told = runtime_process.run(OPEN, text_folder, damaged).splitlines()
    assert texts == "[['a man'], ['']] [[0.0], [0.0]]"
    assert "cannot run" in told and "text_model.onnx" in told and "It was exported with" in told


def test_an_artefact_without_a_text_model_is_refused(folder):
    with pytest.raises(ArtefactError, match="holds no text_model.onnx. Export the model with text"):
        open_text_model(folder)


def test_threads_are_checked_first(text_folder):
    with pytest.raises(ValueError, match="`threads` must be at least 1"):
        open_text_model(text_folder, threads=0)
