"""Marian folders with their tokenizers: ids and texts against `transformers`."""

import numpy as np
import pytest
from helpers import marian_folder, node
from helpers.marian_folder import TEXTS
from helpers.origins import altered
from helpers.published import torch

import keras_transformer as kt
from keras_transformer.export import export_onnx, proof
from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import marian
from keras_transformer.padding import pad_rows

# Without sacremoses, `transformers` leaves text unchanged, as we do.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")


SEARCH = kt.GreedySearch(allow_unknown=False)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Returns the folder, and the ids and translations of `TEXTS` by `transformers`."""
    folder = tmp_path_factory.mktemp("opus")
    model, ids = marian_folder.write(folder)
    tokenizer = marian_folder.tokenizer(folder)
    read = [tokenizer(text)["input_ids"] for text in TEXTS]
    texts = []
    for row in read:
        with torch.no_grad():
            written = model.generate(
                torch.tensor([row]),
                max_new_tokens=9,
                num_beams=1,
                do_sample=False,
                bad_words_ids=[[ids["<pad>"]], [ids["<unk>"]]],
            )
        texts.append(tokenizer.decode(written[0], skip_special_tokens=True))
    return folder, read, texts


@pytest.fixture(scope="module")
def loaded(origin):
    return marian.load(origin[0])


def test_ids_equal_transformers(origin, loaded):
    folder, read, _ = origin
    model, (source, target) = loaded
    order = list(marian.row_orders(folder)[0])
    order += [1] * (source.vocab_size - len(order))
    assert source.vocab_size == target.vocab_size == model.vocab_size == len(order)
    unknown = 0
    for text, theirs in zip(TEXTS, read, strict=True):
        ours = [*source.encode(text), 3]
        assert [int(order[i]) for i in ours] == theirs
        unknown += sum(i >= len(order) - 2 for i in ours)
    assert unknown > 0  # pieces that only the SentencePiece model has


@pytest.fixture(scope="module")
def artefact(loaded, tmp_path_factory):
    """Exports the model with its tokenizers and a file from text to text."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    model, (source, target) = loaded
    export_onnx(
        model,
        folder,
        source,
        SEARCH,
        target_tokenizer=target,
        max_length=9,
        text=True,
        verbose=False,
    )
    return folder


def stripped(texts):
    return [str(text).strip() for text in texts]


@pytest.mark.full
def test_translations_equal_transformers_in_keras_and_in_the_text_file(origin, loaded, artefact):
    model, (source, target) = loaded
    rows = pad_rows([[*source.encode(text), 3] for text in TEXTS])
    found = SEARCH(model, rows, max_length=9).ids.numpy()[:, 0]
    expected = stripped(origin[2])
    assert stripped(target.decode(found)) == expected
    assert stripped(Translator(artefact).translate(TEXTS)) == expected
    more = [*TEXTS, *(" ".join(text.split()[1:]) for text in TEXTS), "½", "gato  gato"]
    (written,), _ = proof.run_exported(
        [artefact / signature.TEXT_MODEL_FILE], [{"text": np.array(more)}], extensions=True
    )
    assert written["texts"][:, 0].tolist() == list(Translator(artefact).translate(more))


@pytest.mark.full
def test_node_gives_the_same_tokens(loaded, artefact, pytestconfig):
    folder = node.installed(pytestconfig.cache.mkdir("node"))
    rows = pad_rows([[*loaded[1][0].encode(text), 3] for text in TEXTS])
    (result,) = node.run_in_node(folder, artefact / signature.MODEL_FILE, [rows])
    found = SEARCH(loaded[0], rows, max_length=9).ids
    np.testing.assert_array_equal(result["token_ids"], found)


@pytest.mark.parametrize(
    "file, change, message",
    [
        (
            "vocab.json",
            {"</s>": 5},
            "numbers '</s>' as 5, but config.json says eos_token_id=0",
        ),
        ("vocab.json", {"</s>": None}, "lacks '</s>'"),
        ("vocab.json", {"<unk>": [1]}, r"vocab\.json must hold a vocabulary"),
        ("target.spm", b"no model", r"target\.spm cannot be read.* no SentencePiece model"),
        ("source.spm", None, "source.spm"),
    ],
)
def test_files_of_another_model_are_refused(file, change, message, origin, tmp_path):
    with pytest.raises((OSError, ValueError), match=message):
        marian.load(altered(origin[0], tmp_path, {file: change}))
