"""`--check`: tries providers on an artefact; prints a verdict and returns an exit status."""

import os
import re
import shlex
import subprocess
import types

import pytest
from helpers import artefacts, head_artefacts, runtime_process

from keras_transformer.export.runtime import __main__ as cli
from keras_transformer.export.runtime import check as module
from keras_transformer.export.runtime.check import check, made_up_inputs
from keras_transformer.export.runtime.session import CPU, CUDA

SERVES = f"verdict: serves on {CPU}\n"
CPU_ONLY = f"verdict: serves on {CPU} only (--provider {CPU}): the best, {CUDA}, does not come up\n"


def run(capsys, *arguments):
    """Runs `--check` in this process and returns exit status and output."""
    return cli.main(["--check", *map(str, arguments)]), capsys.readouterr().out


# Made-up inputs


@pytest.mark.parametrize(("limit", "length"), [(61, 13), (5, 5)])
def test_made_up_inputs_have_the_shapes_and_kinds_of_the_manifest(limit, length):
    values = {  # by name: dtype, axes and made-up shape
        "source_ids": ("int64", ["batch", "source_length"], (2, length)),
        "segment_ids": ("int32", ["batch", "source_length"], (2, length)),
        "target_ids": ("int32", ["batch", "target_length"], (2, length)),
        "seed": ("int32", [], ()),
        "series": ("float16", ["batch", "series_length", 3], (2, length, 3)),
        "mask": ("bool", ["batch", 4], (2, 4)),
    }
    entries = [{"name": name, "dtype": x, "axes": axes} for name, (x, axes, _) in values.items()]
    sizes, limits = {"source": 900, "target": 6}, {"source_length": limit}
    inputs = made_up_inputs({"inputs": entries, "vocab_size": sizes, "limits": limits})
    found = {name: (str(array.dtype), array.shape) for name, array in inputs.items()}
    assert found == {name: (dtype, shape) for name, (dtype, _, shape) in values.items()}
    ids = inputs["source_ids"]  # words of the vocabulary
    assert 4 <= ids.min() and 5 < ids.max() < 900 and set(inputs["target_ids"].flat) <= {4, 5}
    assert inputs["segment_ids"].all() and inputs["mask"].all() and inputs["seed"] == 1


# Providers


@pytest.mark.parametrize(
    "name", ["classify", "tag", "answer", "embed", "series", "sample", "transcribe"]
)
def test_artefacts_of_every_task_serve(made, capsys, name):
    assert run(capsys, made(name)) == (0, SERVES)


def test_an_axis_too_large_for_the_memory_is_an_error(tmp_path, tokenizer, capsys):
    shape = f"float[batch, {2**40}]"
    made = head_artefacts.model(f"{shape} x", f"{shape} y", "y = Identity (x)")
    values = [{"name": name, "dtype": "float32", "axes": ["batch", 2**40]} for name in "xy"]
    fields = {"task": "forward", "search": None, "inputs": values[:1], "outputs": values[1:]}
    folder = artefacts.write(tmp_path, tokenizer, made.SerializeToString(), **fields)
    status, output = run(capsys, folder, "--threads", 1)
    assert status == 2 and output.endswith("\nverdict: cannot serve here\n")
    assert "failed to run made-up inputs: Unable to allocate" in output


@pytest.mark.usefixtures("cuda_that_falls_back")
def test_a_fallback_of_the_best_provider_gives_status_1(folder, tmp_path, monkeypatch, capsys):
    status, output = run(capsys, folder)
    assert status == 1 and output.startswith(f"{CUDA} cannot serve: {CUDA} was asked for")
    assert f"fell back to {CPU} for the whole model" in output and output.endswith(CPU_ONLY)
    assert "Failed to load" not in output
    assert run(capsys, folder, "--provider", CPU) == (0, SERVES)
    (tmp_path / "in.txt").touch()
    with open(tmp_path / "in.txt") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert cli.main([str(folder)]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith("Failed to load\nerror: CUDAExecutionProvider was")


def test_a_requested_provider_that_is_missing_gives_status_1(folder, capsys):
    status, output = run(capsys, folder, "--provider", CUDA)
    assert status == 1 and output.startswith(f"{CUDA} cannot serve: {CUDA} is not in this")
    assert output.endswith(CPU_ONLY)


def test_a_provider_that_fails_to_run_is_no_provider_that_serves(folder, capsys, monkeypatch):
    def fail(outputs, inputs):
        raise RuntimeError("out of memory")

    broken = types.SimpleNamespace(run=fail)
    monkeypatch.setattr(module, "open_session", lambda *args, **options: broken)
    told = "cannot serve: it came up, and failed to run made-up inputs: out of memory\n"
    assert check(folder, [CUDA]) == 2
    assert capsys.readouterr().out == f"{CUDA} {told}{CPU} {told}verdict: cannot serve here\n"


def test_float16_is_not_tried_on_the_cpu(tmp_path, tokenizer, capsys):
    status, output = run(capsys, artefacts.write(tmp_path, tokenizer, precision="float16"))
    assert status == 2 and output.startswith(f"{CUDA} cannot serve: ")
    assert output.count("\n") == 2 and output.endswith("verdict: cannot serve here\n")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("damaged", (), "error: "),
        ("missing", (), "error: "),
        ("whole", ("--threads", "0"), "error: --threads must be at least 1"),
    ],
)
def test_errors_come_before_any_trial(tmp_path, tokenizer, capsys, name, arguments, message):
    for each in ("whole", "damaged"):
        artefacts.write(tmp_path / each, tokenizer)
    (tmp_path / "damaged" / "model.onnx").write_bytes(b"")
    assert cli.main(["--check", str(tmp_path / name), *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and re.match(message, errors)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("redirection", "status", "output", "errors"),
    [
        ("<&-", 0, SERVES, ""),
        (">/dev/full", 3, "", "error: standard input or output failed: No space left on device\n"),
    ],
)
def test_check_needs_no_framework_and_no_input(folder, redirection, status, output, errors):
    command = shlex.join(runtime_process.command("--check", folder, "--provider", CPU))
    done = subprocess.run(
        f"{command} {redirection}", shell=True, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, output, errors)
