"""BERT and its relatives: parity with `transformers` for encoders, heads and tokenizers.

Shapes: B batch, S length, D d_model, C classes.
"""

import functools
import json

import numpy as np
import pytest
import tokenizers
from helpers import origins, published, texts
from helpers.published import torch, transformers
from helpers.tiers import quick
from tokenizers import decoders, models, normalizers, pre_tokenizers

from keras_transformer import answer_batches, classification_batches, pair_batches
from keras_transformer.export import (
    Classification,
    Heads,
    QuestionAnswering,
    TokenClassification,
)
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


def word_pieces(folder, special=bert.SPECIAL):
    pieces = [*special, "[MASK]", *WORDS, *(f"##{w}" for w in "xyzabc"), ","]
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


def scored_pieces(folder, special, unknown, normalizer):
    """Writes a tokenizer of the form of XLM-RoBERTa's: pieces with scores, in a list."""
    scored = [(piece, 0.0) for piece in special]
    scored += [(f"\u2581{word}", -1.0 - len(scored) / 9) for word in WORDS]
    scored += [(letter, -5.0) for letter in "\u2581thecasonmdx,"]
    made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=False))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    finish(folder, made, special)


def finish(folder, made, special):
    made.add_special_tokens([*special, "<mask>"])
    assert made.get_vocab_size() <= 41
    made.save(str(folder / "tokenizer.json"))


def residues(folder):
    """Writes a vocabulary of the form of ESM's: all tokens, the mask at the end."""
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *WORDS, *"xyzTHE.,-"]
    pieces += [f"<null_{n}>" for n in range(40 - len(pieces))] + ["<mask>"]
    (folder / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    settings = {"tokenizer_class": "EsmTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


OTHER_WORDS = functools.partial(word_pieces, special=["[SEP]", "[CLS]", "[UNK]", "[PAD]"])
MODERN_PIECES = functools.partial(byte_pieces, special=["[CLS]", "[PAD]", "[SEP]", "[UNK]"])
ALBERT_PIECES = functools.partial(
    scored_pieces,
    special=["<pad>", "<unk>", "[CLS]", "[SEP]"],
    unknown=1,
    normalizer=normalizers.Lowercase(),
)
XLM_PIECES = functools.partial(
    scored_pieces,
    special=["<s>", "<pad>", "</s>", "<unk>"],
    unknown=3,
    normalizer=normalizers.NFKC(),
)
# Importer, prefix of the classes of `transformers`, configuration, tokenizer.
RELATIVES = {
    "bert": (bert, "Bert", SMALL, word_pieces),
    "bert: other ids": (bert, "Bert", {**SMALL, "hidden_act": "relu"}, OTHER_WORDS),
    "distilbert": (distilbert, "DistilBert", DISTIL, word_pieces),
    "albert": (
        albert,
        "Albert",
        {**SMALL, "embedding_size": 8, "num_hidden_layers": 3},
        ALBERT_PIECES,
    ),
    "roberta": (roberta, "Roberta", {**SMALL, "type_vocab_size": 1}, byte_pieces),
    "xlm-roberta": (xlm_roberta, "XLMRoberta", {**SMALL, "type_vocab_size": 1}, XLM_PIECES),
    "modernbert": (modernbert, "ModernBert", MODERN, MODERN_PIECES),
    "modernbert: other settings": (modernbert, "ModernBert", {**MODERN, **BIASES}, MODERN_PIECES),
    "esm: 2": (esm, "Esm", ESM_2, residues),
    "esm: 1b": (esm, "Esm", ESM_1B, residues),
}
CLASSES = "ForSequenceClassification"
KINDS = {  # options, head of an export
    "Model": ({}, None),
    CLASSES: ({"id2label": NAMES}, Classification(NAMES.values())),
    "ForTokenClassification": ({"id2label": NAMES}, TokenClassification(NAMES.values())),
    "ForQuestionAnswering": ({}, QuestionAnswering()),
    "ForMaskedLM": ({}, None),
}
MULTI = {"id2label": NAMES, "problem_type": "multi_label_classification"}
BERT = [
    (CLASSES, {}, Classification(["LABEL_0", "LABEL_1"])),
    (CLASSES, {"num_labels": 1}, None),
    (CLASSES, {"id2label": NAMES, "problem_type": "regression"}, None),
    (CLASSES, MULTI, Heads(**{n: Classification([f"not {n}", n]) for n in NAMES.values()})),
    ("ForMaskedLM", {"tie_word_embeddings": False, "half": True}, None),
]
ANSWERING = [name for name in RELATIVES if not name.startswith("esm")]
OUTPUTS = [
    *((n, k, *KINDS[k]) for n in RELATIVES for k in KINDS if n in ANSWERING or "Answer" not in k),
    *(("bert", *row) for row in BERT),
]


def write(name, kind, folder, half=False, **options):
    """Saves a random model of `transformers` with its tokenizer; returns the model."""
    _, prefix, settings, write_tokenizer = RELATIVES[name]
    config = getattr(transformers, f"{prefix}Config")(**{**settings, **options})
    model = published.drawn(getattr(transformers, prefix + kind)(config))
    model = model.half() if half else model
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model.float()


def rows(order):
    """Returns ids (B, S), padded on the right, without the rows that the origin lacks."""
    random, ids = np.random.default_rng(3), np.zeros((4, 9), "int32")
    for row, length in enumerate((9, 5, 7, 2)):
        known = np.flatnonzero(order >= 0)
        ids[row, :length] = random.choice(known[known > 3], length)
        ids[row, 0], ids[row, length - 1] = 2, 3
    return ids


QUICK = ("bert", "distilbert", "roberta", "modernbert", "esm: 2")


@pytest.mark.quick(
    "bert-ForMaskedLM-options52-None",
    "bert-ForSequenceClassification-options49-None",
    "distilbert-ForQuestionAnswering-options13-head13",
)
@pytest.mark.parametrize(
    "name, kind, options, head", quick(OUTPUTS, *(row for row in OUTPUTS if row[0] in QUICK))
)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")  # RoBERTa's pooler
def test_outputs_equal_transformers(name, kind, options, head, tmp_path):
    model, importer = write(name, kind, tmp_path, **options), RELATIVES[name][0]
    ours, _ = importer.load_task(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    ids = rows(order)
    if importer is bert and kind == "Model":  # relatives of RoBERTa count positions in another way
        ids[2] = np.roll(ids[2], 2)
    two = kind in (CLASSES, "ForQuestionAnswering")
    segments = np.where(ids > 0, 1 + (np.arange(9) > 2) * (importer in (bert, albert)), 0)
    theirs = np.where(ids > 0, order[ids], model.config.pad_token_id)
    given = {"input_ids": torch.from_numpy(theirs).long(), "attention_mask": published.mask(ids)}
    if two and importer in (bert, albert):
        given["token_type_ids"] = torch.from_numpy(np.maximum(segments - 1, 0)).long()
    with torch.no_grad():
        expected = model(**given).to_tuple()
    found = ours({"source_ids": ids, "segment_ids": segments.astype("int32")} if two else ids)
    found = [*found.values()] if isinstance(found, dict) else [found]
    if options is MULTI:
        found = [np.concatenate(found, axis=1)]
    for one, other in zip(found, expected, strict=False):
        one, other = np.asarray(one), other.numpy()
        if kind == "ForMaskedLM":
            other = other[..., np.maximum(order, 0)]  # to our ids
        if one.shape[1:2] == ids.shape[1:]:
            one, other = one[ids > 0], other[ids > 0]
        assert published.relative(one, other) <= 1e-5
    assert importer.read_head(tmp_path) == head


PAIR = ("the cat sat", "a mat the cat on d")


def pair_of_theirs(name, folder):
    """Returns what their models read: a row of two texts; and the place of the second."""
    file, relative = folder / "tokenizer.json", RELATIVES[name][0].IMPORTER.relative
    if not file.exists():
        read = relative.tokenizer(folder, bert.read_vocabulary(folder))
        file = folder / "theirs.json"
        file.write_text(json.dumps(read), "utf-8")
    theirs = tokenizers.Tokenizer.from_file(str(file))
    one, two = (theirs.encode(text, add_special_tokens=False).ids for text in PAIR)
    begin, end = (theirs.token_to_id(p) for p in relative.special[2:])
    first = [begin, *one, *[end] * (2 if "roberta" in name else 1)]
    row = {"input_ids": torch.tensor([[*first, *two, end]])}
    if RELATIVES[name][0] in (bert, albert):
        row["token_type_ids"] = torch.tensor([[0] * len(first) + [1] * (len(two) + 1)])
    return row, slice(len(first), len(first) + len(two))


def predicted(name, folder):
    """Exports a folder by the command; returns the result of the pair."""
    command = [name.partition(":")[0], str(folder), str(folder / "out"), "--export", "onnx"]
    assert main([*command, "--quiet"]) == 0
    (found,) = Predictor(folder / "out").predict([PAIR])
    return found


@pytest.mark.full
@pytest.mark.nightly("bert: other ids", "distilbert", "albert", "xlm-roberta", "esm: 1b")
@pytest.mark.parametrize("name", RELATIVES)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_a_reranker_reads_pairs(name, tmp_path):
    options = {"num_labels": 1, "max_position_embeddings": 99}
    model, importer = write(name, CLASSES, tmp_path, **options), RELATIVES[name][0]
    row, _ = pair_of_theirs(name, tmp_path)
    with torch.no_grad():
        expected = model(**row).logits[0].numpy()
    np.testing.assert_allclose(*predicted(name, tmp_path).arrays.values(), expected, rtol=1e-4)
    ours, tokenizer = importer.load_task(tmp_path)
    (order,) = importer.row_orders(tmp_path)
    ((inputs, _),) = pair_batches([PAIR[0]], [PAIR[1]], tokenizer, labels=[1], one_row=True)
    assert order[np.asarray(inputs["source_ids"])].tolist() == row["input_ids"].tolist()
    np.testing.assert_allclose(ours(inputs)[0], expected, rtol=1e-4)


# Each relative learns with all weights or with LoRA; at night with both.
LEARNING = [(name, rank) for name in RELATIVES for rank in (None, 2)]
AT_NIGHT = [row for n, row in enumerate(LEARNING) if n % 8 not in (0, 7)]


@pytest.mark.full
@pytest.mark.parametrize("name, rank", quick(LEARNING, nightly=AT_NIGHT))
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_a_classifier_learns(name, rank, tmp_path):
    write(name, CLASSES, tmp_path, id2label=NAMES)
    model, tokenizer = RELATIVES[name][0].load_task(tmp_path, segments=False, dropout=0.0)
    batches = classification_batches(LINES[:3], [0, 1, 2], tokenizer)
    learning = {"rate": 0.02 if rank else 0.002, "epochs": 25, "pad_id": -1}
    published.check_learning(model, tmp_path, batches, rank=rank, **learning)


@pytest.mark.full
@pytest.mark.nightly("bert", "bert: other ids", "distilbert", "xlm-roberta")
@pytest.mark.parametrize("name", ANSWERING)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_an_answer_is_a_part_of_the_passage(name, tmp_path):
    model = write(name, "ForQuestionAnswering", tmp_path, max_position_embeddings=99)
    row, place = pair_of_theirs(name, tmp_path)
    with torch.no_grad():
        start, end = (x[0].softmax(0)[place] for x in model(**row).to_tuple())
    joint = np.triu(np.outer(start, end))
    first, last = np.unravel_index(joint.argmax(), joint.shape)
    found = predicted(name, tmp_path)
    _, tokenizer = RELATIVES[name][0].load_task(tmp_path)
    _, spans = tokenizer.encode_with_spans(PAIR[1])
    assert found.text == PAIR[1][spans[first + 1][0] : spans[last + 1][1]].strip()
    assert found.score == pytest.approx(joint.max(), rel=1e-3)
    train = answer_batches([PAIR[0]], [PAIR[1]], [(6, 9)], tokenizer)  # the mat's "the"
    ((inputs, labels),) = train
    row, at = np.asarray(inputs["source_ids"])[0], int(labels["start"][0])
    assert tokenizer.decode([int(row[at])]).strip() == "the"


def test_the_pooler_of_an_encoder_is_no_classifier(tmp_path):
    """Published classifiers of RoBERTa have both. `transformers` ignores the pooler."""
    write("roberta", "ForSequenceClassification", tmp_path)
    expected = roberta.load_task(tmp_path)[0].get_weights()
    tensors = origins.tensors_of(tmp_path)
    pooler = {f"roberta.pooler.dense.{n}": tensors[f"classifier.dense.{n}"] + 1 for n in WEIGHTS}
    origins.alter(tmp_path, {"model.safetensors": pooler})
    with pytest.warns(UserWarning, match="roberta.pooler.dense.*which this model leaves out"):
        found = roberta.load_task(tmp_path)[0].get_weights()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.quick("esm: 2", "esm: 1b", "bert: other ids")
@pytest.mark.parametrize("name", RELATIVES)
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_the_tokenizer_gives_the_rows_of_theirs(name, tmp_path):
    write(name, "Model", tmp_path)
    importer = RELATIVES[name][0]
    (_, ours), (order,) = importer.load(tmp_path), importer.row_orders(tmp_path)
    known = transformers.AutoTokenizer.from_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    theirs = tokenizers.Tokenizer.from_file(str(file)) if file.exists() else None
    for line in [*LINES, *texts.odd_lines()]:
        begin, *ids = ours.encode(line)
        plain = known(line, add_special_tokens=False)["input_ids"]
        plain = theirs.encode(line, add_special_tokens=False).ids if theirs else plain
        assert begin == 2 and order[ids].tolist() == plain
    assert ours.decode(ours.encode("the cat sat")) == "the cat sat"
