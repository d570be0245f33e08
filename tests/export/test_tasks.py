"""Tasks: names of inputs, outputs, axes and signatures, and the inputs of the proof."""

import keras
import numpy as np
import pytest
from helpers import exports
from keras import layers, ops

import keras_transformer as kt
from keras_transformer.export import ExportError, export_onnx, export_saved_model
from keras_transformer.export.tasks import ForwardTask, SearchTask

pytestmark = pytest.mark.usefixtures("forked_proofs")


def forecaster():
    series = keras.Input((None, 3), name="series")
    return keras.Model(series, layers.Dense(2, name="forecast")(series))


def test_axes_are_named_after_a_series_or_as_documented_for_ids():
    task = ForwardTask(forecaster())
    assert task.axes("series", 3) == ("batch", "series_length", "series_axis_2")
    assert task.axes("forecast", 3) == ("batch", "series_length", "forecast_axis_2")
    task = ForwardTask(exports.tiny("encode", num_layers=1))
    assert task.axes("source_ids", 2) == ("batch", "source_length")
    assert task.axes(*task.outputs, 3)[:2] == ("batch", "source_length")


def test_logits_of_an_embedding_are_called_logits():
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = kt.TokenEmbedding(11, 4)
    model = keras.Model(ids, embedding.logits(kt.EncoderBlock(2, 8)(embedding(ids))))
    assert ForwardTask(model).outputs == ["logits"]


# Outputs that are longer or shorter than the input


def longer(x):
    y = kt.ClassToken()(x)
    return {"same": layers.Dense(4)(x), "longer": y, "scaled": y / (ops.abs(y) + 1)}


def shorter(x):
    return {"same": x * 2, "shorter": layers.MaxPooling1D(2)(x), "flat": ops.sum(x, axis=1)}


@pytest.mark.parametrize("outputs", [longer, shorter])
def test_only_outputs_of_the_inputs_length_share_its_axis(outputs, tmp_path):
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, outputs(x))
    manifest = export_onnx(model, tmp_path / "out", verbose=False)
    axes = {output["name"]: output["axes"][1] for output in manifest["outputs"]}
    assert axes["same"] == manifest["inputs"][0]["axes"][1]
    assert list(axes.values()).count(axes["same"]) == 1


# Made-up inputs, and samples


def test_made_up_inputs_hold_negative_and_large_integers_and_both_booleans():
    i, j = keras.Input((None,), dtype="int32"), keras.Input((4,), dtype="int64")
    b, ids = keras.Input((), dtype="bool"), keras.Input((None,), dtype="int32", name="ids")
    outputs = {"i": i + 1, "j": j + 1, "b": ops.logical_not(b), "e": layers.Embedding(7, 2)(ids)}
    cases = ForwardTask(keras.Model([i, j, b, ids], outputs)).cases(None)
    values = {name: np.concatenate([case[name].ravel() for case in cases]) for name in cases[0]}
    for name in (i.name, j.name):
        assert {-1, 0, 1} <= set(values[name].tolist())
        assert values[name].max() > 2**24 and values[name].min() < -(2**24)
    assert {True, False} == set(values[b.name].tolist())
    assert values["ids"].min() >= 0 and values["ids"].max() < 7


def test_made_up_inputs_suit_the_model_if_possible(tmp_path):
    x, i = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    task = ForwardTask(keras.Model([x, i], [x[:, 10], layers.Embedding(8, 3)(i + 1)]))
    assert len(task.cases(None)) == 3
    x = keras.Input((None, 4))
    task = ForwardTask(keras.Model(x, ops.reshape(x, (-1, 7919, 4))))
    with pytest.raises(ExportError, match=r"(?s)made-up.*\(1, 960, 4\).*Pass samples=") as caught:
        task.cases(None)
    assert "report" not in str(caught.value)


class Own(keras.Model):
    """A subclassed model: it has no inputs until it is called."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def own_table():
    return Own(layers.Embedding(31, 12), layers.Dense(12))


@pytest.mark.quick("<lambda>2")
@pytest.mark.parametrize(
    "parts",
    [
        lambda: [own_table()],
        lambda: [own_table(), layers.Dense(2)],
        lambda: [layers.Embedding(31, 12), Own(layers.Dense(5))],
        lambda: [own_table(), kt.EncoderBlock(2, 17)],
        lambda: [Own(own_table())],
        lambda: [keras.Sequential([layers.Input((None,), dtype="int32"), own_table()])],
    ],
)
def test_a_subclassed_model_may_be_part_of_a_model(parts, tmp_path):
    x = inputs = keras.Input((None,), dtype="int32", name="x")
    for part in parts():
        x = part(x)
    model = keras.Model(inputs, x)
    assert max(case["x"].max() for case in ForwardTask(model).cases(None)) > 3  # uses the table
    export_onnx(model, tmp_path / "onnx", verbose=False)
    if len(model.layers) == 2:
        export_saved_model(model, tmp_path / "saved", verbose=False)


def test_made_up_ids_are_rows_of_a_table_behind_other_layers():
    """Else TensorFlow logs a warning for the first try."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, layers.Embedding(31, 2)(layers.Lambda(lambda x: x - 1)(ids)))
    calls = []
    task = ForwardTask(model)
    task.expected = lambda case: calls.append(case["ids"]) or {}
    task.cases(None)
    assert len(calls) == 3
    assert all(0 < ids.max() < 31 and ids.min() >= 0 for ids in calls)


SOURCE = exports.source()


def search_task(**arguments):
    return SearchTask(exports.tiny(num_layers=1, **arguments), exports.BEAM, None)


def short_task():
    return search_task(positions=kt.LearnedPositionEncoding(5))


def forward_task():
    return ForwardTask(exports.shared_model("encode"))


@pytest.mark.parametrize(
    "task, samples, message",
    [
        (search_task, [], r"at least one sample.* but \[\] was passed"),
        (search_task, {"source_ids": SOURCE}, "must be a list of at least one sample"),
        (search_task, [SOURCE[0]], r"array \(B, S\) of ids from 0 to 285.*shape \(7,\)"),
        (search_task, [SOURCE.astype("float32")], "shape .5, 7. of float32"),
        (search_task, [SOURCE + exports.VOCAB], "with ids from 286 to"),
        (search_task, [SOURCE - 1], "with ids from -1 to"),
        (short_task, [SOURCE], "has 7 ids a sentence.*positions for 5 only"),
        (forward_task, [], "at least one sample"),
        (forward_task, [SOURCE], r"dict with an array for each of \['source_ids'\], but ndarray"),
        (forward_task, [{"ids": SOURCE}], r"\['source_ids'\], but \['ids'\]"),
        (forward_task, [{"source_ids": SOURCE[0]}], r"has shape \(7,\).*takes \(None, None\)"),
        (forward_task, [{"source_ids": SOURCE * 1.5}], "float64, but the model takes .* int32"),
    ],
)
def test_samples_that_the_model_cannot_read_are_refused(task, samples, message):
    with pytest.raises(ValueError, match=message):
        task().cases(samples)


def test_an_input_may_be_called_self():
    x = keras.Input((3,), name="self")
    task = ForwardTask(keras.Model(x, layers.ReLU(name="y")(x)))
    (found,) = task.expected({"self": np.array([[-1.0, 0.0, 2.0]], np.float32)}).values()
    np.testing.assert_array_equal(found, [[0, 0, 2]])


@pytest.mark.parametrize("name", ["in-put", "2x", "_x", "é", "class", "self"])
def test_a_signature_takes_only_inputs_with_plain_names(name, tmp_path):
    x = keras.Input((3,), name=name)
    model = keras.Model(x, layers.ReLU()(x))
    with pytest.raises(ValueError, match=f"The input '{name}' cannot be an argument"):
        export_saved_model(model, tmp_path / "out", verbose=False)
