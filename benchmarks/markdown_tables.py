"""Tables in Markdown, declared by their columns."""

import dataclasses
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
# First parts of a specification in a template, such as "{bytes:MB}" or "{bytes:MB.2f}".
SCALES = {"MB": 1e-6, "ms": 1e3}


class Cells(string.Formatter):
    """Formats the cells of a row from templates such as "{batch} x {length}" or "{share:.0%}".

    A float without a specification has three significant digits. "MB" shows bytes in 10^6, "ms"
    shows seconds in milliseconds. A value that is `None` or missing is "-".
    """

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except KeyError:
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "-"
        for unit, factor in SCALES.items():
            if format_spec.startswith(unit):
                value, format_spec = float(value * factor), format_spec.removeprefix(unit)
        if isinstance(value, float) and not format_spec:
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
        return format(value, format_spec)


CELLS = Cells()


def cells(template: str, row: Report) -> str:
    """Fills a template.

    >>> cells("{one} {two[a]:.0%} {bytes:MB} {none}", {"one": 1.0, "two": {"a": 0.5}, "bytes": 3e6})
    '1.00 50% 3.00 -'
    """
    return CELLS.vformat(template, (), row)


def table(heads: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table; cells that are no strings are formatted as `Cells` does.

    >>> print(table(["name", "s"], [["ours", 1.5], ["theirs", None]]))
    | name | s |
    | --- | --- |
    | ours | 1.50 |
    | theirs | - |
    """
    shown = [[CELLS.format_field(cell, "") for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        columns: pairs of a head and a template, see `Cells`; or of a head and a function from a row
            to a cell.
        rows: function from a report to rows, which are dicts. Defaults to the report's "rows".
        note: template of a paragraph below, filled from the report; or a function. Defaults to "".
        missing: text of cells without a value. Defaults to "-".

    Example:

    >>> sizes = Table([("name", "{name}"), ("MB", "{bytes:MB}")], note="{lines} lines.")
    >>> print(sizes({"rows": [{"name": "int8", "bytes": 2_500_000}], "lines": 7}))
    | name | MB |
    | --- | --- |
    | int8 | 2.50 |
    <BLANKLINE>
    7 lines.
    """

    columns: Sequence[tuple[str, str | Callable[[Report], Any]]]
    rows: Callable[[Report], Iterable[Report]] = lambda report: report["rows"]
    note: str | Callable[[Report], str] = ""
    missing: str = "-"

    def __call__(self, report: Report) -> str:
        text = table(
            [head for head, _ in self.columns],
            [[self._cell(cell, row) for _, cell in self.columns] for row in self.rows(report)],
        )
        note = self.note(report) if callable(self.note) else cells(self.note, report)
        return f"{text}\n\n{note}" if note else text

    def _cell(self, cell: str | Callable[[Report], Any], row: Report) -> str:
        text = cells(cell, row) if isinstance(cell, str) else CELLS.format_field(cell(row), "")
        return self.missing if text == "-" else text


def tables(*parts: Callable[[Report], str]) -> Callable[[Report], str]:
    """Joins several tables of one report."""
    return lambda report: "\n\n".join(part(report) for part in parts)
