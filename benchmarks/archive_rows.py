"""Tables of what `archive.py` measured, and the plan for a large job that follows from it."""

import workers

LINES = 10**9
MACHINES = 100
PART_LINES = 20_000


def kills_table(report):
    found = report["kills"]
    heads = ["lines", "workers killed", "drivers killed", "starts", "missing", "twice"]
    heads += ["out of place"]
    row = [f"{found['lines']:,}", found["worker"], found["driver"], found["starts"]]
    row += [found["missing"], found["twice"], found["out of place"]]
    return workers.table(heads, [row])


def speed_table(report):
    found = report["speed"]
    heads = ["what", "lines", "s on the clock", "CPU s", "CPU s of the start"]
    names = {"archive": "the command", "translator": "`Translator(workers=2)`"}
    rows = [
        [
            title,
            f"{found['lines']:,}",
            found[name]["seconds"],
            found[name]["cpu_seconds"],
            found[f"{name}, one line"]["cpu_seconds"],
        ]
        for name, title in names.items()
    ]
    ratios = {
        kind: found["translator"][kind] / found["archive"][kind]
        for kind in ("seconds", "cpu_seconds")
    }
    told = (
        f"By processor time the command has {ratios['cpu_seconds']:.2f} times the speed of "
        f"`Translator(workers=2)`, by the clock {ratios['seconds']:.2f} times. "
        f"{found['rounds']} round, load {found['load']:.0f} on "
        f"{report['machine']['cores']} cores."
    )
    return f"{workers.table(heads, rows)}\n\n{told}"


def plan_table(report):
    """A billion lines on a hundred machines of so many cores."""
    speed, costs = report["speed"], report["costs"]
    start = speed["archive, one line"]["cpu_seconds"]
    rate = (speed["lines"] - 1) / (speed["archive"]["cpu_seconds"] - start)  # a core
    parts = LINES // PART_LINES
    driver, cut = costs["driver's seconds a part"], costs["lines cut a second"]
    heads = ["", *(f"{cores} cores each" for cores in (2, 32))]
    rows = [
        ["lines a second", *(f"{rate * MACHINES * cores:,.0f}" for cores in (2, 32))],
        ["hours", *(LINES / rate / MACHINES / cores / 3600 for cores in (2, 32))],
        [
            "parts a second; the driver can do",
            *(f"{rate * MACHINES * cores / PART_LINES:.1f}; {1 / driver:.0f}" for cores in (2, 32)),
        ],
        [
            "lines that are done again when a machine is lost, at most",
            *(f"{cores * PART_LINES:,}" for cores in (2, 32)),
        ],
    ]
    size = report["kills"]["bytes a line"] * LINES / 1e9
    told = (
        f"From {rate:,.0f} lines a second of a core, {PART_LINES:,} lines a part. On any machines: "
        f"{parts:,} parts and files; {LINES / cut / 60:.0f} minutes of processor time to cut the "
        f"input, before the first part, on the driver's cores together; "
        f"{driver * parts / 60:.0f} minutes of the driver's to hand out the parts; {size:,.0f} GB "
        "of Parquet with sources."
    )
    return f"{workers.table(heads, rows)}\n\n{told}"
