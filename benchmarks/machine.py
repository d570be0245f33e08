"""The machine that a benchmark runs on: processor, memory, busy cores, rate of matrix products."""

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers import call


def processor() -> str:
    """Returns the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


@contextlib.contextmanager
def busy_cores(count: int, pinned: bool = False) -> Iterator[None]:
    """Keeps `count` cores busy, each by an endless loop in a child process.

    Args:
        pinned: whether each loop stays on one core. Otherwise the system may move it.
    """
    # A loop ends with this process, also if that is killed.
    code = f"import os\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(10**6): pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        for core, loop in enumerate(loops if pinned else ()):
            os.sched_setaffinity(loop.pid, {core})
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def product_seconds(task: Mapping[str, int]) -> float:
    """Returns the seconds of the fastest of eight products of two large float32 matrices."""
    import numpy as np

    a, b = np.ones((2, task["size"], task["size"]), "float32")
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def matrix_rate(threads: int, size: int = 2048) -> float:
    """Measures floating-point operations per second of a large float32 product in NumPy.

    NumPy's library reads the number of threads when it is loaded, so the product runs in a separate
    process. The fastest of eight counts, because it was disturbed least.
    """
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    environment = dict.fromkeys(names, str(threads))
    return 2 * size**3 / call("machine:product_seconds", {"size": size}, environment)


def memory() -> dict[str, float | None]:
    """Returns peak and current resident memory of this process in MiB (2^20 bytes)."""
    with contextlib.suppress(OSError):
        # Linux, where `resource` may return the parent's peak.
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        peak, resident = (int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS"))
        return {"peak_mb": peak, "resident_mb": resident}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, else KiB
    return {"peak_mb": peak / (2**20 if sys.platform == "darwin" else 1024), "resident_mb": None}
