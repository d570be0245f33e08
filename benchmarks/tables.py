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

import bench
import task_rows
from archive_columns import provenance
from columns import PUBLISHED, TABLES
from engine_columns import speed_line

from keras_transformer.files import whole_file

DOCS = bench.ROOT / "docs"
PAGES = [bench.ROOT / "README.md"]
PAGES += sorted([*DOCS.glob("benchmarks/*.md"), *DOCS.glob("tasks/*.md")])
# Files of tables with another name.
FILES = {
    "archive-kills": "archive",
    "archive-plan": "archive",
    "archive-speed": "archive",
    "fuzz-litert-refusals": "fuzz_litert",
    "fuzz-refusals": "fuzz_models",
    "quality": "multi30k_tiny_seed1",
    "quality-raw": "multi30k_raw_seed1",
    "whisper-speed": "whisper",
    "whisper-speed-amd": "whisper_amd",
}
# Tables that name date and machine themselves, or need not.
BARE = {name for name in FILES if not name.startswith("whisper-speed")}


def read(name):
    return json.loads((bench.RESULTS / f"{name}.json").read_text("utf-8"))


def page_table(name):
    """Returns a table of `columns.TABLES`, below the provenance of its report."""
    report = read(FILES.get(name, name.replace("-", "_")))
    text = TABLES[name](report)
    return text if name in BARE else f"{provenance(report)}\n\n{text}"


def headline():
    """Returns the README's four figures, each with a link to its page."""
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
        f"{families_line(read('families')['families'])}\n{speed_line(read('peers'))}"
    )


def families_line(rows):
    """Returns the line on published families: of random models, one row for each."""
    made = [row for row in rows if row["weights"] == "random"]
    difference = max(row.get("difference", 0) for row in made)
    equal = min(row.get("same_searches", 1) for row in made)
    return (
        f"- **{len(made)} published families** (random weights) equal `transformers` to "
        f"{difference:.0e}, and {equal:.0%} of searches: [families][benchmarks/families]."
    )


def made(name):
    """Returns the table of a name that stands on a page."""
    if name == "headline":
        return headline()
    if name == "tasks":
        return task_rows.task_cards()
    if name.startswith("task "):
        return task_rows.task_table(task_rows.TASKS[name.removeprefix("task ")])
    return page_table(name)


def filled(text):
    """Returns a page's text with its tables filled in."""
    names = [name for name in re.findall(r"<!-- end (.+) -->", text) if name != "example"]
    for name in names:
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        block = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        parts = begin, made(name), end
        text = block.sub(lambda _, parts=parts: "\n".join(parts), text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    args = parser.parse_args()
    for page in PAGES:
        text = page.read_text("utf-8")
        new = filled(text)
        if args.check and new != text:
            name = page.relative_to(bench.ROOT)
            sys.exit(f"{name} differs from the figures: run python benchmarks/tables.py")
        if new != text:
            with whole_file(page) as aside:
                aside.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
