"""Whisper's search with random weights and forced lengths: this package beside CTranslate2.

    python benchmarks/whisper_random.py prepare --model MODEL --work WORK [--sizes tiny small]
    python benchmarks/whisper_random.py measure --model MODEL --work WORK \\
        --output benchmarks/results/whisper_random.json

For sizes whose weights are not at hand. MODEL is a CTranslate2 folder of a multilingual Whisper
model, which gives the tokens. Each window of random features gets 64 text tokens, beam 5. Both
engines get features, not sound, so faster-whisper's own code is not in the time. CTranslate2 runs
with each library for products; each ratio compares with the faster one.
"""

import itertools
import json
import re
import shutil
from pathlib import Path

import bench

# Layers, width and heads.
SIZES = {"tiny": (4, 384, 6), "base": (6, 512, 8), "small": (12, 768, 12)}
TOKENS, BEAM, FRAMES, BANDS = 64, 5, 3000, 80
PRECISIONS = ("int8", "float32")


def write_folder(source, place, size):
    """Writes a CTranslate2 folder of this size with random weights and the tokens of `source`."""
    import ctranslate2
    import numpy as np

    from keras_transformer.importers import ctranslate2_layout as layout
    from keras_transformer.importers.ctranslate2 import REVISIONS

    layers, width, heads = SIZES[size]
    tensors = layout.read_specification(source, REVISIONS).tensors
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


def ours(task, features):
    """Opens our export; returns a function that decodes a window and counts the tokens."""
    import numpy as np

    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime.session import open_session
    from keras_transformer.export.runtime.speech.tokens import SpeechTokens

    artefact = read_artefact(Path(task["folder"], task["precision"]))
    session = open_session(artefact, threads=task["threads"])
    tokens = SpeechTokens(artefact.manifest, artefact.tokenizer)
    start = [*tokens.start("en", "transcribe", ()), tokens.first_time - 1]
    inputs = {"features": features, "start_ids": np.array([start], "int32")}
    return lambda: int((session.run(["token_ids"], inputs)[0][0, 0] > 0).sum())


def ctranslate2(task, features):
    """Opens the same weights in CTranslate2, as `ours`."""
    import ctranslate2
    import numpy as np

    folder = Path(task["folder"], "ctranslate2")
    model = ctranslate2.models.Whisper(
        str(folder), compute_type=task["precision"], intra_threads=task["threads"]
    )
    names = json.loads((folder / "vocabulary.json").read_text("utf-8"))
    start = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    view = ctranslate2.StorageView.from_array(np.ascontiguousarray(features.swapaxes(1, 2)))
    options = {"suppress_tokens": [-1, names.index("<|endoftext|>")]}
    options["max_length"] = 2 * TOKENS  # at most half of it is generated
    return lambda: len(model.generate(view, [start], beam_size=BEAM, **options)[0].sequences_ids[0])


ENGINES = {"ours": ours, "ctranslate2": ctranslate2}


def set_up(task):
    """Opens an engine for a `bench.Worker`; a round decodes a window."""
    import numpy as np

    features = np.random.default_rng(1).standard_normal((1, FRAMES, BANDS), np.float32)
    decode = ENGINES[task["engine"].partition(",")[0]](task, features)

    def run():
        seconds, count = bench.timed(decode)
        return {"seconds": seconds, "tokens": count, "peak MB": bench.memory()["peak_mb"]}

    return {}, run


def measure(args):
    """Measures all sizes and precisions; returns the rows of the report."""
    rows = []
    for size, precision in itertools.product(args.sizes, args.precisions):
        task = {"precision": precision, "threads": args.threads, "folder": str(args.work / size)}
        tasks = dict.fromkeys(("ours", *bench.CTRANSLATE2), task)
        with bench.engines("whisper_random:set_up", tasks, bench.SERVES) as opened:
            for busy in args.busy:
                with bench.busy_cores(busy):
                    found = bench.in_turn(opened, args.rounds)
                for engine, answers in found.items():
                    row = {"size": size, "precision": precision, "busy": busy, "engine": engine}
                    rows.append(row | bench.medians(answers))
                    print(rows[-1], flush=True)
    return rows


def main():
    parser = bench.Parser(__doc__, "model", "work", "rounds", "busy", busy=[0, 1])
    parser.add_argument("part", choices=("prepare", "measure"))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    args = parser.parse_args()
    if args.part == "prepare":
        return prepare(args)
    bench.finish(args, "whisper-random", {"rounds": args.rounds, "rows": measure(args)})


if __name__ == "__main__":
    main()
