"""Python processes for tests that start with TensorFlow imported.

Importing TensorFlow takes longer than most of these processes run. So one process a session imports
only TensorFlow, and the tests' processes are forked from it. For a process without TensorFlow, or
with another Keras backend, use `subprocess`.
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import types

FORKS = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
if sys.platform != "win32":
    FORKS.set_forkserver_preload(["tensorflow"])


def skip_graph_optimizers():
    """Disables TensorFlow's graph optimizers.

    Optimizing a graph takes longer than running it a few times, as tests do. Processes that prove
    exports, and processes of `subprocess`, optimize as usual.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class Python:
    """A running `python SCRIPT ...`, `python -m MODULE ...` or `python -c CODE ...`.

    Args:
        arguments: arguments of `python`; `-P` before a script keeps its folder out of the path.
        cwd: working directory. Defaults to this process' directory.
        env: dict of all environment variables. Defaults to this process' variables.
        optimize: whether TensorFlow optimizes graphs. Defaults to `False`.

    Attributes:
        stdout, stderr: `pathlib.Path`s of files with its output.
    """

    def __init__(self, *arguments, cwd=None, env=None, optimize=False):
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        arguments = [str(argument) for argument in arguments]
        if arguments[0] == "-c":
            (folder / "code.py").write_text(arguments[1], "utf-8")
            arguments[:2] = [str(folder / "code.py")]
        for path in (self.stdout, self.stderr):
            path.touch()
        task = arguments, str(cwd or os.getcwd()), dict(env or os.environ), optimize
        task += self.stdout, self.stderr
        self._process = FORKS.Process(target=_run, args=task, daemon=True)
        self._process.start()

    def wait(self, timeout=840):
        """Returns a `subprocess.CompletedProcess` at its end; kills it after `timeout`."""
        self._process.join(timeout)
        self._process.kill()
        self._process.join()
        written = [path.read_text("utf-8", "replace") for path in (self.stdout, self.stderr)]
        self._folder.cleanup()
        return subprocess.CompletedProcess([], self._process.exitcode, *written)

    def is_alive(self):
        return self._process.is_alive()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def kill(self):
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def run(*arguments, **options):
    """Starts a `Python` and waits for its end."""
    return Python(*arguments, **options).wait()


@contextlib.contextmanager
def forked_proofs():
    """Proves exported SavedModels in a forked process, within this context.

    Like an exporter's process, it imports TensorFlow alone and optimizes graphs.
    """
    from keras_transformer.export import proof

    def start(command, **options):
        job = json.loads(pathlib.Path(command[-1]).read_text("utf-8"))
        if not job["signatures"]:  # an ONNX file, proven without TensorFlow
            return subprocess.run(command, **options)
        return Python(*command[1:], optimize=True).wait(options["timeout"])

    before = proof.subprocess
    proof.subprocess = types.SimpleNamespace(run=start, TimeoutExpired=subprocess.TimeoutExpired)
    try:
        yield
    finally:
        proof.subprocess = before


def _run(arguments, cwd, env, optimize, stdout, stderr):
    """Runs in the process."""
    for stream, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # children of `nohup` would ignore it
    if not optimize and "KT_TEST_OPTIMIZE" not in env:
        skip_graph_optimizers()
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            alone = arguments[0] == "-P"
            sys.argv = arguments = arguments[alone:]
            if not alone:
                sys.path.insert(0, str(pathlib.Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a forked process skips them
