"""An export refuses a tokenizer with more ids than a model reads, wherever its table is."""

import keras
import numpy as np
import pytest
from helpers.tiers import quick
from keras import layers, ops

import keras_transformer as kt
from keras_transformer.export import Classification, export_onnx
from keras_transformer.export.model_inputs import vocab_sizes
from keras_transformer.export.tasks import ForwardTask

TOKENIZER = kt.Tokenizer.train(["a b c d e f"] * 9, 268, hard_vocab_limit=False)
SIZE = TOKENIZER.vocab_size
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
HEAD = Classification(["x", "y"])


class Vectors(keras.Model):
    """A model without known inputs; its table of positions is smaller than that of ids."""

    def __init__(self, size):
        super().__init__()
        self.table, self.positions = layers.Embedding(size, 8), layers.Embedding(30, 8)

    def call(self, ids):
        return self.table(ids) + self.positions(ops.arange(ops.shape(ids)[1]))


class Layer(layers.Layer):
    def __init__(self, size):
        super().__init__()
        self.table = layers.Embedding(size, 8)

    def call(self, ids):
        return self.table(ids)

    def compute_output_shape(self, shape):
        return (*shape, 8)


def of_encoder(ids, size):
    return kt.TransformerEncoder(size, **SIZES)(ids)


def of_two_inputs(ids, size):
    """Its other input has fewer numbers than there are ids."""
    first, second = (keras.Input((None,), dtype="int32") for _ in range(2))
    inner = keras.Model(
        [first, second], layers.Embedding(2, 8)(first) + layers.Embedding(size, 8)(second)
    )
    return inner([ops.minimum(ids, 1), ids])


def with_positions(ids, size):
    places = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    return layers.Embedding(size, 8)(ids) + layers.Embedding(30, 8)(places)


# Each with its number of ids where the graph tells it.
MAKERS = {
    "encoder": (of_encoder, SIZE),
    "side": (lambda ids, size: kt.Transformer(size, **SIZES).encoder(ids), SIZE),
    "layers": (lambda ids, size: kt.EncoderBlock(2, 9)(kt.TokenEmbedding(size, 8)(ids)), SIZE),
    "keras": (lambda ids, size: layers.Embedding(size, 8, mask_zero=True)(ids), SIZE),
    "positions": (with_positions, SIZE),
    "two inputs": (of_two_inputs, SIZE),
    "subclass": (lambda ids, size: Vectors(size)(ids), None),
    "layer": (lambda ids, size: Layer(size)(ids), None),
    "shifted": (lambda ids, size: layers.Embedding(size, 8)(ops.maximum(ids, 1)), None),
}
makers = pytest.mark.parametrize("name", MAKERS)
some_makers = pytest.mark.parametrize("name", quick(MAKERS, "two inputs", "layer"))


def encoder(name, size):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    return keras.Model(ids, MAKERS[name][0](ids, size))


def classifier(name, size):
    model = encoder(name, size)
    return keras.Model(model.input, layers.Dense(2)(model.output[:, 0]))


@makers
def test_a_head_reads_each_id_of_its_tokenizer(name):
    cases = ForwardTask(classifier(name, SIZE), HEAD, tokenizer=TOKENIZER).cases(None)
    assert max(case["source_ids"].max() for case in cases) == SIZE - 1
    task = ForwardTask(classifier(name, SIZE - 1), HEAD, tokenizer=TOKENIZER)
    for samples in (None, [{"source_ids": np.array([[2, 5, 3]], "int32")}]):
        with pytest.raises(ValueError, match=f"tokenizer has {SIZE} ids, but the model cannot"):
            task.cases(samples)


@some_makers
def test_a_search_reads_each_id_of_its_tokenizer(name, tmp_path):
    def exported(size):
        model = kt.Transformer(SIZE, **SIZES, encoder=encoder(name, size))
        assert vocab_sizes(model)["source"] == (MAKERS[name][1] and size)
        path, options = tmp_path / name, {"max_length": 3, "verbose": False}
        return export_onnx(model, path, TOKENIZER, kt.GreedySearch(), **options)

    with pytest.raises(ValueError, match=f"has {SIZE} ids, but the model"):
        exported(SIZE - 1)
    assert exported(SIZE)


@pytest.mark.parametrize("kind", [keras.Model, kt.Model])
def test_an_export_of_a_head_refuses_a_larger_tokenizer(kind, tmp_path):
    made = kt.TransformerEncoder(SIZE - 1, **SIZES)
    model = kind(made.input, layers.Dense(2)(made.output[:, 0]))
    with pytest.raises(ValueError, match=f"tokenizer has {SIZE} ids, but the model cannot"):
        export_onnx(model, tmp_path / "out", TOKENIZER, head=HEAD)
    assert not (tmp_path / "out").exists()
