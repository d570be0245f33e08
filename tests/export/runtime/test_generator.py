"""Language models against what a tokenizer alone says that their continuations must be."""

import logging

import numpy as np
import pytest
from support import artefacts, seeded_artefact

from keras_transformer.export.runtime import ArtefactError, Generation, Generator
from keras_transformer.special_ids import BEGIN_ID

LINES = [" ".join(line.split()[:n]) for line in artefacts.LINES for n in (1, 3, 5)]
NO_TEXT = Generation(("",), (0.0,), None, ("",))


@pytest.fixture(scope="module")
def sampling(tokenizer, tmp_path_factory):
    folder = seeded_artefact.write(tmp_path_factory.mktemp("sampling"), tokenizer)
    return Generator(folder, threads=1)


@pytest.fixture(scope="module")
def beam(tokenizer, tmp_path_factory):
    folder = artefacts.write(tmp_path_factory.mktemp("beam"), tokenizer, task="generate")
    return Generator(folder, threads=1)


def expected(tokenizer, prompt, seed):
    """`Generation` of a prompt with text."""
    ids = [BEGIN_ID, *tokenizer.encode(prompt)]
    best = seeded_artefact.moved(tokenizer, prompt, seed)
    score = np.float32(sum(ids)) * np.float32(-0.001)
    return Generation(
        tuple(tokenizer.decode([best, ids])),
        (float(score), float(score + np.float32(-1))),
        None,
        tuple(tokenizer.decode([[*ids, *best], [*ids, *ids]])),
    )


@pytest.mark.parametrize("batch_tokens", [1, 29, 2048])
def test_a_seed_fixes_what_each_prompt_gets(tokenizer, sampling, batch_tokens):
    wanted = [expected(tokenizer, line, 11) for line in LINES]
    assert sampling.n_best(LINES, 11, batch_tokens) == wanted
    assert list(sampling.n_best_stream(LINES, 11, batch_tokens, read_ahead=3)) == wanted
    texts = [result.text for result in wanted]
    assert sampling.generate(LINES, seed=11, batch_tokens=batch_tokens) == texts
    assert list(sampling.generate_stream(iter(LINES), 11, batch_tokens, read_ahead=2)) == texts
    assert sampling.generate(LINES, seed=np.int64(13)) != texts


def test_equal_prompts_get_equal_texts_and_calls_without_a_seed_differ(sampling):
    calls = [sampling.generate([" ".join(artefacts.LINES[:3])] * 3) for _ in range(5)]
    assert all(len(set(texts)) == 1 for texts in calls)
    assert len({texts[0] for texts in calls}) > 1


def test_prompt_and_continuation_are_decoded_together(tokenizer, sampling):
    (result,) = sampling.n_best(["two dogs"], seed=0)
    assert result.text == "two dogs"  # the model repeats the prompt
    assert result.full_text == "two dogs two dogs"


def test_a_beam_takes_no_seed(tokenizer, beam):
    ids = [BEGIN_ID, *tokenizer.encode("two dogs run")]
    (result,) = beam.n_best(["two dogs run"])
    assert (result.texts[1], len(result.texts), result.error) == ("two dogs run", 2, None)
    assert result.full_texts[1] == tokenizer.decode([*ids, *ids])
    for call in (beam.generate, beam.n_best, beam.generate_stream, beam.n_best_stream):
        with pytest.raises(ValueError, match="`seed` was passed, but this artefact has .*Beam"):
            call(["two dogs"], seed=0)


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (2**31 - 1, ValueError), (1.0, TypeError), (True, TypeError)],
)
def test_seeds_out_of_range_are_refused_at_the_call(sampling, seed, error):
    with pytest.raises(error, match="`seed` must be"):
        sampling.generate_stream(["two dogs"], seed)
    assert sampling.n_best(["two dogs"], seed=2**31 - 2)[0].error is None


@pytest.mark.parametrize("line", ["", " \t", "\r\n", b"", "\0two"])
def test_a_prompt_without_text_has_an_empty_continuation(sampling, beam, line):
    assert sampling.n_best([line], seed=5) == beam.n_best([line]) == [NO_TEXT]
    assert sampling.generate([line]) == [""]


def test_to_generate_from_nothing_the_session_takes_the_begin_token(beam):
    ids, scores = beam.session.run(None, {"source_ids": np.array([[BEGIN_ID]], np.int32)})
    assert ids.shape == (1, 2, 1) and np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("dogs " * 89, "tokens, special ones included, where this artefact takes at most 61"),
        (b"caf\xe9 noir", "not UTF-8 at byte 4"),
        ("dogs \ud800 run", "half a surrogate pair at character 6"),
    ],
)
def test_a_bad_prompt_has_an_error_and_leaves_the_others_alone(
    tokenizer, sampling, caplog, line, reason
):
    wanted = expected(tokenizer, "two dogs", 3)
    first, bad, last = sampling.n_best(["two dogs", line, "two dogs"], seed=3)
    assert first == last == wanted
    assert reason in bad.error and (bad.texts, bad.text, bad.full_text) == ((), "", "")
    with caplog.at_level(logging.WARNING):
        assert sampling.generate([line, "two dogs"], seed=3) == ["", wanted.text]
    assert "line 1 is not continued" in caplog.text and reason in caplog.text


def test_the_longest_prompt_that_fits_is_continued(tokenizer, sampling):
    prompt = "dogs"
    while len(tokenizer.encode(prompt)) < artefacts.SOURCE_LIMIT - 1:
        prompt += "x"
    assert sampling.n_best([prompt, prompt + "x"], seed=0)[0].text == prompt
    assert sampling.n_best([prompt + "x"], seed=0)[0].error is not None


@pytest.mark.parametrize("prompts", ["a man", b"a man", ["a man", 7]])
def test_what_is_no_prompt_is_refused(sampling, prompts):
    with pytest.raises(TypeError, match="must be"):
        sampling.generate(prompts)
    with pytest.raises(TypeError, match="must be"):
        list(sampling.n_best_stream(prompts))


def test_a_translator_is_refused(folder):
    with pytest.raises(ArtefactError, match="the task 'translate' .*Generator serves 'generate'"):
        Generator(folder)


def test_an_artefact_without_a_tokenizer_is_refused(tokenizer, tmp_path):
    files = {"tokenizer.model": None}.items()
    with pytest.raises(ArtefactError, match="holds no tokenizer.model"):
        Generator(artefacts.write(tmp_path, tokenizer, files=files, task="generate"))
