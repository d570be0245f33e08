"""Layers report a Keras mask that an operation lost, before padding counts."""

import json

import keras
import numpy as np
import pytest
from helpers.checks import assert_close, compiled, normal, numpy64, randomise

from keras_transformer.layers.additive import AdditiveAttention
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.positions import SinusoidalPositionEncoding
from keras_transformer.models import TransformerEncoder

V, D = 11, 8
READERS = {
    "block": lambda x, **options: EncoderBlock(2, 16)(x, **options),
    "attention": lambda x, **options: MultiHeadAttention(2, 4)(x, x, **options),
    "additive": lambda x, **options: AdditiveAttention(4)(x, x, **options),
    "decoder": lambda x: DecoderBlock(2, 16)(keras.Input((None, D)), x),
    "causal decoder": lambda x: DecoderBlock(2, 16)(
        keras.Input((None, D)), x, use_causal_mask=True
    ),
    "decoder without order": lambda x: DecoderBlock(2, 16)(
        x, keras.Input((None, D)), use_causal_mask=False
    ),
    "pooling": lambda x: SequencePooling()(x),
}


def embedded():
    ids, kinds = (keras.Input((None,), dtype="int32") for _ in range(2))
    return ids, kinds, TokenEmbedding(V, D)(ids), TokenEmbedding(V, D)(kinds)


def summed():
    *_, a, b = embedded()
    return a + b


@pytest.mark.parametrize(
    "call, message",
    [
        *(
            (lambda read=read: read(summed()), r"in Add 'add.*keras.layers.Add\(\)\(\[a")
            for read in READERS.values()
        ),
        *(
            (lambda lose=lose: EncoderBlock(2, 16)(lose(embedded()[2])), "in")
            for lose in (
                lambda x: SinusoidalPositionEncoding()(x * 2.0),
                lambda x: keras.layers.LayerNormalization()(keras.ops.relu(x)),
                lambda x: keras.layers.Dropout(0.1)(x[:, 1:]),
                lambda x: keras.layers.Add()(
                    [x, keras.layers.Embedding(3, D)(keras.Input((None,)))]
                ),
            )
        ),
    ],
    ids=[*READERS, "scaled", "behind a norm", "cut", "added to what has no mask"],
)
def test_a_lost_mask_is_refused(call, message):
    with pytest.raises(ValueError, match=f"mask was lost {message}"):
        call()


def test_an_explicit_mask_replaces_a_lost_mask():
    ids, kinds, a, b = embedded()
    mask = keras.ops.not_equal(ids, 0)
    explicit = SequencePooling()(EncoderBlock(2, 16)(a + b, attention_mask=mask), mask=mask)
    attended = AdditiveAttention(4)(MultiHeadAttention(2, 4)(a, a + b, attention_mask=mask), b)
    assert keras.Model([ids, kinds], [explicit, attended]).output_shape == [
        (None, D),
        (None, None, D),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda block, x: block(keras.layers.RepeatVector(3)(SequencePooling()(x))),
        lambda block, x: block(x[:, 0][:, None] * 2.0),
        lambda block, x: block(keras.ops.mean(x, axis=1, keepdims=True)),
        lambda block, x: block(DecoderBlock(2, 16)(keras.Input((None, D)), x)),
        lambda block, x: block(x * 2.0, use_causal_mask=True),  # padding is on the right
        lambda block, x: block(normal(2, 3, D) * 2.0),
        lambda block, x: block.compute_output_spec(keras.KerasTensor((2, 3, D))),
    ],
    ids=[
        *("pooled", "the first alone", "mean", "memory of a target without a mask"),
        *("causal", "eager", "specification"),
    ],
)
def test_a_mask_that_cannot_matter_may_be_lost(call):
    assert call(EncoderBlock(2, 16), embedded()[2]).shape[-1] == D


@pytest.mark.numeric
def test_padding_changes_nothing_if_the_sum_keeps_the_mask():
    ids, kinds, a, b = embedded()
    x = SegmentEmbedding()(keras.layers.Add()([a, b]), kinds)
    model = keras.Model([ids, kinds], SequencePooling()(EncoderBlock(2, 16)(x)))
    model = compiled(randomise(model))
    short = [np.array([[5, 3]], "int32"), np.array([[1, 2]], "int32")]
    padded = [np.pad(x, [(0, 0), (0, 4)]) for x in short]
    assert_close(model(padded), numpy64(model(short)))


def test_a_saved_model_with_a_lost_mask_loads_with_a_warning():
    ids, _, a, _ = embedded()
    config = keras.Model(ids, EncoderBlock(2, 16)(keras.layers.ReLU()(a))).get_config()
    relu = keras.Model(ids, keras.ops.relu(a)).get_config()["layers"][-1]
    (place,) = [i for i, each in enumerate(config["layers"]) if each["class_name"] == "ReLU"]
    name = config["layers"][place]["name"]
    lost = json.loads(json.dumps(config))
    lost["layers"][place] = {**relu, "name": name, "config": {**relu["config"], "name": name}}
    with pytest.warns(UserWarning, match="EncoderBlock.* mask was lost in Relu"):
        model = keras.Model.from_config(lost)
    assert model(np.array([[5, 3, 0]])).shape == (1, 3, D)


def test_masks_of_nested_models_count():
    ids, others = (keras.Input((None,), dtype="int32") for _ in range(2))
    sizes = {"num_layers": 1, "d_model": D, "num_heads": 2, "d_ff": 16}
    tower = TransformerEncoder(V, **sizes)
    with pytest.raises(ValueError, match="mask was lost in Multiply"):
        SequencePooling()(tower(ids) * 2.0)
    added = keras.layers.Add()([tower(ids), TokenEmbedding(V, D)(others)])
    model = keras.Model([ids, others], SequencePooling()(EncoderBlock(2, 16)(added)))
    rows = np.array([[5, 7, 3]], "int32")
    padded = np.pad(rows, [(0, 0), (0, 2)])
    assert_close(model([padded, padded]), numpy64(model([rows, rows])))


class Own(keras.Model):
    """A model as TensorFlow's tutorials write it."""

    def __init__(self, between, read=None):
        super().__init__()
        self.tokens, self.others = TokenEmbedding(V, D), TokenEmbedding(V, D)
        self.dense = keras.layers.Dense(D)
        self.dropout = keras.layers.Dropout(0.1)
        self.blocks = [EncoderBlock(2, 16), EncoderBlock(2, 16)]
        self.decoder, self.attention = DecoderBlock(2, 16), MultiHeadAttention(2, 4)
        self.additive, self.pool = AdditiveAttention(4), SequencePooling()
        self.between, self.read = between, read or (lambda own, x: own.stack(x))

    def stack(self, x, **options):
        for block in self.blocks:
            x = block(x, **options)
        return x

    def call(self, ids):
        return self.read(self, self.between(self, ids))


LOSSES = {
    "scaled": lambda own, ids: own.tokens(ids) * 2.0,
    "sum of two": lambda own, ids: own.tokens(ids) + own.others(ids),
    "Dense": lambda own, ids: own.dense(own.tokens(ids) * 2.0),
    "Dropout": lambda own, ids: own.dropout(own.tokens(ids) + 1.0),
    "concatenated": lambda own, ids: keras.ops.concatenate(
        [own.tokens(ids)[..., :4], own.others(ids)[..., 4:]], axis=-1
    ),
    "reshaped": lambda own, ids: keras.ops.reshape(own.tokens(ids), (-1, 5, D)),
    "einsum": lambda own, ids: keras.ops.einsum("btd,de->bte", own.tokens(ids), np.eye(D)),
    "relu": lambda own, ids: keras.ops.relu(own.tokens(ids)),
    "where": lambda own, ids: keras.ops.where(own.tokens(ids) > 0, own.tokens(ids), 0.0),
    "norm": lambda own, ids: keras.ops.normalize(own.tokens(ids)),
    "mask_zero": lambda own, ids: own.zero(ids) * 2.0,
    "positions": lambda own, ids: SinusoidalPositionEncoding()(own.tokens(ids) * 2.0),
}
KEPT = {
    "as it is": lambda own, ids: own.tokens(ids),
    "Dropout": lambda own, ids: own.dropout(own.dense(own.tokens(ids))),
    "Add": lambda own, ids: keras.layers.Add()([own.tokens(ids), own.others(ids)]),
    "no mask": lambda own, ids: own.plain(ids) * 2.0,
    "pooled": lambda own, ids: keras.ops.repeat(own.pool(own.tokens(ids))[:, None], 3, 1),
    "queries": lambda own, ids: own.decoder(own.plain(ids[:, :3]), own.tokens(ids)),
}
IDS = np.array([[5, 6, 7, 0, 0]], "int32")


def own_model(between, read=None):
    model = Own(between, read)
    model.zero = keras.layers.Embedding(V, D, mask_zero=True)
    model.plain = keras.layers.Embedding(V, D)
    return model


LOST = pytest.warns(UserWarning, match="was passed a tensor whose Keras mask was lost in")
UNBUILT = pytest.mark.filterwarnings("ignore:.build... was called on layer")


def lost(warnings):
    return [one for one in warnings if "mask was lost" in str(one.message)]


READ = {
    "memory": lambda own, x: own.decoder(own.plain(keras.ops.ones((1, 2), "int32")), x),
    "target": lambda own, x: own.decoder(
        x, own.plain(keras.ops.ones((1, 2))), use_causal_mask=False
    ),
    "attention": lambda own, x: own.attention(x, x),
    "additive": lambda own, x: own.additive(x, x),
    "pooling": lambda own, x: own.pool(x),
    "keyword": lambda own, x: own.blocks[0](inputs=x),
    "new layer": lambda own, x: EncoderBlock(2, 16, name="new")(x),
}


@pytest.mark.full("mask_zero", "positions", "norm", "target")
@UNBUILT
@pytest.mark.parametrize(
    "loss, read",
    [*((loss, None) for loss in LOSSES.values()), *((LOSSES["scaled"], r) for r in READ.values())],
    ids=[*LOSSES, *READ],
)
def test_a_mask_lost_in_a_subclassed_model_is_reported_once(loss, read):
    with LOST as found:
        own_model(loss, read)(IDS)
    assert len(lost(found)) == 1


@pytest.mark.quick("explicit mask", "as it is")
@UNBUILT
@pytest.mark.parametrize(
    "kept, read",
    [
        *((kept, None) for kept in KEPT.values()),
        (LOSSES["scaled"], lambda own, x: own.stack(x, attention_mask=IDS != 0)),
        (LOSSES["scaled"], lambda own, x: own.stack(x, use_causal_mask=True)),
    ],
    ids=[*KEPT, "explicit mask", "causal"],
)
def test_a_subclassed_model_without_a_loss_is_quiet(kept, read, recwarn):
    model = own_model(kept, read)
    model(IDS)
    model.predict(IDS, verbose=0)
    assert not lost(recwarn)


@pytest.mark.full
@UNBUILT
def test_training_and_a_layer_inside_a_functional_model_report_a_loss():
    class Inner(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.block = EncoderBlock(2, 16)

        def build(self, shape):
            self.block.build(shape)

        def call(self, x):
            return self.block(x * 2.0)

    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(V, D)(ids)
    inner = Inner()
    inner.supports_masking = True
    model = keras.Model(ids, inner(x))
    model.compile("sgd", "mse")
    with LOST:
        model.fit(IDS, np.zeros((1, 5, D)), verbose=0)
