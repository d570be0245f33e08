"""OpenVINO never returns from the search of a model with a recurrent decoder."""

import resource
import tempfile

import keras
import numpy as np
import openvino

import keras_transformer as kt
from keras_transformer import export

keras.utils.set_random_seed(7)
shape = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
model = kt.Transformer(97, **shape, recurrent_decoder=True)
with tempfile.TemporaryDirectory() as out:
    export.export_onnx(model, f"{out}/o", search=kt.BeamSearch(4), max_length=12, verbose=False)
    compiled = openvino.Core().compile_model(f"{out}/o/model.onnx", "CPU")
resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(0).ru_utime) + 30,) * 2)
compiled({"source_ids": np.int32([[5, 6, 7]])})  # ONNX Runtime takes milliseconds
