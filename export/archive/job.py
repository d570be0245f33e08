"""The whole job: plan, parts that are missing, Ray Data over them, progress."""

import contextlib
import os
import pathlib
import secrets
import shutil

from keras_transformer.export.archive.cluster import answered, ray_settings, running_ray
from keras_transformer.export.archive.outputs import ENDINGS
from keras_transformer.export.archive.plan import (
    ArchiveError,
    check_same,
    find_inputs,
    make_plan,
    read_plan,
    write_plan,
)
from keras_transformer.export.archive.progress import JobProgress
from keras_transformer.export.archive.worker import TRIES_ENDING
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.files import checked_path

PART_LINES = 2000
LOCK_FILE = ".lock"


def run_archive(
    artefact,
    inputs,
    folder,
    *,
    format="parquet",
    column="text",
    with_source=False,
    part_lines=PART_LINES,
    batch_tokens=2048,
    seed=None,
    address="local",
    workers=None,
    threads=1,
    gpus=0,
    providers=None,
    quiet=False,
):
    """Answers every line of the input files, and writes the answers into a folder, in order.

    A folder that an earlier run of the same job has left, killed or not, is gone on with: parts
    that are there stay as they are. On several machines all of them see artefact, inputs and folder
    under the same paths.

    Args:
        artefact: folder that `export_onnx` wrote, for a task that gives one answer a line.
        inputs: list of files, or of patterns such as ``"in/*.txt.gz"``: text, JSON lines or
            Parquet, by their names. Their order is that of the list, the files of a pattern sorted
            by name.
        folder: folder to fill: a new one, an empty one, or one of the same job.
        format: "parquet", "jsonl" (one JSON object a line) or "text" (one text a line, errors in
            files beside it). The last two are packed by gzip. Defaults to "parquet".
        column: str, what to read in Parquet and JSON lines. Defaults to "text".
        with_source: bool, whether what was read stands in a column of its own.
        part_lines: int, lines of a part. Up to five parts, of 10,000 lines at most, are answered
            together, which is what a kill can cost a worker. Defaults to 2,000; for jobs of many
            millions of lines take more, so that there are fewer files.
        batch_tokens: int, most tokens of a batch, padding included.
        seed: int, of artefacts that sample. Defaults to `None`: drawn once for the whole job.
        address: of a Ray cluster, such as "auto". Defaults to "local", this machine alone. Ray
            then listens on 127.0.0.1 only, unless the program has imported Ray before. If Ray is
            up in this process already, that is used.
        workers: int, processes that answer. Defaults to `None`: as many as the cluster has room for
            when the job begins.
        threads: int, cores of a worker. Defaults to 1, which is fastest for many lines.
        gpus: int or float, GPUs of a worker. Defaults to 0.
        providers: list of ONNX Runtime's execution providers, as `Translator` takes it.
        quiet: bool, tell no progress on stderr.

    Returns:
        Dict: `parts`, `lines` of the whole job; `answered` and `errors`, lines of this run, and
        those among them without an answer.

    Raises:
        ArchiveError: the folder is of another job or in use, an input file has changed or cannot be
            read, or a worker failed; the message says how to go on.
        ArtefactError: the artefact is damaged, or none.
        ValueError: an argument that no job can have.
        ImportError: Ray or PyArrow is missing.

    Example:

    >>> run_archive("out/onnx", ["in/*.txt.gz"], "out/archive")  # doctest: +SKIP
    {'parts': 50, 'lines': 100000, 'answered': 100000, 'errors': 3}
    """
    sizes = {"part_lines": part_lines, "batch_tokens": batch_tokens, "threads": threads}
    _check_arguments(format, workers, **sizes)
    with ray_settings(address):
        _check_installed()
    artefact, folder = pathlib.Path(artefact).absolute(), checked_path(folder).absolute()
    manifest = read_artefact(artefact).manifest
    _check_task(manifest, seed)
    options = {
        "artefact": manifest["checksum"],
        "format": format,
        "column": column,
        "with_source": with_source,
        "part_lines": part_lines,
        "batch_tokens": batch_tokens,
        "seed": seed,
    }
    paths = find_inputs(inputs)
    folder.mkdir(parents=True, exist_ok=True)
    read_plan(folder)  # raises before a lock file is written into a foreign folder
    with _locked(folder):
        plan = _planned(folder, options, paths, _samples(manifest))
        parts, there = plan.parts(), set(os.listdir(folder))
        missing = [part for part in parts if part.name not in there]
        left, errors = sum(part.lines for part in missing), 0
        progress = JobProgress(plan.lines, plan.lines - left, quiet)
        progress.tell()
        if missing:
            arguments = str(artefact), str(folder), plan.options, providers, threads
            with running_ray(address, workers, threads):
                for done in answered(missing, arguments, workers, threads, gpus):
                    errors += done["errors"]
                    progress.add(done["lines"])
            progress.tell()
    return {"parts": len(parts), "lines": plan.lines, "answered": left, "errors": errors}


def _check_arguments(format, workers, **sizes):
    """Raises `ValueError` for what no job can have."""
    if format not in ENDINGS:
        raise ValueError(f"`format` must be one of {sorted(ENDINGS)}, got {format!r}.")
    for name, value in {**sizes, "workers": workers}.items():
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")


def _check_installed():
    try:
        import pyarrow  # noqa: F401
        import ray.data  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"An archive job needs {error.name}, which is not installed here. Install it with: "
            "pip install 'keras-transformer-onnx[ray]'",
            name=error.name,
        ) from error


def _check_task(manifest, seed):
    """Raises for an artefact that gives no text, and for a seed that nobody asks for."""
    if manifest["task"] == "forward":
        raise ArchiveError(
            "This artefact was exported without a head, so its outputs have no columns. Export "
            "the model with a head, such as FeatureExtraction, or answer the lines with Predictor."
        )
    if seed is not None and not _samples(manifest):
        raise ValueError("`seed` was passed, but this artefact draws no random numbers.")


def _samples(manifest):
    return any(value["name"] == signature.SEED for value in manifest["inputs"])


@contextlib.contextmanager
def _locked(folder):
    """Keeps a second job out of the folder; the system lets go of it however this one ends."""
    import fcntl  # not on Windows, where Ray has no clusters either

    with open(folder / LOCK_FILE, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveError(
                f"{folder} is in use by another job. Wait for its end, or stop it."
            ) from error
        for aside in folder.glob(".*.partial"):  # what killed workers have left
            shutil.rmtree(aside, ignore_errors=True)
        for tries in folder.glob(f".*{TRIES_ENDING}"):
            tries.unlink()
        yield


def _planned(folder, options, paths, samples):
    """The plan in the folder, if it is for the same; or a new one, which is written there."""
    plan = read_plan(folder)
    if plan is None:
        if samples and options["seed"] is None:
            options["seed"] = secrets.randbelow(signature.MOST_SEED + 1)
        plan = make_plan(options, paths)
        write_plan(plan, folder)
    else:
        if options["seed"] is None:
            options["seed"] = plan.options["seed"]
        check_same(plan, options, paths, folder)
    return plan
