"""Known corpora are fetched once, and checked."""

import hashlib
import os

import pytest
from support.sets.known_corpora import CORPORA, fetch_corpus

from keras_transformer.text.corpora import read_lines


@pytest.fixture
def known(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    sums = []
    for name in ("train.en", "train.de"):
        (origin / name).write_bytes(name.encode())
        sums.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}")
    return {"small": (origin.as_uri(), "\n".join(sums))}


def test_files_are_fetched_once(known, tmp_path):
    folder = tmp_path / "new" / "folder"
    paths = fetch_corpus("small", folder, known)
    assert read_lines(paths["train.de"]) == ["train.de"]
    assert sorted(os.listdir(folder)) == ["train.de", "train.en"]
    nowhere = {"small": ("file:///nowhere", known["small"][1])}
    assert fetch_corpus("small", folder, nowhere) == paths


def test_what_is_not_as_expected_is_refused_and_not_kept(known, tmp_path):
    address, sums = known["small"]
    swapped = {"small": (address, sums.replace("train.en", "x").replace("train.de", "train.en"))}
    with pytest.raises(ValueError, match=r"train\.en has the SHA-256 .* expected"):
        fetch_corpus(
            "small", tmp_path / "a", {"small": (address, swapped["small"][1].split("\n")[1])}
        )
    assert os.listdir(tmp_path / "a") == []
    paths = fetch_corpus("small", tmp_path / "b", known)
    with open(paths["train.en"], "a") as file:
        file.write("changed")
    with pytest.raises(ValueError, match="delete it and fetch it again"):
        fetch_corpus("small", tmp_path / "b", known)


def test_no_network_and_no_such_name(tmp_path):
    with pytest.raises(OSError, match="Without a network put the file at"):
        fetch_corpus("small", tmp_path, {"small": ("file:///nowhere", "00  train.en")})
    with pytest.raises(ValueError, match=r"no corpus is known as 'wmt'; known are \['multi30k'"):
        fetch_corpus("wmt", tmp_path)


@pytest.mark.data
def test_the_table_has_the_checksums_of_the_real_files(data_set):
    folder = data_set("multi30k")
    for line in CORPORA["multi30k"][1].strip().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
