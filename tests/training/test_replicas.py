"""Replicas, machines and micro-batches give the same update as one large batch.

TensorFlow's devices must be set up before anything else, so all trainings run in one process.
Called as a script, this file trains and writes all results to a file.
"""

import functools
import json
import os
import pathlib
import pickle
import sys
import threading

import numpy as np
import pytest
from helpers import ports, processes, tiers

# 14 sentences; number 5 is only padding, so that a batch, a replica or both have no token.
# The last batch has fewer rows than replicas. Two micro-batches make one large batch.
LENGTHS = (5, 2, 3, 1, 4, 0, 3, 5, 2, 2, 1, 5, 4, 3)
LARGE = ((0, 6), (6, 13), (13, 14))
SMALL = ((0, 5), (5, 6), (6, 8), (8, 13), (13, 14))
HALVES = ((0, 3), (3, 6), (6, 10), (10, 13), (13, 14))  # the parts of LARGE on two replicas
SCORES = 3 * np.random.default_rng(5).normal(size=(2, 2, 2)).astype("float32")  # of half the pairs
SIZES = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7, "dropout": 0.0}
# Cases and the kinds of their models. The last one uses TensorFlow's collectives; see `main`.
CASES = {
    "plain": "functional",
    "clipped": "functional",
    "averaged": "functional",
    "float16": "functional",
    "global": "causal",
    "again": "words",
    "norm": "words",
    "scaled": "words",
    "mask": "words",
    "rows": "classifier",
    "aligned": "aligned",  # two outputs, a loss each
    "aware": "rounded",  # rounds each tensor of a replica by its own range
    "distilled": "words",
    "dropped": "changing",
    "filled": "filled",  # a plain Keras model, not prepared
    "transformer": "transformer",
}
# Case, replicas, batches per update. Each run must equal one replica with large batches.
RUNS = [
    *(("plain", r, k) for r, k in ((1, 2), (2, 1), (4, 1), (4, 2))),
    *((case, 2, 2) for case in ("clipped", "averaged", "float16")),
    *((case, 2, 1) for case in ("global", "again", "norm", "scaled", "mask", "rows")),
    *(("aligned", r, k) for r, k in ((1, 2), (2, 1), (2, 2))),
    *((case, 2, k) for case in ("distilled", "dropped") for k in (1, 2)),
    ("aware", 2, 1),
    *(("again", 4, 1), ("filled", 2, 1), ("transformer", 2, 2)),
]
QUICK = [("plain", 2, 1), ("aligned", 2, 2)]
# Another run has each of their parts: the optimizer, the loss, or the number of replicas.
NIGHTLY = [
    *(("plain", 4, 1), ("averaged", 2, 2), ("global", 2, 1), ("again", 4, 1)),
    *(("aligned", 1, 2), ("aligned", 2, 1), ("distilled", 2, 1), ("dropped", 2, 1)),
]


def sentences():
    ids = np.random.default_rng(19).integers(1, 11, (14, 5)).astype("int32")
    return np.where(np.arange(5) < np.array(LENGTHS)[:, None], ids, 0)  # (B, T)


def fields(kind, ids):
    """Returns inputs and labels."""
    match kind:
        case "transformer":
            return {"source_ids": ids, "target_ids": ids}, ids
        case "aligned":  # each token is aligned with the token before it
            links = np.tile(np.eye(ids.shape[1], k=-1, dtype="float32"), (len(ids), 1, 1))
            return ids, {"logits": ids, "alignments": np.where(ids[..., None] > 0, links, -1)}
        case "classifier":  # the mean over no token is NaN
            return np.maximum(ids, 1), np.maximum(ids, 1)[:, 0] % 2
        case "filled":  # pads to an even number of rows
            ids = np.pad(ids, ((0, len(ids) % 2), (0, 0)))
            return ids, np.where(ids.any(1), ids[:, 0] % 2, -1)
    return ids, ids


def dataset(kind, cuts=LARGE, weighted=False):
    """Returns batches, each as wide as its longest sentence."""
    import tensorflow as tf

    parts = []
    for begin, end in cuts:
        ids = sentences()[begin:end]
        if kind != "rounded":  # equally wide, because padding counts for the range
            ids = ids[:, : max(1, np.count_nonzero(ids, axis=1).max())]
        weights = (np.linspace(0.5, 2.0, end - begin).astype("float32"),) if weighted else ()
        parts.append(tf.data.Dataset.from_tensors((*fields(kind, ids), *weights)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return functools.reduce(lambda a, b: a.concatenate(b), parts).with_options(options)


def make_model(case):
    import keras

    import keras_transformer as kt
    from keras_transformer.training.distribution import Model

    keras.utils.set_random_seed(23)
    kind, ids = CASES[case], keras.Input((None,), dtype="int32")
    embedding = kt.TokenEmbedding(11, 6, name="token_embedding")
    match kind:
        case "causal":
            return kt.CausalTransformer(11, **SIZES)
        case "transformer":
            return kt.Transformer(11, **SIZES)
        case "functional":
            dtype = "mixed_float16" if case == "float16" else "float32"
            x = keras.layers.Embedding(11, 7, dtype=dtype)(ids)
            return keras.Model(ids, keras.layers.Dense(11, dtype=dtype)(x))
        case "aligned":
            x = keras.layers.Dense(6)(embedding(ids))
            scores = keras.ops.matmul(x, keras.ops.swapaxes(x, 1, 2))
            scores -= 1e9 * keras.ops.cast(ids[:, None] == 0, "float32")
            outputs = {"logits": embedding.logits(x), "alignments": keras.ops.softmax(scores)}
            return Model(ids, outputs)
        case "changing":  # two passes of a step differ, in the same way on every replica
            calls = threading.local()

            class Changing(keras.layers.Layer):
                def call(self, x, training=False):
                    calls.number = getattr(calls, "number", 0) + bool(training)
                    return x * (0.5 if calls.number % 2 else 1.0)

            return Model(ids, embedding.logits(Changing()(embedding(ids))))
        case "rounded":
            x = keras.layers.Dense(6, "relu")(embedding(ids))
            model = Model(ids, keras.layers.Dense(11)(x))
            return kt.quantization_aware(model)
        case "words":  # of our models' class, but quick to trace
            return Model(ids, embedding.logits(keras.layers.Dense(6)(embedding(ids))))
        case "classifier":
            x = keras.layers.GlobalAveragePooling1D()(kt.TransformerEncoder(11, **SIZES)(ids))
            return keras.Model(ids, keras.layers.Dense(2)(x))
        case "filled":
            return keras.Model(ids, keras.layers.Dense(3)(embedding(ids)[:, 0]))


def sgd(**options):
    import keras

    return keras.optimizers.SGD(0.5, momentum=0.9, **options)


def compile_model(model, case):
    import keras

    import keras_transformer as kt

    def adam(**options):
        schedule = kt.InverseSquareRootWarmup(6, 3, 0.1)
        return keras.optimizers.Adam(schedule, 0.9, 0.98, 1e-5, **options)

    average = {"use_ema": True, "ema_momentum": 0.5}
    optimizers = {
        "aligned": lambda: keras.optimizers.SGD(0.05),
        "clipped": lambda: sgd(global_clipnorm=0.05),
        "averaged": lambda: sgd(**average),
        "transformer": adam,
        "norm": lambda: sgd(clipnorm=0.05, **average),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(
            sgd(global_clipnorm=0.1), initial_scale=2.0**80
        ),
        "global": lambda: adam(global_clipnorm=0.1),
        "again": lambda: adam(global_clipnorm=0.1),
    }
    metrics, smoothed = [kt.TokenAccuracy()], kt.SequenceCrossentropy(0.1)
    match case:
        case "aligned":
            loss = {"logits": kt.SequenceCrossentropy(), "alignments": kt.AlignmentCrossentropy()}
            metrics = None
        case "mask" | "rows":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            metrics = [keras.metrics.SparseCategoricalAccuracy()]
        case "filled":
            loss, metrics = kt.SequenceCrossentropy(pad_id=-1), [kt.TokenAccuracy(pad_id=-1)]
        case "dropped":
            loss = kt.RDrop(smoothed)
        case "distilled":
            teacher = make_model(case)
            teacher.set_weights([2 * weight for weight in teacher.get_weights()])
            loss = kt.Distillation(teacher, smoothed, weight=0.5)
        case _:
            loss, metrics = smoothed, [*metrics, kt.Perplexity()]
    steps = {"steps_per_execution": 2} if case == "norm" else {}
    model.compile(optimizers.get(case, sgd)(), loss, metrics=metrics, **steps)


def weights_of(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def train(strategy, case, accumulate=1, callbacks=(), run=None):
    """Trains with `fit`, of a `Run` if there is one. Returns logs, weights, number of updates."""
    import keras_transformer as kt

    kind, replicas = CASES[case], strategy.num_replicas_in_sync
    cuts = SMALL if accumulate > 1 else LARGE
    if case == "aware" and replicas == 1:  # two batches per update, cut as for two replicas
        accumulate, cuts = 2, HALVES
    with strategy.scope():
        model = make_model(case)
        if case == "scaled":
            model.get_layer("token_embedding").trainable = False
        compile_model(model, case)
    unlike_keras = (case, replicas, accumulate) != ("plain", 1, 1)
    if accumulate > 1 or unlike_keras and kind in ("functional", "classifier"):
        kt.training.prepare(model, accumulate)
    data = dataset(kind, cuts)
    validation = dataset(kind) if case in ("plain", "clipped", "global", "again", "mask") else None
    options = {"epochs": 2, "verbose": 0, "callbacks": [*callbacks]}
    fit = model.fit if run is None else functools.partial(run.fit, model)
    history = fit(data, validation_data=validation, **options).history
    results = {name: np.array(values) for name, values in history.items()}
    results |= {"weights": weights_of(model), "updates": int(model.optimizer.iterations.numpy())}
    if case == "again" and replicas < 4:
        results |= use_again(strategy, model, kind)
    return results


def use_again(strategy, model, kind):
    ids = sentences()
    results = {
        "predict": model.predict(dataset(kind), verbose=0)[-1],
        "train_on_batch": np.array(model.train_on_batch(ids, ids)),
        "test_on_batch": np.array(model.test_on_batch(ids, ids)),
        "evaluate": np.array(model.evaluate(dataset(kind), verbose=0)),
    }
    weighted = model.fit(dataset(kind, weighted=True), epochs=1, verbose=0).history
    results["weighted loss"] = np.array(weighted["loss"])
    with strategy.scope():
        compile_model(model, "norm")
    again = model.fit(ids, ids, batch_size=7, shuffle=False, verbose=0)
    results["loss after compile"] = np.array(again.history["loss"])
    return results | {"weights after all": weights_of(model)}


def resume(strategy, folder):
    """Interrupts a run after the first update of epoch 2, and resumes it."""
    import keras

    import keras_transformer as kt

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 4:
                raise KeyboardInterrupt

    try:
        train(strategy, "plain", callbacks=[Stop()], run=kt.Run(folder, every=1))
    except KeyboardInterrupt:
        return train(strategy, "plain", run=kt.Run(folder, every=1))


def load_and_go_on(strategy, folder):
    """Averages the weights of a run, saves and loads the model, and trains further."""
    import keras

    import keras_transformer as kt

    with strategy.scope():
        model = make_model("global")
        compile_model(model, "global")
    averaging = kt.CheckpointAveraging(folder / "weights", last=2)
    first = model.fit(dataset("causal"), epochs=2, verbose=0, callbacks=[averaging])
    model.set_weights(averaging.average())
    model.save(folder / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(folder / "model.keras")
    results = {"saved": weights_of(model), "loaded": weights_of(loaded)}
    later = loaded.fit(dataset("causal"), epochs=1, verbose=0)
    return results | {"loss": first.history["loss"][0], "later": later.history["loss"][0]}


def jit_error(strategy):
    """Returns the error of a model that XLA compiles."""
    import keras_transformer as kt

    with strategy.scope():
        model = kt.TransformerEncoder(11, **SIZES)
        model.compile(sgd(), "mse", jit_compile=True)
    try:
        model.fit(np.ones((4, 3), "int32"), np.ones((4, 3, 6)), verbose=0)
    except ValueError as error:
        return str(error)


def pair_losses(strategy):
    """Returns the losses of two replicas, which have a half of the pairs each."""
    import tensorflow as tf

    import keras_transformer as kt

    def values(halves):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(halves[context.replica_id_in_sync_group])
        )

    parts = values(([0, 1], [2, 3])), values(SCORES)
    result = strategy.run(tf.function(kt.PairCrossentropy().__call__), parts)
    return [float(value) for value in strategy.experimental_local_results(result)]


def main(job, folder):
    """Runs a job: "workers", or "quick", "full" or "nightly" runs on replicas of one process."""
    import keras
    import tensorflow as tf

    keras.config.disable_traceback_filtering()
    folder, results = pathlib.Path(folder), {}
    if job == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        for case, accumulate in (("clipped", 2), ("transformer", 1)):
            results[case, accumulate] = train(strategy, case, accumulate)
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * 4
        tf.config.set_logical_device_configuration(cpu, devices)
        one, simple = tf.distribute.get_strategy(), tf.distribute.ReductionToOneDevice()
        two, four = (
            tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)], cross_device_ops=simple)
            for n in (2, 4)
        )
        results["pairs"] = pair_losses(two)
        runs = [run for run in RUNS if job == "nightly" or run not in NIGHTLY]
        if job == "quick":
            runs = QUICK
        else:
            results |= {"resumed": resume(two, folder / "state"), "jit": jit_error(two)}
            results["files"] = load_and_go_on(two, folder)
            results["first"] = weights_of(make_model("scaled"))
        for case, replicas, accumulate in runs:
            if (case, 1, 1) not in results:
                results[case, 1, 1] = train(one, case)
            strategy = {1: one, 2: two, 4: four}[replicas]
            if case == "transformer":
                # TensorFlow's collectives mix up several strategies of one process. Only the last
                # strategy may use them.
                strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
            results[case, replicas, accumulate] = train(strategy, case, accumulate)
    (folder / "results").write_bytes(pickle.dumps(results))


def start(job, folder, **environment):
    # Replicas wait for each other in TensorFlow's thread pools. They hang without a thread each.
    threads = {"TF_NUM_INTEROP_THREADS": "8", "TF_NUM_INTRAOP_THREADS": "4"}
    return processes.Python(__file__, job, folder, env={**os.environ, **threads, **environment})


def result(process, folder):
    done = process.wait()
    assert done.returncode == 0, done.stderr[-5000:]
    return pickle.loads((folder / "results").read_bytes())


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    option = request.config.option
    job = "nightly" if option.nightly else "full" if option.full else "quick"
    return result(start(job, folder), folder)


def assert_same(one, other, tolerance=1e-6, names=None):
    assert {"loss", "weights", "updates"} <= other.keys() <= one.keys()
    for name in names or other:
        value = np.array(one[name])
        assert np.all(np.isfinite(value)), name
        difference = np.linalg.norm(other[name] - value)
        # Rounding errors grow after many updates and in logits.
        bound = 5 * tolerance if name.endswith(("predict", "all", "compile")) else tolerance
        assert difference <= bound * max(1.0, np.linalg.norm(value)), name


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("case, replicas, accumulate", tiers.quick(RUNS, *QUICK, nightly=NIGHTLY))
def test_weights_and_logs_equal_one_replica_with_large_batches(trained, case, replicas, accumulate):
    tolerance = 2e-3 if case == "float16" else 1e-6
    # Keras weights the loss of each output by rows in its logs.
    names = ("loss", "weights", "updates") if case == "aligned" else None
    assert_same(trained[case, 1, 1], trained[case, replicas, accumulate], tolerance, names)


@pytest.mark.full
@pytest.mark.slow
def test_pair_losses_compare_pairs_within_a_replica(trained):
    import keras_transformer as kt

    halves = [float(kt.PairCrossentropy()([0, 1], scores)) for scores in SCORES]
    # Each replica returns half the mean: Keras multiplies by the number of replicas and averages.
    np.testing.assert_allclose(trained["pairs"], [np.mean(halves) / 2] * 2, rtol=1e-5)


@pytest.mark.full
@pytest.mark.slow
def test_an_interrupted_run_on_replicas_resumes(trained):
    whole, resumed = trained["plain", 2, 1], trained["resumed"]
    np.testing.assert_array_equal(resumed["weights"], whole["weights"])
    for name in whole.keys() - {"weights", "updates"}:  # of the second epoch only
        np.testing.assert_allclose(resumed[name], whole[name][1:], rtol=1e-6, err_msg=name)


@pytest.mark.full
@pytest.mark.slow
def test_clipping_changes_weights_and_frozen_embeddings_stay(trained):
    plain, clipped = (trained[case, 1, 1]["weights"] for case in ("plain", "clipped"))
    assert np.linalg.norm(plain - clipped) > 0.01 * np.linalg.norm(plain)
    first, last = trained["first"], trained["scaled", 2, 1]["weights"]
    np.testing.assert_array_equal(last[: 11 * 6], first[: 11 * 6])  # the embedding comes first
    assert np.linalg.norm(last - first) > 1e-3


@pytest.mark.full
@pytest.mark.slow
def test_a_model_saved_while_training_on_replicas_trains_further(trained):
    files = trained["files"]
    np.testing.assert_array_equal(files["saved"], files["loaded"])
    assert files["later"] < files["loss"]


@pytest.mark.full
@pytest.mark.slow
def test_xla_is_refused(trained):
    assert "jit_compile=True does not work on several replicas" in trained["jit"]


@pytest.mark.full
@pytest.mark.slow
def test_two_machines_give_the_weights_of_one(trained, tmp_path):
    folders = [tmp_path / str(i) for i in range(2)]
    with ports.reserved(2) as numbers:
        cluster = {"worker": [f"localhost:{number}" for number in numbers]}
        workers = []
        for index, folder in enumerate(folders):
            folder.mkdir()
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            environment = {"TF_CONFIG": json.dumps(task), **ports.REUSE}
            workers.append(start("workers", folder, **environment))
        try:
            for results in list(map(result, workers, folders)):
                for (case, _), other in results.items():
                    names = None if case == "clipped" else ["weights", "updates"]
                    assert_same(trained[case, 1, 1], other, 2e-6, names)
        finally:
            for worker in workers:
                worker.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
