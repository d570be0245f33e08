"""A second tokenizer writes what the model writes."""

import pytest
from support import artefacts

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import ArtefactError, Translator
from keras_transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def target():
    """Other pieces, of other lines."""
    lines = ["zwei junge hunde laufen am strand entlang .", "ein mann mit rotem hut ."]
    return Tokenizer.train(lines, vocab_size=350, hard_vocab_limit=False)


def write(folder, tokenizer, target, known=None):
    sizes = {"source": tokenizer.vocab_size, "target": known or target.vocab_size}
    files = {signature.TARGET_TOKENIZER_FILE: target.model}.items()
    return artefacts.write(folder, tokenizer, files=files, vocab_size=sizes)


def test_translations_are_texts_of_the_second_tokenizer(tokenizer, target, tmp_path):
    translator = Translator(write(tmp_path, tokenizer, target), threads=1)
    ids = tokenizer.encode("a")
    assert max(ids) < target.vocab_size
    (result,) = translator.n_best(["a"])
    assert result.texts[1] == target.decode(ids) != "a"
    assert (translator.tokenizer, translator.target_tokenizer) == (tokenizer, target)


def test_without_one_the_tokenizer_is_that_of_both_sides(folder, tokenizer):
    assert read_artefact(folder).target_tokenizer == tokenizer
    assert Translator(folder, threads=1).target_tokenizer == tokenizer


def test_a_second_tokenizer_larger_than_what_the_model_writes_is_refused(
    tokenizer, target, tmp_path
):
    size = target.vocab_size
    folder = write(tmp_path, tokenizer, target, known=size - 1)
    message = f"target_tokenizer.model: the tokenizer has {size} ids and the model knows {size - 1}"
    with pytest.raises(ArtefactError, match=message):
        Translator(folder)


def test_a_damaged_second_tokenizer_is_named(tokenizer, target, tmp_path):
    folder = write(tmp_path, tokenizer, target)
    (folder / signature.TARGET_TOKENIZER_FILE).write_bytes(target.model[:-1])
    with pytest.raises(ArtefactError, match="target_tokenizer.model has .* bytes and was written"):
        Translator(folder)
