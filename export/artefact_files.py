"""The base of the formats that write an artefact: one manifest for every engine.

`export.artefact.manifest` describes the manifest.
"""

import abc
import contextlib
import importlib.metadata
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from keras_transformer.call_options import bounds
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import digest, seal
from keras_transformer.export.exporter import Format, Part, part_of
from keras_transformer.export.staging import WhyNot, why_not_files
from keras_transformer.export.tasks import Task

PACKAGES = ("keras-transformer-onnx", "tensorflow", "keras")


class ArtefactFiles(Format):
    """Files of an artefact. A subclass defines `write`, `run` and `described`.

    Args:
        task: `SearchTask` or `ForwardTask`.
        samples: inputs for the proof, or `None`.
        precision: of the weights, as in the manifest.

    Attributes:
        limits, text: as in the manifest.
        packages: names of packages whose versions the manifest has, beside `PACKAGES`.
    """

    why_not: WhyNot = staticmethod(
        why_not_files(
            {signature.MANIFEST_FILE, *signature.FILES},
            signature.MANIFEST_FILE,
            {"format": signature.FORMAT},
        )
    )
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, task: Task, samples: Sequence[Any] | None, precision: str) -> None:
        self.task: Task = task
        self.precision: str = precision
        self.parts: Sequence[Part] = [part_of(task, samples)]
        self.limits: dict[str, Any] = task.limits(None)
        self.text: dict[str, Any] | None = None

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Returns the fields of the manifest that depend on the files.

        They are `inputs` with those of the options, `outputs`, `opsets` and `ir_version`, and where
        they have another value than the default `engine` and `layout`.
        """

    def seal(self, folder: pathlib.Path, proof: dict[str, Any]) -> dict[str, Any]:
        task, described = self.task, self.described()
        defaults = task.option_defaults
        inputs = described.pop("inputs")
        options = [self._option(value) for value in inputs if value["name"] in defaults]
        sealed = seal(
            {
                "task": task.name,
                "inputs": [value for value in inputs if value["name"] not in defaults],
                "outputs": described.pop("outputs"),
                "text": self.text,
                "special_ids": signature.SPECIAL_IDS,
                "vocab_size": task.vocab_size,
                "limits": self.limits,
                "search": task.search_config,
                "precision": self.precision,
                "opsets": described.pop("opsets"),
                "ir_version": described.pop("ir_version"),
                "versions": _versions((*PACKAGES, *self.packages)),
                "proof": proof,
                **task.manifest_fields(self.parts[0].cases),
                **({"options": options} if options else {}),
                **({"example": self.example} if self.example else {}),
                **described,
                "files": {file.name: digest(file) for file in sorted(folder.iterdir())},
            }
        )
        (folder / signature.MANIFEST_FILE).write_bytes(sealed)
        return json.loads(sealed)

    def _option(self, value: dict[str, Any]) -> dict[str, Any]:
        """Returns an entry of the field `options`: an input with its default and its bounds."""
        default = self.task.option_defaults[value["name"]]
        lowest, highest = bounds(value["name"], default.item() if default.size == 1 else 0)
        lowest = self.task.lowest.get(value["name"], lowest)
        highest = self.task.highest.get(value["name"]) or highest
        return {**value, "default": default.tolist(), "lowest": lowest, "highest": highest}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of installed packages."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
