"""The request log: a slow or closed output changes no answer, and lost lines are counted."""

import json
import os
import subprocess
import sys
import threading

from helpers.service_requests import INFER, ask, infer, wait_for
from prometheus_client import CollectorRegistry, Counter

from keras_transformer.export.serving import request_log


class Output:
    """A log whose writes wait for an event, or fail."""

    def __init__(self, error=None):
        self.go, self.error = threading.Event(), error
        self.text = ""

    def write(self, text):
        if self.error is not None:
            raise self.error
        assert self.go.wait(60)
        self.text += text

    def flush(self):
        pass


def test_a_log_that_cannot_be_written_changes_no_answer(start):
    running = start(log=Output(BrokenPipeError()))
    assert ask(running)[0] == ask(running, INFER, infer())[0] == 200
    wait_for(lambda: running.metric("log_dropped_total") == 2)


def test_a_blocked_log_stops_no_request(start, monkeypatch):
    monkeypatch.setattr(request_log, "LOG_LINES", 5)
    running = start(log=Output())
    assert {ask(running)[0] for _ in range(10)} == {200}
    assert running.metric("log_dropped_total") >= 4
    running.log.go.set()
    running.stop()
    assert 5 <= running.log.text.count("\n") <= 6  # accepted records are written


def test_lines_that_arrive_together_are_written_together():
    class Blocks(Output):
        def write(self, text):
            super().write(text)
            blocks.append(text)

    blocks, output = [], Blocks()
    log = request_log.Log(output, Counter("dropped", "", registry=CollectorRegistry()))
    for number in range(1000):
        log.write(f"{number}\n")
    output.go.set()
    log.close()
    assert output.text.split() == [str(number) for number in range(1000)]
    assert len(blocks) < 20


WRITER = """
import os, sys
from keras_transformer.export.serving.__main__ import _Output
from keras_transformer.export.serving.admission import Admission
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.metrics import Metrics
from keras_transformer.export.serving.request_log import Record

os.set_blocking(1, False)
metrics, admission = Metrics(_Output()), Admission(Limits())
for _ in range(3000):
    metrics.request_done(Record("v2-http", admission))
print("written", file=sys.stderr, flush=True)
metrics.close()
"""


def test_a_nonblocking_standard_output_gets_whole_lines():
    command = [sys.executable, "-c", WRITER]
    environment = {**os.environ, "KERAS_TRANSFORMER_SERVES": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment) as writer:
        assert writer.stderr.readline().strip() == b"written"
        lines = writer.stdout.read().splitlines()
    assert len(lines) == 3000 and all(json.loads(line) for line in lines)
