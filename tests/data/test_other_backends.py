"""Batches without TensorFlow: the same batches in the same order, for two epochs of `fit`."""

import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers import tiers

tf = pytest.importorskip("tensorflow")

import keras_transformer as kt  # noqa: E402

LINES = [f"{i} " + "a hat " * (2 * (i % 2)) for i in range(10)]
# Works without TensorFlow: batches, and callbacks that use only Keras.
CODE = """
import pathlib, pickle, sys
sys.modules["tensorflow"] = None
import keras
import keras_transformer as kt

passes = []

class Noted(kt.Batches):
    def on_epoch_begin(self):
        super().on_epoch_begin()
        passes.append([])
    def __getitem__(self, index):
        passes[-1].append(super().__getitem__(index))
        return passes[-1][-1]

folder = pathlib.Path(sys.argv[1])
lines = pickle.loads((folder / "lines").read_bytes())
tokenizer = kt.Tokenizer.load(folder / "shared.model")
train = kt.translation_batches(lines, lines[::-1], tokenizer, 97)
assert train.batches is train and len(list(train)) == len(train) and train.epoch == 1
train.seek(0)
train.__class__ = Noted
sizes = dict(num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.0)
keras.utils.set_random_seed(1)
model = kt.Transformer(tokenizer.vocab_size, **sizes)
model.compile("adam", kt.SequenceCrossentropy(0.1), metrics=[kt.TokenAccuracy()])
averaging = kt.CheckpointAveraging(folder / "weights")
throughput = kt.Throughput(train)
callbacks = [kt.StopOnNonFinite(), throughput, averaging]
history = model.fit(train, epochs=2, verbose=0, callbacks=callbacks).history
assert history["loss"][1] < history["loss"][0]
assert min(history["tokens_per_second"]) > 0
assert len(kt.average_checkpoints(folder / "weights")) == len(model.weights)
seen = [batches for batches in passes if len(batches) == len(train)]
(folder / "seen").write_bytes(pickle.dumps(seen))
"""


@pytest.mark.full
@pytest.mark.parametrize("backend", ["jax", tiers.nightly("torch")])
def test_fit_sees_the_batches_of_tf_data(backend, tmp_path):
    pytest.importorskip(backend)
    tokenizer = kt.Tokenizer.train(LINES, 300, hard_vocab_limit=False)
    tokenizer.save(tmp_path / "shared.model")
    (tmp_path / "lines").write_bytes(pickle.dumps(LINES))
    done = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = pickle.loads((tmp_path / "seen").read_bytes())
    train = kt.translation_batches(LINES, LINES[::-1], tokenizer, 97)
    assert len(seen) == 2
    for epoch in seen:
        for ours, theirs in zip(epoch, train, strict=True):
            pairs = zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
