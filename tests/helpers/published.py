"""Random models of `transformers` and their ids, for the tests of importers.

Shapes: B batch, S length, U their vocabulary, V ours.
"""

import os
import re

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched

import keras
import numpy as np
import pytest

import keras_transformer as kt

REASON = "transformers, which this test compares with, is missing"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
transformers.utils.logging.disable_progress_bar()


def drawn(model, seed=1):
    """Randomises the model's weights, biases and norms, but not sinusoids and frequencies.

    Cross-attention weights are larger, so that answers differ.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if re.search("embed_positions|inv_freq", name) or not weight.is_floating_point():
                continue
            noise = torch.randn(weight.shape, generator=generator)
            matrix = weight.ndim == 2 and min(weight.shape) > 2
            size = 4.5 if "encoder_attn.v" in name or "encoder_attn.out" in name else 1.5
            weight.copy_(noise * size * weight.shape[1] ** -0.5 if matrix else weight + 0.3 * noise)
        if hasattr(model, "tie_weights"):  # else a plain PyTorch module
            model.tie_weights()
    return model.eval()


def ids(vocab_size, rows=200, longest=9, side="right", end=True, seed=0):
    """Returns our ids (B, S) of `rows` texts of 1 to `longest` tokens, plus the end if `end`."""
    random = np.random.default_rng(seed)
    batch = np.zeros((rows, longest + end), "int32")
    for row in range(rows):
        tokens = random.integers(4, vocab_size, random.integers(1, longest + 1))
        tokens = np.append(tokens, 3) if end else tokens
        start = 0 if side == "right" else batch.shape[1] - len(tokens)
        batch[row, start : start + len(tokens)] = tokens
    return batch


def theirs(order, ids):
    """Returns their ids for ours. Ids at padding do not matter."""
    ids = np.where(ids > 0, np.maximum(np.asarray(order), 0)[ids], 0)
    return torch.from_numpy(ids)


def mask(ids):
    return torch.from_numpy((ids > 0).astype("int64"))


def tokens(order, generated, end):
    """Returns our ids for the output of `generate`, up to the end token, one list per row."""
    ours = {int(id): row for row, id in enumerate(order) if id >= 0}
    lists = [[ours[int(id)] for id in row] for row in generated]
    return [row[: row.index(end) + 1] if end in row else row for row in lists]


def found(result):
    """Returns the best tokens of each row of our search, without padding."""
    return [[int(id) for id in row[0] if id > 0] for row in np.asarray(result)]


def relative(ours, expected):
    """Returns the largest difference, relative to the largest number."""
    ours, expected = np.asarray(ours, "float64"), np.asarray(expected, "float64")
    assert ours.shape == expected.shape and np.isfinite(ours).all()
    return np.abs(ours - expected).max() / np.abs(expected).max()


def check_learning(
    model, folder, inputs, labels=None, rank=None, epochs=5, rate=0.01, pad_id=0, smoothing=0.0
):
    """Asserts that `fit` lowers the loss, and that the saved model gives the same outputs.

    Args:
        model: a Keras model.
        folder: path of a folder for the saved model.
        inputs, labels: as in `fit`; or batches of both.
        rank: int, of LoRA, or `None`.
        epochs, rate, pad_id, smoothing: of the training.
    """
    if rank:
        model.enable_lora(rank)
    loss = kt.SequenceCrossentropy(pad_id=pad_id, label_smoothing=smoothing)
    model.compile(keras.optimizers.Adam(rate), loss)
    losses = model.fit(inputs, labels, epochs=epochs, verbose=0).history["loss"]
    assert np.mean(losses[-epochs // 4 :]) < losses[0] - 0.1 and losses[0] < 100
    model.save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    inputs = next(iter(inputs))[0] if labels is None else inputs
    np.testing.assert_allclose(again(inputs), model(inputs), atol=1e-5)
