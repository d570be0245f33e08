"""Starts, watches and stops the service in a separate process."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLOCK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Service:
    """A running `python -m keras_transformer.export.serving`, at a free port of 127.0.0.1.

    Args:
        arguments: str, for the command.

    Attributes:
        port: int.
    """

    def __init__(self, *arguments):
        self.port = free_port()
        self._errors = tempfile.NamedTemporaryFile("r", prefix="service-", suffix=".log")
        command = [sys.executable, "-m", "keras_transformer.export.serving", *arguments]
        with open(self._errors.name, "w") as errors:
            self.process = subprocess.Popen(
                [*command, "--quiet", "--port", str(self.port)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        end = time.monotonic() + 300
        while not re.search(r"http \S+:\d+", self.errors()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise RuntimeError(self.errors())
            time.sleep(0.2)

    def errors(self):
        return Path(self._errors.name).read_text("utf-8", "replace")

    def family(self):
        """Returns process ids of the service and its descendants, each with its command."""
        parents, names = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                name = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            parents[int(folder.name)], names[int(folder.name)] = int(stat[1]), name
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: names[pid] for pid in sorted(found) if pid in names}

    def replicas(self):
        """Returns process ids of the replicas, if Ray runs any."""
        return [pid for pid, name in self.family().items() if name.startswith("ray::Engine")]

    def cpu_seconds(self):
        """Returns the CPU seconds of all processes since their start."""
        total = 0
        for pid in self.family():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / CLOCK

    def megabytes(self):
        """Returns resident memory of the service's process, the replicas, and all processes."""

        def resident(pids):
            return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)

        pids = {"service": [self.process.pid], "replicas": self.replicas(), "all": self.family()}
        return {name: resident(some) * PAGE / 1e6 for name, some in pids.items()}

    def stop(self):
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
