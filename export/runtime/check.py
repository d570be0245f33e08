"""`--check`: one look at what is wrong with serving an artefact on this machine.

First what is installed, and its faults; then the artefact; then every provider that would be tried,
until one serves. Each part is printed before the next begins: a library that is broken enough can
end the process.
"""

import json
import shutil
import textwrap

from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.runtime.faults import faults
from keras_transformer.export.runtime.installation import look
from keras_transformer.export.runtime.trials import candidates, example, tried, verdict

_HEADING = 18  # characters


def check(folder=None, providers=None, *, threads=None, as_json=False):
    """Prints what was found, lines for people or one of JSON; returns the exit status.

    Args:
        folder: str or path, what `export_onnx` wrote; None for the installation alone.
        providers: list of str, to serve on; None for what the runtime takes by itself.
        threads: int, of a batch.
        as_json: bool.

    Returns:
        0 if the artefact serves as asked, 1 if on another provider than the best, 2 if it cannot
        be served. Without `folder` the same of a model that onnxruntime brings.
    """

    def show(rows):
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
            trials.append(tried(subject, names, threads))
            show(trial_rows(trials[-1]))
            if trials[-1].error is None:
                break
    status, words = verdict(trials)
    show([("verdict", words), ("exit status", str(status))])
    if as_json:
        print(json.dumps(_report(found, wrong, artefact, error, trials, status, words)), flush=True)
    return status


def table(rows):
    """Pairs of heading and text as lines, wrapped to the terminal."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    lines = []
    for heading, text in rows:
        first = f"{heading} ".ljust(_HEADING)
        wrapper = textwrap.TextWrapper(
            width, first, " " * _HEADING, break_long_words=False, break_on_hyphens=False
        )
        lines += wrapper.wrap(text)
    return "\n".join(lines)


def installation_rows(found):
    """What the table says of an `Installation`."""
    packages = [f"{name} {version}" for name, version in found.packages.items()]
    built = f"built for CUDA {found.cuda}" if found.cuda else "built without CUDA"
    what = f"{found.onnxruntime}, {built}" if found.onnxruntime else "broken"
    yield "onnxruntime", f"{what}, from {', '.join(packages) or 'no package'}"
    yield "providers", ", ".join(found.providers) or "none"
    driver = found.driver
    if not driver.library:
        yield "NVIDIA driver", f"none ({driver.error})"
    else:
        yield (
            "NVIDIA driver",
            f"{driver.version or 'of unknown version'}, for CUDA up to {driver.cuda}",
        )
    for line in driver.gpus or ():
        yield "GPU", line
    if found.cuda:
        for name, versions in found.asked.items():
            there = found.wheels.get(name, "no such package")
            yield "CUDA package", f"{name}: {there}; onnxruntime asks for {versions or 'any'}"
        for name in sorted(set(found.wheels) - set(found.asked)):
            yield "CUDA package", f"{name}: {found.wheels[name]}"
        for name, library in found.libraries.items():
            yield "library", f"{name}: {'cannot be loaded' if library.error else library.path}"
        yield "LD_LIBRARY_PATH", found.search_path or "not set"


def artefact_rows(artefact, found):
    """What the table says of an `Artefact` whose files are all as they were written."""
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


def trial_rows(trial):
    """What the table says of a `Trial`."""
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


def _report(found, wrong, artefact, error, trials, status, words):
    """All of it as JSON takes it."""
    installation = found._asdict() | {
        "driver": found.driver._asdict(),
        "libraries": {name: library._asdict() for name, library in found.libraries.items()},
    }
    fields = ("task", "precision", "opsets", "ir_version", "versions")
    return {
        "installation": installation,
        "faults": wrong,
        "artefact": {name: artefact.manifest[name] for name in fields} if artefact else None,
        "artefact_error": error,
        "trials": [trial._asdict() for trial in trials],
        "verdict": words,
        "status": status,
    }
