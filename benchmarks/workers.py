"""Engines in separate processes, which are timed in turn.

Separate processes show the peak memory of each engine, keep frameworks apart, and end settings such
as threads or the precision of products. The parent starts a script with `--worker JSON`. The script
sets up the engine, then answers each line of JSON with one line of JSON. While one engine answers,
the others wait.
"""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = ("tensorflow", "jax", "torch")
PAUSE = 0.3
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


class WorkerError(RuntimeError):
    """An engine could not be set up, or failed while it was timed."""


class Missing(Exception):
    """A requirement is not on this machine. The part is skipped, which is not a failure."""


class Worker:
    """One engine in a separate process.

    Args:
        script: path of the script that calls `answer` for its argument `--worker`.
        task: dict for it, sent as JSON.
        environment: additional variables of the process.

    Attributes:
        facts: dict that the engine returned when it was set up.

    Raises:
        Missing: a requirement of the engine is not installed here.
        WorkerError: the engine failed; the message has the end of its stderr.
    """

    def __init__(self, script, task, environment=None):
        self.name = task.get("engine") or task.get("part")
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--worker", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            self.facts = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, **request):
        """Runs one round; returns a dict of the engine's figures."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the process ended; `_read` reports how
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {}
        if "missing" in reply:
            raise Missing(reply["missing"])
        if not line or "error" in reply:
            self._process.wait()
            self._errors.seek(0)
            reason = reply.get("error") or f"exit status {self._process.returncode}"
            raise WorkerError(f"{self.name}: {reason}\n{self._errors.read()[-2000:]}".strip())
        return reply

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def answer(set_up, task):
    """Runs the process's side of a `Worker`.

    Args:
        set_up: function from the task to a dict of facts and a function. The latter is called with
            each request's values, and returns a dict.
        task: str, JSON.
    """
    # Output of frameworks must not mix with the answers.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(content):
        print(json.dumps(content), file=replies, flush=True)

    try:
        facts, run = set_up(json.loads(task))
        reply(facts)
        for line in sys.stdin:
            reply(run(**json.loads(line)))
    except Exception as error:
        ours = "keras_transformer" in (getattr(error, "name", None) or "")
        if isinstance(error, Missing) or isinstance(error, ModuleNotFoundError) and not ours:
            reply({"missing": str(error)})
        else:
            reply({"error": f"{type(error).__name__}: {error}"[:1000]})
            raise  # prints the traceback to stderr


def in_turn(workers, rounds, warm_up=1, **request):
    """Asks each engine once in each round; returns a dict from name to answers."""
    answers = {name: [] for name in workers}
    for number in range(warm_up + rounds):
        for name, worker in workers.items():
            # Threads of the previous engine may still spin.
            time.sleep(PAUSE if len(workers) > 1 else 0)
            measured = worker.ask(**request)
            if number >= warm_up:
                answers[name].append(measured)
    return answers


def environment(device, threads, backend=None, packages=None):
    """Returns environment variables for a process on "gpu" or "cpu" with `threads` threads.

    Args:
        packages: folder of unpacked wheels that the process imports first.
    """
    found = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Waiting engines keep their weights in memory, so none may take all of it.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    found |= dict.fromkeys(names, str(threads))
    if device == "cpu":
        found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if backend:
        found["KERAS_BACKEND"] = backend
    if packages:
        paths = [str(packages), os.environ.get("PYTHONPATH")]
        found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return found


def use_checkout():
    """Makes `keras_transformer` importable from this checkout where it is not installed."""
    if importlib.util.find_spec("keras_transformer") is None:
        sys.path.insert(0, str(ROOT))
        import keras_transformer

        keras_transformer.__path__.append(str(ROOT))  # contains `export`


def peak_memory():
    """Returns the peak memory of this process in bytes."""
    with contextlib.suppress(OSError):
        # Linux, where `resource` may return the parent's peak.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# The functions below depend on the framework: `engine` is one of `BACKENDS`.


def set_precision(engine, precision):
    """Sets exact or TF32 products of float32 numbers; the dtype alone sets lower precisions."""
    allowed = precision != "float32"
    if engine == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(allowed)
    elif engine == "jax":
        import jax

        names = {"float32": "float32", "tf32": "tensorfloat32"}
        jax.config.update("jax_default_matmul_precision", names.get(precision))
    else:
        import torch

        torch.set_float32_matmul_precision("high" if allowed else "highest")


def dtype_policy(precision):
    """Returns the name of Keras' dtype policy."""
    low = precision in ("bfloat16", "float16")
    return f"mixed_{precision}" if low else "float32"


def gpus(engine):
    """Returns the names of the GPUs that a framework can use."""
    if engine == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in found]
        return [each.get("device_name", "GPU") for each in details]
    if engine == "jax":
        import jax

        return [each.device_kind for each in jax.devices() if each.platform in ("gpu", "cuda")]
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def on_gpu(tensor):
    """Returns whether a tensor of any framework is on a GPU."""
    if hasattr(tensor, "is_cuda"):
        return tensor.is_cuda
    device = tensor.device  # TensorFlow: a string; JAX: an object
    return "GPU" in device if isinstance(device, str) else device.platform in ("gpu", "cuda")


def gpu_memory(engine):
    """Returns the peak memory of the framework on the first GPU in bytes."""
    if engine == "tensorflow":
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    if engine == "jax":
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import torch

    return torch.cuda.max_memory_allocated()


def table(heads, rows):
    """Returns a Markdown table; floats have three significant digits."""

    def text(cell):
        if isinstance(cell, float):
            return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:#.3g}".rstrip(".")
        return "-" if cell is None else str(cell)

    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(text, cells))} |" for cells in lines)
