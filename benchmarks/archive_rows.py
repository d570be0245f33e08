"""Tables of `archive.py`, and the plan of a large job that follows from them."""

import workers

WHOLE = 100_000  # lines of the job in the target
LINES = 10**9
MACHINES = 100
CORES = (2, 32)
PART_LINES = 20_000


def kills_table(kills):
    """Makes a table of kills; `kills`, like `speed` below, is a dict from processors to figures."""
    heads = ["processor", "lines", "workers killed", "drivers killed", "starts", "missing", "twice"]
    heads += ["out of place"]
    names = ("worker", "driver", "starts", "missing", "twice", "out of place")
    rows = [
        [processor, f"{found['lines']:,}", *(found[name] for name in names)]
        for processor, found in kills.items()
    ]
    return workers.table(heads, rows)


def cost(speed, name, lines, kind="cpu_seconds"):
    """Returns seconds for a number of lines: the start, then the same time for each line."""
    start = speed[f"{name}, one line"][kind]
    return start + (speed[name][kind] - start) / (speed["lines"] - 1) * (lines - 1)


def speed_table(speed):
    heads = ["processor", "what", "lines", "s on the clock", "of them the start", "CPU s"]
    heads += ["of them the start"]
    names = {"archive": "the command", "translator": "`Translator(workers=2)`"}
    kinds = ("seconds", "cpu_seconds")
    rows = [
        [
            processor,
            title,
            f"{found['lines']:,}",
            *(
                value
                for kind in kinds
                for value in (found[name][kind], found[f"{name}, one line"][kind])
            ),
        ]
        for processor, found in speed.items()
        for name, title in names.items()
    ]
    tables = workers.table(heads, rows), ratios_table(speed, kinds)
    return "\n\n".join(tables)


def ratios_table(speed, kinds):
    """Compares both speeds, for the measured number of lines and for `WHOLE`."""
    heads = ["processor", "times the speed of `Translator`", "by the clock", "by processor time"]
    rows = []
    for processor, found in speed.items():
        sizes = {found["lines"]: ""}
        sizes.setdefault(WHOLE, ", reckoned: a start and the rest")
        for lines, how in sizes.items():
            spent = [
                [cost(found, name, lines, kind) for kind in kinds]
                for name in ("translator", "archive")
            ]
            ratios = [theirs / ours for theirs, ours in zip(*spent, strict=True)]
            rows.append([processor, f"{lines:,} lines{how}", *ratios])
    loads = ", ".join(
        f"{found['load']:.1f} on {found['machine']['cores']} cores of {processor}"
        for processor, found in speed.items()
    )
    told = f"The load meanwhile: {loads}. Where it is far above the cores, others used them."
    return f"{workers.table(heads, rows)}\n\n{told}"


def plan_table(report):
    """Plans a billion lines on a hundred machines with `CORES` each."""
    processor = [name for name in report["costs"] if name in report["speed"]][-1]
    speed, costs = report["speed"][processor], report["costs"][processor]
    kills = list(report["kills"].values())[-1]
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
    size = kills["bytes a line"] * LINES / 1e9
    told = (
        f"From {1 / per_line:,.0f} lines a second of processor time of {processor}, Ray's own "
        f"included, and {PART_LINES:,} lines a part: "
        f"{parts:,} parts and files; {LINES / cut / 60:.0f} minutes of processor time on the "
        "driver's machine to cut the input before the first part, which its cores share; "
        f"{driver * parts / 60:.0f} minutes of one core there to hand out the parts; {size:,.0f} "
        "GB of Parquet, sources included."
    )
    heads = ["figure", *(f"{cores} cores each" for cores in CORES)]
    return f"{workers.table(heads, rows)}\n\n{told}"
