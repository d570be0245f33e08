"""Tables of archives, and the plan of a large job that follows from them.

A part of the report has figures by processor.
"""

from markdown_tables import Table, table, tables

LINES, MACHINES, CORES, PART_LINES = 10**9, 100, (2, 32), 20_000  # of the plan


def provenance(report):
    """Returns date, machine and versions of a report in one line."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {one}" for name, one in report["versions"].items() if one)
    threads = f"{machine['threads']} threads on {machine['processor'] or 'CPU'}"
    rounds = report.get("rounds")
    rounds = f", {rounds} round{'s' * (rounds != 1)}" if rounds else ""
    return f"{report['date']}, {threads}{rounds}; {versions}."


def by_machine(part, made):
    """Returns a table of a part of a report, below the provenance of each processor's figures."""

    def text(report):
        found = report[part]
        rows = {"rows": [{"processor": name, **row} for name, row in found.items()]}
        return "\n\n".join([*map(provenance, found.values()), made(rows)])

    return text


KILLS = Table(
    [
        ("processor", "{processor}"),
        ("lines", "{lines:,}"),
        ("workers killed", "{worker}"),
        ("drivers killed", "{driver}"),
        ("starts", "{starts}"),
        ("missing", "{missing}"),
        ("twice", "{twice}"),
        ("out of place", "{out of place}"),
    ]
)


def speed_rows(report):
    names = {"archive": "the command", "translator": "`Translator(workers=2)`"}
    for row in report["rows"]:
        for name, title in names.items():
            yield {**row, "title": title, "all": row[name], "one": row[f"{name}, one line"]}


def loads(report):
    found = ", ".join(
        f"{row['load']:.1f} on {row['machine']['cores']} cores of {row['processor']}"
        for row in report["rows"]
    )
    return f"The load meanwhile: {found}. Where it is far above the cores, others used them."


SPEED = Table(
    [
        ("processor", "{processor}"),
        ("what", "{title}"),
        ("lines", "{lines:,}"),
        ("s on the clock", "{all[seconds]}"),
        ("of them the start", "{one[seconds]}"),
        ("CPU s", "{all[cpu_seconds]}"),
        ("of them the start", "{one[cpu_seconds]}"),
    ],
    speed_rows,
)
RATIOS = Table(
    [
        ("processor", "{processor}"),
        ("times the speed of `Translator`", "{lines:,} lines"),
        ("by the clock", lambda row: row["translator"]["seconds"] / row["archive"]["seconds"]),
        (
            "by processor time",
            lambda row: row["translator"]["cpu_seconds"] / row["archive"]["cpu_seconds"],
        ),
    ],
    note=loads,
)


def plan(report):
    """Plans a billion lines on a hundred machines with `CORES` each."""
    processor = [name for name in report["costs"] if name in report["speed"]][-1]
    speed, costs = report["speed"][processor], report["costs"][processor]
    whole, start = (speed[f"archive{part}"]["cpu_seconds"] for part in ("", ", one line"))
    per_line = (whole - start) / (speed["lines"] - 1)
    rates = [MACHINES * cores / per_line for cores in CORES]
    parts, driver = LINES // PART_LINES, costs["driver's seconds a part"]
    rows = [
        ["lines a second", *(f"{rate:,.0f}" for rate in rates)],
        ["hours", *(LINES / rate / 3600 for rate in rates)],
        ["parts a second", *(f"{rate / PART_LINES:.1f}" for rate in rates)],
        ["parts a second that the driver hands out, at most", *[f"{1 / driver:.0f}"] * len(CORES)],
        [
            "lines done again where a machine is lost, at most",
            *(f"{cores * PART_LINES:,}" for cores in CORES),
        ],
    ]
    size = list(report["kills"].values())[-1]["bytes a line"] * LINES / 1e9
    told = (
        f"From {1 / per_line:,.0f} lines a second of processor time of {processor}, Ray's own "
        f"included, and {PART_LINES:,} lines a part: {parts:,} parts and files; "
        f"{LINES / costs['lines cut a second'] / 60:.0f} minutes of processor time on the "
        "driver's machine to cut the input before the first part, which its cores share; "
        f"{driver * parts / 60:.0f} minutes of one core there to hand out the parts; {size:,.0f} "
        "GB of Parquet, sources included."
    )
    return f"{table(['figure', *(f'{cores} cores each' for cores in CORES)], rows)}\n\n{told}"


TABLES = {
    "archive-kills": by_machine("kills", KILLS),
    "archive-plan": plan,
    "archive-speed": by_machine("speed", tables(SPEED, RATIOS)),
}
