"""Random HTML documents: tags, text and placeholders come back."""

import pathlib

import pytest

pytest.importorskip("sentencex")


def test_random_documents_come_back(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)
    import documents

    assert list(documents.failures(200, seed=7)) == []
