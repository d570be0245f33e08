"""The command line: an artefact, input files, a folder to fill."""

import argparse

from keras_transformer.export.archive.job import PART_LINES, run_archive
from keras_transformer.export.archive.outputs import ENDINGS
from keras_transformer.export.runtime.console import tell

_EPILOG = (
    "The same command again goes on where an earlier one was stopped or killed. Exit status: 0 "
    "every part is there; 1 the job could not be begun or a worker failed; 2 wrong arguments; 130 "
    "interrupted."
)


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.archive",
        description="Answers every line of the input files with an exported artefact, by Ray Data, "
        "and writes parts whose names are in the order of the lines.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("artefact", help="what export_onnx wrote")
    add(
        "inputs",
        nargs="+",
        help="files, or patterns in quotes: text, .jsonl and .parquet; the first two also as .gz",
    )
    add("folder", help="what to fill; one of a stopped job is gone on with")
    add("--format", choices=sorted(ENDINGS), default="parquet", help="(default %(default)s)")
    add("--column", default="text", help="read of Parquet and JSON lines (default %(default)s)")
    add("--with-source", action="store_true", help="write what was read, in a column of its own")
    add(
        "--part-lines",
        type=int,
        default=PART_LINES,
        metavar="N",
        help="lines of an output file (default %(default)s)",
    )
    add(
        "--batch-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="tokens read by a batch, padding included (default %(default)s)",
    )
    add("--seed", type=int, metavar="N", help="of sampling (default: drawn, and kept in the plan)")
    add(
        "--address",
        default="local",
        help="of a Ray cluster; 'auto' for the one that this machine is part of (default: this "
        "machine alone)",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes that answer (default: as many as there is room for at the beginning)",
    )
    add(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="cores of a worker (default %(default)s)",
    )
    add("--gpus", type=float, default=0, metavar="N", help="GPUs of a worker, such as 1 or 0.5")
    add("--provider", action="append", metavar="NAME", help="as in export.runtime's command")
    add("--quiet", action="store_true", help="no progress")
    return parser.parse_args(arguments)


def main(arguments=None):
    """The command line. Returns the exit status."""
    options = vars(_parse(arguments))
    artefact, inputs, folder = (options.pop(name) for name in ("artefact", "inputs", "folder"))
    try:
        done = run_archive(artefact, inputs, folder, providers=options.pop("provider"), **options)
    except (ImportError, OSError, ValueError) as error:
        tell(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        tell("\ninterrupted; parts that are done stay, and the same command goes on from there\n")
        return 130
    if not options["quiet"]:
        tell(
            "{answered:,} of {lines:,} lines answered by this run, {errors:,} of them with an "
            "error; {parts:,} parts\n".format(**done)
        )
    return 0
