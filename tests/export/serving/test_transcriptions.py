"""OpenAI's transcriptions, with the package `openai`: formats, options, streams and errors."""

import asyncio
import io
import json

import numpy as np
import openai
import pytest
from helpers import local_service, recordings
from helpers.service_requests import ask, raw, wait_for
from helpers.sound_pool import SEGMENTS, WINDOWS, SoundPool

from keras_transformer.export.runtime import Transcriber
from keras_transformer.export.runtime.speech.transcripts import FORMATS
from keras_transformer.export.serving.bodies import MULTIPART, read_content
from keras_transformer.export.serving.limits import FORM_FIELDS, Limits
from keras_transformer.export.serving.ray_pool import RayPool
from keras_transformer.export.serving.refusals import Invalid

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("python_multipart")

PATH = "/v1/audio/transcriptions"
SMALL = Limits(sound_bytes=2000, body_bytes=100, sound_seconds=60)


@pytest.fixture(scope="module")
def pool():
    return SoundPool()


@pytest.fixture(scope="module")
def running(pool, folder):
    pools = {"whisper": pool, "en-de": local_service.Pool(folder)}
    with local_service.Running(pools, SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def client(running):
    with running.openai() as made:
        yield made


def sound(data=b"sound", name="a.wav"):
    return {"file": (name, data), "model": "whisper"}


def test_the_default_is_json_with_the_whole_text(client, pool):
    found = client.audio.transcriptions.create(**sound())
    assert found.text == "No matter. Try again."
    assert (found.usage.type, found.usage.seconds) == ("duration", 33)
    assert pool.calls[-1] == (b"sound", {"task": "transcribe", "most_seconds": 60})
    assert [model.id for model in client.models.list()] == ["whisper"]


@pytest.mark.parametrize("form", ["srt", "vtt", "text"])
def test_text_and_subtitles(client, form):
    found = client.audio.transcriptions.create(**sound(), response_format=form)
    text = "No matter. Try again.\n"
    assert found == (text if form == "text" else "".join(FORMATS[form](SEGMENTS)))


def test_all_scores_and_times(client, pool):
    found = client.audio.transcriptions.create(**sound(), response_format="verbose_json").to_dict()
    first, second = found.pop("segments")
    rest = {"text": "No matter. Try again.", "usage": {"type": "duration", "seconds": 33}}
    assert found == {"task": "transcribe", "language": "en", "duration": 32.25, **rest}
    assert (first["id"], first["start"], first["end"], first["text"]) == (0, 0, 1.2, " No matter.")
    numbers = {"avg_logprob": -0.5, "no_speech_prob": 0.25, "compression_ratio": 1.25}
    place = {"id": 1, "seek": 3000, "start": 31.0, "end": 32.5, "text": " Try again."}
    assert second == {**place, **numbers, "tokens": [60, 6, 61], "temperature": 0.5}
    found = client.audio.transcriptions.create(
        **sound(), response_format="verbose_json", timestamp_granularities=["word"]
    )
    words = [(word.word, word.start, word.end) for word in found.words]
    assert words == [("No", 0.0, 0.5), ("matter.", 0.5, 1.2)]
    assert found.segments is None and pool.calls[-1][1]["word_timestamps"] is True


def test_options_and_translations(client, pool):
    options = {"language": "DE", "prompt": "Nagg, Nell", "temperature": 0.25}
    client.audio.transcriptions.create(**sound(), **options, chunking_strategy="auto")
    assert pool.calls[-1][1] == {
        "task": "transcribe",
        "most_seconds": 60,
        "language": "de",
        "initial_prompt": "Nagg, Nell",
        "temperatures": (0.25,),
        "vad_filter": True,
    }
    with pytest.warns(DeprecationWarning):  # by the package
        found = client.audio.translations.create(**sound())
    assert found.text == "No matter. Try again."
    assert pool.calls[-1][1] == {"task": "translate", "most_seconds": 60}


def test_a_stream_gives_each_window_as_soon_as_it_is_decoded(client, pool, running):
    pool.gate.clear()
    before = pool.emitted
    stream = client.audio.transcriptions.create(**sound(), stream=True)
    first = next(stream)
    assert (first.type, first.delta) == ("transcript.text.delta", "No matter.")
    assert pool.emitted - before == 1
    running._loop.call_soon_threadsafe(pool.gate.set)
    *parts, last = stream
    assert [part.delta for part in parts] == [" Try again."]
    assert (last.type, last.text) == ("transcript.text.done", "No matter. Try again.")


def test_decoding_stops_when_the_client_leaves(client, pool, running):
    pool.gate.clear()
    before = pool.emitted
    stream = client.audio.transcriptions.create(**sound(), stream=True)
    next(stream)
    stream.close()
    wait_for(lambda: running.models.admission.open_requests == 0)
    running._loop.call_soon_threadsafe(pool.gate.set)
    assert client.audio.transcriptions.create(**sound()).text
    assert pool.emitted - before == 1 + len(WINDOWS)


@pytest.mark.parametrize(
    "options, error, reason",
    [
        ({"model": "other"}, openai.NotFoundError, "There is no model"),
        ({"model": "en-de"}, openai.NotFoundError, "does not transcribe"),
        ({"response_format": "xml"}, openai.BadRequestError, "response_format must be one of"),
        ({"temperature": 1.5}, openai.BadRequestError, "a number from 0 to 1"),
        ({"timestamp_granularities": ["word"]}, openai.BadRequestError, "verbose_json"),
        ({"include": ["logprobs"]}, openai.BadRequestError, "does not take include"),
        ({"extra_body": {"chunking_strategy": "{}"}}, openai.BadRequestError, "'auto' or left"),
        ({"stream": True, "response_format": "srt"}, openai.BadRequestError, "json or text"),
        ({"file": ("a.wav", b"noise")}, openai.BadRequestError, "refuses"),
        ({"file": ("a.wav", b"noise"), "stream": True}, openai.BadRequestError, "refuses"),
        ({"extra_body": {"stream": "perhaps"}}, openai.BadRequestError, "true or false"),
        ({"file": ("a.wav", bytes(2000))}, openai.APIStatusError, "may have 2000 bytes"),
    ],
)
def test_errors_have_the_form_of_the_protocol(client, options, error, reason):
    with pytest.raises(error, match=reason) as raised:
        client.audio.transcriptions.create(**{**sound(), **options})
    assert raised.value.body["type"] == "invalid_request_error"


TYPE = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsound\r\n'


@pytest.mark.parametrize(
    "content_type, body, status",
    [
        ("application/json", b"{}", 415),
        ("", PART, 415),
        ("multipart/form-data", PART, 400),  # no boundary
        (TYPE, b"", 400),
        (TYPE, b"no form", 400),
        (TYPE, PART + FILE, 400),  # cut off
        (TYPE, PART + b"--x--\r\n", 400),  # no file
        (TYPE, PART + PART + FILE + b"--x--\r\n", 400),
        (TYPE, PART + FILE.replace(b'"file"', b'"other"') + b"--x--\r\n", 400),
        (TYPE, FILE + b"--x--\r\n", 400),  # no model
        (TYPE, PART.replace(b"whisper", b"\xff") + b"--x--\r\n", 400),
        (TYPE, b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--\r\n", 400),
        (TYPE, PART + FILE + b"--x--\r\n", 200),
    ],
)
def test_malformed_forms_are_refused(running, content_type, body, status):
    found = ask(running, PATH, body, {"Content-Type": content_type})
    assert found[0] == status
    if status != 200:
        assert json.loads(found[2])["error"]["type"] == "invalid_request_error"


def test_random_damage_is_refused_or_answered(running):
    random, whole = np.random.default_rng(3), bytearray(PART + FILE + b"--x--\r\n")
    for _ in range(60):
        damaged = whole.copy()
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.integers(0, 256)
        assert ask(running, PATH, bytes(damaged), {"Content-Type": TYPE})[0] in (200, 400, 404)


def test_the_number_of_form_fields_is_limited():
    found = read_content(TYPE, PART + FILE + b"--x--\r\n", [MULTIPART])
    assert found == ({"model": "whisper"}, {"file": b"sound"})
    with pytest.raises(Invalid, match=f"may have {FORM_FIELDS} fields"):
        read_content(TYPE, PART * (FORM_FIELDS + 1) + b"--x--\r\n", [MULTIPART])


def test_only_sound_may_exceed_the_limit_of_bodies(running):
    body = json.dumps({"model": "en-de", "prompt": "a" * 200}).encode()
    assert ask(running, "/v1/completions", body)[0] == 413
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode()
    assert b" 415 " in raw(running, head + b"too short")


def test_replicas_refuse_sound():
    with pytest.raises(Invalid, match="transcribe files"):
        asyncio.run(RayPool.run_stream(None, b"sound", {}, bool))


# With a model


@pytest.fixture(scope="module")
def whisper():
    from helpers import whisper_folder

    return whisper_folder.artefact()


@pytest.fixture(scope="module")
def ask_for(whisper):
    """A function that returns what a small Whisper model hears."""
    pools = {"whisper": local_service.Pool(whisper)}
    with local_service.Running(pools, Limits(sound_seconds=1)) as made, made.openai() as client:
        yield lambda data, **options: client.audio.transcriptions.create(
            **sound(data),
            response_format="verbose_json",
            timestamp_granularities=["segment", "word"],
            **options,
        )


def wave(samples):
    file = io.BytesIO()
    soundfile.write(file, samples.astype("float32"), 16_000, format="WAV")
    return file.getvalue()


@pytest.mark.full
def test_the_service_returns_the_segments_of_transcriber(ask_for, whisper, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wave(np.random.default_rng(0).normal(0, 0.1, 4000)))
    transcription = Transcriber(whisper, threads=1).transcribe(
        path, temperatures=(0.5,), language="de", word_timestamps=True
    )
    expected = [*transcription]
    found = ask_for(path.read_bytes(), temperature=0.5, language="de")
    assert (found.language, found.duration) == ("de", transcription.duration)
    assert [(s.start, s.end, s.text, s.seek) for s in found.segments] == [
        (s.start, s.end, s.text, s.seek) for s in expected
    ]
    assert len(found.words) == sum(len(s.words) for s in expected)


@pytest.mark.full
def test_damaged_sound_and_many_channels_are_heard(ask_for):
    whole = recordings.written("flac", [(0, recordings.chirp(0.9))])
    assert 0 < ask_for(whole[: len(whole) // 2]).duration < 0.9
    many = recordings.written("webm", [(0, np.zeros((9, 24_000), "float32"))])
    assert ask_for(many).duration == pytest.approx(0.5, abs=0.05)


NOISE = np.zeros(320)


@pytest.mark.full
@pytest.mark.parametrize(
    "make, options, reason",
    [
        (lambda: b"no sound", {}, "cannot be read as sound"),
        (lambda: b"", {}, "is empty"),
        (lambda: wave(np.zeros(17_000)), {}, "longer than 1 seconds"),
        (lambda: b"#EXTM3U\n#EXTINF:1,\nfile:/etc/hosts\n", {}, "cannot be read as sound"),
        # A gap of 20 minutes in the time stamps of a small file counts as sound.
        (
            lambda: recordings.matroska([(0, NOISE), (1_200_000, NOISE)]),
            {},
            "longer than 1 seconds",
        ),
        (lambda: wave(NOISE), {"language": "xx"}, "does not know the language 'xx'"),
    ],
)
def test_refused_sound(ask_for, make, options, reason):
    with pytest.raises(openai.BadRequestError, match=reason):
        ask_for(make(), **options)
