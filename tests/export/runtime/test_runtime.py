"""The runtime against what a tokenizer alone says that its translations must be."""

import itertools
import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import artefacts, runtime_process

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import Translation, Translator

NO_TEXT = Translation(("",), (0.0,))


@pytest.fixture(scope="module")
def translator(folder):
    return Translator(folder, threads=1)


class Recorder:
    """A session that writes down the shapes of what it was fed."""

    def __init__(self, session):
        self.session, self.shapes = session, []

    def run(self, outputs, feed):
        self.shapes.append(feed["source_ids"].shape)
        return self.session.run(outputs, feed)


def recording(folder):
    translator = Translator(folder, threads=1)
    translator.session = Recorder(translator.session)
    return translator


def expected(tokenizer, line):
    """`Translation` of a line that is fit to be translated, with text or without."""
    if not line.strip():
        return NO_TEXT
    return Translation(*artefacts.expected_hypotheses(tokenizer, line))


lines_of_text = st.lists(
    st.one_of(st.text("abdehinorst ,.ä", max_size=30), st.sampled_from(artefacts.LINES)),
    max_size=23,
)


@given(lines=lines_of_text, batch_tokens=st.integers(1, 211), read_ahead=st.integers(1, 29))
def test_every_line_gets_its_own_translation_in_order(
    tokenizer, translator, lines, batch_tokens, read_ahead
):
    wanted = [expected(tokenizer, line) for line in lines]
    assert translator.n_best(lines, batch_tokens) == wanted
    assert list(translator.n_best_stream(lines, batch_tokens, read_ahead)) == wanted
    best = [translation.texts[0] for translation in wanted]
    assert translator.translate(lines, batch_tokens) == best
    assert list(translator.translate_stream(lines, batch_tokens, read_ahead)) == best


def test_batches_hold_sentences_of_similar_length_within_their_bound(folder, tokenizer):
    translator = recording(folder)
    lines = [" ".join(["dogs"] * count) for count in (7, 1, 3, 5, 1, 2, 11, 3)]
    lengths = sorted(len(tokenizer.encode(line)) + 1 for line in lines)
    translator.translate(lines, batch_tokens=29)
    shapes = translator.session.shapes
    assert sum(rows for rows, _ in shapes) == len(lines)
    assert [columns for _, columns in shapes] == sorted(columns for _, columns in shapes)
    assert {columns for _, columns in shapes} <= set(lengths)
    assert all(rows * columns <= 29 or rows == 1 for rows, columns in shapes)
    first = next(rows for rows in range(8, 0, -1) if rows * lengths[rows - 1] <= 29)
    assert shapes[0] == (first, lengths[first - 1])  # as many as there is room for


def test_a_line_longer_than_a_batch_is_a_batch_of_its_own(folder, tokenizer):
    translator = recording(folder)
    assert translator.n_best(artefacts.LINES, batch_tokens=1) == [
        expected(tokenizer, line) for line in artefacts.LINES
    ]
    assert [rows for rows, _ in translator.session.shapes] == [1] * len(artefacts.LINES)


def test_a_stream_is_read_no_further_than_it_may_be(translator):
    asked = []

    def endless():
        for number in itertools.count():
            asked.append(number)
            yield artefacts.LINES[number % len(artefacts.LINES)]

    stream = translator.translate_stream(endless(), read_ahead=7)
    assert asked == []
    next(stream)
    assert len(asked) == 7
    for _ in range(6):
        next(stream)
    assert len(asked) == 7
    next(stream)
    assert len(asked) == 14


TOO_LONG = "dogs " * (artefacts.SOURCE_LIMIT + 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (TOO_LONG, "tokens, special ones included, where this artefact takes at most 61"),
        (b"caf\xe9 noir", "not UTF-8 at byte 4"),
        ("dogs \ud800 run", "half a surrogate pair at character 6"),
    ],
)
def test_a_bad_line_has_an_error_and_leaves_the_others_alone(
    tokenizer, translator, caplog, line, reason
):
    good = artefacts.LINES[:2]
    results = translator.n_best([good[0], line, good[1]])
    assert [results[0], results[2]] == [expected(tokenizer, each) for each in good]
    assert results[1].texts == results[1].scores == () and results[1].text == ""
    assert reason in results[1].error
    with caplog.at_level(logging.WARNING):
        texts = translator.translate([good[0], line, good[1]])
    assert texts == [results[0].text, "", results[2].text]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "line 2 is not translated" in caplog.text and reason in caplog.text


@pytest.mark.parametrize("line", ["", " ", "\n", "\r\n", "\t \u3000\u2028", b"", b"  \n"])
def test_a_line_without_text_has_an_empty_translation(translator, line):
    assert translator.n_best([line]) == [NO_TEXT]
    assert translator.translate([line]) == [""]


def test_a_line_ends_at_nul(tokenizer, translator):
    assert translator.n_best(["two dogs\0 run", b"\0a"]) == [
        expected(tokenizer, "two dogs"),
        NO_TEXT,
    ]


def test_nul_that_the_model_writes_is_replaced(tokenizer, translator):
    nul = tokenizer.encode("\0")[-1]
    moved = {
        artefacts.shifted(token, tokenizer.vocab_size): token
        for token in range(nul, tokenizer.vocab_size)
    }
    word = tokenizer.decode([moved[nul]])
    best = tokenizer.decode(
        [artefacts.shifted(token, tokenizer.vocab_size) for token in tokenizer.encode(word)[::-1]]
    )
    assert "\0" in best
    assert translator.translate([word]) == [best.replace("\0", "\ufffd")]


def test_the_longest_line_that_fits_is_translated(tokenizer, translator):
    token = "dogs"
    while len(tokenizer.encode(token + " dogs")) < artefacts.SOURCE_LIMIT:
        token += " dogs"
    while len(tokenizer.encode(token)) < artefacts.SOURCE_LIMIT - 1:
        token += "x"
    assert len(tokenizer.encode(token)) == artefacts.SOURCE_LIMIT - 1
    assert translator.n_best([token]) == [expected(tokenizer, token)]
    assert translator.n_best([token + "x"])[0].error is not None


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_text_bytes_and_line_endings_give_the_same(tokenizer, translator, ending):
    lines = [line + ending for line in artefacts.LINES]
    wanted = [expected(tokenizer, line) for line in artefacts.LINES]
    assert translator.n_best(lines) == wanted
    assert translator.n_best(line.encode("utf-8") for line in lines) == wanted


def test_reading_ahead_may_mean_all(tokenizer, translator):
    wanted = [expected(tokenizer, line) for line in artefacts.LINES]
    assert list(translator.n_best_stream(artefacts.LINES, read_ahead=10**23)) == wanted


def test_nothing_to_translate(translator):
    assert translator.translate([]) == [] and translator.n_best(iter(())) == []
    assert list(translator.translate_stream([])) == []


@pytest.mark.parametrize("lines", ["a man", b"a man", ["a man", 7], ["a man", None]])
@pytest.mark.parametrize("method", ["translate", "n_best", "translate_stream", "n_best_stream"])
def test_what_is_no_line_is_refused(translator, method, lines):
    with pytest.raises(TypeError, match="must be"):
        list(getattr(translator, method)(lines))


@pytest.mark.parametrize("options", [{"batch_tokens": 0}, {"read_ahead": 0}, {"read_ahead": -1}])
def test_sizes_below_one_are_refused_at_the_call(translator, options):
    with pytest.raises(ValueError, match="must be at least 1"):
        translator.translate_stream([], **options)


def test_a_failing_batch_is_split_until_only_its_culprit_fails(tmp_path, tokenizer):
    culprit = "fahrrad !"
    known = max(tokenizer.encode("a man rides two dogs")) + 1
    bad = max(tokenizer.encode(culprit))
    assert bad >= known  # an id beyond the model's table makes ONNX Runtime fail
    model = artefacts.model(tokenizer.vocab_size, known=known)
    translator = Translator(artefacts.write(tmp_path, tokenizer, model), threads=1)
    good = ["a man", "two dogs", "rides", "a man rides two dogs"]
    lines = [*good[:3], culprit, good[3]]
    results = translator.n_best(lines)
    assert "onnxruntime failed" in results.pop(3).error
    assert results == [expected(tokenizer, line) for line in good]


def test_good_lines_between_bad_ones_are_translated(tmp_path, tokenizer):
    bad = "ä"
    model = artefacts.model(tokenizer.vocab_size, known=max(tokenizer.encode(bad)))
    translator = Translator(artefacts.write(tmp_path, tokenizer, model), threads=1)
    lines = [bad, "a a", bad, "man a", bad]  # of equal length, so that they keep their order
    assert len({len(tokenizer.encode(line)) for line in lines}) == 1
    found = translator.n_best(lines)
    assert [result.error is not None for result in found] == [line == bad for line in lines]


def test_a_machine_that_fails_gives_each_line_the_error(folder):
    class Gone:
        def run(self, outputs, feed):
            raise RuntimeError("CUDA failure 999: unknown error")

    translator = Translator(folder, threads=1)
    translator.session = Gone()
    lines = [f"{number} dogs" for number in range(23)]
    errors = [result.error for result in translator.n_best(lines)]
    assert len(errors) == 23 and all("CUDA failure 999" in error for error in errors)


@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_scores_that_are_no_numbers_are_an_error(tmp_path, tokenizer, score):
    model = artefacts.model(tokenizer.vocab_size, score=[score])
    translator = Translator(artefacts.write(tmp_path, tokenizer, model), threads=1)
    (result,) = translator.n_best(["a man"])
    assert result.texts == () and "the model gave the scores" in result.error


def test_places_that_no_hypothesis_fills_are_left_out(tmp_path, tokenizer):
    model = artefacts.model(tokenizer.vocab_size, score=[-0.5, -np.inf])
    translator = Translator(artefacts.write(tmp_path, tokenizer, model), threads=1)
    (texts, _) = artefacts.expected_hypotheses(tokenizer, "a man")
    assert translator.n_best(["a man"]) == [Translation(texts[:1], (-0.5,))]


def test_ids_beyond_the_tokenizer_are_an_error(tmp_path, tokenizer):
    sizes = {"source": tokenizer.vocab_size + 89, "target": tokenizer.vocab_size + 89}
    model = artefacts.model(tokenizer.vocab_size + 89)
    folder = artefacts.write(tmp_path, tokenizer, model, vocab_size=sizes)
    beyond = [
        line
        for line in artefacts.LINES
        if any(
            artefacts.shifted(token, sizes["source"]) >= tokenizer.vocab_size
            for token in tokenizer.encode(line)
        )
    ]
    results = Translator(folder, threads=1).n_best(artefacts.LINES)
    assert beyond and len(beyond) < len(artefacts.LINES)
    for line, result in zip(artefacts.LINES, results, strict=True):
        if line in beyond:
            assert "is not within this vocabulary" in result.error
        else:
            assert result.error is None and result.texts[1] == line


class Meeting:
    """A session whose batches begin only when so many are there at the same time."""

    def __init__(self, session, count):
        self.session, self.barrier = session, threading.Barrier(count, timeout=60)

    def run(self, outputs, feed):
        self.barrier.wait()
        return self.session.run(outputs, feed)


def test_workers_compute_batches_at_the_same_time_and_keep_their_order(folder, tokenizer):
    translator = Translator(folder, workers=3)
    assert translator.session.get_session_options().intra_op_num_threads == 1
    translator.session = Meeting(translator.session, 3)
    lines = [line for line in artefacts.LINES * 3 if line.strip()]
    lines = lines[: len(lines) // 3 * 3]  # the barrier lets whole groups pass
    results = translator.n_best(lines, batch_tokens=1)
    assert results == [expected(tokenizer, line) for line in lines]


@pytest.mark.full
def test_eight_threads_share_a_translator(folder):
    lines = [" ".join(line.split()[:n]) for line in artefacts.LINES for n in range(7)]
    runtime_process.check_sharing(folder, lines, most=17)


FIRST = """
import sys, time
import numpy, onnxruntime, sentencepiece
packages = time.process_time()
from keras_transformer.export.runtime import Translator
print(Translator(sys.argv[1]).translate(["two dogs run ."])[0])
assert not any(name in sys.modules and sys.modules[name] for name in %r)
print(time.process_time() / packages)
"""


def test_the_first_translation_is_little_work_beside_importing_the_packages(folder, tokenizer):
    """Processor time, which other processes leave alone, by the same on this machine."""
    text, ratio = runtime_process.run(FIRST % (runtime_process.FRAMEWORKS,), folder).splitlines()
    assert text == expected(tokenizer, "two dogs run .").text
    assert float(ratio) < 3


def test_artefact_files_have_the_names_of_the_signature(folder):
    names = {signature.MODEL_FILE, signature.TOKENIZER_FILE, signature.MANIFEST_FILE}
    assert {path.name for path in folder.iterdir()} == names
