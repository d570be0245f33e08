"""Beam search in TensorFlow beside CTranslate2: time, and agreement of the translations.

    python benchmarks/search.py --model FOLDER [--data DIR] [--quick] [--threads 2] [--lanes 2]

Both engines have the same float32 weights, batches of test.2016 and number of threads. They take
turns; figures are medians over the rounds, after one round to warm up. With `--lanes N` both
translate N batches at a time, each with its share of the threads.

Both searches have the same rules: at most the batch's longest source + 50 tokens, no minimum
length, unknown tokens allowed. A sentence ends with the step in which its W-th hypothesis finishes.
Only the length penalty of n tokens, end token included, differs: ours is ((5 + n) / 6)^alpha (Wu et
al. 2016), CTranslate2's n^alpha. So CTranslate2 returns all W hypotheses, and our formula ranks
them.
"""

import concurrent.futures
import functools
import os
import statistics
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import ctranslate2
import subjects
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.export import export_ctranslate2
from keras_transformer.padding import pad_rows

EXTRA_LENGTH = 50  # of a translation, beyond the longest source of the batch (section 6.1)


def in_tensorflow(model, tokenizer, args):
    """Returns `BeamSearch` as a function from rows of source ids to the best hypotheses."""
    search = kt.BeamSearch(args.beam_width, args.length_penalty)

    def translate(rows):
        longest = max(map(len, rows)) + EXTRA_LENGTH
        ids = search(model, pad_rows(rows), max_length=longest).ids.numpy()
        return [row[row > 0].tolist() for row in ids[:, 0]]

    return translate


def in_ctranslate2(model, tokenizer, args):
    """Returns the same search in CTranslate2, whose hypotheses are ranked by our penalty."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = export_ctranslate2(model, folder, tokenizer, verbose=False)
        translator = ctranslate2.Translator(
            folder,
            compute_type="float32",
            inter_threads=args.lanes,
            intra_threads=args.threads // args.lanes,
        )
    ids = {token: i for i, token in enumerate(tokens)}

    def translate(rows):
        found = translator.translate_batch(
            [[tokens[i] for i in row[:-1]] for row in rows],  # CTranslate2 adds the end token
            beam_size=args.beam_width,
            num_hypotheses=args.beam_width,
            length_penalty=args.length_penalty,
            min_decoding_length=0,
            max_decoding_length=max(map(len, rows)) + EXTRA_LENGTH,
            return_end_token=True,
            return_scores=True,
        )
        best = [
            subjects.ranked(one.hypotheses, one.scores, args.length_penalty)[0][0] for one in found
        ]
        return [[ids[token] for token in tokens] for tokens in best]

    return translate


def round_of(translate, batches, args):
    """Translates all batches; returns seconds and the translations by sentence."""
    with concurrent.futures.ThreadPoolExecutor(args.lanes) as pool:
        run = functools.partial(pool.map, translate, [rows for _, rows in batches])
        seconds, found = bench.timed(lambda: list(run()), bench.CLOCKS[args.clock])
    best = {}
    for (numbers, _), rows in zip(batches, found, strict=True):
        best.update(zip(numbers, rows, strict=True))
    return {"seconds": seconds, "best": [best[i] for i in range(len(best))]}


def main():
    parser = bench.Parser(__doc__, "data", "model", "rounds", "clock", rounds=5)
    parser.add_argument("--quick", action="store_true", help="200 sentences, 3 rounds")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--lanes", type=int, default=1, help="batches at a time")
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    args = parser.parse_args()
    if args.quick:
        args.sentences, args.rounds = 200, 3
    if not 1 <= args.lanes <= args.threads:
        parser.error(f"--lanes must lie in [1, --threads {args.threads}], got {args.lanes}")
    tf.config.threading.set_intra_op_parallelism_threads(args.threads // args.lanes)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)

    model, tokenizer = subjects.load_trained(args.model)
    lines, _ = subjects.multi30k(args.data, count=args.sentences)
    sources = subjects.source_ids(tokenizer, lines)
    makers = {"ours": in_tensorflow, "ctranslate2": in_ctranslate2}
    engines = {name: make(model, tokenizer, args) for name, make in makers.items()}
    report = {"sentences": len(sources), "source_tokens": sum(map(len, sources)), "timing": []}
    for name in ("beam_width", "length_penalty", "lanes", "clock", "rounds"):
        report[name] = getattr(args, name)
    for size in args.batch_sizes:
        batches = [(i, [sources[n] for n in i]) for i in subjects.batches(sources, size)]
        runs = {
            name: functools.partial(round_of, translate, batches, args)
            for name, translate in engines.items()
        }
        found = bench.in_turn(runs, args.rounds, pause=0)
        seconds = {name: [one["seconds"] for one in rows] for name, rows in found.items()}
        row = {"batch_size": size, "seconds": {n: statistics.median(s) for n, s in seconds.items()}}
        row["ours_over_ctranslate2"] = bench.ratio(*seconds.values())
        report["timing"].append(row)
        print(row, flush=True)
    best = [rows[-1]["best"] for rows in found.values()]
    report["identical"] = subjects.equal(*best) / len(sources)
    bench.finish(args, "search", report)


if __name__ == "__main__":
    main()
