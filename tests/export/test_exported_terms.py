"""Terms of exported searches: Keras and both ONNX layouts agree."""

import numpy as np
import pytest
from helpers import exports, runtime_process
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import Translator
from keras_transformer.export.runtime.glossaries import terms_of_lines
from keras_transformer.export.runtime.session import open_session

SEARCH = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])
FREE = kt.BeamSearch(5, 0.6)
SOURCE = exports.source(rows=7, length=7)
TERMS = np.random.default_rng(2).integers(4, exports.VOCAB, (7, 2, 3)).astype("int32")
TERMS *= (
    np.arange(3) < np.array([[3, 1], [0, 0], [2, 3], [1, 0], [1, 1], [3, 2], [2, 0]])[..., None]
)


def folder(layout="loop"):
    return exports.artefact(SEARCH, layout=layout)


def same(found, expected):
    np.testing.assert_array_equal(found[0], expected.ids)
    np.testing.assert_allclose(found[1], expected.scores, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("layout", quick(["loop", "steps"], "loop"))
def test_onnx_gives_the_results_of_keras(layout):
    model, session = exports.shared_model(), open_session(read_artefact(folder(layout)))
    names = ["token_ids", "scores"]
    for rows in (slice(0, 7), slice(2, 3), slice(0, 0)):
        inputs = {"source_ids": SOURCE[rows], "terms": TERMS[rows]}
        expected = SEARCH(model, SOURCE[rows], exports.MAX_LENGTH, terms=TERMS[rows])
        same(session.run(names, inputs), expected)
    for ids, term in zip(SEARCH(model, SOURCE, 11, terms=TERMS).ids.numpy(), TERMS, strict=True):
        assert all(set(term[term > 0]) <= set(row) for row in ids)
    expected = FREE(model, SOURCE, exports.MAX_LENGTH)
    for more in ({}, {"terms": np.zeros([1, 0, 0], np.int32)}, {"terms": 0 * TERMS}):
        same(session.run(names, {"source_ids": SOURCE, **more}), expected)


LINES = ["a man 's hat , red .", "", "the Dog  runs", "two words"]


@pytest.mark.full
def test_a_text_is_one_term_beside_a_glossary():
    found = list(terms_of_lines(["a hat", "no"], {"hat": "Hut"}, "rot"))
    assert found == [["rot", "Hut"], ["rot"]]
    found = list(terms_of_lines(["a hat", "no"], {"hat": "Hut"}, iter(["rot", ["neu"]])))
    assert found == [["rot", "Hut"], ["neu"]]


@pytest.mark.full
def test_translations_contain_terms_and_glossary_entries(tmp_path):
    translator = Translator(folder(), threads=1)
    free = Translator(exports.artefact(FREE), threads=1).translate(LINES)
    assert translator.translate(LINES) == translator.translate(LINES, terms=[[]] * 4) == free
    assert translator.translate(LINES, terms=[]) == free
    found = translator.translate(LINES, terms=[["hat", "red"], [], [], ["dog"]])
    assert all(word in found[0] for word in ("hat", "red")) and "dog" in found[3]
    assert found[1:3] == free[1:3]
    for_all = translator.translate(LINES, terms=["two"])
    assert all("two" in text for text in (for_all[0], *for_all[2:]))

    (tmp_path / "words.tsv").write_text("the dog\tein mann\nred\tdog\n", encoding="utf-8")
    found = translator.translate(LINES, glossary=tmp_path / "words.tsv")
    assert "dog" in found[0] and "ein mann" in found[2] and found[3] == free[3]
    both = {"terms": [[], [], ["red"], []], "glossary": kt.Glossary.read(tmp_path / "words.tsv")}
    streamed = list(translator.translate_stream(LINES, read_ahead=1, **both))
    assert "ein mann" in streamed[2] and "red" in streamed[2]

    data, flags = "\n".join(LINES).encode(), ["--glossary", tmp_path / "words.tsv"]
    status, output, _ = runtime_process.translate(data, folder(), "--terms", "two", *flags)
    written = output.splitlines()
    assert status == 0 and "two" in written[0] and "dog" in written[0] and "ein mann" in written[2]
    status, _, errors = runtime_process.translate(data, folder(), "--glossary", "no.tsv")
    assert status == 2
    assert "error: --glossary no.tsv cannot be read: There is no such text file" in errors


@pytest.mark.full
def test_terms_that_cannot_be_written_are_errors_of_their_line():
    translator = Translator(folder(), threads=1)
    results = translator.n_best(LINES[2:], terms=[["a man 's hat , red . a man 's hat"], ["dog"]])
    assert "do all terms fit into max_length?" in results[0].error
    assert results[1].error is None
    with pytest.raises(ValueError, match="no pieces for '' of terms"):
        translator.translate(LINES, terms=[""])
    with pytest.raises(ValueError, match="'terms' was passed, but .* takes the options"):
        Translator(exports.artefact(FREE), threads=1).translate(LINES, terms=["dog"])
