"""The command of the service, in one process and on Ray: start, faults, reloading, shutdown."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from helpers import artefacts, process_family
from helpers.command_process import MODULE, Process
from helpers.service_requests import wait_for

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving import __main__ as command
from keras_transformer.export.serving import service as module

LINES = artefacts.LINES
FRAMEWORKS = ("tensorflow", "keras", "jax", "torch", "ray")


@pytest.fixture(
    scope="module",
    params=[(), pytest.param(("--replicas", "2"), marks=[pytest.mark.slow, pytest.mark.full])],
    ids=["one process", "Ray"],
)
def services(request, tokenizer, tmp_path_factory):
    """The folder of an artefact, and a function that starts its service."""
    aside = tmp_path_factory.mktemp("service")
    folder, started = artefacts.write(aside / "out", tokenizer), []

    def running():
        if not started or started[-1].process.poll() is not None:
            started.append(Process(folder, aside, *request.param, imports=not request.param))
        return started[-1]

    yield folder, running
    started[-1].kill()


@pytest.fixture
def served(services):
    """The folder and a running service: a new one if the previous test ended it."""
    folder, running = services
    return folder, running()


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_the_default_service_is_one_small_process_without_frameworks(folder, tmp_path):
    service = Process(folder, tmp_path, imports=True)
    try:
        assert service.lines(LINES) == Translator(folder).translate(LINES)
        (pid,) = process_family.family(service.process.pid)
        times = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        assert sum(map(int, times)) / os.sysconf("SC_CLK_TCK") < 3  # seconds of processor time
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") < 300e6
    finally:
        service.kill()
    imported = re.findall(r"^import time:.*\| +(\w+)\.", service.errors.read_text(), re.M)
    assert "onnxruntime" in imported and not set(FRAMEWORKS) & set(imported)


@linux
def test_the_service_listens_on_this_machine_only_and_loads_no_tensorflow(served):
    service = served[1]
    found = process_family.listening(service.process.pid)
    assert found <= process_family.LOCAL and found
    for pid in (service.process.pid, *service.replicas()):
        assert "tensorflow" not in pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_a_replica_that_dies_loses_no_request_and_is_replaced(served):
    folder, service = served
    stop, answers, before = threading.Event(), [], service.replicas()

    def ask():
        while not stop.is_set():
            answers.append(service.lines(LINES))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            time.sleep(0.5)
            if before:
                os.kill(before[0], signal.SIGKILL)
            wait_for(
                lambda: (
                    len(answers) > 10
                    and len(set(service.replicas()) - set(before[:1])) == len(before)
                ),
                90,
            )
        finally:
            stop.set()
        for future in asking:
            future.result()  # no request has failed
    expected = Translator(folder).translate(LINES)
    assert all(found == expected for found in answers)


@pytest.mark.full
def test_a_replaced_artefact_is_loaded(served, tokenizer, tmp_path):
    folder, service = served
    before = service.version()
    limits = {"source_length": 60, "target_length": None, "extra_length": 0}
    swapped = artefacts.write(tmp_path / "new", tokenizer, limits=limits)
    translator = Translator(swapped)
    os.rename(folder, tmp_path / "old")
    shutil.copytree(swapped, folder)

    def is_replaced():
        assert service.lines(LINES[:1]) == translator.translate(LINES[:1])
        return service.version() != before

    wait_for(is_replaced, 120)
    assert service.version() == translator.manifest["checksum"][:12]
    # A folder that is not an artefact changes nothing.
    (folder / "artefact.json").write_text("{}")
    time.sleep(2)
    assert service.lines(LINES) == translator.translate(LINES)


def test_sigterm_answers_accepted_requests(served):
    _, service = served
    lines = LINES * 400
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        taken = pool.submit(service.lines, lines)
        wait_for(lambda: taken.done() or service.metric("open_requests") == 1)
        service.process.send_signal(signal.SIGTERM)
        assert len(taken.result()) == len(lines)
    assert service.process.wait(60) == 0
    rows = [json.loads(row) for row in service.log.read_text().splitlines()]
    assert rows and {row["status"] for row in rows} == {200}
    assert "bicycle" not in service.log.read_text()


HANGING = """
import time
from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving import __main__
results = Translator.results
def hang(runner, items, **options):
    return time.sleep(600) if list(items) == [b"hang"] else results(runner, items, **options)
Translator.results = hang
__main__.run()
"""


@pytest.mark.full
def test_a_hanging_batch_does_not_keep_the_process_alive(folder, tmp_path):
    """The process ends after the drain, with status 1."""
    arguments = [str(folder), "--port", "0", "--drain", "0.5"]
    command = [sys.executable, "-c", HANGING, *arguments]
    environment = {**os.environ, "KERAS_TRANSFORMER_SERVES": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        port = int(re.search(r":(\d+)$", process.stderr.readline())[1])
        with socket.create_connection(("127.0.0.1", port)) as opened:
            head = f"POST /lines/{folder.name} HTTP/1.1\r\nHost: localhost\r\n"
            opened.sendall(f"{head}Content-Length: 4\r\n\r\nhang".encode())
            time.sleep(1)
            process.terminate()
            assert process.wait(20) == 1
        assert "not answered in time" in process.stderr.read()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no/such/folder"], "not an artefact"),
        (["a b=out"], "not a valid name of a model"),
        (["x=out,colour=red"], "'colour' is not one of"),
        (["x=out,replicas=0"], "must be at least 1"),
        (["x=out", "--replicas", "0"], "must be at least 1"),
        (["x=out,gpus=-1"], "must be 0 or more"),
        (["x=one", "x=two"], "two models have one name"),
        (["x=out,threads=999999"], "must be at most"),
        (["x=out,threads=many"], "threads is a number, not 'many'"),
        (["x=out", "--queue", "0"], "--queue must be above 0"),
        (["x=out", "--deadline", "nan"], "--deadline must be above 0"),
        (["x=out", "--allow-host", "a.example:80"], "without scheme and port"),
        (["x=out", "--allow-host", "https://a.example"], "without scheme and port"),
        (["x=out", "--drain", "-1"], "--drain must be 0 or more"),
        (["x=out", "--api-keys", "no/such"], "--api-keys must be a file with a key in each line"),
        (["x=out", "--api-keys", "."], "--api-keys must be a file with a key in each line"),
        (["x=out", "--trusted-proxies", "proxy.example"], "--trusted-proxies are addresses or"),
        (["x=out", "--trusted-proxies", "10.0.0.1/8"], "has host bits set"),
        (["x=out", "--trusted-proxies", "10.0.0.1,,::1"], "--trusted-proxies are addresses or"),
        (["x=out", "--ssl-keyfile", "key.pem"], "--ssl-keyfile needs --ssl-certfile"),
        (["x=out", "--ssl-certfile", "no.pem"], "must be a certificate and its key in PEM"),
        (["x=out", "--ssl-certfile", __file__], "must be a certificate and its key in PEM"),
        (["FOLDER", "--port", "99999"], "from 0 to 65535"),
        (["FOLDER", "--port", "-1"], "from 0 to 65535"),
    ],
)
def test_the_command_says_what_is_wrong(folder, arguments, message, capsys):
    given = [str(folder) if text == "FOLDER" else text for text in arguments]
    assert command.main(["--port", "0", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_reported_before_ray_starts(folder, capsys, monkeypatch):
    monkeypatch.setattr(module, "open_replicas", lambda address: pytest.fail("Ray starts"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command.main([str(folder), "--replicas", "2", "--port", port]) == 2
    assert "in use" in capsys.readouterr().err


def test_names_and_options_of_the_command():
    name, found = command.named("en-de=a/b,replicas=2,gpus=0.5,provider=P,batch_tokens=9")
    assert (name, found.folder, found.replicas, found.gpus) == ("en-de", "a/b", 2, 0.5)
    assert (found.providers, found.batch_tokens) == (["P"], 9)
    assert command.named("out/onnx")[0] == "onnx"
    assert found.shares(8) == (4, 1)  # a GPU has one worker


@pytest.mark.parametrize(
    "options, threads, workers",
    [
        ({}, 1, 8),
        ({"replicas": 4}, 1, 2),
        ({"threads": 2}, 2, 4),
        ({"workers": 1}, 8, 1),
        ({"replicas": 16}, 1, 1),
    ],
)
def test_replicas_and_workers_share_the_cores(options, threads, workers):
    assert command.ServedArtefact("x", **options).shares(8) == (threads, workers)


@pytest.mark.parametrize(
    "package, options, installed",
    [("ray", ["--replicas", "2"], "pip install ray"), ("uvicorn", [], "onnx[service]")],
)
def test_the_command_names_a_missing_package(
    folder, capsys, monkeypatch, package, options, installed
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{MODULE}.front_end", raising=False)
    arguments = [str(folder), "--port", "0", *options]
    assert command.main(arguments) == 2
    assert installed in capsys.readouterr().err
