"""Training steps on one replica: clipping, padding, and models that `prepare` refuses."""

import keras
import numpy as np
import pytest
from helpers.resuming import assert_equal_weights

import keras_transformer as kt

pytest.importorskip("tensorflow")

from keras_transformer.training import prepare  # noqa: E402
from keras_transformer.training.steps import clip  # noqa: E402

LIMITS = [{"clipvalue": 0.3}, {"clipnorm": 2.0}, {"global_clipnorm": 2.0}]


def small_model(**optimizer):
    keras.utils.set_random_seed(23)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 7)(ids)
    model = keras.Model(ids, keras.layers.Dense(11)(x))
    model.compile(keras.optimizers.SGD(1.0, **optimizer), kt.SequenceCrossentropy())
    return model


def compiled(model, loss="mse"):
    model.compile("sgd", loss)
    return model


def test_train_on_batch_works_after_prepare_and_padding_trains_nothing():
    one, other = small_model(), prepare(small_model())
    ids = np.random.default_rng(19).integers(0, 11, (13, 5))
    assert other.train_on_batch(ids, ids) == pytest.approx(one.train_on_batch(ids, ids), rel=1e-6)
    assert_equal_weights(one, other, 1e-7)
    assert float(other.train_on_batch(0 * ids, 0 * ids)) == 0
    assert_equal_weights(one, other, 1e-7)


@pytest.mark.parametrize(
    "options", [{"ignore_class": -1}, {"reduction": "mean_with_sample_weight"}]
)
def test_accumulated_means_of_keras_equal_the_mean_of_a_large_batch(options):
    rng = np.random.default_rng(29)
    ids, labels = rng.integers(0, 5, (8, 6)), rng.integers(0, 3, (8, 6))
    if "ignore_class" in options:
        labels[rng.random(labels.shape) < 0.4] = -1
    weights = rng.uniform(0.1, 2.0, labels.shape).astype("float32")
    weights[:3] *= 9
    models = []
    for accumulate in (1, 2):
        keras.utils.set_random_seed(23)
        inputs = keras.Input((None,), dtype="int32")
        x = kt.TokenEmbedding(5, 6)(inputs)  # sets a mask
        model = keras.Model(inputs, keras.layers.Dense(3)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
        model.compile(keras.optimizers.SGD(1.0), loss)
        prepare(model, accumulate)
        model.fit(ids, labels, 8 // accumulate, sample_weight=weights, shuffle=False, verbose=0)
        models.append(model)
    assert_equal_weights(*models, 1e-6)
    assert model.steps_per_execution == 2 and prepare(model).steps_per_execution == 1


@pytest.mark.parametrize("limit", LIMITS)
def test_clip_equals_the_optimizer_and_leaves_overflow_to_the_loss_scale(limit):
    gradients = [keras.ops.array([3.0, -4.0]), keras.ops.array([0.1])]
    weights = [keras.Variable(np.zeros(n, "float32")) for n in (2, 1)]
    optimizer = keras.optimizers.SGD(1.0, **limit)
    optimizer.build(weights)
    ours = clip(gradients, optimizer)
    optimizer.apply(gradients)
    for weight, gradient in zip(weights, ours, strict=True):
        np.testing.assert_allclose(-weight.numpy(), gradient, rtol=1e-6)
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, **limit))
    infinite = clip([keras.ops.array([np.inf, 1.0]), keras.ops.array([0.1])], scaling)
    assert not np.all(np.isfinite(np.concatenate(infinite)))


class Own(keras.Sequential):
    def train_step(self, data):
        return {}


SUM = keras.losses.MeanSquaredError(reduction="sum")
REFUSED = [
    (lambda: keras.Sequential([keras.layers.Dense(2)]), 1, "needs a compiled model"),
    (lambda: compiled(keras.Sequential([keras.layers.Dense(2)])), 1, "needs the model's weights"),
    (
        lambda: compiled(Own([keras.Input((2,)), keras.layers.Dense(2)])),
        1,
        "Own has its own train_step",
    ),
    (
        lambda: prepare(compiled(small_model(), SUM)),
        2,
        'accumulate=2 computes .* a loss has reduction="sum"',
    ),
    (small_model, 0, "accumulate must be at least 1"),
    (lambda: small_model(gradient_accumulation_steps=2), 1, "gradient_accumulation_steps=2"),
]


@pytest.mark.parametrize(("make", "accumulate", "message"), REFUSED)
def test_prepare_refuses_models_that_it_cannot_train(make, accumulate, message):
    model = make()
    with pytest.raises(ValueError, match=message):
        prepare(model, accumulate)


def test_prepare_refuses_other_backends(monkeypatch):
    model = small_model()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="TensorFlow backend, but Keras runs on jax"):
        prepare(model)


def test_a_train_step_of_a_subclass_is_kept():
    class Own(kt.CausalTransformer):
        def train_step(self, data):
            return {"own": keras.ops.convert_to_tensor(7.0)}

    model = Own(9, 1, 8, 2, 11)
    model.compile(keras.optimizers.SGD(1.0, clipnorm=1e-3), kt.SequenceCrossentropy())
    ids = np.ones((4, 3), "int32")
    assert model.fit(ids, ids, verbose=0).history == {"own": [7.0]}


@pytest.mark.full("global_clipnorm", "clipvalue")
@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_one_replica_clips_the_summed_gradient_of_a_table(limit):
    """Keras clips the rows of a table's gradient, one for each id, before equal ids are summed."""
    keras.utils.set_random_seed(3)
    model = kt.CausalTransformer(9, 1, 8, 2, 11, dropout=0.0, tie_output=False)
    ids = np.tile(np.array([[1, 5, 5, 5, 5, 6]], "int32"), (4, 1))  # few different ids
    model.compile(keras.optimizers.SGD(1.0, **{limit: 1e-3}), kt.SequenceCrossentropy())
    model(ids)  # makes the weights
    before = [variable.numpy() for variable in model.trainable_variables]
    model.fit(ids, np.roll(ids, -1, axis=1), batch_size=4, verbose=0)
    moved = [a - b.numpy() for a, b in zip(before, model.trainable_variables, strict=True)]
    norms = [np.linalg.norm(change) for change in moved]
    largest = {
        "clipnorm": max(norms),
        "global_clipnorm": np.linalg.norm(norms),
        "clipvalue": max(np.abs(change).max() for change in moved),
    }[limit]
    assert largest == pytest.approx(1e-3, rel=1e-3)


def test_an_error_leaves_no_gradients_for_the_next_fit():
    ids = np.random.default_rng(19).integers(1, 11, (4, 5))
    one, other = prepare(small_model(), 4), prepare(small_model(), 4)

    class Broken(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2:
                raise OSError("disk")
            return ids[:2], ids[2:]

    with pytest.raises(Exception, match="disk"):
        other.fit(Broken(), shuffle=False, verbose=0)
    for model in (one, other):
        model.fit(ids, ids, batch_size=1, shuffle=False, verbose=0)
    assert_equal_weights(one, other, 1e-6)


@pytest.mark.full("losses1", "losses2")
@pytest.mark.parametrize("losses", [{"second": 1}, {"first": None, "second": 1}, [None, 1]])
def test_batches_count_the_labels_of_the_output_with_a_loss(losses):
    keras.utils.set_random_seed(5)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 7)(ids)
    outputs = {name: keras.layers.Dense(11, name=name)(x) for name in ("first", "second")}
    made = kt.SequenceCrossentropy()
    if isinstance(losses, dict):
        losses = {name: loss and made for name, loss in losses.items()}
    else:
        outputs, losses = list(outputs.values()), [loss and made for loss in losses]
    rows, few = np.random.default_rng(7).integers(1, 11, (2, 4, 5))
    few[1:, 1:] = 0  # the second output has fewer tokens
    labels = {"first": rows, "second": few} if isinstance(losses, dict) else [rows, few]
    models = []
    for accumulate in (1, 2):
        model = keras.models.clone_model(keras.Model(ids, outputs))
        model.set_weights([np.full(w.shape, 0.1) + np.arange(w.shape[-1]) for w in model.weights])
        model.compile(keras.optimizers.SGD(0.1), losses)
        prepare(model, accumulate)
        model.fit(rows, labels, batch_size=4 // accumulate, shuffle=False, verbose=0)
        models.append(model)
    assert_equal_weights(*models, 1e-5)
