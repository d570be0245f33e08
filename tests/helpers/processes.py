"""Python processes of a test's own that need not wait for TensorFlow.

Importing TensorFlow takes longer than what most of these processes do. So one process a session
imports it, and nothing else, and each process that a test asks for is forked from that one. Where a
process must not have TensorFlow, or must import Keras with another backend, use `subprocess`.
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
    """Runs TensorFlow's functions as they were traced.

    To optimize a graph takes longer than to run it a few times, as tests do. The processes in which
    exports are proven, and those that `subprocess` starts, optimize as users' do.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


class Python:
    """A running `python SCRIPT ...`, `python -m MODULE ...` or `python -c CODE ...`.

    Args:
        arguments: what comes after `python`; `-P` before a script keeps its folder out of the path.
        cwd: folder that it starts in. Defaults to this process' folder.
        env: dict of all environment variables. Defaults to those of this process.
        optimize: whether TensorFlow optimizes graphs. Defaults to `False`.

    Attributes:
        stdout, stderr: `pathlib.Path`s of files that get what it writes.
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
        """Its end, as `subprocess.CompletedProcess`; one that takes longer is killed."""
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
    """SavedModels that are exported meanwhile are proven in a process that is forked, too.

    It has imported TensorFlow alone, as the process that exporters start, and optimizes graphs.
    """
    from keras_transformer.export import proof

    def start(command, **options):
        job = json.loads(pathlib.Path(command[-1]).read_text("utf-8"))
        if not job["signatures"]:  # an ONNX file, beside which there is no TensorFlow
            return subprocess.run(command, **options)
        return Python(*command[1:], optimize=True).wait(options["timeout"])

    before = proof.subprocess
    proof.subprocess = types.SimpleNamespace(run=start, TimeoutExpired=subprocess.TimeoutExpired)
    try:
        yield
    finally:
        proof.subprocess = before


def _run(arguments, cwd, env, optimize, stdout, stderr):
    """What happens in the process."""
    for stream, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it, and children would
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
        atexit._run_exitfuncs()  # a forked process ends without them
