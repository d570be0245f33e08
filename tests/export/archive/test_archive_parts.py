"""Parts and plans without Ray: the output of a worker, and refused plans."""

import gzip
import json
import os

import pytest
from helpers import archives, artefacts, head_artefacts, seeded_artefact
from pyarrow import parquet

from keras_transformer.export.archive import ArchiveError, outputs, plan
from keras_transformer.export.archive.job import JobProgress
from keras_transformer.export.archive.worker import MOST_TRIES, TRIES_ENDING

TOKENIZER = artefacts.tokenizer()
LINES = archives.LINES


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_every_line_has_its_row(format, translator, inputs, tmp_path):
    out = tmp_path / "out"
    made = archives.answer(out, translator, inputs, format=format)
    names = [path.name.partition(".")[0] for path in archives.parts(out)]
    assert names == [f"part-00000{i}" for i in range(4)]
    plan.write_plan(made, out)
    rows = archives.rows(out)
    if format == "parquet":
        assert parquet.read_table(out).to_pylist() == rows  # the folder is one table
    places = [*((inputs[0], number) for number in range(1, 6)), (inputs[1], 1)]
    reasons = {3: "takes at most 61", 5: "not UTF-8"}
    for number, (row, place, line) in enumerate(zip(rows, places, [*LINES, "\ufffd"], strict=True)):
        assert (row["file"], row["line"], row["source"]) == (*place, line)
        if number in reasons:
            assert row["text"] is row["score"] is None and reasons[number] in row["error"]
        else:
            (text, *_), (score, *_) = artefacts.expected_hypotheses(TOKENIZER, line)
            expected = (text, pytest.approx(score, rel=1e-6)) if line else ("", 0)
            assert (row["text"], row["score"], row["error"]) == (*expected, None)


def test_the_text_format_writes_errors_to_another_file(translator, inputs, tmp_path):
    out = tmp_path / "out"
    archives.answer(out, translator, inputs, format="text", part_lines=5)
    first, second = sorted(out.glob("*.txt.gz"))
    texts = gzip.decompress(first.read_bytes()).decode().split("\n")
    assert texts[0] == artefacts.expected_hypotheses(TOKENIZER, LINES[0])[0][0]
    assert [bool(text) for text in texts] == [True, False, True, False, True, False]
    assert gzip.decompress(second.read_bytes()) == b"\n"
    file, line, reason = (out / "part-000000.errors.tsv").read_text().rstrip("\n").split("\t")
    assert (file, line) == (inputs[0], "4") and "at most 61" in reason
    assert (out / "part-000001.errors.tsv").exists()
    assert first.read_bytes()[4:8] == bytes(4)  # no timestamp: each run writes the same bytes


def test_other_tasks_have_their_columns(tmp_path):
    paths = [str(archives.write_text(tmp_path / "in.gz", ["a man", "", "two dogs run"]))]
    rows = {}
    for task in ("classify", "tag", "embed", "embed_tokens"):
        artefact = head_artefacts.write(tmp_path / task, TOKENIZER, task)
        archives.answer(tmp_path / f"{task}-out", artefact, paths, with_source=False)
        rows[task] = archives.rows(tmp_path / f"{task}-out")
    assert list(rows["tag"][0]) == ["file", "line", "text", "score", "error"]
    assert rows["classify"][0]["text"] == "count" and 0 < rows["classify"][0]["score"] <= 1
    assert [row["text"].count("/") for row in rows["tag"]] == [2, 0, 3]
    assert rows["tag"][0]["score"] is None
    assert list(rows["embed"][0]) == ["file", "line", "vector", "error"]
    assert len(rows["embed"][0]["vector"]) == 2 and rows["embed"][1]["vector"] is None
    assert len(rows["embed_tokens"][2]["vector"]) == len(TOKENIZER.encode("two dogs run")) + 1
    schemas = {parquet.read_schema(p) for p in archives.parts(tmp_path / "embed_tokens-out")}
    assert len(schemas) == 1
    archives.answer(tmp_path / "text", tmp_path / "embed", paths, format="text", part_lines=3)
    (part,) = archives.parts(tmp_path / "text")
    lines = gzip.decompress(part.read_bytes()).decode().split("\n")
    assert len(json.loads(lines[0])) == 2 and lines[1] == ""


def test_one_seed_holds_for_all_parts(tmp_path):
    artefact = seeded_artefact.write(tmp_path / "story", TOKENIZER)
    path = archives.write_text(tmp_path / "in.gz", ["a man"] * 5)
    archives.answer(tmp_path / "out", artefact, [str(path)], seed=3)
    ids = seeded_artefact.moved(TOKENIZER, "a man", 3)
    assert {row["text"] for row in archives.rows(tmp_path / "out")} == {TOKENIZER.decode(ids)}


@pytest.mark.parametrize("format", ["parquet", "jsonl", "text"])
def test_half_a_surrogate_pair_affects_no_other_line(format, translator, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")  # the name is not UTF-8
    with open(path, "wb") as file:
        file.write(b'{"text": "a man"}\n{"text": "\\ud800 dogs"}\n{"text": "two dogs"}\n')
    archives.answer(tmp_path / "out", translator, [path], format=format)
    if format == "text":
        (errors,) = (tmp_path / "out").glob("*.errors.tsv")
        assert "\t2\thalf a surrogate pair" in errors.read_text("utf-8")
        return
    rows = archives.rows(tmp_path / "out")
    assert [row["source"] for row in rows] == ["a man", "\ufffd dogs", "two dogs"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert {row["file"] for row in rows} == {os.path.join(tmp_path, "\ufffd.jsonl")}


def test_parts_and_errors_are_flushed_to_the_disk(translator, inputs, tmp_path, monkeypatch):
    flushed, flush = [], os.fsync

    def seen(file):
        flushed.append(os.readlink(f"/proc/self/fd/{file}"))
        flush(file)

    monkeypatch.setattr(os, "fsync", seen)
    archives.answer(tmp_path / "out", translator, inputs, format="text")
    parts = {str(path) for path in archives.parts(tmp_path / "out")}
    assert len(parts) > 4  # with their errors
    names = {os.path.basename(path) for path in flushed}
    assert {os.path.basename(path) for path in parts} <= names and str(tmp_path / "out") in flushed


def test_a_part_is_answered_at_its_last_try_and_ends_the_job_after_it(job, tmp_path):
    part = job.parts[1]
    tries = tmp_path / "out" / f".{part.name}{TRIES_ENDING}"
    tries.write_bytes(b"x" * MOST_TRIES)
    with pytest.raises(ArchiveError, match="5 workers have died at lines 3 to 4 of .*a.txt.gz"):
        job.worker.compute([part])
    tries.write_bytes(b"x" * (MOST_TRIES - 1))
    assert job.answer(part) == (2, None)
    assert (tmp_path / "out" / part.name).exists() and not tries.exists()


def test_a_file_that_changes_while_the_job_runs_is_refused(job, tmp_path):
    for content in (b"another\n", b"z\n"):  # the second has the size of the first version
        (tmp_path / "b.txt").write_bytes(content)
        assert "b.txt has changed since the job was planned: 2 b" in job.answer(*job.parts[3:])[1]
    (tmp_path / "b.txt").unlink()
    assert "b.txt cannot be read any more" in job.answer(*job.parts[3:])[1]


def test_a_worker_reports_its_failure_and_does_not_raise(job, translator, inputs, tmp_path):
    other = archives.Job(tmp_path / "out", translator, inputs, ["NoProvider"])
    lines, failure = other.answer(*other.parts[:1])
    assert lines == 0 and failure.startswith("ProviderError: NoProvider is not in")
    job.plan.options["artefact"] = "0" * 64
    assert "was replaced since the job was planned" in job.answer(*job.parts[:1])[1]
    assert not archives.parts(tmp_path / "out")


@pytest.mark.parametrize("together", [1, 3])
def test_parts_stay_missing_when_the_machine_fails(translator, tmp_path, together):
    class Gone:
        def run(self, outputs, feed):
            raise RuntimeError("CUDA failure 999: unknown error")

    path = archives.write_text(tmp_path / "c.txt.gz", archives.lines(40))
    job = archives.Job(tmp_path / "out", translator, [str(path)], part_lines=10)
    first, *rest = job.parts
    assert job.answer(first) == (10, None)
    job.worker._runner.session = Gone()
    lines, failure = job.answer(*rest[:together])
    assert not lines and failure.startswith("MachineError: CUDA failure 999: unknown error")
    assert [part.name for part in archives.parts(tmp_path / "out")] == [first.name]


# Plans


@pytest.fixture
def planned(inputs, tmp_path):
    return plan.make_plan(archives.OPTIONS, inputs)


def test_a_plan_is_read_as_it_was_written(planned, inputs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    assert plan.read_plan(out) is None
    plan.write_plan(planned, out)
    assert plan.read_plan(out) == planned
    assert planned.lines == 6 and [part.lines for part in planned.parts()] == [2, 2, 1, 1]
    plan.check_same(planned, archives.OPTIONS, inputs, out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"part_lines": 3}, "begun with part_lines 2, and this run has 3"),
        ({"format": "text"}, "begun with format 'parquet'"),
        ({"artefact": "1" * 64}, "begun with artefact '000"),
    ],
)
def test_other_options_are_refused(options, told, planned, inputs, tmp_path):
    with pytest.raises(ArchiveError, match=told):
        plan.check_same(planned, {**archives.OPTIONS, **options}, inputs, tmp_path)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (slice(1), "for 2 input files, and this run has 1; .*b.txt"),
        (slice(None, None, -1), "first difference is their order"),
        (slice(None), "b.txt has changed since"),
    ],
)
def test_other_input_is_refused(chosen, told, planned, inputs, tmp_path):
    os.utime(inputs[1], ns=(0, 0))
    with pytest.raises(ArchiveError, match=told):
        plan.check_same(planned, archives.OPTIONS, inputs[chosen], tmp_path)


def test_a_damaged_plan_and_a_foreign_folder_are_refused(planned, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    plan.write_plan(planned, folder)
    path = folder / plan.PLAN_FILE
    text = path.read_text()
    newer = json.loads(text) | {"format_version": 2}
    for content, told in (
        (text[:-9], "plan.json is damaged"),
        (text.replace('"lines": 5', '"lines": 6'), "plan.json is damaged"),
        ("[]", "plan.json is damaged"),
        (json.dumps(newer | {"checksum": plan.checksum(newer)}), "Use the release that began"),
    ):
        path.write_text(content)
        with pytest.raises(ArchiveError, match=told):
            plan.read_plan(folder)
    path.rename(folder / "notes.txt")
    with pytest.raises(ArchiveError, match="holds no _plan.json, but notes.txt"):
        plan.read_plan(folder)


def test_inputs_are_found_once_and_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.log"):
        (tmp_path / name).touch()
    found = plan.find_inputs([tmp_path / "c.log", tmp_path / "*.txt", tmp_path / "a*"])
    assert [os.path.basename(path) for path in found] == ["c.log", "a.txt", "b.txt"]
    with pytest.raises(ArchiveError, match="No file matches .*none"):
        plan.find_inputs([tmp_path / "none*"])
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    for name, told in (
        ("bad.gz", "is not a whole gzip file"),
        ("d.txt", "cannot be read: No such file"),
    ):
        with pytest.raises(ArchiveError, match=f"{name} {told}"):
            plan.make_plan(archives.OPTIONS, [str(tmp_path / name)])


@pytest.mark.parametrize("count", [3, 1_000_003])
def test_names_sort_as_numbers_do(count):
    numbers = [0, 1, 2, count // 2, count - 2, count - 1]
    names = [plan.part_name(number, count, "text") for number in sorted(set(numbers))]
    assert names == sorted(names) and len(set(map(len, names))) == 1


def test_progress_says_lines_and_the_time_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = JobProgress(100_000, done=20_000)
    now[0] = 40.0
    progress.add(20_000)
    line = "40,000 of 100,000 lines, 40.0%, 500.0 lines/s, 0:02:00 left\n"
    assert capsys.readouterr().err == line
    quiet = JobProgress(10, quiet=True)
    now[0] = 100.0
    quiet.add(10)
    assert capsys.readouterr().err == "" and str(quiet) == "10 of 10 lines, 100.0%, 0.2 lines/s"


def test_a_newline_in_an_answer_shifts_no_line(tmp_path):
    rows = [{"file": "f", "line": 1, "text": "a\r\nb", "score": 0.0, "error": None}]
    outputs.write(tmp_path / "part-0.txt.gz", rows, "text")
    assert gzip.decompress((tmp_path / "part-0.txt.gz").read_bytes()) == b"a b\n"
