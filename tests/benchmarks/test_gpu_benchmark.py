"""`benchmarks/gpu.py` on the CPU, and the counts behind figures of `benchmarks/training.py`."""

import collections
import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
LAYERS = {"MultiHeadAttention", "AdditiveAttention", "FeedForward", "TokenEmbedding"}
LAYERS |= {"SinusoidalPositionEncoding", "LearnedPositionEncoding", "RotaryPositionEncoding"}
LAYERS |= {"EncoderBlock", "DecoderBlock", "TransformerEncoder", "CausalTransformer", "Transformer"}
in_miniature = pytest.mark.nightly


def run(path, *parts):
    """Runs parts of gpu.py in miniature on the CPU; returns the report and what was printed."""
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--quick"]
    command += ["--threads", "1", "--output", str(path), "--parts", *parts]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert path.exists(), result.stdout[-3000:] + result.stderr[-3000:]
    found = json.loads(path.read_text("utf-8"))
    assert result.returncode == 0, json.dumps(found["parts"], indent=1)[-5000:]
    return found, result.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report that two calls made, the second of which finds the first one's part."""
    pytest.importorskip("tensorflow", reason="the artefact is made with TensorFlow")
    path = tmp_path_factory.mktemp("gpu") / "report.json"
    first, _ = run(path, "correctness")
    found, printed = run(path, "correctness", "serving", "strategy", "quality")
    assert found["parts"]["correctness"] == first["parts"]["correctness"]
    assert "## correctness" not in printed and "## serving" in printed
    return found


@in_miniature
def test_every_layer_is_right_in_every_precision(report):
    part = report["parts"]["correctness"]
    assert part["status"] == "done"
    found = {(row["layer"], row["precision"]): row for row in part["rows"]}
    assert set(found) == {
        (layer, precision) for layer in LAYERS for precision in ("float32", "bfloat16", "float16")
    }
    for row in found.values():
        assert 0 < row["relative_error"] < row["limit"] < 0.04


@in_miniature
def test_low_precisions_compute_in_low_precision(report):
    errors = {
        row["precision"]: row["units"]
        for row in report["parts"]["correctness"]["rows"]
        if row["layer"] == "Transformer"
    }
    for precision in ("bfloat16", "float16"):
        assert errors[precision] > 0.1, "less than a tenth of one rounding: float32 ran instead"


@in_miniature
def test_serving_ran_on_the_provider_and_the_engines_agree(report):
    part = report["parts"]["serving"]
    assert part["status"] == "done"
    rivals = {name for name in ("ctranslate2", "torch") if importlib.util.find_spec(name)}
    cells = {(row["beam"], row["batch"], row["engine"], row["rival"]) for row in part["rows"]}
    engines = ("ours", "two files")  # graphs need CUDA
    assert cells == {*itertools.product((1, 4), (1, 5), engines, rivals or {None})}
    same = collections.defaultdict(set)
    for row in part["rows"]:
        same[row["beam"], row["batch"]].add(row["tokens"])
    assert all(len(tokens) == 1 for tokens in same.values())
    for row in part["rows"]:
        assert row["provider"] == "CPUExecutionProvider"
        assert row["share"] == 1.0 and not row["cpu_products"] and row["nodes"] > 0
        assert row["tokens_per_second"] > 0
        assert row["agreement"] == (1.0 if row["rival"] else None)


@in_miniature
def test_fit_trains_under_a_strategy_and_a_missing_data_set_is_named(report):
    part = report["parts"]["strategy"]
    assert part["status"] == "done"
    pairs = [(row["engine"], row["rival"]) for row in part["rows"]]
    assert pairs == [("one replica", "ours"), ("two replicas", "ours")]
    assert all(row["tokens_per_second"] > 0 and row["speedup"] > 0 for row in part["rows"])
    quality = report["parts"]["quality"]
    assert quality["status"] == "left out" and "--multi30k" in quality["reason"]


@in_miniature
def test_the_report_names_versions_date_and_device(report):
    assert report["versions"]["onnxruntime"] and report["date"] and report["device"]
    assert report["machine"]["threads"] == 1


@pytest.fixture
def benchmark(monkeypatch):
    """A function that imports a benchmark by name, or skips if a package is missing."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip


@pytest.mark.full
def test_training_counts_the_operations_of_every_product(benchmark):
    """Counts by hand: one block on either side, D 2, F 3, V 5, one row of 7 tokens."""
    training = benchmark("training")
    size = dict(num_layers=1, d_model=2, num_heads=1, d_ff=3)
    projections = 3 * 4 * 7 * 2 * 2  # three attentions of four products (7, 2) (2, 2)
    scores = 3 * 2 * 7 * 7 * 2  # Q K^T (7, 2) (2, 7) and weights V (7, 7) (7, 2)
    networks = 2 * 2 * 7 * 2 * 3
    logits = 7 * 2 * 5
    multiplications = projections + scores + networks + logits
    assert training.step_flops(size, 5, batch=1, length=7) == 3 * 2 * multiplications


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of KerasHub's imports
def test_the_compared_models_have_the_same_parameters(benchmark):
    import keras

    from keras_transformer import Transformer

    size = dict(num_layers=2, d_model=22, num_heads=2, d_ff=19)
    task = dict(size=size, vocabulary=23, precision="float32")
    ours = Transformer(23, **size, use_bias=True).count_params()
    if keras.backend.backend() == "tensorflow":
        pytest.importorskip("keras_hub")
        model = benchmark("training_keras").keras_hub_model(task)
        ids = np.array([[5, 7, 3, 0]])
        assert model({"source_ids": ids, "target_ids": ids}).shape == (1, 4, 23)
        assert model.count_params() == ours
    torch = pytest.importorskip("torch", reason="the comparison needs PyTorch")
    model = benchmark("training_torch").torch_model(23, 4, **size)
    assert sum(weight.numel() for weight in model.parameters()) == ours
    ids = torch.tensor([[5, 7, 3, 0]])
    assert model(ids, ids).shape == (1, 4, 23)
