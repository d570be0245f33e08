"""The script that learns to write brackets, at its shortest."""

import json

import pytest
from support.scripts import load

pytest.importorskip("tensorflow")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from support.sets.trees import from_brackets, read_trees, tagged_words  # noqa: E402

from keras_transformer.export.runtime import Translator  # noqa: E402


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parse")
    load("parse").main(
        ["--epochs", "1", "--limit", "40", "--beam-width", "2", "--output", str(folder)]
    )
    return folder


@pytest.mark.full
def test_it_leaves_a_score(output):
    report = json.loads((output / "score.json").read_text("utf-8"))
    score = report["score"]
    assert all(0 <= value <= 1 for value in score.values())
    assert score["well-formed"] == score["well-formed, as many words"] == 1  # after an epoch
    assert report["others"]["without the grammar"]["well-formed"] < 1
    assert score["f1"] > 0
    assert 0.1 < report["baseline"]["f1 of one bracket a sentence"] < 0.9


@pytest.mark.full
def test_its_artefact_answers_with_trees(output):
    sentence = "Anna sees the garden ."
    (result,) = Translator(output / "onnx").n_best([sentence])
    assert len(result.texts) == 2 and result.error is None
    for line in result.texts:
        assert len(tagged_words(from_brackets(line))) == len(sentence.split())


def test_lines_that_are_no_tree_of_the_sentence_count_as_missed():
    parse = load("parse")
    gold = read_trees("(S (NP (NN a)) (VP (VB b)))\n(S (NN a))")
    scores = parse.scores(gold, ["(S (NP XX ) (VP XX ) )", "(S XX XX )"])
    assert scores["well-formed"] == 1 and scores["well-formed, as many words"] == 0.5
    assert (scores["precision"], scores["recall"]) == (1, 3 / 4)
    assert parse.scores(gold, ["(S (NP XX )", ""])["well-formed"] == 0
    assert parse.flat_score(gold) == pytest.approx(2 * 2 / (4 + 2))
