"""Checks an artefact on this machine: checksums, and answers that its manifest holds.

    python -m keras_transformer.export.verify FOLDER_OR_NAME

Needs no framework. The exit status is 0 if all holds, 1 if an answer differs, 2 if the artefact is
damaged, cannot be loaded or cannot be run.
"""

import argparse
import sys

import numpy as np

from keras_transformer.export.artefact.hub import download
from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.runtime.engine import ProviderError
from keras_transformer.export.runtime.sessions import open_session
from keras_transformer.types import StrPath

# Largest difference of a number, relative to its size but at least 1.
TOLERANCES = {"float32": 1e-3}
LOWER_PRECISION = 0.05


def verify(name: StrPath, revision: str | None = None) -> list[str] | None:
    """Runs the stored batch and compares the results with the stored ones.

    Args:
        name: path of a folder, or "user/name" on the hub.
        revision: of the hub. Defaults to `None`: the newest commit.

    Returns:
        A line for each output that differs; `None` if the manifest holds no answers.

    Raises:
        ArtefactError: the artefact is damaged, or the hub does not give it.
        ProviderError: its engine does not run here.

    Example:

    >>> verify("out/onnx")  # doctest: +SKIP
    []
    """
    artefact = read_artefact(download(name, revision))
    print(f"{len(artefact.states)} files have the checksums of the manifest")
    example = artefact.manifest.get("example")
    if example is None:
        return None
    types = {
        value["name"]: value["dtype"]
        for value in (*artefact.manifest["inputs"], *artefact.manifest.get("options", ()))
    }
    inputs = {x: np.array(rows, types[x]) for x, rows in example["inputs"].items() if x in types}
    names = list(example["outputs"])
    found = open_session(artefact).run(names, inputs)
    print(f"ran the stored batch on {engine_of(artefact.manifest)}")
    tolerance = TOLERANCES.get(artefact.manifest["precision"], LOWER_PRECISION)
    faults = []
    for output, array in zip(names, found, strict=True):
        expected = np.array(example["outputs"][output])
        if array.shape != expected.shape:
            faults.append(f"{output}: shape {array.shape}, stored is {expected.shape}")
            continue
        exact = array.dtype.kind in "bi"
        error = abs(array - expected) / np.maximum(1, abs(expected))
        wrong = (array != expected) if exact else ~(error <= tolerance)
        if wrong.any():
            faults.append(f"{output}: {wrong.sum()} of {wrong.size} numbers differ")
    return faults


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.verify", description=__doc__.splitlines()[0]
    )
    parser.add_argument("name", help='folder, or "user/name" on the hub')
    parser.add_argument("--revision", help="branch, tag or commit; default: the newest commit")
    args = parser.parse_args()
    try:
        faults = verify(args.name, args.revision)
    except (ArtefactError, ImportError, ProviderError) as error:
        print(error, file=sys.stderr)
        return 2
    if faults is None:
        print(f"{args.name}: only checksums were compared, because the manifest holds no answers")
        return 0
    for fault in faults:
        print(fault)
    print(f"{args.name}: {'answers differ' if faults else 'verified'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
