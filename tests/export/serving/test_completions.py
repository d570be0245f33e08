"""OpenAI's protocol, with the package `openai`: completions, streams, models, errors."""

import concurrent.futures
import io
import itertools
import json
import math
import socket

import openai
import pytest
from helpers import exports, local_service
from helpers.service_requests import ask, wait_for

from keras_transformer.export.runtime import Generator
from keras_transformer.export.serving import line_queue
from keras_transformer.export.serving.engine import Engine
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
    log = io.StringIO()
    pools = {name: local_service.Pool(folder()) for name, folder in FOLDERS.items()}
    made = local_service.Running({**pools, "en-de": local_service.Pool(folder)}, log=log)
    made.pools, made.log = pools, log
    yield made
    made.stop()


@pytest.fixture(scope="module")
def client(running):
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key="-", max_retries=0
    ) as made:
        yield made


def continuation(result, index=0):
    """Returns the text after the prompt, with the space before it."""
    return result.full_texts[index].removeprefix(result.prompt_text)


def extra(**fields):
    return {"extra_body": fields}


def reason(result, index=0):
    return "stop" if result.token_ids[index][-1] == END_ID else "length"


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
    (prompt_tokens,) = generators["greedy"].lengths([PROMPT])
    tokens = len(expected.token_ids[0])
    usage = found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens
    assert usage == (prompt_tokens, tokens, prompt_tokens + tokens)


def test_options_samples_and_several_prompts(client, generators):
    prompts = [PROMPT, "the dog runs", " "]
    options = {"temperature": 0.5, "max_length": 7}
    expected = generators["one-file"].n_best(prompts, 3, **options)
    found = client.completions.create(
        model="one-file", prompt=prompts, n=1, seed=3, temperature=0.5, max_tokens=7, top_p=0.95
    )
    assert [choice.text for choice in found.choices] == [*map(continuation, expected)]
    found = client.completions.create(
        model="one-file", prompt=prompts[:2], n=2, seed=3, temperature=0.5, max_tokens=7
    )
    texts = [continuation(result, n) for result in expected[:2] for n in range(2)]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    reasons = [reason(result, n) for result in expected[:2] for n in range(2)]
    assert [choice.finish_reason for choice in found.choices] == reasons
    count = sum(len(ids) for result in expected[:2] for ids in result.token_ids)
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


def test_a_text_ends_before_the_first_stop_string(client, running):
    options = {"model": "greedy", "prompt": PROMPT}
    whole = client.completions.create(**options)
    text = whole.choices[0].text
    for start, end in ((1, 2), (3, 5), (len(text) // 2, len(text) // 2 + 3), (len(text) - 1, None)):
        stop = text[start:end]
        expected = text[: text.index(stop)]
        found = client.completions.create(**options, stop=["no such text", stop])
        assert (found.choices[0].text, found.choices[0].finish_reason) == (expected, "stop")
        parts = running.pools["greedy"].parts
        parts.clear()
        chunks = list(client.completions.create(**options, stop=stop, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"
    assert client.completions.create(**options, stop=text + "x").choices[0] == whole.choices[0]
    for stops in ([text[1:6], text[2:4]], [text[3:], text[1:]]):  # overlapping
        one = client.completions.create(**options, stop=stops).choices[0]
        chunks = client.completions.create(**options, stop=stops, stream=True)
        assert one.text == "".join(chunk.choices[0].text for chunk in chunks)


def test_the_first_event_comes_with_the_first_token(client, running, generators):
    pool = running.pools["greedy"]
    pool.parts = []  # a stream that ends now still has the list before
    (prompt_tokens,) = generators["greedy"].lengths([PROMPT])
    pool.most_steps = prompt_tokens  # the last of these steps gives the first token
    try:
        stream = client.completions.create(model="greedy", prompt=PROMPT, stream=True)
        assert next(stream).choices[0].text
        assert [part.tokens for part in pool.parts] == [0] * (prompt_tokens - 1) + [1]
    finally:
        pool.most_steps = math.inf
    assert [chunk.choices[0].text for chunk in stream]


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
        with socket.create_connection(("127.0.0.1", running.port)) as opened:
            opened.sendall(head.encode() + body)
            wait_for(lambda: len(pool.parts) == pool.most_steps)  # the worker computes it
            if begun:
                opened.settimeout(60)
                assert opened.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: running.metric("open_requests") == 0)
    finally:
        ran, pool.most_steps = len(pool.parts), math.inf
    again = client.completions.create(**options, timeout=60)
    assert again.choices == whole.choices
    assert len(pool.parts) <= ran + 1 < whole.usage.total_tokens - 1
    wait_for(lambda: statuses(running)[-2:] == [499, 200])


def statuses(running):
    """Returns the statuses in the log."""
    return [json.loads(line)["status"] for line in running.log.getvalue().splitlines()]


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


def test_http_errors_have_the_form_of_the_protocol(running):
    for path, body, headers, status in (
        (PATH, b"{", (), 400),
        (PATH, b"{}", {"Host": "example.com"}, 403),
        ("/v1/chat/completions", b"{}", (), 404),
        (PATH, b"{}", {"Content-Encoding": "gzip"}, 415),
    ):
        found, _, answer = ask(running, path, body, headers)
        assert found == status
        assert json.loads(answer)["error"]["type"] == "invalid_request_error"


def test_the_limits_hold_for_streams():
    """One stream is computed, one request waits, and the next one is refused."""
    pool, limits = local_service.Pool(FOLDERS["greedy"]()), Limits(waiting_lines=1)
    limited = local_service.Running({"greedy": pool}, limits)
    options = {"model": "greedy", "prompt": PROMPT, "stream": True}
    deadline = {"extra_headers": {"Request-Timeout": "100"}}
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{limited.port}/v1", api_key="-", max_retries=0
        ) as client,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        usage = client.completions.create(**{**options, "stream": False}).usage
        pool.most_steps = usage.prompt_tokens
        try:
            first = client.completions.create(**options, **deadline)
            assert next(first).choices[0].text
            second = threads.submit(lambda: list(client.completions.create(**options)))
            wait_for(lambda: limited.models.get("greedy").queue.waiting == 1)
            with pytest.raises(openai.RateLimitError, match="1 lines wait already"):
                next(client.completions.create(**options))
            limited.pass_time(101)
            with pytest.raises(openai.APIError, match="The deadline of the request is over"):
                list(first)
        finally:
            pool.most_steps = math.inf
        assert second.result(60)[-1].choices[0].finish_reason
    assert limited.stop()


def test_open_streams_are_finished_at_shutdown():
    pool = local_service.Pool(FOLDERS["greedy"]())
    running = local_service.Running({"greedy": pool})
    pool.most_steps = 1
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{running.port}/v1", api_key="-", max_retries=0
        ) as client,
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        chunks = threads.submit(
            lambda: list(client.completions.create(model="greedy", prompt=PROMPT, stream=True))
        )
        wait_for(lambda: pool.parts)
        running.begin_to_stop()
        wait_for(lambda: running.models.admission.draining)
        pool.most_steps = math.inf
        assert chunks.result(60)[-1].choices[0].finish_reason
    assert running.stop()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["greedy", "sample"])
def test_a_stream_in_slices_is_the_same_stream(name, every):
    engine = Engine(FOLDERS[name](), threads=1)
    options = {"seed": 5} if name == "sample" else {}

    def parts(most):
        found, work = [], PROMPT
        while True:
            counts = itertools.count(1)
            batch = engine.run_stream(
                work,
                options,
                lambda part, counts=counts: found.append(part) or next(counts) < most,
            )
            if batch.rest is None:
                return found, batch.results, batch.lengths
            assert batch.results == batch.lengths == []
            work = batch.rest

    assert parts(every) == parts(math.inf)
    engine.close()


def test_streams_take_turns_and_stay_the_same(client, running, monkeypatch):
    prompts = ["a man 's hat", "the dog", "two words", "a dog runs"]

    def stream(prompt):
        chunks = client.completions.create(model="greedy", prompt=prompt, stream=True)
        return "".join(chunk.choices[0].text for chunk in chunks)

    expected = [*map(stream, prompts)]
    monkeypatch.setattr(line_queue, "SLICE_SECONDS", 0.0)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            assert [*threads.map(stream, prompts)] == expected
    wait_for(lambda: running.models.get("greedy").queue.waiting == 0)
