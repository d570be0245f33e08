"""All protocols, with third-party clients: each returns the texts of `Translator`."""

import concurrent.futures
import json
import shutil
import socket
import subprocess
import time
import types

import numpy as np
import pytest
import tritonclient.http
from helpers import artefacts
from helpers.service_requests import infer
from libretranslatepy import LibreTranslateAPI

from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.serving.bodies import FORM, read_content
from keras_transformer.export.serving.protocols.libretranslate import _pairs

LINES = [*artefacts.LINES, "", "  ", "two\0dogs", "x " * 100, "a dog 😀"]
JSON = {"Content-Type": "application/json"}


class HttpClient(tritonclient.http.InferenceServerClient):
    """A client without a finaliser, because the original would close it again."""

    def __del__(self):
        pass


@pytest.fixture(scope="module")
def expected(folder):
    return Translator(folder).n_best(LINES)


@pytest.fixture
def triton(running):
    with HttpClient(f"127.0.0.1:{running.port}") as client:
        yield client


def tensor(lines, **options):
    made = tritonclient.http.InferInput("text", [len(lines)], "BYTES")
    made.set_data_from_numpy(np.array([line.encode() for line in lines], object), **options)
    return made


def test_tritonclient_reads_server_and_model_metadata(triton):
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("en-de") and not triton.is_model_ready("no")
    server, model = triton.get_server_metadata(), triton.get_model_metadata("en-de")
    assert server["name"] == "keras_transformer"
    assert [entry["name"] for entry in model["outputs"]] == ["text", "result", "error"]
    assert triton.is_model_ready("en-de", model["versions"][0])


def test_tritonclient_gets_the_results_of_translator(triton, expected):
    answer = triton.infer("en-de", [tensor(LINES)], request_id="seven")
    texts = [text.decode() for text in answer.as_numpy("text")]
    assert texts == [result.text for result in expected]
    errors = [text.decode() or None for text in answer.as_numpy("error")]
    assert errors == [result.error for result in expected] and any(errors)
    results = [json.loads(text) for text in answer.as_numpy("result")]
    assert [tuple(result["texts"]) for result in results] == [one.texts for one in expected]


def test_a_request_sets_options_of_the_search(triton, running, folder):
    lines = artefacts.LINES
    answer = triton.infer("en-de", [tensor(lines)], parameters={"max_length": 2})
    texts = [text.decode() for text in answer.as_numpy("text")]
    expected = Translator(folder).translate(lines, max_length=2)
    assert texts == expected != Translator(folder).translate(lines)
    data = "\n".join(lines).encode()
    _, _, body = running.request("POST", "/lines/en-de?max_length=2", data)
    assert body.decode().splitlines() == expected
    for query, words in {
        "beam_width=2": "en-de does not take beam_width. It takes: max_length",
        "max_length=two": "max_length must be an integer",
        "max_length=0": "max_length must be at least 1",
        "length=2": "en-de does not take length. Did you mean max_length?",
        "format=xml": "format must be one of text, json, got 'xml'",
        "fromat=json": "en-de does not take fromat. Did you mean format?",
    }.items():
        status, _, body = running.request("POST", f"/lines/en-de?{query}", b"two dogs")
        assert status == 400 and words in body.decode()


def test_json_and_binary_data_give_the_same_texts(running, expected):
    with HttpClient(f"127.0.0.1:{running.port}") as client:
        for binary_in in (True, False):
            for binary_out in (True, False):
                output = tritonclient.http.InferRequestedOutput("text", binary_data=binary_out)
                inputs = tensor(LINES[:3], binary_data=binary_in)
                answer = client.infer("en-de", [inputs], outputs=[output]).as_numpy("text")
                found = [text if isinstance(text, str) else text.decode() for text in answer]
                assert found == [result.text for result in expected[:3]]


@pytest.mark.parametrize("cut", [0, 20])
def test_no_part_waits_for_a_tcp_acknowledgement(running, cut):
    """Requests and answers have two parts. Waiting for an acknowledgement takes 40 ms."""
    request, seconds = b"GET /v2/models/en-de HTTP/1.1\r\nHost: localhost\r\n\r\n", []
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as opened:
        while len(seconds) < 300 and min(seconds[5:], default=1) >= 0.03:  # others need time, too
            begun, found = time.perf_counter(), b""
            for part in filter(None, (request[:cut], request[cut:])):
                opened.sendall(part)
            while not found.endswith(b"}"):
                found += opened.recv(2**16)
            seconds.append(time.perf_counter() - begun)
    assert min(seconds[5:]) < 0.03  # the first ones are acknowledged at once anyway


def test_a_request_sets_the_seed(triton, seeded_folder):
    prompts = artefacts.LINES[:2]
    expected = {seed: Generator(seeded_folder).generate(prompts, seed) for seed in (3, 4)}
    assert expected[3] != expected[4]
    for seed, texts in expected.items():
        answer = triton.infer("story", [tensor(prompts)], parameters={"seed": seed})
        assert [text.decode() for text in answer.as_numpy("text")] == texts


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model_name": "no"}, "There is no model 'no'. There are: en-de, story."),
        ({"model_name": "en-de", "model_version": "9"}, "en-de has no version '9'"),
        ({"model_name": "en-de", "parameters": {"seed": 1}}, "en-de does not take seed"),
        (
            {"model_name": "story", "parameters": {"seed": -1}},
            "seed must be an integer|seed must be at least 0",
        ),
        (
            {"model_name": "story", "parameters": {"seed": "x"}},
            "seed must be an integer|seed must be at least 0",
        ),
    ],
)
def test_errors_of_tritonclient_name_the_problem(triton, arguments, message):
    with pytest.raises(tritonclient.utils.InferenceServerException, match=message):
        triton.infer(inputs=[tensor(["two dogs"])], **arguments)


def test_libretranslate(running, expected):
    client = LibreTranslateAPI(f"http://127.0.0.1:{running.port}/")
    assert {"code": "en", "name": "en", "targets": ["de"]} in client.languages()
    assert client.translate(LINES[0], "en", "de") == expected[0].text
    text = client.translate("\n".join(LINES[:3]), "en", "de")
    assert text == "\n".join(result.text for result in expected[:3])


def libretranslate(running, **fields):
    body = json.dumps({"source": "en", "target": "de", **fields})
    status, _, answer = running.request("POST", "/translate", body, JSON)
    return status, json.loads(answer)


def test_libretranslate_takes_lists_and_gives_alternatives(running, expected):
    status, answer = libretranslate(running, q=LINES[:2], alternatives=3)
    assert status == 200
    assert answer["translatedText"] == [result.text for result in expected[:2]]
    assert answer["alternatives"] == [[result.texts[1]] for result in expected[:2]]
    status, answer = libretranslate(running, q="")
    assert (status, answer) == (200, {"translatedText": ""})


def test_a_byte_order_mark_is_no_text(running, expected):
    text = f"\ufeff{LINES[0]}"
    assert libretranslate(running, q=text) == (200, {"translatedText": expected[0].text})
    _, _, answer = running.request("POST", "/lines/en-de", text.encode())
    assert answer.decode() == f"{expected[0].text}\n"


def test_a_repeated_field_of_a_form_is_a_list():
    fields, files = read_content(FORM, b"q=a&terms=Hut&terms=rot&source=en", (FORM,))
    assert (fields, files) == ({"q": "a", "terms": ["Hut", "rot"], "source": "en"}, {})


def test_libretranslate_keeps_tags_lines_and_sentences(running, expected):
    one, two = (result.text for result in expected[:2])
    text = f"  {LINES[0]}\n\n{LINES[1]} {{{{name}}}}"
    status, answer = libretranslate(running, q=text)
    assert (status, answer["translatedText"]) == (200, f"  {one}\n\n{two} {{{{name}}}}")
    text = f'<p id="x">{LINES[0]}</p><ul><li>{LINES[1]}<br>12</ul>'
    status, answer = libretranslate(running, q=[text, "<hr>"], format="html")
    assert status == 200
    assert answer["translatedText"] == [f'<p id="x">{one}</p><ul><li>{two}<br>12</ul>', "<hr>"]


def test_fields_of_the_protocol_that_have_no_effect_are_accepted(running, expected):
    for fields in ({"api_key": "a", "secret": "b"}, {"max_lenght": None}):
        status, answer = libretranslate(running, q=LINES[0], **fields)
        assert (status, answer["translatedText"]) == (200, expected[0].text)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("\ud800", r"take \\ud800"),
        ("time_out", "take time_out. Did you mean timeout?"),
        ("max_lenght", "take max_lenght. Did you mean max_length?"),
        ("sequence_id", "en-de does not take sequence_id."),
    ],
)
def test_unknown_parameters_of_the_inference_protocol_are_refused(running, wrong, message):
    body = json.dumps(infer(["two dogs"]) | {"parameters": {wrong: 3}})
    status, _, answer = running.request("POST", "/v2/models/en-de/infer", body)
    assert status == 400 and message in answer.decode()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"q": "x", "format": "pdf"}, "format must be one of text, html, got 'pdf'"),
        ({"q": "x", "max_lenght": 3}, "en-de does not take max_lenght. Did you mean max_length?"),
        ({"q": "x", "alternative": 3}, "en-de does not take alternative. Did you mean alter"),
        ({"q": "x", "fromat": "html"}, "en-de does not take fromat. Did you mean format?"),
        ({"q": "x", "whatever": 1}, "en-de does not take whatever. It takes: max_length."),
        ({"q": "x", "\ud800": 1}, r"en-de does not take \ud800"),
        ({"q": "x", "source": "auto"}, "do not detect"),
        ({"q": "x", "target": "fr"}, "There are: en-de."),
        ({"q": "x", "source": ["en"]}, "source must be a text"),
        ({"q": 7}, "q must be a text or a list of texts, got 7"),
        ({"q": ["x", None]}, "q must be a text"),
        ({}, "q is missing: it must be a text"),
        ({"q": "x", "alternatives": "many"}, "alternatives must be an integer from 0 to 999"),
        ({"q": ["two dogs", "x " * 100]}, "Line 2 is not translated"),
    ],
)
def test_libretranslate_refuses_invalid_fields(running, fields, message):
    status, answer = libretranslate(running, **fields)
    assert status == 400 and message in answer["error"]


def test_libretranslate_refuses_to_detect_and_other_content(running):
    status, _, answer = running.request("POST", "/detect", "q=x")
    assert status == 400 and b"do not detect" in answer
    status, _, answer = running.request("POST", "/translate", "q", {"Content-Type": "text/csv"})
    assert status == 415 and b"application/json" in answer
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    half = '{"q": ["\\ud800"], "source": "en", "target": "de"}'  # no letter, so not translated
    status, _, answer = running.request("POST", "/translate", half, JSON)
    assert status == 400 and b"surrogates" in answer
    status, _, answer = running.request("POST", "/translate", "q=%ff&source=en&target=de", form)
    assert status == 400 and b"form cannot be read" in answer


def test_curl_streams_lines(running, expected):
    assert shutil.which("curl")
    address = f"http://127.0.0.1:{running.port}/lines/en-de"
    data = "".join(f"{line}\n" for line in LINES).encode()
    command = ["curl", "--silent", "--fail", "-T", "-", address]
    done = subprocess.run(command, input=data, capture_output=True, timeout=300, check=True)
    assert done.stdout.decode().split("\n") == [*(result.text for result in expected), ""]


def test_the_lines_protocol_gives_json_and_takes_seeds(running, seeded_folder):
    status, _, answer = running.request("POST", "/lines/en-de?format=json", b"two dogs\n\xff")
    first, second = map(json.loads, answer.splitlines())
    assert status == 200 and len(first["texts"]) == 2 and "not UTF-8" in second["error"]
    _, _, answer = running.request("PUT", "/lines/story?seed=5", LINES[0].encode())
    assert answer.decode() == Generator(seeded_folder).generate(LINES[:1], 5)[0] + "\n"


@pytest.mark.parametrize("concurrency", [1, 16])
def test_answers_do_not_depend_on_concurrent_requests(running, folder, concurrency):
    lines = [" ".join(LINES[n % 5].split()[: 1 + n % 7]) + f" {n % 3}" for n in range(97)]
    expected = Translator(folder).translate(lines)

    def ask(line):
        return running.request("POST", "/lines/en-de", line.encode())[2].decode().removesuffix("\n")

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        assert list(pool.map(ask, lines)) == expected


def test_health_metrics_and_log_contain_no_text(running, log):
    for path in ("/live", "/ready", "/v2", "/v2/health/live", "/v2/health/ready"):
        assert running.request("GET", path)[0] == 200
    running.request("POST", "/lines/en-de", b"a man rides a bicycle .")
    page = running.request("GET", "/metrics")[2].decode()
    for name in ("waiting_lines", "batch_lines_bucket", "tokens_total", "busy_seconds_total"):
        assert f"keras_transformer_{name}{{" in page
    assert 'latency_seconds{model="en-de",quantile="0.95"}' in page
    end = time.monotonic() + 60
    while '"protocol": "lines"' not in (rows := log.getvalue().splitlines() or [""])[-1]:
        assert time.monotonic() < end  # a thread writes the log
    line = json.loads(rows[-1])
    assert line["protocol"] == "lines" and line["model"] == "en-de" and line["status"] == 200
    assert line["lines"] == 1 and line["tokens"] > 1 and line["ms"] > 0
    assert "bicycle" not in log.getvalue() and "bicycle" not in page


@pytest.mark.parametrize(
    "name, pair",
    [
        ("en-de", ("en", "de")),
        ("en-pt-BR", ("en", "pt-BR")),
        ("pt-BR-en", ("pt-BR", "en")),
        ("zh-Hans-zh-Hant", ("zh-Hans", "zh-Hant")),
        ("en-zh-Hans", ("en", "zh-Hans")),
        ("fil-en", ("fil", "en")),
        ("sr-Latn-hr", ("sr-Latn", "hr")),
        ("en", None),
        ("en-de-v2", None),
        ("EN-DE", None),
        ("en-de-fr", None),
        ("story", None),
    ],
)
def test_models_named_after_languages_serve_them(name, pair):
    description = types.SimpleNamespace(task="translate")
    models = types.SimpleNamespace(
        names=lambda: [name], get=lambda _: types.SimpleNamespace(description=description)
    )
    assert _pairs(models) == ({pair: name} if pair else {})
