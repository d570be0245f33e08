"""OpenAI's protocol: `/v1/completions`, for language models, and `/v1/models`.

With `stream`, the text is sent as server-sent events. The model then needs the layout "steps".
"""

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.call_options import CALL_OPTIONS
from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.results import Generation
from keras_transformer.export.serving.bodies import read_json, request_seconds
from keras_transformer.export.serving.events import EventStream
from keras_transformer.export.serving.limits import (
    NEW_TOKENS,
    RESULT_BYTES,
    STOP_CHARACTERS,
    on_thread_if_large,
)
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid, Refusal, Unknown
from keras_transformer.export.serving.request_log import Record
from keras_transformer.export.serving.request_options import check_names
from keras_transformer.special_ids import END_ID

PREFIX = "/v1/"
MOST_STOPS = 4
# Parameters of the protocol that no model supports, with their neutral values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (),
    "presence_penalty": (0,),
    "suffix": ("",),
}
# The same for parameters that only sampling models support.
_NEUTRAL_OPTIONS: dict[str, tuple[float, ...]] = {"temperature": (0, 1), "top_p": (1,)}
# The fields of the protocol that are no options of a search; `user` has no effect.
_FIELDS = ("model", "prompt", "stop", "n", "max_tokens", "stream", "stream_options", "user")
_STREAM_OPTIONS = ("include_usage", "include_obfuscation")  # the second has no effect


class _Parsed(NamedTuple):
    """A request: `n` texts for each prompt; `usage` adds the number of tokens to a stream."""

    model: Model
    prompts: list[str]
    options: dict[str, Any]
    n: int
    stops: list[str]
    stream: bool
    usage: bool


def routes(models: Models, make_endpoint: Any) -> list[Route]:
    """Returns the routes; `make_endpoint` as in `http_v2`."""
    created = int(time.time())

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "keras_transformer"}

    async def list_models(request: Request) -> Response:
        names = [name for name in models.names() if _has_protocol(models.get(name))]
        return JSONResponse({"object": "list", "data": [described(name) for name in names]})

    async def one_model(request: Request) -> Response:
        model = models.get(request.path_params["model"])
        if not _has_protocol(model):
            raise Unknown(f"{model.name} has no endpoint of this protocol.")
        return JSONResponse(described(model.name))

    async def complete(request: Request, body: bytes, record: Record) -> Response:
        parsed = await on_thread_if_large(len(body), _parse, models, body)
        seconds, model, options = request_seconds(request.headers), parsed.model, parsed.options
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        if parsed.stream:
            parts = models.stream(record, model, parsed.prompts[0], options, seconds)
            first = await anext(parts)  # until here, a refusal sets the status
            return EventStream(_events(parsed, head, record, first, parts))
        results = await models.answer(record, model, parsed.prompts, options, seconds)
        size = len(body) + RESULT_BYTES * len(results)
        return await on_thread_if_large(size, _response, head, parsed, results, record.tokens)

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{model}", one_model),
        Route("/v1/completions", make_endpoint("openai", complete), methods=["POST"]),
    ]


def error_body(status: int, text: str) -> dict[str, Any]:
    """Returns an error in OpenAI's format."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def _has_protocol(model: Model) -> bool:
    return model.description.task == "generate" or model.description.hears


def _model(models: Models, name: object) -> Model:
    if not isinstance(name, str):
        raise Invalid("model is the name of a model.")
    model = models.get(name)
    if model.description.task != "generate":
        raise Unknown(f"{name} has the task {model.description.task!r} and gives no completions.")
    return model


def _parse(models: Models, body: bytes) -> _Parsed:
    fields = {name: value for name, value in read_json(body).items() if value is not None}
    model = _model(models, fields.get("model"))
    prompts, stops = (_texts(name, fields.get(name, [])) for name in ("prompt", "stop"))
    prompts = [f"{prompt}\n" for prompt in prompts]  # a line end, which the runtime removes
    models.admission.check_lines(len(prompts))
    if not prompts:
        raise Invalid("prompt is missing.")
    if len(stops) > MOST_STOPS or not all(stops):
        raise Invalid(f"stop is at most {MOST_STOPS} texts, none of them empty.")
    if max(map(len, stops), default=0) > STOP_CHARACTERS:
        raise Invalid(f"A text of stop may have {STOP_CHARACTERS} characters.")
    for name, values in _NEUTRAL.items():
        if name in fields and fields[name] not in values:
            raise Invalid(f"{name} is not supported. Leave it out.")
    n, stream = fields.get("n", 1), fields.get("stream", False)
    if type(n) is not int or n < 1:
        raise Invalid("n is a number of texts for each prompt, at least 1.")
    if type(stream) is not bool:
        raise Invalid("stream is true or false.")
    if stream and not model.description.streams:
        raise Invalid(f"{model.name} does not stream. Export it with layout='steps'.")
    if stream and (n > 1 or len(prompts) > 1):
        raise Invalid("A stream has one prompt, and n is 1.")
    asked = fields.get("stream_options", {})
    if not isinstance(asked, dict) or asked and not stream:
        raise Invalid("stream_options is an object, and needs stream to be true.")
    check_names(asked, _STREAM_OPTIONS, "stream_options")
    options = _options(model, fields, len(prompts))
    width = options.get("beam_width", model.description.width)
    if n > width:
        raise Invalid(f"n is {n}, and the search of {model.name} gives {width}.")
    usage = asked.get("include_usage") is True
    return _Parsed(model, prompts, options, n, stops, stream, usage)


def _texts(name: str, value: object) -> list[str]:
    """Returns a text or a list of texts, as a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Invalid(f"{name} is a text or a list of texts, not {shorten(value)}.")
    return texts


def _options(model: Model, fields: dict[str, Any], count: int) -> dict[str, Any]:
    """Returns the options of the search that have an effect on this model."""
    options = dict(fields)
    for name, values in _NEUTRAL_OPTIONS.items():
        if name not in model.description.options and options.get(name) in values:
            del options[name]
    if options.get("temperature") == 0:  # asks for the most likely token
        options["temperature"] = CALL_OPTIONS["temperature"].lowest
    if not model.description.samples:
        options.pop("seed", None)
    if "max_tokens" in fields:
        given = fields["max_tokens"]
        most = given if isinstance(given, list) else [given]
        if not all(type(one) is int and 1 <= one <= NEW_TOKENS for one in most):
            raise Invalid(f"max_tokens is an integer from 1 to {NEW_TOKENS}, not {shorten(given)}.")
        if "max_length" in fields:
            raise Invalid("max_tokens and max_length are the same. Pass one of them.")
        options["max_length"] = given
    return model.checked_options(options, count, (*_FIELDS, *_NEUTRAL))


def _response(
    head: dict[str, Any], parsed: _Parsed, results: list[Generation], prompt_tokens: int
) -> Response:
    """Returns the choices, and the number of tokens."""
    choices, tokens = [], 0
    for number, result in enumerate(results, 1):
        if result.error is not None:
            raise Invalid(f"Prompt {number} is not continued: {result.error}")
        tokens += sum(map(len, result.token_ids[: parsed.n]))
        for index, text in enumerate(result.full_texts[: parsed.n]):
            text = text[len(result.prompt_text) :]
            cut = _cut(text, parsed.stops)
            reason = _reason(result, index) if cut is None else "stop"
            choices.append(_choice(text[:cut], reason, len(choices)))
    return JSONResponse({**head, "choices": choices, "usage": _usage(prompt_tokens, tokens)})


async def _events(
    parsed: _Parsed, head: dict[str, Any], record: Record, part: Any, parts: AsyncGenerator[Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yields the events of a stream; `part` is its first part."""
    text, prompt_tokens, tokens, reason = "", 0, 0, None
    async with contextlib.aclosing(parts):
        try:
            while reason is None:
                if isinstance(part, Generation):
                    tokens, reason, waiting = sum(map(len, part.token_ids[:1])), _reason(part), 0
                else:
                    more, prompt_tokens, tokens = part
                    text += more
                    waiting = _waiting(text, parsed.stops)
                cut = _cut(text, parsed.stops)
                if cut is not None:
                    reason = "stop"
                else:
                    cut = len(text) - waiting
                if reason is not None:
                    await parts.aclose()  # no further step
                if cut or reason is not None:
                    yield {**head, "choices": [_choice(text[:cut], reason)]}
                    text = text[cut:]
                if reason is None:
                    part = await anext(parts)
        except Refusal as refusal:
            record.status = refusal.status
            yield error_body(refusal.status, str(refusal))
            return
    if parsed.usage:
        yield {**head, "choices": [], "usage": _usage(prompt_tokens, tokens)}


def _cut(text: str, stops: list[str]) -> int | None:
    """Returns the place of the stop that is complete first, or `None`."""
    places = [(text.find(stop), stop) for stop in stops]
    return min(((p + len(stop), p) for p, stop in places if p >= 0), default=(0, None))[1]


def _waiting(text: str, stops: list[str]) -> int:
    """Counts the characters at the end of a text that may begin a stop."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )


def _reason(result: Generation, index: int = 0) -> str:
    """Returns OpenAI's reason for the end of a text; a blank prompt has no tokens."""
    ended = not result.token_ids or result.token_ids[index][-1:] == (END_ID,)
    return "stop" if ended else "length"


def _choice(text: str, reason: str | None, index: int = 0) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }
