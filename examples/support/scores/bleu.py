"""BLEU of finished translations, by sacreBLEU."""


def bleu(translations, references, tokenize="13a"):
    """Computes BLEU of translations, and other figures for a report.

    Args:
        translations: list of N strings.
        references: list of N strings, one reference each.
        tokenize: sacreBLEU's tokeniser: "13a" (the default), "char", or "none" for tokenised text.

    Returns:
        Dict with "bleu", "precisions", "brevity_penalty", "lengths" (of "system" and "reference"),
        "signature" (how sacreBLEU counted), and "exact_match", the share of translations equal to
        their reference.

    Raises:
        ValueError: there are no translations, or the numbers of references and translations differ.
        ImportError: sacrebleu is not installed.

    Example:

    >>> bleu(["eine Katze", "ein Hund"], ["eine Katze", "der Hund"], "char")["exact_match"]
    0.5
    """
    import sacrebleu

    if not translations or len(translations) != len(references):
        raise ValueError(
            "Pass at least one translation, and one reference for each. There are "
            f"{len(translations)} translations and {len(references)} references."
        )
    # `force` suppresses the warning about tokenised text where that is intended.
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
