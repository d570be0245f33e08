"""Predictor: results are checked against values that the tokenizer alone determines."""

import json
import re

import numpy as np
import pytest
from helpers import artefacts, head_artefacts

from keras_transformer.export.runtime import (
    Answer,
    ArtefactError,
    Labels,
    Outputs,
    Predictor,
    Tags,
    Vector,
)
from keras_transformer.special_ids import END_ID

LINES = [" ".join(line.split()[:n]) for line in artefacts.LINES for n in (1, 3, 7)]


def row(tokenizer, line):
    return [*tokenizer.encode(line), END_ID]


def sum_and_count(tokenizer, line):
    ids = row(tokenizer, line)
    return np.float32([0.001 * sum(ids), 0.25 * len(ids)])


def softmax(numbers):
    shares = np.exp(np.float64(numbers))
    return shares / shares.sum()


# Classes


@pytest.mark.parametrize("tokens_per_batch", [1, 29, 2048])
def test_labels_are_sorted_by_probability(tokenizer, served, tokens_per_batch):
    results = served("classify").predict(LINES, tokens_per_batch)
    for line, result in zip(LINES, results, strict=True):
        numbers = softmax([*sum_and_count(tokenizer, line), 0.0])
        order = np.argsort(-numbers)
        assert result.labels == tuple(np.array(["sum", "count", "none"])[order])
        np.testing.assert_allclose(result.probabilities, numbers[order], rtol=1e-5)
        assert (result.label, result.error) == (result.labels[0], None)
    assert len({result.label for result in results}) > 1


def test_results_do_not_depend_on_other_inputs(served):
    predictor = served("classify")
    alone = [predictor.predict([line])[0] for line in LINES]
    assert predictor.predict(LINES[::-1]) == alone[::-1]
    assert list(predictor.predict_stream(iter(LINES), read_ahead=2)) == alone


EMPTY = {"classify": Labels(), "tag": Tags(), "embed": Vector(), "echo": Outputs()}


@pytest.mark.parametrize("line", ["", " \t", "\n", b"", "\0a"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_line_without_text_has_an_empty_result(served, name, line):
    empty, full = served(name).predict([line, "a man"])
    assert empty == EMPTY[name] and type(full) is type(empty) and full.error is None
    assert served(name).predict([]) == list(served(name).predict_stream([])) == []


def test_empty_labels_have_a_best_one():
    assert (Labels().label, Labels().probability) == ("", 0)


@pytest.mark.parametrize("name", ["classify", "tag", "embed", "pair"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("dogs\t " * 89, "tokens, special ones included, where this artefact takes at most 61"),
        (b"\tcaf\xe9 noir", "not UTF-8 at byte 5"),
        ("\tdog \ud800 run", "half a surrogate pair at character 6"),
    ],
)
def test_a_bad_line_has_an_error_and_leaves_the_others_alone(served, name, line, reason):
    good = "two dogs\ta man"
    first, bad, last = served(name).predict([good, line, good])
    assert reason in bad.error
    assert first.error is last.error is None and str(first) == str(last)


# Tags


def test_each_word_gets_the_tag_of_its_first_piece(tokenizer, served):
    words = ["two", "dogs", "fahrrad!", "quick"]
    expected = tuple("abc"[tokenizer.encode(word)[0] % 3] for word in words)
    for item in (words, tuple(words), " ".join(words), f" {'  '.join(words)}\r\n".encode()):
        (result,) = served("tag").predict([item])
        assert result[:2] == (tuple(words), expected)
        np.testing.assert_allclose(result.probabilities, np.e / (np.e + 2), rtol=1e-6)


def test_a_list_of_words_is_not_split_further(tokenizer, served):
    (result,) = served("tag").predict([["two dogs", "", "a"]])
    assert result.words == ("two dogs", "", "a")
    assert result.tags[1] == "b"  # the empty word has the unknown id, 1


# Answers


def best_answers(tokenizer, question, passage, most=3):
    """Returns the best score and its texts, found by trying all pairs."""
    ids, spans = tokenizer.encode_with_spans(passage)
    before = row(tokenizer, question)
    whole = np.array([*before, *ids, END_ID])
    segments = np.where(np.arange(len(whole)) < len(before), 1, 2)
    start, end = softmax(0.001 * whole), softmax(0.1 * (whole % 3 + segments))
    scores = {
        (i, j): start[len(before) + i] * end[len(before) + j]
        for i in range(len(ids))
        for j in range(i, min(len(ids), i + most))
    }
    best = max(scores.values())
    pairs = [pair for pair, score in scores.items() if score > best * (1 - 1e-6)]
    return best, {passage[spans[i][0] : spans[j][1]].strip() for i, j in pairs}


@pytest.mark.parametrize("passage", [*artefacts.LINES, "  ein  mann 😀 fährt é€ ", "a"])
def test_the_answer_is_the_likeliest_span_of_the_passage(tokenizer, served, passage):
    question = "what rides ?"
    score, texts = best_answers(tokenizer, question, passage)
    for item in ((question, passage), [question, passage], f"{question}\t{passage}"):
        (result,) = served("answer").predict([item])
        assert result.text in texts and result.error is None
        assert passage[result.start : result.end] == result.text
        np.testing.assert_allclose(result.score, score, rtol=1e-5)


def test_questions_need_a_passage(served):
    *blank, line, three = served("answer").predict(
        ["", ("", ""), ("what ?", " "), "what ?", ["a", "b", "c"]]
    )
    assert blank == [Answer()] * 3
    assert line.error == "no TAB between two texts"
    assert three.error == "3 texts, where this model reads 2"


# Vectors


def test_vectors_of_rows_and_tokens_are_returned(tokenizer, served):
    pairs = zip(served("embed").predict(LINES), served("embed_tokens").predict(LINES), strict=True)
    for line, (result, tokens) in zip(LINES, pairs, strict=True):
        np.testing.assert_allclose(result.vector, sum_and_count(tokenizer, line), rtol=1e-6)
        assert tokens.vector[:, 0].tolist() == row(tokenizer, line)


def test_rows_are_not_padded_if_padding_changes_results(tokenizer, served, tmp_path):
    expected = [np.float32(np.mean(row(tokenizer, line))) for line in LINES]
    results = served("embed_mean").predict(LINES)
    np.testing.assert_allclose([result.vector[0] for result in results], expected, rtol=1e-6)
    folder = head_artefacts.write(tmp_path, tokenizer, "embed_mean", ignores_padding=True)
    padded = Predictor(folder, threads=1).predict(LINES)
    assert [one.vector for one in padded] != [one.vector for one in results]  # so it prevents that


def test_two_texts_go_into_two_inputs(tokenizer, served):
    pairs = [("two dogs", "a man"), ("rides", "a man rides a bicycle")]
    expected = [sum(row(tokenizer, a)) - sum(row(tokenizer, b)) for a, b in pairs]
    by_name = [{"source_ids": a, "other_ids": b} for a, b in pairs]
    for items in (pairs, ["\t".join(pair) for pair in pairs], by_name):
        assert [result.vector[0] for result in served("pair").predict(items)] == expected


GOOD = {"source_ids": "two dogs", "numbers": [1, 2]}
BOTH = r"reads a dict of \['numbers', 'source_ids'\], and got"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({**GOOD, "numbers": [1]}, r"'numbers' has the shape \(1,\)"),
        ({"numbers": [1, 2]}, rf"{BOTH} \['numbers'\]"),
        ({"source_ids": "a"}, rf"{BOTH} \['source_ids'\]"),
        ("two dogs", "not JSON"),
        ('["two dogs", [1, 2]]', "dict of"),
        ('{"source_ids": 7, "numbers": [1, 2]}', "must be a string"),
        ('{"source_ids": ["a", "b"], "numbers": [1, 2]}', "2 texts, where this model reads 1"),
        ('{"source_ids": "a"}', rf"{BOTH} \['source_ids'\]"),
        ('{"source_ids": "a", "numbers": {"b": 1}}', "has the shape"),
        ('{"source_ids": "a", "numbers": [1, null]}', "dtype object"),
        ('{"source_ids": "a", "numbers": [1, 1e400]}', "'1e400' is not a finite number"),
    ],
)
def test_texts_and_arrays_are_read_by_name_or_from_json_lines(tokenizer, served, item, reason):
    line, blank = json.dumps(GOOD), {**GOOD, "source_ids": " "}
    one, two, bad, *blanks, last = served("mixed").results(
        [GOOD, line, item, blank, " \n", ("\ufeff" + line).encode()]
    )
    expected = sum_and_count(tokenizer, "two dogs") + [1, 2]
    for result in (one, two, last):
        np.testing.assert_allclose(result.vector, expected, rtol=1e-6)
    assert bad.vector is None and re.search(reason, bad.error)
    assert blanks == [Vector()] * 2


# Plain outputs


def test_models_without_a_head_return_unpadded_outputs(tokenizer, served):
    results = served("echo").predict(LINES)
    assert [r.arrays["ids"].tolist() for r in results] == [row(tokenizer, line) for line in LINES]


# Invalid inputs and artefacts


LIST, TEXT = r"`inputs` must be an iterable .*\[input\]", "An input must be a string, or a list or"
DICT = r"dict of \['source_ids', 'numbers'\], or its JSON; got 7"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("classify", "a man", LIST),
        ("classify", b"a man", LIST),
        ("classify", {"source_ids": "a"}, LIST),
        ("classify", ["a man", 7], TEXT),
        ("classify", ["a man", None], TEXT),
        ("classify", ["a man", ["a", 7]], TEXT),
        ("mixed", [7], DICT),
    ],
)
def test_invalid_inputs_are_refused(served, name, inputs, message):
    with pytest.raises(TypeError, match=message):
        served(name).predict(inputs)


def test_answers_need_a_tokenizer(tmp_path):
    with pytest.raises(ArtefactError, match="task 'answer' and reads no text. Export the model"):
        Predictor(head_artefacts.write(tmp_path, None, "answer"))


def test_non_finite_outputs_are_an_error(served):
    (result,) = served("infinite").predict(["a man"])
    assert "the model gave numbers that are not finite" in result.error
