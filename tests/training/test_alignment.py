"""Guided alignment: batches with alignments, the loss, and alignments after training."""

import random

import keras
import numpy as np
import pytest
from helpers import exports
from num2words import num2words

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Translator

# "forty two" is "two and forty" in the target: the alignment is known by construction.
BATCH = {"tokens_per_batch": 512, "seed": 3}


def number_pairs(count, seed):
    """Returns random numbers in English and German, and their alignments."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        source, target, links = [], [], []
        for _ in range(draw.randint(1, 2)):
            tens, unit = 10 * draw.randint(2, 9), draw.randint(1, 9)
            links += [f"{len(source) + 1}-{len(target)}", f"{len(source)}-{len(target) + 2}"]
            source += [num2words(tens), num2words(unit)]
            target += [num2words(unit, lang="de"), "und", num2words(tens, lang="de")]
        rows.append((" ".join(source), " ".join(target), " ".join(links)))
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.fixture(scope="module")
def tokenizer():
    sources, targets, _ = number_pairs(300, 5)
    lines = sources + targets
    return kt.Tokenizer.train(lines, 90, byte_fallback=False, hard_vocab_limit=False)


def test_batches_have_the_alignment_of_pieces(tokenizer, tmp_path):
    sources, targets, links = number_pairs(7, 2)
    (tmp_path / "links").write_text("\n".join(links) + "\n")
    made = kt.translation_batches(
        sources, targets, tokenizer, alignments=tmp_path / "links", shuffle=False
    )
    ((inputs, labels),) = made
    weights, ids = labels["alignments"].numpy(), labels["logits"].numpy()
    assert weights.shape == (*ids.shape, inputs["source_ids"].shape[1])
    assert (weights[ids == 0] == -1).all() and (weights[ids == 3] == 0).all()
    starts = tokenizer.word_starts
    for row in range(7):
        pieces = inputs["source_ids"].numpy()[row], ids[row]
        source_words, target_words = (np.cumsum(starts[each]) - 1 for each in pieces)
        text = tokenizer.decode(ids[row])
        pairs = dict(pair.split("-")[::-1] for pair in links[targets.index(text)].split())
        for t in np.flatnonzero(ids[row] > 3):
            expected = source_words == int(pairs.get(str(target_words[t]), -1))
            expected &= pieces[0] > 3
            np.testing.assert_allclose(weights[row, t], expected / max(expected.sum(), 1))


def test_alignments_of_sampled_segmentations_sum_to_0_or_1(tokenizer):
    sources, targets, links = number_pairs(50, 2)
    options = {"alignments": links, "sampling_alpha": 0.2, **BATCH}
    for _, labels in kt.translation_batches(sources, targets, tokenizer, **options):
        sums = labels["alignments"].numpy().sum(axis=2)
        tokens = labels["logits"].numpy() > 0
        assert (np.isclose(sums, 0) | np.isclose(sums, 1))[tokens].all() and sums.max() > 0


def test_words_of_alignments_are_those_of_the_tokenizer():
    tokenizer = kt.Tokenizer.train(["10 km a cat"] * 9, 300, hard_vocab_limit=False)
    source, target = ["10\u00a0km cat"], ["a cat"]
    with pytest.raises(ValueError, match="source has 2 words.*Replace tabs and no-break spaces"):
        kt.translation_batches(source, target, tokenizer, alignments=["0-0 2-1"])
    ((_, labels),) = kt.translation_batches(source, target, tokenizer, alignments=["0-0 1-1"])
    assert (np.sum(labels["alignments"], -1)[0, :-1] == 1).all()


def test_the_loss_is_a_mean_over_target_tokens():
    draw = np.random.default_rng(0)
    attention = draw.dirichlet(np.ones(5), (2, 3)).astype("float32")
    given = np.zeros((2, 3, 5), "float32")
    given[0, 0, 2], given[0, 1, [1, 4]], given[1, 0, 0] = 1, 0.5, 1
    given[1, 2] = -1  # padding; token (0, 2) and (1, 1) are not aligned
    first = -np.log(attention[0, 0, 2]) - 0.5 * np.log(attention[0, 1, [1, 4]]).sum()
    second = -np.log(attention[1, 0, 0])
    loss = kt.AlignmentCrossentropy()
    assert float(loss(given, attention)) == pytest.approx((first + second) / 5, rel=1e-5)
    weighted = loss(given, attention, np.array([2.0, 0.0]))
    assert float(weighted) == pytest.approx(first / 3, rel=1e-5)
    assert float(loss.batch_weight(given)) == 5
    assert float(loss(np.full_like(given, -1), attention)) == 0


def test_models_without_a_source_are_refused():
    with pytest.raises(TypeError, match="CausalTransformer attends to no source"):
        kt.with_alignments(exports.tiny("generate"))


@pytest.mark.nightly  # a training
def test_trained_alignments_are_right_on_words_of_numbers(tokenizer, tmp_path):
    keras.utils.set_random_seed(3)
    sources, targets, links = number_pairs(1000, 0)
    train = kt.translation_batches(sources, targets, tokenizer, alignments=links, **BATCH)
    sizes = {"num_layers": 1, "d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.0}
    model = kt.Transformer(tokenizer.vocab_size, **sizes)
    guided = kt.with_alignments(model)
    losses = {"logits": kt.SequenceCrossentropy(), "alignments": kt.AlignmentCrossentropy()}
    weights = {"logits": 1.0, "alignments": 0.3}
    guided.compile(keras.optimizers.Adam(5e-3), losses, loss_weights=weights)
    guided.fit(train, epochs=6, verbose=0)
    search = kt.GreedySearch(alignments=True)
    export_onnx(model, tmp_path / "onnx", tokenizer, search, verbose=False)
    sources, targets, links = number_pairs(500, 1)
    results = Translator(tmp_path / "onnx").n_best(sources)
    found = [
        (set(result.details[0].alignment), pairs)
        for result, text, pairs in zip(results, targets, links, strict=True)
        if result.text == text
    ]
    assert len(found) > 400
    given = [tuple(map(int, pair.split("-"))) in has for has, row in found for pair in row.split()]
    assert np.mean(given) > 0.95, np.mean(given)
