"""OpenVINO writes wrong tokens after a sentence has left the outer one of two nested loops."""

import tempfile

import keras
import numpy as np
import onnxruntime
import openvino

import keras_transformer as kt
from keras_transformer import export

keras.utils.set_random_seed(7)
model = kt.CausalTransformer(97, num_layers=2, d_model=64, num_heads=4, d_ff=128)
inputs = {"source_ids": np.int32([[2, 6, 79, 47, 51, 62, 30], [2, 4, 8, 0, 0, 0, 0]])}
with tempfile.TemporaryDirectory() as out:
    export.export_onnx(model, f"{out}/o", search=kt.GreedySearch(), max_length=12, verbose=False)
    expected = onnxruntime.InferenceSession(f"{out}/o/model.onnx").run(["scores"], inputs)[0]
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    found = openvino.Core().compile_model(f"{out}/o/model.onnx", "CPU", options)(inputs)["scores"]
assert np.abs(expected - found).max() < 0.01, f"expected {expected}, found {found}"
