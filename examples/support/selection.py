"""Chooses the average of weights and the length penalty with the best BLEU on a validation set."""


def averages(epochs, val_loss, usual):
    """Returns groups of epochs to average (section 6.1).

    Args:
        epochs: list of the epochs with saved weights, counted from 1.
        val_loss: list of the validation losses of epochs 1, 2, ...; may be shorter, or empty.
        usual: usual number of epochs in an average.

    Returns:
        List of lists of epochs: the last one; the last `usual` / 2, `usual` and 2 * `usual`; and
        `usual` ones around the smallest loss.

    Example:

    >>> averages([1, 2, 3, 4, 5], [9, 4, 5, 6, 7], usual=2)
    [[5], [4, 5], [2, 3, 4, 5], [1, 2]]
    """
    tried = [epochs[-n:] for n in (1, usual // 2, usual, 2 * usual) if 0 < n <= len(epochs)]
    known = [epoch for epoch in epochs if epoch <= len(val_loss)]
    if known:
        best = epochs.index(min(known, key=lambda epoch: val_loss[epoch - 1]))
        first = max(0, min(best - usual // 2, len(epochs) - usual))
        tried.append(epochs[first : first + usual])
    return [chosen for i, chosen in enumerate(tried) if chosen not in tried[:i]]


def choose_weights(model, run, score, penalties, usual):
    """Tries averages of checkpoints, then length penalties, and loads the best into `model`.

    Args:
        model: `Transformer`.
        run: `RunFolder` with at least one epoch.
        score: function from a length penalty to the BLEU of the current model.
        penalties: list of length penalties. The averages are tried with the one nearest to 1.
        usual: usual number of checkpoints in an average.

    Returns:
        Dict with the best "epochs" and "length_penalty", their "bleu", and "tried", a list of all
        attempts. The first of equal scores wins. Each attempt is printed at once.

    Raises:
        ValueError: there is no epoch, or no penalty.

    Example:

    >>> chosen = choose_weights(model, run, valid_bleu, [0.6, 1.0], usual=5)  # doctest: +SKIP
    """
    candidates = averages(sorted(run.weights()), run.history().get("val_loss", []), usual)
    if not candidates or not penalties:
        raise ValueError(f"There is nothing to choose from: {candidates=}, {penalties=}.")
    tried = []

    def attempt(epochs, penalty):
        run.load(model, epochs)
        tried.append({"epochs": epochs, "length_penalty": penalty, "bleu": score(penalty)})
        print(f"{epochs[0]:6}-{epochs[-1]:<6}{penalty:>14}{tried[-1]['bleu']:>9.2f}", flush=True)

    def best():
        return max(tried, key=lambda attempt: attempt["bleu"])  # the first of equal scores

    print("Scores on the validation set\n       epochs  length penalty   BLEU")
    penalties = sorted(penalties, key=lambda penalty: abs(penalty - 1))
    for epochs in candidates:
        attempt(epochs, penalties[0])
    for penalty in penalties[1:]:
        attempt(best()["epochs"], penalty)
    run.load(model, best()["epochs"])
    return {**best(), "tried": tried}
