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
