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

If translations still differ, one forward pass of the model scores both, and our search is repeated
step by step. `smallest_margin` is the smallest difference, over all steps, between the last kept
candidate and the first dropped one. If it is within float32's rounding, rounding decided.
Several hypotheses may finish in the last step, more than W in all. Then CTranslate2 keeps the
best W by its own penalty. The report names the cause.
"""

import argparse
import concurrent.futures
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import common
import ctranslate2
import tensorflow as tf
from search_differences import agreement, longest_translation

import keras_transformer as kt
from keras_transformer.export import export_ctranslate2
from keras_transformer.padding import pad_rows


class Ours:
    """`BeamSearch` in TensorFlow."""

    def __init__(self, model, args):
        self.model, self.search = model, kt.BeamSearch(args.beam_width, args.length_penalty)

    def __call__(self, rows):
        """Returns hypotheses and scores, best first, for rows of source ids."""
        found = self.search(self.model, pad_rows(rows), max_length=longest_translation(rows))
        ids, scores = found.ids.numpy(), found.scores.numpy()
        return [[row[row > 0].tolist() for row in rows] for rows in ids], scores.tolist()


class CTranslate2:
    """The same search in CTranslate2."""

    def __init__(self, model, tokenizer, args, folder):
        self.tokens = export_ctranslate2(model, folder, tokenizer, verbose=False)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.translator = ctranslate2.Translator(
            str(folder),
            compute_type="float32",
            inter_threads=args.lanes,
            intra_threads=args.threads // args.lanes,
        )
        self.options = dict(
            beam_size=args.beam_width,
            num_hypotheses=args.beam_width,
            length_penalty=args.length_penalty,
            min_decoding_length=0,
            return_end_token=True,
            return_scores=True,
        )

    def __call__(self, rows):
        found = self.translator.translate_batch(
            [[self.tokens[i] for i in row[:-1]] for row in rows],  # CTranslate2 adds the end token
            max_decoding_length=longest_translation(rows),
            **self.options,
        )
        ids = [[[self.ids[token] for token in h] for h in result.hypotheses] for result in found]
        return ids, [result.scores for result in found]


def timed(engine, batches, clock, lanes):
    """Returns seconds for all batches, and the results in the order of the sentences."""
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        start = clock()
        found = list(pool.map(engine, [rows for _, rows in batches]))
        seconds = clock() - start
    hypotheses, scores = {}, {}
    for (numbers, _), (ids, values) in zip(batches, found, strict=True):
        hypotheses.update(zip(numbers, ids, strict=True))
        scores.update(zip(numbers, values, strict=True))
    order = sorted(hypotheses)
    return seconds, [hypotheses[i] for i in order], [scores[i] for i in order]


def measure(engines, batches, rounds, clock, lanes):
    """Returns the seconds of each engine and round, and each engine's results.

    Args:
        engines: {name: function from source ids to hypotheses and scores}.
        batches: list of (numbers of the sentences, their ids).
        rounds: number of rounds, after one that compiles and warms up.
        clock: function that returns wall or processor seconds.
        lanes: number of batches that an engine translates at a time.
    """
    times, results = {name: [] for name in engines}, {}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            seconds, *results[name] = timed(engine, batches, clock, lanes)
            if number:  # the first round compiles and warms up
                times[name].append(seconds)
            print(f"  round {number} {name:12} {seconds:.2f} s", flush=True)
    return times, results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="200 sentences, 3 rounds")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--lanes", type=int, default=1, help="batches at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a busy machine, with --threads 1",
    )
    args = parser.parse_args()
    common.check_arguments(parser, args)
    if args.quick:
        args.sentences, args.rounds = 200, 3
    if not 1 <= args.lanes <= args.threads:
        parser.error(f"--lanes must lie in [1, --threads {args.threads}], got {args.lanes}")
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    tf.config.threading.set_intra_op_parallelism_threads(args.threads // args.lanes)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)

    model, tokenizer = common.load_trained(args)
    lines, _ = common.test_2016(args.data, args.sentences)
    sources = common.source_ids(tokenizer, lines)
    with tempfile.TemporaryDirectory() as folder:
        theirs = CTranslate2(model, tokenizer, args, folder)
    engines = {"ours": Ours(model, args), "ctranslate2": theirs}
    report = common.head(args) | {
        "sentences": len(sources),
        "source_tokens": sum(map(len, sources)),
        "beam_width": args.beam_width,
        "length_penalty": args.length_penalty,
        "lanes": args.lanes,
        "clock": args.clock,
        "rounds": args.rounds,
        "timing": [],
    }
    print(f"{len(sources)} sentences, {report['source_tokens']} source tokens")
    for size in args.batch_sizes:
        print(f"batches of {size}")
        batches = [(i, [sources[n] for n in i]) for i in common.batches(sources, size)]
        times, results = measure(engines, batches, args.rounds, clock, args.lanes)
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        ratio = statistics.median(
            a / b for a, b in zip(times["ours"], times["ctranslate2"], strict=True)
        )
        row = {"batch_size": size, "seconds": medians, "ours_over_ctranslate2": ratio}
        report["timing"].append(row)
        print(
            f"batches of {size}: ours {medians['ours']:.2f} s, CTranslate2 "
            f"{medians['ctranslate2']:.2f} s, ours / CTranslate2 {ratio:.2f}"
        )
    agreement(report, results, sources, model, tokenizer, args)
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
