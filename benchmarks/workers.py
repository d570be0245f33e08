"""Engines in separate processes: the side of the parent and the side of the engine.

The parent starts this file with the name of a function and a task. The process calls the function,
then answers each line of JSON with one line of JSON. While one engine answers, the others wait.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any


class WorkerError(RuntimeError):
    """An engine could not be set up, or failed while it was timed."""


class Missing(Exception):
    """A requirement is not on this machine. The part is skipped, which is not a failure."""


def command(function: str, task: Mapping[str, Any]) -> list[str]:
    """Returns the command line of a process that answers for a function; see `Worker`."""
    return [sys.executable, __file__, function, json.dumps(task, default=str)]


class Worker:
    """One engine in a separate process, called once for each round.

    Args:
        function: "module:function" in this folder. The function gets `task`. It returns a dict of
            facts, or facts and a function that runs a round and returns a dict.
        task: values for JSON.
        environment: further variables of the process. Defaults to none.
        timeout: seconds after which the process is killed. Defaults to `None`: never.

    Attributes:
        facts: dict that the function returned.
        seconds: float, from the start of the process until these facts.

    Raises:
        Missing: a requirement of the engine is not installed here.
        WorkerError: the engine failed; the message has the end of its stderr.
    """

    def __init__(
        self,
        function: str,
        task: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        started = time.perf_counter()
        self._name = task.get("engine") or function
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            command(function, task),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env={**os.environ, **(environment or {})},
        )
        self._alarm = threading.Timer(timeout or 0, self._process.kill)
        if timeout:
            self._alarm.start()
        try:
            self.facts = self._read()
        except BaseException:
            self.close()
            raise
        self.seconds = time.perf_counter() - started

    def __call__(self, **request: Any) -> Any:
        """Runs one round with the values of a request; returns the engine's figures."""
        with contextlib.suppress(BrokenPipeError):  # the process ended; `_read` reports how
            print(json.dumps(request, default=str), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": None}
        if "missing" in reply:
            raise Missing(reply["missing"])
        if "error" in reply:
            status = self._process.wait()
            self._errors.seek(0)
            reason = reply["error"] or f"the process ended with {status}"
            raise WorkerError(f"{self._name}: {reason}\n{self._errors.read()[-2000:]}".strip())
        return reply["found"]

    def close(self) -> None:
        """Ends the process; kills it after 30 seconds."""
        self._alarm.cancel()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def call(function: str, task: Mapping[str, Any], environment: Any = None, **options: Any) -> Any:
    """Returns the result of a function in a separate process. `Worker` has the arguments."""
    worker = Worker(function, task, environment, **options)
    worker.close()
    return worker.facts


@contextlib.contextmanager
def engines(
    function: str,
    tasks: Mapping[Any, Mapping[str, Any]],
    environment: Mapping[str, str] | None = None,
    left_out: dict[Any, str] | None = None,
) -> Iterator[dict[Any, Worker]]:
    """Opens several engines at the same time; closes all of them at the end.

    Args:
        function: as in `Worker`; it chooses the engine by the task's "engine".
        tasks: dict from names to tasks. The "engine" of a task is its name unless it has one. A
            name that ends with ", MKL" runs CTranslate2 with that library.
        environment: further variables of all processes. Defaults to none.
        left_out: dict that gets the names of engines that do not run here, with the reason; the
            first engine must run. Defaults to `None`: all of them must.

    Yields:
        Dict from names to `Worker`s.
    """
    with contextlib.ExitStack() as stack:
        opened = {}
        for name, task in tasks.items():
            task = {"engine": name, **task}
            variables = {"CT2_USE_MKL": str(int(task["engine"].endswith(", MKL")))}
            try:
                opened[name] = Worker(function, task, variables | dict(environment or {}))
            except (Missing, WorkerError) as error:
                if left_out is None or not opened:
                    raise
                left_out[name] = str(error)
            else:
                stack.callback(opened[name].close)
        yield opened


def answer(function: str, task: str) -> None:
    """Runs the process's side of a `Worker`: facts first, then a line for each request."""
    # Output of frameworks goes to stderr, so that it does not mix with the answers.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(**content: Any) -> None:
        print(json.dumps(content, default=str), file=replies, flush=True)

    try:
        module, _, name = function.partition(":")
        found = getattr(importlib.import_module(module), name)(json.loads(task))
        facts, run = found if isinstance(found, tuple) else (found, None)
        reply(found=facts)
        for line in sys.stdin:
            reply(found=run(**json.loads(line)))
    except Exception as error:
        ours = "keras_transformer" in (getattr(error, "name", None) or "")
        if isinstance(error, Missing) or isinstance(error, ModuleNotFoundError) and not ours:
            reply(missing=str(error))
        else:
            reply(error=f"{type(error).__name__}: {error}"[:1000])
            raise  # prints the traceback to stderr


if __name__ == "__main__":
    from workers import answer as run  # as `workers`, whose errors the engines import

    run(*sys.argv[1:])
