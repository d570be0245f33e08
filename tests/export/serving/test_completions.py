"""OpenAI's protocol, with the package `openai`: completions, streams, models, errors."""

import concurrent.futures
import io
import itertools
import json
import math

import openai
import pytest
from helpers import exports, local_service
from helpers.service_requests import ask, connected, wait_for

from keras_transformer.export.runtime import Generator
from keras_transformer.export.serving import line_queue
from keras_transformer.export.serving.limits import Limits
from keras_transformer.search import GreedySearch, Sampling
from keras_transformer.special_ids import END_ID

FOLDERS = {
    "greedy": lambda: exports.artefact(GreedySearch(min_length=5), "generate", layout="steps"),
    "sample": lambda: exports.artefact(Sampling(0.9, 20, 0.95), "generate", layout="steps"),
    "one-file": lambda: exports.artefact(exports.SAMPLING, "generate"),
}
PROMPT = "a man 's hat"
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def generators():
    return {name: Generator(folder(), threads=1) for name, folder in FOLDERS.items()}


@pytest.fixture(scope="module")
def running(folder):
    folders = {name: made() for name, made in FOLDERS.items()} | {"en-de": folder}
    pools = {name: local_service.Pool(path) for name, path in folders.items()}
    with local_service.Running(pools, log=io.StringIO()) as made:
        yield made


@pytest.fixture(scope="module")
def client(running):
    with running.openai() as made:
        yield made


def continuation(result, index=0):
    """Returns the text after the prompt, with the space before it."""
    return result.full_texts[index].removeprefix(result.prompt_text)


def extra(**fields):
    return {"extra_body": fields}


def reason(result, index=0):
    return "stop" if result.token_ids[index][-1] == END_ID else "length"


@pytest.mark.full
def test_the_protocol_lists_only_models_that_generate(client):
    assert [model.id for model in client.models.list()] == sorted(FOLDERS)
    assert client.models.retrieve("greedy").object == "model"
    with pytest.raises(openai.NotFoundError, match="There is no model"):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="has the task 'translate'"):
        client.completions.create(model="en-de", prompt=PROMPT)


def test_a_completion_is_the_text_of_the_generator(client, generators):
    (expected,) = generators["greedy"].n_best([PROMPT])
    found = client.completions.create(model="greedy", prompt=PROMPT)
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == (continuation(expected), reason(expected))
    assert PROMPT + choice.text == expected.full_text
    assert found.object == "text_completion" and found.model == "greedy"
    (prompt_tokens,), tokens = generators["greedy"].lengths([PROMPT]), len(expected.token_ids[0])
    usage = found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens
    assert usage == (prompt_tokens, tokens, prompt_tokens + tokens)


@pytest.mark.parametrize("n, more", [(1, {"top_p": 0.95}), (2, {})])
def test_options_samples_and_several_prompts(client, generators, n, more):
    prompts, options = [PROMPT, "the dog runs", " "][: 4 - n], {"seed": 3, "temperature": 0.5}
    results = generators["one-file"].n_best(prompts, max_length=7, **options)
    found = client.completions.create(
        model="one-file", prompt=prompts, n=n, max_tokens=7, **options, **more
    )
    expected = [
        (number, continuation(result, index), reason(result, index) if result.token_ids else "stop")
        for number, (result, index) in enumerate(itertools.product(results, range(n)))
    ]
    assert [(one.index, one.text, one.finish_reason) for one in found.choices] == expected
    count = sum(len(ids) for result in results for ids in result.token_ids[:n])
    assert found.usage.completion_tokens == count


def test_temperature_0_takes_the_most_likely_tokens(client):
    def texts(model, calls):
        answers = [client.completions.create(model=model, prompt=PROMPT, **call) for call in calls]
        return {answer.choices[0].text for answer in answers}

    assert len(texts("sample", [{"seed": n, "temperature": 0} for n in range(4)])) == 1
    unused = {"temperature": 1, "top_p": 1, "seed": 4, "user": "me"}
    assert len(texts("greedy", [{}, {"temperature": 0}, unused])) == 1


@pytest.mark.parametrize("name", ["greedy", "sample"])
@pytest.mark.parametrize("prompt", [PROMPT, "😀 é", "a", " "])
def test_a_stream_gives_the_text_and_the_usage_of_a_completion(client, name, prompt):
    options = {"model": name, "prompt": prompt, "seed": 5}
    expected = client.completions.create(**options)
    *chunks, last = client.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.choices[0].text
    assert all(chunk.choices[0].text for chunk in chunks[:-1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [expected.choices[0].finish_reason]
    assert (last.choices, last.usage) == ([], expected.usage)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_a_text_ends_before_the_first_stop_string(client):
    options = {"model": "greedy", "prompt": PROMPT}

    def ended(stop):
        """Returns text and reason of a completion, which are those of a stream."""
        one = client.completions.create(**options, stop=stop).choices[0]
        chunks = [
            c.choices[0] for c in client.completions.create(**options, stop=stop, stream=True)
        ]
        assert "".join(chunk.text for chunk in chunks) == one.text
        assert chunks[-1].finish_reason == one.finish_reason
        return one.text, one.finish_reason

    whole = ended(None)
    text, middle = whole[0], len(whole[0]) // 2
    for stop in (text[1:2], text[3:5], text[middle : middle + 3], text[-1:]):
        assert ended(["no such text", stop]) == (text[: text.index(stop)], "stop")
    assert ended(text + "x") == whole
    for overlapping in ([text[1:6], text[2:4]], [text[3:], text[1:]]):
        assert ended(overlapping)[1] == "stop"


@pytest.mark.parametrize("begun", [True, False])
def test_a_stream_that_the_client_leaves_frees_its_worker(client, running, begun):
    """The only worker must be free for the next request."""
    pool = running.pools["greedy"]
    options = {"model": "greedy", "prompt": PROMPT}
    whole = client.completions.create(**options)
    pool.parts = []  # a stream that ends now still has the list before
    pool.most_steps = whole.usage.prompt_tokens if begun else 1  # 1 step gives no text
    body = json.dumps({**options, "stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with connected(running, head.encode() + body) as opened:
            wait_for(lambda: len(pool.parts) == pool.most_steps)  # the worker computes it
            if begun:
                assert opened.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: running.metric("open_requests") == 0)
    finally:
        ran, pool.most_steps = len(pool.parts), math.inf
    again = client.completions.create(**options, timeout=60)
    assert again.choices == whole.choices
    assert len(pool.parts) <= ran + 1 < whole.usage.total_tokens - 1
    wait_for(lambda: [row["status"] for row in running.rows()[-2:]] == [499, 200])


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"stream": True, "model": "one-file"}, "one-file does not stream.*layout='steps'"),
        ({"stream": True, "prompt": ["a", "b"]}, "A stream has one prompt"),
        ({"stream": True, "n": 2}, "n is 1"),
        ({"n": 2}, "n is 2, and the search of greedy gives 1"),
        ({"n": 0}, "n must be an integer from 1"),
        ({"prompt": [[5, 7]]}, "prompt must be a text or a list of texts"),
        ({"prompt": []}, "prompt is missing"),
        ({"stop": ["a"] * 5}, "stop must be at most 4 texts"),
        ({"stop": ""}, "texts of 1 to 1000 characters"),
        ({"logprobs": 1}, "logprobs must be left out: it is not supported, got 1"),
        ({"presence_penalty": 0.5}, "presence_penalty must be 0 or left out"),
        ({"temperature": 0.7}, "greedy does not take temperature"),
        ({"max_tokens": 0}, "max_tokens must be at least 1 and at most 8192, got 0"),
        ({"max_tokens": -1}, "max_tokens must be at least 1 and at most 8192, got -1"),
        ({"max_tokens": 9000}, "max_tokens must be at least 1 and at most 8192, got 9000"),
        ({"max_tokens": "many"}, "max_tokens must be an integer, got 'many'"),
        ({"max_tokens": 8, **extra(max_length=8)}, "max_tokens and max_length are the same"),
        ({"max_tokens": 3, **extra(min_length=4)}, "max_length 3 is below min_length 4"),
        ({"max_tokens": 3}, "max_length 3 is below min_length 5"),
        (extra(max_lenght=3), "greedy does not take max_lenght. Did you mean max_length?"),
        (extra(max_token=3), "Did you mean max_tokens?"),
        (extra(promt="x"), "Did you mean prompt?"),
        (extra(echos=True), "Did you mean echo?"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream to be true"),
        (
            {"stream": True, "stream_options": {"include_useage": True}},
            "stream_options does not take include_useage. Did you mean include_usage?",
        ),
        ({"model": "sample", "temperature": -1}, "`?temperature`? must"),
        ({"model": "sample", "temperature": -1, "stream": True}, "`?temperature`? must"),
    ],
)
def test_errors_have_the_form_of_the_protocol(client, parameters, message):
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.completions.create(**{"model": "greedy", "prompt": PROMPT, **parameters})
    assert error.value.body["type"] == "invalid_request_error"
    assert error.value.body["message"] in str(error.value)


@pytest.mark.parametrize(
    "path, body, headers, status",
    [
        (PATH, b"{", {}, 400),
        (PATH, b"{}", {"Host": "example.com"}, 403),
        ("/v1/chat/completions", b"{}", {}, 404),
    ],
)
def test_http_errors_have_the_form_of_the_protocol(running, path, body, headers, status):
    found, _, answer = ask(running, path, body, headers)
    assert found == status
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


def test_the_limits_and_the_shutdown_hold_for_streams():
    """One stream is computed, one request waits, and the next one is refused."""
    pool = local_service.Pool(FOLDERS["greedy"]())
    running = local_service.Running({"greedy": pool}, Limits(waiting_lines=1))
    options = {"model": "greedy", "prompt": PROMPT, "stream": True}
    with running.openai() as client, concurrent.futures.ThreadPoolExecutor() as threads:
        usage = client.completions.create(**{**options, "stream": False}).usage
        pool.most_steps = usage.prompt_tokens  # the last of these steps gives the first token
        first = client.completions.create(**options, extra_headers={"Request-Timeout": "100"})
        assert next(first).choices[0].text
        assert [part.tokens for part in pool.parts] == [0] * (usage.prompt_tokens - 1) + [1]
        second = threads.submit(lambda: list(client.completions.create(**options)))
        wait_for(lambda: running.models.get("greedy").queue.waiting == 1)
        with pytest.raises(openai.RateLimitError, match="1 lines wait already"):
            next(client.completions.create(**options))
        running.pass_time(101)
        with pytest.raises(openai.APIError, match="The deadline of the request is over"):
            list(first)
        running.begin_to_stop()
        wait_for(lambda: running.models.admission.draining)
        assert ask(running, PATH, options)[0] == running.request("GET", "/ready")[0] == 503
        assert running.request("GET", "/live")[0] == 200
        pool.most_steps = math.inf
        assert second.result(60)[-1].choices[0].finish_reason
    assert running.stop()


def test_streams_take_turns_and_stay_the_same(client, running, monkeypatch):
    prompts = ["a man 's hat", "the dog", "two words", "a dog runs"]
    calls = [(model, prompt) for model in ("greedy", "sample") for prompt in prompts]

    def stream(call):
        model, prompt = call
        options = {"seed": 5, "stream_options": {"include_usage": True}}
        *chunks, last = client.completions.create(
            model=model, prompt=prompt, stream=True, **options
        )
        return "".join(chunk.choices[0].text for chunk in chunks), last.usage

    expected = [*map(stream, calls)]
    monkeypatch.setattr(line_queue, "SLICE_SECONDS", 0.0)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for _ in range(2):
            assert [*threads.map(stream, calls)] == expected
    wait_for(lambda: running.models.get("greedy").queue.waiting == 0)
