"""Tables of `whisper.py` and `whisper_fine_tuning.py`."""

import common
import workers
from whisper_engines import ENGINES


def speed(report):
    """Makes a row for each precision and beam width: both engines, and their ratios.

    faster-whisper counts with its faster library. There is no ratio if the engines wrote different
    numbers of words.
    """
    found = {}
    for row in report["speed"]["rows"]:
        key = row["precision"], row["beam width"], row.get("busy", 0)
        found.setdefault(key, {})[row["engine"]] = row
    rows, several = [], any(busy for _, _, busy in found)
    for key, engines in found.items():
        peers = [row for name, row in engines.items() if name.startswith(ENGINES[1])]
        theirs = max(peers, key=lambda row: row["times real time"])
        for name, ours in engines.items():
            if not name.startswith(ENGINES[0]):
                continue
            same = common.same_work(ours["words"], theirs["words"])
            speeds, peaks = (
                [row[name] for row in (ours, theirs)] for name in ("times real time", "peak MB")
            )
            ratio = [a / b if same else None for a, b in (speeds, peaks)]
            row = [*key[:2], *([key[2], name.partition(", ")[2] or "now"] if several else [])]
            words = [round(row["words"]) for row in (ours, theirs)]
            rows.append([*row, *words, *speeds, ratio[0], *map(round, peaks), ratio[1]])
    heads = ["precision", "beam", *(["busy", "code"] if several else []), "words", "faster-whisper"]
    heads += ["times real time", "faster-whisper", "ratio", "peak MB", "faster-whisper", "ratio"]
    return workers.table(heads, rows)


def texts(report):
    """Makes a row for each set and beam width: equal texts, error rates, differences of times."""
    rows = []
    for row in report["texts"]:
        ours, theirs = row["word error rate"]
        words = f"{row['words within 0.1 s']} of {row['words']}" if row["words"] else None
        times = row["largest difference of segment times"]
        equal = f"{row['equal texts']} of {row['sounds']}"
        rows.append([row["set"], row["beam width"], equal, ours, theirs, times, words])
    heads = ["sounds", "beam", "equal texts", "word error rate", "faster-whisper"]
    return workers.table([*heads, "largest gap of segments, s", "words within 0.1 s"], rows)


def long(report):
    """Makes a row for each length of a recording."""
    rows = [[row["minutes"], row["times real time"], row["peak MB"]] for row in report["long"]]
    return workers.table(["minutes", "times real time", "peak MB"], rows)


def encoder(report):
    """Makes a row for each precision: time of a window, and the share of the matrix rate."""
    rows = [
        [row["precision"], round(1000 * row["seconds"]), f"{row['share of rate']:.0%}"]
        for row in report["encoder"]["rows"]
    ]
    return workers.table(["precision", "ms a window", "share of the matrix rate"], rows)


def fine_tuning(report):
    """Makes a row for each model and split."""
    rows = [
        [
            name,
            row["window, s"],
            f"{row['recordings with an error']} of {row['recordings']}",
            f"{row['word error rate']:.1%}",
            row["processor ms of a recording"],
        ]
        for name, row in report["rows"].items()
    ]
    heads = ["model, split", "window, s", "recordings with an error", "word error rate"]
    return workers.table([*heads, "processor ms of a recording"], rows)
