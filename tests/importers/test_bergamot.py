"""Bergamot models: outputs against a NumPy forward pass, shortlists, and refused folders.

The tests write a random model in Bergamot's format. Shapes: V vocabulary, D d_model.
"""

import numpy as np
import pytest
from helpers import bergamot_model
from helpers.bergamot_model import CONFIG, LINES, Reference, translated
from helpers.origins import altered
from sentencepiece import SentencePieceProcessor
from support.marian_writer import write_model

import keras_transformer as kt
from keras_transformer.importers import bergamot
from keras_transformer.importers.marian_binary import read_model
from keras_transformer.importers.marian_shortlist import read_shortlist
from keras_transformer.importers.pieces import piece_ids
from keras_transformer.padding import pad_rows

MODEL = "model.pten.intgemm.alphas.bin"
SEARCH = kt.GreedySearch(allow_unknown=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bergamot_model.write_folder(tmp_path_factory.mktemp("models") / "pten")


@pytest.fixture(scope="module")
def loaded(folder):
    return bergamot.load(folder)


def processor(folder):
    return SentencePieceProcessor(model_file=str(folder / "vocab.pten.spm"))


def source_ids(tokenizer, lines):
    return pad_rows([[*row, 3] for row in tokenizer.encode(lines)])


def our_ids(numbers):
    """Returns our ids: their end token is 0, their unknown token 1; all others are two higher."""
    return sorted({0: 3, 1: 1}.get(id, id + 2) for id in numbers.tolist())


def test_greedy_search_gives_the_strings_of_the_reference(folder, loaded):
    model, tokenizer = loaded
    found = SEARCH(model, source_ids(tokenizer, LINES), max_length=12)
    assert tokenizer.decode(found.ids.numpy()[:, 0]) == translated(folder, LINES, 12)


@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_logits_equal_the_reference(folder, tmp_path, activation):
    """Compares all logits, not only the likeliest tokens."""
    folder = changed(folder, tmp_path, config={"transformer-ffn-activation": activation})
    model, tokenizer = bergamot.load(folder)
    oracle, ids = Reference(folder), processor(folder).encode(LINES[7])
    memory, states, x = oracle.encode([*ids, 0]), np.zeros((2, bergamot_model.D)), 0.0
    expected = []
    for position, token in enumerate(ids):
        logits, states = oracle.step(x * np.ones(bergamot_model.D), position, memory, states)
        expected.append(logits)
        x = oracle.embed(token)
    own = tokenizer.encode(LINES[7])
    inputs = {"source_ids": np.array([[*own, 3]]), "target_ids": np.array([[2, *own[:-1]]])}
    logits = np.asarray(model(inputs))[0]
    expected = np.array(expected)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits[:, 4:], expected[:, 2:], rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(logits[:, 3], expected[:, 0], rtol=0, atol=1e-5 * scale)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert shares[:, [0, 2]].max() < 1e-40  # padding and begin tokens are never generated


@pytest.mark.full
def test_training_has_no_dropout_by_default(folder, loaded):
    """Published models do not tolerate dropout."""
    model, tokenizer = loaded
    batch, _ = next(iter(kt.translation_batches(LINES, LINES, tokenizer, tokens_per_batch=600)))
    expected = np.asarray(model(batch))
    np.testing.assert_array_equal(np.asarray(model(batch, training=True)), expected)
    other, _ = bergamot.load(folder, dropout=0.3, name="other")
    assert other.name == "other"
    np.testing.assert_allclose(np.asarray(other(batch)), expected, rtol=0, atol=1e-6)
    assert not np.allclose(np.asarray(other(batch, training=True)), expected, atol=0.1)


def changed(folder, tmp_path, config=(), drop=(), more=()):
    """Writes a copy of the folder with changes to its model."""
    size = processor(folder).get_piece_size()
    arrays = {**bergamot_model.arrays(size), **dict(more)}
    arrays = {name: array for name, array in arrays.items() if name not in drop}
    (tmp_path / "vocab.pten.spm").write_bytes((folder / "vocab.pten.spm").read_bytes())
    write_model(tmp_path / MODEL, arrays, {**CONFIG, **dict(config)})
    return tmp_path


@pytest.mark.parametrize(
    "change, message",
    [
        ({"drop": ["encoder_l2_self_Wq"]}, "1 tensors.*encoder_l2_self_Wq is missing"),
        ({"more": {"gate": np.ones((1, 3))}}, "gate is left over"),
        (
            {"more": {"decoder_l1_rnn_bf": np.ones((1, 5))}},
            r"decoder_l1_rnn_bf has shape \(1, 5\), not \(12,\)",
        ),
        ({"more": {"Wemb": np.ones((7, 12))}}, r"Wemb has shape \(7, 12\), not \(\d\d, 12\)"),
        ({"config": {"type": "s2s"}}, "another architecture: type is 's2s', not 'transformer'"),
        ({"config": {"dec-cell": "gru"}}, "dec-cell is 'gru', not 'ssru'"),
        ({"config": {"transformer-preprocess": "n"}}, "transformer-preprocess is 'n'"),
        ({"config": {"dim-emb": "many"}}, "dim-emb is 'many', not a positive integer"),
        (
            {"config": {"transformer-decoder-autoreg": "average-attention"}},
            "not 'rnn' or 'self-attention'",
        ),
        ({"config": {"transformer-ffn-activation": "glu"}}, "transformer-ffn-activation is 'glu'"),
        *(
            ({"config": {name: 10**12}}, rf"alphas\.bin says {name}=1000000000000, but")
            for name in ("dim-emb", "transformer-dim-ffn", "enc-depth")
        ),
    ],
)
def test_errors_name_the_difference_of_another_model(folder, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        bergamot.load(changed(folder, tmp_path, **change))


@pytest.mark.parametrize(
    "files, message",
    [
        ({MODEL: None}, r"has no model\*\.bin, so it holds no model"),
        ({"model.bin": b""}, "holds 2: model.bin, model.pten"),
        ({"vocab.pten.spm": b"no model"}, "8 bytes are no SentencePiece model"),
        (
            {"vocab.pten.spm": lambda _: bergamot_model.vocabulary(eos_piece="<end>")},
            "pieces lacks '</s>'",
        ),
    ],
)
def test_missing_and_foreign_files_are_named(folder, tmp_path, files, message):
    with pytest.raises((OSError, ValueError), match=message):
        bergamot.load(altered(folder, tmp_path, files))


def test_a_model_may_have_two_vocabularies(folder, tmp_path):
    """Models of languages with different scripts have two vocabularies.

    Here both have the same pieces, so the model must equal one with a shared vocabulary.
    """
    arrays, config = read_model(folder / MODEL)
    table = arrays.pop("Wemb")
    arrays |= {"encoder_Wemb": table, "decoder_Wemb": table}
    vocabulary = (folder / "vocab.pten.spm").read_bytes()
    for side in ("src", "trg"):
        (tmp_path / f"{side}vocab.pten.spm").write_bytes(vocabulary)
    write_model(tmp_path / MODEL, arrays, config)
    model, (source, target) = bergamot.load(tmp_path)
    assert source == target == bergamot.load(folder)[1]
    ids = source_ids(source, LINES[:4])
    inputs = {"source_ids": ids, "target_ids": np.where(ids == 3, 0, ids)}
    one, _ = bergamot.load(folder)
    # The second file rounds numbers that the first has rounded to 8 bits.
    np.testing.assert_allclose(np.asarray(model(inputs)), np.asarray(one(inputs)), atol=1e-4)


@pytest.mark.parametrize("sizes", [(60,), (40, 60), (60, 40)])
def test_the_shortlist_has_the_candidates_of_the_file(sizes, tmp_path):
    texts, path = [bergamot_model.vocabulary(size=size) for size in sizes], tmp_path / "lex.bin"
    for side, text in zip(("src", "trg") if texts[1:] else [""], texts, strict=True):
        (tmp_path / f"{side}vocab.pten.spm").write_bytes(text)
    source, target = (len(piece_ids(text)) for text in (texts[0], texts[-1]))
    random = np.random.default_rng(1)
    rows = [random.choice(target, row % 4, replace=False).tolist() for row in range(source)]
    path.write_bytes(bergamot_model.shortlist_bytes(5, rows))
    theirs = bergamot_model.candidates(read_shortlist(path), [7, 9, 0], target)
    found = bergamot.load_shortlist(tmp_path).candidates([[9, 11, 3]])[0].nonzero()[0]
    assert found.tolist() == our_ids(theirs)
    assert len(found) % 8 == 0 and len(found) < target
    for first, wrong, message in (
        (5, [(target,), *rows[1:]], f"target ids up to {target}, but .* and {target} ids"),
        (2, rows[1:], f"has {source - 1} source ids .* have {source} and {target} ids"),
    ):
        path.write_bytes(bergamot_model.shortlist_bytes(first, wrong))
        with pytest.raises(ValueError, match=message):
            bergamot.load_shortlist(tmp_path)
