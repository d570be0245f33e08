"""All protocols, with third-party clients: each returns the texts of `Translator`."""

import concurrent.futures
import json
import shutil
import subprocess
import time
import types

import numpy as np
import pytest
import tritonclient.http
from helpers import artefacts
from helpers.service_requests import FORM, ask, connected, infer, received, translate, wait_for
from libretranslatepy import LibreTranslateAPI

from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.serving import bodies
from keras_transformer.export.serving.protocols.libretranslate import _pairs

LINES = [*artefacts.LINES, "", "  ", "two\0dogs", "x " * 100, "a dog 😀"]


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


def strings(answer, name):
    """Returns an output of tritonclient, which gives texts of JSON and bytes of binary data."""
    found = answer.as_numpy(name)
    return [one if isinstance(one, str) else one.decode() for one in found]


def test_tritonclient_reads_server_and_model_metadata(triton):
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("en-de") and not triton.is_model_ready("no")
    server, model = triton.get_server_metadata(), triton.get_model_metadata("en-de")
    assert server["name"] == "keras_transformer"
    assert [entry["name"] for entry in model["outputs"]] == ["text", "result", "error"]
    assert triton.is_model_ready("en-de", model["versions"][0])


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritonclient_gets_the_results_of_translator(triton, expected, binary_in, binary_out):
    inputs = [tensor(LINES, binary_data=binary_in)]
    outputs = [
        tritonclient.http.InferRequestedOutput(name, binary_data=binary_out)
        for name in ("text", "result", "error")
    ]
    answer = triton.infer("en-de", inputs, outputs=outputs, request_id="seven")
    assert strings(answer, "text") == [result.text for result in expected]
    errors = [result.error or "" for result in expected]
    assert strings(answer, "error") == errors and any(errors)
    results = [tuple(json.loads(text)["texts"]) for text in strings(answer, "result")]
    assert results == [result.texts for result in expected]


def test_a_request_sets_options_of_the_search(triton, running, folder, seeded_folder):
    lines = artefacts.LINES
    expected = Translator(folder).translate(lines, max_length=2)
    assert expected != Translator(folder).translate(lines)
    answer = triton.infer("en-de", [tensor(lines)], parameters={"max_length": 2})
    assert strings(answer, "text") == expected
    _, _, body = ask(running, "/lines/en-de?max_length=2", "\n".join(lines).encode())
    assert body.decode().splitlines() == expected
    generator, prompts = Generator(seeded_folder), lines[:2]
    assert generator.generate(prompts, 3) != generator.generate(prompts, 4)
    for seed in (3, 4):
        answer = triton.infer("story", [tensor(prompts)], parameters={"seed": seed})
        assert strings(answer, "text") == generator.generate(prompts, seed)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="does not take seed"):
        triton.infer("en-de", [tensor(prompts)], parameters={"seed": 1})


@pytest.mark.parametrize("cut", [0, 20])
def test_no_part_waits_for_a_tcp_acknowledgement(running, cut):
    """Requests and answers have two parts. Waiting for an acknowledgement takes 40 ms."""
    request, seconds = b"GET /v2/models/en-de HTTP/1.1\r\nHost: localhost\r\n\r\n", []
    with connected(running) as opened:
        while len(seconds) < 300 and min(seconds[5:], default=1) >= 0.03:  # others need time, too
            begun = time.perf_counter()
            for part in filter(None, (request[:cut], request[cut:])):
                opened.sendall(part)
            assert b'"outputs"' in received(opened, b"]}")
            seconds.append(time.perf_counter() - begun)
    assert min(seconds[5:]) < 0.03  # the first ones are acknowledged at once anyway


def test_libretranslate(running, expected):
    client = LibreTranslateAPI(f"http://127.0.0.1:{running.port}/")
    assert {"code": "en", "name": "en", "targets": ["de"]} in client.languages()
    text = client.translate("\n".join(LINES[:3]), "en", "de")
    assert text == "\n".join(result.text for result in expected[:3])
    answer = {
        "translatedText": [result.text for result in expected[:2]],
        "alternatives": [[result.texts[1]] for result in expected[:2]],
    }
    assert translate(running, q=LINES[:2], alternatives=3) == (200, answer)


def test_libretranslate_keeps_what_is_no_sentence(running, expected):
    one, two = (result.text for result in expected[:2])
    html = '<p id="x">{}</p><ul><li>{}<br>12</ul>'
    for fields, text in (
        ({"q": ""}, ""),
        ({"q": f"\ufeff{LINES[0]}"}, one),  # a byte order mark
        ({"q": f"  {LINES[0]}\n\n{LINES[1]} {{{{name}}}}"}, f"  {one}\n\n{two} {{{{name}}}}"),
        (
            {"q": [html.format(*LINES[:2]), "<hr>"], "format": "html"},
            [html.format(one, two), "<hr>"],
        ),
        # Fields without an effect.
        ({"q": LINES[0], "api_key": "a", "secret": "b"}, one),
        ({"q": LINES[0], "max_lenght": None}, one),
    ):
        assert translate(running, **fields) == (200, {"translatedText": text})


def test_a_repeated_field_of_a_form_is_a_list():
    content = b"q=a&terms=Hut&terms=rot&source=en"
    fields, files = bodies.read_content(FORM, content, (FORM,))
    assert (fields, files) == ({"q": "a", "terms": ["Hut", "rot"], "source": "en"}, {})


def v2(model="en-de", **parameters):
    return f"/v2/models/{model}/infer", infer(["two dogs"]) | {"parameters": parameters}


def libretranslate(**fields):
    return "/translate", {"q": "x", "source": "en", "target": "de", **fields}


@pytest.mark.parametrize(
    "request_, message",
    [
        (("/lines/en-de?beam_width=2",), "en-de does not take beam_width. It takes: max_length"),
        (("/lines/en-de?max_length=two",), "max_length must be an integer"),
        (("/lines/en-de?max_length=0",), "max_length must be at least 1"),
        (("/lines/en-de?length=2",), "en-de does not take length. Did you mean max_length?"),
        (v2("no"), "There is no model 'no'. There are: en-de, story."),
        (v2("en-de/versions/9"), "en-de has no version '9'"),
        (v2("story", seed=-1), "seed must be at least 0"),
        (v2("story", seed="x"), "seed must be an integer"),
        (v2(**{"\ud800": 3}), r"take \ud800"),
        (v2(time_out=3), "take time_out. Did you mean timeout?"),
        (v2(max_lenght=3), "take max_lenght. Did you mean max_length?"),
        (v2(sequence_id=3), "en-de does not take sequence_id."),
        (libretranslate(max_lenght=3), "en-de does not take max_lenght. Did you mean max_length?"),
        (libretranslate(whatever=1), "en-de does not take whatever. It takes: max_length."),
        (libretranslate(**{"\ud800": 1}), r"en-de does not take \ud800"),
        (libretranslate(source="auto"), "do not detect"),
        (libretranslate(target="fr"), "There are: en-de."),
        (libretranslate(q=["x", None]), "q must be a text"),
        (libretranslate(q=["\ud800"]), "surrogates"),  # no letter, so not translated
        (libretranslate(q=["two dogs", "x " * 100]), "Line 2 is not translated"),
        (("/detect", "q=x"), "do not detect"),
        (("/translate", "q", {"Content-Type": "text/csv"}), "application/json"),
        (
            ("/translate", "q=%ff&source=en&target=de", {"Content-Type": FORM}),
            "form cannot be read",
        ),
    ],
)
def test_refusals_name_the_problem(running, request_, message):
    status, _, answer = ask(running, *request_)
    assert status in (400, 404, 415) and message in json.loads(answer)["error"]


def test_curl_streams_lines(running, expected):
    assert shutil.which("curl")
    address = f"http://127.0.0.1:{running.port}/lines/en-de"
    data = "".join(f"{line}\n" for line in LINES).encode()
    command = ["curl", "--silent", "--fail", "-T", "-", address]
    done = subprocess.run(command, input=data, capture_output=True, timeout=300, check=True)
    assert done.stdout.decode().split("\n") == [*(result.text for result in expected), ""]


def test_the_lines_protocol_gives_json_and_takes_seeds(running, seeded_folder):
    data = b"\xef\xbb\xbftwo dogs\n\xff"  # with a byte order mark
    status, _, answer = ask(running, "/lines/en-de?format=json", data)
    first, second = map(json.loads, answer.splitlines())
    assert status == 200 and len(first["texts"]) == 2 and "not UTF-8" in second["error"]
    _, _, answer = running.request("PUT", "/lines/story?seed=5", LINES[0].encode())
    assert answer.decode() == Generator(seeded_folder).generate(LINES[:1], 5)[0] + "\n"


def test_answers_do_not_depend_on_concurrent_requests(running, folder):
    lines = [" ".join(LINES[n % 5].split()[: 1 + n % 7]) + f" {n % 3}" for n in range(97)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = [*pool.map(lambda line: ask(running, body=line.encode())[2].decode(), lines)]
    assert found == [f"{text}\n" for text in Translator(folder).translate(lines)]


def test_health_metrics_and_log_contain_no_text(running):
    for path in ("/live", "/ready", "/v2", "/v2/health/live", "/v2/health/ready"):
        assert running.request("GET", path)[0] == 200
    ask(running, body=b"a man rides a bicycle .")
    page = running.request("GET", "/metrics")[2].decode()
    for name in ("waiting_lines", "batch_lines_bucket", "tokens_total", "busy_seconds_total"):
        assert f"keras_transformer_{name}{{" in page
    assert 'latency_seconds{model="en-de",quantile="0.95"}' in page
    # A thread writes the log.
    wait_for(lambda: (rows := running.rows()) and rows[-1]["protocol"] == "lines")
    row = running.rows()[-1]
    assert (row["model"], row["status"], row["lines"]) == ("en-de", 200, 1)
    assert row["tokens"] > 1 and row["ms"] > 0
    assert "bicycle" not in running.log.getvalue() and "bicycle" not in page


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
