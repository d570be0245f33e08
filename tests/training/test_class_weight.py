"""`class_weight` of `fit`: it has an effect on rows, and is refused for positions.

Shapes: B = 4, T = 3, V = 5 classes.
"""

import keras
import numpy as np
import pytest
from helpers import tiers

import keras_transformer as kt

IDS = np.array([[5, 6, 7], [8, 9, 5], [6, 6, 8], [9, 7, 5]], "int32")
TAGS = np.array([[0, 0, 1], [0, 2, 0], [4, 0, 0], [0, 3, 3]], "int32")
CLASSES = np.array([1, 0, 4, 0], "int32")
WEIGHTS = {0: 0.25, 1: 2.0, 2: 3.0, 3: 1.0, 4: 1.5}
OF_CLASS = np.array([WEIGHTS[n] for n in range(5)], "float32")


def tagger(ours=False, loss=None, per_row=False, **compiled):
    ids = keras.Input((None,), dtype="int32")
    x = kt.TransformerEncoder(300, 1, 8, 2, 16, dropout=0.0)(ids)
    if per_row:
        x = kt.SequencePooling("mean")(x)
    cls = kt.TransformerEncoder.__mro__[1] if ours else keras.Model
    model = cls(ids, keras.layers.Dense(5)(x))
    loss = loss or kt.SequenceCrossentropy(pad_id=-1)
    model.compile(keras.optimizers.SGD(0.0), loss, **compiled)
    return model


def dataset(labels):
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((IDS, labels))


def tagging():
    tokenizer = kt.Tokenizer.train(["a red hat on"], 300, hard_vocab_limit=False)
    return kt.tagging_batches(
        [["a", "hat"], ["on", "a", "red", "hat"]], [["B", "A"], ["A", "B", "A", "C"]], tokenizer
    )


KERAS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REFUSED = {
    "arrays": lambda w: tagger().fit(IDS, TAGS, class_weight=w, verbose=0),
    "dataset": lambda w: tagger().fit(dataset(TAGS), class_weight=w, shuffle=False, verbose=0),
    "train_on_batch": lambda w: tagger().train_on_batch(IDS, TAGS, class_weight=w),
    "eager": lambda w: tagger(run_eagerly=True).fit(IDS, TAGS, class_weight=w, verbose=0),
    "our model, arrays": lambda w: tagger(True).fit(IDS, TAGS, class_weight=w, verbose=0),
    "our model, short weights": lambda w: tagger(True).fit(
        dataset(TAGS), class_weight={0: 0.0}, verbose=0
    ),
    "our model, Keras' loss": lambda w: tagger(True, KERAS).fit(
        IDS, TAGS, class_weight=w, verbose=0
    ),
    "our batches": lambda w: tagger(True).fit(tagging(), class_weight=w, verbose=0),
    "our batches, any model": lambda w: tagger().fit(tagging(), class_weight=w, verbose=0),
    "weighted metric": lambda w: tagger(
        loss=KERAS, weighted_metrics=[kt.TokenAccuracy(pad_id=-1)]
    ).fit(IDS, TAGS, class_weight=w, verbose=0),
}


@pytest.mark.parametrize(
    "route", tiers.quick(REFUSED, "arrays", "dataset", "our model, arrays", "our batches")
)
def test_class_weight_of_positions_is_refused(route):
    with pytest.raises(ValueError, match="class_weight was passed.*Pass sample_weight"):
        REFUSED[route](WEIGHTS)


def losses(model, labels):
    return np.asarray(model.loss.call(labels, model(IDS)))


@pytest.mark.quick("dataset-False")
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("kind", ["arrays", "dataset", "one-hot"])
def test_class_weight_weights_rows(ours, kind):
    labels, loss, divisor = CLASSES, None, OF_CLASS[CLASSES].sum()
    if kind == "one-hot":
        labels = np.eye(5, dtype="float32")[CLASSES]
        loss, divisor = keras.losses.CategoricalCrossentropy(from_logits=True), 4  # rows
    model = tagger(ours, loss, per_row=True)
    data = (dataset(labels),) if kind == "dataset" else (IDS, labels)
    history = model.fit(*data, class_weight=WEIGHTS, shuffle=False, verbose=0).history
    expected = (losses(model, labels) * OF_CLASS[CLASSES]).sum() / divisor
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)


@pytest.mark.full("(B, T)")
@pytest.mark.parametrize("weights", [OF_CLASS[TAGS], OF_CLASS[CLASSES]], ids=["(B, T)", "(B,)"])
def test_the_remedy_weights_positions_in_training_and_validation(weights):
    model = tagger(loss_weights=[0.5])
    each = weights if weights.ndim == 2 else np.repeat(weights[:, None], 3, 1)
    expected = 0.5 * (losses(model, TAGS) * each).sum() / each.sum()
    validation = IDS, TAGS, weights
    found = model.fit(IDS, TAGS, sample_weight=weights, validation_data=validation, verbose=0)
    losses_found = [found.history[name][0] for name in ("loss", "val_loss")]
    np.testing.assert_allclose(losses_found, [expected] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        kt.SequenceCrossentropy(pad_id=-1),
        kt.TokenAccuracy(pad_id=-1).update_state,
        lambda labels, z, weights: kt.PairCrossentropy()(labels, z[:, :4], weights),
    ],
)
def test_weights_of_tokens_are_refused_for_one_label_per_row(part):
    with pytest.raises(ValueError, match=r"\(4, 3\) and the shape of the labels is \(4,\)"):
        part(CLASSES, np.zeros((4, 5), "float32"), OF_CLASS[TAGS])
