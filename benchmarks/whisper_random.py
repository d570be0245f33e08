"""Whisper's search with random weights and forced lengths: this package beside CTranslate2.

    python benchmarks/whisper_random.py prepare --model MODEL --work WORK [--sizes tiny small]
    python benchmarks/whisper_random.py measure --model MODEL --work WORK \\
        --output benchmarks/results/whisper_random.json

For sizes whose weights are not at hand. MODEL is a CTranslate2 folder of a multilingual Whisper
model, which gives the tokens. Each window of random features gets 64 text tokens, beam 5. Both
engines get features, not sound, so faster-whisper's own code is not in the time. CTranslate2 runs
with each library for products; each ratio compares with the faster one.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import time
from pathlib import Path

import common
import workers
from serving_processes import BACKENDS, busy_cores

# Layers, width and heads.
SIZES = {"tiny": (4, 384, 6), "base": (6, 512, 8), "small": (12, 768, 12)}
TOKENS, BEAM, FRAMES, BANDS = 64, 5, 3000, 80
PRECISIONS = ("int8", "float32")


def write_folder(source, place, size):
    """Writes a CTranslate2 folder of this size with random weights and the tokens of `source`."""
    import ctranslate2
    import numpy as np

    from keras_transformer.importers import ctranslate2_layout as layout

    layers, width, heads = SIZES[size]
    tensors = layout.read_specification(source).tensors
    own = tensors["encoder/layer_norm/gamma"].shape[0]
    vocabulary = len(layout.read_vocabulary(source, "vocabulary"))
    spec = ctranslate2.specs.WhisperSpec(layers, heads, layers, heads)
    random = np.random.default_rng(0)
    for name, tensor in tensors.items():
        sizes = {own: width, 2 * own: 2 * width, 3 * own: 3 * width, 4 * own: 4 * width}
        shape = [n if n == vocabulary else sizes.get(n, n) for n in tensor.shape]
        if re.search(r"/layer_[1-9]", name):
            continue
        for layer in range(layers if "/layer_0/" in name else 1):
            array = np.float32(0.03) * random.standard_normal(shape, np.float32)
            array = array + np.float32(1) if name.endswith("gamma") else array
            assign(spec, name.replace("/layer_0/", f"/layer_{layer}/"), array)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.register_vocabulary(layout.read_vocabulary(source, "vocabulary"))
    spec.validate()
    spec.optimize()
    place.mkdir(parents=True)
    spec.save(str(place))
    shutil.copy(source / "tokenizer.json", place)
    config = json.loads((source / "config.json").read_text("utf-8"))
    config.pop("alignment_heads", None)
    (place / "config.json").write_text(json.dumps(config), "utf-8")


def assign(spec, name, array):
    """Sets an array of a specification by its path, such as "encoder/layer_0/ffn/..."."""
    *path, last = name.split("/")
    for part in path:
        found = re.fullmatch(r"(.+)_(\d+)", part)
        if not hasattr(spec, part) and found:
            spec = getattr(spec, found[1])[int(found[2])]
        else:
            spec = getattr(spec, part)
    setattr(spec, last, array)


def prepare(args):
    """Writes the folders and exports that are missing."""
    import dataclasses

    from keras_transformer import export, importers

    for size in args.sizes:
        folder = args.work / size / "ctranslate2"
        if not folder.exists():
            write_folder(args.model, folder, size)
        model, tokenizer = importers.ctranslate2.load(folder)
        settings = importers.ctranslate2.read_settings(folder)
        search = importers.speech_search(settings, tokenizer, BEAM)
        search = dataclasses.replace(search, min_length=TOKENS)
        for precision in args.precisions:
            place = args.work / size / precision
            if not place.exists():
                options = {"precision": precision, "max_length": TOKENS}
                if precision != "float32":  # a loss of random weights says nothing
                    options["tolerance"] = 10.0
                export.export_onnx(model, place, tokenizer, search, **options)


def set_up(task):
    """Opens an engine; returns no facts, and a function that decodes a window."""
    import numpy as np

    folder, threads = Path(task["folder"]), task["threads"]
    features = np.random.default_rng(1).standard_normal((1, FRAMES, BANDS), np.float32)
    if task["engine"] in BACKENDS:
        import ctranslate2

        model = ctranslate2.models.Whisper(
            str(folder / "ctranslate2"), compute_type=task["precision"], intra_threads=threads
        )
        names = json.loads((folder / "ctranslate2" / "vocabulary.json").read_text("utf-8"))
        start = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        view = ctranslate2.StorageView.from_array(np.ascontiguousarray(features.swapaxes(1, 2)))

        def decode():
            options = {"suppress_tokens": [-1, names.index("<|endoftext|>")]}
            options["max_length"] = 2 * TOKENS  # at most half of it is generated
            (found,) = model.generate(view, [start], beam_size=BEAM, **options)
            return len(found.sequences_ids[0])
    else:
        from keras_transformer.export.artefact.reader import read_artefact
        from keras_transformer.export.runtime.session import open_session
        from keras_transformer.export.runtime.speech.tokens import SpeechTokens

        artefact = read_artefact(folder / task["precision"])
        session = open_session(artefact, threads=threads)
        tokens = SpeechTokens(artefact.manifest, artefact.tokenizer)
        start = [*tokens.start("en", "transcribe", ()), tokens.first_time - 1]
        inputs = {"features": features, "start_ids": np.array([start], "int32")}

        def decode():
            (ids,) = session.run(["token_ids"], inputs)
            return int((ids[0, 0] > 0).sum())

    def run():
        begin = time.perf_counter()
        count = decode()
        peak = workers.peak_memory() / 2**20
        return {"seconds": time.perf_counter() - begin, "tokens": count, "peak MB": peak}

    return {}, run


def measure(args):
    """Measures all sizes and precisions; returns the rows of the report."""
    rows = []
    for size in args.sizes:
        for precision in args.precisions:
            opened = {}
            try:
                for engine in ("ours", *BACKENDS):
                    task = {"engine": engine, "precision": precision, "threads": args.threads}
                    task["folder"] = str(args.work / size)
                    environment = {"CT2_USE_MKL": BACKENDS.get(engine, "0")}
                    environment["KERAS_TRANSFORMER_SERVES"] = "1"
                    opened[engine] = workers.Worker(__file__, task, environment)
                for busy in args.busy:
                    with busy_cores(busy):
                        found = workers.in_turn(opened, args.rounds)
                    for engine, answers in found.items():
                        row = {"size": size, "precision": precision, "busy": busy, "engine": engine}
                        for name in answers[0]:
                            row[name] = statistics.median(answer[name] for answer in answers)
                        rows.append(row)
                        print(row, flush=True)
            finally:
                for worker in opened.values():
                    worker.close()
    return rows


def table(report):
    """Makes a row for each size, precision and number of busy cores."""
    found = {}
    for row in report["rows"]:
        found.setdefault((row["size"], row["precision"], row["busy"]), {})[row["engine"]] = row
    rows = []
    for key, engines in found.items():
        ours = engines.pop("ours")
        theirs = min(engines.values(), key=lambda row: row["seconds"])
        same = common.same_work(ours["tokens"], theirs["tokens"])
        rows.append([*key, ours["seconds"], theirs["seconds"]])
        rows[-1].append(theirs["seconds"] / ours["seconds"] if same else None)
        rows[-1] += [round(row["peak MB"]) for row in (ours, theirs)]
    heads = ["size", "precision", "busy", "s a window", "CTranslate2", "ratio"]
    return workers.table([*heads, "peak MB", "CTranslate2"], rows)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return workers.answer(set_up, sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("prepare", "measure"))
    parser.add_argument("--model", type=Path, required=True, help="CTranslate2 folder of Whisper")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and exports")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="busy cores")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.part == "prepare":
        return prepare(args)
    report = {**common.head(args), "rounds": args.rounds, "rows": measure(args)}
    print(table(report))
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
