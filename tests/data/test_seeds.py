"""A seed decides order and drawn pieces of every kind of example, and another seed others."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("sentencepiece")

import keras_transformer as kt  # noqa: E402

TEXTS = [f"unbelievable table {n} hats" for n in range(23)]
WORDS, ANSWERS = [text.split() for text in TEXTS], [(0, 5)] * 23
FRAMES = [np.full((5, 2), n) for n in range(23)]
MAKERS = {
    "translation": lambda *last, **options: kt.translation_batches(TEXTS, TEXTS, *last, **options),
    "classes": lambda *last, **options: kt.classification_batches(TEXTS, TEXTS, *last, **options),
    "tags": lambda *last, **options: kt.tagging_batches(WORDS, WORDS, *last, **options),
    "documents": lambda *last, **options: kt.language_model_batches(TEXTS, *last, **options),
    "windows": lambda *last, **options: kt.language_model_batches(
        TEXTS, *last, window=8, stride=5, **options
    ),
    "pairs": lambda *last, **options: kt.pair_batches(TEXTS, TEXTS, *last, **options),
    "answers": lambda *last, **options: kt.answer_batches(TEXTS, TEXTS, ANSWERS, *last, **options),
    "vectors": lambda *last, **options: kt.feature_batches(FRAMES, TEXTS, *last, **options),
}
SAMPLED = [name for name in MAKERS if name not in ("windows", "pairs", "answers", "vectors")]


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)


def epoch(name, tokenizer, **options):
    """All numbers of the first epoch, in order."""
    parts = tf.nest.flatten(list(MAKERS[name](tokenizer, 211, **options)))
    return [part.numpy().tolist() for part in parts]


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_decides_the_order(name, tokenizer):
    one, same, other = (epoch(name, tokenizer, seed=seed) for seed in (3, 3, 5))
    assert one == same != other


@pytest.mark.parametrize("name", SAMPLED)
def test_a_seed_decides_the_pieces(name, tokenizer):
    options = {"sampling_alpha": 0.1, "shuffle": False, "bucket_boundaries": [64]}
    one, same, other = (epoch(name, tokenizer, seed=seed, **options) for seed in (3, 3, 5))
    assert one == same != other


def test_a_seed_decides_where_windows_begin(tokenizer):
    one, same, other = (
        sorted(row for _, labels in batches for row in labels.numpy().tolist())
        for batches in (MAKERS["windows"](tokenizer, 211, seed=seed) for seed in (3, 3, 5))
    )
    assert one == same != other
