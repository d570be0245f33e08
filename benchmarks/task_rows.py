"""Tables of the scripts in `examples/`: one for each task, and the index of tasks."""

import json
import re

import bench
from markdown_tables import table

PAGES = bench.ROOT / "docs" / "tasks"
TASKS = {path.stem: path for path in sorted((bench.RESULTS / "tasks").glob("*.json"))}
# One sentence on each script; the index of tasks shows it.
DOES = {
    "anomalies": "Finds anomalies in a series: it predicts each hidden part from both sides.",
    "answer": "Finds the answer to a question in a passage: its first and its last token.",
    "classify": "Classifies texts, such as film reviews, with a class token.",
    "classify_series": "Classifies series of any length, such as gestures, with a class token.",
    "control": "Plays a game: it learns from recorded games which action leads to the return that "
    "you ask for.",
    "denoise": "Removes noise from speech: attention compares each frame of sound with all others.",
    "detect": "Finds objects in pictures and their boxes, with one query for each object.",
    "draw": "Draws pictures from captions: a decoder continues the words with pieces of a picture.",
    "drive": "Drives on a motorway: attention reads the other vehicles as a set.",
    "entities": "Finds names of persons, places and organizations in a sentence.",
    "extract": "Writes the intent and the slots of a request as JSON that follows a schema.",
    "forecast": "Predicts the next days of a series from the days before, all at once.",
    "generate_images": "Draws pictures of a class pixel by pixel, with the decoder alone.",
    "images": "Classifies pictures: it cuts each into patches, which it reads like words.",
    "intents": "Finds the intent of a request and the slots in it: two heads on one encoder.",
    "language_model": "Continues a text character by character, with the decoder alone.",
    "music": "Writes four voices to a melody note by note, with the decoder alone.",
    "parse": "Writes the syntax tree of a sentence as a line of brackets.",
    "similarity": "Maps a sentence and its translation to one vector, and searches by it.",
    "speak": "Speaks digits in a chosen voice: an encoder writes all frames of sound at once.",
    "speech": "Transcribes sound: the decoder attends to frames and writes the words.",
    "summarise": "Writes one line about a paragraph.",
    "tag": "Tags each word of a sentence with its part of speech.",
    "video": "Reads a clip: attention over space and time finds what moves, and predicts the next "
    "frames.",
    "why_self_attention": "Measures cost and reach of self-attention beside other kinds of layers.",
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
    return f"`{report['command']}`\n\n{table(['measured', report['data']], rows)}"


def card_scores(report):
    data = re.sub("^made ", "generated ", report["data"])
    found = [f"{name} = {value:.4g}" for name, value in report["score"].items()]
    return f"{data}: {'; '.join(found)}"


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
        found = [card_scores(report) for report in reports]
        links = f":link: {page}\n:link-type: doc\n:img-top: {page}.png"
        footer = ":::{card-footer}\n" + "\\\n".join(found) + "\n:::"
        cards.append(f"::::{{grid-item-card}} {title}\n{links}\n\n{DOES[page]}\n\n{footer}\n::::")
    return "\n".join([":::::{grid} 1 2 2 3", ":gutter: 3", "", *cards, ":::::"])
