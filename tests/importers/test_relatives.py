"""Relatives of BERT: parity with `transformers` for encoders, heads and tokenizers.

Shapes: B batch, S length, D d_model, C classes.
"""

import itertools
import json

import keras
import numpy as np
import pytest
import tokenizers
from helpers import origins, published, texts
from helpers.published import torch, transformers
from helpers.tiers import quick
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers

import keras_transformer as kt
from keras_transformer import answer_batches, classification_batches, pair_batches
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import (
    albert,
    bert,
    distilbert,
    esm,
    modernbert,
    roberta,
    xlm_roberta,
)
from keras_transformer.importers.__main__ import main

# Ids of the tokenizer of `byte_pieces`. Rows are longer than windows of two tokens on each side.
MODERN = {
    **dict(vocab_size=41, hidden_size=16, num_hidden_layers=4, num_attention_heads=2),
    **dict(intermediate_size=24, local_attention=4, pad_token_id=1, unk_token_id=3),
    **dict(cls_token_id=0, sep_token_id=2, bos_token_id=0, eos_token_id=2),
}
BIASES = dict.fromkeys(modernbert.OPTIONAL, True) | {"decoder_bias": False}
BIASES |= {"classifier_pooling": "mean", "layer_types": ["sliding_attention", "full_attention"] * 2}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "b", "c", "d"]
LINES = ["the cat sat", "a mat, the cat on d", "xyz", ""]
WEIGHTS = ("weight", "bias")
NAMES = {0: "bad", 1: "so so", 2: "good"}
SMALL = {**origins.BERT, "vocab_size": 41}
DISTIL = {
    **dict(vocab_size=41, dim=16, n_layers=2, n_heads=2, hidden_dim=24),
    "max_position_embeddings": 29,
}
ESM_2 = {**SMALL, "pad_token_id": 1, "mask_token_id": 40, "token_dropout": True}
ESM_2 |= {"position_embedding_type": "rotary"}
ESM_1B = {**SMALL, "pad_token_id": 1, "emb_layer_norm_before": True}


def word_pieces(folder):
    pieces = [*bert.SPECIAL, "[MASK]", *WORDS, *(f"##{w}" for w in "xyzabc"), ","]
    pieces += [f"[unused{n}]" for n in range(41 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "DistilBertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def byte_pieces(folder, special=("<s>", "<pad>", "</s>", "<unk>")):
    """Writes a tokenizer of the form of RoBERTa's: pairs of bytes, and a mask at the end."""
    letters = sorted({c for line in LINES for c in line.replace(" ", "\u0120")})
    pieces = [*special, *letters, "th", "the", "\u0120c", "\u0120ca", "\u0120cat"]
    merges = [("t", "h"), ("th", "e"), ("\u0120", "c"), ("\u0120c", "a"), ("\u0120ca", "t")]
    made = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    finish(folder, made, special)


def modern_pieces(folder):
    byte_pieces(folder, ("[CLS]", "[PAD]", "[SEP]", "[UNK]"))


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


def albert_pieces(folder):
    """Writes a tokenizer of the form of ALBERT's."""
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]"]
    scored = [(piece, 0.0) for piece in special]
    scored += [(f"\u2581{word}", -1.0 - len(scored) / 9) for word in WORDS]
    scored += [(letter, -5.0) for letter in "\u2581thecasonmdx,"]
    made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=1, byte_fallback=False))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    finish(folder, made, special)


def residues(folder):
    """Writes a vocabulary of the form of ESM's: all tokens, the mask at the end."""
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *WORDS, *"xyzTHE.,-"]
    pieces += [f"<null_{n}>" for n in range(40 - len(pieces))] + ["<mask>"]
    (folder / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    settings = {"tokenizer_class": "EsmTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def finish(folder, made, special):
    made.add_special_tokens([*special, "<mask>"])
    assert made.get_vocab_size() <= 41
    made.save(str(folder / "tokenizer.json"))


# Importer, prefix of the classes of `transformers`, configuration, tokenizer, first position.
RELATIVES = {
    "distilbert": (distilbert, "DistilBert", DISTIL, word_pieces, 0),
    "albert": (
        albert,
        "Albert",
        {**SMALL, "embedding_size": 8, "num_hidden_layers": 3},
        albert_pieces,
        0,
    ),
    "roberta": (roberta, "Roberta", {**SMALL, "type_vocab_size": 1}, byte_pieces, 2),
    "xlm-roberta": (xlm_roberta, "XLMRoberta", {**SMALL, "type_vocab_size": 1}, unigram_pieces, 2),
    "modernbert": (modernbert, "ModernBert", MODERN, modern_pieces, 0),
    "modernbert: other settings": (
        modernbert,
        "ModernBert",
        {**MODERN, **BIASES, "num_hidden_layers": 4},
        modern_pieces,
        0,
    ),
    "esm: 2": (esm, "Esm", ESM_2, residues, 0),
    "esm: 1b": (esm, "Esm", ESM_1B, residues, 2),
}
KINDS = {
    "Model": {},
    "ForSequenceClassification": {"id2label": NAMES},
    "ForTokenClassification": {"id2label": NAMES},
    "ForQuestionAnswering": {},
    "ForMaskedLM": {},
}
ANSWERING = [name for name in RELATIVES if not name.startswith("esm")]
OUTPUTS = [*itertools.product(RELATIVES, KINDS)]
OUTPUTS = [(n, k) for n, k in OUTPUTS if n in ANSWERING or k != "ForQuestionAnswering"]


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


QUICK = ("distilbert", "roberta", "modernbert", "esm: 2")


@pytest.mark.parametrize(
    "name, kind", quick(OUTPUTS, *(pair for pair in OUTPUTS if pair[0] in QUICK))
)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")  # RoBERTa's pooler
def test_outputs_equal_transformers(name, kind, tmp_path):
    model, importer = write(name, kind, tmp_path, **KINDS[kind]), RELATIVES[name][0]
    ours, _ = importer.load_task(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    ids = rows(order)
    two = kind in ("ForSequenceClassification", "ForQuestionAnswering")
    theirs = np.where(ids > 0, order[ids], model.config.pad_token_id)
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(theirs).long(),
            attention_mask=torch.from_numpy((ids > 0).astype("int64")),
        ).to_tuple()
    segments = (ids > 0).astype("int32")
    found = ours({"source_ids": ids, "segment_ids": segments} if two else ids)
    found = [*found.values()] if isinstance(found, dict) else [found]
    for one, other in zip(found, expected, strict=False):
        one, other = np.asarray(one), other.numpy()
        if kind == "ForMaskedLM":
            other = other[..., np.maximum(order, 0)]  # to our ids
        if one.shape[1:2] == ids.shape[1:]:
            one, other = one[ids > 0], other[ids > 0]
        assert published.relative(one, other) <= 1e-5
    assert (importer.read_head(tmp_path) is None) == (kind in ("Model", "ForMaskedLM"))


PAIR = ("the cat sat", "a mat the cat on d")


def pair_of_theirs(name, folder):
    """Returns the ids of a pair in their row, and the place of the second text."""
    file = folder / "tokenizer.json"
    read = json.loads(file.read_text("utf-8")) if file.exists() else None
    relative = RELATIVES[name][0].RELATIVE
    read = read or relative.tokenizer(folder, bert.read_vocabulary(folder))
    theirs = tokenizers.Tokenizer.from_str(json.dumps(read))
    one, two = (theirs.encode(text, add_special_tokens=False).ids for text in PAIR)
    begin, end = (theirs.token_to_id(p) for p in relative.special[2:])
    first = [begin, *one, *[end] * (2 if "roberta" in name else 1)]
    return [*first, *two, end], slice(len(first), len(first) + len(two))


def row_of_theirs(name, ids, place):
    """Returns what their models read: the row, and segments where the family has them."""
    row = {"input_ids": torch.tensor([ids])}
    if name == "albert":
        segments = [0] * place.start + [1] * (len(ids) - place.start)
        row["token_type_ids"] = torch.tensor([segments])
    return row


@pytest.mark.parametrize("name", quick(RELATIVES, "roberta"))
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_a_reranker_reads_pairs(name, tmp_path):
    options = {"num_labels": 1, "max_position_embeddings": 99}
    model = write(name, "ForSequenceClassification", tmp_path, **options)
    assert (
        main(
            [
                name.partition(":")[0],
                str(tmp_path),
                str(tmp_path / "out"),
                "--export",
                "onnx",
                "--quiet",
            ]
        )
        == 0
    )
    (found,) = Predictor(tmp_path / "out").predict([PAIR])
    ids, place = pair_of_theirs(name, tmp_path)
    with torch.no_grad():
        expected = model(**row_of_theirs(name, ids, place)).logits[0].numpy()
    np.testing.assert_allclose(next(iter(found.arrays.values())), expected, rtol=1e-4)
    importer = RELATIVES[name][0]
    ours, tokenizer = importer.load_task(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    train = pair_batches([PAIR[0]], [PAIR[1]], tokenizer, labels=[1], one_row=True)
    ((inputs, _),) = train
    assert order[np.asarray(inputs["source_ids"])[0]].tolist() == ids
    np.testing.assert_allclose(ours(inputs)[0], expected, rtol=1e-4)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("name", quick(RELATIVES, "albert"))
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_a_classifier_learns(name, rank, tmp_path):
    write(name, "ForSequenceClassification", tmp_path, id2label=NAMES)
    model, tokenizer = RELATIVES[name][0].load_task(tmp_path, segments=False, dropout=0.0)
    if rank:
        model.enable_lora(rank)
    batches = classification_batches(LINES[:3], [0, 1, 2], tokenizer)
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    model.optimizer.learning_rate = 0.02 if rank else 0.002
    losses = model.fit(batches, epochs=25, verbose=0).history["loss"]
    assert np.mean(losses[-5:]) < losses[0] - 0.1
    model.save(tmp_path / "model.keras")
    again, ids = keras.saving.load_model(tmp_path / "model.keras"), np.array([[2, 9, 7, 3]])
    np.testing.assert_allclose(again(ids), model(ids), atol=1e-5)


@pytest.mark.parametrize("name", quick(ANSWERING, "roberta"))
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_an_answer_is_a_part_of_the_passage(name, tmp_path):
    model = write(name, "ForQuestionAnswering", tmp_path, max_position_embeddings=99)
    assert (
        main(
            [
                name.partition(":")[0],
                str(tmp_path),
                str(tmp_path / "out"),
                "--export",
                "onnx",
                "--quiet",
            ]
        )
        == 0
    )
    (found,) = Predictor(tmp_path / "out").predict([PAIR])
    ids, place = pair_of_theirs(name, tmp_path)
    with torch.no_grad():
        found_by_theirs = model(**row_of_theirs(name, ids, place)).to_tuple()
    start, end = (x[0, place].softmax(0) for x in found_by_theirs)
    joint = np.triu(np.outer(start, end))
    first, last = np.unravel_index(joint.argmax(), joint.shape)
    _, tokenizer = RELATIVES[name][0].load_task(tmp_path)
    _, spans = tokenizer.encode_with_spans(PAIR[1])
    assert found.text == PAIR[1][spans[first + 1][0] : spans[last + 1][1]].strip()
    train = answer_batches([PAIR[0]], [PAIR[1]], [(6, 9)], tokenizer)  # the mat's "the"
    ((inputs, labels),) = train
    row, at = np.asarray(inputs["source_ids"])[0], int(labels["start"][0])
    assert tokenizer.decode([int(row[at])]).strip() == "the"


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
    theirs = tokenizers.Tokenizer.from_file(str(file)) if file.exists() else None
    for line in [*LINES, *texts.odd_lines()]:
        begin, *ids = ours.encode(line)
        plain = known(line, add_special_tokens=False)["input_ids"]
        plain = theirs.encode(line, add_special_tokens=False).ids if theirs else plain
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
