"""Transcription of sound files: windows, times, prompts, fallback and formats."""

import io
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
from keras_transformer.export.runtime.speech.tokens import SpeechOptions, SpeechTokens
from keras_transformer.export.runtime.speech.transcription import Transcription, split
from keras_transformer.export.runtime.speech.transcripts import FORMATS, Segment, clock
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


def manifest(languages=(EN, DE), search="SpeechSearch"):
    config = {"languages": list(languages), "length_penalty": 1.0}
    return {
        "search": {"class_name": search, "config": config},
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


def transcribed(tokenizer, path, *results, languages=(EN, DE), search="SpeechSearch", **options):
    session, made = Session(*results), manifest(languages, search)
    transcription = Transcription(session, made, tokenizer, path, SpeechOptions(**options))
    return transcription, list(transcription), session


def times(segments):
    return [(round(segment.start, 3), round(segment.end, 3)) for segment in segments]


def word(text):
    return [5 + ord(letter) - ord("a") for letter in text]


A, B = word("ab")
PLAIN = [FIRST, A, B, FIRST + 5]  # until the end of the window
PAIR = [FIRST, A, B, FIRST + 3, FIRST + 3, *word("cd")]  # the second segment has no end
GOOD = (PLAIN, -0.2, 0.1)


@pytest.mark.parametrize(
    "ids, spans",
    [
        (PLAIN, [(0, 0.1), (0.1, 0.2), (0.2, 0.25)]),
        (PAIR, [(0, 0.06), (0.06, 0.16), (0.16, 0.25)]),
    ],
    ids=["closed", "pair of times"],
)
def test_the_next_window_begins_where_the_last_segment_ends(tokenizer, sound, ids, spans):
    found, segments, session = transcribed(tokenizer, sound, (ids, -0.2, 0.1), GOOD, GOOD)
    assert times(segments) == spans and found.position == found.duration == 0.25
    assert [segment.text for segment in segments] == ["ab"] * 3
    assert [segment.token_ids for segment in segments] == [tuple(ids[:4]), *[tuple(PLAIN)] * 2]
    reader, windows = FeatureReader(sound, 5), [call["features"][0] for call in session.calls]
    starts = [round(100 * start) for start, _ in spans]  # the last window ends with zeros
    np.testing.assert_array_equal(windows, [reader.window(start, FRAMES) for start in starts])
    assert (windows[-1][25 - starts[-1] :] == 0).all() and windows[-1][0].any()


UNKNOWN, GERMAN = [2, 1, TRANSCRIBE], [2, DE, TRANSCRIBE]  # the language is not known yet


@pytest.mark.parametrize(
    "options, starts, spoken",
    [
        ({}, [UNKNOWN, *([PREVIOUS, *PLAIN * n, *GERMAN] for n in (1, 2))], "de"),
        ({"condition_on_previous_text": False}, [UNKNOWN, GERMAN, GERMAN], "de"),
        ({"initial_prompt": "z" * 99}, [[PREVIOUS, *word("z" * 8), *UNKNOWN]], "de"),
        ({"initial_prompt": "ab"}, [[PREVIOUS, A, B, *UNKNOWN]], "de"),
        (
            {"initial_prompt": "<|startoftranscript|>ab<|0.02|><|endoftext|>"},
            [[PREVIOUS, A, B, *UNKNOWN]],
            "de",
        ),
        ({"language": "en", "task": "translate"}, [[2, EN, TRANSLATE]], "en"),
        ({"languages": ()}, [[2]], "en"),
    ],
)
def test_previous_text_language_and_task_are_start_tokens(
    tokenizer, sound, options, starts, spoken
):
    found, _, session = transcribed(tokenizer, sound, *[GOOD] * 3, **options)
    assert session.starts[: len(starts)] == starts and found.language == spoken
    assert found.language_probability == pytest.approx(0.75 if spoken == "de" else 1)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"language": "fr"}, ValueError, "'fr'. It knows de, en"),
        ({"languages": (), "task": "translate"}, ValueError, "cannot translate"),
        ({"task": "sing"}, ValueError, "`task` must be one of"),
        *(
            ({"temperatures": wrong}, (TypeError, ValueError), "`temperatures` must")
            for wrong in ((), 0.5, (0.0, float("nan")), (-1,), ("0",))
        ),
        ({"most_seconds": 0.2}, ValueError, "longer than 0.2 seconds"),
        ({"word_timestamps": True}, ArtefactError, "word_heads"),
        ({"search": "GreedySearch"}, ArtefactError, "SpeechSearch"),
    ],
)
def test_wrong_options_are_refused(tokenizer, sound, options, error, message):
    with pytest.raises(error, match=message):
        transcribed(tokenizer, sound, **options)


def test_failed_texts_are_decoded_at_the_next_temperature(tokenizer, sound):
    repeated = [FIRST, *word("ab" * 40), FIRST + 5]
    results = [(PLAIN, -1.5, 0.1), (repeated, -0.1, 0.1), (PLAIN, -0.3, 0.1)]
    _, segments, session = transcribed(tokenizer, sound, *results, GOOD, GOOD)
    heat = [float(call.get("temperature", 0)) for call in session.calls]
    assert heat == pytest.approx([0, 0.2, 0.4, 0, 0])
    assert [segment.temperature for segment in segments] == [0.4, 0, 0]
    assert segments[0].average_log_probability == pytest.approx(-0.3 * 4 / 5)
    assert int(session.calls[1]["seed"]) != int(session.calls[2]["seed"])


def test_if_all_fail_the_most_likely_text_is_taken_and_is_no_prompt(tokenizer, sound):
    other = [FIRST, *word("xy"), FIRST + 5]
    failed = [(PLAIN, -1.9, 0.1), (other, -1.5, 0.1), *[(PLAIN, -1.8, 0.1)] * 4]
    _, segments, session = transcribed(tokenizer, sound, *failed, GOOD, GOOD)
    assert [segment.text for segment in segments] == ["xy", "ab", "ab"]
    assert session.starts[6] == GERMAN


def test_windows_without_speech_are_skipped(tokenizer, sound):
    results = [(PLAIN, -1.5, 0.9), (PLAIN, -0.2, 0.9), GOOD]
    found, segments, session = transcribed(tokenizer, sound, *results)
    assert times(segments) == [(0.1, 0.2), (0.2, 0.25)]
    assert segments[0].no_speech_probability == pytest.approx(0.9)
    assert len(session.calls) == 3 and found.position == found.duration


def test_bytes_are_transcribed_window_by_window(tokenizer, sound):
    results = [(PAIR, -0.2, 0.1), (PLAIN, -1.5, 0.9), GOOD]
    session = Session(*results)
    found = Transcription(session, manifest(), tokenizer, sound.read_bytes(), SpeechOptions())
    windows = [(len(session.calls), window) for window in found.windows()]
    seeks = [(calls, [segment.seek for segment in window]) for calls, window in windows]
    assert seeks == [(1, [0]), (2, []), (3, [16])]
    segments = [segment for _, window in windows for segment in window]
    assert segments == transcribed(tokenizer, sound, *results)[1]


@pytest.mark.parametrize(
    "ids, start, size, spans, advance",
    [
        ([A, B], 5, 10, [(0.05, 0.15)], 10),
        ([FIRST + 1, A, B], 0, 10, [(0, 0.02)], 10),
        ([FIRST, FIRST], 0, 10, [(0, 0)], 10),  # never 0
        ([FIRST, A, FIRST + 2, FIRST + 2], 0, 10, [(0, 0.04)], 4),
        ([FIRST, A, FIRST + 2, FIRST + 2, B, FIRST + 4], 0, 10, [(0, 0.04), (0.04, 0.08)], 10),
        # No segment ends after the sound.
        ([FIRST, A, FIRST + 5], 0, 4, [(0, 0.04)], 4),
        ([FIRST, A, FIRST + 5], 20, 4, [(0.2, 0.24)], 4),
        ([FIRST, A, FIRST + 5], 0, 1, [(0, 0.01)], 1),
        ([FIRST + 4, A, FIRST + 5], 0, 6, [(0, 0.06)], 6),
        ([FIRST, A, FIRST + 2, FIRST + 2, B, FIRST + 5], 0, 5, [(0, 0.04), (0.04, 0.05)], 5),
        ([FIRST, A, FIRST + 4, FIRST + 4, B, FIRST + 5], 0, 5, [(0, 0.05), (0.03, 0.05)], 5),
        ([FIRST, A, FIRST + 4, FIRST + 4, B], 10, 5, [(0.1, 0.15)], 5),
        ([FIRST + 3, A, FIRST + 4, FIRST + 4, B, FIRST + 5], 0, 1, [(0, 0.01), (0, 0.01)], 1),
        ([FIRST, A, FIRST + 3, FIRST + 3, B, FIRST + 3], 0, 6, [(0, 0.06), (0.06, 0.06)], 6),
        ([FIRST, A, FIRST + 3, FIRST + 4, B, FIRST + 4], 0, 6, [(0, 0.06), (0.06, 0.06)], 6),
        ([FIRST, A, FIRST + 5], 0, 10, [(0, 0.1)], 10),
    ],
)
def test_texts_are_divided_at_pairs_of_times(tokenizer, ids, start, size, spans, advance):
    parts, moved, closed = split(ids, start, size, SpeechTokens(manifest(), tokenizer))
    assert (times(parts), moved) == (spans, advance)
    joined = [token for part in parts for token in part.token_ids]
    assert joined == ids[: len(joined)]
    assert closed == (ids[-1] >= FIRST > ids[-2])


@pytest.mark.parametrize("seconds", [0.009, 0.01, 0.03, 0.05, 0.09, 0.11, 0.19])
@pytest.mark.parametrize("last", [2, 4, 5])
def test_all_texts_are_within_the_sound(tokenizer, tmp_path, seconds, last):
    path = tmp_path / "a.wav"
    soundfile.write(path, noise(seconds), 16_000)
    results = [([FIRST, A, FIRST + 1, FIRST + 1, B, FIRST + last], -0.2, 0.1)] * 2
    found, segments, session = transcribed(tokenizer, path, *results)
    assert "".join(segment.text for segment in segments) == "ab" * len(session.calls)
    assert bool(session.calls) == (seconds >= 0.01)  # a frame
    assert all(segment.start < segment.end <= found.duration for segment in segments)


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
    soundfile.write(path, np.tile(noise(10), 9), 16_000)
    reader = FeatureReader(path, 5)
    assert reader.duration == 90
    for start in range(0, reader.frames, 1700):
        assert reader.window(start, 3000).shape == (3000, 5)
        assert len(reader._kept) <= 6000
    whole = FeatureReader(path, 5).window(0, 9000)
    np.testing.assert_array_equal(reader.window(8900, 100), whole[8900:])


# Formats

SEGMENTS = [
    Segment(0.0, 1.5, " Hello  <b> & you.", (52, 5), -0.2, 0.1, 1.1, 0.0),
    Segment(3723.5, 3725.25, " a --> b ---> c", (6,), -0.3, 0.2, 1.2, 0.4),
]


def test_formats():
    found = {name: list(write(SEGMENTS)) for name, write in FORMATS.items()}
    rows = [json.loads(row) for row in found.pop("json")]
    assert rows == json.loads(json.dumps([{**each._asdict(), "words": []} for each in SEGMENTS]))
    assert found == {
        "txt": ["Hello <b> & you.\n", "a --> b ---> c\n"],
        "srt": [
            "1\n00:00:00,000 --> 00:00:01,500\nHello <b> & you.\n\n",
            "2\n01:02:03,500 --> 01:02:05,250\na -> b -> c\n\n",
        ],
        "vtt": [
            "WEBVTT\n\n",
            "00:00:00.000 --> 00:00:01.500\nHello &lt;b&gt; &amp; you.\n\n",
            "01:02:03.500 --> 01:02:05.250\na -&gt; b -&gt; c\n\n",
        ],
    }
    assert clock(59.9996) == "00:01:00.000" and clock(-1.0) == "00:00:00.000"


def test_pauses_are_left_out_and_times_refer_to_the_file(tokenizer, sound, monkeypatch):
    detector = types.SimpleNamespace(chunk_samples=lambda: 512, process_samples=lambda _: 0.0)
    monkeypatch.setattr(voice_activity, "_detector", lambda: detector)
    monkeypatch.setattr(voice_activity, "speech_parts", lambda *_: [(2, 4), (6, 7)])
    monkeypatch.setattr(voice_activity, "MARGIN", 0.0)
    results = [(PAIR, -0.2, 0.1), GOOD]
    found, segments, session = transcribed(tokenizer, sound, *results, vad_filter=True)
    # Speech is at 64 to 128 ms and 192 to 224 ms.
    assert times(segments) == [(0.064, 0.124), (0.124, 0.218)] and len(session.calls) == 2
    assert found.duration == found.position == 0.25


# A model

PLAINLY = {"temperatures": [0.0], "no_speech_threshold": None}


@pytest.mark.full
def test_the_import_command_writes_a_transcriber(sound, capfdbinary):
    artefact = whisper_folder.artefact()
    step = counts(onnx.load(artefact / "model.onnx").graph, depth=2)
    assert step["MultiHeadAttention"] == 2  # a step: self-attention and cross-attention
    assert not step.keys() & {"ReduceMean", "Reciprocal", "Softmax"}
    transcriber = Transcriber(artefact, threads=1)
    search = transcriber.manifest["search"]
    assert search["class_name"] == "SpeechSearch" and search["config"]["languages"] == [EN, DE]
    found = transcriber.transcribe(sound, **PLAINLY)
    segments = list(found)
    assert found.language in ("en", "de") and found.duration == 0.25
    options = {"seed": 3, "temperatures": [0.9], "log_probability_threshold": None}
    warm, again = (list(transcriber.transcribe(sound, **options)) for _ in range(2))
    assert warm == again
    samples = soundfile.read(sound, dtype="int16")[0]
    for form in (
        samples,
        samples / 32768,
        bytearray(sound.read_bytes()),
        io.BytesIO(sound.read_bytes()),
    ):
        assert list(transcriber.transcribe(form, **PLAINLY)) == segments

    capfdbinary.readouterr()
    assert main([str(artefact), str(sound), "--format", "json", "--quiet"]) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [
        segment.text for segment in transcriber.transcribe(sound)
    ]
    assert main([str(artefact), str(sound.with_name("no.wav")), "--quiet"]) == 2
    assert b"There is no file" in capfdbinary.readouterr().err


def first_window(transcription):
    """Returns ids, times and words of the segments."""
    segments = next(transcription.windows())
    words = [[word.text for word in segment.words] for segment in segments]
    return [segment.token_ids for segment in segments], times(segments), words


@pytest.mark.full
@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_a_file_that_reads_samples_writes_the_same(form):
    """All of a window: sounds without a whole one, a whole one, and the start of a longer one."""
    folder = whisper_folder.artefact(form, *whisper_folder.SAMPLES)
    ours, other = Transcriber(folder, threads=1), Transcriber(whisper_folder.artefact(), threads=1)
    axes = [["batch", "samples_length"], ["batch", "start_ids_length"]]
    most = ours.manifest["limits"]["source_length"]
    assert [value["axes"] for value in ours.manifest["inputs"]] == axes
    assert most == 160 * whisper_folder.FRAMES
    for seed, size in enumerate((201, 1000, 1599, most, 5 * most)):
        samples = noise(0.8, seed)[:size] * np.linspace(1, 0.3, size, dtype="float32")
        one, expected = (
            each.transcribe(samples, word_timestamps=True, **PLAINLY) for each in (ours, other)
        )
        assert first_window(one) == first_window(expected)
        assert one.language_probability == pytest.approx(expected.language_probability, abs=1e-4)
        assert one.duration == expected.duration == size // 160 / 100
    assert len(list(one.windows())) > 1
    # A program without this package passes samples and start tokens only.
    start = {"start_ids": np.array([[2, 1, TRANSCRIBE]], "int32")}
    features = FeatureReader(samples[:most], 5).window(0, whisper_folder.FRAMES)
    (ids, scores), expected = (
        runner.session.run(["token_ids", "scores"], start | inputs)
        for runner, inputs in (
            (ours, {"samples": samples[None, :most]}),
            (other, {"features": features[None]}),
        )
    )
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-4)
    # Sound that does not fit a window.
    (result,) = ours.n_best([{"start_ids": start["start_ids"][0], "samples": samples}])
    assert result.error and f"lengths up to {most}" in result.error
    for size in (most + 160, 2 * most):
        with pytest.raises(Exception, match="(?i)reshape|batch_size"):  # of the engine
            ours.session.run(None, start | {"samples": samples[None, :size]})
    assert check(folder) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--language", "de"], "--language: only with a sound file"),
        (["a.wav", "--n-best", "3"], "--n-best: not with a sound file"),
    ],
)
def test_sound_options_need_a_sound_file(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["out", *arguments])
    assert message in capsys.readouterr().err


def test_the_progress_needs_no_elapsed_time():
    segments = types.SimpleNamespace(position=5.0, duration=10.0)
    assert command._progress(segments, 0.0).startswith(" 50% of 10 s")
