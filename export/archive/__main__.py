"""The command line: `python -m keras_transformer.export.archive ARTEFACT INPUT ... FOLDER`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer.export.archive.job import PART_LINES, run_archive
from keras_transformer.export.archive.outputs import ENDINGS
from keras_transformer.export.artefact.messages import flags_of, in_shell
from keras_transformer.export.runtime.console import tell

_EPILOG = (
    "The same command continues a job that was stopped or killed. Exit status: 0 every part is "
    "finished; 1 the job could not start or a worker failed; 2 wrong arguments; 130 interrupted."
)


# The arguments of the command, as `add_argument` takes them.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "artefact": {"help": "folder that export_onnx wrote"},
    "inputs": {
        "nargs": "+",
        "help": "files, or patterns in quotes: text, .jsonl and .parquet; the first two also as "
        ".gz",
    },
    "folder": {"help": "for the parts; a job that was stopped continues in its folder"},
    "--format": {"choices": sorted(ENDINGS), "default": "parquet", "help": "(default %(default)s)"},
    "--column": {
        "default": "text",
        "help": "column to read from Parquet and JSON lines (default %(default)s)",
    },
    "--with-source": {
        "action": "store_true",
        "help": "write the source text, too, in its own column",
    },
    "--part-lines": {
        "type": int,
        "default": PART_LINES,
        "metavar": "N",
        "help": "lines of an output file (default %(default)s)",
    },
    "--batch-tokens": {
        "type": int,
        "default": 2048,
        "metavar": "N",
        "help": "tokens read by a batch, padding included (default %(default)s)",
    },
    "--seed": {
        "type": int,
        "metavar": "N",
        "help": "seed of sampling (default: random, kept in plan)",
    },
    "--address": {
        "default": "local",
        "help": "address of a Ray cluster; 'auto' for this machine's cluster (default: this "
        "machine alone)",
    },
    "--workers": {
        "type": int,
        "metavar": "N",
        "help": "processes that compute (default: all that fit at the start)",
    },
    "--threads": {
        "type": int,
        "default": 1,
        "metavar": "N",
        "help": "cores of a worker (default %(default)s)",
    },
    "--gpus": {
        "type": float,
        "default": 0,
        "metavar": "N",
        "help": "GPUs of a worker, such as 1 or 0.5",
    },
    "--provider": {"action": "append", "metavar": "NAME", "help": "as in export.runtime's command"},
    "--quiet": {"action": "store_true", "help": "no progress"},
}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.archive",
        description="Computes a result for every line of the input files with an artefact, by Ray "
        "Data, and writes parts whose names are in the order of the lines.",
        epilog=_EPILOG,
    )
    for name, options in _ARGUMENTS.items():
        parser.add_argument(name, **options)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    options = vars(_parse(arguments))
    artefact, inputs, folder = (options.pop(name) for name in ("artefact", "inputs", "folder"))
    try:
        done = run_archive(artefact, inputs, folder, providers=options.pop("provider"), **options)
    except (ImportError, OSError, ValueError) as error:
        flags = flags_of(options, providers="--provider")
        tell(f"error: {in_shell(str(error), flags)}\n")
        return 1
    except KeyboardInterrupt:
        tell("\ninterrupted; finished parts stay, and the same command continues from there\n")
        return 130
    if not options["quiet"]:
        tell(
            "{answered:,} of {lines:,} lines answered by this run, {errors:,} of them with an "
            "error; {parts:,} parts\n".format(**done)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
