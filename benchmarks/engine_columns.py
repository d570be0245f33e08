"""Tables of speed and memory beside other engines."""

import statistics

import bench
from markdown_tables import Table


def search_rows(report):
    return [{**row, "lanes": report["lanes"]} for row in report["timing"]]


SEARCH = Table(
    [
        ("batches of", "{batch_size}"),
        ("at a time", "{lanes}"),
        ("TensorFlow s", "{seconds[ours]}"),
        ("CTranslate2 s", "{seconds[ctranslate2]}"),
        ("ratio", "{ours_over_ctranslate2}"),
    ],
    search_rows,
    "{identical:.1%} of {sentences} translations are identical.",
)


def layer_rows(report):
    """Yields two rows for each block: the forward pass, and both passes."""
    for row in report["rows"]:
        for name, label in (("forward", "forward"), ("backward", "forward + backward")):
            figures = {
                key.removeprefix(f"{name}_"): value
                for key, value in row.items()
                if key.startswith(name)
            }
            yield row | figures | {"pass": label}


LAYERS = Table(
    [
        ("block", "{kind}"),
        ("d_model", "{d_model}"),
        ("batch x length", "{batch} x {length}"),
        ("pass", "{pass}"),
        ("ours ms", "{ms:.1f}"),
        ("KerasHub ms", "{keras_hub_ms:.1f}"),
        ("products ms", "{products_ms:.1f}"),
        ("times KerasHub", "{speedup:.2f}"),
        ("share of matrix rate", "{share_of_rate:.0%}"),
    ],
    layer_rows,
)
TRAINING = Table(
    [
        ("size", "{size}"),
        ("batch x length", "{batch} x {length}"),
        ("engine", "{engine}"),
        ("tokens/s", "{tokens_per_second}"),
        ("share of rate", "{share_of_rate:.0%}"),
        ("MB", "{peak_memory_mb}"),
        ("rival", "{rival}"),
        ("tokens/s", "{rival_tokens_per_second}"),
        ("share of rate", "{rival_share_of_rate:.0%}"),
        ("MB", "{rival_peak_memory_mb}"),
        ("ours / rival", "{speedup}"),
    ]
)
RECOMPUTATION = Table(
    [
        ("size", "{size}"),
        ("batch x length", "{batch} x {length}"),
        ("MB, plain", "{rival_peak_memory_mb}"),
        ("MB, recomputed", "{peak_memory_mb}"),
        ("ratio", "{memory_ratio:.0%}"),
        ("s a step, plain", "{rival_step_seconds:.1f}"),
        ("s a step, recomputed", "{step_seconds:.1f}"),
        ("plain / recomputed", "{speedup}"),
    ]
)


# Translation.

SERVING = [
    ("model and sentences", "{case}"),
    ("search", "{search}"),
    ("precision", "{precision}"),
    ("engine", "{engine}"),
    ("busy", lambda row: row.get("busy", 0)),
    ("p50 ms", "{p50_ms:.1f}"),
    ("p95 ms", "{p95_ms:.1f}"),
    ("tokens/s", "{tokens_per_second:.0f}"),
    ("times CTranslate2: alone", "{latency_times_ctranslate2:.2f}"),
    ("in batches", "{throughput_times_ctranslate2:.2f}"),
    ("memory", "{memory_times_ctranslate2:.2f}"),
    ("share of rate", "{share_of_rate:.0%}"),
    ("opened MB", "{opened_mb:.0f}"),
    ("peak MB", "{peak_mb:.0f}"),
    ("first s", "{first_translation_s:.2f}"),
    ("BLEU", "{bleu:.2f}"),
]


def serving(report):
    """Makes a row per engine and case; a column for busy cores only if there were any."""
    busy = any(row.get("busy") for row in report["rows"])
    columns = [column for column in SERVING if busy or column[0] != "busy"]
    return Table(columns, missing="")(report)


THREADS = Table(
    [
        ("model", "{size}"),
        ("precision", "{precision}"),
        ("MB", "{megabytes:.0f}"),
        ("busy", "{busy}"),
        ("threads", "{threads}"),
        ("alone ms", "{alone_ms:.1f}"),
        ("32 lines ms", "{batch_ms:.1f}"),
        ("speed: alone", "{alone_speed:.2f}"),
        ("32 lines", "{batch_speed:.2f}"),
    ]
)

FLOOR = Table(
    [
        ("search", "{search}"),
        ("nodes", "{nodes}"),
        ("products us", "{products:.0f}"),
        ("attention", "{attention:.0f}"),
        ("small nodes", "{small_nodes:.0f}"),
        ("loop", "{loop:.0f}"),
        ("floor", "{floor:.0f}"),
        ("ours", "{ours:.0f}"),
        ("CTranslate2", "{ctranslate2:.0f}"),
        ("times CTranslate2", "{times_ctranslate2:.2f}"),
    ]
)


def ratios(figures, anchors):
    """Returns speed and memory relative to the best anchor; speeds are medians over the rounds.

    Args:
        figures: figures of an engine, from `serving.measure`.
        anchors: list of figures of CTranslate2, one for each library.

    Returns:
        Dict; empty if an anchor did other work.
    """
    if not all(bench.same_work(figures["tokens"], anchor["tokens"]) for anchor in anchors):
        return {}
    alone, rounds = "alone_seconds", "tokens_per_second_rounds"
    fastest = min(anchors, key=lambda anchor: statistics.median(anchor[alone]))
    most = max(anchors, key=lambda anchor: statistics.median(anchor[rounds]))
    return {
        "latency_times_ctranslate2": bench.ratio(fastest[alone], figures[alone]),
        "throughput_times_ctranslate2": bench.ratio(figures[rounds], most[rounds]),
        "memory_times_ctranslate2": figures["peak_mb"] / min(a["peak_mb"] for a in anchors),
    }


def speed_line(report):
    """Returns a sentence on the speed beside CTranslate2: the ranges of all rows of free cores.

    The tiny size counts in float32 only: in int8 CTranslate2's threads wait for each other there.
    """

    def times(size, **wanted):
        values = [
            row["throughput_times_ctranslate2"]
            for row in report["rows"]
            if wanted.items() <= row.items()
            and row["case"].startswith(size)
            and row["engine"] == "ours"
            and not row.get("busy")
        ]
        ends = dict.fromkeys(f"{of(values):.1f}" for of in (min, max))
        return f"{' to '.join(ends)} times"

    batches, threads = {"search": "beam 4"}, report["machine"]["threads"]
    tiny = times("tiny", precision="float32", **batches)
    processor = report["machine"]["processor"].replace("(R)", "").removesuffix(" Processor")
    first, *others = dict.fromkeys(row["precision"] for row in report["rows"])
    speed = f"{times('base', precision=first, **batches)} the speed of CTranslate2"
    base = [f"{times('base', precision=name, **batches)} in {name}" for name in others]
    return (
        f"- **{' and '.join([f'{speed} in {first}', *base])}**, at the paper's base\n  size with "
        f"random weights and forced lengths (beam 4, batches of 32, {threads} threads of an "
        f"{processor}, {report['date']}),\n  and {tiny} at a tiny size in float32: "
        "[serving][benchmarks/serving]."
    )


# In a browser.


def web_rows(report):
    """Yields a row for each search and precision; downloads include the page."""
    for row in report["rows"]:
        search, precision = row["name"].replace("beam5", "beam 5").split("/")
        kinds = ("bytes", "gzip", "brotli")
        found = {"search": search, "precision": precision, "model": row["bytes"]}
        found |= {kind: row[kind] + report["page"][kind] for kind in kinds}
        found |= {kind: min(row[kind]) for kind in ("first", "first_cpu") if kind in row}
        yield found | {kind: statistics.median(row[kind]) for kind in ("one", "batch")}


WEB = Table(
    [
        ("search", "{search}"),
        ("precision", "{precision}"),
        ("model, MB", "{model:MB}"),
        ("all, MB", "{bytes:MB}"),
        ("gzip, MB", "{gzip:MB}"),
        ("brotli, MB", "{brotli:MB}"),
        ("first, s", "{first}"),
        ("first, CPU s", "{first_cpu}"),
        ("a sentence, CPU ms", "{one:ms}"),
        ("32 sentences, CPU ms", "{batch:ms}"),
    ],
    web_rows,
)


def litert_rows(report):
    for row in report["rows"]:
        case = f"{row['search']}, {row['precision']}, {row['engine']}"
        times = report.get("times", {}).get(case, {})
        yield {**row, **times, "bytes": report["bytes"][case]}


LITERT = Table(
    [
        ("search", "{search}"),
        ("precision", "{precision}"),
        ("engine", "{engine}"),
        ("equal to ONNX Runtime", "{equal}"),
        ("equal to float32", "{equal to float32}"),
        ("BLEU against float32", "{bleu:.2f}"),
        ("ms alone", "{alone ms}"),
        ("ms in batches", "{together ms}"),
        ("peak MiB", "{peak_mb:.0f}"),
        ("file MB", "{bytes:MB.1f}"),
    ],
    litert_rows,
    "{sentences} sentences. Times are of one sentence; a call holds one sentence or a batch.",
)
LITERT_INTEGER = Table(
    [
        ("files", "{precision}"),
        ("bias of masked places", "{masked:g}"),
        ("BLEU", "{bleu:.2f}"),
        ("equal to float32", "{equal}"),
        ("float tensors", "{float tensors}"),
        ("file MB", "{bytes:MB.1f}"),
    ],
    lambda report: report["rows"],
    "{sentences} sentences, greedy search.",
)
TABLES = {
    "litert": LITERT,
    "litert-integer": LITERT_INTEGER,
    "layers": LAYERS,
    "peers": serving,
    "peers-amd": serving,
    "threads": THREADS,
    "floor": FLOOR,
    "search": SEARCH,
    "serving": serving,
    "serving-random": serving,
    "recomputation": RECOMPUTATION,
    "training": TRAINING,
    "web": WEB,
}
