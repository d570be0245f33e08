"""A replica: one artefact, opened, in a process of its own that Ray Serve starts and watches."""

import dataclasses
import functools
import logging
import os
import pathlib
import sys
import threading
import time

from keras_transformer.export.artefact.signature import MANIFEST_FILE
from keras_transformer.export.runtime import ArtefactError, answers, open_runner
from keras_transformer.export.serving.worker import work

logger = logging.getLogger("ray.serve")
# Ray reads it when it is imported: all of its processes talk over 127.0.0.1.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Seconds between looks at the folder, and until one that cannot be opened is opened again although
# nothing in it has changed.
LOOK, AGAIN = 1.0, 60.0
# Workers that share a session of ONNX Runtime on the CPU wait for each other, for it gives memory
# to one at a time: with a small model a line alone takes 8 % longer, and at 130 lines/s the p95 was
# 73 ms and not 64. So there are as many sessions as workers, if so many bytes hold their weights.
SESSION_BYTES = 2**30


@dataclasses.dataclass
class Sent:
    """What comes back for a batch of lines.

    Attributes:
        results: list, one a line: `Translation` or another of the runtime's results.
        lengths: list of int, tokens of each line as the model read it.
        seconds: float, time that the batch took.
        description: `Description` of the artefact that answered.
        replica: str, which one it was.
    """

    results: list
    lengths: list
    seconds: float
    description: "Description"
    replica: str


@dataclasses.dataclass(frozen=True)
class Description:
    """What the doors must know of a model.

    Attributes:
        task: str, of the artefact.
        version: str, the first digits of the manifest's checksum.
        samples: bool, whether a seed matters.
        precision, provider: str, as they run.
    """

    task: str
    version: str
    samples: bool
    precision: str
    provider: str


class Replica:
    """Answers batches of lines with one artefact, and takes up another that replaces it.

    Ray Serve makes it, in a process of its own. The manifest of the folder is looked at every
    second. Where it is another one the new artefact is opened beside the old one, which answers
    meanwhile. A folder that cannot be opened changes nothing. It is opened again when a file in it
    changes, or after `AGAIN` seconds.

    Args:
        folder: str, an artefact.
        providers, threads, spinning: as `Translator` takes them.
        workers: int, batches that are computed at the same time; on the CPU each in a session of
            its own, as far as `SESSION_BYTES` go.
        batch_tokens: int, tokens of a batch, which the queue that sends it has guessed. One of more
            than twice as many is parted.
        doors: address and key of `Workers`, where the workers go. Defaults to `None`: nowhere.
    """

    def __init__(
        self,
        folder,
        providers=None,
        threads=None,
        workers=1,
        batch_tokens=512,
        spinning=False,
        doors=None,
    ):
        if LOOPBACK.items() <= os.environ.items():
            _keep_to_this_machine()
        self._folder, self._most_tokens = pathlib.Path(folder), 2 * batch_tokens
        self._options = {"providers": providers, "threads": threads, "spinning": spinning}
        self._name = str(os.getpid())
        self._seen = self._identity()
        self._workers, self._tried, self._tried_at = workers, None, -AGAIN
        self._runners = self._open()
        threading.Thread(target=self._watch, daemon=True).start()
        for worker in range(workers if doors else 0):
            answer = functools.partial(self.answer, worker=worker)
            methods = {"answer": answer, "describe": self.describe}
            threading.Thread(target=work, args=(*doors, methods), daemon=True).start()

    def describe(self):
        """The `Description` of what is served now."""
        return description(self._runners[0])

    def answer(self, items, seed=None, worker=0):
        """The `Sent` of a batch of lines, by the worker of this number."""
        runners, start = self._runners, time.perf_counter()
        runner = runners[worker % len(runners)]
        lengths = runner.lengths(items)
        results = list(answers(runner, items, seed, self._most_tokens, max(1, len(items))))
        seconds = time.perf_counter() - start
        return Sent(results, lengths, seconds, description(runner), self._name)

    def _open(self):
        """The artefact, opened: the runners that the workers take in turn."""
        runners = [open_runner(self._folder, **self._options)]
        if runners[0].provider == "CPUExecutionProvider":
            size = sum(file["bytes"] for file in runners[0].manifest["files"].values())
            count = min(self._workers, SESSION_BYTES // max(1, size))
            runners += [open_runner(self._folder, **self._options) for _ in range(count - 1)]
        if len({runner.manifest["checksum"] for runner in runners}) > 1:
            raise ArtefactError(f"{self._folder} was replaced while it was opened.")
        return runners

    def _identity(self):
        """What changes when the manifest is replaced; None where there is none."""
        try:
            found = os.stat(self._folder / MANIFEST_FILE)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _files(self):
        """A set that changes when a file of the folder does; None where there is no folder."""
        try:
            found = [(file.name, file.stat()) for file in os.scandir(self._folder)]
        except OSError:
            return None
        return {(name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found}

    def _watch(self):
        while True:
            time.sleep(LOOK)
            self.look()

    def look(self):
        """Takes up a new artefact, if there is one."""
        found, files = self._identity(), self._files()
        if found is None or found == self._seen:
            return
        if files == self._tried and time.monotonic() < self._tried_at + AGAIN:
            return
        try:
            self._runners = self._open()
        except Exception as error:  # of any kind: the watch goes on
            if files != self._tried:  # said once
                logger.warning(
                    "%s was replaced, and is not served: %s: %s",
                    self._folder,
                    type(error).__name__,
                    error,
                )
            self._tried, self._tried_at = files, time.monotonic()
        else:
            self._seen = found  # if it was replaced meanwhile, the next look sees that
            logger.info("%s was replaced: version %s", self._folder, self.describe().version)


def _keep_to_this_machine():
    """Binds the port of this process to 127.0.0.1.

    Ray Serve 2.60 opens one in each replica, for handles that speak gRPC, on all addresses of the
    machine, and has no option for it. It does so after a replica was made.
    """
    module = sys.modules.get("ray.serve._private.replica")
    if module is not None:
        add = module.add_port_to_grpc_server
        module.add_port_to_grpc_server = lambda server, address: add(server, "127.0.0.1:0")


def description(runner):
    """The `Description` of what `open_runner` gave."""
    manifest = runner.manifest
    version, precision = manifest["checksum"][:12], manifest["precision"]
    return Description(manifest["task"], version, runner.samples, precision, runner.provider)
