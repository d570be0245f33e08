"""The runtime's command line: streams, odd lines, exit status, readers and writers that leave."""

import os
import pty
import shlex
import signal
import subprocess
import sys

import pytest
from support import artefacts, runtime_process

from keras_transformer.export.runtime import __main__ as cli
from keras_transformer.export.runtime.lines import MOST_LINE_BYTES
from keras_transformer.text.tokenizer import Tokenizer


def best(tokenizer, line):
    return artefacts.expected_hypotheses(tokenizer, line)[0][0]


def as_input(lines):
    return "".join(line + "\n" for line in lines).encode("utf-8")


def test_lines_go_in_and_translations_come_out(tokenizer, folder):
    lines = artefacts.LINES * 31
    status, output, errors = runtime_process.translate(
        as_input(lines), folder, "--batch-tokens", 97
    )
    assert status == 0
    assert output.split("\n") == [*(best(tokenizer, line) for line in lines), ""]
    assert errors == "running on CPUExecutionProvider\n"


def test_quiet_says_nothing_and_a_last_line_needs_no_newline(tokenizer, folder):
    line = artefacts.LINES[0]
    result = runtime_process.translate(line.encode(), folder, "--quiet", "--threads", 1)
    assert result == (0, best(tokenizer, line) + "\n", "")


def test_bad_lines_are_reported_by_number_and_lose_no_other(tokenizer, folder):
    data = b"two dogs\n\n caf\xe9\n\t \na man\n" + b"dogs " * 89 + b"\nrides\n"
    status, output, errors = runtime_process.translate(data, folder, "--quiet")
    assert status == 1
    good = [best(tokenizer, line) for line in ("two dogs", "a man", "rides")]
    assert output.split("\n") == [good[0], "", "", "", good[1], "", good[2], ""]
    first, second, last = errors.splitlines()
    assert first.startswith("line 3 is not translated: not UTF-8 at byte 5")
    assert second.startswith("line 6 is not translated: ") and "at most 61" in second
    assert last == "2 lines were not translated"


def test_a_line_without_an_end_is_refused_by_its_length(tokenizer, folder):
    data = b"x" * (3 * MOST_LINE_BYTES) + b"\ntwo dogs\n"
    status, output, errors = runtime_process.translate(data, folder, "--quiet")
    assert (status, output) == (1, f"\n{best(tokenizer, 'two dogs')}\n")
    assert errors.startswith(f"line 1 is not translated: more than {MOST_LINE_BYTES} bytes in one")


def test_n_best_lists_number_score_and_text(tokenizer, folder):
    line = artefacts.LINES[1]
    texts, scores = artefacts.expected_hypotheses(tokenizer, line)
    data = line.encode() + b"\n\xff\n\n"
    status, output, _ = runtime_process.translate(data, folder, "--n-best", 5)
    rows = [f"1\t{score:.4f}\t{text}" for text, score in zip(texts, scores, strict=True)]
    assert (status, output) == (1, "\n".join([*rows, "3\t0.0000\t", ""]))
    assert runtime_process.translate(line.encode(), folder, "--n-best", 1)[1] == rows[0] + "\n"


def test_a_newline_that_the_model_writes_does_not_shift_the_lines(tmp_path):
    """The byte <0x0A> moved by SHIFT from <0x03>."""
    tokenizer = artefacts.tokenizer()
    folder = artefacts.write(tmp_path, tokenizer)
    odd = chr(ord("\n") - artefacts.SHIFT)
    assert best(tokenizer, f"a{odd}a").count("\n") == 1
    status, output, _ = runtime_process.translate(as_input([f"a{odd}a", "two dogs"]), folder)
    texts = [best(tokenizer, f"a{odd}a").replace("\n", " "), best(tokenizer, "two dogs")]
    assert (status, output.split("\n")) == (0, [*texts, ""])


def test_each_line_is_answered_at_once_when_none_is_read_ahead(tokenizer, folder):
    with runtime_process.start(folder, "--read-ahead", 1, "--quiet") as process:
        for line in artefacts.LINES:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == best(tokenizer, line) + "\n"
        process.stdin.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_ends_it_quietly(folder):
    with runtime_process.start(folder, "--read-ahead", 1, "--quiet") as process:
        process.stdin.write(b"two dogs\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"a man\n")
        process.stdin.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_an_interrupt_leaves_whole_lines(tokenizer, folder):
    with runtime_process.start(folder, "--read-ahead", 1, "--quiet") as process:
        process.stdin.write(b"two dogs\n")
        process.stdin.flush()
        assert process.stdout.readline().decode() == best(tokenizer, "two dogs") + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == b""
        assert process.stderr.read() == b"interrupted; what was written so far is complete\n"


@pytest.mark.parametrize("from_file", [True, False])
def test_a_terminal_sees_progress(folder, tmp_path, from_file):
    path = tmp_path / "in.txt"
    path.write_bytes(as_input(artefacts.LINES) + b"\xff\n")
    ours, theirs = pty.openpty()
    with open(path, "rb") as file:
        source = file if from_file else subprocess.PIPE
        with runtime_process.start(folder, stdin=source, stderr=theirs) as process:
            if not from_file:
                process.stdin.write(path.read_bytes())
                process.stdin.close()
            process.stdout.read()
            assert process.wait(60) == 1
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert "6 lines, " in seen and "lines/s" in seen
    assert ("100%" in seen and "0:00 left" in seen) is from_file
    assert "\r\033[Kline 6 is not translated: not UTF-8" in seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: folder"),
        (("no/such/folder",), "error: no/such/folder is not an artefact"),
        (("FOLDER", "--n-best", 0), "--n-best must be at least 1"),
        (("FOLDER", "--batch-tokens", 0), "error: `batch_tokens` must be at least 1"),
        (("FOLDER", "--read-ahead", 0), "error: `read_ahead` must be at least 1"),
        (("FOLDER", "--threads", 0), "error: `threads` must be at least 1"),
        (("FOLDER", "--workers", 0), "error: `workers` must be at least 1"),
        (("FOLDER", "--threads", 100_000), "error: `threads` must be at least 1, and at most"),
        (("FOLDER", "--provider", "NoSuchProvider"), "error: NoSuchProvider is not in this"),
    ],
)
def test_wrong_arguments_are_named_and_give_status_2(
    folder, arguments, message, monkeypatch, capsys
):
    arguments = [str(folder if argument == "FOLDER" else argument) for argument in arguments]
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        try:
            status = cli.main(arguments)
        except SystemExit as stopped:  # by argparse
            status = stopped.code
    told = capsys.readouterr()
    assert (status, told.out) == (2, "") and message in told.err


def redirected(folder, redirection):
    """Exit status, output and errors of the command, started by a shell with a redirection."""
    command = f"{shlex.join(runtime_process.command(folder, '--quiet'))} {redirection}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, shell=True, input=b"two dogs\n", capture_output=True, timeout=60, env=buffered
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [
        ("<&-", "standard input is closed"),
        (">&-", "standard output is closed"),
        (">/dev/full", "standard input or output failed: No space left on device"),
        ("0>/dev/null", "standard input or output failed: Bad file descriptor"),
    ],
)
def test_input_and_output_that_fail_give_status_3(folder, redirection, problem):
    assert redirected(folder, redirection) == (3, "", f"error: {problem}\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_translations_go_on_without_a_place_for_messages(tokenizer, folder, redirection):
    assert redirected(folder, redirection) == (0, best(tokenizer, "two dogs") + "\n", "")
    assert redirected("no/such/folder", redirection) == (2, "", "")


def test_nothing_in_nothing_out(folder):
    assert runtime_process.translate(b"", folder, "--quiet") == (0, "", "")


def test_the_tokenizer_travels_with_the_artefact(tokenizer, folder):
    assert Tokenizer.load(folder / "tokenizer.model") == tokenizer
