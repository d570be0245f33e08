"""A table of arguments: another value of each one changes a result or raises.

A row is a `Case`: a class or function, arguments, another value for each argument, and a function
that observes the result. `Wrong(error, value)` is a value that must raise. `Made(make)` is a value
that is made when the row is tested.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Wrong(NamedTuple):
    """A value that must raise an error."""

    error: type[Exception]
    value: Any


class Made(NamedTuple):
    """A value that is made when the row is tested."""

    make: Callable


class Case(NamedTuple):
    """A row of the table.

    Attributes:
        thing: class or function whose arguments are tested.
        base: dict of arguments.
        others: dict with another value for each argument.
        observe: function of the arguments by name that returns arrays, texts or numbers.
    """

    thing: Callable
    base: dict
    others: dict
    observe: Callable


def arguments(thing):
    """Returns the names of the arguments of a class or function."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(thing).parameters.values()
    return [one.name for one in parameters if one.kind not in kinds and one.name != "self"]


def takes_others(thing):
    """Returns whether a class or function has `**kwargs`."""
    kinds = [one.kind for one in inspect.signature(thing).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def plain(value):
    """Returns a result as nested lists, which can be compared."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return array.shape, np.round(
            array, 5
        ).tolist() if array.dtype.kind == "f" else array.tolist()
    return value


def name_of(case):
    return case.thing.__qualname__


def known(value):
    """Returns a value of the table, made if it is `Made`."""
    return value.make() if isinstance(value, Made) else value


def check_row(case, unseen=()):
    """Checks that a row has another value for each argument, and no value for any other name."""
    assert not set(arguments(case.thing)) - set(case.others) - set(unseen)
    assert not set(case.others) - set(arguments(case.thing))


def check_effects(case):
    """Checks that each other value of a row changes the result or raises."""
    base = {name: known(value) for name, value in case.base.items()}
    first = plain(case.observe(**base))
    assert plain(case.observe(**base)) == first  # else a difference would mean nothing
    without = []
    for name, other in case.others.items():
        given = {**base, name: known(other.value if isinstance(other, Wrong) else other)}
        try:
            effect = plain(case.observe(**given)) != first
        except Exception as error:
            if not isinstance(other, Wrong) or not isinstance(error, other.error):
                raise
        else:
            effect = effect and not isinstance(other, Wrong)
            without += [] if effect else [name]
    assert not without, f"no effect: {', '.join(without)}"
