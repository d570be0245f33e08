"""Tables of the fuzzers in `tests/fuzz/`."""

import statistics

import workers


def outcomes(report):
    """Makes a row for each kind of case, and a column for each outcome that occurred."""
    rows = report["rows"]
    names = list(dict.fromkeys(name for counts in rows.values() for name in counts))
    table = [
        [kind, sum(counts.values()), *(counts.get(n, 0) for n in names)]
        for kind, counts in rows.items()
    ]
    return workers.table(["kind", "cases", *names], table)


def refusals(report):
    """Counts refused models by the beginning of the error."""
    return workers.table(["refused because", "cases"], report["refused"].items())


def load(report):
    """Shows outcomes of a mixed load, and the service's resources in two quarters of the time."""
    readings = report["readings"]
    quarter = len(readings) // 4
    parts = {"second quarter": readings[quarter : 2 * quarter], "last": readings[-quarter:]}
    held = [
        [name, *(f"{statistics.median(one[key] for one in part):g}" for key in readings[0])]
        for name, part in parts.items()
    ]
    heads = ["of the time", "resident MB", "open files", "threads"]
    return f"{outcomes(report)}\n\n{workers.table(heads, held)}"
