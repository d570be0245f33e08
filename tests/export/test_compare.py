"""`compare_with_keras`: counts sentences with the same tokens, in another process."""

import gzip
import sys

import pytest
from helpers import exports
from helpers.exports import LINES as TRAINED

import keras_transformer as kt
from keras_transformer.export import Comparison, compare, compare_with_keras
from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.text.vocabularies import with_tokenizers

OTHER = kt.Tokenizer.train([line[::-1] for line in TRAINED], exports.VOCAB, hard_vocab_limit=False)
LINES = [*TRAINED, "a red dog", "two men run , a dog 's hat ."]


@pytest.mark.full
def test_keras_and_the_artefact_agree(monkeypatch):
    monkeypatch.setattr(compare, "BATCH_SIZE", 2)
    lines = [*LINES, "a man\0 rides a red bike"]  # ends at the NUL character
    found = compare_with_keras(exports.shared_model(), exports.artefact(), lines, lines)
    assert found.sentences == found.same_tokens == found.same_texts == len(lines) == 7
    assert min(found.keras_seconds, found.onnx_seconds, found.text_seconds) > 0
    assert set(found.keras_scores) == {"BLEU", "chrF"} and found.keras_scores == found.onnx_scores
    assert "the same tokens in 7 of 7" in str(found) and "BLEU: Keras" in str(found)


@pytest.mark.full
def test_sentences_that_differ_are_counted():
    other = exports.tiny()
    other.set_weights([weight * 0.5 for weight in other.get_weights()])
    found = compare_with_keras(other, exports.artefact(), LINES)
    assert found.same_tokens < found.sentences == 6 and found.same_texts < 6


@pytest.mark.full
@pytest.mark.parametrize("layout", [{}, {"layout": "steps"}])
def test_samples_of_a_language_model_are_compared_without_a_text_model(layout):
    folder = exports.artefact(exports.SAMPLING, "generate", **layout)
    found = compare_with_keras(exports.shared_model("generate"), folder, LINES[:3])
    assert found.same_tokens == 3
    assert found.same_texts is None and found.text_seconds is None and "strings" not in str(found)


@pytest.mark.full
def test_the_command_prints_the_comparison(tmp_path, capsys):
    exports.shared_model().save(tmp_path / "model.keras")
    text = "\ufeff" + "\r\n".join(LINES) + "\r\n"
    (tmp_path / "lines.txt").write_bytes(gzip.compress(text.encode()))
    folder = str(exports.artefact())
    paths = [str(tmp_path / "model.keras"), folder, str(tmp_path / "lines.txt")]
    assert compare.main([*paths, paths[-1]]) == 0
    told = capsys.readouterr().out
    assert "the same tokens in 6 of 6" in told and "chrF" in told
    assert compare.main([*paths[:2], str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err


@pytest.mark.full("<lambda>-lines3-None-search that reads text.*a token")
@pytest.mark.parametrize(
    "folder, lines, references, message",
    [
        (exports.artefact, [], None, "at least one line"),
        (exports.artefact, LINES, LINES[:1], "6 lines and 1 references"),
        (exports.artefact, ["a", "a red dog " * 400], None, "Line 2 has .* at most 512"),
        (lambda: exports.artefact(None, "encode"), LINES, None, "search that reads text.*a token"),
        (lambda: "nowhere", LINES, None, "nowhere is not an artefact"),
    ],
)
def test_wrong_lines_and_artefacts_are_refused(folder, lines, references, message):
    with pytest.raises(ValueError, match=message):
        compare_with_keras(exports.shared_model(), folder(), lines, references)


@pytest.mark.full
@pytest.mark.parametrize("name", ["translate", "generate"])
def test_a_model_of_another_tokenizer_is_refused(name):
    model = exports.tiny(name)
    for own in (exports.tokenizer(), OTHER):
        with_tokenizers(model, own)
        if own is OTHER:
            with pytest.raises(ValueError, match="trained with another tokenizer of the"):
                compare_with_keras(model, exports.artefact(kind=name), LINES[:1])
        else:
            assert compare_with_keras(model, exports.artefact(kind=name), LINES[:1]).sentences == 1


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match="pip install sacrebleu"):
        compare_with_keras(exports.shared_model(), exports.artefact(), LINES, LINES)


@pytest.mark.parametrize(
    "change",
    [{"lines": "6"}, {"same_tokens": [True, 6]}, {"more": 1}, {"largest_difference": None}],
)
def test_malformed_proofs_are_refused(change):
    manifest = read_artefact(exports.artefact()).manifest
    with pytest.raises(ValueError, match="proof"):
        seal({**manifest, "proof": {**manifest["proof"], **change}})


def test_times_are_printed_side_by_side():
    told = str(Comparison(500, 499, 498, 3.0, 1.5, 1.25))
    assert "Keras 3.00 s" in told and "without TensorFlow 1.50 s (2.0 times as fast)" in told
    assert "499 of 500" in told and "1.25 s; the same text in 498 of 500" in told
