"""Two network namespaces as machines with a cable between them, and a Ray cluster over both.

Each machine has separate addresses, ports and 127.0.0.1. The disk is shared, as in a cluster.
Requires root on Linux, and the program `ip`.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

ADDRESSES = ("10.199.7.1", "10.199.7.2")
RAY_PORT = 6379
# All processes share a token. Otherwise the second machine is refused if the first one has run
# Ray before.
RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    # Ray notices a lost machine sooner than the default of a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


def missing():
    """Returns why namespaces are unavailable, or None."""
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid():
        return "needs root on Linux, and the program ip"
    name = f"kt-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "cable", "type", "veth", "peer", "other")
        finally:
            ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not available here: {error.stderr.strip()}"
    return None


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Host:
    """One of the machines.

    Args:
        name: str, its namespace.
        address: str, reachable from the other machine.
    """

    def __init__(self, name, address):
        self.name, self.address = name, address
        ip("netns", "add", name)

    def plug_in(self):
        """Gives its end of the cable the address, and routes all traffic there."""
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "cable")
        ip("-n", self.name, "link", "set", "cable", "up")
        ip("-n", self.name, "route", "add", "default", "dev", "cable")

    def start(self, *command, **options):
        """Starts a command there. Returns a `Popen`."""
        inside = ["ip", "netns", "exec", self.name, *map(str, command)]
        # gRPC would ask this machine's proxy, which is unreachable there.
        own = {name: os.environ[name] for name in os.environ if "proxy" not in name.lower()}
        return subprocess.Popen(inside, text=True, env=own | RAY, **options)

    def run(self, *command, seconds=120):
        """Runs a command there. Returns its output."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate(timeout=seconds)[0]
        assert process.returncode == 0, said
        return said

    def processes(self):
        """Returns the ids and commands of processes there."""
        found = {}
        for pid in map(int, ip("netns", "pids", self.name).split()):
            with contextlib.suppress(OSError):  # it has ended
                found[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
        return found

    def unplug(self):
        """Takes its end of the cable down, without notice."""
        ip("-n", self.name, "link", "set", "cable", "down")

    def kill(self):
        """Kills all processes there."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


class Cluster:
    """A context manager of the two machines, each with two cores for Ray."""

    def __init__(self):
        self.hosts = []
        # Not pytest's folder: its name is too long for sockets.
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.address = f"{ADDRESSES[0]}:{RAY_PORT}"

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        for number, address in enumerate(ADDRESSES):
            self.hosts.append(Host(f"kt-{os.getpid()}-{number}", address))
        first, second = (host.name for host in self.hosts)
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "cable", "netns", second)
        for host in self.hosts:
            host.plug_in()
        head = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
        self._start_ray(self.hosts[0], *head, f"--temp-dir={self.folder}")
        self._start_ray(self.hosts[1], f"--address={self.address}")

    def _start_ray(self, host, *options):
        code = "from ray.scripts.scripts import main; main()"
        options = ("start", *options, f"--node-ip-address={host.address}", "--num-cpus=2")
        host.run(sys.executable, "-c", code, *options, "--disable-usage-stats")

    def __exit__(self, *error):
        for host in self.hosts:
            host.kill()
        for host in self.hosts:
            end = time.monotonic() + 10  # running processes write into the folder
            while host.processes() and time.monotonic() < end:
                time.sleep(0.1)
            ip("netns", "del", host.name)
        shutil.rmtree(self.folder, ignore_errors=True)
