"""An archive job and a service on two machines with one Ray cluster; then one of them fails."""

import subprocess
import sys
import time

import pytest
from support import archives, artefacts, hosts

pytestmark = pytest.mark.slow
LINES = archives.lines(3000)
TOKENIZER = artefacts.tokenizer()
CURL = """
import sys, urllib.request
data = "".join(f"{line}\\n" for line in sys.argv[2:]).encode()
with urllib.request.urlopen(sys.argv[1], data, timeout=120) as answer:
    sys.stdout.write(answer.read().decode())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return artefacts.write(tmp_path_factory.mktemp("machines") / "onnx", TOKENIZER)


@pytest.fixture(scope="module")
def cluster():
    if reason := hosts.missing():
        pytest.skip(reason)
    with hosts.Cluster() as made:
        yield made


def wait_for(condition, process, told):
    end = time.monotonic() + 120
    while not (found := condition()):
        assert process.poll() is None and time.monotonic() < end, told.read_text()
        time.sleep(0.1)
    return found


def translated(lines):
    return [artefacts.expected_hypotheses(TOKENIZER, line)[0][0] for line in lines]


def running(host, name):
    """Ids of the Ray workers of a kind on a machine."""
    return [pid for pid, command in host.processes().items() if command.startswith(f"ray::{name}")]


# The order matters: the last test takes the second machine away.


def test_a_service_has_a_replica_on_each_machine(cluster, folder, tmp_path):
    first, second = cluster.hosts
    module = "keras_transformer.export.serving"
    options = ("--host", first.address, "--ray-address", cluster.address, "--quiet")
    arguments = (sys.executable, "-m", module, f"en-de={folder},replicas=2,workers=1", *options)
    told = tmp_path / "told"
    with open(told, "w") as errors:
        process = first.start(*arguments, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        wait_for(lambda: "serving en-de" in told.read_text(), process, told)
        assert [len(running(host, "ServeReplica")) for host in cluster.hosts] == [1, 1]
        address = f"http://{first.address}:8080"
        ask = (sys.executable, "-c", CURL, f"{address}/lines/en-de", *LINES[:200])
        for _ in range(3):
            assert second.run(*ask).splitlines() == translated(LINES[:200])
        metrics = second.run(
            sys.executable, "-c", CURL.replace("data,", "None,"), f"{address}/metrics"
        )
        answered = [row for row in metrics.splitlines() if "_lines_total{" in row]
        assert len(answered) == 2, metrics
    finally:
        process.terminate()
        assert process.wait(60) == 0
    # The cluster goes on, without what the service has started.
    end = time.monotonic() + 30
    while any(running(host, "ServeReplica") for host in cluster.hosts):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_job_is_complete_though_a_machine_is_lost(cluster, folder, tmp_path):
    first, second = cluster.hosts
    archives.write_text(tmp_path / "in.txt.gz", LINES)
    module, out, told = "keras_transformer.export.archive", tmp_path / "out", tmp_path / "told"
    options = ("--address", cluster.address, "--part-lines", 5, "--with-source")
    arguments = (sys.executable, "-m", module, folder, tmp_path / "in.txt.gz", out, *options)
    with open(told, "w") as errors:
        process = first.start(*arguments, stderr=errors)
    try:
        wait_for(lambda: running(second, "MapWorker"), process, told)
        wait_for(lambda: len(archives.parts(out)) > 50, process, told)
        assert running(first, "MapWorker")
        second.kill()
        assert len(archives.parts(out)) < 500
        assert process.wait(200) == 0, told.read_text()
    finally:
        process.kill()
    rows = archives.rows(out)
    assert [row["source"] for row in rows] == LINES
    assert [row["text"] for row in rows] == translated(LINES)
