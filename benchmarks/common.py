"""Data, models and report heads that the benchmarks share.

The data folder is `--data`, or the environment variable KERAS_TRANSFORMER_DATA. It holds
`multi30k-bpe/test.2016.{en,de}.gz` and `wmt14/newstest2014.eng.gz`.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import random
import time
from pathlib import Path

PACKAGES = ("tensorflow", "keras", "onnxruntime", "ctranslate2", "torch", "sentencepiece", "numpy")
# "tiny": the README's Multi30k translator; "base": the paper.
SHAPES = {
    "tiny": dict(vocab_size=5000, num_layers=4, d_model=128, num_heads=4, d_ff=256),
    "base": dict(vocab_size=32000, num_layers=6, d_model=512, num_heads=8, d_ff=2048),
}
RESULTS = Path(__file__).parent / "results"


def add_arguments(parser):
    """Adds the arguments for data, trained model, threads and output."""
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("KERAS_TRANSFORMER_DATA"),
        help="folder of the data sets; default: KERAS_TRANSFORMER_DATA",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="folder with model.keras and tokenizer.model, from examples/translate.py",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")


def check_arguments(parser, args):
    """Exits with a usage message if the data folder or the model is missing."""
    if args.data is None or not Path(args.data).is_dir():
        parser.error(f"no data folder ({args.data}): pass --data or set KERAS_TRANSFORMER_DATA")
    if args.model is None:
        parser.error("pass --model FOLDER, a trained tiny model")
    args.data = Path(args.data)


def load_trained(args):
    """Returns the trained model and its tokenizer."""
    import keras

    import keras_transformer as kt

    tokenizer = kt.Tokenizer.load(args.model / "tokenizer.model")
    return keras.models.load_model(args.model / "model.keras", compile=False), tokenizer


def source_ids(tokenizer, lines):
    """Returns the ids of each line with the end token, as in training."""
    from keras_transformer.special_ids import END_ID

    return [[*ids, END_ID] for ids in tokenizer.encode(lines)]


def test_2016(data, count=None):
    """Returns sources and references of Multi30k's test.2016: tokenized, lowercase, no BPE."""
    from keras_transformer.text.corpora import read_parallel

    folder = data / "multi30k-bpe"
    files = [folder / f"test.2016.{language}.gz" for language in ("en", "de")]
    return [lines[:count] for lines in read_parallel(*files, undo_bpe=True)]


def newstest(data, count=None):
    """Returns English sentences of newstest2014."""
    from keras_transformer.text.corpora import read_lines

    return read_lines(data / "wmt14" / "newstest2014.eng.gz")[:count]


def number_words(count):
    """Spells `count` random numbers below a million in English, in place of real text."""
    from num2words import num2words

    return [num2words(n) for n in random.Random(0).sample(range(1_000_000), count)]


def batches(ids, size):
    """Returns indices in batches of similar length, longest first, so that the last are short."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def bleu_of(tokenizer, references):
    """Returns a function that computes BLEU of {number: ids} against tokenized references."""
    import sacrebleu

    def score(translations):
        texts = tokenizer.decode([translations[i] for i in sorted(translations)])
        return sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score

    return score


def penalty(count, alpha):
    """Returns the length penalty of `BeamSearch` (Wu et al. 2016, equation 14)."""
    return ((5 + count) / 6) ** alpha


def ranked(hypotheses, scores, alpha):
    """Ranks CTranslate2's hypotheses of a sentence by the rule of `BeamSearch`.

    CTranslate2 divides sums of log-probabilities by n^alpha, for n tokens with the end token.
    """
    pairs = [
        (score * len(ids) ** alpha / penalty(len(ids), alpha), ids)
        for score, ids in zip(scores, hypotheses, strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return [ids for _, ids in pairs], [score for score, _ in pairs]


def same_work(count, other):
    """Returns whether two numbers of tokens or words are at most 2 % apart."""
    return abs(count - other) <= 0.02 * max(count, other)


def head(args):
    """Returns the head of a report: date, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": args.threads},
        "python": platform.python_version(),
        "versions": versions(*PACKAGES),
    }


def versions(*packages):
    """Returns versions by name; `None` if a package is not installed."""
    found = dict.fromkeys(packages)
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def processor():
    """Returns the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def write(report, path):
    """Writes a report as JSON, atomically.

    This does not use `keras_transformer.files`, because the package imports the frameworks. The
    process that compares engines must hold no memory of their device.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"part-{path.name}")
    aside.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(aside, path)
    print(f"written to {path}")
