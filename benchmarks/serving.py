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

import functools
import itertools
import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import subjects
from engine_columns import ratios, serving
from serving_engines import ENGINES
from serving_models import LENGTH_PENALTY, PRECISIONS, SEARCHES, prepare, subject

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


def round_of(engine, single, batches):
    """Translates sentences alone, then in batches; returns the figures of both."""
    return {"alone": engine(batches=[[ids] for ids in single]), "many": engine(batches=batches)}


def measure(engines, single, batches, rounds):
    """Measures engines that do the same work, in turn.

    Args:
        engines: dict from names to `bench.Worker`s.
        single: source ids of sentences that are translated alone.
        batches: list of lists of source ids.
        rounds: number of rounds, after one to warm up.

    Yields:
        Name, figures, and translations of `batches`.
    """
    turns = {
        name: functools.partial(round_of, engine, single, batches)
        for name, engine in engines.items()
    }
    for name, found in bench.in_turn(turns, rounds).items():
        alone, many = ([one[part] for one in found] for part in ("alone", "many"))
        ids = [row for batch in many[-1]["ids"] for row in batch]
        times = zip(*(one["seconds"] for one in alone), strict=True)
        milliseconds = sorted(1e3 * statistics.median(sentence) for sentence in times)
        tokens = sum(map(len, ids))
        speeds = [tokens / sum(one["seconds"]) for one in many]
        figures = {
            "p50_ms": statistics.median(milliseconds),
            "p95_ms": milliseconds[int(0.95 * (len(milliseconds) - 1))],
            "alone_seconds": [sum(one["seconds"]) for one in alone],
            "tokens": tokens,
            "tokens_per_second": statistics.median(speeds),
            "tokens_per_second_rounds": speeds,
            "peak_mb": many[-1]["peak_mb"],
        }
        yield name, figures, ids


def variants(engine, args):
    """Returns the engines of one folder: {name: further values of its task}."""
    if engine == "ctranslate2":
        return {name: {} for name in bench.CTRANSLATE2}
    found = {engine: {}}
    if engine == "ours":
        found |= {f"ours, {spin} us": {"spin": spin} for spin in args.spins}
        if args.before:
            found["ours, before"] = {"spin": -1, "exact": True}
    return found


def tasks(folders, search, forced_length, args):
    """Returns a task for each engine and precision of a search: {(name, precision): task}."""
    shared = {"threads": args.threads, "clock": args.clock, "beam_width": SEARCHES[search]}
    shared |= {"length_penalty": LENGTH_PENALTY, "forced_length": forced_length}
    return {
        (name, precision): shared
        | {"engine": name, "precision": precision, "folder": str(place), **settings}
        for (engine, found, precision), place in folders.items()
        if found == search
        for name, settings in variants(engine, args).items()
    }


def case(name, folders, sources, args, bleu=None, forced_length=None):
    """Measures one model on one set of sentences: a row per engine, search and precision.

    Args:
        name: str, model and sentences; the first word chooses the model's shape.
        folders: {(engine, search, precision): folder}, from `prepare`.
        sources: list of lists of ids.
        bleu: function from translations to BLEU. Defaults to `None`: no column.
        forced_length: int, tokens of every hypothesis. Defaults to `None`: not forced.
    """
    order = subjects.batches(sources, BATCH)
    batches = [[sources[i] for i in numbers] for numbers in order]
    single = sources[:: max(1, len(sources) // args.single)][: args.single]
    rate = bench.matrix_rate(args.threads) if forced_length else None
    rows = []
    for search in args.searches:
        print(f"{name}, {search}: {len(sources)} sentences", flush=True)
        found = []
        with bench.engines(
            "serving_engines:serve", tasks(folders, search, forced_length, args)
        ) as engines:
            opened = {
                key: {
                    "opened_mb": engine.facts["peak_mb"],
                    "first_translation_s": engine.seconds
                    + bench.timed(lambda engine=engine: engine(batches=[single[:1]]))[0],
                }
                for key, engine in engines.items()
            }
            for busy in args.busy:
                with bench.busy_cores(busy, args.pin):
                    for (engine, precision), figures, ids in measure(
                        engines, single, batches, args.rounds
                    ):
                        row = {"case": name, "search": search, "precision": precision}
                        row |= {"engine": engine, "busy": busy, **figures}
                        row |= opened[engine, precision]
                        if forced_length and precision == "float32" and not busy:
                            shape = subjects.SHAPES[name.split(",")[0]]
                            lengths, width = [*map(len, sources)], SEARCHES[search]
                            flops = search_flops(shape, lengths, width, forced_length)
                            seconds = row["tokens"] / row["tokens_per_second"]
                            row["share_of_rate"] = flops / seconds / rate
                        if bleu:
                            numbers = itertools.chain(*order)
                            row["bleu"] = bleu(dict(zip(numbers, ids, strict=True)))
                        found.append(row)
        for group in bench.grouped(found, "precision", "busy").values():
            anchors = [row for row in group if row["engine"] in bench.CTRANSLATE2]
            for row in group:
                row |= ratios(row, anchors)
        print(serving({"rows": found}), flush=True)
        rows += found
    return rows


def parse_arguments():
    parser = bench.Parser(__doc__, "data?", "model?", "rounds", "busy", "clock", rounds=None)
    parser.add_argument("--quick", action="store_true", help="fewer sentences and rounds")
    sizes = list(subjects.SHAPES)
    for name, known in (("sizes", sizes), ("searches", SEARCHES), ("precisions", PRECISIONS)):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=list(known))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sentences", type=int, help="for the tiny model; a tenth for base")
    parser.add_argument("--single", type=int, help="sentences that are translated alone")
    parser.add_argument("--artefacts", type=Path, help="keep the exported models here, for reuse")
    parser.add_argument("--pin", action="store_true", help="each busy loop stays on one core")
    parser.add_argument("--spins", type=int, nargs="*", default=[], help="microseconds of waiting")
    parser.add_argument("--before", action="store_true", help="add the earlier session options")
    args = parser.parse_args()
    if args.model and not args.data:
        parser.error("--model needs the data folder: pass --data or set KERAS_TRANSFORMER_DATA")
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.sentences = args.sentences or (320 if args.quick else 1000)
    args.single = args.single or (20 if args.quick else 100)
    return args


def run_cases(args, folder):
    """Yields the rows of each case: the tiny model, then base on short and on long sentences."""
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    model, tokenizer, texts, references = subject(args)
    (short, sources), (long, others) = (
        (name, subjects.source_ids(tokenizer, lines)) for name, lines in texts.items()
    )
    if "tiny" in args.sizes:
        bleu = subjects.bleu_of(tokenizer, references) if references else None
        forced = None if references else 16
        folders = prepare(folder, "tiny", model, tokenizer, forced, args)
        yield case(f"tiny, {short}", folders, sources, args, bleu, forced)
    if "base" in args.sizes:
        keras.utils.set_random_seed(0)
        model = kt.Transformer(**subjects.SHAPES["base"])
        folders = prepare(folder, "base", model, None, FORCED_LENGTH, args)
        count = max(BATCH, args.sentences // 10 // BATCH * BATCH)
        others = [ids for ids in others if len(ids) in LONG]
        args.single = max(5, args.single // 4)
        yield case(f"base, {short}", folders, sources[:count], args, None, FORCED_LENGTH)
        if args.quick:  # PyTorch alone would take a minute
            folders = {key: place for key, place in folders.items() if key[0] != "torch"}
        yield case(f"base, {long}", folders, others[:count], args, None, FORCED_LENGTH)


def main():
    args = parse_arguments()
    args.output = args.output or bench.RESULTS / "serving.json"
    report = {"batch_size": BATCH, "forced_length_of_base": FORCED_LENGTH}
    report |= {"length_penalty": LENGTH_PENALTY, "clock": args.clock, "rounds": args.rounds}
    report["rows"] = []
    with tempfile.TemporaryDirectory() as temporary:
        for rows in run_cases(args, args.artefacts or Path(temporary)):
            report["rows"] += rows
            bench.keep(args, report)  # a stopped run keeps its cases
    bench.finish(args, "serving", report)


if __name__ == "__main__":
    main()
