"""Processes with one engine each, and the speed of this machine's matrix products.

Separate processes show the peak memory and the start time of each engine. All engines of a
comparison are alive at the same time, and one works at a time.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# OpenMP's threads spin for up to 0.2 s after their work, which would disturb the next engine.
PAUSE = 0.3
# CTranslate2 reads its library for products when it is loaded. Neither is always faster.
BACKENDS = {"ctranslate2": "0", "ctranslate2, MKL": "1"}


@contextlib.contextmanager
def busy_cores(count, pinned=False):
    """Keeps `count` cores busy, each by an endless loop in a child process.

    Args:
        pinned: bool, whether each loop stays on one core. Otherwise the system may move it.
    """
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        for core, loop in enumerate(loops if pinned else ()):
            os.sched_setaffinity(loop.pid, {core})
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Engine:
    """A process of `serving_engines.py` with one engine.

    Args:
        config: dict for the process: engine, folder, precision, search, threads, clock.
        first_rows: batch of source ids to translate first.

    Attributes:
        opened_mb: peak memory after the model was opened, before the first translation.
        first: seconds from the start of the process to its first translation.
    """

    def __init__(self, config, first_rows):
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serving_engines.py"), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={
                **os.environ,
                "PYTHONPATH": str(HERE.parent),
                "CT2_USE_MKL": config.get("mkl", "0"),
            },
        )
        self.opened_mb = self([])["peak_mb"]
        self([first_rows])
        self.first = time.perf_counter() - start

    def __call__(self, batches):
        """Returns seconds, results and memory of a job."""
        if batches:
            time.sleep(PAUSE)
        print(json.dumps({"batches": batches}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with status {self.process.wait()}, see above")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# Prints the seconds of the fastest of eight products of large matrices.
PRODUCT = """
import time, numpy
a, b = numpy.ones((2, 2048, 2048), "float32")
def seconds():
    start = time.perf_counter()
    a @ b
    return time.perf_counter() - start
print(min(seconds() for _ in range(8)))
"""


def matrix_rate(threads):
    """Measures floating-point operations per second of a large float32 product in NumPy.

    NumPy's linear algebra library reads the number of threads when it is loaded, so the product
    runs in a separate process. The fastest of eight counts, because it was disturbed least.
    """
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    made = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=environment, stdout=subprocess.PIPE, check=True
    )
    return 2 * 2048**3 / float(made.stdout)
