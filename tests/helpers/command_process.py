"""A service of one artefact, started by its command in a separate process."""

import json
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from helpers import process_family

MODULE = "keras_transformer.export.serving"
JSON = {"Content-Type": "application/json"}


class Process:
    """The service, with a model `en-de`.

    Args:
        folder: folder of the artefact.
        aside: folder for its output.
        arguments: more arguments of the command.
        model: options of the model.
        imports: bool, whether Python writes the imports to `errors`.

    Attributes:
        log, errors: paths of its standard output and standard error.
        port: int.
    """

    def __init__(self, folder, aside, *arguments, model="threads=1", imports=False):
        self.log, self.errors = aside / "log", aside / "errors"
        options = ["-X", "importtime"] if imports else []
        command = [sys.executable, *options, "-m", MODULE, f"en-de={folder},{model}", *arguments]
        with open(self.log, "w") as log, open(self.errors, "w") as errors:
            self.process = subprocess.Popen([*command, "--port", "0"], stdout=log, stderr=errors)
        end = time.monotonic() + 240
        while not (found := re.search(r"http 127\.0\.0\.1:(\d+)", self.errors.read_text())):
            assert self.process.poll() is None and time.monotonic() < end, self.errors.read_text()
            time.sleep(0.05)
        self.port = int(found[1])
        self.address = f"http://127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def send(self, path, body=None, headers=JSON):
        """Returns the status and the body of an answer."""
        request = urllib.request.Request(self.address + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path, data=None):
        """Returns the text of an answer."""
        status, answer = self.send(path, data)
        assert status == 200, answer
        return answer.decode()

    def lines(self, lines):
        """Returns the answers to lines."""
        return self.get("/lines/en-de", "\n".join(lines).encode()).splitlines()

    def infer(self, lines, **parameters):
        """Returns the status and the body of the answer to lines with options."""
        entry = {"name": "text", "datatype": "BYTES", "shape": [len(lines)], "data": lines}
        fields = {"inputs": [entry], "parameters": parameters}
        return self.send("/v2/models/en-de/infer", json.dumps(fields).encode())

    def begin(self, client, path, body):
        """Sends a request and returns its connection; the answer is not read."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {client}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        opened.sendall(head.encode() + body)
        return opened

    def metric(self, name):
        """Returns a metric of `/metrics`, of the first model that has it."""
        page = self.get("/metrics")
        return float(re.search(rf"^keras_transformer_{name}\S* (\S+)$", page, re.MULTILINE)[1])

    def version(self):
        """Returns the version of the served artefact."""
        return json.loads(self.get("/v2/models/en-de"))["versions"][0]

    def peak(self):
        """Returns the largest memory so far in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def replicas(self):
        """Returns the process ids of the replicas."""
        return process_family.named(self.process.pid, "ray::Engine")
