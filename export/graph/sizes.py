"""Arithmetic on sizes of axes, which are integers or products of symbols.

A size is an `int` or a `SymbolicSize`, for example 12 times `source_ids[0]` times `source_ids[1]`.
Products and quotients are exact, which is what the target of a Reshape needs. A sum of symbols is a
new symbol that is named after the formula, so that equal sums are equal sizes.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SymbolicSize:
    """`factor` times the product of `symbols`, which are sorted names."""

    factor: int
    symbols: tuple[str, ...]


Size = int | SymbolicSize
Dims = tuple[Size, ...]


def symbol(name: str) -> SymbolicSize:
    """A size of which only the name is known."""
    return SymbolicSize(1, (name,))


def parts(size: Size) -> tuple[int, tuple[str, ...]]:
    """The factor and the symbols of a size."""
    return (size, ()) if isinstance(size, int) else (size.factor, size.symbols)


def _size(factor: int, symbols: Iterable[str]) -> Size:
    symbols = tuple(sorted(symbols))
    return SymbolicSize(factor, symbols) if symbols and factor else factor


def product(sizes: Iterable[Size]) -> Size:
    """The product of any number of sizes."""
    factor, symbols = 1, ()
    for size in sizes:
        other, others = parts(size)
        factor, symbols = factor * other, symbols + others
    return _size(factor, symbols)


def quotient(size: Size, divisor: Size) -> Size | None:
    """`size / divisor` if it is exact for all values of the symbols, else `None`."""
    factor, symbols = parts(size)
    other, others = parts(divisor)
    remaining = list(symbols)
    for name in others:
        if name not in remaining:
            return None
        remaining.remove(name)
    return _size(factor // other, remaining) if other and factor % other == 0 else None


def total(left: Size, right: Size) -> Size:
    """`left + right`: exact for integers, else a symbol that is named after the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if 0 in (left, right):
        return left if right == 0 else right
    return symbol(f"({left!r} + {right!r})")


def difference(left: Size, right: Size) -> Size:
    """`left - right`: exact for integers, else a symbol that is named after the formula."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return left if right == 0 else symbol(f"({left!r} - {right!r})")


def depends_on(size: Size, name: str) -> bool:
    """Whether a size contains a symbol of an axis of the value `name`."""
    return any(part.startswith(f"{name}[") for part in parts(size)[1])


def broadcast_size(sizes: Iterable[Size], otherwise: Size) -> Size:
    """The size of one axis after broadcasting.

    A size of 1 is stretched to the others, and an integer is preferred to a symbol. Two different
    symbols may be equal at run time, or one of them may be 1, so the result is a new symbol.

    Args:
        sizes: the inputs' sizes of this axis.
        otherwise: the new symbol.
    """
    sizes = set(sizes) - {1}
    integers = [size for size in sizes if isinstance(size, int)]
    candidates = integers or (sizes if len(sizes) < 2 else [otherwise])
    return next(iter(candidates), 1)
