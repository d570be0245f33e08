"""BLEU of finished translations, by sacreBLEU."""


def bleu(translations, references, tokenize="13a"):
    """BLEU of translations, and the figures beside it that a report needs.

    Args:
        translations: list of N strings.
        references: list of N strings, one reference each.
        tokenize: sacreBLEU's tokeniser: "13a" (the default), "char", or "none" for text that is
            tokenised already.

    Returns:
        Dict with "bleu", "precisions", "brevity_penalty", "lengths" (of "system" and "reference"),
        "signature" (how sacreBLEU counted), and "exact_match", the share of translations that are
        their reference.

    Raises:
        ValueError: no translation, or another number of references than of translations.
        ImportError: sacrebleu is not installed.

    Example:

    >>> bleu(["eine Katze", "ein Hund"], ["eine Katze", "der Hund"], "char")["exact_match"]
    0.5
    """
    import sacrebleu

    if not translations or len(translations) != len(references):
        raise ValueError(
            "There must be one reference for each of at least one translation, but there are "
            f"{len(translations)} translations and {len(references)} references."
        )
    # `force` keeps it from warning of tokenised text where that is meant.
    scorer = sacrebleu.metrics.BLEU(tokenize=tokenize, force=tokenize == "none")
    score = scorer.corpus_score(translations, [references])
    return {
        "bleu": score.score,
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "lengths": {"system": score.sys_len, "reference": score.ref_len},
        "signature": str(scorer.get_signature()),
        "exact_match": sum(map(str.__eq__, translations, references)) / len(references),
    }
