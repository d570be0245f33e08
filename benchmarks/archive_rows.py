"""Tables of what `archive.py` measured, and the plan for a large job that follows from it."""

import workers

WHOLE = 100_000  # lines of the job whose speed is asked for
LINES = 10**9
MACHINES = 100
CORES = (2, 32)
PART_LINES = 20_000


def kills_table(report):
    found = report["kills"]
    heads = ["lines", "workers killed", "drivers killed", "starts", "missing", "twice"]
    heads += ["out of place"]
    row = [f"{found['lines']:,}", found["worker"], found["driver"], found["starts"]]
    row += [found["missing"], found["twice"], found["out of place"]]
    return workers.table(heads, [row])


def cost(speed, name, lines, kind="cpu_seconds"):
    """Seconds for so many lines: those of the start, and then the same for each line."""
    start = speed[f"{name}, one line"][kind]
    return start + (speed[name][kind] - start) / (speed["lines"] - 1) * (lines - 1)


def speed_table(report):
    speed = report["speed"]
    heads = ["what", "lines", "s on the clock", "of them the start", "CPU s", "of them the start"]
    names = {"archive": "the command", "translator": "`Translator(workers=2)`"}
    kinds = ("seconds", "cpu_seconds")
    rows = [
        [
            title,
            f"{speed['lines']:,}",
            *(
                value
                for kind in kinds
                for value in (speed[name][kind], speed[f"{name}, one line"][kind])
            ),
        ]
        for name, title in names.items()
    ]
    heads_of_ratios = ["times the speed of `Translator`", "by the clock", "by processor time"]
    sizes = {speed["lines"]: ""}
    sizes.setdefault(WHOLE, ", reckoned: a start and the rest")
    ratios = [
        [f"{lines:,} lines{how}"]
        + [cost(speed, "translator", lines, k) / cost(speed, "archive", lines, k) for k in kinds]
        for lines, how in sizes.items()
    ]
    told = (
        f"Rounds: {speed['rounds']}. The machine's load meanwhile: {speed['load']:.1f} on "
        f"{report['machine']['cores']} cores; where it is far above that, others used the machine."
    )
    tables = workers.table(heads, rows), workers.table(heads_of_ratios, ratios), told
    return "\n\n".join(tables)


def plan_table(report):
    """A billion lines on a hundred machines of so many cores."""
    speed, costs = report["speed"], report["costs"]
    per_line = cost(speed, "archive", 2) - cost(speed, "archive", 1)
    rates = [MACHINES * cores / per_line for cores in CORES]
    parts = LINES // PART_LINES
    driver, cut = costs["driver's seconds a part"], costs["lines cut a second"]
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
    size = report["kills"]["bytes a line"] * LINES / 1e9
    told = (
        f"From {1 / per_line:,.0f} lines a second of processor time, Ray's own included, and "
        f"{PART_LINES:,} lines a part: "
        f"{parts:,} parts and files; {LINES / cut / 60:.0f} minutes of processor time on the "
        "driver's machine to cut the input before the first part, which its cores share; "
        f"{driver * parts / 60:.0f} minutes of one core there to hand out the parts; {size:,.0f} "
        "GB of Parquet, sources included."
    )
    heads = ["", *(f"{cores} cores each" for cores in CORES)]
    return f"{workers.table(heads, rows)}\n\n{told}"
