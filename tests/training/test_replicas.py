"""Plain `compile` and `fit` on two and four replicas give what one replica gives.

The models are decoders alone; `test_training` has the encoder-decoder.

TensorFlow's devices must be set up before anything else runs, so the trainings run in a process of
their own: this file, called as a script, trains and writes all results to a file.
"""

import functools
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from support import processes, tiers

# 14 sentences, one of them padding alone, in batches of 6, 7 and 1 rows: fewer than replicas.
LENGTHS = (5, 2, 3, 1, 4, 0, 3, 5, 2, 2, 1, 5, 4, 3)
BATCHES = ((0, 6), (6, 13), (13, 14))
SIZES = {"num_layers": 1, "d_model": 6, "num_heads": 2, "d_ff": 7, "dropout": 0.0}


def sentences():
    ids = np.random.default_rng(19).integers(1, 11, (14, 5)).astype("int32")
    return np.where(np.arange(5) < np.array(LENGTHS)[:, None], ids, 0)  # (B, T)


def dataset(kind, weighted=False):
    import tensorflow as tf

    parts = []
    for begin, end in BATCHES:
        ids = sentences()[begin:end]
        labels = ids
        if kind == "classifier":
            ids = np.maximum(ids, 1)  # the mean over no token is not a number
            labels = ids[:, 0] % 2
        if kind == "tagger":  # two pieces a word: labels at every other one
            labels = np.where((ids > 0) & (np.arange(5) % 2 == 0), ids % 3, -1)
        if kind == "filled":  # rows of padding, so that replicas hold as many rows
            ids = np.pad(ids, ((0, len(ids) % 2), (0, 0)))
            labels = np.where(ids.any(1), ids[:, 0] % 2, -1)
        weights = (np.linspace(0.5, 2.0, end - begin).astype("float32"),) if weighted else ()
        parts.append(tf.data.Dataset.from_tensors((ids, labels, *weights)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return functools.reduce(lambda a, b: a.concatenate(b), parts).with_options(options)


def make_model(kind):
    import keras

    import keras_transformer as kt
    from keras_transformer.training.distribution import DistributedModel

    keras.utils.set_random_seed(23)
    if kind == "causal":
        return kt.CausalTransformer(11, **SIZES)
    ids = keras.Input((None,), dtype="int32")
    if kind == "words":  # of our models' class, without what takes TensorFlow long to trace
        embedding = kt.TokenEmbedding(11, 6, name="token_embedding")
        return DistributedModel(ids, embedding.logits(keras.layers.Dense(6)(embedding(ids))))
    if kind in ("tagger", "filled"):
        x = kt.TokenEmbedding(11, 6)(ids)
        return keras.Model(ids, keras.layers.Dense(3)(x if kind == "tagger" else x[:, 0]))
    x = keras.layers.GlobalAveragePooling1D()(kt.TransformerEncoder(11, **SIZES)(ids))
    return keras.Model(ids, keras.layers.Dense(2)(x))


def sgd(**options):
    import keras

    return keras.optimizers.SGD(0.5, momentum=0.9, **options)


def compile_model(model, case, kind):
    import keras

    import keras_transformer as kt

    optimizers = {
        "norm": lambda: sgd(clipnorm=0.05, use_ema=True, ema_momentum=0.5),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(
            sgd(global_clipnorm=0.1), initial_scale=2.0**80
        ),
        "global": lambda: keras.optimizers.Adam(
            kt.InverseSquareRootWarmup(6, 3, 0.1), 0.9, 0.98, 1e-5, global_clipnorm=0.1
        ),
    }
    optimizers["again"] = optimizers["global"]
    options = {"norm": {"steps_per_execution": 2}}
    if case in ("mask", "rows"):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [keras.metrics.SparseCategoricalAccuracy()]
    elif case == "ignored":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
        metrics = [kt.TokenAccuracy(pad_id=-1)]
    elif case in ("tags", "filled"):
        loss = kt.SequenceCrossentropy(pad_id=-1)
        metrics = [kt.TokenAccuracy(pad_id=-1)]
    else:
        loss, metrics = kt.SequenceCrossentropy(0.1), [kt.TokenAccuracy(), kt.Perplexity()]
    model.compile(optimizers.get(case, sgd)(), loss, metrics=metrics, **options.get(case, {}))


def train(strategy, case, kind):
    """One or two calls of `fit`, and all else that Keras offers a compiled model."""
    import keras_transformer as kt

    with strategy.scope():
        model = make_model(kind)
        if case == "scaled":
            model.get_layer("token_embedding").trainable = False
        compile_model(model, case, kind)
    if kind in ("classifier", "tagger"):
        kt.training.prepare(model)  # no model of ours, but one of the user's own
    data = dataset(kind)
    checked = data if case in ("global", "again", "mask") else None
    history = model.fit(data, validation_data=checked, epochs=2, verbose=0).history
    results = {name: np.array(values) for name, values in history.items()}
    results["weights"] = np.concatenate([np.ravel(w) for w in model.get_weights()])
    if case == "again" and strategy.num_replicas_in_sync < 4:
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
        compile_model(model, "norm", kind)
    again = model.fit(ids, ids, batch_size=7, shuffle=False, verbose=0)
    results["loss after compile"] = np.array(again.history["loss"])
    results["weights after all"] = np.concatenate([np.ravel(w) for w in model.get_weights()])
    return results


# Name of a case, kind of its model.
CASES = {
    "global": "causal",
    "again": "words",
    "norm": "words",
    "scaled": "words",
    "mask": "words",
    "rows": "classifier",
    "tags": "tagger",
    "ignored": "tagger",
    "filled": "filled",  # no model of ours, no `prepare`
}
TRAINED = [(case, replicas) for case in CASES for replicas in (2, 4)[: 1 + (case == "again")]]
QUICK = [("norm", 2)]


def continue_from_files(strategy, folder):
    """Saves whole state and averages while training, loads the model and trains on."""
    import keras

    import keras_transformer as kt

    with strategy.scope():
        model = make_model("causal")
        compile_model(model, "global", "causal")
    averaging = kt.CheckpointAveraging(folder / "weights", last=2)
    saved = kt.TrainingCheckpoint(folder / "state", every=1)
    first = model.fit(dataset("causal"), epochs=2, verbose=0, callbacks=[averaging, saved])
    model.set_weights(averaging.average())
    model.save(folder / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(folder / "model.keras")
    weights = [np.concatenate([np.ravel(w) for w in m.get_weights()]) for m in (model, loaded)]
    history = loaded.fit(dataset("causal"), epochs=1, verbose=0).history
    return {
        "saved": weights[0],
        "loaded": weights[1],
        "loss": first.history["loss"][0],
        "later loss": history["loss"][0],
    }


def refusals(strategy):
    """What is said where a model cannot be trained on several replicas as it is."""
    import keras

    import keras_transformer as kt

    def message(make, *labels, **options):
        with strategy.scope():
            model = make()
            model.compile(options.pop("optimizer", sgd)(), "mse", **options)
        ids = np.ones((4, 3), "int32")
        try:
            model.fit(ids, np.ones((4, *labels)), verbose=0)
        except (ValueError, TypeError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "trained"

    def subclassed():
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.embed = kt.TokenEmbedding(11, 6)

            def call(self, ids):
                return keras.ops.mean(self.embed(ids), axis=(1, 2))[:, None]

        return Own()

    def functional():
        ids = keras.Input((None,), dtype="int32")
        x = kt.EncoderBlock(2, 7)(kt.TokenEmbedding(11, 6)(ids))
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))

    def encoder():
        return kt.TransformerEncoder(11, **SIZES)

    return {
        "subclassed": message(subclassed, 1),
        "functional": message(functional, 1),
        "jit": message(encoder, 3, 6, jit_compile=True),
        "accumulation": message(
            encoder, 3, 6, optimizer=lambda: sgd(gradient_accumulation_steps=2)
        ),
    }


def own_train_step(strategy):
    """A subclass with a `train_step` of its own keeps it."""
    import keras_transformer as kt

    class Counting(kt.CausalTransformer):
        calls = 0

        def train_step(self, data):
            Counting.calls += 1
            return super().train_step(data)

    with strategy.scope():
        model = Counting(11, **SIZES)
        model.compile("sgd", kt.SequenceCrossentropy())
    model.fit(sentences(), sentences(), batch_size=14, verbose=0)
    return Counting.calls


def main(folder, suite):
    import keras
    import tensorflow as tf

    keras.config.disable_traceback_filtering()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    one, two, four = (
        tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(n)],
            # TensorFlow's collectives confuse several strategies of one process.
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
        if n > 1
        else tf.distribute.get_strategy()
        for n in (1, 2, 4)
    )
    folder, results = pathlib.Path(folder), {}
    for case, replicas in TRAINED if suite == "full" else QUICK:
        if (case, 1) not in results:
            results[case, 1] = train(one, case, CASES[case])
        results[case, replicas] = train(two if replicas == 2 else four, case, CASES[case])
    if suite == "full":
        results |= others(two, folder)
    (folder / "results").write_bytes(pickle.dumps(results))


def others(two, folder):
    """Results of other tests on two replicas."""
    results = {}
    results["files"] = continue_from_files(two, folder)
    first = make_model(CASES["scaled"]).get_weights()
    results["first"] = np.concatenate([np.ravel(w) for w in first])
    results["refusals"], results["calls"] = refusals(two), own_train_step(two)
    return results


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    # Replicas wait for each other within TensorFlow's pools: each one needs a thread, or all hang.
    threads = {"TF_NUM_INTEROP_THREADS": "8", "TF_NUM_INTRAOP_THREADS": "4"}
    suite = "full" if request.config.option.full else "quick"
    done = processes.run(__file__, folder, suite, env={**os.environ, **threads})
    assert done.returncode == 0, done.stderr[-5000:]
    return pickle.loads((folder / "results").read_bytes())


def assert_same(one, other, tolerance=1e-6):
    assert {"loss", "weights"} <= other.keys() <= one.keys()
    for name in other:
        value = one[name]
        assert np.all(np.isfinite(value)), name
        difference = np.linalg.norm(other[name] - value)
        # Rounding adds up: after many updates, and in logits.
        bound = 5 * tolerance if name.endswith(("predict", "all", "compile")) else tolerance
        assert difference <= bound * max(1.0, np.linalg.norm(value)), name


@pytest.mark.slow
@pytest.mark.parametrize("case, replicas", tiers.quick(TRAINED, *QUICK))
def test_replicas_give_weights_and_logs_of_one(trained, case, replicas):
    assert_same(trained[case, 1], trained[case, replicas])


@pytest.mark.full
@pytest.mark.slow
def test_frozen_embeddings_stay_and_the_rest_learns(trained):
    first, last = trained["first"], trained["scaled", 2]["weights"]
    np.testing.assert_array_equal(last[: 11 * 6], first[: 11 * 6])  # the embedding is the first
    assert np.linalg.norm(last - first) > 1e-3


@pytest.mark.full
@pytest.mark.slow
def test_a_model_saved_while_training_on_replicas_trains_on(trained):
    files = trained["files"]
    np.testing.assert_array_equal(files["saved"], files["loaded"])
    assert files["later loss"] < files["loss"]


@pytest.mark.full
@pytest.mark.slow
def test_errors_name_the_cure(trained):
    said = trained["refusals"]
    assert "keras_transformer.training.prepare(model) after model.compile" in said["subclassed"]
    assert said["functional"] == "trained"  # even rows: Keras' own step does
    assert "jit_compile=True does not work on several replicas" in said["jit"]
    assert "training.prepare(model, accumulate=2)" in said["accumulation"]


@pytest.mark.full
@pytest.mark.slow
def test_a_train_step_of_its_own_is_kept(trained):
    assert trained["calls"] > 0


ON_JAX = """
import numpy as np, keras, keras_transformer as kt
model = kt.CausalTransformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7, dropout=0.0)
model.compile("sgd", kt.SequenceCrossentropy(0.1), metrics=[kt.TokenAccuracy()])
ids = np.arange(1, 11).reshape(2, 5)
losses = model.fit(ids, ids, epochs=2, verbose=0).history["loss"]
assert losses[1] < losses[0], losses
try:
    kt.training.prepare(model)
except ValueError as error:
    print(error)
"""


@pytest.mark.full
def test_another_backend_trains_with_the_step_of_keras():
    pytest.importorskip("jax", reason="JAX, the second backend, is missing")
    done = subprocess.run(
        [sys.executable, "-c", ON_JAX],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "prepare needs the TensorFlow backend, but Keras runs on jax" in done.stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
