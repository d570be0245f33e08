"""Whole jobs on Ray, killed in the middle, and jobs refused before Ray starts."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import time

import pytest
from helpers import archives, artefacts, head_artefacts, process_family

from keras_transformer.export import ray_cluster
from keras_transformer.export.archive import ArchiveError, __main__, job, plan, run_archive
from keras_transformer.files import LOCK_FILE
from keras_transformer.startup import SERVES

LINES = archives.lines(751)
PART_LINES = 7  # 108 parts, each far faster than Ray's dispatch
TOKENIZER = artefacts.tokenizer()


def start(artefact, inputs, out, *options):
    module = "keras_transformer.export.archive"
    arguments = [
        str(part) for part in (sys.executable, "-m", module, artefact, inputs, out, *options)
    ]
    environment = os.environ | {"HOME": str(pathlib.Path(out).parent)}
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(condition, process):
    until = time.monotonic() + 200
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_job_is_complete_and_in_order_whatever_was_killed(translator, tmp_path):
    archives.write_text(tmp_path / "a.txt.gz", LINES[:500])
    archives.write_text(tmp_path / "b.txt.gz", LINES[500:])
    inputs, out = tmp_path / "*.txt.gz", tmp_path / "out"
    options = ("--part-lines", PART_LINES, "--with-source", "--workers", 1)
    process = start(translator, inputs, out, *options)
    try:
        wait_for(lambda: len(archives.parts(out)) > 5, process)
        (worker,) = process_family.named(process.pid, "ray::MapWorker")
        assert process_family.listening(process.pid) <= process_family.LOCAL
        assert stat.S_IMODE((tmp_path / ray_cluster.TOKEN_FILE).stat().st_mode) == 0o600
        os.kill(worker, signal.SIGKILL)
        there = len(archives.parts(out))
        wait_for(lambda: len(archives.parts(out)) > there + 5, process)  # another worker took over
        with pytest.raises(ArchiveError, match="is in use by another job"):
            run_archive(translator, [inputs], out, part_lines=PART_LINES, with_source=True)
    finally:
        process.kill()
        process.communicate()
    killed_at = len(archives.parts(out))
    assert 10 < killed_at < 108
    left = out / ".part-000107.parquet.abcdefgh.partial"  # as a kill during a write leaves it
    left.mkdir()
    (left / LOCK_FILE).touch()
    for _ in range(3):  # a busy machine may exceed Ray's limit of 30 seconds to start
        process = start(translator, inputs, out, *options)
        told = process.communicate(timeout=300)[1]
        if "Ray did not start" not in told:
            break
    assert process.returncode == 0, told
    last = told.rstrip("\n").split("\n")[-1]
    assert last.endswith("with an error; 108 parts")
    assert 0 < int(last.partition(" ")[0].replace(",", "")) < len(LINES)  # of this run
    assert "751 of 751 lines, 100.0%" in told
    rows = archives.rows(out)
    assert [row["source"] for row in rows] == LINES
    assert [row["line"] for row in rows] == [*range(1, 501), *range(1, 252)]
    for row, line in zip(rows[::97], LINES[::97], strict=True):
        assert row["text"] == artefacts.expected_hypotheses(TOKENIZER, line)[0][0]
    assert sorted(path.name for path in out.glob(".*")) == [job.LOCK_FILE]
    # All is there: Ray need not start.
    done = run_archive(translator, [inputs], out, part_lines=PART_LINES, with_source=True)
    assert done == {"parts": 108, "lines": 751, "answered": 0, "errors": 0}


# Refused before Ray starts


@pytest.fixture
def inputs(tmp_path):
    return [archives.write_text(tmp_path / "in.txt.gz", LINES[:9])]


def test_a_folder_of_another_job_is_refused(translator, inputs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    plan.write_plan(plan.make_plan(archives.OPTIONS, plan.find_inputs(inputs)), out)
    with pytest.raises(ArchiveError, match="was begun with artefact '000"):
        run_archive(translator, inputs, out)
    with pytest.raises(ArchiveError, match="holds no _plan.json, but in.txt.gz"):
        run_archive(translator, inputs, tmp_path)
    assert not (tmp_path / job.LOCK_FILE).exists()  # not a job's folder


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "csv"}, "`format` must be one of"),
        ({"part_lines": 0}, "`part_lines` must be at least 1, got 0"),
        ({"workers": 0}, "`workers` must be at least 1"),
        ({"threads": 0}, "`threads` must be at least 1"),
        ({"seed": 3}, "draws no random numbers"),
    ],
)
def test_wrong_arguments_are_refused(translator, inputs, tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        run_archive(translator, inputs, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_artefact_without_a_head_is_refused(inputs, tmp_path):
    echo = head_artefacts.write(tmp_path / "echo", TOKENIZER, "echo")
    with pytest.raises(ArchiveError, match="without a head"):
        run_archive(echo, inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_cluster_gives_an_error_of_one_line(translator, inputs, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def init(*arguments, **options):
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setattr(ray, "init", init)
    told = r"did not start \(here:1\): nobody answers. Finished parts"
    with pytest.raises(ArchiveError, match=told):
        run_archive(translator, inputs, tmp_path / "out", address="here:1", quiet=True)


@pytest.mark.parametrize("address", ["local", "here:1"])
def test_settings_of_ray_last_only_during_its_start(address, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    seen = {}
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_enable_metrics_collection", "1")  # the user's setting stays
    monkeypatch.delenv("RAY_enable_autoscaler_v2", raising=False)
    monkeypatch.setattr(ray, "init", lambda *arguments, **options: seen.update(os.environ))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    names = (SERVES, *ray_cluster.LOCAL_SETTINGS)
    before = [os.environ.get(name) for name in names]
    with ray_cluster.running_ray(address):
        assert [os.environ.get(name) for name in names] == before
    assert seen[SERVES] == seen["RAY_enable_metrics_collection"] == "1"
    assert seen.get("RAY_enable_autoscaler_v2") == ("1" if address == "local" else None)


def test_a_missing_package_is_named_with_its_command(translator, inputs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs pyarrow.*pip install 'ray\[data\]'"):
        run_archive(translator, inputs, tmp_path / "out")


def test_a_seed_is_drawn_once_and_kept(tmp_path, inputs):
    options = {"artefact": "0", "format": "text", "column": "text", "part_lines": 2}
    (tmp_path / "out").mkdir()
    paths = plan.find_inputs(inputs)

    def planned(seed, samples=True):
        asked = {**options, "seed": seed}
        return job._planned(tmp_path / "out", asked, paths, samples).options["seed"]

    drawn = planned(None)
    assert isinstance(drawn, int) and planned(None) == drawn == planned(drawn)
    with pytest.raises(ArchiveError, match=f"begun with seed {drawn}"):
        planned((drawn + 1) % 100)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (None, 0, "9 of 9 lines answered by this run, 1 of them with an error; 2 parts"),
        (ArchiveError("no"), 1, "error: no"),
        (KeyboardInterrupt(), 130, "the same command continues from there"),
    ],
)
def test_the_command_reports_results_errors_and_stops(error, status, told, monkeypatch, capsys):
    asked = {}

    def run(*arguments, **options):
        asked.update(options, arguments=arguments)
        if error:
            raise error
        return {"parts": 2, "lines": 9, "answered": 9, "errors": 1}

    monkeypatch.setattr(__main__, "run_archive", run)
    command = ["onnx", "a", "b", "out", "--gpus", "0.5", "--provider", "X", "--provider", "Y"]
    assert __main__.main(command) == status
    assert told in capsys.readouterr().err
    assert asked["arguments"] == ("onnx", ["a", "b"], "out")
    assert (asked["gpus"], asked["providers"], asked["address"]) == (0.5, ["X", "Y"], "local")


def test_only_the_token_file_of_this_user_is_hidden(tmp_path, monkeypatch):
    for name in ray_cluster.TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path, shared = tmp_path / ray_cluster.TOKEN_FILE, tmp_path / "shared"
    ray_cluster._hide_token()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    shared.write_text("token")
    shared.chmod(0o640)
    path.symlink_to(shared)
    ray_cluster._hide_token()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o640
