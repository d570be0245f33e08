"""One ONNX file turns samples into timestamped tokens: features, model, search and rules."""

import keras
import numpy as np
import onnxruntime as ort

import keras_transformer as kt
from keras_transformer.export import export_onnx

FIRST, NO_TIMES = 61, 59


def test_one_file_reads_samples_and_writes_timestamps(tmp_path):
    samples = keras.Input((None,), name="samples")
    frames = kt.MaskedConv1D(16, 3, 2, activation="gelu")(kt.LogMel(7)(samples))
    encoder = keras.Model(samples, frames, name="encoder")
    model = kt.Transformer(97, 1, 16, 2, 32, encoder=encoder, reads_start=True)
    search = kt.GreedySearch(constraints=[kt.TimestampRules(FIRST, NO_TIMES, (7,), (13,))])
    noise = np.random.default_rng(0).normal(size=(2, 3200)).astype("float32")
    source = {"samples": noise, "start_ids": np.array([[2, 41], [2, NO_TIMES]], "int32")}
    ids = search(model, source, max_length=11).ids.numpy()
    assert FIRST <= ids[0, 0, 0] <= FIRST + 50
    sizes = {"max_length": 11, "max_source_length": 3200}
    export_onnx(model, tmp_path / "o", None, search, samples=[source], **sizes)
    session = ort.InferenceSession(tmp_path / "o" / "model.onnx")
    np.testing.assert_array_equal(session.run(["token_ids"], source)[0], ids)
