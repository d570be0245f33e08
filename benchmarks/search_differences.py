"""Causes of different translations by two engines: rounding, or another rule.

One forward pass of the model scores both translations. Our search is also repeated step by step,
without compilation, to find the closest decision.

Shapes: T tokens, W hypotheses, V vocabulary.
"""

import common
import numpy as np
import tensorflow as tf

import keras_transformer as kt

# Maximum of generated tokens beyond the longest source of the batch (section 6.1).
EXTRA_LENGTH = 50
# Smaller differences of summed log-probabilities count as rounding: two engines' forward passes of
# the same tokens differ that much in float32.
ROUNDING = 1e-4


def longest_translation(rows):
    """Returns the maximum length of a translation of these rows, end token included."""
    return max(map(len, rows)) + EXTRA_LENGTH


def forward_log_prob(model, source, target):
    """Computes the log-probability of a translation by one forward pass, without a search."""
    inputs = {"source_ids": [source], "target_ids": [[kt.special_ids.BEGIN_ID, *target[:-1]]]}
    logits = model({name: np.array(ids, "int32") for name, ids in inputs.items()})
    log_probs = tf.nn.log_softmax(tf.cast(logits[0], tf.float64)).numpy()  # (T, V)
    return float(sum(row[token] for row, token in zip(log_probs, target, strict=True)))


def margins(model, source, width):
    """Computes the margin of each step: the last kept candidate over the first dropped one.

    This plain beam search of one sentence shares only the rules with the compiled one.

    Returns:
        List of floats, differences of summed log-probabilities; and the number of finished
        hypotheses.
    """
    memory = model.encode(tf.constant([source]))
    cache = model.initial_cache(1, width)
    running, finished = [(0.0, [kt.special_ids.BEGIN_ID])], 0
    found = []
    while finished < width and len(found) < longest_translation([source]):
        last = [tokens[-1] for _, tokens in running] + [0] * (width - len(running))
        step = tf.constant(len(found))
        logits, cache = model.decode_step(tf.constant([last]), step, memory, cache)
        log_probs = tf.nn.log_softmax(tf.cast(logits[0, : len(running)], tf.float64)).numpy()
        log_probs[:, [kt.special_ids.PAD_ID, kt.special_ids.BEGIN_ID]] = -np.inf
        totals = np.array([total for total, _ in running])[:, None] + log_probs  # (W, V)
        order = np.argsort(-totals, axis=None)[: 2 * width + 1]
        best = [(totals.flat[i], *divmod(int(i), totals.shape[1])) for i in order]
        ends = [token == kt.special_ids.END_ID for _, _, token in best]
        going = [item for item, end in zip(best, ends, strict=True) if not end]
        # An end token counts among the first W candidates only, and the best W others continue.
        close = [best[width - 1][0] - best[width][0]] if any(ends[: 2 * width]) else []
        found.append(float(min([*close, going[width - 1][0] - going[width][0]])))
        finished += sum(ends[:width])
        parents = [parent for _, parent, _ in going[:width]]
        running = [(total, [*running[parent][1], token]) for total, parent, token in going[:width]]
        cache = cache._replace(by_hypothesis=tf.gather(cache.by_hypothesis, parents, axis=1))
    return found, finished


def difference(model, tokenizer, source, ours, theirs, args):
    """Describes one sentence that the engines translate differently."""
    (our_ids, our_scores), (their_ids, their_scores) = ours, theirs
    log_probs = [forward_log_prob(model, source, ids) for ids in (our_ids[0], their_ids[0])]
    scores = [
        log_prob / common.penalty(len(ids), args.length_penalty)
        for log_prob, ids in zip(log_probs, (our_ids[0], their_ids[0]), strict=True)
    ]
    steps, finished = margins(model, source, args.beam_width)
    margin = min(steps)
    if abs(scores[0] - scores[1]) < ROUNDING:
        cause = "equal scores"
    elif margin < ROUNDING:
        cause = "rounding"
    elif finished > args.beam_width:
        # Several ended in the last step. Each engine keeps the best W by its own length penalty.
        cause = f"{finished} finished, of which each engine's length penalty keeps others"
    else:
        cause = "unexplained"
    return {
        "source": tokenizer.decode(source),
        "ours": tokenizer.decode(our_ids[0]),
        "ctranslate2": tokenizer.decode(their_ids[0]),
        "our_score_by_our_search": our_scores[0],
        "our_score_by_forward_pass": scores[0],
        "ctranslate2_score_by_its_search": their_scores[0],
        "ctranslate2_score_by_our_forward_pass": scores[1],
        "found_by_our_search_too": their_ids[0] in our_ids,
        "found_by_ctranslate2_too": our_ids[0] in their_ids,
        "smallest_margin": margin,
        "cause": cause,
    }


def agreement(report, results, sources, model, tokenizer, args):
    """Adds the share of equal translations, and the causes of the others, to the report."""
    ours = list(zip(*results["ours"], strict=True))
    plain = list(zip(*results["ctranslate2"], strict=True))
    theirs = [common.ranked(*result, args.length_penalty) for result in plain]
    own = sum(a[0][0] == b[0][0] for a, b in zip(ours, plain, strict=True)) / len(sources)
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a[0][0] != b[0][0]]
    report["identical"] = 1 - len(differing) / len(sources)
    report["identical_each_by_its_own_length_penalty"] = own
    print(f"identical translations: {report['identical']:.1%} ({own:.1%} each by its own penalty)")
    same = [abs(a[1][0] - b[1][0]) for a, b in zip(ours, theirs, strict=True) if a[0][0] == b[0][0]]
    report["largest_score_difference_of_identical"] = max(same, default=None)
    print(f"largest difference of their scores: {report['largest_score_difference_of_identical']}")
    report["differences"] = [
        difference(model, tokenizer, sources[i], ours[i], theirs[i], args) for i in differing
    ]
    for item in report["differences"]:
        print(*(f"  {name}: {value}" for name, value in item.items()), "", sep="\n")
