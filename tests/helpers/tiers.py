"""Marks the quick cases of a table; `--full` runs all."""

from collections.abc import Iterable

import pytest


def quick(cases: Iterable, *chosen: object, nightly: Iterable = ()) -> list:
    """Returns parameters: chosen cases run in every suite, others from the full one on.

    Cases of `nightly` run in the nightly suite only. A tuple holds the values of several arguments.
    """
    cases, late = list(cases), list(nightly)
    assert all(case in cases for case in (*chosen, *late))

    def parameter(case: object) -> object:
        values = case if isinstance(case, tuple) else (case,)
        tier = pytest.mark.nightly if case in late else pytest.mark.full
        return pytest.param(*values, marks=() if case in chosen else tier)

    return [parameter(case) for case in cases]


def nightly(*values: object) -> object:
    """Returns the parameter of a case that only the nightly suite runs."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def full(*values: object) -> object:
    """Returns the parameter of a case that only the full suite runs."""
    return pytest.param(*values, marks=pytest.mark.full)
