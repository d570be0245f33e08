"""The small model in the repository, which the README's first commands run."""

import pathlib
import subprocess

import pytest
from num2words import num2words

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import Translator
from keras_transformer.export.verify import verify

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "model"


def test_its_manifest_fits_this_version_and_describes_its_files():
    artefact = read_artefact(FOLDER)
    assert artefact.manifest["format_version"] == signature.FORMAT_VERSION
    assert artefact.manifest["precision"] == "int8"
    assert artefact.manifest["example"] and verify(FOLDER) == []


def test_it_is_small_and_whole_in_the_repository():
    files = list(FOLDER.iterdir())
    assert sum(file.stat().st_size for file in files) <= 1_500_000
    command = ["git", "ls-files", "."]
    listed = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert sorted(listed.stdout.split()) == sorted(file.name for file in files)


def test_it_translates_numbers_in_words():
    numbers = [*range(1, 100, 7), 500, 1000, *range(1066, 10_000, 97)]
    translations = Translator(FOLDER).translate([num2words(n) for n in numbers])
    wrong = [
        (n, text)
        for n, text in zip(numbers, translations, strict=True)
        if text != num2words(n, lang="de")
    ]
    assert wrong == []
