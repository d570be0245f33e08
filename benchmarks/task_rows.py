"""Tables of the scripts in `examples/`: one for each task, and the index of tasks."""

import json

import common
import workers

PAGES = common.RESULTS.parents[1] / "docs" / "tasks"
TASKS = {path.stem: path for path in sorted((common.RESULTS / "tasks").glob("*.json"))}
# The work of the Transformer in each task, for the index of tasks.
DOES = {
    "anomalies": "A hidden part of a series attends to both sides; a bad guess means an anomaly.",
    "answer": "The passage attends to the question and to itself; each token is scored as the "
    "answer's first and last.",
    "classify": "A class token attends to all words and collects what says the class.",
    "classify_series": "Steps of a series attend to each other; a class token collects the class.",
    "control": "Each step attends to those before it; the return asked for decides the action.",
    "detect": "Object queries attend to the patches of a scene; each finds one object or nothing.",
    "entities": "Each word attends to the sentence, which says whether it is a part of a name.",
    "forecast": "Days of the past attend to each other, and give all days to come at once.",
    "generate_images": "The decoder alone: each pixel attends to the class and to those before it.",
    "images": "Patches of a picture attend to each other and to a class token, as words would.",
    "intents": "A class token gives the intent and each word its slot: two heads on one encoder.",
    "language_model": "The decoder alone: each character attends to those before it.",
    "music": "The decoder alone: each note attends to all notes of the four voices before it.",
    "parse": "The decoder writes the tree as a line of brackets, while it attends to the sentence.",
    "similarity": "One encoder, two languages: a sentence and its translation get one vector.",
    "speech": "Frames of sound attend to each other; the decoder writes the words.",
    "summarise": "The decoder writes one line, while it attends to a paragraph.",
    "tag": "Each word attends to its neighbours, which say whether it is a noun or a verb.",
    "why_self_attention": "Cost and reach of a layer, beside other kinds of layers.",
}


def scores(measures):
    return ", ".join(f"{name} {value:.4g}" for name, value in measures.items())


def time_taken(minutes):
    told = "{training:.1f} of training, {whole:.1f} in all".format(**minutes)
    more = "; {processor:.1f} of processor time" if "processor" in minutes else ""
    return told + more.format(**minutes)


def task_table(path):
    """Makes the table of a task's run from the file of `TaskRun.write_score`."""
    report = json.loads(path.read_text("utf-8"))
    size = report["artefact_bytes"]
    rows = [
        ["score", scores(report["score"])],
        *([name, scores(found)] for name, found in report.get("others", {}).items()),
        *([name, scores(report[name])] for name in ("baseline", "published") if report.get(name)),
        ["minutes", time_taken(report["minutes"])],
        ["parameters", f"{report['parameters']:,}"],
        ["artefact", f"{size / 1e6:.2f} MB" if size else "none"],
        ["seed, epochs", f"{report['seed']}, {report['epochs']}"],
        ["when and where", f"{report['date']}, {report['cores']} cores of {report['processor']}"],
    ]
    return f"`{report['command']}`\n\n{workers.table(['measured', report['data']], rows)}"


def task_cards():
    """Makes a card for each task. "classify-trec" is the task "classify" on one of its sets."""
    pages = {}
    for name, path in TASKS.items():
        pages.setdefault(name.partition("-")[0], []).append(json.loads(path.read_text("utf-8")))
    cards = []
    for page, reports in pages.items():
        title = (PAGES / f"{page}.md").read_text("utf-8").splitlines()[0].removeprefix("# ")
        sets = [report["data"] for report in reports]
        for report in reports:
            if sets.count(report["data"]) > 1:
                report["data"] += f", {report['epochs']} epochs"
        found = [f"{report['data']}: {scores(report['score'])}" for report in reports]
        links = f":link: {page}\n:link-type: doc\n:img-top: {page}.png"
        footer = ":::{card-footer}\n" + "\\\n".join(found) + "\n:::"
        cards.append(f"::::{{grid-item-card}} {title}\n{links}\n\n{DOES[page]}\n\n{footer}\n::::")
    return "\n".join([":::::{grid} 1 2 2 3", ":gutter: 3", "", *cards, ":::::"])
