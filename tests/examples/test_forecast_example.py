"""The shortest run of series to their next days: what it leaves behind."""

import json

import numpy as np
import pytest
from support import scripts

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

SIZES = dict(past=48, future=24)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("forecast")
    sizes = [text for name, size in SIZES.items() for text in (f"--{name}", str(size))]
    arguments = ["--epochs", "1", "--limit", "20", "--layers", "1", *sizes, "--output", str(path)]
    scripts.load("forecast").main(arguments)
    return path


@pytest.mark.full
def test_the_score_stands_beside_simpler_forecasts(run):
    report = json.loads((run / "score.json").read_text("utf-8"))
    assert sorted(report["score"]) == ["mae", "mse"] and report["data"] == "made"
    assert sorted(report["baseline"]) == ["linear, mse", "the last day again, mse"]
    assert all(0 < error < 100 for error in (report["score"] | report["baseline"]).values())
    assert report["epochs"] == 1 and report["artefact_bytes"] > 10_000
    assert (run / "forecast.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_the_score_is_the_artefacts(run):
    from support.sets.series import made_series

    from keras_transformer.export.runtime import Predictor

    before, after = made_series().windows(**SIZES, limit=20)["test"]
    results = Predictor(run / "onnx").predict(np.ascontiguousarray(before))
    found = np.stack([next(iter(result.arrays.values())) for result in results])
    error = float(np.square(found - after).mean())
    report = json.loads((run / "score.json").read_text("utf-8"))
    assert error == pytest.approx(report["score"]["mse"], rel=1e-5)


def test_the_past_must_be_whole_days(capsys):
    with pytest.raises(SystemExit):
        scripts.load("forecast").main(["--past", "100"])
    assert "--past must be whole days" in capsys.readouterr().err
