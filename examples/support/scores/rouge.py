"""ROUGE of finished summaries, and the baseline that copies a text's beginning."""

import re


def rouge(summaries, references):
    """Computes mean ROUGE-1, ROUGE-2 and ROUGE-L of summaries: F1 of stemmed words.

    Uses rouge-score, which agrees with the original ROUGE 1.5.5 (Lin, 2004).

    Args:
        summaries: list of N strings.
        references: list of N strings, one for each.

    Returns:
        Dict with "rouge1", "rouge2" and "rougeL", in [0, 1].

    Raises:
        ValueError: there are no summaries, or the numbers of references and summaries differ.
        ImportError: rouge-score is not installed.

    Example:

    >>> rouge(["a clock that runs"], ["a clock which runs"])["rouge1"]
    0.75
    """
    from rouge_score.rouge_scorer import RougeScorer

    if not summaries or len(summaries) != len(references):
        raise ValueError(
            "Pass at least one summary, and one reference for each. There are "
            f"{len(summaries)} summaries and {len(references)} references."
        )
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = RougeScorer(names, use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(references, summaries, strict=True)]
    return {name: sum(score[name].fmeasure for score in scores) / len(scores) for name in names}


def lead(text, sentences=3):
    """Returns the first sentences of a text, the usual baseline of summaries.

    A sentence ends at ".", "!" or "?" before white space without a small letter after it.

    Example:

    >>> lead("It is small, e.g. for tests. It is fast. No more.", 2)
    'It is small, e.g. for tests. It is fast.'
    """
    return " ".join(re.split(r"(?<=[.!?])\s+(?![a-z])", text.strip())[:sentences])
