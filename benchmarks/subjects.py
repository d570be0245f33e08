"""Data and models that the benchmarks share.

The data folder holds `multi30k-bpe/test.2016.{en,de}.gz` and `wmt14/newstest2014.eng.gz`.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# "tiny": the README's Multi30k translator; "base" and "big": the paper.
SIZES = {
    "tiny": dict(num_layers=4, d_model=128, num_heads=4, d_ff=256),
    "base": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048),
    "big": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096),
}
SHAPES = {
    "tiny": dict(vocab_size=5000, **SIZES["tiny"]),
    "base": dict(vocab_size=32000, **SIZES["base"]),
}


def load_trained(folder: Path) -> tuple[Any, Any]:
    """Returns the model and the tokenizer that `examples/translate.py` wrote into a folder."""
    import keras

    import keras_transformer as kt

    tokenizer = kt.Tokenizer.load(folder / "tokenizer.model")
    return keras.models.load_model(folder / "model.keras", compile=False), tokenizer


def source_ids(tokenizer: Any, lines: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each line with the end token, as in training."""
    from keras_transformer.special_ids import END_ID

    return [[*ids, END_ID] for ids in tokenizer.encode(lines)]


def multi30k(data: Path, name: str = "test.2016", count: int | None = None) -> list[list[str]]:
    """Returns sources and references of a set of Multi30k: tokenized, lowercase, no BPE."""
    from keras_transformer.text.corpora import read_parallel

    files = [data / "multi30k-bpe" / f"{name}.{language}.gz" for language in ("en", "de")]
    return [lines[:count] for lines in read_parallel(*files, undo_bpe=True)]


def captions(data: Path, name: str = "test_2016_flickr", language: str = "en") -> list[str]:
    """Returns a raw file of Multi30k."""
    from keras_transformer.text.corpora import read_lines

    return read_lines(data / "multi30k" / f"{name}.{language}.gz")


def newstest(data: Path, count: int | None = None) -> list[str]:
    """Returns English sentences of newstest2014."""
    from keras_transformer.text.corpora import read_lines

    return read_lines(data / "wmt14" / "newstest2014.eng.gz")[:count]


def mixed(data: Path, half: int) -> list[str]:
    """Returns captions of Multi30k's test set and sentences of newstest2014 in turn."""
    pairs = zip(captions(data)[:half], newstest(data, half), strict=True)
    return [line for pair in pairs for line in pair]


def number_words(count: int) -> list[str]:
    """Spells `count` random numbers below a million in English, in place of real text."""
    from num2words import num2words

    return [num2words(n) for n in random.Random(0).sample(range(1_000_000), count)]


def batches(ids: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Returns indices in batches of similar length, longest first, so that the last are short."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def bleu_of(tokenizer: Any, references: Sequence[str]) -> Callable[[dict[int, Any]], float]:
    """Returns a function that computes BLEU of {number: ids} against tokenized references."""
    import sacrebleu

    def score(translations: dict[int, Any]) -> float:
        texts = tokenizer.decode([translations[i] for i in sorted(translations)])
        return sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score

    return score


def equal(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Returns how many items are equal.

    >>> equal(["a", "b"], ["a", "c"])
    1
    """
    return sum(one == two for one, two in zip(ours, theirs, strict=True))


def penalty(count: int, alpha: float) -> float:
    """Returns the length penalty of `BeamSearch` (Wu et al. 2016, equation 14)."""
    return ((5 + count) / 6) ** alpha


def ranked(hypotheses: Any, scores: Any, alpha: float) -> tuple[list[Any], list[float]]:
    """Ranks CTranslate2's hypotheses of a sentence by the rule of `BeamSearch`.

    CTranslate2 divides sums of log-probabilities by n^alpha, for n tokens with the end token.
    """
    pairs = [
        (score * len(ids) ** alpha / penalty(len(ids), alpha), ids)
        for score, ids in zip(scores, hypotheses, strict=True)
    ]
    pairs.sort(key=lambda pair: -pair[0])
    return [ids for _, ids in pairs], [score for score, _ in pairs]
