"""`--check`: checks whether this machine can serve an artefact.

It prints the installation and its faults, the artefact, and the trials of providers until one
serves. Each part is printed before the next begins, because a broken library can end the process.
"""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from keras_transformer.export.artefact.reader import Artefact, ArtefactError, read_artefact
from keras_transformer.export.runtime.installation import Installation, faults, look
from keras_transformer.export.runtime.trials import (
    Trial,
    candidates,
    example,
    try_providers,
    verdict,
)
from keras_transformer.types import StrPath

_HEADING = 18  # characters


def check(
    folder: StrPath | None = None,
    providers: list[str] | None = None,
    *,
    threads: int | None = None,
    as_json: bool = False,
) -> int:
    """Prints the findings, as a table or one line of JSON, and returns the exit status.

    Args:
        folder: str or path, the folder that `export_onnx` wrote; None for the installation alone.
        providers: list of str, providers to serve on; None for the runtime's default.
        threads: int, threads of a batch.
        as_json: bool.

    Returns:
        0 if the artefact serves as requested, 1 if only on another provider than the best, 2 if it
        cannot be served. Without `folder`, the same for an example model of onnxruntime.
    """

    def show(rows: Iterable[tuple[str, str]]) -> None:
        if not as_json:
            print(table(rows), flush=True)

    found = look()
    wrong = faults(found)
    show([*installation_rows(found), *(("fault", fault) for fault in wrong)])
    artefact = error = None
    if folder is not None:
        try:
            artefact = read_artefact(folder)
        except ArtefactError as caught:
            error = str(caught)
        show(artefact_rows(artefact, found) if artefact else [("artefact", f"bad: {error}")])
    trials = []
    if error is None and found.onnxruntime is not None:
        subject = artefact or example()
        for names in candidates(found, subject.manifest["precision"], providers):
            trials.append(try_providers(subject, names, threads))
            show(trial_rows(trials[-1]))
            if trials[-1].error is None:
                break
    status, words = verdict(trials)
    show([("verdict", words), ("exit status", str(status))])
    if as_json:
        fields = ("task", "precision", "opsets", "ir_version", "versions")
        report = {
            "installation": asdict(found),
            "faults": wrong,
            "artefact": {name: artefact.manifest[name] for name in fields} if artefact else None,
            "artefact_error": error,
            "trials": list(map(asdict, trials)),
            "verdict": words,
            "status": status,
        }
        print(json.dumps(report), flush=True)
    return status


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Returns pairs of heading and text as lines, wrapped to the terminal."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    lines = []
    for heading, text in rows:
        first = f"{heading} ".ljust(_HEADING)
        wrapper = textwrap.TextWrapper(
            width, first, " " * _HEADING, break_long_words=False, break_on_hyphens=False
        )
        lines += wrapper.wrap(text)
    return "\n".join(lines)


def installation_rows(found: Installation) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table about an `Installation`."""
    packages = [f"{name} {version}" for name, version in found.packages.items()]
    built = f"built for CUDA {found.cuda}" if found.cuda else "built without CUDA"
    what = f"{found.onnxruntime}, {built}" if found.onnxruntime else "broken"
    yield "onnxruntime", f"{what}, from {', '.join(packages) or 'no package'}"
    yield "providers", ", ".join(found.providers) or "none"
    driver = found.driver
    version = f"{driver.version or 'of unknown version'}, for CUDA up to {driver.cuda}"
    yield "NVIDIA driver", version if driver.library else f"none ({driver.error})"
    for line in driver.gpus or ():
        yield "GPU", line
    for line in found.debug_info:
        yield "debug info", line


def artefact_rows(artefact: Artefact, found: Installation) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table about an `Artefact`."""
    manifest = artefact.manifest
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    count = len(manifest["files"])
    opsets = [f"{domain or 'ONNX'} {number}" for domain, number in manifest["opsets"].items()]
    yield "artefact", f"{artefact.folder}: {count} files, {size / 1e6:,.1f} MB, checksums right"
    yield "task", f"{manifest['task']}, precision {manifest['precision']}"
    yield "opsets", f"{', '.join(opsets)}; IR version {manifest['ir_version']}"
    if manifest["text"] is not None:
        here = found.extensions or "missing: pip install onnxruntime-extensions"
        yield (
            "text model",
            f"needs onnxruntime-extensions ({here}); serving by this package does not",
        )


def trial_rows(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yields the rows of the table about a `Trial`."""
    if trial.nodes:
        total = sum(trial.nodes.values())
        runs = [f"{count} of {total} nodes on {name}" for name, count in trial.nodes.items()]
        yield "provider", f"{trial.provider} came up: {', '.join(runs)}"
    if trial.on_cpu:
        operators = [f"{name} {count}" for name, count in list(trial.on_cpu.items())[:8]]
        yield (
            "on the CPU",
            f"{sum(trial.on_cpu.values())} nodes: {', '.join(operators)}"
            + (", and others" if len(trial.on_cpu) > 8 else ""),
        )
    if trial.error is not None:
        yield "provider", f"{trial.provider} cannot serve: {trial.error}"
    if trial.seconds:
        shapes = [f"{name} {shape}" for name, shape in trial.shapes.items()]
        first, second = (f"{1000 * seconds:,.1f} ms" for seconds in trial.seconds)
        yield "run", f"{first}, then {second}, with made-up inputs: {', '.join(shapes)}"
