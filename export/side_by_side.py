"""An exported translator beside the Keras model it was made from: the same tokens, and how fast.

The export has proven itself on a few sentences; this translates whole test sets.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.export.staging import ExportError
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID

BATCH_SIZE = 50


class Comparison(NamedTuple):
    """What both made of the same sentences.

    Attributes:
        sentences: int, how many.
        same_tokens: int, how many have the same best hypothesis, token for token.
        same_texts: int, how many are the same string from the text model; `None` without one.
        keras_seconds, onnx_seconds: float, for all batches, by warm engines.
        text_seconds: float, the same for the text model; `None` without one.
    """

    sentences: int
    same_tokens: int
    same_texts: int | None
    keras_seconds: float
    onnx_seconds: float
    text_seconds: float | None

    def __str__(self):
        ratio = self.keras_seconds / self.onnx_seconds
        told = (
            f"{self.sentences} sentences: Keras {self.keras_seconds:.2f} s, ONNX Runtime without "
            f"TensorFlow {self.onnx_seconds:.2f} s ({ratio:.1f} times as fast); the same tokens "
            f"in {self.same_tokens} of {self.sentences}"
        )
        if self.same_texts is None:
            return told
        return (
            f"{told}\n{self.sentences} strings through the file with the tokenizer: "
            f"{self.text_seconds:.2f} s; the same text in {self.same_texts} of {self.sentences}"
        )


def compare_with_keras(model, tokenizer, search, folder, lines):
    """Translates `lines` with Keras, and with the artefact in a process without any framework.

    Both get the same batches of sentences of similar length. Float32 artefacts give Keras' tokens,
    but for sentences with two hypotheses of nearly equal scores; other precisions round.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer`.
        search: the search that was exported.
        folder: str or path, what `export_onnx` wrote for them. With `text=True` the text model is
            run, too.
        lines: list of strings.

    Returns:
        `Comparison`; `str()` tells it in words.

    Raises:
        ValueError: there is no line.
        ExportError: the other process failed.

    Example:

    >>> print(compare_with_keras(model, tokenizer, search, "out/onnx", lines))  # doctest: +SKIP
    """
    if not lines:
        raise ValueError("There must be at least one line to translate.")
    sources = [[*ids, END_ID] for ids in tokenizer.encode(lines)]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batches = [
        pad_rows([sources[i] for i in order[start : start + BATCH_SIZE]])
        for start in range(0, len(order), BATCH_SIZE)
    ]
    search(model, batches[0])  # traces the search, which then takes batches of any shape
    start = time.perf_counter()
    found = [ops.convert_to_numpy(search(model, batch).ids)[:, 0] for batch in batches]  # (B, T)
    keras_seconds = time.perf_counter() - start
    wanted = [row[row > 0].tolist() for ids in found for row in ids]
    apart = _run_apart(folder, lines, batches)
    texts = apart.get("texts")
    if texts is not None:
        texts = [texts[i] for i in order]
        texts = sum(map(str.__eq__, texts, tokenizer.decode(wanted)))
    return Comparison(
        len(lines),
        sum(map(list.__eq__, wanted, apart["token_ids"])),
        texts,
        keras_seconds,
        apart["seconds"],
        apart.get("text_seconds"),
    )


def _run_apart(folder, lines, batches):
    """The report of `apart.py`."""
    script = Path(__file__).with_name("apart.py")
    with tempfile.TemporaryDirectory() as place:
        job = Path(place) / "job.npz"
        ids = {f"ids/{i}": batch for i, batch in enumerate(batches)}
        np.savez(job, folder=str(folder), lines=np.array(lines), **ids)
        command = [sys.executable, "-P", str(script), str(job)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(
            f"The process that ran {folder} died with status {done.returncode}: "
            f"{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])
