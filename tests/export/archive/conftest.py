"""Fixtures of the tests without Ray: two files to translate, and a translator."""

import pytest
from helpers import archives, artefacts

from keras_transformer.export.archive import plan


@pytest.fixture
def inputs(tmp_path):
    """Two files: five lines, one of them too long, and one that is not UTF-8."""
    archives.write_text(tmp_path / "a.txt.gz", archives.LINES)
    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    return plan.find_inputs([tmp_path / "a*", tmp_path / "*.txt"])


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return artefacts.write(tmp_path_factory.mktemp("archive") / "onnx", artefacts.tokenizer())


@pytest.fixture
def job(translator, inputs, tmp_path):
    """A job of four parts, in the folder `out`."""
    return archives.Job(tmp_path / "out", translator, inputs)
