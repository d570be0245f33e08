"""Training on several devices of JAX: with divided weights, or with a part of each batch."""

import os
import subprocess
import sys

import keras
import pytest

import keras_transformer as kt

CODE = """
import keras
import numpy as np
import keras_transformer as kt


def train(distribution):
    keras.backend.clear_session()  # also the distribution
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(3)
    model = kt.Transformer(26, 2, 12, 2, 14, target_vocab_size=22, OPTIONS)
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    model.compile(optimizer, loss=kt.SequenceCrossentropy(label_smoothing=0.1))
    random = np.random.default_rng(5)
    inputs = {name: random.integers(4, 22, (12, 7)) for name in ("source_ids", "target_ids")}
    labels = random.integers(1, 22, (12, 7))
    labels[5:, 4:] = 0
    loss = model.fit(inputs, labels, 4, epochs=2, shuffle=False, verbose=0).history["loss"]
    divided = [w.path for w in model.weights if not w.value.sharding.is_fully_replicated]
    return loss, divided, model.get_weights(), [w.path for w in model.weights]


loss, nothing, weights, paths = train(None)
assert nothing == [] and loss[1] < loss[0]
mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "heads"])
layout = kt.layout_map(mesh, "heads")
parallel = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
for distribution in (keras.distribution.DataParallel(), parallel):
    losses, divided, others, _ = train(distribution)
    np.testing.assert_allclose(losses, loss, rtol=1e-5)
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
copied = [path for path in paths if path not in divided]
ends = ("norm/gamma", "norm/beta", "output/bias", "positions/embeddings")
assert divided and all(path.endswith(ends) for path in copied), copied
assert any("output_kernel" in path for path in divided)
try:
    kt.layout_map(mesh, "model")
except ValueError as error:
    assert "('batch', 'heads')" in str(error).replace("[", "(").replace("]", ")"), error
else:
    raise AssertionError("an axis that the mesh lacks was taken")
"""
OPTIONS = "tie_output=False, output_bias=True, use_bias=True, dropout=0.0"


@pytest.mark.full
def test_divided_weights_train_as_on_one_device(tmp_path):
    pytest.importorskip("jax")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", CODE.replace("OPTIONS", OPTIONS)]
    result = subprocess.run(
        command, env={**os.environ, **flags}, cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX divides weights")
def test_another_backend_is_refused():
    with pytest.raises(ValueError, match="runs on .* Set KERAS_BACKEND=jax"):
        kt.layout_map(None)
