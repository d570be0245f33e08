"""Models to serve, their artefacts for every engine, and the sentences.

With `--model` these are a trained translator and real text. Without it, they are random weights and
number words, which show the same speed, but no BLEU.
"""

import importlib.util
import json
import time

import subjects

import keras_transformer as kt

LENGTH_PENALTY = 1.0
SEARCHES = {"greedy": 1, "beam 4": 4}
PRECISIONS = ("float32", "int8")
# Our engines. Two files keep one copy of the caches in memory; the loop of one file keeps three
# copies of the slots that are open.
LAYOUTS = {"ours": "loop", "two files": "steps"}


def search_of(name, forced_length):
    """Returns the search of this name; with a forced length, no hypothesis ends earlier."""
    options = {"min_length": forced_length} if forced_length else {}
    if SEARCHES[name] == 1:
        return kt.GreedySearch(**options)
    return kt.BeamSearch(SEARCHES[name], LENGTH_PENALTY, **options)


def prepare(folder, label, model, tokenizer, forced_length, args):
    """Exports a model for every engine, unless the files exist.

    Args:
        folder: parent folder.
        label: str, prefix of the folders' names.
        model, tokenizer: to export; the tokenizer may be `None`.
        forced_length: int or `None`. PyTorch's search requires a forced length.
        args: `searches`, `precisions` and `engines` of the command line.

    Returns:
        {(engine, search, precision): folder}.
    """
    import numpy as np

    from keras_transformer import export

    folders = {}
    for precision in args.precisions:
        place = folder / f"{label}-ctranslate2-{precision}"
        if not (place / "model.bin").exists():
            export.export_ctranslate2(model, place, tokenizer, precision=precision, verbose=False)
        for search in args.searches:
            folders["ctranslate2", search, precision] = place
            for engine, layout in LAYOUTS.items():
                if engine not in args.engines or engine == "two files" and SEARCHES[search] == 1:
                    continue
                ours = folder / f"{label}-{layout}-{search.replace(' ', '')}-{precision}"
                if not (ours / "artefact.json").exists():
                    start = time.perf_counter()
                    export.export_onnx(
                        model,
                        ours,
                        search=search_of(search, forced_length),
                        precision=precision,
                        max_length=forced_length,
                        layout=layout,
                        verbose=False,
                    )
                    seconds = time.perf_counter() - start
                    print(f"exported {ours.name} in {seconds:.0f} s", flush=True)
                folders[engine, search, precision] = ours
    if forced_length and "torch" in args.engines and importlib.util.find_spec("torch"):
        place = folder / f"{label}-torch"
        if not (place / "weights.npz").exists():
            place.mkdir(parents=True)
            (place / "config.json").write_text(json.dumps(model.get_config()), "utf-8")
            np.savez(place / "weights.npz", **{v.path: v.numpy() for v in model.weights})
        folders |= {("torch", search, "float32"): place for search in args.searches}
    return folders


def subject(args):
    """Returns tiny model, tokenizer, {name: sentences} (short, then long) and references."""
    if args.model:
        model, tokenizer = subjects.load_trained(args.model)
        lines, references = subjects.multi30k(args.data, count=args.sentences)
        news = [line.lower() for line in subjects.newstest(args.data)]  # as the tokenizer's data
        return model, tokenizer, {"test.2016": lines, "newstest2014, long": news}, references
    words = subjects.number_words(args.sentences)
    size = subjects.SHAPES["tiny"]["vocab_size"]
    tokenizer = kt.Tokenizer.train(words, size, hard_vocab_limit=False)
    several = [" ".join(words[start : start + 5]) for start in range(len(words))]
    lines = {"number words": words, "number words, long": several}
    return kt.Transformer(**subjects.SHAPES["tiny"]), tokenizer, lines, None
