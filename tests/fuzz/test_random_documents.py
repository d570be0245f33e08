"""Random HTML documents: tags, text and placeholders survive translation."""

import pathlib

import pytest

pytest.importorskip("sentencex")


def test_random_documents_keep_tags_text_and_placeholders(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)
    import documents

    assert list(documents.failures(200, seed=7)) == []
