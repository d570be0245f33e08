"""Marks the quick cases of a table; `--full` runs all."""

from collections.abc import Iterable

import pytest


def quick(cases: Iterable, *chosen: object) -> list:
    """Returns parameters: chosen cases run in both suites, others only in the full one.

    A tuple holds the values of several arguments.
    """
    cases = list(cases)
    assert all(case in cases for case in chosen)

    def parameter(case: object) -> object:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in chosen else pytest.mark.full)

    return [parameter(case) for case in cases]


def nightly(*values: object) -> object:
    """Returns the parameter of a case that only the nightly suite runs."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def full(*values: object) -> object:
    """Returns the parameter of a case that only the full suite runs."""
    return pytest.param(*values, marks=pytest.mark.full)
