"""Transcription of sound files: windows, times, prompts, fallback and formats."""

import json
import types

import numpy as np
import onnx
import pytest
from helpers import whisper_folder
from helpers.exports import counts

from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.runtime import Transcriber
from keras_transformer.export.runtime.__main__ import main
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.speech import command
from keras_transformer.export.runtime.speech.tokens import SpeechOptions
from keras_transformer.export.runtime.speech.transcription import Transcription, split
from keras_transformer.export.runtime.speech.transcripts import FORMATS, Segment, clock
from keras_transformer.export.runtime.speech.word_times import (
    TimedPart,
    TimedWord,
    median_filter,
    merge_punctuation,
    place_words,
    time_words,
    token_starts,
)
from keras_transformer.sound import voice_activity
from keras_transformer.sound.features import FeatureReader

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")

EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, FIRST = 44, 45, 46, 47, 49, 52
FRAMES = 10  # per window: 0.1 s, also the largest time


def noise(seconds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, int(16_000 * seconds)).astype("float32")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "a.wav"
    soundfile.write(path, noise(0.25), 16_000)
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from keras_transformer.importers import mapping, speech_tokens

    folder = tmp_path_factory.mktemp("tokenizer")
    whisper_folder.write_tokenizer(folder)
    order = mapping.row_order(whisper_folder.SIZES["vocab_size"], None, None, 41, 40)
    return speech_tokens.make_tokenizer(folder, order)


def manifest(languages=(EN, DE)):
    config = {"languages": list(languages), "length_penalty": 1.0}
    return {
        "search": {"class_name": "SpeechSearch", "config": config},
        "limits": {"target_length": 18, "source_length": FRAMES},
        "inputs": [{"name": "features", "axes": ["batch", "features_length", 5]}],
        "outputs": [{"name": name} for name in ("token_ids", "scores", "start_scores")],
    }


class Session:
    """A session that returns given ids, mean log-probabilities and no-speech probabilities."""

    def __init__(self, *results):
        self.results, self.calls = iter(results), []

    def run(self, names, inputs):
        self.calls.append(inputs)
        ids, score, no_speech = next(self.results)
        scores = np.log(np.array([[no_speech, 0.1, 0.3]]))
        return [np.array([[[*ids, 3, 0]]]), np.array([[score]]), scores]

    @property
    def starts(self):
        return [call["start_ids"][0].tolist() for call in self.calls]


def transcribed(tokenizer, path, *results, languages=(EN, DE), **options):
    session = Session(*results)
    transcription = Transcription(
        session, manifest(languages), tokenizer, path, SpeechOptions(**options)
    )
    return transcription, list(transcription), session


def times(segments):
    return [(round(segment.start, 3), round(segment.end, 3)) for segment in segments]


def word(text):
    return [5 + ord(letter) - ord("a") for letter in text]


PLAIN = [FIRST, *word("ab"), FIRST + 5]  # until the end of the window
PAIR = [FIRST, *word("ab"), FIRST + 3, FIRST + 3, *word("cd")]  # the second segment has no end


def test_a_closed_window_is_followed_by_the_next_one(tokenizer, sound):
    transcription, segments, session = transcribed(tokenizer, sound, *[(PLAIN, -0.2, 0.1)] * 3)
    assert times(segments) == [(0, 0.1), (0.1, 0.2), (0.2, 0.25)]
    assert [segment.text for segment in segments] == ["ab"] * 3
    assert transcription.position == transcription.duration == 0.25
    last = session.calls[-1]["features"][0]
    assert last.shape == (FRAMES, 5) and (last[5:] == 0).all() and (last[:5] != 0).any()


def test_a_pair_of_times_moves_the_next_window(tokenizer, sound):
    results = [(PAIR, -0.2, 0.1), (PLAIN, -0.2, 0.1), (PLAIN, -0.2, 0.1)]
    _, segments, session = transcribed(tokenizer, sound, *results)
    assert times(segments) == [(0, 0.06), (0.06, 0.16), (0.16, 0.25)]
    assert segments[0].token_ids == tuple(PAIR[:4])
    first, second = (call["features"][0] for call in session.calls[:2])
    np.testing.assert_array_equal(first[6:], second[:4])


def test_previous_text_is_the_prompt(tokenizer, sound):
    results = [(PLAIN, -0.2, 0.1)] * 3
    _, _, session = transcribed(tokenizer, sound, *results)
    start = [2, DE, TRANSCRIBE]
    assert session.starts[0] == [2, 1, TRANSCRIBE]  # 1: the language is not known yet
    assert session.starts[1] == [PREVIOUS, *PLAIN, *start]
    assert session.starts[2] == [PREVIOUS, *PLAIN, *PLAIN, *start]
    _, _, session = transcribed(tokenizer, sound, *results, initial_prompt="z" * 99)
    assert session.starts[0] == [PREVIOUS, *word("z" * 8), 2, 1, TRANSCRIBE]
    for prompt in ("ab", "<|startoftranscript|>ab<|0.02|><|endoftext|>"):
        _, _, session = transcribed(tokenizer, sound, *results, initial_prompt=prompt)
        assert session.starts[0] == [PREVIOUS, *word("ab"), 2, 1, TRANSCRIBE]
    _, _, session = transcribed(tokenizer, sound, *results, condition_on_previous_text=False)
    assert session.starts[1:] == [start, start]


def test_language_and_task_are_start_tokens(tokenizer, sound):
    results = [(PLAIN, -0.2, 0.1)] * 3
    found, _, _ = transcribed(tokenizer, sound, *results)
    assert found.language == "de" and found.language_probability == pytest.approx(0.75)
    options = {"language": "en", "task": "translate"}
    found, _, session = transcribed(tokenizer, sound, *results, **options)
    assert session.starts[0] == [2, EN, TRANSLATE] and found.language == "en"
    found, _, session = transcribed(tokenizer, sound, *results, languages=())
    assert session.starts[0] == [2] and found.language == "en"
    with pytest.raises(ValueError, match="'fr'. It knows de, en"):
        transcribed(tokenizer, sound, language="fr")
    with pytest.raises(ValueError, match="cannot translate"):
        transcribed(tokenizer, sound, languages=(), task="translate")
    with pytest.raises(ValueError, match="`task` must be one of"):
        SpeechOptions(task="sing")
    for temperatures in ((), 0.5, (0.0, float("nan")), (-1,), ("0",)):
        with pytest.raises((TypeError, ValueError), match="`temperatures` must"):
            SpeechOptions(temperatures=temperatures)


def test_failed_texts_are_decoded_at_the_next_temperature(tokenizer, sound):
    repeated = [FIRST, *word("ab" * 40), FIRST + 5]
    results = [(PLAIN, -1.5, 0.1), (repeated, -0.1, 0.1), (PLAIN, -0.3, 0.1)]
    _, segments, session = transcribed(tokenizer, sound, *results, *[(PLAIN, -0.2, 0.1)] * 2)
    heat = [float(call.get("temperature", 0)) for call in session.calls]
    assert heat == pytest.approx([0, 0.2, 0.4, 0, 0])
    assert [segment.temperature for segment in segments] == [0.4, 0, 0]
    assert segments[0].average_log_probability == pytest.approx(-0.3 * 4 / 5)
    seeds = [int(call["seed"]) for call in session.calls[1:3]]
    assert seeds[0] != seeds[1]


def test_if_all_fail_the_most_likely_text_is_taken_and_is_no_prompt(tokenizer, sound):
    other = [FIRST, *word("xy"), FIRST + 5]
    failed = [(PLAIN, -1.9, 0.1), (other, -1.5, 0.1), *[(PLAIN, -1.8, 0.1)] * 4]
    results = [*failed, *[(PLAIN, -0.2, 0.1)] * 2]
    _, segments, session = transcribed(tokenizer, sound, *results)
    assert [segment.text for segment in segments] == ["xy", "ab", "ab"]
    assert session.starts[6] == [2, DE, TRANSCRIBE]


def test_windows_without_speech_are_skipped(tokenizer, sound):
    results = [(PLAIN, -1.5, 0.9), (PLAIN, -0.2, 0.9), (PLAIN, -0.2, 0.1)]
    found, segments, session = transcribed(tokenizer, sound, *results)
    assert times(segments) == [(0.1, 0.2), (0.2, 0.25)]
    assert segments[0].no_speech_probability == pytest.approx(0.9)
    assert len(session.calls) == 3 and found.position == found.duration


def test_segments_come_before_the_next_window_is_decoded(tokenizer, sound):
    session = Session(*[(PLAIN, -0.2, 0.1)] * 3)
    found = Transcription(session, manifest(), tokenizer, sound, SpeechOptions())
    assert not session.calls and next(found).text == "ab" and len(session.calls) == 1


def test_texts_are_divided_at_pairs_of_times(tokenizer, sound):
    tokens = transcribed(tokenizer, sound, *[(PLAIN, -0.2, 0.1)] * 3)[0]._tokens
    (part,), *rest = split(word("ab"), 5, 10, tokens)
    assert (part.start, part.end) == pytest.approx((0.05, 0.15))
    assert part.token_ids == word("ab") and rest == [10, False]
    open_end = [FIRST + 1, *word("ab")]
    assert split(open_end, 0, 10, tokens)[0][0][:2] == (0.0, 0.02)
    two = [FIRST, 5, FIRST + 2, FIRST + 2, 6, FIRST + 4]
    parts, advance, closed = split(two, 0, 10, tokens)
    assert [part.token_ids for part in parts] == [two[:3], two[3:]] and advance == 10 and closed
    assert split([FIRST, FIRST], 0, 10, tokens)[1] == 10  # never 0
    assert split([FIRST, 5, FIRST + 2, FIRST + 2], 0, 10, tokens)[1] == 4


A, B = word("ab")


@pytest.mark.parametrize(
    "ids, start, size, expected",
    [
        ([FIRST, A, FIRST + 5], 0, 4, [(0, 0.04)]),
        ([FIRST, A, FIRST + 5], 20, 4, [(0.2, 0.24)]),
        ([FIRST, A, FIRST + 5], 0, 1, [(0, 0.01)]),
        ([FIRST + 4, A, FIRST + 5], 0, 6, [(0, 0.06)]),
        ([FIRST, A, FIRST + 2, FIRST + 2, B, FIRST + 5], 0, 5, [(0, 0.04), (0.04, 0.05)]),
        ([FIRST, A, FIRST + 4, FIRST + 4, B, FIRST + 5], 0, 5, [(0, 0.05), (0.03, 0.05)]),
        ([FIRST, A, FIRST + 4, FIRST + 4, B], 10, 5, [(0.1, 0.15)]),
        ([FIRST + 3, A, FIRST + 4, FIRST + 4, B, FIRST + 5], 0, 1, [(0, 0.01), (0, 0.01)]),
        ([FIRST, A, FIRST + 3, FIRST + 3, B, FIRST + 3], 0, 6, [(0, 0.06), (0.06, 0.06)]),
        ([FIRST, A, FIRST + 3, FIRST + 4, B, FIRST + 4], 0, 6, [(0, 0.06), (0.06, 0.06)]),
        ([FIRST, A, FIRST + 5], 0, 10, [(0, 0.1)]),
    ],
)
def test_no_segment_ends_after_the_sound(tokenizer, sound, ids, start, size, expected):
    tokens = transcribed(tokenizer, sound, *[(PLAIN, -0.2, 0.1)] * 3)[0]._tokens
    parts, advance, _ = split(ids, start, size, tokens)
    assert times(parts) == expected and 0 < advance <= size


@pytest.mark.parametrize("seconds", [0.01, 0.03, 0.05, 0.09, 0.11, 0.19])
@pytest.mark.parametrize("last", [2, 4, 5])
def test_all_texts_are_within_the_sound(tokenizer, tmp_path, seconds, last):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(seconds), 16_000)
    results = [([FIRST, A, FIRST + 1, FIRST + 1, B, FIRST + last], -0.2, 0.1)] * 2
    found, segments, session = transcribed(tokenizer, path, *results)
    assert "".join(segment.text for segment in segments) == "ab" * len(session.calls)
    assert all(segment.start < segment.end <= found.duration for segment in segments)


def test_bytes_are_transcribed_window_by_window(tokenizer, sound):
    results = [(PAIR, -0.2, 0.1), (PLAIN, -1.5, 0.9), (PLAIN, -0.2, 0.1)]
    session = Session(*results)
    found = Transcription(session, manifest(), tokenizer, sound.read_bytes(), SpeechOptions())
    windows = list(found.windows())
    assert [len(window) for window in windows] == [1, 0, 1]
    assert [segment.seek for window in windows for segment in window] == [0, 16]
    assert windows[0] + windows[2] == transcribed(tokenizer, sound, *results)[1]


def test_features_of_a_file_match_the_layer(sound):
    import keras_transformer as kt

    samples = soundfile.read(sound, dtype="float32")[0]
    expected = np.asarray(kt.LogMel(5)(np.pad(samples, (0, 16_000))[None]))[0, :25]
    reader = FeatureReader(sound, 5)
    assert reader.frames == 25
    np.testing.assert_allclose(reader.window(0, 10), expected[:10], atol=1e-4)
    np.testing.assert_allclose(reader.window(7, 20)[:18], expected[7:], atol=1e-4)


def test_a_long_file_is_read_in_windows_of_constant_size(tmp_path):
    path = tmp_path / "long.wav"
    samples = np.tile(noise(10), 9)
    soundfile.write(path, samples, 16_000)
    reader = FeatureReader(path, 5)
    assert reader.duration == 90
    for start in range(0, reader.frames, 1700):
        assert reader.window(start, 3000).shape == (3000, 5)
        assert len(reader._kept) <= 6000
    whole = FeatureReader(path, 5).window(0, 9000)
    np.testing.assert_array_equal(reader.window(8900, 100), whole[8900:])


@pytest.mark.parametrize("rate, channels", [(8_000, 1), (44_100, 2)])
def test_other_rates_and_channels(tokenizer, tmp_path, rate, channels):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros((rate // 4, channels), "float32"), rate)
    _, segments, _ = transcribed(tokenizer, path, *[(PLAIN, -0.2, 0.1)] * 3)
    assert times(segments)[0] == (0, 0.1)


def test_bad_files_have_a_clear_error(tokenizer, tmp_path, sound):
    path = tmp_path / "a.wav"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        transcribed(tokenizer, path)
    path.write_bytes(b"no sound" * 999)
    with pytest.raises(ValueError, match="cannot be read as sound"):
        transcribed(tokenizer, path)
    playlist = f"#EXTM3U\n#EXTINF:1,\n{sound.as_uri()}\n#EXT-X-ENDLIST\n".encode()
    for data, reason in ((b"", "is empty"), (playlist, "The sound cannot be read as sound")):
        with pytest.raises(ValueError, match=reason):
            transcribed(tokenizer, data)
    with pytest.raises(ValueError, match="longer than 0.2 seconds"):
        transcribed(tokenizer, sound, most_seconds=0.2)
    soundfile.write(path, np.zeros(100, "float32"), 16_000)  # less than a frame
    assert transcribed(tokenizer, path)[1] == []


# Times of words


def test_token_starts_follow_the_path_of_the_largest_sum():
    matrix = np.array([[5, -1, -1, -1], [-1, 4, 4, -1], [-1, -1, -1, 3.0]])
    assert token_starts(matrix).tolist() == [0, 1, 3]
    steps = np.eye(4).repeat(3, axis=1) - 0.5
    assert token_starts(steps).tolist() == [0, 3, 6, 9]
    assert token_starts(np.ones((3, 1))).tolist() == [0, 0, 0]
    assert token_starts(np.ones((1, 3))).tolist() == [0]


def test_the_filter_takes_the_median_over_time():
    weights = np.zeros((1, 1, 20))
    weights[..., 9] = 100  # a single peak is removed
    weights[..., 15:] = 1
    found = median_filter(weights)
    assert found.shape == weights.shape and found[0, 0, 9] == 0 and found[0, 0, -1] == 1
    assert median_filter(weights[..., :3]).shape == (1, 1, 3)


def timed(text, start, end, count=1):
    return TimedWord(text, count, start, end, 0.5)


def test_punctuation_is_merged_into_its_word():
    words = [
        timed(" Oh", 0, 1),
        timed(",", 1, 1),
        timed(' "', 1, 1),
        timed("no", 1, 2),
        timed("!", 2, 3),
    ]
    merged = merge_punctuation(words)
    assert [(word.text, word.count) for word in merged] == [(" Oh,", 2), (' "no!', 3)]
    assert [(word.start, word.end) for word in merged] == [(0, 1), (1, 2)]


class Pieces:
    """Tokens of known text, ids from 0."""

    def __init__(self, texts):
        self.texts = texts

    def text(self, ids):
        return "".join(self.texts[id] for id in ids)


def test_the_median_duration_counts_punctuation_alone():
    texts, frames = [" a", ",", " b", ",", " c", "."], [40, 6, 20, 6, 20, 6, 10]
    attention = np.zeros((1, 9, sum(frames)))
    attention[0, 1:8] = np.repeat(np.eye(7), frames, axis=1)
    words, median = time_words(
        range(6), attention, np.zeros(9), 1, sum(frames), Pieces(texts), "en"
    )
    assert [word.text for word in words] == [" a,", " b,", " c."]
    assert median == pytest.approx((0.12 + 0.4) / 2, abs=0.05)  # of 0.8, 0.4, 0.4 and 3 times 0.12


def test_words_are_assigned_to_their_segments(tokenizer, sound):
    tokens = transcribed(tokenizer, sound, *[(PLAIN, -0.2, 0.1)] * 3)[0]._tokens
    parts = [TimedPart(1.0, 1.4, [FIRST, 5, 6, FIRST + 2]), TimedPart(1.4, 3.0, [FIRST + 2, 7])]
    words = [timed("ab", 0.06, 0.3, 2), timed("c", 0.5, 0.8)]
    first, second = place_words(parts, words, 0.27, 1.0, 0.9, tokens)
    assert (first.start, first.end) == (1.06, 1.3) and first.words == (("ab", 1.06, 1.3, 0.5),)
    assert (second.start, second.end) == (1.5, 1.8)
    assert [part.words for part in place_words(parts, [], 0.0, 1.0, 0.9, tokens)] == [(), ()]


def test_a_long_word_after_a_pause_is_shortened(tokenizer, sound):
    tokens = transcribed(tokenizer, sound, *[(PLAIN, -0.2, 0.1)] * 3)[0]._tokens
    words = [timed("a", 0.0, 9.0), *(timed("b", 9.0 + i / 5, 9.2 + i / 5) for i in range(5))]
    (part,) = place_words([TimedPart(8.8, 10.0, [5] * 6)], words, 0.2, 0.0, 0.0, tokens)
    assert part.words[0].start == pytest.approx(8.6) and part.words[0].end == 9.0


def test_word_times_need_word_heads(tokenizer, sound):
    with pytest.raises(ArtefactError, match="word_heads"):
        transcribed(tokenizer, sound, word_timestamps=True)


# Formats

SEGMENTS = [
    Segment(0.0, 1.5, " Hello  <b> & you.", (52, 5), -0.2, 0.1, 1.1, 0.0),
    Segment(3723.5, 3725.25, " a --> b", (6,), -0.3, 0.2, 1.2, 0.4),
]


def written(name):
    return "".join(FORMATS[name](SEGMENTS))


def test_formats():
    assert written("txt") == "Hello <b> & you.\na --> b\n"
    first = "1\n00:00:00,000 --> 00:00:01,500\nHello <b> & you.\n\n"
    assert written("srt") == f"{first}2\n01:02:03,500 --> 01:02:05,250\na -> b\n\n"
    assert written("vtt").startswith(
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello &lt;b&gt; &amp"
    )
    lines = [json.loads(line) for line in written("json").splitlines()]
    assert lines[1]["start"] == 3723.5 and lines[0]["text"] == SEGMENTS[0].text
    cue = Segment(0.0, 1.5, "a ---> b", (6,), -0.3, 0.2, 1.2, 0.4)
    assert [*FORMATS["srt"]([cue])][0].endswith("\na -> b\n\n")
    assert clock(59.9996) == "00:01:00.000" and clock(-1.0) == "00:00:00.000"


def test_pauses_are_left_out_and_times_refer_to_the_file(tokenizer, sound, monkeypatch):
    detector = types.SimpleNamespace(chunk_samples=lambda: 512, process_samples=lambda _: 0.0)
    monkeypatch.setattr(voice_activity, "_detector", lambda: detector)
    monkeypatch.setattr(voice_activity, "speech_parts", lambda *_: [(2, 4), (6, 7)])
    monkeypatch.setattr(voice_activity, "MARGIN", 0.0)
    results = [(PAIR, -0.2, 0.1), (PLAIN, -0.2, 0.1)]
    found, segments, session = transcribed(tokenizer, sound, *results, vad_filter=True)
    # Speech is at 64 to 128 ms and 192 to 224 ms.
    assert times(segments) == [(0.064, 0.124), (0.124, 0.218)] and len(session.calls) == 2
    assert found.duration == found.position == 0.25


# A model


@pytest.mark.full
def test_the_import_command_writes_a_transcriber(sound, capfdbinary):
    artefact = whisper_folder.artefact()
    step = counts(onnx.load(artefact / "model.onnx").graph, depth=2)
    assert step["MultiHeadAttention"] == 2  # a step: self-attention and cross-attention
    assert not step.keys() & {"ReduceMean", "Reciprocal", "Softmax"}
    transcriber = Transcriber(artefact, threads=1)
    search = transcriber.manifest["search"]
    assert search["class_name"] == "SpeechSearch" and search["config"]["languages"] == [EN, DE]
    options = {"temperatures": [0.0], "no_speech_threshold": None}
    found = transcriber.transcribe(sound, **options)
    segments = list(found)
    assert found.language in ("en", "de") and found.duration == 0.25
    # The session alone decodes the first window.
    reader = FeatureReader(sound, 5)
    inputs = {"features": reader.window(0, whisper_folder.FRAMES)[None]}
    inputs["start_ids"] = np.array([[2, 1, TRANSCRIBE]], "int32")
    ids = transcriber.session.run(["token_ids"], inputs)[0][0, 0]
    window = [i for segment in segments for i in segment.token_ids if segment.start < 0.14]
    assert window[:2] == ids[:2].tolist()
    warm = list(
        transcriber.transcribe(sound, seed=3, temperatures=[0.9], log_probability_threshold=None)
    )
    again = list(
        transcriber.transcribe(sound, seed=3, temperatures=[0.9], log_probability_threshold=None)
    )
    assert warm == again
    options = {"temperatures": [0.0], "no_speech_threshold": None}
    samples = soundfile.read(sound, dtype="int16")[0]
    in_memory = [samples, samples / 32768, bytearray(sound.read_bytes())]
    with sound.open("rb") as file:
        heard = transcriber.transcribe(file, **options)  # the file may be closed
    for other in (heard, *(transcriber.transcribe(each, **options) for each in in_memory)):
        assert [one.text for one in other] == [one.text for one in segments]
    with pytest.raises(ValueError, match="one axis"):
        transcriber.transcribe(samples[None])
    with pytest.raises(TypeError, match="a call transcribes one"):
        transcriber.transcribe([samples, samples])

    capfdbinary.readouterr()
    assert main([str(artefact), str(sound), "--format", "json", "--quiet"]) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [
        segment.text for segment in transcriber.transcribe(sound)
    ]
    assert main([str(artefact), str(sound.with_name("no.wav")), "--quiet"]) == 2
    assert b"There is no file" in capfdbinary.readouterr().err


def times_and_words(segments):
    return [
        (
            each.token_ids,
            round(each.start, 3),
            round(each.end, 3),
            [word.text for word in each.words],
        )
        for each in segments
    ]


@pytest.mark.full
@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_a_file_that_reads_samples_writes_the_same(form):
    """All of a window: sounds without a whole one, a whole one, and the start of a longer one."""
    ours = Transcriber(whisper_folder.artefact(form, *whisper_folder.SAMPLES), threads=1)
    other = Transcriber(whisper_folder.artefact(), threads=1)
    assert [value["axes"] for value in ours.manifest["inputs"]] == [
        ["batch", "samples_length"],
        ["batch", "start_ids_length"],
    ]
    most = ours.manifest["limits"]["source_length"]
    assert most == 160 * whisper_folder.FRAMES
    options = {"temperatures": [0.0], "no_speech_threshold": None, "word_timestamps": True}
    for seed, size in enumerate((201, 1000, 1599, most, 5 * most)):
        samples = noise(0.8, seed)[:size] * np.linspace(1, 0.3, size, dtype="float32")
        one, expected = (each.transcribe(samples, **options) for each in (ours, other))
        assert times_and_words(next(one.windows())) == times_and_words(next(expected.windows()))
        assert one.language_probability == pytest.approx(expected.language_probability, abs=1e-4)
        assert one.duration == expected.duration == size // 160 / 100
    assert len(list(one.windows())) > 1
    # A program without this package passes samples and start tokens only.
    start = np.array([[2, 1, TRANSCRIBE]], "int32")
    features = FeatureReader(samples[:most], 5).window(0, whisper_folder.FRAMES)
    inputs = {"start_ids": start, "samples": samples[None, :most]}
    ids, scores = ours.session.run(["token_ids", "scores"], inputs)
    inputs = {"start_ids": start, "features": features[None]}
    expected = other.session.run(["token_ids", "scores"], inputs)
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-4)
    # Sound that does not fit a window.
    too_long = {"start_ids": start[0], "samples": samples}
    (result,) = ours.n_best([too_long])
    assert result.error and f"lengths up to {most}" in result.error
    for size in (most + 160, 2 * most):
        with pytest.raises(Exception, match="(?i)reshape|batch_size"):  # of the engine
            ours.session.run(None, {"start_ids": start, "samples": samples[None, :size]})
    assert check(whisper_folder.artefact(form, *whisper_folder.SAMPLES)) == 0


def test_sound_options_need_a_sound_file(capsys):
    with pytest.raises(SystemExit):
        main(["out", "--language", "de"])
    assert "--language: only with a sound file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["out", "a.wav", "--n-best", "3"])
    assert "--n-best: not with a sound file" in capsys.readouterr().err


def test_sound_files_are_transcribed_one_by_one(sound):
    transcriber = object.__new__(Transcriber)
    transcriber.manifest = manifest()
    for item in (str(sound), sound, sound.read_bytes()):
        with pytest.raises(TypeError, match="a list of sound files, but a call transcribes one"):
            transcriber.transcribe([item, item])


def test_the_progress_needs_no_elapsed_time():
    segments = types.SimpleNamespace(position=5.0, duration=10.0)
    assert command._progress(segments, 0.0).startswith(" 50% of 10 s")


def test_other_artefacts_do_not_transcribe_files(tokenizer, sound):
    other = {**manifest(), "search": {"class_name": "GreedySearch", "config": {}}}
    with pytest.raises(ArtefactError, match="SpeechSearch"):
        Transcription(Session(), other, tokenizer, sound, SpeechOptions())
