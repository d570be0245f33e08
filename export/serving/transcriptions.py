"""OpenAI's protocol for sound: `/v1/audio/transcriptions` and `/v1/audio/translations`.

A request is a form with a sound file. With `stream`, the text is sent as server-sent events, window
by window. The model is a Whisper model.
"""

import contextlib
import functools
import math
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from keras_transformer.export.artefact.messages import nearest, shorten
from keras_transformer.export.runtime.speech.transcripts import FORMATS
from keras_transformer.export.serving.bodies import read_form, request_seconds
from keras_transformer.export.serving.completions import error_body
from keras_transformer.export.serving.engine import Transcript
from keras_transformer.export.serving.events import EventStream
from keras_transformer.export.serving.limits import RESULT_BYTES, on_thread_if_large
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid, Refusal, Unknown
from keras_transformer.export.serving.request_log import Record

# Path of the endpoint -> task of the model.
TASKS = {"transcriptions": "transcribe", "translations": "translate"}
RESPONSES = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED = ("json", "text")
GRANULARITIES = ("segment", "word")
KNOWN = (
    "model",
    "language",
    "prompt",
    "response_format",
    "temperature",
    "stream",
    "chunking_strategy",
)


class _Parsed(NamedTuple):
    """A request: its sound, the options of the transcription, and the format of the response."""

    model: Model
    sound: bytes
    options: dict[str, Any]
    form: str
    granularities: list[str]
    stream: bool


def routes(models: Models, make_endpoint: Any) -> list[Route]:
    """Returns the routes; `make_endpoint` as in `http_v2`."""

    async def answer(request: Request, body: bytes, record: Record, task: str) -> Response:
        content_type = request.headers.get("content-type", "")
        parsed = await on_thread_if_large(len(body), _parse, models, content_type, body, task)
        record.buffer(len(parsed.sound))  # a copy
        seconds = request_seconds(request.headers)
        parts = models.stream(record, parsed.model, parsed.sound, parsed.options, seconds)
        if parsed.stream:
            first = await anext(parts)  # until here, a refusal sets the status
            return EventStream(_events(record, first, parts))
        async with contextlib.aclosing(parts):
            *_, transcript = [part async for part in parts]
        size = RESULT_BYTES * len(transcript.segments)
        return await on_thread_if_large(size, _response, parsed, task, transcript)

    most = models.limits.sound_bytes
    return [
        Route(
            f"/v1/audio/{name}",
            make_endpoint("openai", functools.partial(answer, task=task), most),
            methods=["POST"],
        )
        for name, task in TASKS.items()
    ]


def _parse(models: Models, content_type: str, body: bytes, task: str) -> _Parsed:
    fields, files = read_form(content_type, body)
    asked = [
        value
        for name in ("timestamp_granularities", "timestamp_granularities[]")
        for value in fields.pop(name, [])
    ]
    for name, values in fields.items():
        if name not in KNOWN:
            meant = nearest(name, (*KNOWN, "timestamp_granularities"))
            raise Invalid(f"{shorten(name)} is not supported.{meant} Leave it out.")
        if len(values) > 1:
            raise Invalid(f"{name} is passed {len(values)} times.")
    # An empty field counts as absent, as in HTML forms.
    given = {name: value for name, (value,) in fields.items() if value}
    if "model" not in given:
        raise Invalid("model is the name of a model.")
    model = models.get(given["model"])
    if not model.description.hears:
        raise Unknown(f"{model.name} does not transcribe sound files.")
    if set(files) != {"file"}:
        raise Invalid("The form has a sound file, called file, and no other file.")
    form, stream = given.get("response_format", "json"), given.get("stream", "false").lower()
    if form not in RESPONSES:
        raise Invalid(f"response_format is one of {', '.join(RESPONSES)}, not {shorten(form)}.")
    if stream not in ("true", "false"):
        raise Invalid("stream is true or false.")
    if stream == "true" and form not in STREAMED:
        raise Invalid(f"A stream has the response_format {' or '.join(STREAMED)}.")
    if not set(asked) <= set(GRANULARITIES):
        raise Invalid(f"timestamp_granularities are {' and '.join(GRANULARITIES)}.")
    if asked and form != "verbose_json":
        raise Invalid("timestamp_granularities need the response_format verbose_json.")
    if given.get("chunking_strategy", "auto") != "auto":
        raise Invalid("chunking_strategy must be auto, or left out.")
    options: dict[str, Any] = {"task": task, "most_seconds": models.limits.sound_seconds}
    if "chunking_strategy" in given:
        options["vad_filter"] = True
    if "word" in asked:
        options["word_timestamps"] = True
    if "language" in given:
        options["language"] = given["language"].lower()
    if "prompt" in given:
        options["initial_prompt"] = given["prompt"]
    temperature = _temperature(given.get("temperature", "0"))
    if temperature:  # 0 is the default, which rises for a text that fails
        options["temperatures"] = (temperature,)
    return _Parsed(model, files["file"], options, form, asked or ["segment"], stream == "true")


def _temperature(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise Invalid(f"temperature is a number from 0 to 1, not {shorten(text)}.")


def _response(parsed: _Parsed, task: str, transcript: Transcript) -> Response:
    segments, form = transcript.segments, parsed.form
    if form in ("srt", "vtt"):
        return PlainTextResponse("".join(FORMATS[form](segments)))
    text = _text(transcript)
    if form == "text":
        return PlainTextResponse(f"{text}\n")
    found = {"text": text, "usage": _usage(transcript)}
    if form == "json":
        return JSONResponse(found)
    found |= {"task": task, "language": transcript.language, "duration": transcript.duration}
    if "segment" in parsed.granularities:
        found["segments"] = [
            {
                "id": number,
                "seek": segment.seek,
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "tokens": segment.token_ids,
                "temperature": segment.temperature,
                "avg_logprob": segment.average_log_probability,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_probability,
            }
            for number, segment in enumerate(segments)
        ]
    if "word" in parsed.granularities:
        found["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": word.end}
            for segment in segments
            for word in segment.words
        ]
    return JSONResponse(found)


async def _events(
    record: Record, part: Any, parts: AsyncGenerator[Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yields the events of a stream; `part` is its first part."""
    begun = False
    async with contextlib.aclosing(parts):
        try:
            while not isinstance(part, Transcript):
                text = "".join(segment.text for segment in part)
                if text:
                    text = text if begun else text.lstrip()
                    begun = True
                    yield {"type": "transcript.text.delta", "delta": text}
                part = await anext(parts)
        except Refusal as refusal:
            record.status = refusal.status
            yield error_body(refusal.status, str(refusal))
            return
    yield {"type": "transcript.text.done", "text": _text(part), "usage": _usage(part)}


def _text(transcript: Transcript) -> str:
    return "".join(segment.text for segment in transcript.segments).strip()


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}
