"""Runs the runtime's command line as a server would: in a process without any framework."""

import os
import subprocess
import sys

FRAMEWORKS = ("keras", "tensorflow", "tensorflow_text", "jax", "torch", "onnx", "tf2onnx")
WITHOUT_FRAMEWORKS = f"import sys; sys.modules.update(dict.fromkeys({FRAMEWORKS}))\n"
_AS_MODULE = (
    "import runpy; runpy.run_module('keras_transformer.export.runtime', "
    "run_name='__main__', alter_sys=True)"
)


def command(*arguments):
    """The argument list of `python -m keras_transformer.export.runtime ARGUMENTS`."""
    return [sys.executable, "-c", WITHOUT_FRAMEWORKS + _AS_MODULE, *map(str, arguments)]


def start(*arguments, **options):
    """The same, started with pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command(*arguments), **{**pipes, **options})


def translate(data, *arguments):
    """The same, run to its end on the bytes `data`: exit status, output and errors, as text."""
    done = subprocess.run(command(*arguments), input=data, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def run(code, *arguments):
    """Runs Python code in a process without frameworks; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
