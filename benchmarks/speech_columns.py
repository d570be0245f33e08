"""Tables of speech recognition beside faster-whisper and CTranslate2."""

import itertools

import bench
from export_columns import named
from markdown_tables import Table

WHISPER, FASTER_WHISPER = "keras_transformer", "faster-whisper"


def beside(rows, ours, theirs, speed, work):
    """Pairs each of our rows with the fastest of the other engine's rows.

    Args:
        rows: rows of the same case.
        ours, theirs: beginnings of the engines' names.
        speed: key of a figure that is greater for a faster engine.
        work: key of the amount of work; if it differs, there are no ratios.

    Yields:
        Our row, with the other one as "theirs", and "ratio" and "memory ratio".
    """
    fastest = max((r for r in rows if r["engine"].startswith(theirs)), key=lambda r: r[speed])
    for row in rows:
        if row["engine"].startswith(ours):
            row = row | {"theirs": fastest}
            if bench.same_work(row[work], fastest[work]):
                row["ratio"] = row[speed] / fastest[speed]
                row["memory ratio"] = row["peak MB"] / fastest["peak MB"]
            yield row


def whisper_rows(report):
    groups = bench.grouped(report["speed"]["rows"], "precision", "beam width", "busy").values()
    options = (WHISPER, FASTER_WHISPER, "times real time", "words")
    return [row for rows in groups for row in beside(rows, *options)]


WHISPER_SPEED = [
    ("precision", "{precision}"),
    ("beam", "{beam width}"),
    ("busy", "{busy}"),
    ("code", lambda row: row["engine"].partition(", ")[2] or "now"),
    ("words", "{words:.0f}"),
    ("faster-whisper", "{theirs[words]:.0f}"),
    ("times real time", "{times real time}"),
    ("faster-whisper", "{theirs[times real time]}"),
    ("ratio", "{ratio}"),
    ("peak MB", "{peak MB:.0f}"),
    ("faster-whisper", "{theirs[peak MB]:.0f}"),
    ("ratio", "{memory ratio}"),
]


def whisper_speed(report):
    """Makes a row for each precision, beam width and code; busy cores only if there were any."""
    busy = any(row.get("busy") for row in report["speed"]["rows"])
    columns = [column for column in WHISPER_SPEED if busy or column[0] not in ("busy", "code")]
    return Table(columns, whisper_rows)(report)


def random_rows(report):
    rows = [{**row, "windows a second": 1 / row["seconds"]} for row in report["rows"]]
    groups = bench.grouped(rows, "size", "precision", "busy").values()
    options = ("ours", "ctranslate2", "windows a second", "tokens")
    return itertools.chain(*(beside(rows, *options) for rows in groups))


WHISPER_RANDOM = Table(
    [
        ("size", "{size}"),
        ("precision", "{precision}"),
        ("busy", "{busy}"),
        ("s a window", "{seconds}"),
        ("CTranslate2", "{theirs[seconds]}"),
        ("ratio", "{ratio}"),
        ("peak MB", "{peak MB:.0f}"),
        ("CTranslate2", "{theirs[peak MB]:.0f}"),
    ],
    random_rows,
)
LONG = Table(
    [
        ("minutes", "{minutes}"),
        ("times real time", "{times real time}"),
        ("peak MB", "{peak MB}"),
    ],
    lambda report: report["long"],
)
ENCODER = Table(
    [
        ("precision", "{precision}"),
        ("ms a window", "{seconds:ms.0f}"),
        ("share of the matrix rate", "{share of rate:.0%}"),
    ],
    lambda report: report["encoder"]["rows"],
)
TEXTS = Table(
    [
        ("sounds", "{set}"),
        ("beam", "{beam width}"),
        ("equal texts", "{equal texts} of {sounds}"),
        ("word error rate", "{word error rate[0]}"),
        ("faster-whisper", "{word error rate[1]}"),
        ("largest gap of segments, s", "{largest difference of segment times}"),
        (
            "words within 0.1 s",
            lambda row: f"{row['words within 0.1 s']} of {row['words']}" if row["words"] else None,
        ),
    ],
    lambda report: report["texts"],
)
FINE_TUNING = Table(
    [
        ("model, split", "{name}"),
        ("window, s", "{window, s}"),
        ("recordings with an error", "{recordings with an error} of {recordings}"),
        ("word error rate", "{word error rate:.1%}"),
        ("processor ms of a recording", "{processor ms of a recording}"),
    ],
    named,
)
TABLES = {
    "whisper-encoder": ENCODER,
    "whisper-fine-tuning": FINE_TUNING,
    "whisper-long": LONG,
    "whisper-random": WHISPER_RANDOM,
    "whisper-speed": whisper_speed,
    "whisper-speed-amd": whisper_speed,
    "whisper-texts": TEXTS,
}
