"""Tables of what the fuzzers of `tests/fuzz/` found."""

import workers


def outcomes(report):
    """A row for each kind of case, a column for each outcome that occurred."""
    rows = report["rows"]
    names = list(dict.fromkeys(name for counts in rows.values() for name in counts))
    table = [
        [kind, sum(counts.values()), *(counts.get(n, 0) for n in names)]
        for kind, counts in rows.items()
    ]
    return workers.table(["kind", "cases", *names], table)


def refusals(report):
    """How many models were refused, by the beginning of the error."""
    return workers.table(["refused because", "cases"], report["refused"].items())
