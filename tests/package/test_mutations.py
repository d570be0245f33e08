"""The list of mutations fits the code; `python tests/mutations.py` runs it."""

import ast
import shlex

import mutations
import pytest

LISTED = mutations.read()


def test_every_mutation_still_applies():
    for mutation in LISTED:
        before = (mutations.ROOT / mutation.file).read_text("utf-8")
        after = mutation.applied(before)
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), mutation.number
        files = [part for part in shlex.split(mutation.tests) if part.endswith(".py")]
        assert files and all((mutations.ROOT / path).is_file() for path in files), mutation.number
    for text, count in ((before.replace(mutation.old, ""), 0), (before + mutation.old, 2)):
        with pytest.raises(
            ValueError, match=f"{mutation.number}: .* lines {count} times, not once"
        ):
            mutation.applied(text)


def test_numbers_are_unique():
    numbers = [mutation.number for mutation in LISTED]
    assert len(numbers) == len({*numbers}) > 100


def test_a_caught_and_a_surviving_mutation_are_told_apart(tmp_path):
    (tmp_path / "one.py").write_text("def double(x):\n    return x + x\n")
    (tmp_path / "test_one.py").write_text(
        "from one import double\n\ndef test_it():\n    assert double(3) == 6\n"
    )
    for new, is_caught in (("x + 1", True), ("2 * x", False)):
        lines = {"old": "    return x + x\n", "new": f"    return {new}\n"}
        one = mutations.Mutation(1, "one.py", "test_one.py", **lines)
        caught, reason = mutations.run(one, tmp_path)
        assert caught == is_caught and ("test_one.py::test_it" in reason) == is_caught
    assert (tmp_path / "one.py").read_text() == "def double(x):\n    return x + x\n"
    with pytest.raises(RuntimeError, match="Mutation 1"):
        mutations.run(mutations.Mutation(1, "one.py", "no.py", **lines), tmp_path)
