"""Relatives of BERT: parity with `transformers` for encoders, heads and tokenizers.

Shapes: B batch, S length, D d_model, C classes.
"""

import json

import numpy as np
import pytest
import tokenizers
from helpers import origins, published
from helpers.published import torch, transformers
from helpers.tiers import quick
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers

from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import bert, distilbert, roberta, xlm_roberta
from keras_transformer.importers.__main__ import main

WORDS = ["the", "cat", "sat", "on", "a", "mat", "b", "c", "d"]
LINES = ["the cat sat", "a mat, the cat on d", "xyz", ""]
WEIGHTS = ("weight", "bias")
NAMES = {0: "bad", 1: "so so", 2: "good"}
SMALL = {**origins.BERT, "vocab_size": 41}
DISTIL = {
    **dict(vocab_size=41, dim=16, n_layers=2, n_heads=2, hidden_dim=24),
    "max_position_embeddings": 29,
}


def word_pieces(folder):
    pieces = [*bert.SPECIAL, "[MASK]", *WORDS, *(f"##{w}" for w in "xyzabc"), ","]
    pieces += [f"[unused{n}]" for n in range(41 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "DistilBertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def byte_pieces(folder):
    """Writes a tokenizer of the form of RoBERTa's: pairs of bytes, and a mask at the end."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted({c for line in LINES for c in line.replace(" ", "\u0120")})
    pieces = [*special, *letters, "th", "the", "\u0120c", "\u0120ca", "\u0120cat"]
    merges = [("t", "h"), ("th", "e"), ("\u0120", "c"), ("\u0120c", "a"), ("\u0120ca", "t")]
    made = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    finish(folder, made, special)


def unigram_pieces(folder):
    """Writes a tokenizer of the form of XLM-RoBERTa's: pieces with scores, in a list."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    scored = [(piece, 0.0) for piece in special]
    scored += [(f"\u2581{word}", -1.0 - len(scored) / 9) for word in WORDS]
    scored += [(letter, -5.0) for letter in "\u2581thecasonmdx,"]
    made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=3, byte_fallback=False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    finish(folder, made, special)


def finish(folder, made, special):
    made.add_special_tokens([*special, "<mask>"])
    assert made.get_vocab_size() <= 41
    made.save(str(folder / "tokenizer.json"))


# Importer, prefix of the classes of `transformers`, configuration, tokenizer, first position.
RELATIVES = {
    "distilbert": (distilbert, "DistilBert", DISTIL, word_pieces, 0),
    "roberta": (roberta, "Roberta", {**SMALL, "type_vocab_size": 1}, byte_pieces, 2),
    "xlm-roberta": (xlm_roberta, "XLMRoberta", {**SMALL, "type_vocab_size": 1}, unigram_pieces, 2),
}
KINDS = {
    "Model": {},
    "ForSequenceClassification": {"id2label": NAMES},
    "ForTokenClassification": {"id2label": NAMES},
    "ForQuestionAnswering": {},
    "ForMaskedLM": {},
}


def write(name, kind, folder, **options):
    """Saves a random model of `transformers` with its tokenizer; returns the model."""
    _, prefix, settings, write_tokenizer, _ = RELATIVES[name]
    config = getattr(transformers, f"{prefix}Config")(**{**settings, **options})
    model = published.drawn(getattr(transformers, prefix + kind)(config))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def rows(order):
    """Returns ids (B, S), padded on the right, without the rows that the origin lacks."""
    random, ids = np.random.default_rng(3), np.zeros((4, 9), "int32")
    for row, length in enumerate((9, 5, 7, 2)):
        known = np.flatnonzero(order >= 0)
        ids[row, :length] = random.choice(known[known > 3], length)
        ids[row, 0], ids[row, length - 1] = 2, 3
    return ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", quick(RELATIVES, "distilbert", "roberta"))
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")  # RoBERTa's pooler
def test_outputs_equal_transformers(name, kind, tmp_path):
    model, importer = write(name, kind, tmp_path, **KINDS[kind]), RELATIVES[name][0]
    ours, _ = importer.load_task(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    ids = rows(order)
    theirs = np.where(ids > 0, order[ids], model.config.pad_token_id)
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(theirs).long(),
            attention_mask=torch.from_numpy((ids > 0).astype("int64")),
        ).to_tuple()
    found = ours(ids)
    found = [*found.values()] if isinstance(found, dict) else [found]
    for one, other in zip(found, expected, strict=False):
        one, other = np.asarray(one), other.numpy()
        if kind == "ForMaskedLM":
            other = other[..., np.maximum(order, 0)]  # to our ids
        if one.shape[1:2] == ids.shape[1:]:
            one, other = one[ids > 0], other[ids > 0]
        assert published.relative(one, other) <= 1e-5
    if kind == "ForQuestionAnswering":
        with pytest.warns(UserWarning, match="no segments.*returns the logits"):
            assert importer.read_head(tmp_path) is None
    else:
        assert (importer.read_head(tmp_path) is None) == (kind in ("Model", "ForMaskedLM"))


def test_the_pooler_of_an_encoder_is_no_classifier(tmp_path):
    """Published classifiers of RoBERTa have both. `transformers` ignores the pooler."""
    write("roberta", "ForSequenceClassification", tmp_path)
    expected = roberta.load_task(tmp_path)[0].get_weights()
    tensors = load_file(tmp_path / "model.safetensors")
    pooler = {f"roberta.pooler.dense.{n}": tensors[f"classifier.dense.{n}"] + 1 for n in WEIGHTS}
    save_file({**tensors, **pooler}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="roberta.pooler.dense.*which this model leaves out"):
        found = roberta.load_task(tmp_path)[0].get_weights()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", RELATIVES)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_the_tokenizer_gives_the_rows_of_theirs(name, tmp_path):
    write(name, "Model", tmp_path)
    importer = RELATIVES[name][0]
    _, ours = importer.load(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    known = transformers.AutoTokenizer.from_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    theirs = tokenizers.Tokenizer.from_file(str(file)) if file.exists() else known._tokenizer
    for line in LINES:
        begin, *ids = ours.encode(line)
        plain = theirs.encode(line, add_special_tokens=False).ids
        assert begin == 2 and order[ids].tolist() == plain
    assert ours.decode(ours.encode("the cat sat")) == "the cat sat"


@pytest.mark.full
def test_one_command_writes_a_file_of_sentence_vectors(tmp_path):
    model = write("xlm-roberta", "Model", tmp_path, max_position_embeddings=99)
    modules = [{"type": f"sentence_transformers.models.{n}"} for n in ("Transformer", "Pooling")]
    modules[1]["path"] = "1_Pooling"
    (tmp_path / "modules.json").write_text(json.dumps(modules), "utf-8")
    out = tmp_path / "out"
    with pytest.warns(UserWarning, match="pooler.dense.*leaves out"):
        command = ["xlm-roberta", str(tmp_path), str(out), "--export", "onnx", "--quiet"]
        assert main(command) == 0
    (found,) = Predictor(out).predict(["the cat sat"])
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [0, *theirs.encode("the cat sat", add_special_tokens=False).ids, 2]
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    assert published.relative(found.vector, hidden.mean(axis=0)) <= 1e-5


def test_a_search_of_an_encoder_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["xlm-roberta", "in", "out", "--export", "onnx", "--beam-width", "4"])
    assert "xlm-roberta is an encoder, which no search runs" in capsys.readouterr().err
