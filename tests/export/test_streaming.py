"""Streams return the text of `generate` and `translate` in parts, one after each step."""

import functools

import numpy as np
import pytest
from helpers import exports
from helpers.exports import LINES, MAX_LENGTH
from onnxruntime import OrtValue

from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.runtime.hypotheses import GrowingText
from keras_transformer.export.runtime.steps_session import SearchState, StepsSession
from keras_transformer.search import BeamSearch, GreedySearch, Sampling
from keras_transformer.text.json_tokenizer import JsonTokenizer

ONE_SAMPLE = Sampling(0.9, 20, 0.95)
SEARCHES = {
    "greedy": GreedySearch(min_length=5),
    "sample": ONE_SAMPLE,
    "beam": BeamSearch(2),
    "samples": exports.SAMPLING,
}
QUICK = ("greedy", "sample")
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in SEARCHES]
PROMPTS = [*LINES, "a", "é 😀", "two  spaces", "a man 's hat , red . the dog"]


def opened(name):
    return Generator(exports.artefact(SEARCHES[name], "generate", layout="steps"), threads=1)


generator = functools.cache(opened)  # shared: tests must not change it


@pytest.fixture
def steps_run(monkeypatch):
    """A list that gets the number of each step that a session runs."""
    steps, run_steps = [], StepsSession.run_steps

    def counted(session, buffers):
        for state in run_steps(session, buffers):
            steps.append(state.steps)
            yield state

    monkeypatch.setattr(StepsSession, "run_steps", counted)
    return steps


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_join_to_the_text_of_generate(name):
    runner = generator(name)
    for number, prompt in enumerate(PROMPTS):
        seed = {"seed": number} if runner.samples else {}
        (expected,) = runner.n_best([prompt], **seed)
        parts = list(runner.stream(prompt, **seed))
        assert "".join(parts) == expected.text == runner.generate([prompt], **seed)[0]
        assert all(parts)
        parts = list(runner.stream(prompt, with_prompt=True, **seed))
        assert parts[0] == expected.prompt_text == prompt
        assert "".join(parts) == expected.full_text
        assert len(expected.token_ids[0]) <= MAX_LENGTH


@pytest.mark.parametrize("name", QUICK)
def test_each_step_gives_one_token(name, steps_run):
    runner, prompt = generator(name), LINES[0]
    seed = {"seed": 3} if runner.samples else {}
    before = len(runner.tokenizer.encode(prompt))  # and the begin token, which the first step reads
    stream = runner.stream_steps(prompt, **seed)
    texts = []
    with pytest.raises(StopIteration) as end:
        while True:
            texts.append(next(stream))
            assert len(texts) == len(steps_run)
    (ids,) = end.value.value.token_ids
    assert len(texts) == before + len(ids)
    assert not any(texts[:before])
    decode = runner.tokenizer.decode
    shown = ["".join(texts[before : before + n + 1]) for n in range(len(ids))]
    assert shown == [decode(ids[: n + 1]).rstrip("\ufffd") for n in range(len(ids) - 1)] + [
        decode(ids)
    ]
    assert end.value.value == runner.n_best([prompt], **seed)[0]


def test_a_closed_stream_runs_no_further_step_and_leaves_the_session_usable(steps_run):
    runner = generator("greedy")
    expected = runner.generate(LINES)
    steps_run.clear()
    stream = runner.stream(LINES[0])
    assert steps_run == []
    assert next(stream)
    ran = len(steps_run)
    assert runner.generate(LINES) == expected  # during the stream
    steps_run.clear()
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)
    assert steps_run == [] and ran < len(runner.tokenizer.encode(LINES[0])) + MAX_LENGTH
    assert "".join(runner.stream(LINES[0])) == expected[0]


def test_streams_run_side_by_side():
    """Streams must not share the buffers that are kept for CUDA graphs."""
    runner = opened("greedy")
    runner.session = StepsSession(runner.session.first, runner.session.step, graphs=True)
    expected = runner.generate(PROMPTS)
    assert runner.generate([LINES[0]]) == [expected[0]]  # keeps buffers of this shape
    streams = [runner.stream_steps(line) for line in [LINES[0]] * 2 + PROMPTS[1:]]
    texts = [""] * len(streams)
    for _ in range(50):
        for number, stream in enumerate(streams):
            texts[number] += next(stream, "")
    assert texts == [expected[0], *expected]


@pytest.mark.full
def test_a_beam_search_shows_only_what_all_hypotheses_share():
    translator = Translator(exports.artefact(exports.BEAM, layout="steps"), threads=1)
    for options in ({}, {"max_length": 2}):
        parts = ["".join(translator.stream(line, **options)) for line in LINES]
        assert parts == translator.translate(LINES, **options)


def state(history, running, scores, **more):
    tensors = {"history": history, "running": running, "scores": scores, **more}
    values = {
        name: OrtValue.ortvalue_from_numpy(np.array(array)) for name, array in tensors.items()
    }
    return SearchState(values, 3, True)


@pytest.mark.parametrize(
    "running, scores, expected",
    [
        ([-1.0, -2.0], [-np.inf, -np.inf], [5, 6]),
        ([-1.0, -np.inf], [-np.inf, -np.inf], [5, 6, 7]),
        ([-1.0, -2.0], [-3.0, -np.inf], [5]),
        ([-np.inf, -np.inf], [-3.0, -np.inf], [5, 3, 0]),
        ([-np.inf, -np.inf], [-np.inf, -np.inf], []),
    ],
)
def test_hypotheses_that_cannot_win_do_not_count(running, scores, expected):
    """Rows: two running hypotheses, then two finished ones; steps so far: 3."""
    history = [[[0, 5, 6, 7], [0, 5, 6, 8], [0, 5, 3, 0], [0, 9, 9, 9]]]
    assert state(history, [running], [scores]).shared_ids().tolist() == expected
    after_prompt = state(history, [running], [scores], start_length=[[2]])
    assert after_prompt.shared_ids().tolist() == expected[1:]


def test_one_file_refuses_streams_and_names_the_layout_to_export():
    for runner, kind in ((Generator, "generate"), (Translator, "translate")):
        search = exports.SAMPLING if kind == "generate" else exports.BEAM
        with pytest.raises(ArtefactError, match=r"layout='steps'"):
            runner(exports.artefact(search, kind), threads=1).stream("a man")


def test_blank_prompts_give_no_parts_and_wrong_arguments_are_refused():
    runner = generator("greedy")
    for prompt in ("", "  ", "\0a"):
        assert list(runner.stream(prompt)) == [] and runner.generate([prompt]) == [""]
    for error, told, prompt, options in (
        (ValueError, "not UTF-8 at byte 2", b"a\xff", {}),
        (TypeError, "str or bytes, got list", ["a man"], {}),
        (ValueError, "'top_k' was passed", "a man", {"top_k": 3}),
        (ValueError, "draws no random numbers", "a man", {"seed": 3}),
    ):
        with pytest.raises(error, match=told):
            runner.stream(prompt, **options)


def word_pieces():
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "it", "'", "s", "##n", "n't", ".", "do", "not"]
    model = tokenizers.models.WordPiece({word: id for id, word in enumerate(words)})
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.WordPiece()  # "don't."
    return JsonTokenizer(made.to_str())


CHARACTERS = list("😀 x é  ▁ 漢字\u200bf")
DRAWN = {
    "bytes and unknown tokens": (
        exports.tokenizer,
        lambda random, encode: random.choice([1, 2, *range(4, exports.VOCAB)], 30),
    ),
    "words and spaces": (
        exports.tokenizer,
        lambda random, encode: random.choice([*encode(" a"), *range(200, exports.VOCAB)], 30),
    ),
    "characters": (
        exports.tokenizer,
        lambda random, encode: encode("".join(random.choice(CHARACTERS, 30))),
    ),
    "word pieces": (word_pieces, lambda random, encode: random.integers(4, 12, 20)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_parts_of_random_tokens_join_to_the_decoded_text(name):
    """A shown text never changes."""
    make, draw = DRAWN[name]
    tokenizer, random = make(), np.random.default_rng(1)
    for _ in range(100):
        ids = np.array(draw(random, tokenizer.encode))
        text = GrowingText(tokenizer.decode)
        parts = [text.grow(ids[:n]) for n in range(len(ids) + 1)]
        assert "".join([*parts, text.finish(tokenizer.decode(ids))]) == tokenizer.decode(ids)
