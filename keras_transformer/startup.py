"""How the package starts: without messages that nobody needs, and without TensorFlow to serve.

While its libraries load, TensorFlow writes a few lines to stderr whatever `TF_CPP_MIN_LOG_LEVEL`
says: absl prints every message until it is set up. Where that variable asks for silence, these
lines are held back here; later ones TensorFlow holds back by itself.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

SERVER = "keras_transformer.export.runtime"
SERVERS = (
    SERVER,
    *(f"keras_transformer.export.{name}" for name in ("archive", "serving", "triton")),
)
# Set to "1" in processes that serve and are no command of this package, as those that Ray starts.
SERVES = "KERAS_TRANSFORMER_SERVES"
FRAMEWORKS = ("tensorflow", "tensorflow_text", "keras", "jax", "torch")
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
STARTUP = ("I0000 ", "WARNING: All log messages before absl::InitializeLog()")
# A process of its own passes lines on, so that the last words of one that crashes are not lost.
_PASS_ON = """
import sys
for line in sys.stdin.buffer:
    if not line.startswith(tuple(start.encode() for start in sys.argv[1:])):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def quiet_commands() -> None:
    """Asks for silence where `python -m` is about to run a module of this package.

    Python imports the package first, and TensorFlow with it: the module itself would be too late.
    A level that the user has set is left alone.
    """
    if sys.argv[:1] == ["-m"]:  # so while Python looks for the module
        os.environ.setdefault(LEVEL, "3")


def serve_without_frameworks() -> None:
    """Makes frameworks count as missing where `python -m` is about to run a command that serves.

    Python imports the package first, which imports TensorFlow where that is installed: seconds
    for a command that needs a fraction of one. Who imports `export.runtime` from a program of their
    own gets the whole package, for `keras.models.load_model` must find our classes there.
    """
    found = {module for flag, module in pairwise(sys.orig_argv) if flag == "-m"}
    if os.environ.get(SERVES) == "1" or sys.argv[:1] == ["-m"] and found & set(SERVERS):
        sys.modules.update(dict.fromkeys(FRAMEWORKS))


@contextmanager
def quiet_import() -> Iterator[None]:
    """Drops the lines of TensorFlow's start, where `TF_CPP_MIN_LOG_LEVEL` is set and not "0"."""
    if os.environ.get(LEVEL, "0") == "0" or "tensorflow" in sys.modules:
        yield
    else:
        with without_lines(*STARTUP):
            yield


@contextmanager
def without_lines(*starts: str) -> Iterator[None]:
    """Drops lines written to stderr meanwhile that start with one of `starts`; passes others on."""
    if not sys.executable or sys.stderr is None:  # no Python to start, or nowhere to write
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    command = [sys.executable, "-IS", "-c", _PASS_ON, *starts]
    passing_on = subprocess.Popen(command, stdin=subprocess.PIPE)
    # C++ writes to file descriptor 2, which `contextlib.redirect_stderr` does not touch.
    os.dup2(passing_on.stdin.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        passing_on.stdin.close()
        passing_on.wait()
