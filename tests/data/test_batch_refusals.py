"""Data and options that no batches can be made of, a table: each error names what is wrong."""

import numpy as np
import pytest
from helpers.texts import CORPUS

pytest.importorskip("tensorflow")

import keras_transformer as kt  # noqa: E402

TOKENIZER = kt.Tokenizer.train(CORPUS, 307)
CHARACTERS = kt.Tokenizer.train(CORPUS, 307, model_type="char")
LETTERS = kt.Tokenizer.train(["a red hat"], 20, model_type="char", byte_fallback=False)
TEXT = ["a text of sixty characters, of which a model reads each one."]
ONE, TWO = ["a man"], ["a man", "a hat"]
FRAMES, WIDE = np.ones((3, 2)), np.ones((3, 4))
IMAGE = np.ones((6, 4, 2))
NAMED = {"label_names": ["a", "b"]}
ZERO = {"fill": 0.0}
GLOSSARY = {"glossary": kt.Glossary({})}


def rows(function, *cases, tokenizer=TOKENIZER):
    """Returns a case for each list of data, options, error and message."""
    for *data, options, error, message in cases:
        name = f"{function.__name__}: {message}"
        yield pytest.param(function, [*data, tokenizer], options, error, message, id=name)


CASES = [
    *rows(
        kt.translation_batches,
        (ONE, ONE, {"tokens_per_batch": 0}, ValueError, "must be an int of at least 1, got 0"),
        (ONE, ONE, {"tokens_per_batch": 8.5}, ValueError, "an int of at least 1, got 8.5"),
        (ONE, ONE, {"batch_multiple": -2}, ValueError, "batch_multiple must be .* got -2"),
        (ONE, ONE, {"bucket_boundaries": []}, ValueError, r"increasing positive ints .* got \[\]"),
        (ONE, ONE, {"bucket_boundaries": [9, 9]}, ValueError, r"positive ints .* got \[9, 9\]"),
        ([], [], {}, ValueError, "no pair is left of 0"),
        (["", "a"], ["a", " "], {}, ValueError, "no pair is left of 2: 2 empty"),
        (TWO, TWO, {"alignments": ["0-0", "0:1"]}, ValueError, "alignments, line 2: .*'0:1'"),
        (TWO, TWO, {"alignments": ["0-0", "0-2"]}, ValueError, "line 2: .* out of range.* 2 words"),
        (TWO, TWO, {"alignments": ["0-0"]}, ValueError, "2 pairs, 1 alignments"),
        (ONE, ONE, {"alignments": ["0-0"], **GLOSSARY}, ValueError, "`glossary` or `alignments`, "),
    ),
    *rows(
        kt.translation_batches,
        (ONE, ONE, GLOSSARY, ValueError, "no pieces for the marks"),
        tokenizer=LETTERS,
    ),
    *rows(
        kt.classification_batches,
        (TWO, ["x"], {}, ValueError, "there are 2 texts, 1 labels"),
        ("good", ["x"], {}, TypeError, "`texts` must be an iterable of strings"),
        ([""], ["x"], {}, ValueError, "no text is left of 1: 1 empty"),
        (TWO, ["a", "z"], NAMED, ValueError, r"label 1 is 'z', but the labels are \['a', 'b'\]"),
        (TWO, [0, 5], NAMED, ValueError, "label 1 is 5, but the labels are"),
        (TWO, [0, -1], NAMED, ValueError, "label 1 is -1, but the labels are"),
        (ONE, ["a"], {"label_names": ["a", "a"]}, ValueError, "label_names must differ"),
        (TWO, ["a", 1], {}, TypeError, "got 1 of type int as label 1"),
        (TWO, [1, "a"], {}, TypeError, "got 'a' of type str as label 1"),
        (TWO, [0, 0.5], {}, TypeError, "got 0.5 of type float as label 1"),
        (TWO, ["a", None], {}, TypeError, "got None of type NoneType as label 1"),
    ),
    *rows(
        kt.tagging_batches,
        ([["a"], TWO], [["a"], ["a"]], NAMED, ValueError, "sentence 1 has 2 words and 1 tags"),
        ([["a"]], [["a"], ["a"]], NAMED, ValueError, "there are 1 sentences, 2 tags"),
        (ONE, [["a"] * 2], NAMED, TypeError, r"`sentences\[0\]` must be an iterable of strings"),
        ([TWO], [["a", "c"]], NAMED, ValueError, "label 1 is 'c'"),
        ([], [], NAMED, ValueError, "no sentence is left of 0"),
        ([ONE], [["a"]], {"sentence_labels": TWO}, ValueError, "1 sentences, 2 sentence_labels"),
    ),
    *rows(
        kt.pair_batches,
        (TWO, ONE, {}, ValueError, "line counts differ"),
        (TWO, TWO, {"labels": [1]}, ValueError, "there are 2 texts, 1 labels"),
        (TWO, TWO, {"static_shapes": True}, ValueError, "out static_shapes and batch_multiple"),
        (TWO, TWO, {"batch_multiple": 2}, ValueError, "leave out static_shapes and batch_multiple"),
    ),
    *rows(
        kt.answer_batches,
        (TWO, TWO, [(0, 1), (3, 3)], {}, ValueError, r"answer 1 is \(3, 3\), which is no"),
        (TWO, TWO, [(0, 1), (-1, 2)], {}, ValueError, r"answer 1 is \(-1, 2\), which is no"),
        (TWO, TWO, [(0, 1), (4, 1000)], {}, ValueError, r"answer 1 is \(4, 1000\), which is no"),
        (TWO, TWO, [(0, 1), (4, 2)], {}, ValueError, r"answer 1 is \(4, 2\), which is no"),
    ),
    *rows(
        kt.language_model_batches,
        (TEXT, {"window": 1000}, ValueError, r"has \d+ tokens, too few for a window of 1000"),
        ([], {"window": 5}, ValueError, "has 0 tokens, too few for a window of 5"),
        (TEXT, {"window": 0}, ValueError, "window must be an int of at least 1, got 0"),
        (TEXT, {"window": 50, "tokens_per_batch": 49}, ValueError, "A window of 50 tokens does"),
        (TEXT, {"window": 5, "max_length": 9}, ValueError, "max_length and bucket_boundaries do"),
        (TEXT, {"window": 5, "sampling_alpha": 0.1}, ValueError, "sampling_alpha, .* do not work"),
        tokenizer=CHARACTERS,
    ),
    *rows(
        kt.feature_batches,
        (
            [FRAMES, WIDE],
            [0, 1],
            {},
            ValueError,
            r"1 has the shape \(3, 4\), the first one \(3, 2\)",
        ),
        ([np.zeros(3)], [0], {}, ValueError, r"number 0 has the shape \(3,\)"),
        ([FRAMES, FRAMES * np.nan], [0, 1], {}, ValueError, "number 1 has numbers that are not"),
        ([FRAMES] * 3, [0], {}, ValueError, "there are 3 features, 1 targets"),
        tokenizer=None,
    ),
    *rows(
        kt.feature_batches,
        ([FRAMES], ONE, {"name": "target_ids"}, ValueError, "name must differ from 'target_ids'"),
    ),
    *rows(
        kt.image_batches,
        ([IMAGE, np.ones((5, 4, 2))], [0, 1], {}, ValueError, r"\(5, 4, 2\), the first one"),
        ([IMAGE, np.ones((6, 4, 3))], [0, 1], {}, ValueError, r"1 has the shape \(6, 4, 3\)"),
        ([np.ones(3), IMAGE], [0, 1], {}, ValueError, r"number 0 has the shape \(3,\)"),
        ([IMAGE, IMAGE * np.nan], [0, 1], {}, ValueError, "number 1 has numbers that are not"),
        ([IMAGE, 0 * IMAGE], [0, 1], ZERO, ValueError, "number 1 has pixels of the value fill"),
        ([IMAGE], [0, 1], {}, ValueError, "there are 1 images, 2 targets"),
        ([IMAGE], [0], {"name": "x"}, ValueError, "name='x' has no effect without tokenizer"),
        tokenizer=None,
    ),
]


@pytest.mark.parametrize(("function", "data", "options", "error", "message"), CASES)
def test_data_and_options_of_no_batches_are_refused(function, data, options, error, message):
    with pytest.raises(error, match=message):
        function(*data, **options)
