"""Random documents of every format: structure, text and code survive translation."""

import pathlib

import pytest

pytest.importorskip("sentencex")


@pytest.mark.full("formats-500")
@pytest.mark.parametrize("script, seed", [("documents", 7), ("formats", 500)])
def test_random_documents_keep_structure_text_and_code(monkeypatch, script, seed):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)
    module = __import__(script)
    assert list(module.failures(200, seed=seed)) == []
