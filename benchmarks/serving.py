"""Our ONNX artefact beside CTranslate2 and PyTorch: speed, memory, time to start, BLEU.

    python benchmarks/serving.py --model FOLDER --data DIR [--quick] [--threads 2]
    python benchmarks/serving.py [--quick]    # no files: random weights, number words, no BLEU

Weights, sentences, search rules and threads are the same, in float32 and int8, with greedy search
and beam 4. The trained tiny model translates test.2016. A model of the paper's base size, with
random weights and a forced length of 32 tokens, translates sentences of test.2016 and long ones of
newstest2014. PyTorch (`torch_search.py`), if installed, runs only in float32 with a forced length;
with `--quick`, only on short sentences.

Each engine runs in a separate process without TensorFlow. All processes of a comparison are alive
at the same time and take turns; only one works at a time. Figures are medians over the rounds,
after one round to warm up; ratios are medians of the rounds' ratios.

- `p50`, `p95`: milliseconds per sentence, one sentence per call.
- `tokens/s`: generated tokens, end tokens included, in batches of 32 of similar length.
- `share of rate`: the rate of floating-point operations in the batches' products, relative to a
  product of two large float32 matrices in NumPy in the same run, if all translations are equally
  long. A faster engine could gain only the rest to 100 %.
- `busy`: other cores that an endless loop in a separate process keeps busy, with `--busy 0 1`.
- `first`: seconds from the start of the process to its first translation, imports included.
- `opened`, `peak`: peak resident memory of the process after the model was opened, and at the end.

CTranslate2 runs with each library for products (`CT2_USE_MKL`). Each ratio compares with the faster
one of the two, and the ratio of memory with the smaller one. A ratio is left out if the engines
generate different numbers of tokens (more than 2 % apart).

Our beam search also runs from two files (`layout="steps"`), which keep only one copy of the caches.
`--spins 50 -1` adds sessions whose idle threads wait actively for 50 microseconds, and for ONNX
Runtime's default time. `--before` adds sessions with that default time, and with the option for
exact 8-bit products on every processor. `--engines` leaves engines out.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common
from serving_engines import ENGINES
from serving_models import LENGTH_PENALTY, PRECISIONS, SEARCHES, prepare, subject
from serving_processes import BACKENDS, Engine, busy_cores, matrix_rate
from serving_rows import ratios, table

BATCH = 32
FORCED_LENGTH = 32
# Source tokens of long sentences.
LONG = range(64, 129)


def search_flops(shape, lengths, width, steps):
    """Counts the floating-point operations of all matrix products of a search.

    Args:
        shape: the model's sizes.
        lengths: number of tokens of each source, without padding.
        width: beam width.
        steps: generated tokens of every hypothesis.
    """
    d_model, layers, sources = shape["d_model"], shape["num_layers"], sum(lengths)
    square, network = d_model**2, 2 * d_model * shape["d_ff"]
    encoder = sum(length * (4 * square + network + 2 * length * d_model) for length in lengths)
    memory = 2 * square * sources  # keys and values for the decoder
    tokens = width * steps * len(lengths)
    decoder = tokens * (6 * square + network + (steps + 1) * d_model)  # half of the past on average
    decoder += 2 * width * steps * sources * d_model
    return 2 * (layers * (encoder + memory + decoder) + tokens * d_model * shape["vocab_size"])


def measure(engines, single, batches, rounds):
    """Measures engines that do the same work, in turn.

    Args:
        engines: {key: Engine}.
        single: source ids of sentences that are translated alone.
        batches: list of lists of source ids.

    Returns:
        {key: figures}, and {key: translations of `batches`}.
    """
    alone, together, last = ({key: [] for key in engines} for _ in range(3))
    for number in range(rounds + 1):
        for key, engine in engines.items():
            one = engine([[ids] for ids in single])
            many = engine(batches)
            if number:
                alone[key].append(one["seconds"])
                together[key].append(sum(many["seconds"]))
            last[key] = many
        print(f"  round {number} of {rounds}", flush=True)
    figures, translations = {}, {}
    for key, engine in engines.items():
        ids = [row for batch in last[key]["ids"] for row in batch]
        milliseconds = sorted(
            1e3 * statistics.median(times) for times in zip(*alone[key], strict=True)
        )
        figures[key] = {
            "p50_ms": statistics.median(milliseconds),
            "p95_ms": milliseconds[int(0.95 * (len(milliseconds) - 1))],
            "alone_seconds": [sum(times) for times in alone[key]],
            "tokens": sum(map(len, ids)),
            "tokens_per_second": sum(map(len, ids)) / statistics.median(together[key]),
            "tokens_per_second_rounds": [sum(map(len, ids)) / s for s in together[key]],
            "first_translation_s": engine.first,
            "opened_mb": engine.opened_mb,
            "peak_mb": last[key]["peak_mb"],
        }
        translations[key] = ids
    return figures, translations


def variants(engine, precision, args):
    """Returns the engines of one folder: {name: settings of its process}."""
    if engine == "ctranslate2":
        return {name: {"mkl": mkl} for name, mkl in BACKENDS.items()}
    found = {engine: {}}
    if engine == "ours":
        found |= {f"ours, {spin} us": {"spin": spin} for spin in args.spins}
        if args.before:
            found["ours, before"] = {"spin": -1, "exact": True}
    return found


def case(name, folders, sources, args, bleu=None, forced_length=None):
    """Measures one model on one set of sentences: a row per engine, search and precision.

    Args:
        name: str, model and sentences; the first word chooses the model's shape.
        folders: {(engine, search, precision): folder}, from `prepare`.
        sources: list of lists of ids.
        bleu: function from translations to BLEU. Defaults to `None`: no column.
        forced_length: int, tokens of every hypothesis. Defaults to `None`: not forced.
    """
    rows = []
    order = common.batches(sources, BATCH)
    batches = [[sources[i] for i in numbers] for numbers in order]
    step = max(1, len(sources) // args.single)
    single = sources[::step][: args.single]
    rate = matrix_rate(args.threads) if forced_length else None
    for search in args.searches:
        print(f"{name}, {search}: {len(sources)} sentences", flush=True)
        config = {
            "threads": args.threads,
            "clock": args.clock,
            "beam_width": SEARCHES[search],
            "length_penalty": LENGTH_PENALTY,
            "forced_length": forced_length,
        }
        engines = {}
        try:
            for (engine, found, precision), place in folders.items():
                if found != search:
                    continue
                chosen = {"engine": engine, "precision": precision, "folder": str(place)}
                for label, settings in variants(engine, precision, args).items():
                    engines[label, precision] = Engine(config | chosen | settings, single[:1])
            runs = {}
            for busy in args.busy:
                with busy_cores(busy, args.pin):
                    runs[busy] = measure(engines, single, batches, args.rounds)
        finally:
            for engine in engines.values():
                engine.close()
        for busy, (figures, translations) in runs.items():
            for (engine, precision), found in figures.items():
                row = {"case": name, "search": search, "precision": precision, "engine": engine}
                row |= {"busy": busy} | found
                anchors = [figures[backend, precision] for backend in BACKENDS]
                row |= ratios(found, anchors)
                if forced_length and precision == "float32" and not busy:
                    shape, lengths = common.SHAPES[name.split(",")[0]], [*map(len, sources)]
                    flops = search_flops(shape, lengths, SEARCHES[search], forced_length)
                    seconds = found["tokens"] / found["tokens_per_second"]
                    row["share_of_rate"] = flops / seconds / rate
                if bleu:
                    ids, numbers = translations[engine, precision], itertools.chain(*order)
                    row["bleu"] = bleu(dict(zip(numbers, ids, strict=True)))
                rows.append(row)
        print(table(rows[-len(runs) * len(engines) :]), flush=True)
    return rows


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer sentences and rounds")
    parser.add_argument("--sizes", nargs="+", choices=common.SHAPES, default=list(common.SHAPES))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sentences", type=int, help="for the tiny model; a tenth for base")
    parser.add_argument("--single", type=int, help="sentences that are translated alone")
    parser.add_argument("--artefacts", type=Path, help="keep the exported models here, for reuse")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="numbers of busy cores")
    parser.add_argument("--pin", action="store_true", help="each busy loop stays on one core")
    parser.add_argument("--spins", type=int, nargs="*", default=[], help="microseconds of waiting")
    parser.add_argument("--before", action="store_true", help="add the earlier session options")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a busy machine, with --threads 1",
    )
    args = parser.parse_args()
    if args.model:
        common.check_arguments(parser, args)
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.sentences = args.sentences or (320 if args.quick else 1000)
    args.single = args.single or (20 if args.quick else 100)
    return args


def run_cases(args, folder):
    """Runs all cases: the tiny model, then the base model on short and on long sentences."""
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    model, tokenizer, texts, references = subject(args)
    (short, sources), (long, others) = (
        (name, common.source_ids(tokenizer, lines)) for name, lines in texts.items()
    )
    rows = []
    if "tiny" in args.sizes:
        bleu, forced = (common.bleu_of(tokenizer, references), None) if references else (None, 16)
        folders = prepare(folder, "tiny", model, tokenizer, forced, args)
        rows += case(f"tiny, {short}", folders, sources, args, bleu, forced)
    if "base" in args.sizes:
        keras.utils.set_random_seed(0)
        model = kt.Transformer(**common.SHAPES["base"])
        folders = prepare(folder, "base", model, None, FORCED_LENGTH, args)
        count = max(BATCH, args.sentences // 10 // BATCH * BATCH)
        others = [ids for ids in others if len(ids) in LONG]
        args.single = max(5, args.single // 4)
        rows += case(f"base, {short}", folders, sources[:count], args, None, FORCED_LENGTH)
        if args.quick:  # PyTorch alone would take a minute
            folders = {key: place for key, place in folders.items() if key[0] != "torch"}
        rows += case(f"base, {long}", folders, others[:count], args, None, FORCED_LENGTH)
    return rows


def main():
    args = parse_arguments()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        rows = run_cases(args, args.artefacts or Path(temporary))
    report = common.head(args) | {
        "batch_size": BATCH,
        "forced_length_of_base": FORCED_LENGTH,
        "length_penalty": LENGTH_PENALTY,
        "clock": args.clock,
        "rounds": args.rounds,
        "rows": rows,
    }
    print(table(rows))
    print(json.dumps({name: report[name] for name in ("date", "machine", "versions")}))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    common.write(report, args.output or common.RESULTS / "serving.json")


if __name__ == "__main__":
    main()
