"""One batch, cut in any way over replicas, machines and micro-batches, gives one update.

TensorFlow's devices must be set up before anything else runs, so the trainings run in processes of
their own: this file, called as a script, trains what its argument says and prints it as JSON.
"""

import functools
import json
import os
import sys
import tempfile

import numpy as np
import pytest
from support import ports, processes, tiers

# 13 sentences; number 5 is padding alone, so that a batch, a replica or both have no token at all.
LENGTHS = (5, 2, 3, 1, 4, 0, 3, 5, 2, 2, 1, 5, 4)
LARGE = ((0, 6), (6, 13))
# Rows of micro-batches; each pair of them makes one large batch. Row 5 stands alone.
SMALL = ((0, 5), (5, 6), (6, 8), (8, 13))


def sentences():
    ids = np.random.default_rng(19).integers(1, 11, (13, 5)).astype("int32")
    return np.where(np.arange(5) < np.array(LENGTHS)[:, None], ids, 0)  # (B, T)


def dataset(cuts, both):
    """Batches of these rows, each as wide as its longest sentence."""
    import tensorflow as tf

    parts = []
    for begin, end in cuts:
        ids = sentences()[begin:end]
        ids = ids[:, : max(1, np.count_nonzero(ids, axis=1).max())]
        inputs = {"source_ids": ids, "target_ids": ids} if both else ids
        parts.append(tf.data.Dataset.from_tensors((inputs, ids)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return functools.reduce(lambda a, b: a.concatenate(b), parts).with_options(options)


def make_model(kind):
    import keras

    from keras_transformer.models import Transformer

    keras.utils.set_random_seed(23)
    if kind == "transformer":
        return Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.0)
    dtype = "mixed_float16" if kind == "float16" else "float32"
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 7, dtype=dtype)(ids)
    return keras.Model(ids, keras.layers.Dense(11, dtype=dtype)(x))


def make_optimizer(kind):
    import keras

    from keras_transformer.training.schedules import InverseSquareRootWarmup

    rate = InverseSquareRootWarmup(peak=0.5, warmup_steps=3)
    clip = {"global_clipnorm": 0.05} if kind == "clipped" else {}
    average = {"use_ema": True, "ema_momentum": 0.5} if kind == "averaged" else {}
    if kind == "transformer":
        return keras.optimizers.Adam(InverseSquareRootWarmup(6, 3, 0.1), 0.9, 0.98, 1e-5)
    return keras.optimizers.SGD(rate, momentum=0.9, **clip, **average)


def train(strategy, kind, accumulate, folder=None, *extra):
    """Two epochs. `accumulate` 0 leaves Keras' own step in place."""
    from keras_transformer.training import prepare
    from keras_transformer.training.losses import SequenceCrossentropy
    from keras_transformer.training.metrics import Perplexity, TokenAccuracy
    from keras_transformer.training.resume import TrainingCheckpoint

    with strategy.scope():
        model = make_model(kind)
        model.compile(
            make_optimizer(kind), SequenceCrossentropy(0.1), metrics=[TokenAccuracy(), Perplexity()]
        )
    if accumulate:
        prepare(model, accumulate)
    data = dataset(SMALL if accumulate > 1 else LARGE, both=kind == "transformer")
    callbacks = [] if folder is None else [TrainingCheckpoint(folder, every=1), *extra]
    compared = kind in ("plain", "clipped") and accumulate < 2  # in their whole history
    checked = data if compared else None
    history = model.fit(
        data, validation_data=checked, epochs=2, verbose=0, callbacks=callbacks
    ).history
    return {
        "weights": np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist(),
        "history": history,
        "updates": int(model.optimizer.iterations.numpy()),
    }


def train_twice(strategy):
    """Breaks off after the first update of the second epoch, and goes on."""
    import keras

    class StopAt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 3:
                raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        try:
            train(strategy, "plain", 1, folder, StopAt())
        except KeyboardInterrupt:
            return train(strategy, "plain", 1, folder)


# (kind, replicas, accumulate) of the quick tests, and of the others.
QUICK = [("plain", 1, 0), ("plain", 1, 2), ("plain", 2, 1), ("transformer", 1, 1)]
QUICK += [("transformer", 2, 2)]  # the last one, see `main`
FULL = [
    *(("plain", r, k) for r, k in ((1, 0), (1, 1), (1, 2), (2, 1), (4, 1), (4, 2))),
    *((kind, r, r) for kind in ("clipped", "averaged", "float16", "transformer") for r in (1, 2)),
]


def main(job):
    import keras
    import tensorflow as tf

    keras.config.disable_traceback_filtering()
    if job == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        results = {str(k): train(strategy, "clipped", k) for k in (1, 2)}
        results["plain fit"] = train(strategy, "transformer", 0)
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 4
        )
        results = {}
        for kind, replicas, accumulate in FULL if job == "full" else QUICK:
            strategy = tf.distribute.get_strategy()
            if replicas > 1:
                # TensorFlow's collectives confuse several strategies of one process. One may
                # have them, which is the last.
                simple = None if kind == "transformer" else tf.distribute.ReductionToOneDevice()
                names = [f"CPU:{i}" for i in range(replicas)]
                strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=simple)
            name = f"{kind} {replicas} {accumulate}"
            results[name] = train(strategy, kind, accumulate)
            if job == "full" and name == "plain 2 1":
                results["resumed 2 1"] = train_twice(strategy)
    print("RESULT " + json.dumps(results))


def start(job, **environment):
    # Replicas wait for each other within TensorFlow's pools: each one needs a thread, or all hang.
    threads = {"TF_NUM_INTEROP_THREADS": "8", "TF_NUM_INTRAOP_THREADS": "4"}
    return processes.Python(__file__, job, env={**os.environ, **threads, **environment})


def result(process):
    done = process.wait()
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-5000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def trained(request):
    return result(start("full" if request.config.option.full else "quick"))


def assert_same(one, other, tolerance=1e-6):
    a, b = np.array(one["weights"]), np.array(other["weights"])
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)
    assert one["updates"] == other["updates"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    tiers.quick(
        ["plain 1 1", "plain 1 2", "plain 2 1", "plain 4 1", "plain 4 2"], "plain 1 2", "plain 2 1"
    ),
)
def test_replicas_and_micro_batches_give_the_weights_of_one_large_batch(trained, case):
    assert_same(trained["plain 1 0"], trained[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.quick(["plain 1 1", "plain 2 1", "plain 4 1"], "plain 2 1"))
def test_replicas_report_the_loss_and_metrics_of_one_device(trained, case):
    for name, values in trained["plain 1 0"]["history"].items():
        np.testing.assert_allclose(trained[case]["history"][name], values, rtol=2e-6, err_msg=name)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_on_replicas_that_broke_off_goes_on(trained):
    whole, resumed = trained["plain 2 1"], trained["resumed 2 1"]
    assert resumed["weights"] == whole["weights"]
    for name, values in resumed["history"].items():  # its second epoch; Keras counts it alone
        np.testing.assert_allclose(values, whole["history"][name][1:], rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers.quick(["plain 1 2", "plain 4 2"], "plain 1 2"))
def test_micro_batches_report_the_loss_of_one_large_batch(trained, case):
    losses = trained["plain 1 0"]["history"]["loss"]
    np.testing.assert_allclose(trained[case]["history"]["loss"], losses, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiers.quick(["clipped", "averaged", "transformer"], "transformer"))
def test_clipping_moving_averages_and_adam_are_exact(trained, kind):
    assert_same(trained[f"{kind} 1 1"], trained[f"{kind} 2 2"])


@pytest.mark.full
@pytest.mark.slow
def test_clipping_changes_the_weights(trained):
    plain, clipped = (np.array(trained[f"{k} 1 1"]["weights"]) for k in ("plain", "clipped"))
    assert np.linalg.norm(plain - clipped) > 0.01 * np.linalg.norm(plain)


@pytest.mark.full
@pytest.mark.slow
def test_mixed_precision_is_as_exact_as_float16(trained):
    assert_same(trained["float16 1 1"], trained["float16 2 2"], tolerance=2e-3)


@pytest.mark.slow
def test_schedules_count_updates_and_not_micro_batches(trained):
    # Two epochs of four micro-batches, two for an update.
    assert trained["plain 1 2"]["updates"] == 4


@pytest.mark.full
@pytest.mark.slow
def test_two_machines_give_the_weights_of_one(trained):
    with ports.reserved(2) as numbers:
        cluster = {"worker": [f"localhost:{number}" for number in numbers]}
        tasks = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]
        workers = [start("workers", TF_CONFIG=json.dumps(task), **ports.REUSE) for task in tasks]
        try:
            for results in list(map(result, workers)):
                assert_same(trained["clipped 1 1"], results["1"])
                assert_same(trained["clipped 1 1"], results["2"])
                assert_same(trained["transformer 1 1"], results["plain fit"])
                losses = trained["clipped 1 1"]["history"]["val_loss"]
                np.testing.assert_allclose(results["1"]["history"]["val_loss"], losses, rtol=2e-6)
        finally:
            for worker in workers:
                worker.kill()


# What needs no devices of its own


def small_model(**arguments):
    import keras

    from keras_transformer.training.losses import SequenceCrossentropy

    model = make_model("plain")
    model.compile(keras.optimizers.SGD(1.0, **arguments), SequenceCrossentropy())
    return model


def test_train_on_batch_works_after_prepare():
    from keras_transformer.training import prepare

    one, other = small_model(), prepare(small_model())
    ids = sentences()
    assert other.train_on_batch(ids, ids) == pytest.approx(one.train_on_batch(ids, ids), rel=1e-6)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_padding_alone_trains_nothing():
    from keras_transformer.training import prepare

    model = prepare(small_model())
    before = model.get_weights()
    assert float(model.train_on_batch(np.zeros((3, 5), "int32"), np.zeros((3, 5), "int32"))) == 0
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("limit", [{"clipvalue": 0.3}, {"clipnorm": 2.0}, {"global_clipnorm": 2.0}])
def test_clip_does_what_the_optimizer_does(limit):
    import keras

    from keras_transformer.training.steps import clip

    gradients = [np.array([3.0, -4.0], "float32"), np.array([0.1], "float32")]
    weights = [keras.Variable(np.zeros(2, "float32")), keras.Variable(np.zeros(1, "float32"))]
    optimizer = keras.optimizers.SGD(1.0, **limit)
    optimizer.build(weights)
    ours = clip([keras.ops.convert_to_tensor(g) for g in gradients], optimizer)
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients])
    for weight, gradient in zip(weights, ours, strict=True):
        np.testing.assert_allclose(-weight.numpy(), gradient, rtol=1e-6)


@pytest.mark.parametrize("limit", [{"clipvalue": 0.3}, {"clipnorm": 2.0}, {"global_clipnorm": 2.0}])
def test_clip_leaves_overflow_to_the_loss_scale(limit):
    import keras

    from keras_transformer.training.steps import clip

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, **limit))
    gradients = [keras.ops.array([np.inf, 1.0]), keras.ops.array([0.1])]
    assert not np.all(np.isfinite(np.concatenate(clip(gradients, optimizer))))


def test_what_prepare_cannot_do_it_refuses():
    import keras

    from keras_transformer.training import prepare

    with pytest.raises(ValueError, match="needs a compiled model"):
        prepare(make_model("plain"))
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs the model's weights"):
        prepare(unbuilt)
    own = type("Own", (keras.Sequential,), {"train_step": lambda self, data: {}})(
        [keras.Input((2,)), keras.layers.Dense(2)]
    )
    own.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Own has its own train_step"):
        prepare(own)
    with pytest.raises(ValueError, match="accumulate must be at least 1"):
        prepare(small_model(), 0)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        prepare(small_model(gradient_accumulation_steps=2))


if __name__ == "__main__":
    main(sys.argv[1])


@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_one_replica_clips_the_summed_gradient_of_a_table(limit):
    """Keras clips the rows of a table's gradient, one for each id, before equal ids are summed."""
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(3)
    model = kt.CausalTransformer(9, 1, 8, 2, 11, dropout=0.0, tie_output=False)
    ids = np.tile(np.array([[1, 5, 5, 5, 5, 6]], "int32"), (4, 1))  # hardly any other id
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
