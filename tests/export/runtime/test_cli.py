"""The command line: options, streams, exit statuses, and the output of each task."""

import io
import itertools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys

import pytest
from helpers import artefacts, exports, runtime_process
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from keras_transformer.export.runtime import open_runner
from keras_transformer.export.runtime.__main__ import main
from keras_transformer.export.runtime.steps_session import StepsSession
from keras_transformer.search import GreedySearch
from keras_transformer.text.lines import MOST_LINE_BYTES

LINES = ["two dogs\ta man", "", "a man\trides a bicycle"]


def best(tokenizer, line):
    return artefacts.expected_hypotheses(tokenizer, line)[0][0]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Returns a function that runs the command here and returns status, output and errors."""

    def run(lines, *arguments):
        data = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
        (tmp_path / "in.txt").write_bytes(data)
        output = io.TextIOWrapper(io.BytesIO())
        with open(tmp_path / "in.txt") as source, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", source)
            patched.setattr(sys, "stdout", output)
            try:
                status = main(list(map(str, arguments)))
            except SystemExit as stopped:  # by argparse
                status = stopped.code
        return status, output.buffer.getvalue().decode(), capsys.readouterr().err

    return run


@pytest.fixture
def answered(command):
    """Returns a function that runs the command without errors and returns its lines."""

    def run(lines, *arguments):
        status, output, errors = command(lines, *arguments, "--quiet")
        assert (status, errors) == (0, "")
        return output.removesuffix("\n").split("\n")

    return run


# Lines


def test_lines_are_translated_in_order(tokenizer, folder):
    lines = artefacts.LINES * 31
    data = "\n".join(lines).encode()  # the last line needs no newline
    status, output, errors = runtime_process.translate(data, folder, "--tokens-per-batch", 97)
    assert output.split("\n") == [*(best(tokenizer, line) for line in lines), ""]
    assert (status, errors) == (0, "running on CPUExecutionProvider\n")


def test_bad_lines_are_reported_by_number_and_others_translated(tokenizer, folder, command):
    data = b"two dogs\n\n caf\xe9\n\t \na man\n" + b"x" * (3 * MOST_LINE_BYTES) + b"\nrides\n"
    status, output, errors = command(data, folder, "--quiet", "--threads", 1)
    good = [best(tokenizer, line) for line in ("two dogs", "a man", "rides")]
    assert output.split("\n") == [good[0], "", "", "", good[1], "", good[2], ""] and status == 1
    first, second, last = errors.splitlines()
    assert first.startswith("line 3 is not translated: not UTF-8 at byte 5")
    assert second.startswith(
        f"line 6 is not translated: more than {MOST_LINE_BYTES} bytes in one line"
    )
    assert last == "2 lines were not translated"
    assert command(b"", folder, "--quiet") == (0, "", "")


def test_n_best_lists_number_score_and_text(tokenizer, folder, command):
    line = artefacts.LINES[1]
    pairs = zip(*artefacts.expected_hypotheses(tokenizer, line), strict=True)
    rows = [f"1\t{score:.4f}\t{text}" for text, score in pairs]
    status, output, _ = command(line.encode() + b"\n\xff\n\n", folder, "--n-best", 5)
    assert (status, output) == (1, "\n".join([*rows, "3\t0.0000\t", ""]))
    assert command([line], folder, "--n-best", 1)[1] == rows[0] + "\n"


def test_a_newline_in_a_translation_becomes_a_space(tokenizer, folder, answered):
    """The model moves the byte <0x03> by SHIFT to <0x0A>."""
    odd = f"a{chr(ord(chr(10)) - artefacts.SHIFT)}a"
    assert best(tokenizer, odd).count("\n") == 1
    texts = [best(tokenizer, odd).replace("\n", " "), best(tokenizer, "two dogs")]
    assert answered([odd, "two dogs"], folder) == texts


# Tasks


def test_results_without_a_search_are_written(made, answered):
    folders = {name: made(name) for name in ("classify", "tag", "answer", "embed", "series")}
    found = {name: open_runner(folders[name]).predict(LINES) for name in ("classify", "answer")}
    labels = [f"{result.label}\t{result.probability:.4f}" for result in found["classify"]]
    assert answered(LINES, folders["classify"]) == [labels[0], "", labels[2]]
    rows = [f"1\t{score:.4f}\t{label}" for score, label in found["classify"][2].ranked()]
    assert answered(LINES[2:], folders["classify"], "--n-best", 2) == rows[:2]
    answers = [result.text for result in found["answer"]]
    assert answered(LINES, folders["answer"]) == answers and answers[0] and answers[2]
    (tags,) = open_runner(folders["tag"]).predict(["two dogs"])
    rows = answered(["", " two  dogs"], folders["tag"])
    assert rows == ["", "two/{} dogs/{}".format(*tags.tags)]
    (vector,) = open_runner(folders["embed"]).predict(LINES[:1])
    row, blank = answered(LINES[:2], folders["embed"])
    assert json.loads(row) == vector.vector.tolist() and blank == ""
    one, blank, two = answered(["[[1, 2], [3, 4]]", "", '{"series": [[5, 6]]}'], folders["series"])
    assert json.loads(one) == {"total": [4, 6], "doubled": [[2, 4], [6, 8]]} and blank == ""
    assert json.loads(two)["total"] == [5, 6]


def test_texts_and_arrays_are_read_as_json(made, command, tokenizer):
    item = {"source_ids": "two dogs", "numbers": [1, 2]}
    lines = [json.dumps(item), "hi", "", '{"source_ids": 7}']
    status, output, errors = command(lines, made("mixed"), "--quiet")
    (result,) = open_runner(made("mixed")).predict([item])
    assert (status, output) == (1, f"{json.dumps(result.vector.tolist())}\n\n\n\n")
    first, second, _ = errors.splitlines()
    assert first.startswith("line 2 is not answered: not JSON")
    assert second.startswith("line 4 is not answered: An input must be a string")
    lines = [tokenizer.encode("two dogs"), "", 7]
    status, output, errors = command(lines, made("transcribe"), "--quiet")
    assert (status, output) == (1, "two dogs\n\n\n")
    assert errors.startswith("line 3 is not transcribed: 'codes' has the shape ()")


def test_json_holds_every_field_of_a_result(made, answered):
    rows = answered(LINES, made("answer"), "--json")
    results = open_runner(made("answer")).predict(LINES)
    assert [json.loads(row) for row in rows] == [result._asdict() for result in results]
    (row,) = answered(["two dogs"], made("sample"), "--json", "--seed", 3, "--with-prompt")
    (result,) = open_runner(made("sample")).n_best(["two dogs"], seed=3)
    assert {**json.loads(row), "details": []} == json.loads(json.dumps(result._asdict()))
    (row,) = answered([""], made("embed"), "--json")
    assert json.loads(row) == {"vector": None, "error": None}


def test_a_prompt_is_continued(made, answered):
    lines, folder = ["two dogs", "a man"], made("sample")
    results = open_runner(folder).n_best(lines, seed=0)
    assert answered(lines, folder, "--seed", 0) == lines
    full = [result.full_text for result in results]
    assert answered(lines, folder, "--seed", 0, "--with-prompt") == full
    rows = answered(lines[:1], folder, "--seed", 0, "--n-best", 2, "--with-prompt")
    pairs = zip(results[0].scores, results[0].full_texts, strict=True)
    assert rows == [f"1\t{score:.4f}\t{text}" for score, text in pairs]
    # Each run draws a seed. The line is long because some ids decode to no character.
    assert len({answered(artefacts.LINES[4:5], folder)[0] for _ in range(3)}) > 1


STREAMED = (GreedySearch(min_length=5), "generate")


@pytest.mark.full
def test_a_stream_writes_the_same_lines(answered, command, monkeypatch):
    folder, lines = exports.artefact(*STREAMED, layout="steps"), [*exports.LINES, "", " "]
    for arguments in ((), ("--with-prompt",), ("--max-length", 6)):
        expected = answered(lines, folder, *arguments)
        assert answered(lines, folder, "--stream", *arguments) == expected
    status, output, errors = command(b"\xff\na\n", folder, "--stream", "--quiet")
    assert (status, output) == (1, f"\n{answered(['a'], folder)[0]}\n")
    assert errors.startswith("line 1 is not continued: not UTF-8 at byte 1")
    monkeypatch.setattr(StepsSession, "run", None)  # --stream must not call it
    assert len(answered(lines, folder, "--stream")) == len(lines)
    status, output, errors = command(["a"], folder, "--stream", "--quiet", "--max-length", 0)
    assert (status, output) == (2, "") and "error: --max-length must be at least 1" in errors


@pytest.mark.full("interrupt")
@pytest.mark.parametrize(
    ("error", "status", "lines", "errors"),
    [
        (KeyboardInterrupt(), 130, 1, ["interrupted; the last line is cut off"]),
        (
            Fail("out of memory"),
            1,
            2,
            [
                "line 1 is not continued: the model failed: out of memory",
                "line 2 is not continued: the model failed: out of memory",
                "2 lines were not continued",
            ],
        ),
    ],
    ids=["interrupt", "failure"],
)
def test_a_stream_that_fails_ends_its_line(command, monkeypatch, error, status, lines, errors):
    run_steps = StepsSession.run_steps

    def fail(session, buffers):
        yield from itertools.islice(run_steps(session, buffers), 3)
        raise error

    monkeypatch.setattr(StepsSession, "run_steps", fail)
    folder = exports.artefact(*STREAMED, layout="steps")
    code, output, told = command(b"a\na man\n", folder, "--stream", "--quiet")
    assert (code, output.count("\n"), told.splitlines()) == (status, lines, errors)


# Arguments


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("", "--quiet", "the following arguments are required: folder"),
        ("", "no/such/folder", "error: no/such/folder is not an artefact"),
        ("classify", "--n-best 0", "--n-best must be at least 1"),
        ("classify", "--tokens-per-batch 0", "error: --tokens-per-batch must be at least 1"),
        ("classify", "--read-ahead 0", "error: --read-ahead must be at least 1"),
        ("classify", "--threads 0", "error: --threads must be at least 1"),
        ("classify", "--workers 0", "error: --workers must be at least 1"),
        ("classify", "--threads 100000", "error: --threads must be at least 1, and at most"),
        ("classify", "--provider NoSuch", "error: NoSuch is not in this"),
        (
            "classify",
            "--seed 0",
            "--seed goes with the tasks translate, generate, transcribe; .* 'classify'",
        ),
        ("classify", "--with-prompt", "--with-prompt goes with the tasks generate"),
        ("tag", "--n-best 2", "--n-best goes with the tasks translate, generate, transcribe, cl"),
        ("classify", "--n-best 2 --json", "--json writes all hypotheses and labels"),
        ("classify", "--stream", "--stream goes with the tasks translate, generate"),
        ("sample", "--stream --n-best 2", "--stream writes texts: leave out --n-best"),
        ("sample", "--stream", "error: .* has its search in one file.*layout='steps'"),
        ("sample", "--terms x", "error: 'terms' was passed, but .* takes the options"),
        ("sample", "--seed -1", "--seed must be at least 0 and at most 2147483646, got -1"),
        ("sample", "--seed x", "argument --seed: invalid int value"),
        ("", "--check a --n-best 2", "--check answers no lines: leave out --n-best"),
        ("", "--check a --json", "--check answers no lines: leave out --json"),
        ("", "--check a --seed 0 --with-prompt", "leave out --seed, --with-prompt"),
    ],
)
def test_wrong_arguments_are_named_and_give_status_2(command, made, name, arguments, message):
    folder = [made(name)] if name else []
    status, output, errors = command(["a"], *folder, *arguments.split())
    assert (status, output) == (2, "")
    assert re.search(message, errors) and "Traceback" not in errors


# Streams of a process


def test_lines_are_answered_at_once_with_read_ahead_1(tokenizer, folder):
    with runtime_process.start(folder, "--read-ahead", 1, "--quiet") as process:
        for line in artefacts.LINES:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == best(tokenizer, line) + "\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
    assert (process.returncode, output) == (130, b"")
    assert errors == b"interrupted; what was written so far is complete\n"


@pytest.mark.parametrize("from_file", [True, False])
def test_progress_is_shown_on_a_terminal(folder, tmp_path, from_file):
    path = tmp_path / "in.txt"
    path.write_bytes("\n".join(artefacts.LINES).encode() + b"\n\xff\n")
    ours, theirs = pty.openpty()
    with open(path, "rb") as file:
        source = file if from_file else subprocess.PIPE
        with runtime_process.start(folder, stdin=source, stderr=theirs) as process:
            process.communicate(None if from_file else path.read_bytes(), timeout=300)
            assert process.returncode == 1
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert "6 lines, " in seen and "lines/s" in seen
    assert ("100%" in seen and "0:00 left" in seen) is from_file
    assert "\r\033[Kline 6 is not translated: not UTF-8" in seen


FAILED = "error: standard input or output failed"


@pytest.mark.quick(
    "<&--3-error: standard input is closed\\n", ">&--3-error: standard output is closed\\n"
)
@pytest.mark.parametrize(
    ("redirection", "status", "errors"),
    [
        ("<&-", 3, "error: standard input is closed\n"),
        (">&-", 3, "error: standard output is closed\n"),
        (">/dev/full", 3, f"{FAILED}: No space left on device\n"),
        ("0>/dev/null", 3, f"{FAILED}: Bad file descriptor\n"),
        ("| true", 141, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
    ],
)
def test_streams_that_fail_give_a_status_or_no_messages(
    tokenizer, folder, redirection, status, errors
):
    command = f"{shlex.join(runtime_process.command(folder, '--quiet'))} {redirection}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        input=b"two dogs\n",
        capture_output=True,
        timeout=300,
        env=buffered,
    )
    output = "" if status else best(tokenizer, "two dogs") + "\n"
    found = done.returncode, done.stdout.decode(), done.stderr.decode()
    assert found == (status, output, errors)
