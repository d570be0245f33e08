"""Ratios and the table of `serving.py`."""

import statistics

import common


def ratios(figures, anchors):
    """Returns speed and memory relative to the best anchor; speeds are medians over the rounds.

    Args:
        figures: figures of an engine, from `measure`.
        anchors: list of figures of CTranslate2, one for each backend.
    """
    if not all(common.same_work(figures["tokens"], anchor["tokens"]) for anchor in anchors):
        return {}
    alone, rounds = "alone_seconds", "tokens_per_second_rounds"
    fastest = min(anchors, key=lambda anchor: statistics.median(anchor[alone]))
    most = max(anchors, key=lambda anchor: statistics.median(anchor[rounds]))
    pairs = zip(fastest[alone], figures[alone], strict=True)
    tokens = zip(figures[rounds], most[rounds], strict=True)
    return {
        "latency_times_ctranslate2": statistics.median(a / b for a, b in pairs),
        "throughput_times_ctranslate2": statistics.median(a / b for a, b in tokens),
        "memory_times_ctranslate2": figures["peak_mb"] / min(a["peak_mb"] for a in anchors),
    }


def table(rows):
    """Returns the figures as Markdown."""
    busy = any(row.get("busy") for row in rows)
    lines = [
        f"| model and sentences | search | precision | engine | {'busy | ' * busy}p50 ms | p95 ms "
        "| tokens/s | times CTranslate2: alone | in batches | memory | share of rate | opened MB | "
        "peak MB | first s | BLEU |",
        "|" + " --- |" * (15 + busy),
    ]
    names = [f"{name}_times_ctranslate2" for name in ("latency", "throughput", "memory")]
    for row in rows:
        ratio = " | ".join(f"{row[name]:.2f}" if name in row else "" for name in names)
        bleu = f"{row['bleu']:.2f}" if "bleu" in row else ""
        opened = f"{row['opened_mb']:.0f}" if "opened_mb" in row else ""
        share = f"{row['share_of_rate']:.0%}" if "share_of_rate" in row else ""
        lines.append(
            f"| {row['case']} | {row['search']} | {row['precision']} | {row['engine']} "
            f"{'| ' + str(row.get('busy', 0)) + ' ' if busy else ''}"
            f"| {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | {row['tokens_per_second']:.0f} "
            f"| {ratio} | {share} | {opened} "
            f"| {row['peak_mb']:.0f} | {row['first_translation_s']:.2f} | {bleu} |"
        )
    return "\n".join(lines)


def speed_line(report):
    """Returns a sentence on the speed beside CTranslate2: the ranges of all rows of free cores."""

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
    first, *others = dict.fromkeys(row["precision"] for row in report["rows"])
    speed = f"{times('base', precision=first, **batches)} the speed of CTranslate2"
    base = [f"{times('base', precision=name, **batches)} in {name}" for name in others]
    return (
        f"- **{' and '.join([f'{speed} in {first}', *base])}**, at the paper's base\n  size with "
        f"random weights and forced lengths (beam 4, batches of 32, {threads} CPU threads, "
        f"{report['date']}),\n  and {times('tiny', **batches)} at a tiny size: "
        "[serving][benchmarks/serving]."
    )
