"""Exports of a trained model beside Keras: SavedModel and every precision of ONNX.

    python benchmarks/export.py --model FOLDER [--data DIR] [--output FILE]

Each artefact translates test.2016 with beam 5 and the length penalty that training chose
(`metrics.json` in FOLDER). The script computes BLEU, counts the sentences whose best hypothesis
differs from Keras', and finds the largest difference of a score. Everything runs on the CPU, which
emulates float16.

Products of 8-bit integers round activations with one scale for the whole batch. A result therefore
depends on the other sentences of its batch, so the sentences are divided into batches in several
ways. The report has the BLEU of every division, and the largest count and difference.
"""

import json
import os
import random
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import numpy as np
import onnxruntime
import subjects
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the SavedModel's string operators

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.artefact import signature
from keras_transformer.padding import pad_rows


def saved_model(model, tokenizer, search, folder):
    """Exports a SavedModel; returns a function from source ids (B, S) to ids and scores."""
    export.export_saved_model(model, folder, tokenizer, search, verbose=False)
    loaded = tf.saved_model.load(str(folder))

    def run(ids):
        found = loaded.signatures[signature.SEARCH](source_ids=tf.constant(ids))
        return found[signature.TOKEN_IDS].numpy(), found[signature.SCORES].numpy()

    return run


def onnx(model, tokenizer, search, folder, precision, threads):
    """Exports to ONNX; returns a function from source ids (B, S) to ids and scores."""
    export.export_onnx(model, folder, tokenizer, search, precision, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        folder / signature.MODEL_FILE, options, providers=["CPUExecutionProvider"]
    )
    outputs = [signature.TOKEN_IDS, signature.SCORES]
    return lambda ids: session.run(outputs, {signature.SOURCE_IDS: ids})


def translated(search, sources, seed):
    """Returns the best hypothesis of every sentence.

    Args:
        search: function from ids (B, S) to ids (B, W, T) and scores (B, W).
        sources: list of lists of ids.
        seed: int. It orders sentences of equal length, and so changes the batches.

    Returns:
        Dict from the sentence's number to its ids, and the scores as an array.
    """
    best, scores = {}, np.zeros(len(sources))
    order = random.Random(seed).sample(range(len(sources)), len(sources))  # among equal lengths
    for numbers in subjects.batches([sources[i] for i in order], 50):
        numbers = [order[i] for i in numbers]
        ids, found = search(pad_rows([sources[i] for i in numbers]))
        for i, row, score in zip(numbers, ids, found, strict=True):
            best[i], scores[i] = [int(token) for token in row[0] if token], score[0]
    return best, scores


def main():
    parser = bench.Parser(__doc__, "data", "model")
    parser.add_argument("--beam-width", type=int, default=5)
    parser.add_argument("--divisions", type=int, default=5, help="ways to make batches")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)

    model, tokenizer = subjects.load_trained(args.model)
    metrics = json.loads((args.model / "metrics.json").read_text("utf-8"))
    penalty = metrics["chosen_on_validation"]["length_penalty"]
    search = kt.BeamSearch(args.beam_width, penalty)
    lines, references = subjects.multi30k(args.data)
    sources = subjects.source_ids(tokenizer, lines)
    bleu = subjects.bleu_of(tokenizer, references)

    def keras(ids):
        found = search(model, ids)
        return found.ids.numpy(), found.scores.numpy()

    wanted, scores = translated(keras, sources, seed=0)
    rows = []
    for precision in (None, *signature.PRECISIONS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "artefact"
            if precision is None:
                run = saved_model(model, tokenizer, search, path)
            else:
                run = onnx(model, tokenizer, search, path, precision, args.threads)
            found = [translated(run, sources, seed) for seed in range(args.divisions)]
            row = {
                "artefact": "SavedModel" if precision is None else f"ONNX, {precision}",
                "bytes": bench.size(path),
                "differing": max(sum(ids[i] != wanted[i] for i in wanted) for ids, _ in found),
                "largest_difference": max(float(np.abs(own - scores).max()) for _, own in found),
                "bleu": [bleu(ids) for ids, _ in found],
            }
        rows.append(row)
        print(row, flush=True)
    report = {"set": "test.2016", "sentences": len(sources), "beam_width": args.beam_width}
    report |= {"length_penalty": penalty, "divisions": args.divisions}
    bench.finish(args, "export", report | {"keras_bleu": bleu(wanted), "rows": rows})


if __name__ == "__main__":
    main()
