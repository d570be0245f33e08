"""OpenAI's protocol for sound: `/v1/audio/transcriptions` and `/v1/audio/translations`.

A request is a form with a sound file. With `stream`, the text is sent as server-sent events, window
by window. The model is a Whisper model.
"""

import functools
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from keras_transformer.export.runtime.speech.transcripts import FORMATS, Transcript
from keras_transformer.export.serving.bodies import MULTIPART, read_content
from keras_transformer.export.serving.endpoints import Call, endpoint
from keras_transformer.export.serving.fields import (
    FLAG,
    TEXT,
    Field,
    as_list,
    number,
    one_of,
    only,
    read_fields,
    some_of,
)
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.refusals import Invalid, Unknown

# Path of the endpoint -> task of the model.
TASKS = {"transcriptions": "transcribe", "translations": "translate"}
RESPONSES = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED = ("json", "text")
GRANULARITIES = "timestamp_granularities"
FIELDS = (
    Field("model", TEXT, needed=True),
    Field("language", TEXT, ""),
    Field("prompt", TEXT),
    Field("response_format", one_of(RESPONSES), "json"),
    Field("temperature", number(0, 1), 0),
    Field("stream", FLAG, False),
    Field("chunking_strategy", only("auto")),
    Field(GRANULARITIES, some_of(("segment", "word"))),
)


def routes(models: Models) -> list[Route]:
    """Returns the routes of the protocol."""
    most = models.limits.sound_bytes
    return [
        endpoint(
            models,
            f"/v1/audio/{name}",
            "openai",
            functools.partial(_call, task=task),
            _answer,
            _events,
            most,
        )
        for name, task in TASKS.items()
    ]


def _call(models: Models, request: Request, body: bytes, task: str) -> Call:
    given, files = read_content(request.headers.get("content-type", ""), body, (MULTIPART,))
    names = GRANULARITIES, f"{GRANULARITIES}[]"
    asked = [value for name in names for value in as_list(given.pop(name, []))]
    # An empty field counts as absent, as in HTML forms.
    given = {name: value or None for name, value in given.items()}
    values = read_fields(given | {GRANULARITIES: asked or None}, FIELDS, written=True)
    model, form = models.get(values["model"]), values["response_format"]
    if not model.description.hears:
        raise Unknown(f"{model.name} does not transcribe sound files.")
    if set(files) != {"file"}:
        raise Invalid("The form has a sound file, called file, and no other file.")
    if values["stream"] and form not in STREAMED:
        raise Invalid(f"A stream has the response_format {' or '.join(STREAMED)}.")
    if asked and form != "verbose_json":
        raise Invalid(f"{GRANULARITIES} need the response_format verbose_json.")
    options: dict[str, Any] = {
        "task": task,
        "most_seconds": models.limits.sound_seconds,
        "language": values["language"].lower(),
        "initial_prompt": values["prompt"],
        "vad_filter": values["chunking_strategy"] == "auto",
        "word_timestamps": "word" in asked,
        # 0 is the default, which rises for a text that fails.
        "temperatures": (values["temperature"],) if values["temperature"] else None,
    }
    options = {name: value for name, value in options.items() if value}
    answer = {"task": task, "form": form, "granularities": asked or ["segment"]}
    return Call(model, [files["file"]], options, answer, in_parts=True, streams=values["stream"])


def _answer(call: Call, results: Sequence[Transcript], tokens: int) -> Response:
    (transcript,) = results
    segments, form = transcript.segments, call.values["form"]
    if form in ("srt", "vtt"):
        return PlainTextResponse("".join(FORMATS[form](segments)))
    text = _text(transcript)
    if form == "text":
        return PlainTextResponse(f"{text}\n")
    found = {"text": text, "usage": _usage(transcript)}
    if form == "json":
        return JSONResponse(found)
    found |= {
        "task": call.values["task"],
        "language": transcript.language,
        "duration": transcript.duration,
    }
    if "segment" in call.values["granularities"]:
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
    if "word" in call.values["granularities"]:
        found["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": word.end}
            for segment in segments
            for word in segment.words
        ]
    return JSONResponse(found)


async def _events(
    call: Call, part: Any, parts: AsyncGenerator[Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yields the events of a stream; `part` is its first part."""
    begun = False
    while not isinstance(part, Transcript):
        text = "".join(segment.text for segment in part)
        if text:
            text = text if begun else text.lstrip()
            begun = True
            yield {"type": "transcript.text.delta", "delta": text}
        part = await anext(parts)
    yield {"type": "transcript.text.done", "text": _text(part), "usage": _usage(part)}


def _text(transcript: Transcript) -> str:
    return "".join(segment.text for segment in transcript.segments).strip()


def _usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}
