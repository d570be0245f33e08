"""What the tests of `export/web` share: sentences, and what Python makes of them."""

import json
import os
import random

import numpy as np
from helpers import node, texts

from keras_transformer.export.runtime import Translator
from keras_transformer.export.runtime.lines import text_of

WORDS = " ".join(texts.LINES).split()
RARE = ["😀", "é", "ﬁ", "日本", "e\u0301", "<s>", "x\u0001", "👨‍👩‍👧", "\u00a0", "ß?"]


def sentences(count):
    """As many short lines, of words, some rare, with runs of spaces."""
    draw = random.Random(7)
    lines = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(2, 9))
        if draw.random() < 0.2:
            words.insert(draw.randrange(len(words)), draw.choice(RARE))
        lines.append(draw.choice([" ", " ", "  "]).join(words))
    return lines


def site(folder, package, artefact, attention=None):
    """A folder to be served: the installed package, and an artefact as its only model.

    `attention` is the folder of another, with the attention of the first.
    """
    for name in ("index.html", "page", "service_worker.js", "src", "vendor"):
        os.symlink(package / name, folder / name)
    os.symlink(artefact, folder / "model")
    model = {"name": "Tiny", "url": "model", "source": "en", "target": "de"}
    if attention:
        os.symlink(attention, folder / "attention")
        model["attention"] = "attention"
    (folder / "models.json").write_text(json.dumps({"models": [model]}))
    return folder


def assert_as_in_python(results, artefact, lines):
    """Holds what the package gave for lines to `Translator`: ids, texts, scores, errors."""
    translator = Translator(artefact, threads=1)
    assert len(results) == len(lines)
    for line, result, expected in zip(lines, results, translator.n_best(lines), strict=True):
        assert result["texts"] == list(expected.texts), line
        assert result["error"] == expected.error, line
        np.testing.assert_allclose(result["scores"], expected.scores, atol=1e-4)
        if result["sourceIds"]:
            row = node.padded(translator, [text_of(line)])
            (ids,), _ = translator.session.run(["token_ids", "scores"], {"source_ids": row})
            assert result["sourceIds"] == row[0].tolist(), line
            assert result["ids"] == [beam[beam != 0].tolist() for beam in ids][: len(result["ids"])]


def assert_same(results, others):
    """Holds texts and ids to each other; in other batches scores are rounded otherwise."""
    assert [(one["texts"], one["ids"]) for one in results] == [
        (one["texts"], one["ids"]) for one in others
    ]
