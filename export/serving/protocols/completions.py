"""OpenAI's protocol: `/v1/completions`, for language models, and `/v1/models`.

With `stream`, the text is sent as server-sent events. The model then needs the layout "steps".
"""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.artefact.results import Generation
from keras_transformer.export.serving.bodies import read_json
from keras_transformer.export.serving.endpoints import Call, endpoint, page
from keras_transformer.export.serving.fields import (
    ANY,
    FLAG,
    OBJECT,
    TEXT,
    TEXTS,
    Field,
    as_list,
    integer,
    only,
    read_fields,
    texts,
)
from keras_transformer.export.serving.limits import STOP_CHARACTERS
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid, Unknown
from keras_transformer.special_ids import END_ID

MOST_TEXTS = 1000  # for each prompt; the search has fewer
FIELDS = (
    Field("model", TEXT, needed=True),
    Field("prompt", TEXTS, needed=True),
    Field("stop", texts(4, STOP_CHARACTERS), ()),
    Field("n", integer(1, MOST_TEXTS), 1),
    Field("stream", FLAG, False),
    Field("stream_options", OBJECT, {}),
    Field("max_tokens", ANY, option="max_length"),
    Field("user", ANY),  # has no effect
    # Fields that no model supports.
    Field("best_of", only(1)),
    Field("echo", only(False)),
    Field("frequency_penalty", only(0)),
    Field("logit_bias", only({})),
    Field("logprobs", only()),
    Field("presence_penalty", only(0)),
    Field("suffix", only("")),
)
STREAM_OPTIONS = (Field("include_usage", FLAG, False), Field("include_obfuscation", ANY))
# Values of options with which a model that has no such option agrees.
_NEUTRAL: dict[str, tuple[float, ...]] = {"temperature": (0, 1), "top_p": (1,)}


def routes(models: Models) -> list[Route]:
    """Returns the routes of the protocol."""
    created = int(time.time())

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "keras_transformer"}

    def list_models(models: Models, request: Request) -> dict[str, Any]:
        names = [name for name in models.names() if _has_protocol(models.get(name))]
        return {"object": "list", "data": [described(name) for name in names]}

    def one_model(models: Models, request: Request) -> dict[str, Any]:
        model = models.get(request.path_params["model"])
        if not _has_protocol(model):
            raise Unknown(f"{model.name} has no endpoint of this protocol.")
        return described(model.name)

    return [
        page(models, "/v1/models", list_models),
        page(models, "/v1/models/{model}", one_model),
        endpoint(models, "/v1/completions", "openai", _call, _answer, _events),
    ]


def _has_protocol(model: Model) -> bool:
    return model.description.task == "generate" or model.description.hears


def _call(models: Models, request: Request, body: bytes) -> Call:
    given = read_json(body)
    values = read_fields(given, FIELDS, has_options=True)
    model = models.get(values["model"])
    if model.description.task != "generate":
        task = model.description.task
        raise Unknown(f"{model.name} has the task {task!r} and gives no completions.")
    # A line end, which the runtime removes, so that the prompt's own line end stays.
    prompts = [f"{prompt}\n" for prompt in as_list(values["prompt"])]
    models.admission.check_lines(len(prompts))
    if not prompts:
        raise Invalid("prompt is missing: it must be a text or a list of texts.")
    n, streams = values["n"], values["stream"]
    if streams and not model.description.streams:
        raise Invalid(f"{model.name} does not stream. Export it with layout='steps'.")
    if streams and (n > 1 or len(prompts) > 1):
        raise Invalid("A stream has one prompt, and n is 1.")
    usage = read_fields(values["stream_options"], STREAM_OPTIONS, "stream_options")
    if values["stream_options"] and not streams:
        raise Invalid("stream_options needs stream to be true.")
    options = _options(model, given, len(prompts))
    width = options.get("beam_width", model.description.width)
    if n > width:
        raise Invalid(f"n is {n}, and the search of {model.name} gives {width}.")
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }
    stops = as_list(values["stop"]) if values["stop"] else []
    answer = {"head": head, "n": n, "stops": stops, "usage": usage["include_usage"]}
    return Call(model, prompts, options, answer, in_parts=streams, streams=streams)


def _options(model: Model, given: dict[str, Any], count: int) -> dict[str, Any]:
    """Returns the options of the search that have an effect on this model."""
    given, known = dict(given), model.description.options
    for name, values in _NEUTRAL.items():
        if name not in known and given.get(name) in values:
            del given[name]
    if given.get("temperature") == 0:  # asks for the most likely token
        given["temperature"] = known["temperature"].lowest
    if not model.description.samples:
        given.pop("seed", None)
    return model.checked_options(given, count, FIELDS)


def _answer(call: Call, results: Sequence[Generation], prompt_tokens: int) -> Response:
    """Returns the choices, and the number of tokens."""
    choices, tokens, n = [], 0, call.values["n"]
    for number, result in enumerate(results, 1):
        if result.error is not None:
            raise Invalid(f"Prompt {number} is not continued: {result.error}")
        tokens += sum(map(len, result.token_ids[:n]))
        for index, text in enumerate(result.full_texts[:n]):
            text = text[len(result.prompt_text) :]
            cut = _cut(text, call.values["stops"])
            reason = _reason(result, index) if cut is None else "stop"
            choices.append(_choice(text[:cut], reason, len(choices)))
    usage = _usage(prompt_tokens, tokens)
    return JSONResponse({**call.values["head"], "choices": choices, "usage": usage})


async def _events(
    call: Call, part: Any, parts: AsyncGenerator[Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Yields the events of a stream; `part` is its first part."""
    head, stops = call.values["head"], call.values["stops"]
    text, prompt_tokens, tokens, reason = "", 0, 0, None
    while reason is None:
        if isinstance(part, Generation):
            tokens, reason, waiting = sum(map(len, part.token_ids[:1])), _reason(part), 0
        else:
            more, prompt_tokens, tokens = part
            text += more
            waiting = _waiting(text, stops)
        cut = _cut(text, stops)
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
    if call.values["usage"]:
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
