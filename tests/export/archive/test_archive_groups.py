"""Groups of parts, without Ray: the same files, and each part once."""

import os

import pytest
from helpers import archives

from keras_transformer.export.archive import plan
from keras_transformer.export.archive.worker import MOST_TRIES, TRIES_ENDING


@pytest.mark.parametrize("format", ["parquet", "jsonl", "text"])
@pytest.mark.parametrize("together", [2, 3, 4])
def test_parts_answered_together_equal_parts_answered_alone(
    together, format, translator, inputs, tmp_path
):
    alone, out = tmp_path / "alone", tmp_path / "together"
    archives.answer(alone, translator, inputs, format=format)
    archives.answer(out, translator, inputs, together, format=format)
    assert sorted(path.name for path in out.iterdir()) == sorted(os.listdir(alone))
    for path in alone.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("together", [1, 4])
def test_existing_parts_are_left_alone(together, translator, inputs, tmp_path):
    out = tmp_path / "out"
    archives.answer(out, translator, inputs)
    before = [path.read_bytes() for path in archives.parts(out)]
    kept = archives.parts(out)[1]
    kept.write_bytes(b"as it was")
    for path in archives.parts(out)[2:]:  # killed between two files
        path.unlink()
    archives.answer(out, translator, inputs, together)
    assert kept.read_bytes() == b"as it was"
    kept.write_bytes(before[1])
    assert [path.read_bytes() for path in archives.parts(out)] == before
    assert not list(out.glob(".*"))  # no temporary files


def test_after_a_death_parts_are_answered_one_by_one(job, tmp_path):
    for part, tries in zip(job.parts[:3], (1, 1, MOST_TRIES), strict=True):
        (tmp_path / "out" / f".{part.name}{TRIES_ENDING}").write_bytes(b"x" * tries)
    assert "5 workers have died at lines 5 to 5 of" in job.answer(*job.parts)[1]
    assert [path.name for path in archives.parts(tmp_path / "out")] == [
        part.name for part in job.parts[:2]
    ]


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize(("part_lines", "most"), [(7, 5), (2000, 5), (3000, 3), (20_000, 1)])
def test_groups_hold_all_parts_in_order_and_shrink_to_one(workers, part_lines, most):
    parts = [plan.JobPart(str(i), "in", 1, 1, i, i * part_lines, part_lines) for i in range(101)]
    groups = plan.groups(parts, workers)
    assert [part for group in groups for part in group] == parts
    sizes = [len(group) for group in groups]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == most
    assert sizes[-2 * workers :] == [1] * (2 * workers)
    assert len(groups) >= 4 * workers
    assert plan.groups(parts[:1], workers) == [parts[:1]]
