"""Sizes of axes that are known only as products of unknowns, and how to calculate with them.

A size is an `int`, or a `Size`: 12 times `source_ids[0]` times `source_ids[1]`, say. Products and
quotients are exact, which is all that a Reshape asks for. A sum of unknowns is a new unknown that
bears the formula as its name, so that equal sums are equal sizes.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """`factor` times the product of `unknowns`, which are sorted names."""

    factor: int
    unknowns: tuple


def unknown(name):
    """The size that is known by its name only."""
    return Size(1, (name,))


def terms(size):
    """The factor and the names of the unknowns of a size."""
    return (size, ()) if isinstance(size, int) else (size.factor, size.unknowns)


def _size(factor, unknowns):
    return Size(factor, tuple(sorted(unknowns))) if unknowns and factor else factor


def product(sizes):
    """The product of any number of sizes."""
    factor, unknowns = 1, ()
    for size in sizes:
        one, more = terms(size)
        factor, unknowns = factor * one, unknowns + more
    return _size(factor, unknowns)


def quotient(size, divisor):
    """`size / divisor` where it is exact whatever the unknowns, else `None`."""
    factor, unknowns = terms(size)
    other, others = terms(divisor)
    rest = list(unknowns)
    for name in others:
        if name not in rest:
            return None
        rest.remove(name)
    return _size(factor // other, tuple(rest)) if other and factor % other == 0 else None


def total(left, right):
    """`left + right`: exact for integers, else an unknown named by the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if 0 in (left, right):
        return left if right == 0 else right
    return unknown(f"({left!r} + {right!r})")


def difference(left, right):
    """`left - right`: exact for integers, else an unknown named by the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if right == 0 else unknown(f"({left!r} - {right!r})")


def mentions(size, name):
    """Whether a size is made of unknown axes of the value of this name."""
    unknowns = () if isinstance(size, int) else size.unknowns
    return any(part.startswith(f"{name}[") for part in unknowns)


def common(sizes, otherwise):
    """The size of an axis that several inputs of an element-wise operator share.

    A size of 1 is stretched to the others, and a plain number wins. Two unknowns may be equal, or
    one of them may be 1 at run time, so that nothing is known but a new unknown.

    Args:
        sizes: the inputs' sizes of this axis.
        otherwise: the new unknown.
    """
    sizes = set(sizes) - {1}
    numbers = [size for size in sizes if isinstance(size, int)]
    candidates = numbers or (sizes if len(sizes) < 2 else [otherwise])
    return next(iter(candidates), 1)
