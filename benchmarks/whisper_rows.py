"""Tables of `whisper.py` and `whisper_fine_tuning.py`."""

import workers
from whisper_engines import ENGINES


def speed(report):
    """Makes a row for each precision and beam width: both engines, and their ratios."""
    found = {
        (row["precision"], row["beam width"], row["engine"]): row for row in report["speed"]["rows"]
    }
    rows = []
    for precision, width in dict.fromkeys(key[:2] for key in found):
        ours, theirs = (found[precision, width, name] for name in ENGINES)
        rows.append(
            [
                precision,
                width,
                *(row["times real time"] for row in (ours, theirs)),
                ours["times real time"] / theirs["times real time"],
                *(round(row["peak MB"]) for row in (ours, theirs)),
                ours["peak MB"] / theirs["peak MB"],
            ]
        )
    heads = ["precision", "beam", "times real time", "faster-whisper", "ratio"]
    return workers.table([*heads, "peak MB", "faster-whisper", "ratio"], rows)


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
