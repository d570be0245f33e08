"""`--check`: tries providers on an artefact and reports lines or JSON, and an exit status."""

import json
import os
import subprocess
import types
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from helpers import (
    array_search,
    artefacts,
    head_artefacts,
    machines,
    runtime_process,
    seeded_artefact,
)
from helpers.machines import CPU, CUDA, cpu_machine, cuda_machine

from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import __main__ as cli
from keras_transformer.export.runtime import check, trials
from keras_transformer.export.runtime.trials import Trial, candidates, made_up_inputs, verdict

# Providers to try


@pytest.mark.parametrize(
    ("found", "precision", "asked", "expected"),
    [
        (cpu_machine(), "float32", None, [[CPU]]),
        (cpu_machine(), "float16", None, [[CUDA]]),
        (cpu_machine(), "float32", [CUDA], [[CUDA], [CPU]]),
        (cpu_machine(driver=machines.DRIVER), "float32", None, [[CUDA], [CPU]]),
        (cuda_machine(), "float32", None, [[CUDA], [CPU]]),
        (cuda_machine(driver=machines.NO_DRIVER), "float32", None, [[CUDA], [CPU]]),
        (cuda_machine(), "float16", None, [[CUDA]]),
        (cuda_machine(), "int8", None, [[CPU]]),
        (cuda_machine(), "float32", [CPU], [[CPU]]),
        (cuda_machine(), "float32", ["X", CUDA], [["X", CUDA], [CPU]]),
    ],
)
def test_the_best_provider_is_tried_first(found, precision, asked, expected):
    assert candidates(found, precision, asked) == expected


@pytest.mark.parametrize(
    ("tried", "status", "words"),
    [
        ([Trial(CPU)], 0, f"serves on {CPU}"),
        (
            [Trial(CUDA, "missing"), Trial(CPU)],
            1,
            f"serves on {CPU} only (--provider {CPU}): the best, {CUDA}, does not come up",
        ),
        ([Trial(CUDA, "missing"), Trial(CPU, "failed")], 2, "cannot serve here"),
        ([], 2, "cannot serve here"),
    ],
)
def test_the_verdict_is_the_first_provider_that_serves(tried, status, words):
    assert verdict(tried) == (status, words)


# Made-up inputs


def test_made_up_ids_are_words_of_the_vocabulary(folder, tokenizer):
    manifest = read_artefact(folder).manifest
    (ids,) = made_up_inputs(manifest).values()
    assert ids.shape == (2, 13) and ids.dtype == np.int32
    assert ids.min() >= 4 and ids.max() < tokenizer.vocab_size
    limits = {"source_length": 5}  # shorter than made-up inputs are
    assert made_up_inputs({**manifest, "limits": limits})["source_ids"].shape == (2, 5)


def test_made_up_inputs_have_the_shapes_and_kinds_of_the_manifest():
    values = [
        ("source_ids", "int64", ["batch", "source_length"]),
        ("segment_ids", "int32", ["batch", "source_length"]),
        ("target_ids", "int32", ["batch", "target_length"]),
        ("seed", "int32", []),
        ("series", "float16", ["batch", "series_length", 3]),
        ("mask", "bool", ["batch", 4]),
    ]
    fields = ("name", "dtype", "axes")
    manifest = {
        "inputs": [dict(zip(fields, value, strict=True)) for value in values],
        "vocab_size": {"source": 900, "target": 6},
        "limits": {"source_length": 61},
    }
    inputs = made_up_inputs(manifest)
    assert {name: str(array.dtype) for name, array in inputs.items()} == {
        name: dtype for name, dtype, _ in values
    }
    shapes = [array.shape for array in inputs.values()]
    assert shapes == [(2, 13), (2, 13), (2, 13), (), (2, 13, 3), (2, 4)]
    assert set(inputs["target_ids"].flat) <= {4, 5} and inputs["source_ids"].max() > 5
    assert inputs["segment_ids"].all() and inputs["mask"].all() and inputs["seed"] == 1


# Trials


@pytest.mark.parametrize(
    "name", ["classify", "tag", "answer", "embed", "series", seeded_artefact, array_search]
)
def test_artefacts_of_every_task_run_on_made_up_inputs(tmp_path, tokenizer, name):
    if isinstance(name, str):
        folder = head_artefacts.write(tmp_path, None if name == "series" else tokenizer, name)
    else:
        folder = name.write(tmp_path, tokenizer)
    trial = trials.try_providers(read_artefact(folder), [CPU])
    assert trial.error is None and len(trial.seconds) == 2 and set(trial.nodes) == {CPU}


def test_an_axis_too_large_for_the_memory_is_an_error(tmp_path, tokenizer):
    shape = f"float[batch, {2**40}]"
    made = head_artefacts.model(f"{shape} x", f"{shape} y", "y = Identity (x)")
    values = [{"name": name, "dtype": "float32", "axes": ["batch", 2**40]} for name in "xy"]
    fields = {"task": "forward", "search": None, "inputs": values[:1], "outputs": values[1:]}
    folder = artefacts.write(tmp_path, tokenizer, made.SerializeToString(), **fields)
    trial = trials.try_providers(read_artefact(folder), [CPU])
    assert "failed to run made-up inputs: Unable to allocate" in trial.error


class FakeSession:
    """A session with given node placement; `parts` are pairs of provider and operators."""

    def __init__(self, *parts, error=None):
        self._parts, self._error = parts, error

    def get_provider_graph_assignment_info(self):
        for name, operators in self._parts:
            nodes = [types.SimpleNamespace(op_type=operator) for operator in operators]
            yield types.SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes)

    def run(self, outputs, inputs):
        if self._error:
            raise RuntimeError(self._error)


def test_nodes_on_the_cpu_are_counted_by_operator(folder):
    session = FakeSession((CUDA, ["MatMul"] * 7), (CPU, ["Shape", "Loop"]), (CPU, ["Shape"]))
    trial = trials.try_providers(
        read_artefact(folder), [CUDA], opens=lambda *args, **options: session
    )
    assert trial.error is None
    assert trial.nodes == {CUDA: 7, CPU: 3} and trial.on_cpu == {"Shape": 2, "Loop": 1}
    told = [text for _, text in check.trial_rows(trial)]
    assert told[0] == f"{CUDA} came up: 7 of 10 nodes on {CUDA}, 3 of 10 nodes on {CPU}"
    assert told[1] == "3 nodes: Shape 2, Loop 1"
    assert told[2].endswith("with made-up inputs: source_ids (2, 13)") and len(told) == 3


def test_a_long_list_of_operators_is_cut():
    trial = Trial(CUDA, None, {CUDA: 1, CPU: 9}, {f"Operator{i}": 1 for i in range(9)})
    (_, told) = list(check.trial_rows(trial))[1]
    assert told.startswith("9 nodes: Operator0 1, ") and told.endswith("Operator7 1, and others")


def test_a_provider_that_fails_to_run_is_reported(folder):
    session = FakeSession((CUDA, ["MatMul"]), error="out of memory")
    trial = trials.try_providers(
        read_artefact(folder), [CUDA], opens=lambda *args, **options: session
    )
    assert trial.error == "it came up, and failed to run made-up inputs: out of memory"
    assert trial.nodes == {CUDA: 1} and not trial.seconds


@pytest.mark.usefixtures("cuda_that_falls_back")
def test_a_fallback_is_reported_and_prints_no_output(folder, tmp_path, monkeypatch, capsys):
    trial = trials.try_providers(read_artefact(folder), [CUDA])
    assert f"fell back to {CPU} for the whole model" in trial.error and not trial.nodes
    assert capsys.readouterr().out == ""
    (tmp_path / "in.txt").write_text("two dogs\n")
    with open(tmp_path / "in.txt") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert cli.main([str(folder)]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith("Failed to load\nerror: CUDAExecutionProvider was")


# The command


def run(capsys, *arguments):
    """Runs `--check` in this process and returns exit status and output."""
    status = cli.main(["--check", *map(str, arguments)])
    return status, capsys.readouterr().out


def rows(output):
    """Returns headings and texts of the table, with wrapped lines joined."""
    found = []
    for line in output.splitlines():
        if line[:18].strip():
            found.append((line[:18].strip(), line[18:]))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


@pytest.fixture
def machine(monkeypatch):
    """Returns a function that sets the result of `check.look`."""
    return lambda found: monkeypatch.setattr(check, "look", lambda: found)


def test_a_sound_artefact_serves_here(folder, capsys, machine):
    machine(cpu_machine())
    status, output = run(capsys, folder, "--threads", 1)
    found = dict(rows(output))
    version = onnxruntime.__version__
    assert status == 0
    assert found["onnxruntime"] == f"{version}, built without CUDA, from onnxruntime {version}"
    assert found["providers"] == CPU
    assert found["NVIDIA driver"].startswith("none (libcuda.so.1: cannot open")
    assert found["artefact"].endswith("2 files, 0.0 MB, checksums right")
    assert found["task"] == "translate, precision float32"
    assert found["opsets"] == "ONNX 17; IR version 8"
    assert found["provider"].startswith(f"{CPU} came up: ")
    assert found["run"].endswith("with made-up inputs: source_ids (2, 13)")
    assert found["verdict"] == f"serves on {CPU}" and found["exit status"] == "0"
    assert not {"fault", "on the CPU", "text model", "library", "GPU"} & set(found)


def test_without_an_artefact_a_model_of_onnxruntime_is_tried(capsys, machine):
    machine(cpu_machine())
    status, output = run(capsys)
    found = dict(rows(output))
    assert status == 0 and "artefact" not in found
    assert found["provider"] == f"{CPU} came up: 1 of 1 nodes on {CPU}"


def test_a_missing_cuda_library_is_named(folder, capsys, machine):
    """This onnxruntime has no CUDA provider, so that CUDA does not come up."""
    machine(cuda_machine(["libcublas.so.13"]))
    status, output = run(capsys, folder)
    found = rows(output)
    assert status == 1
    assert [text[:31] for name, text in found if name == "fault"] == [
        "Failed to load libcublas.so.13:"
    ]
    assert ("GPU", machines.GPU) in found
    assert ("NVIDIA driver", "580.95.05, for CUDA up to 13.0") in found
    assert ("debug info", "nvidia-cudnn-cu13==9.14.0.64 at /opt/cudnn") in found
    tried = [text for name, text in found if name == "provider"]
    assert tried[0].startswith(f"{CUDA} cannot serve: ") and tried[1].startswith(f"{CPU} came up")
    machine(cuda_machine(driver=replace(machines.DRIVER, gpus=())))
    found = dict(rows(run(capsys)[1]))
    assert found["NVIDIA driver"] == "of unknown version, for CUDA up to 13.0"


def test_an_empty_onnxruntime_module_cannot_serve(folder, capsys, machine):
    machine(cpu_machine(onnxruntime=None, packages={}, providers=()))
    status, output = run(capsys, folder)
    found = dict(rows(output))
    assert status == 2 and found["verdict"] == "cannot serve here"
    assert found["onnxruntime"] == "broken, from no package" and found["providers"] == "none"
    assert found["fault"].startswith("the module onnxruntime is empty")
    assert "checksums right" in found["artefact"]


def test_an_artefact_for_gpus_cannot_be_served_here(tmp_path, tokenizer, capsys, machine):
    machine(cpu_machine())
    folder = artefacts.write(tmp_path, tokenizer, precision="float16")
    status, output = run(capsys, folder)
    assert status == 2
    assert [name for name, _ in rows(output)][-3:] == ["provider", "verdict", "exit status"]


def test_the_requested_provider_counts_as_the_best(folder, capsys, machine):
    machine(cuda_machine())
    assert run(capsys, folder, "--provider", CPU)[0] == 0
    machine(cpu_machine())
    status, output = run(capsys, folder, "--provider", CUDA)
    assert status == 1 and f"the best, {CUDA}, does not" in " ".join(output.split())


def test_text_models_report_the_extensions_package(tmp_path, tokenizer, capsys, machine):
    axes = [{"name": "text", "dtype": "string", "axes": ["batch"]}]
    folder = artefacts.write(tmp_path, tokenizer, text={"inputs": axes, "outputs": axes})
    for version, told in ((None, "missing: pip install onnxruntime-extensions"), ("9", "9")):
        machine(cpu_machine(extensions=version))
        found = dict(rows(run(capsys, folder)[1]))
        assert found["text model"].startswith(f"needs onnxruntime-extensions ({told})")


def test_a_damaged_artefact_is_reported_and_not_tried(tmp_path, tokenizer, capsys, machine):
    machine(cpu_machine())
    folder = artefacts.write(tmp_path / "a", tokenizer)
    (folder / "model.onnx").write_bytes(b"")
    for damaged in (folder, tmp_path / "no"):
        status, output = run(capsys, damaged)
        found = dict(rows(output))
        assert status == 2 and found["artefact"].startswith("bad: ") and "provider" not in found


def test_json_holds_the_whole_report(folder, tmp_path, capsys, machine):
    machine(cuda_machine(["libcublas.so.13"]))
    status, output = run(capsys, folder, "--json")
    report = json.loads(output)
    assert status == report["status"] == 1 and output.count("\n") == 1
    assert report["installation"]["driver"]["gpus"] == [machines.GPU]
    assert report["installation"]["not_loaded"]
    assert len(report["faults"]) == 1 and report["artefact"]["task"] == "translate"
    assert [trial["provider"] for trial in report["trials"]] == [CUDA, CPU]
    assert report["trials"][1]["shapes"] == {"source_ids": [2, 13]}
    status, output = run(capsys, tmp_path / "no", "--json")
    report = json.loads(output)
    assert status == 2 and not report["trials"]
    assert report["artefact"] is None and "is not an artefact" in report["artefact_error"]


def test_check_needs_no_framework_and_no_input(folder):
    command = runtime_process.command("--check", folder, "--provider", CPU)
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(rows(done.stdout))["verdict"] == f"serves on {CPU}"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_failing_output_gives_exit_status_3():
    with open("/dev/full", "w") as full:
        process = runtime_process.start("--check", stdout=full)
        errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 3 and errors.startswith("error: standard input or output failed")
