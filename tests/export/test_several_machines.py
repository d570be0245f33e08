"""A service and an archive job on a Ray cluster of two machines, one of which fails."""

import contextlib
import subprocess
import sys
import time

import pytest
from helpers import archives, artefacts, hosts

pytestmark = pytest.mark.nightly
LINES = archives.lines(1500)
TOKENIZER = artefacts.tokenizer()
ASK = """
import sys, urllib.request
data = "".join(f"{line}\\n" for line in sys.argv[2:]).encode()
with urllib.request.urlopen(sys.argv[1], data or None, timeout=120) as answer:
    sys.stdout.write(answer.read().decode())
"""


@pytest.fixture
def folder(tmp_path):
    return artefacts.write(tmp_path / "onnx", TOKENIZER)


@pytest.fixture
def cluster():
    if reason := hosts.missing():
        pytest.skip(reason)
    with hosts.Cluster() as made:
        yield made


@contextlib.contextmanager
def started(host, told, *command):
    """Runs a module of the package on a host, with stderr in `told`."""
    with open(told, "w") as errors:
        process = host.start(
            sys.executable,
            "-m",
            f"keras_transformer.export.{command[0]}",
            *command[1:],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition, told, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, told.read_text()
        time.sleep(0.1)


def translated(lines):
    return [artefacts.expected_hypotheses(TOKENIZER, line)[0][0] for line in lines]


def running(host, name):
    """Returns process ids of a host's Ray workers of one kind."""
    return [pid for pid, command in host.processes().items() if command.startswith(f"ray::{name}")]


def replicas(cluster):
    return sum(len(running(host, "Engine")) for host in cluster.hosts)


def test_a_service_and_a_job_continue_when_a_machine_is_lost(cluster, folder, tmp_path):
    first, second = cluster.hosts
    served, done, out = tmp_path / "served", tmp_path / "done", tmp_path / "out"
    packed = archives.write_text(tmp_path / "in.txt.gz", LINES)
    service = (f"en-de={folder},replicas=2,workers=1", "--host", first.address, "--quiet")
    job = (folder, packed, out, "--part-lines", 5, "--with-source", "--address", cluster.address)
    ask = (sys.executable, "-c", ASK, f"http://{first.address}:8080/lines/en-de", *LINES[:50])

    with started(first, served, "serving", *service, "--ray-address", cluster.address) as serving:
        wait_for(lambda: "serving en-de" in served.read_text(), served)
        assert [len(running(host, "Engine")) for host in cluster.hosts] == [1, 1]
        for host in cluster.hosts:
            assert host.run(*ask).splitlines() == translated(LINES[:50])
        with started(first, done, "archive", *job) as archive:
            wait_for(lambda: running(second, "MapWorker") and archives.parts(out), done)
            second.unplug()
            there = len(archives.parts(out))
            assert there < 300
            for _ in range(8):  # one request reaches the lost replica
                assert first.run(*ask).splitlines() == translated(LINES[:50])
            assert archive.wait(200) == 0, done.read_text()
        serving.terminate()
        assert serving.wait(60) == 0, served.read_text()
    # The cluster keeps running without the service's replicas.
    wait_for(lambda: not running(first, "Engine"), served, 120)
    rows = archives.rows(out)
    assert [row["source"] for row in rows] == LINES
    assert [row["text"] for row in rows] == translated(LINES)


def test_two_services_of_one_name_do_not_disturb_each_other(cluster, folder, tmp_path):
    first, services = cluster.hosts[0], []
    with contextlib.ExitStack() as stack:
        for port in (8080, 8090):
            told = tmp_path / f"told-{port}"
            options = ("--ray-address", cluster.address, "--quiet", "--port", port)
            made = started(first, told, "serving", f"en-de={folder},workers=1", *options)
            services.append(stack.enter_context(made))
            wait_for(lambda told=told: "serving en-de" in told.read_text(), told)
        assert replicas(cluster) == 2
        services[0].kill()  # Ray ends the replica of a service that has died
        wait_for(lambda: replicas(cluster) == 1, told)
        ask = (sys.executable, "-c", ASK, "http://127.0.0.1:8090/lines/en-de", *LINES[:50])
        assert first.run(*ask).splitlines() == translated(LINES[:50])
