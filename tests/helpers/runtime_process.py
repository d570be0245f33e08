"""Runs the runtime's command line as a server would: in a process without frameworks."""

import json
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
    """Returns the arguments of `python -m keras_transformer.export.runtime ARGUMENTS`."""
    return [sys.executable, "-c", WITHOUT_FRAMEWORKS + _AS_MODULE, *map(str, arguments)]


def start(*arguments, **options):
    """Starts the command with pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command(*arguments), **{**pipes, **options})


def translate(data, *arguments):
    """Runs the command on the bytes `data`. Returns exit status, output and errors."""
    done = subprocess.run(command(*arguments), input=data, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def run(code, *arguments):
    """Runs Python code in a process without frameworks. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


_SHARED = """
import concurrent.futures, json, random, resource, sys
from keras_transformer.export.runtime import Translator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

folder, lines, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
draw = random.Random(20170612)
requests = [draw.choices(lines, k=draw.randint(1, most)) for _ in range(2000)]
translator = Translator(folder, threads=1)
serial = [translator.n_best(request) for request in requests]

def same(number):
    return translator.n_best(requests[number]) == serial[number]

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    warm_up = all(pool.map(same, range(2000)))
    before = resident()
    equal = sum(pool.map(same, range(2000)))
    grown = resident() / before - 1
print(json.dumps({"warm_up": warm_up, "equal": equal, "grown": grown}))
"""


def check_sharing(folder, lines, most):
    """Tests a Translator that eight threads share for 2,000 requests of 1 to `most` lines.

    Answers must equal the answers in one thread. Resident memory must grow less than 5 % in a
    second round.
    """
    found = json.loads(run(_SHARED, folder, json.dumps(lines), most))
    assert found["warm_up"] and found["equal"] == 2000
    assert found["grown"] < 0.05
