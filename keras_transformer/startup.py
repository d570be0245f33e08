"""Keeps TensorFlow's start-up messages out of what people read.

While its libraries load, TensorFlow writes a few lines to stderr whatever `TF_CPP_MIN_LOG_LEVEL`
says: absl prints every message until it is set up. Where that variable asks for silence, these
lines are held back here; later ones TensorFlow holds back by itself.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Written by a process of its own, so that the last words of one that crashes are still passed on.
_FILTER = """
import sys
for line in sys.stdin.buffer:
    if not line.startswith((b"I0000 ", b"WARNING: All log messages before absl::InitializeLog()")):
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


@contextmanager
def quiet_import() -> Iterator[None]:
    """Drops informative lines that libraries write to stderr meanwhile; passes on all others.

    Does nothing where `TF_CPP_MIN_LOG_LEVEL` is not set or "0", or TensorFlow is imported already.
    """
    asked = os.environ.get(LEVEL, "0") != "0" and sys.executable and sys.stderr is not None
    if not asked or "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    # C code writes to file descriptor 2, which `contextlib.redirect_stderr` does not touch.
    passing_on = subprocess.Popen([sys.executable, "-IS", "-c", _FILTER], stdin=subprocess.PIPE)
    os.dup2(passing_on.stdin.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        passing_on.stdin.close()
        passing_on.wait()
