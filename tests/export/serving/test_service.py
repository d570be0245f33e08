"""The service as users start it, with Ray: faults, replacement, ports, the end by SIGTERM."""

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
import urllib.request

import pytest
from support import artefacts

from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving import __main__ as command
from keras_transformer.export.serving import cluster

pytestmark = pytest.mark.slow
LINES = artefacts.LINES


class Process:
    """A service of one artefact in a process of its own.

    Args:
        folder: of the artefact.
        aside: folder for what it writes.
    """

    def __init__(self, folder, aside):
        self.log, self._errors = aside / "log", aside / "errors"
        module = "keras_transformer.export.serving"
        arguments = [f"en-de={folder},replicas=2,threads=1", "--port", "0", "--grpc-port", "0"]
        with open(self.log, "w") as log, open(self._errors, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=log, stderr=errors
            )
        end = time.monotonic() + 240
        while "serving en-de: http" not in (said := self._errors.read_text()):
            assert self.process.poll() is None and time.monotonic() < end, said
            time.sleep(0.1)
        self.port = int(said.partition("http 127.0.0.1:")[2].partition(",")[0])

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read()

    def lines(self, lines):
        data = "".join(f"{line}\n" for line in lines).encode()
        place = f"http://127.0.0.1:{self.port}/lines/en-de"
        with urllib.request.urlopen(place, data, timeout=60) as answer:
            return answer.read().decode().splitlines()

    def version(self):
        return json.loads(self.get("/v2/models/en-de"))["versions"][0]

    def family(self):
        """Process ids of the service and of all that it has started, each with its command."""
        parents, names = {}, {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                names[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:  # it has ended
                continue
            parents[int(folder.name)] = int(status[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: names[pid] for pid in found}

    def answering(self):
        """Process ids of the replicas that have answered lines."""
        return set(
            map(int, re.findall(r'_lines_total{.*replica="(\d+)"', self.get("/metrics").decode()))
        )

    def replicas(self):
        return [pid for pid, name in self.family().items() if name.startswith("ray::ServeReplica")]


@pytest.fixture(scope="module")
def served(tokenizer, tmp_path_factory):
    """A copy of an artefact that is replaced, and the service of it."""
    aside = tmp_path_factory.mktemp("service")
    folder = artefacts.write(aside / "out", tokenizer)
    service = Process(folder, aside)
    yield folder, service
    service.process.kill()


def listening(pids):
    """Addresses, in hexadecimal, that processes listen at."""
    inodes = set()
    for pid in pids:
        for file in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(file))
            except OSError:
                continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_listens_beyond_this_machine(served):
    found = listening(served[1].family())
    assert found <= {"0100007F", "0000000000000000FFFF00000100007F"} and found


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_process_imports_a_framework(served):
    _, service = served
    for pid in (service.process.pid, *service.replicas()):
        assert "tensorflow" not in pathlib.Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.full
def test_it_answers_as_translator(served):
    folder, service = served
    assert service.lines(LINES) == Translator(folder).translate(LINES)


@pytest.mark.full
def test_a_replica_that_dies_loses_nothing_and_is_back(served):
    folder, service = served
    expected, stop, answers = Translator(folder).translate(LINES), threading.Event(), []

    def ask():
        while not stop.is_set():
            answers.append(service.lines(LINES))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            time.sleep(0.5)
            before = service.replicas()
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            end = time.monotonic() + 90
            while not (answering := service.answering() - set(before)):  # the new one, too
                assert time.monotonic() < end
                time.sleep(0.2)
            assert answering <= set(service.replicas())
        finally:
            stop.set()
        for future in asking:
            future.result()  # no request has failed
    assert len(answers) > 10 and all(found == expected for found in answers)


@pytest.mark.full
def test_an_artefact_that_is_replaced_is_taken_up(served, tokenizer, tmp_path):
    folder, service = served
    before = service.version()
    swapped = artefacts.write(tmp_path / "new", tokenizer, limits=short_limits())
    os.rename(folder, tmp_path / "old")
    shutil.copytree(swapped, folder)
    end = time.monotonic() + 120
    while (now := service.version()) == before:
        assert service.lines(LINES[:1]) == Translator(swapped).translate(LINES[:1])
        assert time.monotonic() < end
    assert now == Translator(swapped).manifest["checksum"][:12]
    # A folder that is none changes nothing.
    (folder / "artefact.json").write_text("{}")
    time.sleep(2)
    assert service.lines(LINES) == Translator(swapped).translate(LINES)


def short_limits():
    return {"source_length": 60, "target_length": None, "extra_length": 0}


@pytest.mark.full
def test_sigterm_answers_what_was_taken_in(served):
    _, service = served
    lines = LINES * 400
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        taken = pool.submit(service.lines, lines)
        time.sleep(0.1)
        service.process.send_signal(signal.SIGTERM)
        assert len(taken.result()) == len(lines)
    assert service.process.wait(60) == 0
    rows = [json.loads(row) for row in service.log.read_text().splitlines()]
    assert rows and {row["status"] for row in rows} == {200}
    assert "bicycle" not in service.log.read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no/such/folder"], "not an artefact"),
        (["a b=out"], "no name for an address"),
        (["x=out,colour=red"], "'colour' is no option"),
        (["x=out,replicas=0"], "must be at least 1"),
        (["x=out,gpus=-1"], "must be 0 or more"),
        (["x=one", "x=two"], "two models have one name"),
        (["x=out,threads=999999"], "must be at most"),
        (["x=out,threads=many"], "threads is a number, not 'many'"),
        (["x=out", "--queue", "0"], "`waiting_lines` must be above 0"),
        (["x=out", "--deadline", "nan"], "`deadline_seconds` must be above 0"),
        (["x=out", "--allow-host", "a.example:80"], "without scheme and port"),
        (["x=out", "--allow-host", "https://a.example"], "without scheme and port"),
        (["x=out", "--drain", "-1"], "`drain_seconds` must be 0 or more"),
    ],
)
def test_the_command_says_what_is_wrong_before_ray_starts(arguments, message, capsys):
    assert command.main([*arguments, "--port", "0"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_that_is_taken_is_told_before_ray_starts(folder, capsys, monkeypatch, option):
    monkeypatch.setattr(cluster, "running", lambda address: pytest.fail("Ray starts"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command.main([str(folder), "--port", "0", option, port]) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_number_that_is_no_port_is_told(folder, capsys, option, port):
    assert command.main([str(folder), "--port", "0", option, port]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err


def test_names_and_options_of_the_command():
    name, found = command.named("en-de=a/b,replicas=2,gpus=0.5,provider=P,batch_tokens=9")
    assert (name, found.folder, found.replicas, found.gpus) == ("en-de", "a/b", 2, 0.5)
    assert (found.providers, found.batch_tokens) == (["P"], 9)
    assert command.named("out/onnx")[0] == "onnx"
    assert found.shares(8) == (4, 1)  # a GPU has one worker
    assert command.Served("x").shares(8) == (1, 8)
    assert command.Served("x", replicas=4).shares(8) == (1, 2)
    assert command.Served("x", threads=2).shares(8) == (2, 4)
    assert command.Served("x", workers=1).shares(8) == (8, 1)
    assert command.Served("x", replicas=16).shares(8) == (1, 1)


def test_without_the_extra_the_command_names_it(folder):
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from keras_transformer.export.serving.__main__ import main\n"
        f"sys.exit(main([{str(folder)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "keras-transformer-onnx[ray]" in done.stderr
