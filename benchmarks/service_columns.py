"""Tables of the service, and of the fuzzers in `tests/fuzz/`."""

import statistics

from markdown_tables import Table, table, tables

# The service.


def throughput_rows(report):
    """Yields a row for each kind of request, with medians over the rounds."""
    rounds, lines = report["throughput"], report["lines"] * report["times"]
    for name in [name for name in rounds[0] if name not in ("load", "translator")]:
        pairs = [(row["translator"], row[name]) for row in rounds]
        whole, service = (
            lines / statistics.median(one["seconds"] for one in side)
            for side in zip(*pairs, strict=True)
        )
        yield {
            "name": name,
            "speeds": [service, whole],
            "seconds": statistics.median(a["seconds"] / b["seconds"] for a, b in pairs),
            "cpu": statistics.median(a["cpu"] / b["cpu"] for a, b in pairs),
            "all": statistics.median(a["cpu"] / (b["cpu"] + b["clients"]) for a, b in pairs),
            "loads": ", ".join(f"{row['load']:.0f}" for row in rounds),
        }


THROUGHPUT = Table(
    [
        ("requests", "{name}"),
        ("lines/s", "{speeds[0]:.1f}"),
        ("Translator's", "{speeds[1]:.1f}"),
        ("of `Translator`", "{seconds:.2f}"),
        ("by processor time", "{cpu:.2f}"),
        ("and clients", "{all:.2f}"),
        ("loads", "{loads}"),
    ],
    throughput_rows,
)


def load_rows(report):
    """Yields two rows for each round, their median, and the overload."""
    rounds, over = report["half load"], report["overload"]
    ratios = [row["half"]["p95"] / row["single"]["p95"] for row in rounds]
    for number, (row, ratio) in enumerate(zip(rounds, ratios, strict=True), 1):
        yield {"load": f"round {number}: one request at a time", **row["single"]}
        half = {"load": "half of the full speed", "rate": row["rate"], **row["half"]}
        yield half | {"ratio": ratio, "answers": statuses(row)}
    yield {"load": "half of the full speed, median", "ratio": statistics.median(ratios)}
    title = f"three times the full speed, {over['seconds']:.0f} s"
    yield {"load": title, "rate": over["rate"], "answers": statuses(over)}


def statuses(row):
    found = sorted(row["statuses"].items())
    return ", ".join(f"{count:,} {name.removeprefix('StatusCode.')}" for name, count in found)


def load_notes(report):
    """Describes how evenly the machine ran, and the memory and speed around the overload."""
    over, spells = report["overload"], [row["spells"] for row in report["half load"]]
    before, after = over["megabytes before"], over["megabytes after"]
    memory = ", ".join(
        f"{name} {before[name]:.0f} MB before and {after[name]:.0f} MB after" for name in before
    )
    most, usual = (
        ", ".join(f"{one[which]:.2f}" for one in spells) for which in ("slowest", "median")
    )
    return (
        "The same line, again and again for 20 s before each round, beside the idle service: the "
        f"slowest half second took {most} times as long as the fastest, the median one {usual}.\n\n"
        f"The overload: {memory}; {over['lines/s before']:.1f} lines/s before and "
        f"{over['lines/s after']:.1f} after."
    )


LOAD = Table(
    [
        ("load", "{load}"),
        ("requests/s", "{rate:.0f}"),
        ("p50 ms", "{p50:.0f}"),
        ("p95 ms", "{p95:.0f}"),
        ("p95, of one request's", "{ratio:.1f}"),
        ("answers", "{answers}"),
    ],
    load_rows,
    load_notes,
    missing="",
)
EQUALITY = Table(
    [
        ("client", "{client}"),
        ("at a time", "{concurrency}"),
        ("lines a request", "{lines a request}"),
        ("differing", "{differing}"),
        ("lines", "{lines}"),
    ],
    lambda report: report.get("equality", []),
)


def ray_rows(report):
    """Yields the service in one process, and with a replica on Ray."""
    found, ray = report["beside Ray"], "a replica on Ray"
    starts = {"one process": report["start seconds"], ray: found["start seconds"]}
    for name, start in starts.items():
        yield {
            "name": name,
            "start": start,
            "speed": statistics.median(row[name] for row in found["lines/s"]),
            "ratio": statistics.median(row[name] / row[ray] for row in found["lines/s"]),
            "seconds": statistics.median(row[name] for row in found["cpu"]),
            "megabytes": found["megabytes"][name],
        }


RAY = Table(
    [
        ("service", "{name}"),
        ("s to start", "{start:.1f}"),
        ("lines/s, 128 clients", "{speed:.1f}"),
        ("of Ray's in the same round", "{ratio:.2f}"),
        ("processor ms a line", "{seconds:ms.1f}"),
        ("MB in all", "{megabytes:.0f}"),
    ],
    ray_rows,
)


# The fuzzers.


def outcomes(report):
    """Makes a row for each kind of case, and a column for each outcome that occurred."""
    rows = report["rows"]
    names = list(dict.fromkeys(name for counts in rows.values() for name in counts))
    counted = [
        [kind, sum(counts.values()), *(counts.get(name, 0) for name in names)]
        for kind, counts in rows.items()
    ]
    return table(["kind", "cases", *names], counted)


def held(report):
    """Shows the service's resources in two quarters of the time of a mixed load."""
    readings = report["readings"]
    quarter = len(readings) // 4
    parts = {"second quarter": readings[quarter : 2 * quarter], "last": readings[-quarter:]}
    rows = [
        [name, *(f"{statistics.median(one[key] for one in part):g}" for key in readings[0])]
        for name, part in parts.items()
    ]
    return table(["of the time", "resident MB", "open files", "threads"], rows)


def refusals(report):
    return table(["refused because", "cases"], report["refused"].items())


TABLES = {
    "fuzz-faults": outcomes,
    "fuzz-load": tables(outcomes, held),
    "fuzz-litert": outcomes,
    "fuzz-litert-refusals": refusals,
    "fuzz-models": outcomes,
    "fuzz-refusals": refusals,
    "fuzz-protocols": outcomes,
    "fuzz-readers": outcomes,
    "service": lambda report: tables(THROUGHPUT, LOAD, EQUALITY, *[RAY] * ("beside Ray" in report))(
        report
    ),
}
