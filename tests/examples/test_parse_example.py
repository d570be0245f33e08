"""The script that learns to write brackets, at its shortest."""

import json
from types import SimpleNamespace

import pytest
from support.scripts import load

pytest.importorskip("tensorflow")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from keras_transformer.data.sets.trees import read_trees  # noqa: E402
from keras_transformer.export.runtime import Translator  # noqa: E402


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parse")
    load("parse").main(
        ["--epochs", "1", "--limit", "40", "--beam-width", "2", "--output", str(folder)]
    )
    return folder


def test_it_leaves_a_score(output):
    report = json.loads((output / "score.json").read_text("utf-8"))
    assert {"f1", "well-formed", "with a tree among the hypotheses"} <= report["score"].keys()
    assert all(0 <= value <= 1 for value in report["score"].values())
    assert 0.1 < report["baseline"]["f1 of one bracket a sentence"] < 0.9


def test_its_artefact_answers(output):
    (result,) = Translator(output / "onnx").n_best(["Anna sees the garden ."])
    assert len(result.texts) == 2 and result.error is None


def test_the_best_hypothesis_that_is_a_tree_counts():
    parse = load("parse")
    gold = read_trees("(S (NP (NN a)) (VP (VB b)))\n(S (NN a))")
    results = [
        # Not closed, then too many words, then right.
        SimpleNamespace(texts=("(S (NP XX )", "(S XX XX XX )", "(S (NP XX ) (VP XX ) )")),
        SimpleNamespace(texts=("(S XX XX )", "")),
    ]
    assert parse.best_trees(gold, results) == [gold[0], None]
    scores = parse.scores(gold, results)
    assert scores["well-formed"] == 0.5 and scores["well-formed, as many words"] == 0
    assert scores["f1 of the first hypothesis"] == 0
    assert (scores["precision"], scores["recall"]) == (1, 3 / 4)
    assert parse.flat_score(gold) == pytest.approx(2 * 2 / (4 + 2))
