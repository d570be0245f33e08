"""Files that an earlier layout of this package saved load in this one, with equal outputs.

`saved/` was written when all modules lay flat in one folder: a `.keras` model of each kind with
its outputs, and an ONNX folder with its translations. Nothing here renews them.
"""

import json
import pathlib
import zipfile

import numpy as np
import pytest
from support import processes

SAVED = pathlib.Path(__file__).with_name("saved")
MODELS = sorted(path.stem for path in SAVED.glob("*.keras"))

# A process that has imported the package and nothing else of it.
LOAD = """
import sys
import keras, numpy as np
import keras_transformer
saved = np.load(sys.argv[1] + "/outputs.npz")
outputs = {}
for name in sys.argv[3:]:
    model = keras.models.load_model(f"{sys.argv[1]}/{name}.keras")
    source, target = saved["source_ids"], saved["target_ids"]
    both = {"source_ids": source, "target_ids": target}
    output = model(both if len(model.inputs) == 2 else source)
    outputs[name] = np.asarray(keras.ops.cast(output, "float32"))
np.savez(sys.argv[2], **outputs)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("found") / "outputs.npz"
    names = [name for name in MODELS if name != "translator"]
    processes.run("-c", LOAD, SAVED, path, *names).check_returncode()
    return np.load(path)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "translator"])
def test_saved_model_gives_the_outputs_that_it_gave(found, name):
    expected = np.load(SAVED / "outputs.npz")[name]
    atol = 2e-2 if name.endswith("bfloat16") else 2e-6
    np.testing.assert_allclose(found[name], expected, atol=atol)


def test_saved_models_are_of_every_kind():
    assert len(MODELS) == 6
    kinds = [json.loads(_config(name))["class_name"] for name in MODELS]
    assert set(kinds) == {"Transformer", "TransformerEncoder", "CausalTransformer", "Functional"}


def _config(name):
    with zipfile.ZipFile(SAVED / f"{name}.keras") as file:
        return file.read("config.json")


def test_compiled_model_goes_on_with_its_loss_metrics_and_rate():
    import keras

    import keras_transformer as kt

    model = keras.models.load_model(SAVED / "transformer.keras")
    assert isinstance(model.loss, kt.SequenceCrossentropy)
    assert isinstance(model.optimizer._learning_rate, kt.InverseSquareRootWarmup)


def test_artefact_translates_as_it_did():
    from keras_transformer.export.runtime import Translator

    expected = json.loads((SAVED / "translations.json").read_text("utf-8"))
    assert list(Translator(SAVED / "onnx").translate(expected["lines"])) == expected["translations"]


def test_saved_model_and_artefact_still_search_alike():
    import keras
    import onnxruntime

    import keras_transformer as kt

    ids = np.array([[5, 7, 3, 0], [11, 6, 13, 3]], "int32")
    session = onnxruntime.InferenceSession(SAVED / "onnx" / "model.onnx")
    token_ids, scores = session.run(None, {"source_ids": ids})
    model = keras.models.load_model(SAVED / "translator.keras")
    result = kt.BeamSearch(beam_width=2)(model, ids, max_length=6)
    np.testing.assert_array_equal(token_ids, result.ids)
    np.testing.assert_allclose(scores, result.scores, atol=1e-5)
