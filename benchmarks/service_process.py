"""Starts, watches and stops the service in a separate process; processes and their times."""

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


def family(pid):
    """Returns a process and its descendants: dict from pid to command line and CPU seconds."""
    known, children = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # the process has ended
        known[int(folder.name)] = line.replace("\0", " "), sum(map(int, fields[11:13])) / CLOCK
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, left = {}, [pid]
    while left:
        one = left.pop()
        left += children.get(one, [])
        if one in known:
            found[one] = known[one]
    return found


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

    def replicas(self):
        """Returns process ids of the replicas, if Ray runs any."""
        found = family(self.process.pid)
        return [pid for pid, (name, _) in found.items() if name.startswith("ray::Engine")]

    def cpu_seconds(self):
        """Returns the CPU seconds of all processes since their start."""
        return sum(seconds for _, seconds in family(self.process.pid).values())

    def megabytes(self):
        """Returns resident memory of the service's process, the replicas, and all processes."""

        def resident(pids):
            return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)

        pids = {"service": [self.process.pid], "replicas": self.replicas()}
        pids["all"] = family(self.process.pid)
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
