"""One ONNX file turns samples into timestamped tokens: features, model, search and rules."""

import keras
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.exports import counts

import keras_transformer as kt
from keras_transformer.export import export_onnx

FIRST, NO_TIMES, NO_SPEECH = 61, 59, 53


@pytest.mark.full
def test_one_file_reads_samples_and_writes_timestamps(tmp_path):
    samples = keras.Input((None,), name="samples")
    frames = kt.MaskedConv1D(16, 3, 2, activation="gelu")(kt.LogMel(7)(samples))
    encoder = keras.Model(samples, frames, name="encoder")
    model = kt.Transformer(97, 1, 16, 2, 32, encoder=encoder, reads_start=True)
    rules = kt.TimestampRules(FIRST, NO_TIMES, (7,), (13,))
    search = kt.SpeechSearch(2, no_speech=NO_SPEECH, constraints=[rules])
    noise = np.random.default_rng(0).normal(size=(2, 3200)).astype("float32")
    source = {"samples": noise, "start_ids": np.array([[2, 41], [2, NO_TIMES]], "int32")}
    ids = search(model, source, max_length=11).ids.numpy()
    assert FIRST <= ids[0, 0, 0] <= FIRST + 50
    sizes = {"max_length": 11, "max_source_length": 3200}
    export_onnx(model, tmp_path / "o", None, search, samples=[source], **sizes)
    session = ort.InferenceSession(tmp_path / "o" / "model.onnx")
    np.testing.assert_array_equal(session.run(["token_ids"], source)[0], ids)

    # Samples are equal, too. Only the branch of a step computes with the whole vocabulary.
    drawn = search(model, source, max_length=11, temperature=1.7, seed=2).ids
    options = {"temperature": np.array(1.7, "float32"), "seed": np.array(2, "int32")}
    found = session.run(["token_ids"], source | options)[0]
    np.testing.assert_array_equal(found, drawn)
    assert (found[..., :3] != ids[..., :3]).any()
    graph = onnx.load(tmp_path / "o" / "model.onnx").graph
    step, branch = counts(graph, depth=2), counts(graph, depth=3)
    assert step["If"] == branch["CumSum"] == 1 and not step["CumSum"]
