"""Random models and searches through an exporter, compared with Keras on new inputs.

    python tests/fuzz/models.py --count 2000 --searches 300 --seed 5 --out fuzz.jsonl

Each case runs in a forked process, so that a crash is counted and does not end the run. A second
call with the same file continues where the first one ended. `--seed 5 --only 17` runs one case
again and prints the lines of Python that build its model. `--only s17` runs a search.
`--exporter litert` takes `export_litert` in place of `export_onnx`.
"""

import fuzzing  # isort: split

import argparse
import collections
import json
import pathlib
import re
import sys
import tempfile
import time
import traceback

import numpy as np
import onnxruntime  # noqa: F401, before the fork
import recipes
import tf2onnx  # noqa: F401, before the fork
from judging import ModelJudge, SearchJudge

from keras_transformer.export import ExportError, export_litert, export_onnx, proof
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.proof import script
from keras_transformer.export.runtime.sessions import open_session

EXPORTERS = {"onnx": export_onnx, "litert": export_litert}
# Outcomes with exit status 1, and the outcome where only an empty batch or result fails.
WRONG, NOTHING = ("wrong", "run failure", "crash", "timeout"), "fails on nothing"
EXCUSED, MOST_EXCUSED = "ill-conditioned", 0.03  # see `judging`; a larger share fails
OUTCOMES = ("right", *WRONG, NOTHING, EXCUSED, "refused", "not drawn")


def judge(kind, seed, index, exporter, tell):
    """Returns the outcome of a case and a line about it. `tell` notes the stage before a crash."""
    random = np.random.default_rng([seed, index, kind == "search"])
    tell("not drawn", "drawing")
    try:
        case = (recipes.Search if kind == "search" else recipes.Model)(random)
    except Exception as error:
        return "not drawn", f"{type(error).__name__}: {error}"
    tell("lines", "\n".join(case.lines))
    if kind == "search":
        judging = SearchJudge(case.model, random, case.search, case.options)
    else:
        judging = ModelJudge(case.judged, random, case.in_precision)
    *inputs, empty = judging.feeds()
    keras_found = []
    for feed in inputs:
        try:
            keras_found.append((feed, judging.answer(feed)))
        except Exception:  # such as a kernel that is longer than the input
            continue
    if len(keras_found) < 2:
        return "not drawn", "Keras itself runs on fewer than two inputs"
    tell("crash", "exporting")
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(case, pathlib.Path(folder) / "out", keras_found, exporter)
        except Exception as error:
            return "refused", f"{type(error).__name__}: {error}"
        artefact = read_artefact(pathlib.Path(folder) / "out")
        session = open_session(artefact, threads=1)
    names = [value["name"] for value in artefact.manifest["outputs"]]
    failed = excused = None
    for feed, expected in keras_found:
        told = f"inputs of { {name: array.shape for name, array in feed.items()} }"
        tell("crash", told)
        try:
            found = dict(zip(names, session.run(names, feed), strict=True))
        except Exception as error:
            failed = f"{told}: {error}"
            if all(array.size for array in expected.values()):
                return "run failure", failed
            continue
        outcome, off = judging.verdict(feed, expected, found)
        if outcome == "wrong":
            return outcome, f"{told}: {off}"
        excused = excused or (off and f"{told}: {off}")
    if failed:
        return NOTHING, failed
    outcome, failed = empty_batch(empty, session, judging.answer, tell)
    return (EXCUSED, excused) if outcome == "right" and excused else (outcome, failed)


def empty_batch(feed, session, answer, tell):
    """Returns the outcome for a batch without rows, on which TensorFlow itself may crash."""
    tell("crash", "an empty batch")
    try:
        session.run(None, feed)
    except Exception as error:
        failed = f"an empty batch: {error}"
    else:
        return "right", ""
    tell("right", "TensorFlow crashes on an empty batch")
    try:
        answer(feed)
    except Exception:
        return "right", ""
    return NOTHING, failed


def export(case, folder, keras_found, exporter):
    """Exports a case, with samples if the exporter asks for them."""
    write = EXPORTERS[exporter]
    options = {"verbose": False, **getattr(case, "options", {})}
    if exporter == "litert":
        options.pop("layout", None)
    search = getattr(case, "search", None)
    try:
        write(case.model, folder, search=search, **options)
    except ExportError as error:
        if "samples=" not in str(error) or search is not None:
            raise
        samples = [feed for feed, _ in keras_found if all(map(np.size, feed.values()))]
        write(case.model, folder, samples=samples[:3], **options)


def prove_here(command, **_):
    """Replaces the process of `proof`, because this process is a fork that may crash."""
    job = json.loads(pathlib.Path(command[-1]).read_text("utf-8"))
    loaded = dict(sys.modules)
    report = {"check": "imports", "error": None, "seconds": 0.0}
    try:
        script.run(job, report)
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    sys.modules.update(loaded)  # the script forbids TensorFlow
    return argparse.Namespace(returncode=0, stdout=json.dumps(report), stderr="")


def work(kind, seed, index, exporter, send):
    """Runs a case in a forked process."""
    proof.subprocess.run = prove_here
    try:
        send(("end", *judge(kind, seed, index, exporter, lambda *stage: send(("at", *stage)))))
    except Exception:
        send(("end", "crash", traceback.format_exc()[-1500:]))  # in the fuzzer itself


def run(kind, seed, index, exporter, limit=300, quiet=True):
    """Returns the record of a case."""
    start, last, lines = time.time(), ("at", "not drawn", "forking"), ""
    process, receiver = fuzzing.forked(work, kind, seed, index, exporter, quiet=quiet)
    try:
        while last[0] == "at" and receiver.poll(max(0, start + limit - time.time())):
            last = receiver.recv()
            if last[1] == "lines":
                lines = last[2]
                print(lines if not quiet else "", end="")
        outcome, told = last[1:] if last[0] == "end" else ("timeout", last[2])
    except EOFError:
        process.join()
        outcome, told = last[1], f"{last[2]}: exit status {process.exitcode}"
    process.kill()
    process.join()
    record = {"kind": kind, "seed": seed, "index": index, "outcome": outcome, "told": told[:2000]}
    record |= {"lines": lines} if outcome != "right" else {}
    return record | {"seconds": round(time.time() - start, 1)}


def share(records, outcome):
    """Returns the share of an outcome among the drawn cases."""
    outcomes = [record["outcome"] for record in records if record["outcome"] != "not drawn"]
    return outcomes.count(outcome) / max(1, len(outcomes))


def reasons(records):
    """Counts refused cases by the beginning of the error."""
    told = [record["told"] for record in records if record["outcome"] == "refused"]
    first = [text.removeprefix("ExportError: ").split("\n")[0] for text in told]
    return collections.Counter(
        re.sub(r"\s*[\[({].*", "", re.sub(r"'[^']*'", "...", text))[:60] for text in first
    )


def write_report(records, path):
    """Writes the tables as JSON, for the documentation, if there is a path."""
    rows = {
        name: collections.Counter(r["outcome"] for r in records if r["kind"] == kind)
        for kind, name in (("model", "models"), ("search", "searches"))
    }
    seeds = sorted({record["seed"] for record in records})
    fuzzing.write(path, seeds=seeds, rows=rows, refused=dict(reasons(records).most_common()))


def table(records):
    """Returns Markdown tables: outcomes by kind, and refusals by reason."""
    kinds = sorted({record["kind"] for record in records})
    count = collections.Counter((record["kind"], record["outcome"]) for record in records)
    lines = [f"| outcome | {' | '.join(kinds)} |", "| --- " * (len(kinds) + 1) + "|"]
    lines += [f"| {o} | {' | '.join(str(count[k, o]) for k in kinds)} |" for o in OUTCOMES]
    lines += [
        "",
        f"{share(records, EXCUSED):.1%} {EXCUSED}, {share(records, 'refused'):.1%} refused",
    ]
    lines += ["", "| refused because | cases |", "| --- | --- |"]
    lines += [f"| {reason} | {cases} |" for reason, cases in reasons(records).most_common()]
    for record in records:
        if record["outcome"] in (*WRONG, NOTHING, EXCUSED):
            lines += ["", *(f"{name}: {value}" for name, value in record.items())]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=0, help="random models")
    parser.add_argument("--searches", type=int, default=0, help="random searches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="index of one case; s before it means a search")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines, one per case; continued")
    parser.add_argument("--report", type=pathlib.Path, help="JSON file for tables of all of --out")
    parser.add_argument("--exporter", choices=EXPORTERS, default="onnx")
    parser.add_argument("--limit", type=float, default=300, help="seconds per case")
    given = parser.parse_args()
    if given.only:
        kind = "search" if given.only.startswith("s") else "model"
        index = int(given.only.lstrip("s"))
        records = [run(kind, given.seed, index, given.exporter, given.limit, quiet=False)]
        return print(table(records))
    cases = [("model", i) for i in range(given.count)]
    cases += [("search", i) for i in range(given.searches)]
    records = []
    if given.out and given.out.exists():
        records = [json.loads(line) for line in given.out.read_text("utf-8").splitlines()]
    done = {(record["kind"], record["seed"], record["index"]) for record in records}
    for kind, index in cases:
        if (kind, given.seed, index) in done:
            continue
        records.append(run(kind, given.seed, index, given.exporter, given.limit))
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
    print(table(records))
    write_report(records, given.report)
    wrong = any(record["outcome"] in WRONG for record in records)
    sys.exit(wrong or share(records, EXCUSED) > MOST_EXCUSED)


if __name__ == "__main__":
    main()
