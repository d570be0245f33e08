"""One call for every task: what opens an artefact, and what asks it."""

import copy
import pickle

import pytest
from support import array_search, artefacts, head_artefacts, seeded_artefact

from keras_transformer.export.runtime import (
    Generator,
    Predictor,
    Translator,
    answers,
    open_runner,
)

LINES = [artefacts.LINES[0], "", b"\xff"]


def test_the_manifest_decides_what_serves(folder, tokenizer, tmp_path):
    assert isinstance(open_runner(folder), Translator)
    assert isinstance(open_runner(seeded_artefact.write(tmp_path / "g", tokenizer)), Generator)
    classify = head_artefacts.write(tmp_path / "c", tokenizer, "classify")
    assert isinstance(open_runner(classify, threads=1), Predictor)


def test_answers_are_those_of_the_runner(folder, tokenizer, tmp_path):
    translator = open_runner(folder)
    assert list(answers(translator, LINES)) == translator.n_best(LINES)
    generator = open_runner(seeded_artefact.write(tmp_path / "g", tokenizer))
    assert list(answers(generator, LINES, seed=3)) == generator.n_best(LINES, 3)
    predictor = open_runner(head_artefacts.write(tmp_path / "c", tokenizer, "classify"))
    assert list(answers(predictor, LINES)) == predictor.predict(LINES)


def test_a_pickled_runner_opens_its_folder_again(folder, tokenizer, tmp_path, monkeypatch):
    made = {
        "translate": folder,
        "generate": seeded_artefact.write(tmp_path / "g", tokenizer),
        "classify": head_artefacts.write(tmp_path / "c", tokenizer, "classify"),
        "transcribe": array_search.write(tmp_path / "t", tokenizer),
    }
    for task, path in made.items():
        monkeypatch.chdir(path.parent)
        runner = open_runner(path.name, threads=1, arena=False)
        monkeypatch.chdir(tmp_path)
        again = pickle.loads(pickle.dumps(runner))
        assert type(again) is type(runner) and again.session is not runner.session
        items = ["[5]" if task == "transcribe" else LINES[0]]
        seed = 3 if task == "generate" else None
        assert list(answers(again, items, seed)) == list(answers(runner, items, seed))


def test_a_pickled_runner_opens_the_folder_that_a_link_led_to(tokenizer, tmp_path):
    other = artefacts.model(tokenizer.vocab_size, score=[-5.0, -7.0])
    artefacts.write(tmp_path / "here" / "onnx", tokenizer, other)
    artefacts.write(tmp_path / "real" / "onnx", tokenizer)
    (tmp_path / "real" / "sub").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "real" / "sub")
    runner = open_runner(tmp_path / "here" / "link" / ".." / "onnx")
    assert pickle.loads(pickle.dumps(runner)).n_best(LINES[:1]) == runner.n_best(LINES[:1])


def test_a_copy_shares_the_session(folder):
    runner = open_runner(folder)
    runner.name = "kept"
    copied = copy.copy(runner)
    assert copied is not runner and copied.session is runner.session and copied.name == "kept"
    assert copy.deepcopy(runner).session is not runner.session


def test_a_seed_is_refused_where_nothing_is_sampled(folder):
    with pytest.raises(ValueError, match="task 'translate' and the search .*which draw no random"):
        answers(open_runner(folder), LINES, seed=1)


def test_lengths_are_those_that_the_model_reads(folder, tokenizer):
    found = open_runner(folder).lengths(LINES)
    assert found == [len(tokenizer.encode(LINES[0])) + 1, 0, 0]
