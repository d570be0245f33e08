"""Fills the tables of README and documentation from the figures under `results/`.

    python benchmarks/tables.py            # rewrites README.md and docs/benchmarks/
    python benchmarks/tables.py --check    # status 1 if a page differs from the figures

The table NAME replaces the text between `<!-- NAME -->` and `<!-- end NAME -->`.
"""

import argparse
import json
import re
import statistics
import sys

import archive_rows
import browser
import common
import firefox_rows
import fuzz_rows
import kinds
import kinds_speed
import layers
import little_rows
import recipe_rows
import service_rows
import serving_rows
import task_rows
import training
import whisper_random
import whisper_rows
import workers

from keras_transformer.files import whole_file

ROOT = common.RESULTS.parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted([*DOCS.glob("benchmarks/*.md"), *DOCS.glob("tasks/*.md")])]
PUBLISHED = {"test.2016": ("41.02", "41.96")}  # text only; with images (Revisit-MMT)


def provenance(report):
    """Returns date, machine and versions of a report in one line."""
    machine = report["machine"]
    processor = machine["processor"] or "CPU"
    versions = ", ".join(
        f"{name} {number}" for name, number in report["versions"].items() if number
    )
    threads = f"{machine['threads']} threads on {processor}"
    rounds = report.get("rounds")
    rounds = f", {rounds} round{'s' * (rounds != 1)}" if rounds else ""
    return f"{report['date']}, {threads}{rounds}; {versions}."


def read(name):
    return json.loads((common.RESULTS / f"{name}.json").read_text("utf-8"))


def is_measured(name):
    return (common.RESULTS / f"{name}.json").exists()


def measured(name, table):
    """Returns the table of a report, below its provenance."""
    if not is_measured(name):
        return "Not measured yet."
    report = read(name)
    return f"{provenance(report)}\n\n{table(report)}"


def measured_by_machine(name, part, table):
    """Does the same as `measured` for a part of a report with figures by processor."""
    found = read(name)[part]
    return "\n\n".join([*map(provenance, found.values()), table(found)])


def search_table(report):
    heads = ["batches of", "at a time", "TensorFlow s", "CTranslate2 s", "ratio"]
    rows = [
        [row["batch_size"], report["lanes"], *row["seconds"].values(), row["ours_over_ctranslate2"]]
        for row in report["timing"]
    ]
    agreed = f"{report['identical']:.1%} of {report['sentences']} translations are identical."
    return f"{workers.table(heads, rows)}\n\n{agreed}"


def export_table(report):
    heads = ["artefact", "MB", "sentences that differ", "largest difference of a score"]
    heads += ["BLEU, mean", "lowest", "highest"]
    rows = [
        [
            row["artefact"],
            f"{row['bytes'] / 1e6:.2f}",
            row["differing"],
            f"{row['largest_difference']:.1e}",
            *(f"{of(row['bleu']):.2f}" for of in (statistics.mean, min, max)),
        ]
        for row in report["rows"]
    ]
    keras = ["Keras", "", "", "", f"{report['keras_bleu']:.2f}", "", ""]
    return workers.table(heads, [keras, *rows])


def quality_table(name):
    report = read(name)
    chosen = report["chosen_on_validation"]
    heads = ["set", "BLEU"]
    if PUBLISHED.keys() & report["scores"].keys():
        heads += ["published, text only", "published, with images"]
    scores = {"valid": chosen} | report["scores"]
    rows = [
        [test, f"{score['bleu']:.2f}", *PUBLISHED.get(test, ("", ""))][: len(heads)]
        for test, score in scores.items()
    ]
    epochs = f"{chosen['epochs'][0]}-{chosen['epochs'][-1]}"
    facts = [
        f"{report['epochs']} epochs in {report['minutes']:.0f} minutes on the {report['device']}",
        f"average of epochs {epochs} and length penalty {chosen['length_penalty']}, both chosen on "
        "valid",
        f"{report['parameters']:,} parameters",
        f"seed {report['seed']}",
    ]
    if report["tokens_per_second"]:
        facts.insert(1, f"{report['tokens_per_second']:,.0f} source + target tokens/s")
    return f"{workers.table(heads, rows)}\n\n{'; '.join(facts)}."


def training_table(report):
    return workers.table(training.HEADS, map(training.cells, report["rows"]))


def headline():
    """Returns the README's three figures, each with a link to its page."""
    bleu = [read("multi30k_tiny_seed1")["scores"]["test.2016"]["bleu"]]
    for name, run in read("recipes")["runs"].items():
        if name.startswith("plain-"):
            bleu.append(run["bleu"]["float32"]["test.2016"])
    published, _ = PUBLISHED["test.2016"]
    report = read("export")
    onnx = next(row for row in report["rows"] if row["artefact"] == "ONNX, float32")
    return (
        f"- **{statistics.mean(bleu):.2f} BLEU** on Multi30k English-German (test.2016; mean of "
        f"{len(bleu)} runs, {min(bleu):.2f} to {max(bleu):.2f}), where\n  {published} was "
        "published for the same text-only model: [quality][benchmarks/quality].\n"
        f"- **{onnx['differing']} of {report['sentences']:,} translations differ** between Keras "
        "and ONNX Runtime in float32, beam 5:\n  [export][benchmarks/export].\n"
        f"{serving_rows.speed_line(read('peers' if is_measured('peers') else 'serving_random'))}"
    )


def terms_table(report):
    heads = ["terms", "search", "number", "written", "whole words", "both words", "BLEU", "chrF"]
    names = {"free": "no terms", "terms": "`Terms`", "aligned": "in place of aligned words"}
    shares, numbers = ("present", "whole words", "both words"), ("bleu", "chrF", "ms", "ms alone")
    rows = []
    for title, part in report["sets"].items():
        for name, label in names.items():
            row = part[name]
            written = [f"{row[key]:.1%}" if key in row else None for key in shares]
            figures = [row.get(key) for key in numbers]
            rows.append([title, label, row["terms"], *written, *figures])
    equal = [report[f"{name}, none passed"]["equal"] for name in ("terms", "aligned")]
    same = f"Without terms, {equal[0]} and {equal[1]} of {report['sentences']} are equal."
    return f"{workers.table([*heads, 'ms', 'ms alone'], rows)}\n\n{same}"


TABLES = {
    "tasks": task_rows.task_cards,
    **{
        f"task {name}": lambda path=path: task_rows.task_table(path)
        for name, path in task_rows.TASKS.items()
    },
    "headline": headline,
    "archive-kills": lambda: measured_by_machine("archive", "kills", archive_rows.kills_table),
    "archive-plan": lambda: archive_rows.plan_table(read("archive")),
    "archive-speed": lambda: measured_by_machine("archive", "speed", archive_rows.speed_table),
    "bergamot": lambda: measured("bergamot", firefox_rows.imported),
    "bergamot-words": lambda: measured("bergamot_words", firefox_rows.words),
    "export": lambda: measured("export", export_table),
    "fuzz-faults": lambda: measured("fuzz_faults", fuzz_rows.outcomes),
    "fuzz-load": lambda: measured("fuzz_load", fuzz_rows.load),
    "fuzz-models": lambda: measured("fuzz_models", fuzz_rows.outcomes),
    "fuzz-refusals": lambda: fuzz_rows.refusals(read("fuzz_models")),
    "fuzz-protocols": lambda: measured("fuzz_protocols", fuzz_rows.outcomes),
    "fuzz-readers": lambda: measured("fuzz_readers", fuzz_rows.outcomes),
    "kinds": lambda: measured("kinds", lambda report: kinds.table(report["rows"])),
    "kinds-speed": lambda: measured(
        "kinds_speed", lambda report: kinds_speed.table(report["rows"])
    ),
    "layers": lambda: measured("layers", lambda report: layers.table(report["rows"])),
    "little": lambda: measured("little", little_rows.table),
    "quality": lambda: quality_table("multi30k_tiny_seed1"),
    "quality-raw": lambda: quality_table("multi30k_raw_seed1"),
    "search": lambda: measured("search", search_table),
    "peers": lambda: measured("peers", lambda report: serving_rows.table(report["rows"])),
    "service": lambda: measured("service", service_rows.tables),
    "serving": lambda: measured("serving", lambda report: serving_rows.table(report["rows"])),
    "serving-random": lambda: measured(
        "serving_random", lambda report: serving_rows.table(report["rows"])
    ),
    "recipes": lambda: measured("recipes", recipe_rows.tables),
    "quantization": lambda: measured("quantization", firefox_rows.quantized),
    "quantization-vnni": lambda: measured("quantization_vnni", firefox_rows.quantized),
    "student": lambda: measured("student", firefox_rows.student),
    "terms": lambda: measured("terms", terms_table),
    "training": lambda: measured("training", training_table),
    "whisper-fine-tuning": lambda: measured("whisper_fine_tuning", whisper_rows.fine_tuning),
    "whisper-encoder": lambda: measured("whisper_encoder", whisper_rows.encoder),
    "whisper-long": lambda: measured("whisper_long", whisper_rows.long),
    "whisper-random": lambda: measured("whisper_random", whisper_random.table),
    "whisper-speed": lambda: measured("whisper", whisper_rows.speed),
    "whisper-texts": lambda: measured("whisper_texts", whisper_rows.texts),
    "web": lambda: measured("web", browser.table),
}


def filled(text):
    """Returns a page's text with its tables filled in."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        block = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if block.search(text):
            table = begin, make(), end
            text = block.sub(lambda _, table=table: "\n".join(table), text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    args = parser.parse_args()
    for page in PAGES:
        text = page.read_text("utf-8")
        new = filled(text)
        if args.check and new != text:
            name = page.relative_to(ROOT)
            sys.exit(f"{name} differs from the figures: run python benchmarks/tables.py")
        if new != text:
            with whole_file(page) as aside:
                aside.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
