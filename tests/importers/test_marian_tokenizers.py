"""Marian's folders with their tokenizers: text in, text out, as `transformers` reads and writes."""

import json

import numpy as np
import pytest
from support import published
from support.bergamot_model import vocabulary as trained
from support.published import torch, transformers

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import marian
from keras_transformer.importers.pieces import piece_ids

# Its own text is not touched without that package either.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

SOURCE = ["um gato dorme na janela .", "dois cães correm no parque .", "três homens comem pão !"]
TARGET = ["a cat sleeps at the window .", "two dogs run in the park .", "three men eat bread !"]
TEXTS = [*SOURCE, ">>eng<< " + SOURCE[1], "um pão ½ corre", "gato"]


def write_folder(folder):
    """A folder as OPUS-MT's are; its vocabulary lacks two pieces that the source's model has."""
    source, target = trained(SOURCE * 9, 50), trained(TARGET * 9, 50)
    own = [piece for piece in piece_ids(source) if len(piece) > 1 and piece[0] != "<"]
    known = dict.fromkeys([*piece_ids(source), *piece_ids(target)])
    kept = sorted(piece for piece in known if piece not in ("</s>", "<unk>", *own[:2]))
    pieces = ["</s>", "<unk>", *kept, ">>eng<<", "<pad>"]
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    ids = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=40, pad_token_id=ids["<pad>"], eos_token_id=0,
        decoder_start_token_id=ids["<pad>"], activation_function="swish", scale_embedding=True,
        forced_eos_token_id=None,
    )  # fmt: skip
    model = published.drawn(transformers.MarianMTModel(config))
    model.save_pretrained(folder)
    return model, ids


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """The folder, and what `transformers` makes of the texts: its own ids in and out, and text."""
    folder = tmp_path_factory.mktemp("opus")
    model, ids = write_folder(folder)
    tokenizer = transformers.MarianTokenizer(
        source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
    )  # fmt: skip
    read = [tokenizer(text)["input_ids"] for text in TEXTS]
    texts = []
    for row in read:
        with torch.no_grad():
            written = model.generate(
                torch.tensor([row]), max_new_tokens=9, num_beams=1, do_sample=False,
                bad_words_ids=[[ids["<pad>"]], [ids["<unk>"]]],
            )  # fmt: skip
        texts.append(tokenizer.decode(written[0], skip_special_tokens=True))
    return folder, read, texts


@pytest.fixture(scope="module")
def loaded(origin):
    return marian.load(origin[0])


def test_text_becomes_the_ids_of_transformers(origin, loaded):
    folder, read, _ = origin
    model, (source, target) = loaded
    order = list(marian.row_orders(marian.read_config(folder))[0])
    order += [1] * (source.vocab_size - len(order))
    assert source.vocab_size == target.vocab_size == model.vocab_size == len(order)
    unknown = 0
    for text, theirs in zip(TEXTS, read, strict=True):
        ours = [*source.encode(text), 3]
        assert [int(order[i]) for i in ours] == theirs
        unknown += sum(i >= len(order) - 2 for i in ours)
    assert unknown > 0  # pieces that only the model knows


def test_translations_are_those_of_transformers_in_keras_and_in_the_text_file(
    origin, loaded, tmp_path
):
    _, _, expected = origin
    model, (source, target) = loaded
    search = kt.GreedySearch(allow_unknown=False)
    rows = [[*source.encode(text), 3] for text in TEXTS]
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, own in zip(ids, rows, strict=True):
        row[: len(own)] = own
    found = search(model, ids, max_length=9).ids.numpy()[:, 0]
    assert [text.strip() for text in target.decode(found)] == [text.strip() for text in expected]
    export_onnx(
        model, tmp_path / "out", source, search, target_tokenizer=target, max_length=9, text=True,
        verbose=False,
    )  # fmt: skip
    served = Translator(tmp_path / "out").translate(TEXTS)
    assert [text.strip() for text in served] == [text.strip() for text in expected]


def test_a_vocabulary_of_another_model_is_refused(origin, tmp_path):
    folder = origin[0]
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ids = json.loads((folder / "vocab.json").read_text("utf-8"))
    for changed, message in (
        ({**ids, "</s>": 5}, "numbers '</s>' as 5, but config.json says eos_token_id=0"),
        ({p: i for p, i in ids.items() if p != "</s>"}, "lacks '</s>'"),
    ):
        (tmp_path / "vocab.json").write_text(json.dumps(changed), "utf-8")
        with pytest.raises(ValueError, match=message):
            marian.load(tmp_path)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(FileNotFoundError, match="source.spm"):
        marian.load(tmp_path)
