"""The proof of parity where outputs hold large constants, such as those that hide padding."""

import numpy as np
import pytest
from support import exports

import keras_transformer as kt
from keras_transformer.export import ExportError
from keras_transformer.export.tasks.search import SearchTask


def outputs(*numbers):
    """What a model gives for one case."""
    return [{"logits": np.array(numbers, "float32")}]


@pytest.mark.parametrize("hidden", [-1e4, -3e4, -1e9, -3.4e38])
@pytest.mark.parametrize("exact", [True, False])
def test_large_constants_do_not_set_the_scale(hidden, exact):
    random = np.random.default_rng(0)
    numbers = random.normal(0, 3, 20)
    for count in (1, 20, 400):  # most of a row may be hidden
        expected = outputs(*[hidden] * count, *numbers)
        comparison.compare_forward(expected, expected, 1e-4, exact)
        wrong = outputs(*[hidden] * count, *random.permutation(numbers))
        with pytest.raises(ExportError, match="they differ from Keras' by"):
            comparison.compare_forward(expected, wrong, 0.4, exact)
    with pytest.raises(ExportError, match="they differ from Keras' by"):
        comparison.compare_forward(outputs(hidden, 3.0), outputs(hidden, 50000.0), 0.4, exact)


@pytest.mark.parametrize("exact", [True, False])
def test_large_constants_are_held_to_their_own_size(exact):
    expected = outputs(-1e9, 1.0, 2.0, 3.0)
    comparison.compare_forward(expected, outputs(-1e9 + 64, 1.0, 2.0, 3.0), 1e-4, exact)
    with pytest.raises(ExportError, match="they differ from Keras' by 0.5 of"):
        comparison.compare_forward(expected, outputs(-5e8, 1.0, 2.0, 3.0), 0.4, exact)


def test_numbers_that_are_all_large_are_compared_by_their_spread():
    numbers = np.random.default_rng(0).normal(0, 1e5, 50)
    comparison.compare_forward(outputs(*numbers), outputs(*(numbers + 1)), 1e-4)
    with pytest.raises(ExportError, match="of their spread"):
        comparison.compare_forward(outputs(*numbers), outputs(*numbers[::-1]), 0.4, exact=False)


def test_a_bias_that_forbids_a_token_does_not_set_the_scale_of_scores():
    """An importer forbids tokens so; what rounding may change must not grow by it."""
    source, token_ids = exports.source(), np.array([[[7, 11, 3]]] * 5, "int32")
    spreads = []
    for bias in (0.0, -1e4):
        model = exports.tiny(output_bias=True)
        embedding = model.get_layer("token_embedding")
        embedding.bias.assign(np.where(np.arange(exports.VOCAB) == 1, bias, 0.0))
        task = SearchTask(model, kt.GreedySearch(), 3)
        _, spread = task.rescore({"source_ids": source}, token_ids)
        spreads.append(spread)
    np.testing.assert_allclose(*spreads, rtol=0.1)
