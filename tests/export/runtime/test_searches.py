"""Translator, Generator and Transcriber: results are checked against the tokenizer alone."""

import copy
import itertools
import logging
import operator
import os
import pickle
import threading
import types

import numpy as np
import pytest
from helpers import artefacts, runtime_process, seeded_artefact
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.results import Row
from keras_transformer.export.runtime import (
    ArtefactError,
    Generation,
    Generator,
    Predictor,
    Transcriber,
    Translation,
    Translator,
    engine,
    open_runner,
)
from keras_transformer.export.runtime.searches import GenerationMaker, TranslationMaker
from keras_transformer.export.runtime.text_readers import LineReader
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.tokenizer import Tokenizer

PROMPTS = [" ".join(line.split()[:n]) for line in artefacts.LINES for n in (1, 3, 5)]
TOO_LONG = "dogs " * (artefacts.SOURCE_LIMIT + 1)


@pytest.fixture(scope="module")
def folders(folder, made, tokenizer, tmp_path_factory):
    """The folders of an artefact for each kind of search, and of one without."""
    generate = artefacts.write(tmp_path_factory.mktemp("generate"), tokenizer, task="generate")
    others = {name: made(name) for name in ("sample", "transcribe", "classify")}
    return {"translate": folder, "generate": generate, **others}


@pytest.fixture(scope="module")
def runners(folders):
    return {name: open_runner(folder, threads=1) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def translator(runners):
    return runners["translate"]


@pytest.fixture
def sampling(runners):
    return runners["sample"]


@pytest.fixture
def translator_of(tmp_path, tokenizer):
    """Returns a function from options of the model to a translator."""

    def opened(**options):
        model = artefacts.model(tokenizer.vocab_size, **options)
        return Translator(artefacts.write(tmp_path, tokenizer, model), threads=1)

    return opened


class Meeting:
    """A session that runs batches only when `count` of them wait at the same time."""

    def __init__(self, session, count):
        self.session, self.barrier, self.batches = session, threading.Barrier(count, timeout=60), 0

    def run(self, outputs, feed):
        self.batches += 1
        self.barrier.wait()
        return self.session.run(outputs, feed)


def expected(tokenizer, line):
    """Returns the `Translation` of a valid line, which may be blank."""
    if not line.strip():
        return Translation(("",), (0.0,))
    return Translation(*artefacts.expected_hypotheses(tokenizer, line))


def continued(tokenizer, prompt, seed):
    """Returns the `Generation` of a prompt that is not blank."""
    ids = [BEGIN_ID, *tokenizer.encode(prompt)]
    best = seeded_artefact.moved(tokenizer, prompt, seed)
    score = np.float32(sum(ids)) * np.float32(-0.001)
    return Generation(
        tuple(tokenizer.decode([best, ids])),
        (float(score), float(score + np.float32(-1))),
        None,
        tuple(tokenizer.decode([[*ids, *best], [*ids, *ids]])),
        prompt_text=tokenizer.decode(ids),
        token_ids=(tuple(best), tuple(ids)),
    )


# The runner of a task


def test_the_manifest_selects_the_runner(runners):
    kinds = [Translator, Generator, Generator, Transcriber, Predictor]
    assert [type(runner) for runner in runners.values()] == kinds


@pytest.mark.parametrize("name", ["translate", "sample", "transcribe", "classify"])
def test_a_pickled_runner_opens_its_folder_again(folders, runners, name, tmp_path, monkeypatch):
    monkeypatch.chdir(folders[name].parent)
    runner = open_runner(folders[name].name, threads=1, arena=False)
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickle.dumps(runner))
    assert type(again) is type(runner) and again.session is not runner.session
    items = ["[5]"] if name == "transcribe" else [artefacts.LINES[0], "", b"\xff"]
    seed = {"seed": 3} if name == "sample" else {}
    method = runner.predict if name == "classify" else runner.n_best
    found = [list(each.results(items, **seed)) for each in (again, runners[name])]
    assert found == [method(items, **seed)] * 2


def test_a_pickled_runner_resolves_links(tokenizer, tmp_path):
    other = artefacts.model(tokenizer.vocab_size, score=[-5.0, -7.0])
    artefacts.write(tmp_path / "here" / "onnx", tokenizer, other)
    artefacts.write(tmp_path / "real" / "onnx", tokenizer)
    (tmp_path / "real" / "sub").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "real" / "sub")
    runner = open_runner(tmp_path / "here" / "link" / ".." / "onnx")
    assert pickle.loads(pickle.dumps(runner)).n_best(["a"]) == runner.n_best(["a"])


def test_a_copy_shares_the_session(translator):
    copied, other = copy.copy(translator), copy.deepcopy(translator)
    assert copied is not translator and copied.manifest is translator.manifest
    assert copied.session is translator.session is not other.session


def test_lengths_count_the_tokens_that_the_model_reads(translator, tokenizer):
    found = translator.lengths(["two dogs", "", b"\xff"])
    assert found == [len(tokenizer.encode("two dogs")) + 1, 0, 0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Translator, "generate"), (Translator, "sample"), (Translator, "classify")]
    + [(Generator, "translate"), (Transcriber, "translate"), (Predictor, "translate")],
)
def test_an_artefact_of_another_task_is_refused(folders, kind, name):
    with pytest.raises(ArtefactError, match=f"exported for the task.*{kind.__name__} serves"):
        kind(folders[name])


# Lines in, results out

lines_of_text = st.lists(
    st.one_of(st.text("abdehinorst ,.ä", max_size=30), st.sampled_from(artefacts.LINES)),
    max_size=23,
)


@given(lines=lines_of_text, tokens_per_batch=st.integers(1, 211), read_ahead=st.integers(1, 29))
def test_every_line_gets_its_own_translation_in_order(
    tokenizer, translator, lines, tokens_per_batch, read_ahead
):
    wanted = [expected(tokenizer, line) for line in lines]
    assert translator.n_best(lines, tokens_per_batch) == wanted
    assert list(translator.n_best_stream(lines, tokens_per_batch, read_ahead)) == wanted
    best = [translation.texts[0] for translation in wanted]
    assert translator.translate(iter(lines), tokens_per_batch) == best
    assert list(translator.translate_stream(lines, tokens_per_batch, read_ahead)) == best
    assert list(translator.translate_stream(lines, tokens_per_batch, 10**23)) == best


@pytest.mark.parametrize("tokens_per_batch", [1, 29, 2048])
def test_a_seed_fixes_the_text_of_each_prompt(tokenizer, sampling, tokens_per_batch):
    wanted = [continued(tokenizer, line, 11) for line in PROMPTS]
    assert sampling.n_best(PROMPTS, 11, tokens_per_batch) == wanted
    assert list(sampling.n_best_stream(PROMPTS, 11, tokens_per_batch, read_ahead=3)) == wanted
    texts = [result.text for result in wanted]
    assert sampling.generate(PROMPTS, seed=11, tokens_per_batch=tokens_per_batch) == texts
    streamed = sampling.generate_stream(iter(PROMPTS), 11, tokens_per_batch, read_ahead=2)
    assert list(streamed) == texts != sampling.generate(PROMPTS, seed=np.int64(13))


def test_equal_prompts_get_equal_texts_and_calls_without_a_seed_differ(sampling):
    calls = [sampling.generate([" ".join(artefacts.LINES[:3])] * 3) for _ in range(5)]
    assert all(len(set(texts)) == 1 for texts in calls)
    assert len({texts[0] for texts in calls}) > 1


def test_prompt_and_continuation_are_decoded_together(tokenizer, runners):
    ids = [BEGIN_ID, *tokenizer.encode("two dogs run")]
    (result,) = runners["generate"].n_best(["two dogs run"])
    assert (result.texts[1], len(result.texts), result.error) == ("two dogs run", 2, None)
    assert result.full_texts[1] == tokenizer.decode([*ids, *ids])


def test_lines_with_a_begin_token_only_are_blank_and_padding_is_refused():
    class Letters:
        """Adds a begin token, as BERT's does, drops "-", and reads "_" as padding."""

        def encode(self, lines):
            return [[2, *(0 if c == "_" else ord(c) for c in line if c != "-")] for line in lines]

    limits = {"limits": {"source_length": 9}}
    reader = LineReader(types.SimpleNamespace(tokenizer=Letters(), manifest=limits), end=[3])
    rows, refused = reader.read(["a-", "--", "a_b", "b"])
    found = {index: row.inputs["source_ids"] for index, row in rows.items()}
    assert found == {0: [2, 97, 3], 3: [2, 98, 3]}
    assert refused == {2: "the text contains the token of padding"}


@pytest.fixture
def artefact(tokenizer):
    manifest = {"options": [], "inputs": []}
    return types.SimpleNamespace(tokenizer=tokenizer, target_tokenizer=tokenizer, manifest=manifest)


def test_an_end_token_in_a_prompt_does_not_hide_the_continuation(tokenizer, artefact):
    first, second, more = tokenizer.encode(["two", "dogs", "run"])
    row = Row({"source_ids": [2, *first, 3, *second]}, 4)
    outputs = {"token_ids": np.array([[*more, 3]]), "scores": np.array([-1.0])}
    result = GenerationMaker(artefact).result(row, outputs)
    assert result.full_texts == ("two dogs run",)
    assert result.full_text.removeprefix(result.prompt_text) == " run"


def test_arrays_are_transcribed_in_any_batch(tokenizer, runners, caplog):
    transcriber, lines = runners["transcribe"], artefacts.LINES * 3
    codes = [np.float32(row) for row in tokenizer.encode(lines)]
    wanted = [
        Translation((line,), (-float(sum(row)),)) for line, row in zip(lines, codes, strict=True)
    ]
    assert transcriber.n_best(codes) == wanted
    assert list(transcriber.n_best_stream(iter(codes), tokens_per_batch=1, read_ahead=2)) == wanted
    assert transcriber.transcribe(codes[0][None]) == lines[:1]
    good = tokenizer.encode("two dogs")
    with caplog.at_level(logging.WARNING):
        texts = transcriber.transcribe([good, [good], "", str(good), {"codes": good}])
    assert texts == ["two dogs", "", "", "two dogs", "two dogs"]
    assert "line 2 is not transcribed: 'codes' has the shape" in caplog.text


def test_a_stream_is_read_no_further_than_read_ahead(translator):
    lines = iter(artefacts.LINES * 9)
    stream = translator.translate_stream(lines, read_ahead=7)
    for results, read in ((0, 0), (1, 7), (6, 7), (1, 14)):
        assert len(list(itertools.islice(stream, results))) == results
        assert operator.length_hint(lines) == 9 * len(artefacts.LINES) - read


ONE = artefacts.LINES[:1]


@pytest.mark.parametrize(
    ("options", "small", "lines", "tokens_per_batch", "threads", "at_once", "batches"),
    [
        ({"workers": 3}, 2**25, artefacts.LINES * 3, 1, 1, 3, 15),  # groups of three meet
        ({}, 2**25, ONE * 7, 2048, 1, 3, 3),
        ({"threads": 2}, 2**25, artefacts.LINES, 2048, 2, 1, 1),
        ({}, 0, artefacts.LINES, 2048, 0, 1, 1),
    ],
    ids=["workers", "small search", "threads", "large search"],
)
def test_workers_and_small_searches_compute_several_batches_at_the_same_time(
    folder,
    tokenizer,
    monkeypatch,
    options,
    small,
    lines,
    tokens_per_batch,
    threads,
    at_once,
    batches,
):
    """Workers take whole batches, a small search divides one. Results keep their order."""
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(engine, "SMALL_BYTES", small)
    translator = Translator(folder, **options)
    assert translator.session.get_session_options().intra_op_num_threads == threads
    translator.session = Meeting(translator.session, at_once)
    results = translator.n_best(lines, tokens_per_batch)
    assert results == [expected(tokenizer, line) for line in lines]
    assert translator.session.batches == batches


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


def test_the_first_translation_takes_little_time_beside_the_imports(folder, tokenizer):
    """Compares processor time, which other processes barely affect, with the imports' time."""
    text, ratio = runtime_process.run(FIRST % (runtime_process.FRAMEWORKS,), folder).splitlines()
    assert text == expected(tokenizer, "two dogs run .").text
    assert float(ratio) < 3


# Unusual lines


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (TOO_LONG, "tokens, special ones included, where this artefact takes at most 61"),
        (b"caf\xe9 noir", "not UTF-8 at byte 4"),
        ("dogs \ud800 run", "half a surrogate pair at character 6"),
    ],
)
@pytest.mark.parametrize("name", ["translate", "generate"])
def test_a_bad_line_has_an_error_and_leaves_the_others_alone(runners, caplog, name, line, reason):
    runner = runners[name]
    first, bad, last = runner.n_best(["two dogs", line, "a man"])
    assert [first, last] == runner.n_best(["two dogs", "a man"])
    assert bad == type(first)(error=bad.error) and bad.text == "" and reason in bad.error
    best = runner.translate if name == "translate" else runner.generate
    with caplog.at_level(logging.WARNING):
        assert best(["two dogs", line, "a man"]) == [first.text, "", last.text]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"line 2 is not {runner.done}" in caplog.text and reason in caplog.text


BLANK = ["", " ", "\n", "\r\n", "\t \u3000\u2028", b"", b"  \n", b"\0a"]


def test_a_line_without_text_has_an_empty_result(translator, sampling, runners):
    assert translator.n_best(BLANK) == [Translation(("",), (0.0,))] * len(BLANK)
    no_text = [Generation(("",), (0.0,), None, ("",))] * len(BLANK)
    assert sampling.n_best(BLANK, seed=5) == runners["generate"].n_best(BLANK) == no_text
    assert translator.translate(BLANK) == sampling.generate(BLANK) == [""] * len(BLANK)
    assert translator.n_best(iter(())) == list(translator.translate_stream([])) == []


def test_nul_ends_a_line_and_is_replaced_in_results(tokenizer, translator):
    assert translator.n_best(["two dogs\0 run"]) == [expected(tokenizer, "two dogs")]
    nul, size = tokenizer.encode("\0")[-1], tokenizer.vocab_size
    moved = {artefacts.shifted(token, size): token for token in range(nul, size)}
    word = tokenizer.decode([moved[nul]])
    best = [artefacts.shifted(token, size) for token in tokenizer.encode(word)[::-1]]
    assert "\0" in tokenizer.decode(best)
    assert translator.translate([word]) == [tokenizer.decode(best).replace("\0", "\ufffd")]


def test_the_longest_line_that_fits_is_read(tokenizer, translator, sampling):
    line = "dogs"
    while len(tokenizer.encode(line)) < artefacts.SOURCE_LIMIT - 1:
        line += "x"
    good, bad = translator.n_best([line, line + "x"])
    assert good == expected(tokenizer, line) and bad.error is not None
    good, bad = sampling.n_best([line, line + "x"], seed=0)
    assert good.text == line and bad.error is not None


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_bytes_and_line_endings_do_not_change_results(tokenizer, translator, ending):
    lines = [line + ending for line in artefacts.LINES]
    wanted = [expected(tokenizer, line) for line in artefacts.LINES]
    assert translator.n_best(lines) == wanted
    assert translator.n_best(line.encode("utf-8") for line in lines) == wanted


@pytest.mark.parametrize("lines", ["a man", b"a man", ["a man", 7], ["a man", None]])
@pytest.mark.parametrize("method", ["translate", "n_best", "translate_stream", "n_best_stream"])
def test_invalid_lines_are_refused(translator, method, lines):
    with pytest.raises(TypeError, match="must be (str or bytes|an iterable of inputs), got"):
        list(getattr(translator, method)(lines))


# Arguments


@pytest.mark.parametrize(
    "options", [{"tokens_per_batch": 0}, {"read_ahead": 0}, {"read_ahead": -1}]
)
def test_sizes_below_one_are_refused_at_the_call(translator, options):
    with pytest.raises(ValueError, match="must be at least 1"):
        translator.translate_stream([], **options)


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (2**31 - 1, ValueError), (1.0, TypeError), (True, TypeError)],
)
def test_seeds_out_of_range_are_refused_at_the_call(sampling, seed, error):
    with pytest.raises(error, match="seed must be"):
        sampling.generate_stream(["two dogs"], seed)
    assert sampling.n_best(["two dogs"], seed=2**31 - 2)[0].error is None


@pytest.mark.parametrize("name", ["translate", "generate", "transcribe", "classify"])
def test_a_seed_is_refused_without_sampling(runners, name):
    with pytest.raises(ValueError, match=f"`seed` was passed.*task '{name}'.*no random numbers"):
        runners[name].results(["two dogs"], seed=0)


# Models that fail


def test_good_lines_beside_bad_ones_are_translated(translator_of, tokenizer):
    bad = "ä"  # an id beyond the model's table makes ONNX Runtime fail
    translator = translator_of(known=max(tokenizer.encode(bad)))
    lines = [bad, "a a", bad, "man a", bad, "a man rides"]
    results = translator.n_best(lines)
    for line, result in zip(lines, results, strict=True):
        if line == bad:
            assert "the model failed" in result.error
        else:
            assert result == expected(tokenizer, line)


@pytest.mark.parametrize("raises", [False, True])
def test_a_machine_failure_is_the_error_of_each_line_or_raised(translator, raises):
    def fail(outputs, feed):
        raise RuntimeError("CUDA failure 999: unknown error")

    translator = copy.copy(translator)
    translator.session = types.SimpleNamespace(run=fail)
    translator.raises_machine_errors = raises
    if raises:
        with pytest.raises(RuntimeError, match="CUDA failure 999"):
            translator.n_best(f"{i} dogs" for i in range(23))
    else:
        found = translator.n_best(f"{i} dogs" for i in range(23))
        assert ["CUDA failure 999" in result.error for result in found] == [True] * 23


@pytest.mark.parametrize(
    ("score", "found", "error"),
    [
        ([np.nan], 0, "the model gave the scores"),
        ([-np.inf], 0, "the model gave the scores"),
        ([-0.5, -np.inf], 1, "None"),  # the second hypothesis was not found
    ],
)
def test_scores_that_are_not_finite(translator_of, tokenizer, score, found, error):
    texts, _ = artefacts.expected_hypotheses(tokenizer, "a man")
    (result,) = translator_of(score=score).n_best(["a man"])
    assert result[:2] == (texts[:found], tuple(score[:found])) and error in str(result.error)


@pytest.mark.parametrize("maker", [TranslationMaker, GenerationMaker])
def test_a_text_of_several_sequences_of_pieces_is_there_once(tokenizer, artefact, maker):
    cuts = {tuple(tokenizer.encode("two dogs", sample=True, alpha=0.1, seed=n)) for n in range(9)}
    first, second, *_ = sorted(cuts)
    rows = [first, second, tokenizer.encode("a man"), first[:1]]
    outputs = {"token_ids": pad_rows(rows), "scores": np.array([-1.0, -2.0, -3.0, -np.inf])}
    outputs["token_scores"] = np.repeat([[-1.0], [-2.0], [-3.0], [0.0]], pad_rows(rows).shape[1], 1)
    row = Row({"source_ids": [2]}, 1)
    result = maker(artefact).result(row, outputs)
    assert (result.texts, result.scores) == (("two dogs", "a man"), (-1.0, -3.0))
    assert [details.token_scores[0] for details in result.details] == [-1.0, -3.0]
    if maker is GenerationMaker:
        assert result.token_ids == (first, tuple(rows[2])) and len(result.full_texts) == 2
    artefact.manifest["inputs"] = [{"name": "seed"}]  # samples stay as they were drawn
    assert maker(artefact).result(row, outputs).texts == ("two dogs", "two dogs", "a man")


def test_ids_beyond_the_tokenizer_are_an_error(tmp_path, tokenizer):
    size = tokenizer.vocab_size + 89
    model, sizes = artefacts.model(size), {"source": size, "target": size}
    folder = artefacts.write(tmp_path, tokenizer, model, vocab_size=sizes)
    found = Translator(folder, threads=1).n_best(artefacts.LINES)
    rows = tokenizer.encode(artefacts.LINES)
    known = [max(artefacts.shifted(id, size) for id in ids) < tokenizer.vocab_size for ids in rows]
    assert [result.error is None for result in found] == known and set(known) == {True, False}
    for line, result in zip(artefacts.LINES, found, strict=True):
        assert result.error is None or "is not within this vocabulary" in result.error
        assert result.error is not None or result.texts[1] == line


# A second tokenizer

GERMAN = ["zwei junge hunde laufen am strand entlang .", "ein mann mit rotem hut ."]


def test_the_target_tokenizer_decodes_translations(tokenizer, translator, tmp_path):
    target = Tokenizer.train(GERMAN, vocab_size=350, hard_vocab_limit=False)
    files = {signature.TARGET_TOKENIZER_FILE: target.model}.items()
    sizes = {"source": tokenizer.vocab_size, "target": target.vocab_size}
    two = Translator(artefacts.write(tmp_path, tokenizer, files=files, vocab_size=sizes))
    (result,) = two.n_best(["a"])
    assert result.texts[1] == target.decode(tokenizer.encode("a")) != "a"
    assert (two.tokenizer, two.target_tokenizer) == (tokenizer, target)
    assert translator.target_tokenizer == tokenizer
