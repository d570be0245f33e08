"""Languages of Whisper folders: the size of the vocabulary decides, and wrong lists are refused."""

import json

import pytest
from helpers import whisper_folder

from keras_transformer.importers import ctranslate2, speech_search, whisper

CODES = ("en", "zh", "haw")


def names(size, multilingual):
    """Returns the names of Whisper's tokens: a multilingual vocabulary has one more piece."""
    pieces = 50_257 if multilingual else 50_256
    special = ["endoftext", "startoftranscript", *CODES, "translate", "transcribe"]
    found = [*map(str, range(pieces)), *(f"<|{name}|>" for name in special)]
    return [*found, *(f"<|more {i}|>" for i in range(size - len(found)))]


def write_hugging_face(folder, names, ids):
    config = {**whisper_folder.SIZES, "model_type": "whisper", "vocab_size": len(names)}
    config["eos_token_id"] = names.index("<|endoftext|>")
    config["decoder_start_token_id"] = names.index("<|startoftranscript|>")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    listed = {"lang_to_id": {names[id]: id for id in ids}}
    (folder / "generation_config.json").write_text(json.dumps(listed), "utf-8")


def write_ctranslate2(folder, names, ids):
    (folder / "config.json").write_text(json.dumps({"lang_ids": ids}), "utf-8")
    (folder / "vocabulary.json").write_text(json.dumps(names), "utf-8")


ORIGINS = [(whisper, write_hugging_face), (ctranslate2, write_ctranslate2)]


@pytest.mark.parametrize("origin, write", ORIGINS)
@pytest.mark.parametrize(
    "size, multilingual, languages",
    [
        (51_864, False, []),  # English only
        (51_865, True, list(CODES)),
        (51_866, True, list(CODES)),  # large-v3
        (51_872, True, list(CODES)),  # padded
    ],
)
def test_the_size_of_the_vocabulary_decides(origin, write, size, multilingual, languages, tmp_path):
    every = names(size, multilingual)
    write(tmp_path, every, [every.index(f"<|{code}|>") for code in CODES])
    assert list(origin.read_settings(tmp_path).languages) == languages


@pytest.mark.parametrize("origin, write", ORIGINS)
def test_a_list_of_the_multilingual_ids_is_ignored_without_languages(origin, write, tmp_path):
    every = names(51_864, multilingual=False)
    write(tmp_path, every, [50_259, 50_260, 50_261])  # one too high: the last is no language
    assert origin.read_settings(tmp_path).languages == {}


@pytest.mark.parametrize("origin, write", ORIGINS)
@pytest.mark.parametrize("name", ["<|translate|>", "<|startoftranscript|>", "7", "<|more 0|>"])
def test_a_list_with_another_token_is_refused(origin, write, name, tmp_path):
    every = names(51_865, multilingual=True)
    write(tmp_path, every, [every.index("<|en|>"), every.index(name)])
    with pytest.raises(ValueError, match=r"The list of languages in .*json has .* are no codes"):
        origin.read_settings(tmp_path)


def test_settings_of_another_tokenizer_are_refused(tmp_path):
    whisper_folder.write(tmp_path, whisper_folder.model())
    generation = {"lang_to_id": {"<|en|>": 43, "<|de|>": 42}}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    _, tokenizer = whisper.load(tmp_path)
    with pytest.raises(ValueError, match=r"languages \['en', 'de'\] at other ids"):
        speech_search(whisper.read_settings(tmp_path), tokenizer)
