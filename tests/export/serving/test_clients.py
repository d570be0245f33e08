"""Clients: keys, addresses behind proxies, and fair shares of what is limited."""

import contextlib
import hmac
import http.client
import io
import json
import ssl
import subprocess
import urllib.parse

import openai
import pytest
from helpers import local_service
from helpers.service_requests import FORM, INFER, JSON, LINE, ask, infer, wait_for
from libretranslatepy import LibreTranslateAPI

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving import __main__ as command
from keras_transformer.export.serving import clients as module
from keras_transformer.export.serving.clients import Clients, Shares, read_keys, read_proxies
from keras_transformer.export.serving.protocols import libretranslate
from keras_transformer.export.serving.refusals import Busy, Unauthorized

KEY, OTHER = "kt-4f1b6c0f8f2a49d8", "kt-9d0e7a2b6c514b33"
TEXT = {"q": "two dogs", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text(f"# of the shop\n{KEY} shop\n\n   {OTHER}\n")
    return path


@pytest.fixture(scope="module")
def locked(folder, seeded_folder, keys):
    """A service that needs keys."""
    pools = {"en-de": local_service.Pool(folder), "story": local_service.Pool(seeded_folder)}
    clients = Clients(read_keys(keys))
    with local_service.Running(pools, log=io.StringIO(), clients=clients) as made:
        yield made


ENDPOINTS = {
    "lines": ("POST", "/lines/en-de", LINE),
    "v2": ("POST", INFER, json.dumps(infer())),
    "v2 metadata": ("GET", "/v2/models/en-de", None),
    "v2 ready": ("GET", "/v2/models/en-de/ready", None),
    "v2 server": ("GET", "/v2", None),
    "completions": ("POST", "/v1/completions", '{"model": "story", "prompt": "one"}'),
    "models": ("GET", "/v1/models", None),
    "translate": ("POST", "/translate", json.dumps(TEXT)),
}


@pytest.mark.parametrize("name", ENDPOINTS)
def test_each_endpoint_needs_a_key(locked, name):
    method, path, body = ENDPOINTS[name]
    for given, reason in (
        ({}, "The request has no key"),
        *(
            ({"Authorization": key}, "The key of the request is wrong")
            for key in (f"Bearer {KEY}x", f"Bearer {KEY} {KEY}", "Bearer é")
        ),
        *(
            ({"Authorization": key}, "The request has no key")
            for key in (f"Basic {KEY}", KEY, "Bearer")
        ),
    ):
        headers = {"Content-Type": JSON, **given}
        status, found, answer = locked.request(method, path, body, headers)
        assert status == 401 and found["WWW-Authenticate"] == "Bearer"
        error = json.loads(answer)["error"]
        error = error["message"] if path.startswith("/v1/") else error
        assert error.startswith(reason)
        assert "'Authorization: Bearer KEY'" in error and "api_key" in error
    for key in (f"Bearer {KEY}", f"bearer {KEY}", f"Bearer {OTHER}"):
        headers = {"Content-Type": JSON, "Authorization": key}
        assert locked.request(method, path, body, headers)[0] == 200


def test_sound_and_unknown_addresses_need_a_key(locked):
    for path in ("/v1/audio/transcriptions", "/nothing", "/live/x", "//live", "/metrics/", "/LIVE"):
        assert ask(locked, path, b"x")[0] == 401


def test_health_metrics_and_languages_need_no_key(locked):
    for path in module.OPEN:
        assert locked.request("GET", path)[0] == 200


def multipart(fields):
    head = "--x\r\nContent-Disposition: form-data; name="
    return "".join(f'{head}"{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()) + "--x--\r\n"


PLACES = {
    "json": lambda key: ("/translate", TEXT | {"api_key": key}),
    "query": lambda key: (f"/translate?api_key={key}", TEXT),
    "form": lambda key: (
        "/translate",
        urllib.parse.urlencode(TEXT | {"api_key": key}),
        {"Content-Type": FORM},
    ),
    "multipart": lambda key: (
        "/translate",
        multipart(TEXT | {"api_key": key}),
        {"Content-Type": "multipart/form-data; boundary=x"},
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_key_may_be_a_field_of_libretranslate(locked, folder, place):
    status, _, answer = ask(locked, *PLACES[place](KEY))
    (expected,) = Translator(folder).translate([TEXT["q"]])
    assert (status, json.loads(answer)["translatedText"]) == (200, expected)
    for wrong in (f"{KEY}x", "", KEY.upper()):
        assert ask(locked, *PLACES[place](wrong))[0] == 401


def test_keys_of_other_types_and_beside_a_wrong_header_are_refused(locked):
    for key in (7, None, [KEY], {"key": KEY}, "\ud800"):
        assert ask(locked, *PLACES["json"](key))[0] == 401
    assert ask(locked, *PLACES["json"](KEY), {"Authorization": "Bearer wrong"})[0] == 401


def test_a_text_is_not_split_before_its_key_is_checked(locked, monkeypatch):
    monkeypatch.setattr(libretranslate, "Document", lambda *_: 1 / 0)
    assert ask(locked, "/translate", TEXT)[0] == 401


def test_third_party_clients_pass_their_keys(locked):
    client = LibreTranslateAPI(f"http://127.0.0.1:{locked.port}/", KEY)
    assert client.languages() and client.translate("two dogs", "en", "de")
    with locked.openai(KEY) as client:
        assert [model.id for model in client.models.list()] == ["story"]
    with locked.openai("no") as client:
        with pytest.raises(openai.AuthenticationError, match="key of the request is wrong"):
            client.models.list()


def test_a_large_body_without_a_key_gets_its_refusal(locked):
    """Its client reads no response before all is sent."""
    status, _, answer = ask(locked, INFER, b"x" * 6_000_000)
    assert status == 401 and b"no key" in answer


def test_the_log_names_the_client_and_never_the_key(locked):
    before = len(locked.rows())
    for key in (KEY, OTHER):
        ask(locked, headers={"Authorization": f"Bearer {key}"})
    ask(locked, *PLACES["json"](KEY))
    wait_for(lambda: len(locked.rows()) >= before + 3)
    assert [row["client"] for row in locked.rows()[before:]] == ["shop", "line 4", "shop"]
    assert KEY not in locked.log.getvalue()


def test_all_keys_are_compared_whichever_is_right(keys, monkeypatch):
    """So the time of an answer tells nothing about the keys."""
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(
        module.hmac, "compare_digest", lambda *pair: compared.append(pair) or compare(*pair)
    )
    clients = Clients(read_keys(keys))
    for key, name in ((KEY, "shop"), (OTHER, "line 4"), ("wrong", None), ("", None)):
        with contextlib.nullcontext() if name else pytest.raises(Unauthorized):
            assert clients.named_by(key) == name
        assert len(compared) == 2 and {len(one) for pair in compared for one in pair} == {32}
        compared.clear()


def test_names_of_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(f"{KEY}\tthe shop \r\n{OTHER}  the shop\n#a\n  # b\nthird\n".encode())
    assert [*read_keys(path).values()] == ["the shop", "the shop", "line 5"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no key. Write one key a line"),
        ("\n\n# only a comment\n", "has no key"),
        (f"{KEY}\n{OTHER}\n{KEY} again\n", "Line 3 of .* repeats a key"),
        ("schlüssel\n", "key in line 1 of .* must have ASCII characters"),
        ("a\x00b\n", "key in line 1 of .* must have ASCII characters"),
        (b"\xff\xfe\n", "key in line 1 of .* must have ASCII characters"),
    ],
)
def test_a_wrong_file_of_keys_is_refused_at_start(tmp_path, capsys, folder, text, message):
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_keys(path)
    assert command.main([str(folder), "--port", "0", "--api-keys", str(path)]) == 2
    assert KEY not in capsys.readouterr().err


PROXIES = read_proxies(["10.0.0.7", " 10.1.0.0/16", "2001:db8:1::/48"])


@pytest.mark.parametrize(
    "peer, forwarded, client",
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),  # not a proxy: the header is invented
        ("10.0.0.7", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.7", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),  # the first one is invented
        ("10.0.0.7", ["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.7", ["198.51.100.1, 10.1.2.3"], "198.51.100.1"),  # through two proxies
        ("10.0.0.7", ["198.51.100.1", "10.1.2.3", "10.1.2.4"], "198.51.100.1"),
        ("10.0.0.7", ["10.0.0.7, 198.51.100.1"], "198.51.100.1"),  # a proxy's address invented
        ("10.0.0.7", ["10.1.0.9"], "10.1.0.9"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["unknown"], "10.0.0.7"),
        ("10.0.0.7", ["198.51.100.1, _hidden"], "10.0.0.7"),
        ("10.0.0.7", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.7", ["[2001:db8:2::5]:4711"], "2001:db8:2::/64"),
        ("10.0.0.7", ["2001:db8:2::5"], "2001:db8:2::/64"),
        ("10.0.0.7", ["2001:db8:2:0:ffff::"], "2001:db8:2::/64"),
        ("10.0.0.7", ["2001:db8:2:1::"], "2001:db8:2:1::/64"),
        ("10.0.0.7", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.7", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1::9", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:9::9", ["198.51.100.1"], "2001:db8:9::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        (None, ["198.51.100.1"], "local"),
    ],
)
def test_the_address_of_a_client(peer, forwarded, client):
    assert Clients(proxies=PROXIES).address(peer and (peer, 1), forwarded) == client


def test_without_trusted_proxies_the_header_has_no_effect(running):
    ask(running, headers={"X-Forwarded-For": "198.51.100.1"})
    wait_for(running.rows)
    assert running.rows()[-1]["client"] == "127.0.0.1"


def fill(shares, *clients):
    """Lets clients take turns until all are refused."""
    while names := [name for name in clients if not shares.refuses(name)]:
        for name in names:
            if not shares.refuses(name):
                shares.add(name, 1)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_greedy_clients_do_not_shut_out_another_one(count, together):
    shares, greedy = Shares(512, "lines wait already"), [f"greedy {n}" for n in range(count)]
    for clients in [greedy] if together else [[name] for name in greedy]:
        fill(shares, *clients)
    assert all(map(shares.refuses, greedy))
    left = 2 * 512 - shares.total
    fill(shares, "new")
    assert shares.held["new"] == left // 2 >= (512 // (count + 1) if together else 512 >> count)
    assert shares.total < 2 * 512


def test_greedy_clients_hold_equal_shares():
    shares = Shares(60, "streams are open")
    fill(shares, "a")
    with pytest.raises(
        Busy, match="60 streams are open, 60 of them of this client, whose share is 60"
    ):
        shares.check("a")
    shares.add("a", -60)
    fill(shares, "a", "b", "c")
    assert shares.held == {"a": 30, "b": 30, "c": 30}  # twice the limit by one client more
    shares.add("a", -30)
    fill(shares, "d")
    assert shares.held["d"] == 30 and "a" not in shares.held


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = [folder / "cert.pem", folder / "key.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        + ["-days", "2", "-out", str(made[0]), "-keyout", str(made[1])],
        check=True,
        capture_output=True,
    )
    return made


def test_https(start, certificate):
    options = dict(zip(("ssl_certfile", "ssl_keyfile"), certificate, strict=True))
    port = start(**options).port
    context = ssl.create_default_context(cafile=certificate[0])
    made = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
    with contextlib.closing(made) as connection:
        connection.request("POST", "/lines/en-de", LINE, {"Origin": f"https://localhost:{port}"})
        response = connection.getresponse()
        assert response.status == 200 and response.read()
        connection.request("POST", INFER, json.dumps(infer()) * 1000)  # several TLS records
        assert connection.getresponse().status == 400
