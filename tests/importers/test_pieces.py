"""Renumbered SentencePiece models: the same pieces, and the ids of a separate vocabulary."""

import numpy as np
import pytest
import sentencepiece
from helpers.bergamot_model import vocabulary as trained

from keras_transformer.importers.mapping import logit_bias, row_order, rows
from keras_transformer.importers.pieces import (
    piece_ids,
    piece_names,
    renumbered,
    special_id,
    unknown_pieces,
)

LINES = [
    "Um homem de camisa azul está em pé numa escada, limpando uma janela.",
    "Two young, white males are outside near many bushes!",
    "Ein  Mann   schläft – „im“ Zimmer auf einem Sofa … ½ Ⅳ ﬁn",
    "1 234 567,89 € <s> </s> <unk> <pad> ⁇ ▁ x",
    "Ωmega 漢字 😀 \u200d\u00a0end",
    " leading",
    "",
]
KINDS = [
    {"model_type": "unigram"},
    {"model_type": "bpe"},
    {"model_type": "unigram", "byte_fallback": True},
    {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
    {"model_type": "unigram", "user_defined_symbols": ["<sep>", "homem"]},
]


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def ours_of(model, ids):
    """Returns a tokenizer with our ids, and the model's id of each of them."""
    special = special_id(ids, "<unk>"), special_id(ids, "</s>")
    order = row_order(len(ids), None, special[0], None, special[1])
    return renumbered(model, piece_names(ids, order)), order


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
def test_renumbered_models_give_the_same_pieces_and_text(options):
    model = trained(LINES[:4] * 3, 420, **options)
    (tokenizer, order), before = ours_of(model, piece_ids(model)), processor(model)
    assert tokenizer.vocab_size == len(piece_ids(model)) + 2
    for line in LINES:
        ours, theirs = tokenizer.encode(line), before.encode(line)
        assert order[ours].tolist() == theirs
        assert tokenizer.decode(ours) == before.decode(theirs)
    assert tokenizer.tf_encode(LINES).to_list() == tokenizer.encode(LINES)


def beside(model, dropped=3):
    """Returns a separate vocabulary: other ids, fewer pieces, a language token, padding last."""
    pieces = [piece for piece in piece_ids(model) if piece not in ("</s>", "<unk>")]
    names = ["</s>", "<unk>", *sorted(pieces[dropped:]), ">>fra<<", "zzz", "<pad>"]
    return {piece: number for number, piece in enumerate(names)}


def folder_ids(model, ids, text):
    """Returns ids as in Marian folders: language token, known pieces, 1 for unknown ones."""
    code = ">>fra<<" if text.startswith(">>fra<<") else ""
    pieces = processor(model).encode(text.removeprefix(code), out_type=str)
    return [ids[piece] if piece in ids else 1 for piece in ([code] if code else []) + pieces]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_come_from_the_vocabulary_and_missing_pieces_copy_the_unknown_token(kind):
    model = trained(LINES[:4] * 3, 200, model_type=kind)
    ids = beside(model)
    unknown = unknown_pieces(ids, model)
    assert len(unknown) == 3
    order = row_order(len(ids), ids["<pad>"], 1, ids["<pad>"], 0, len(unknown))
    names = piece_names(ids, order, unknown)
    for writes in (False, True):
        tokenizer = renumbered(model, names, writes)
        for line in [*LINES, ">>fra<< " + LINES[0]]:
            assert order[tokenizer.encode(line)].tolist() == folder_ids(model, ids, line)
    written = names.index("zzz")
    assert tokenizer.decode([written, *tokenizer.encode("um")]) == "zzz um"
    table = np.arange(len(ids))[:, None] * np.ones((1, 2))
    assert rows(table, order)[-3:].tolist() == [[1, 1]] * 3
    bias = logit_bias(order, np.zeros(len(ids)))
    assert bias[-3:].max() == bias[0] == -100.0 and bias[1] == bias[4] == 0.0


def test_pieces_that_only_the_vocabulary_has_do_not_change_merges():
    model = trained(["der mann liest ein wetter buch", "heute regnet es"] * 9, model_type="bpe")
    ids = piece_ids(model)
    ids |= {piece: len(ids) + i for i, piece in enumerate({"te", "re", "es", "ut"} - ids.keys())}
    (tokenizer, order), before = ours_of(model, ids), processor(model)
    for line in ("heute regnet es", "der wetter mann liest"):
        ours = tokenizer.encode(line)
        assert order[ours].tolist() == before.encode(line)
        assert tokenizer.encode(line, sample=True, alpha=0.0) == ours


def test_ids_without_a_piece_have_names_of_their_own():
    ids = {"</s>": 0, "<unk>": 1, "<3>": 2, "a": 4}
    names = piece_names(ids, row_order(5, None, 1, None, 0))
    assert sorted(names[4:]) == ["<3>", "<id 3>", "a"]


def test_control_pieces_are_not_written():
    model = trained(LINES[:4] * 3, 200, control_symbols=["[INST]"])
    tokenizer, _ = ours_of(model, piece_ids(model))
    control = tokenizer.pieces.index("[INST]")
    assert control not in tokenizer.encode("[INST] um")
    assert tokenizer.decode([control, *tokenizer.encode("um")]) == "um"


def test_names_without_pieces_of_the_model_are_refused():
    with pytest.raises(ValueError, match=r"lacks \d+ pieces of the model"):
        renumbered(trained(LINES[:4] * 3, 200), ["<pad>", "<unk>", "<s>", "</s>"])
