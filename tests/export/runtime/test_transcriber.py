"""Searches over arrays against what a tokenizer alone says that their texts must be."""

import logging

import numpy as np
import pytest
from support import array_search, artefacts

from keras_transformer.export.runtime import ArtefactError, Transcriber, Translation


@pytest.fixture(scope="module")
def transcriber(tokenizer, tmp_path_factory):
    return Transcriber(array_search.write(tmp_path_factory.mktemp("codes"), tokenizer), threads=1)


def test_arrays_become_texts_whatever_their_company(tokenizer, transcriber):
    codes = [np.float32(row) for row in tokenizer.encode(artefacts.LINES * 3)]
    expected = [
        Translation((line,), (-float(sum(row)),))
        for line, row in zip(artefacts.LINES * 3, codes, strict=True)
    ]
    assert transcriber.n_best(codes) == expected
    assert list(transcriber.n_best_stream(iter(codes), batch_tokens=1, read_ahead=2)) == expected
    assert transcriber.transcribe([{"codes": row} for row in codes]) == artefacts.LINES * 3
    assert transcriber.transcribe(codes[0][None]) == artefacts.LINES[:1]


def test_a_bad_array_has_an_error_and_leaves_the_others_alone(tokenizer, transcriber, caplog):
    good = tokenizer.encode("two dogs")
    with caplog.at_level(logging.WARNING):
        assert transcriber.transcribe([good, [good], "", str(good)]) == ["two dogs", "", ""] + [
            "two dogs"
        ]
    assert "line 2 is not transcribed: 'codes' has the shape" in caplog.text
    with pytest.raises(TypeError, match="`inputs` must be an iterable of inputs"):
        transcriber.transcribe("[5]")


def test_a_search_that_draws_nothing_takes_no_seed(transcriber):
    with pytest.raises(ValueError, match="`seed` was passed, this artefact has the task 'transcr"):
        transcriber.transcribe([[5.0]], seed=3)


def test_a_translator_is_refused(folder):
    with pytest.raises(ArtefactError, match="Transcriber serves 'transcribe'"):
        Transcriber(folder)
