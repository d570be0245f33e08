"""Tables of Firefox's models: imported, in words per second, in 8 bits, and as teachers."""

import workers


def imported(report):
    heads = ["direction", "what", "equal strings", "chrF", "MB", "ms a sentence", "in batches"]
    rows = []
    for name, part in report["directions"].items():
        (on, off), engine = part["sentences"].values(), part["engine"]
        size = sum(engine["bytes"].values()) / 1e6
        times = [
            1e3 * engine[f"seconds a sentence, {kind}"] for kind in ("shortlist", "no shortlist")
        ]
        both = f"{engine['equal with and without']} of {off}"
        rows += [
            [name, "engine, shortlist", both, None, size, times[0], None],
            [name, "engine", None, None, size, times[1], None],
            [name, "Keras, shortlist", f"{part['keras']['shortlist']} of {on}", *[None] * 4],
            [name, "Keras", f"{part['keras']['no shortlist']} of {off}", *[None] * 4],
        ]
        kinds = [
            f"{precision}{also}"
            for precision in ("float32", "int8")
            for also in (", shortlist", "")
        ]
        for kind in kinds:
            own, count = part[kind], on if kind.endswith("shortlist") else off
            times = [1e3 * own[f"seconds a sentence{kind}"] for kind in ("", ", in batches")]
            equal, size = f"{own['equal']} of {count}", own["bytes"] / 1e6
            rows.append([name, f"ONNX, {kind}", equal, own["chrf beside the engine"], size, *times])
    return workers.table(heads, rows)


def words(report):
    rows = [[name, f"{speed:,.0f}"] for name, speed in report["words a second"].items()]
    return workers.table([f"newstest2014, {report['words']:,} words", "words/s/core"], rows)


def quantized(report):
    rows = [
        [
            name,
            kind,
            f"{row['equal']} of {report['sentences']}",
            row["bytes"] / 1e6,
            1e3 * row["seconds"],
        ]
        for name, kinds in report["directions"].items()
        for kind, row in kinds.items()
    ]
    heads = ["direction", "file", "equal strings", "MB", "ms a sentence"]
    told = "{name}: one epoch of {sentences:,} sentences, {updates} updates, {minutes:.0f} minutes."
    facts = [told.format(name=name, **part) for name, part in report["training"].items()]
    return "\n\n".join([workers.table(heads, rows), *facts])


def student(report):
    heads = (
        "model",
        "chrF, Multi30k",
        "Tatoeba",
        "equal",
        "MB",
        "gzip, MB",
        "ms alone",
        "in batches",
    )
    rows = [
        [
            name,
            row["test"],
            row["test_tatoeba"],
            f"{row['test equal']}, {row['test_tatoeba equal']}",
            *(row[key] for key in ("mb", "gzip mb", "ms alone", "ms in batches")),
        ]
        for name, row in report["rows"].items()
    ]
    told = (
        "{parameters:,} parameters; {epochs} epochs of {lines:,} sentences, {minutes:.0f} minutes."
    )
    return f"{workers.table(list(heads), rows)}\n\n{told.format(**report['training'])}"
