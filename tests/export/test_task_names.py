"""Names of inputs, outputs, axes and signatures say what a model is, whatever its task."""

import keras
import pytest
import tensorflow as tf
from support import exports

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.export.tasks import ForwardTask, SearchTask

pytestmark = pytest.mark.usefixtures("forked_proofs")


def named_axes(task, *names):
    return {name: task.axes(name, 3) for name in names}


def forecaster():
    series = keras.Input((None, 3), name="series")
    return keras.Model(series, keras.layers.Dense(2, name="forecast")(series))


def test_the_axes_of_a_series_bear_its_name():
    task = ForwardTask(forecaster())
    assert named_axes(task, "series", "forecast") == {
        "series": ("batch", "series_length", "series_axis_2"),
        "forecast": ("batch", "series_length", "forecast_axis_2"),
    }


def test_the_axes_of_ids_are_those_that_are_documented():
    task = ForwardTask(exports.tiny("encode", num_layers=1))
    assert task.axes("source_ids", 2) == ("batch", "source_length")
    (output,) = task.outputs
    assert task.axes(output, 3)[:2] == ("batch", "source_length")


def test_logits_of_an_embedding_are_called_so():
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = kt.TokenEmbedding(11, 4)
    model = keras.Model(ids, embedding.logits(kt.EncoderBlock(2, 8)(embedding(ids))))
    assert ForwardTask(model).outputs == ["logits"]


@pytest.mark.parametrize(("kind", "name"), [("translate", "translate"), ("generate", "generate")])
def test_a_search_is_called_by_its_task(kind, name):
    assert SearchTask(exports.tiny(kind, num_layers=1), exports.BEAM, None).name == name


def test_the_signature_of_a_model_without_logits_is_forward(tmp_path):
    export_saved_model(forecaster(), tmp_path / "saved", verbose=False)
    assert list(tf.saved_model.load(str(tmp_path / "saved")).signatures) == ["forward"]
