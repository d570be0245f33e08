"""The command line with artefacts of every task: what is written for a line."""

import json
import re

import pytest
from support import array_search, artefacts, head_artefacts, runtime_process, seeded_artefact

from keras_transformer.export.runtime import Generator, Predictor

LINES = ["two dogs\ta man", "", "a man\trides a bicycle"]


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    """A function from a name to the folder of its artefact, each made once."""
    folders = {}

    def folder(name):
        if name not in folders:
            path, read = tmp_path_factory.mktemp(name), None if name == "series" else tokenizer
            if name == "generate":
                folders[name] = seeded_artefact.write(path, tokenizer)
            else:
                folders[name] = head_artefacts.write(path, read, name)
        return folders[name]

    return folder


def answered(folder, lines, *arguments):
    """Lines that the command writes, when it answers all."""
    data = "".join(f"{line}\n" for line in lines).encode()
    status, output, errors = runtime_process.translate(data, folder, "--quiet", *arguments)
    assert (status, errors) == (0, "")
    return output.removesuffix("\n").split("\n")


def test_a_class_is_written_with_its_probability(made):
    results = Predictor(made("classify")).predict(LINES)
    rows = [f"{result.label}\t{result.probability:.4f}" for result in results]
    assert answered(made("classify"), LINES) == [rows[0], "", rows[2]]
    pairs = zip(results[2].labels, results[2].probabilities, strict=True)
    rows = [f"1\t{probability:.4f}\t{label}" for label, probability in pairs]
    assert answered(made("classify"), LINES[2:], "--n-best", 2) == rows[:2]


def test_tags_are_written_behind_their_words(made):
    result = Predictor(made("tag")).predict(["two dogs"])[0]
    assert answered(made("tag"), ["", " two  dogs"]) == ["", "two/{} dogs/{}".format(*result.tags)]


def test_an_answer_is_written_for_question_and_passage(made):
    results = Predictor(made("answer")).predict(LINES)
    assert answered(made("answer"), LINES) == [result.text for result in results]
    assert all(results[i].text for i in (0, 2))


def test_vectors_and_outputs_are_written_as_json(made):
    results = Predictor(made("embed")).predict(LINES)
    rows = answered(made("embed"), LINES)
    assert json.loads(rows[0]) == results[0].vector.tolist() and rows[1] == ""
    rows = answered(made("series"), ["[[1, 2], [3, 4]]", "", '{"series": [[5, 6]]}'])
    assert json.loads(rows[0]) == {"total": [4, 6], "doubled": [[2, 4], [6, 8]]}
    assert rows[1] == "" and json.loads(rows[2])["total"] == [5, 6]


def test_texts_and_arrays_are_read_as_json_objects(made):
    data = b'{"source_ids": "two dogs", "numbers": [1, 2]}\nhi\n\n{"source_ids": 7}\n'
    status, output, errors = runtime_process.translate(data, made("mixed"), "--quiet")
    first, *rest = output.split("\n")
    (result,) = Predictor(made("mixed")).predict([{"source_ids": "two dogs", "numbers": [1, 2]}])
    assert json.loads(first) == result.vector.tolist() and rest == [""] * 4 and status == 1
    assert "line 2 is not answered: not JSON" in errors and "Traceback" not in errors
    assert "line 4 is not answered: An input must be a string" in errors


def test_json_has_all_that_a_result_has_in_python(made):
    rows = answered(made("answer"), LINES, "--json")
    results = Predictor(made("answer")).predict(LINES)
    assert [json.loads(row) for row in rows] == [result._asdict() for result in results]
    (row,) = answered(made("generate"), ["two dogs"], "--json", "--seed", 3)
    (result,) = Generator(made("generate")).n_best(["two dogs"], seed=3)
    assert json.loads(row) == json.loads(json.dumps(result._asdict()))
    assert [json.loads(row) for row in answered(made("embed"), [""], "--json")] == [
        {"vector": None, "error": None}
    ]


def test_a_prompt_is_continued(made, tokenizer):
    lines = ["two dogs", "a man"]
    results = Generator(made("generate")).n_best(lines, seed=0)
    assert answered(made("generate"), lines, "--seed", 0) == lines
    full = [result.full_text for result in results]
    assert answered(made("generate"), lines, "--seed", 0, "--with-prompt") == full
    rows = answered(made("generate"), lines[:1], "--seed", 0, "--n-best", 2, "--with-prompt")
    assert rows == [
        f"1\t{score:.4f}\t{text}"
        for score, text in zip(results[0].scores, results[0].full_texts, strict=True)
    ]
    # Each run draws its seed. A long line, for some of its ids spell no character.
    texts = {answered(made("generate"), artefacts.LINES[4:5])[0] for _ in range(3)}
    assert len(texts) > 1


def test_lines_without_an_answer_are_reported_by_number(made):
    data = b"two dogs\n\n\xff\n" + b"dogs " * 89 + b"\nwhat ?\ttwo dogs\n"
    status, output, errors = runtime_process.translate(data, made("answer"), "--quiet")
    assert status == 1
    rows = output.split("\n")
    assert rows[:4] == [""] * 4 and rows[4] and rows[5:] == [""]
    told = errors.splitlines()
    assert told[0] == "line 1 is not answered: no TAB between two texts"
    assert told[1].startswith("line 3 is not answered: not UTF-8 at byte 1")
    assert told[3] == "3 lines were not answered"
    status, _, errors = runtime_process.translate(b"\xff\n", made("generate"), "--quiet")
    assert status == 1 and errors.startswith("line 1 is not continued: not UTF-8")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "classify",
            ("--seed", 0),
            "--seed goes with the tasks generate, transcribe; .* 'classify'",
        ),
        ("classify", ("--with-prompt",), "--with-prompt goes with the tasks generate"),
        (
            "tag",
            ("--n-best", 2),
            "--n-best goes with the tasks translate, generate, transcribe, classify",
        ),
        ("classify", ("--n-best", 2, "--json"), "--json writes all hypotheses and labels"),
        ("generate", ("--seed", -1), "`seed` must be from 0 to 2147483646, got -1"),
        ("generate", ("--seed", "x"), "argument --seed: invalid int value"),
    ],
)
def test_options_of_another_task_are_refused(made, name, arguments, message):
    status, output, errors = runtime_process.translate(b"a\n", made(name), *arguments)
    assert (status, output) == (2, "")
    assert re.search(message, errors) and "Traceback" not in errors


def test_arrays_are_transcribed(tmp_path, tokenizer):
    folder = array_search.write(tmp_path, tokenizer)
    ids = tokenizer.encode("two dogs")
    status, output, errors = runtime_process.translate(f"{ids}\n\n7\n".encode(), folder, "--quiet")
    assert (status, output) == (1, "two dogs\n\n\n")
    assert errors.startswith("line 3 is not transcribed: 'codes' has the shape ()")
