"""The harness of the benchmarks: processes of engines, arguments, and its own examples."""

import doctest
import importlib
import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import bench
import columns


def engine(task):
    """An engine for processes of this test: it adds, or fails as the task says."""
    print("a library's output")  # must not mix with the answers
    if task["engine"] == "missing":
        raise bench.Missing("no such device")
    if task["engine"] == "broken":
        raise ValueError("no such model")
    return {"pid": task["engine"]}, lambda x: {"sum": x + task.get("more", 1)}


ENGINE = "test_harness:engine"
HERE = {"PYTHONPATH": str(pathlib.Path(__file__).parent)}


@pytest.mark.parametrize("name", ["bench", "markdown_tables", "subjects"])
def test_examples_of_the_harness(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_engines_answer_in_turn_from_processes():
    tasks = {"ours": {}, "twice": {"engine": "ours", "more": 2}}
    with bench.engines(ENGINE, tasks, HERE) as opened:
        assert opened["twice"].facts == {"pid": "ours"} and opened["ours"].seconds > 0
        answers = bench.in_turn(opened, rounds=2, pause=0, x=5)
    assert answers == {"ours": [{"sum": 6}] * 2, "twice": [{"sum": 7}] * 2}


def test_engines_that_do_not_run_here_are_left_out_with_the_reason():
    left_out = {}
    tasks = {name: {} for name in ("ours", "missing", "broken")}
    with bench.engines(ENGINE, tasks, HERE, left_out) as opened:
        assert list(opened) == ["ours"]
    assert left_out["missing"] == "no such device"
    assert "ValueError: no such model" in left_out["broken"]
    with pytest.raises(bench.WorkerError, match="broken: ValueError: no such model"):
        bench.call(ENGINE, {"engine": "broken"}, HERE)


def test_a_folder_that_is_missing_is_a_usage_error(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    parser = bench.Parser("A benchmark.", "data", "work", threads=1)
    work = tmp_path / "work"
    for given in ([], ["--data", str(tmp_path / "none")]):
        with pytest.raises(SystemExit):
            parser.parse_args([*given, "--work", str(work)])
    told = capsys.readouterr().err
    assert "--data" in told and "pass --data or set KERAS_TRANSFORMER_DATA" in told
    args = parser.parse_args(["--data", str(tmp_path), "--work", str(work)])
    assert args.threads == 1 and work.is_dir()


def test_a_report_has_its_head_and_prints_its_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(columns.TABLES, "mine", lambda report: f"{report['rounds']} rounds")
    args = bench.Parser("A benchmark.").parse_args(["--output", str(tmp_path / "one.json")])
    bench.finish(args, "mine", {"rounds": 3}, "pytest")
    assert capsys.readouterr().out.splitlines()[-1] == "3 rounds"
    report = bench.earlier(args)
    assert report == json.loads(args.output.read_text("utf-8"))
    assert report["machine"]["threads"] == args.threads and report["versions"]["pytest"]
