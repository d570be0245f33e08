"""LiteRT files: the runtime gives Keras' results, and what LiteRT lacks is refused by name.

`test_routes` has further searches.
"""

import concurrent.futures
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import exports, shared
from helpers.tiers import full, quick
from keras import layers

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export import ExportError, export_litert, litert_model
from keras_transformer.export.artefact import manifest as manifests
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.litert_operators import MOST_POWER, portable_operators
from keras_transformer.export.runtime import (
    ProviderError,
    Translator,
    litert_session,
    open_runner,
)
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.sessions import open_session

pytest.importorskip("ai_edge_litert", reason="LiteRT needs ai-edge-litert")
pytestmark = pytest.mark.usefixtures("forked_proofs")
LINES = ["two words", "", "a man 's hat , red .", "the dog runs"]
LABELS = ["red", "green", "blue"]
SEARCH = kt.BeamSearch(3, 0.6)


def artefact(search=SEARCH, kind="translate", **options):
    """Returns the folder that `export_litert` writes for a shared model."""

    def write(path):
        limit = {"max_length": exports.MAX_LENGTH} if search else {}
        model = exports.shared_model(kind)
        export_litert(model, path, exports.tokenizer(), search, verbose=False, **limit, **options)

    return shared.once(f"litert-{abs(hash(repr((search, kind, sorted(options.items())))))}", write)


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(artefact(), tmp_path / "copy")


# Searches

WORDS = np.array([[30, 31], [40, 0]], "int32")
BANNED = [[5, 6], [7]]
SEARCHES = {
    "options": (SEARCH, ("beam_width", "min_length", "target_prefix"), {"beam_width": 2}),
    "terms": (kt.BeamSearch(4, constraints=[kt.Terms()]), (), {"terms": WORDS[None, :, :1]}),
    "forbidden": (kt.BeamSearch(3, constraints=[kt.ForbiddenWords(BANNED)]), (), {}),
    "n-grams": (kt.GreedySearch(constraints=[kt.NoRepeatNgrams(2)]), (), {}),
    "penalty": (kt.BeamSearch(2, constraints=[kt.RepetitionPenalty(1.3)]), (), {}),
    "samples": (kt.Sampling(0.8, top_p=0.9, num_samples=2), ("top_k",), {"seed": 5, "top_k": 7}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", quick(SEARCHES, "options", nightly=("forbidden", "penalty")))
def test_options_and_constraints_give_the_tokens_of_keras(name):
    search, options, call = SEARCHES[name]
    session = open_session(read_artefact(artefact(search, options=options)), threads=1)
    model, source = exports.shared_model(), exports.source(rows=1)
    expected = search(model, source, exports.MAX_LENGTH, **call)
    arrays = {key: np.asarray(value, "int32") for key, value in call.items()}
    ids, scores = session.run(["token_ids", "scores"], {"source_ids": source, **arrays})
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)
    free = search(model, source, exports.MAX_LENGTH, **({"seed": 5} if "seed" in call else {}))
    assert not call or ids.shape != free.ids.shape or (ids != free.ids).numpy().any()


@pytest.mark.full
def test_the_manifest_and_texts_are_those_of_onnx():
    folders = artefact(), exports.artefact(SEARCH, text=False)
    ours, other = (read_artefact(folder).manifest for folder in folders)
    assert (ours["engine"], ours["opsets"], ours["ir_version"]) == ("litert", None, None)
    own = {"engine", "checksum", "example", "files", "opsets", "ir_version", "proof", "versions"}
    ours, other = ({k: v for k, v in each.items() if k not in own} for each in (ours, other))
    assert ours == other
    ours, other = (Translator(folder, threads=1) for folder in folders)
    assert ours.translate(LINES) == other.translate(LINES)
    assert ours.provider == "LiteRT"


@pytest.mark.full
def test_whisper_writes_the_tokens_of_onnx():
    pytest.importorskip("transformers", reason="the random Whisper is of transformers")
    from helpers import whisper_folder

    frames = whisper_folder.features(3)
    start = np.array([[2, 41, 42]] * 3, "int32")
    found = []
    for form in ("onnx", "litert"):
        runner = open_runner(whisper_folder.artefact(form), threads=1)
        inputs = {"features": frames, "start_ids": start}
        found.append(runner.session.run(["token_ids", "scores"], inputs))
    for expected, array in zip(*found, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-4)
    assert found[0][0].any()


@pytest.mark.full
def test_threads_and_workers_share_a_folder():
    translator = Translator(artefact(), workers=3)
    lines = [f"{line} {n}" for n in range(7) for line in LINES]
    expected = translator.translate(lines)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(
            lambda size: translator.translate(lines, tokens_per_batch=size), range(16, 20)
        )
        assert list(found) == [expected] * 4


@pytest.mark.full
def test_a_comparison_on_text_finds_the_tokens_of_keras():
    lines = [line for line in LINES if line]
    found = export.compare_with_keras(exports.shared_model(), artefact(), lines)
    assert found[:3] == (len(lines), len(lines), None)


# Forward passes

HEADS = {
    "classify": (3, export.Classification(LABELS), "a man"),
    "tag": (3, export.TokenClassification(LABELS), ["two", "words"]),
    "embed": (5, export.FeatureExtraction(), "a man"),
    "answer": (2, export.QuestionAnswering(1), ("what hat ?", "a man 's hat")),
    "forward": (3, None, "a man"),
}


def headed(name, units):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    encoder = kt.TransformerEncoder(exports.VOCAB, num_layers=1, d_model=12, num_heads=2, d_ff=17)
    if name == "answer":
        segments = keras.Input((None,), dtype="int32", name="segment_ids")
        numbers = layers.Dense(units)(kt.SegmentEmbedding()(encoder(ids), segments))
        outputs = {"start": numbers[..., 0], "end": numbers[..., 1]}
        return keras.Model([ids, segments], outputs)
    vectors = encoder(ids)
    pooled = kt.SequencePooling()(vectors) if name == "classify" else vectors
    return keras.Model(ids, layers.Dense(units)(pooled))


@pytest.mark.full
@pytest.mark.parametrize("name", quick(HEADS, "classify", "tag"))
def test_heads_give_the_results_of_onnx(name, tmp_path):
    units, head, line = HEADS[name]
    keras.utils.set_random_seed(3)
    model, tokenizer = headed(name, units), exports.tokenizer()
    results = []
    for write in (export.export_onnx, export_litert):
        write(model, tmp_path / write.__name__, tokenizer, head=head, verbose=False)
        runner = open_runner(tmp_path / write.__name__, threads=1)
        results.append(list(runner.results([line, line])))
    for one, other in zip(*results, strict=True):
        for expected, found in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
            if isinstance(expected, (float, np.ndarray)):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            else:
                assert found == expected


# Precisions


@pytest.mark.full
@pytest.mark.parametrize("precision, most", [full("float16", 0.62), ("int8", 0.45)])
def test_reduced_weights_shrink_the_file(precision, most, tmp_path):
    model = exports.tiny(d_model=64, d_ff=128)
    sizes = []
    for each in ("float32", precision):
        manifest = export_litert(
            model, tmp_path / each, None, SEARCH, each, max_length=5, verbose=False
        )
        sizes.append(os.path.getsize(tmp_path / each / "model.tflite"))
        assert manifest["precision"] == each
    assert sizes[1] < most * sizes[0]


def test_constant_waves_are_not_rounded(tmp_path):
    """The weights after the features are, so the file is smaller."""

    def both(samples):
        features = kt.LogMel(40, frames=5)(samples)
        return {"features": features, "y": layers.Dense(64)(features)}

    model = exports.built(both, None)
    quiet = np.random.default_rng(5).normal(0, 1e-3, (2, 720)).astype("float32")
    quiet[:, ::9] *= 300
    manifest = export_litert(model, tmp_path / "out", precision="int8", verbose=False)
    assert manifest["precision"] == "int8"
    session = open_session(read_artefact(tmp_path / "out"), threads=1)
    found, rounded = session.run(["features", "y"], {"x": quiet})
    expected = model(quiet)
    np.testing.assert_allclose(found, expected["features"], atol=1e-3)
    assert np.abs(rounded - expected["y"]).max() > 1e-3


def test_a_precision_without_effect_is_told(tmp_path):
    model = exports.built(layers.Dense(2), 3)
    with pytest.warns(UserWarning, match="gave no smaller file"):
        manifest = export_litert(model, tmp_path / "out", precision="int8", verbose=False)
    assert manifest["precision"] == "float32"
    with pytest.raises(ValueError, match=r"one of \('float32', 'float16', 'int8'\)"):
        export_litert(model, tmp_path / "out", precision="int16x8")


# Refusals


@pytest.mark.parametrize(
    "name, operation",
    [
        ("Atan", keras.ops.arctan),
        full("Erfinv", lambda x: keras.ops.erfinv(keras.ops.tanh(x) * 0.5)),
    ],
)
def test_an_operator_that_litert_lacks_is_named(name, operation, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    with pytest.raises(ExportError, match=rf"no built-in operator for {name}, such as {name}\("):
        model = exports.built(exports.Function(operation), None, 3)
        export_litert(model, tmp_path / "out", verbose=False)
    assert [*tmp_path.iterdir()] == [tmp_path / "out"] and not [*(tmp_path / "out").iterdir()]
    assert "error:" not in capfd.readouterr().err


def test_missing_packages_are_named_with_the_command(monkeypatch, tmp_path):
    with monkeypatch.context() as patched:
        patched.setattr(litert_model.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"pip install '.*\[train,litert\]"):
            export_litert(exports.shared_model(), tmp_path / "out", search=SEARCH)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.delitem(
        sys.modules, "keras_transformer.export.runtime.litert_session", raising=False
    )
    with pytest.raises(ImportError, match=r"pip install '.*\[serve-litert\]"):
        Translator(artefact())


@pytest.mark.parametrize("options", [{"providers": ["CPUExecutionProvider"]}, {"arena": False}])
def test_options_of_onnx_runtime_are_refused(options):
    with pytest.raises(ProviderError, match="options of ONNX Runtime"):
        Translator(artefact(), **options)
    with pytest.raises(ValueError, match="`threads` must be at least 1"):
        Translator(artefact(), threads=0)


def other(data):
    return (artefact(exports.GREEDY, options=("target_prefix",)) / "model.tflite").read_bytes()


@pytest.mark.full("other-changes1-The files belong to different artefacts")
@pytest.mark.parametrize(
    "damage, changes, message",
    [
        (lambda data: data[: len(data) // 2], {}, "ai-edge-litert .* cannot run"),
        (other, {}, "The files belong to different artefacts"),
        (lambda data: b"TFL3" * 99, {}, "cannot run"),
        (bytes, {"engine": "tract"}, "engine is 'tract'"),
        (bytes, {"engine": "onnxruntime"}, "opsets is None"),
        (bytes, {"opsets": {"": 17}}, "opsets is"),
        (bytes, {"layout": "steps"}, "only ONNX files have a layout"),
    ],
)
def test_a_damaged_file_and_a_manifest_of_another_engine_are_refused(
    copy, damage, changes, message
):
    """The checksums are valid."""
    model, path = copy / "model.tflite", copy / "artefact.json"
    model.write_bytes(damage(model.read_bytes()))
    manifest = {**manifests.unseal(path.read_bytes()), **changes}
    manifest["files"] |= {"model.tflite": manifests.digest(model)}
    manifest["checksum"] = manifests.checksum(manifest)
    path.write_text(manifests.json.dumps(manifest, indent=2) + "\n")
    with pytest.raises(ArtefactError, match=message):
        Translator(copy)


def test_rows_that_fail_do_not_affect_others(copy):
    translator = Translator(copy, threads=1)
    ids = np.array([[exports.VOCAB + 9, 3]], "int32")
    with pytest.raises(RuntimeError):
        translator.session.run(None, {"source_ids": ids})
    with pytest.raises(ValueError):
        translator.session.run(None, {"source_ids": ids, "other": ids})
    empty = {"source_ids": np.zeros((0, 5), "int32"), "max_length": np.zeros(0, "int32")}
    ids, scores = translator.session.run(["token_ids", "scores"], empty)
    assert ids.shape[:2] == scores.shape == (0, 3)
    good, long = translator.results(["two words", "dog " * 600])
    assert long.error and "512" in long.error and good.error is None
    expected = Translator(artefact(), threads=1).translate(["two words"])
    assert [good.text] == expected


def test_the_check_and_triton_know_the_engine(capsys, tmp_path):
    assert check(artefact()) == 0
    assert capsys.readouterr().out == "verdict: serves on LiteRT\n"
    assert check(artefact(), ["CPUExecutionProvider"]) == 2
    with pytest.raises(ExportError, match="exported for litert, and Triton's backend is ONNX"):
        export.export_triton(artefact(), tmp_path / "repository")


SERVE = """
import sys
sys.modules["onnxruntime"] = None
from keras_transformer.export.runtime.__main__ import main
main(sys.argv[1:])
assert sys.modules.get("tensorflow") is None
"""


def test_the_command_line_needs_neither_onnx_runtime_nor_tensorflow():
    environment = {**os.environ, "KERAS_TRANSFORMER_SERVES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(artefact()), "--threads", "1"],
        input="two words\n",
        capture_output=True,
        text=True,
        env=environment,
    )
    expected = Translator(artefact(), threads=1).translate(["two words"])
    assert done.stdout.splitlines() == expected, done.stderr


# Operators

X = np.arange(24, dtype="int32").reshape(2, 3, 4)
PLACES = {
    "new axes between": lambda x: x[:, None, :, None],
    "an index beside a new axis": lambda x: x[1, None, :, 2],
    "an ellipsis": lambda x: x[None, ..., 1:3, tf.newaxis],
    "a reversed axis": lambda x: x[:, ::-1, None],
    "no new axis": lambda x: x[:, 1:],
}


def portable(function, *specs):
    """Returns the concrete function without operators that LiteRT lacks, and its operations."""
    with portable_operators():
        graph = tf.function(function, autograph=False).get_concrete_function(*specs)
    return graph, graph.graph.get_operations()


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("array", [X, X % 3 == 0], ids=["integers", "booleans"])
def test_slices_with_new_axes_are_unchanged(name, array):
    take, x = PLACES[name], tf.constant(array)
    graph, operations = portable(take, tf.TensorSpec([None] * 3, x.dtype))
    np.testing.assert_array_equal(graph(x), take(x))
    assert not any(op.get_attr("new_axis_mask") for op in operations if "Slice" in op.type)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_the_last_update_of_a_row_counts(dtype):
    """Infinite numbers stay, too. The converter's own graph adds up equal places."""
    table = np.array([[1, 2], [3, 4], [0, 1]]).astype(dtype)
    if dtype == "float32":
        table[1] = -np.inf
    places = np.array([[[2, 0]], [[0, 1]], [[2, 0]]])
    new = np.array([[7], [0], [7]]).astype(dtype)
    specs = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in (table, places, new)]
    specs[1] = tf.TensorSpec([None, None, 2], tf.int64)
    graph, operations = portable(tf.tensor_scatter_nd_update, *specs)
    expected = tf.tensor_scatter_nd_update(table, places, new)
    np.testing.assert_array_equal(graph(*map(tf.constant, (table, places, new))), expected)
    assert "TensorScatterUpdate" not in {op.type for op in operations}


def test_integers_are_divided_and_raised_exactly_or_not_at_all():
    numbers = tf.constant([-7, 2**31 - 2, 2**31 + 5, 2**40 + 3], tf.int64)
    exponents = tf.constant([0, 1, 40, MOST_POWER], tf.int64)

    def compute(x, exponent):
        small = x % (2**31 - 1)
        return small // 7, x // 7, tf.constant(31, tf.int64) ** exponent

    graph, operations = portable(compute, tf.TensorSpec([None], tf.int64), exponents)
    for found, expected in zip(graph(numbers, exponents), compute(numbers, exponents), strict=True):
        np.testing.assert_array_equal(found, expected)
    kinds = [(op.type, op.inputs[0].dtype) for op in operations if op.type in ("FloorDiv", "Pow")]
    assert sorted(kinds, key=str) == [("FloorDiv", tf.int32), ("FloorDiv", tf.int64)]


def test_the_reciprocal_root_of_zero_is_infinite(tmp_path):
    """An empty sentence has a vector of zeros, also after its normalisation."""
    model = exports.built(
        lambda x: {"unit": layers.UnitNormalization()(x), "root": keras.ops.rsqrt(x)}, 3
    )
    rows = np.array([[0, 0, 0], [0, 1, 4]], "float32")
    export_litert(model, tmp_path / "out", samples=[{"x": rows}], verbose=False)
    session = open_session(read_artefact(tmp_path / "out"), threads=1)
    unit, root = session.run(["unit", "root"], {"x": rows})
    np.testing.assert_allclose(unit[0], 0)
    np.testing.assert_allclose(root, [[np.inf] * 3, [np.inf, 1, 0.5]])
    _, operations = portable(lambda x: tf.math.rsqrt(x + 0.001), tf.TensorSpec([None], "float32"))
    assert "SelectV2" not in {op.type for op in operations}


class FaultyInterpreter:
    """Computes wrong numbers in a call that needs more memory than all calls before it."""

    def __init__(self):
        self.most, self.calls = 0, 0

    def get_signature_runner(self):
        return self

    def __call__(self, ids):
        self.calls += 1
        is_wrong, self.most = ids.size > self.most, max(ids.size, self.most)
        return {"sums": ids.sum(axis=1) + is_wrong}


def test_a_call_with_new_largest_sizes_runs_twice(tmp_path, monkeypatch):
    faulty = FaultyInterpreter()
    monkeypatch.setattr(litert_session, "Interpreter", lambda **options: faulty)
    (tmp_path / "model.tflite").write_bytes(b"")
    session = litert_session.LiteRTSession(tmp_path / "model.tflite")
    expected = 0
    for shape, runs in [
        ((2, 3), 2),
        ((2, 3), 1),
        ((1, 3), 1),
        ((1, 5), 2),
        ((2, 5), 2),
        ((2, 4), 1),
    ]:
        ids = np.ones(shape, "int32")
        np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], ids.sum(axis=1))
        expected += runs
        assert faulty.calls == expected
