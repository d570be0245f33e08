"""Command-line arguments shared by scripts that train on parallel text."""

import argparse
import hashlib
from pathlib import Path

from support.recipes import RECIPES
from support.sets import known_corpora
from support.sets.number_words import number_words
from support.sets.text_sets import read_sets
from support.task_run import checked


def make_parser(prog, description):
    """Returns a parser for the text, the model's size, the training and the folder of a run.

    Args:
        prog: str, the command, such as "python examples/translate.py"; `--output` then defaults
            to "runs/translate".
        description: str, one line about the script.

    Returns:
        `argparse.ArgumentParser`; a script adds its own arguments, and `parse` reads them all.
    """
    output = Path("runs", Path(prog).stem)
    # fmt: off
    parser = argparse.ArgumentParser(prog, description=description)
    add = parser.add_argument_group("text").add_argument
    add("--data", help="folder of parallel files (plain or .gz), or a corpus to fetch: "
        f"{', '.join(known_corpora.CORPORA)}; default: number words")
    add("--source", default="en", help="ending of the source files")
    add("--target", default="de", help="ending of the target files")
    add("--train", default="train", help="name of the training files")
    add("--valid", help="validation files; default: valid, val or dev")
    add("--test", nargs="*", help="test files; default: all test*")
    add("--limit", type=int, help="use the first LIMIT pairs of each set only")
    add("--undo-bpe", action="store_true", help="join words cut by '@@ '")
    add = parser.add_argument_group("training").add_argument
    add("--preset", choices=RECIPES, help="size and settings; default: tiny, or numbers without "
        "--data")
    add("--epochs", type=int)
    add("--vocab-size", type=int)
    add("--tokens-per-batch", type=int)
    add("--sampling-alpha", type=float, help="subword sampling in training")
    add("--start-from", type=Path, metavar="RUN", help="begin with the weights and the tokenizer "
        "of a finished run, of the same preset")
    add("--peak", type=float, help="largest learning rate; default: of the preset")
    add("--r-drop", type=float, metavar="ALPHA", help="kt.RDrop: two passes a step; the paper: 5")
    add("--replicas", type=int, help="default: every GPU, or one CPU")
    add("--dtype", default="float32", help="or mixed_bfloat16, mixed_float16")
    add("--seed", type=int, default=1)
    add("--output", type=Path, default=output, help=f"folder of the run; default: {output}")
    add("--evaluate", action="store_true", help="evaluate saved weights without training")
    # fmt: on
    return parser


def parse(parser, argv=None):
    """Parses arguments, with defaults of the preset. Integers must be at least 1, a seed 0.

    Args:
        parser: parser of `make_parser`, with the script's own arguments.
        argv: list of str. Defaults to `None`: `sys.argv[1:]`.

    Returns:
        The arguments. `recipe` holds the settings of the preset, and `command` the whole command
        for a report. It names folders only by their last part, to keep paths private.
    """
    args = checked(parser, argv)
    args.preset = args.preset or ("tiny" if args.data else "numbers")
    args.recipe = RECIPES[args.preset]
    if args.peak is not None:
        args.recipe = args.recipe | {"rate": args.recipe["rate"] | {"peak": args.peak}}
    for name in ("epochs", "vocab_size", "tokens_per_batch"):
        if getattr(args, name) is None:
            setattr(args, name, args.recipe[name])
    return args


def read_text(args):
    """Returns the `TextSets` that the arguments name."""
    if not args.data:
        return number_words(args.source, args.target, limit=args.limit)
    return read_sets(
        args.data,
        args.source,
        args.target,
        train=args.train,
        valid=args.valid,
        tests=args.test,
        undo_bpe=args.undo_bpe,
        limit=args.limit,
    )


def run_settings(args, train_set):
    """Returns the settings that identify a run, for `RunFolder.claim`.

    Args:
        args: result of `parse`.
        train_set: pair of lists of strings; the settings hold their SHA-256.
    """
    rate = dict(args.recipe["rate"])
    if rate.get("anneal"):  # the rate depends on the number of epochs
        rate["epochs"] = args.epochs
    digest = hashlib.sha256("\n".join(train_set[0] + train_set[1]).encode()).hexdigest()
    names = "vocab_size tokens_per_batch sampling_alpha r_drop replicas dtype seed".split()
    settings = {name: getattr(args, name) for name in names}
    settings["start_from"] = args.start_from and args.start_from.name
    return {"model": args.recipe["model"], "rate": rate, **settings, "train_sha256": digest}
