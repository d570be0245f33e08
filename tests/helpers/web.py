"""Sentences, and comparisons with Python, for the tests of `export/web`."""

import json
import os
import random

import numpy as np
from helpers import exports, forced, node, texts

from keras_transformer.export.runtime import Translator
from keras_transformer.padding import pad_rows
from keras_transformer.text.lines import text_of

WORDS = " ".join(texts.LINES).split()
RARE = ["😀", "é", "ﬁ", "日本", "e\u0301", "<s>", "x\u0001", "👨‍👩‍👧", "\u00a0", "ß?"]


def sentences(count):
    """Returns `count` short lines with rare words and runs of spaces."""
    draw = random.Random(7)
    lines = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(2, 9))
        if draw.random() < 0.2:
            words.insert(draw.randrange(len(words)), draw.choice(RARE))
        lines.append(draw.choice([" ", " ", "  "]).join(words))
    return lines


def site(folder, package, artefact, attention=None):
    """Fills a folder to serve: the installed package, and an artefact as its only model.

    `attention` is the folder of another artefact, with the first one's attention.
    """
    for name in ("index.html", "page", "service_worker.js", "src", "transcribe.html", "vendor"):
        os.symlink(package / name, folder / name)
    os.symlink(artefact, folder / "model")
    model = {"name": "Tiny", "url": "model", "source": "en", "target": "de"}
    if attention:
        os.symlink(attention, folder / "attention")
        model["attention"] = "attention"
    (folder / "models.json").write_text(json.dumps({"models": [model]}))
    return folder


def assert_as_in_python(results, artefact, lines, model=None):
    """Compares the package's results with `Translator`: ids, texts, scores, errors.

    Of two hypotheses with nearly equal scores, rounding decides which one is pruned. With the
    artefact's `model`, 1 of 100 lines may have other hypotheses after the best, if the model's
    forward pass confirms their scores.
    """
    translator = Translator(artefact, threads=1)
    assert len(results) == len(lines)
    others = 0
    for line, result, expected in zip(lines, results, translator.n_best(lines), strict=True):
        if model and result["texts"] != list(expected.texts):
            others += 1
            assert result["texts"][0] == expected.texts[0] and others <= len(lines) / 100, line
            assert_scores_are_those_of(model, translator, line, result)
            continue
        assert result["texts"] == list(expected.texts), line
        assert result["error"] == expected.error, line
        np.testing.assert_allclose(result["scores"], expected.scores, atol=1e-4)
        if result["sourceIds"]:
            row = node.padded(translator, [text_of(line)])
            (ids,), _ = translator.session.run(["token_ids", "scores"], {"source_ids": row})
            assert result["sourceIds"] == row[0].tolist(), line
            assert result["ids"] == [beam[beam != 0].tolist() for beam in ids][: len(result["ids"])]


def assert_scores_are_those_of(model, translator, line, result):
    """Compares the scores of a line's result with the model's forward pass."""
    ids, scores = pad_rows(result["ids"])[None], np.array(result["scores"], "float32")
    token_scores, _ = forced.forced(model, node.padded(translator, [text_of(line)]), ids)
    sums = token_scores.sum(axis=2) / exports.BEAM.length_divisor((ids != 0).sum(axis=2))
    np.testing.assert_allclose(sums[0], scores, atol=1e-4, err_msg=line)


def assert_same(results, others):
    """Compares texts and ids. Scores are rounded differently in other batches."""
    assert [(one["texts"], one["ids"]) for one in results] == [
        (one["texts"], one["ids"]) for one in others
    ]
