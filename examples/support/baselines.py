"""Strong simple methods that the examples are compared with. They need scikit-learn.

Each one trains in seconds to minutes on one core and uses no network of layers. Their settings are
scikit-learn's defaults, unless a reason stands beside them; none was chosen on a test set.
"""

from collections import Counter, defaultdict

import numpy as np
from scipy.sparse import hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import LinearSVC

START = "<start>"  # before the first word and its tag, and after the last word


def text_classes(texts, labels, others):
    """Classifies texts with a linear support vector machine on tf-idf of words and letters.

    Args:
        texts: list of str, the training texts.
        labels: list of str, their labels.
        others: list of str, the texts to classify.

    Returns:
        List of str, the label of each of `others`.

    Example:

    >>> text_classes(["good film", "bad film"], ["+", "-"], ["a good one"])
    ['+']
    """
    features = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(ngram_range=(1, 4), analyzer="char_wb", sublinear_tf=True),
    )
    return make_pipeline(features, LinearSVC()).fit(texts, labels).predict(others).tolist()


def _word_features(words, place, tag):
    """Returns the features of a word in its sentence, a list of str; `tag` is the one before."""
    around = [START, START, *words, START, START][place : place + 5]
    found = [f"word {i} {word.lower()}" for i, word in enumerate(around)]
    word = words[place]
    found += [f"ending {word[-n:].lower()}" for n in (1, 2, 3, 4)]
    found += [f"beginning {word[:n].lower()}" for n in (1, 2, 3)]
    for i, one in enumerate(around[1:4]):
        kinds = ["A" if c.isupper() else "a" if c.isalpha() else c for c in one]
        found.append(f"shape {i} {''.join(kinds[:1])} {''.join(sorted({*kinds[1:]}))}")
    return [*found, f"tag {tag}", f"tag {tag} {word.lower()}"]


def word_tags(words, tags, others):
    """Tags words with a linear support vector machine, from left to right.

    The features are the word, two words on each side, beginnings, endings, capital letters and
    digits, and the tag before. The machine trains on the true tag before and predicts with its own.

    Args:
        words: list of lists of str, the training sentences.
        tags: list of lists of str, their tags.
        others: list of lists of str, the sentences to tag.

    Returns:
        List of lists of str, the tags of `others`.

    Example:

    >>> word_tags([["a", "cat"], ["the", "dog"]], [["D", "N"], ["D", "N"]], [["a", "dog"]])
    [['D', 'N']]
    """
    rows = [
        _word_features(sentence, place, before)
        for sentence, marks in zip(words, tags, strict=True)
        for place, before in enumerate([START, *marks[:-1]])
    ]
    model = make_pipeline(FeatureHasher(input_type="string"), LinearSVC(C=0.1))
    model.fit(rows, [tag for marks in tags for tag in marks])
    found = [[] for _ in others]
    for place in range(max(map(len, others), default=0)):
        here = [i for i, sentence in enumerate(others) if place < len(sentence)]
        rows = [_word_features(others[i], place, (found[i] or [START])[-1]) for i in here]
        for i, tag in zip(here, model.predict(rows), strict=True):
            found[i].append(str(tag))
    return found


def series_classes(series, labels, others):
    """Classifies series of any length by logistic regression on statistics of their channels.

    The statistics are mean, deviation, extremes, quartiles, first and last step, and mean size of
    the change from step to step.

    Args:
        series: list of arrays (S, C), the training series.
        labels: list of str, their labels.
        others: list of arrays (S, C), the series to classify.

    Returns:
        List of str, the label of each of `others`.

    Example:

    >>> up, down = np.arange(4.0)[:, None], -np.arange(4.0)[:, None]
    >>> series_classes([up, down], ["up", "down"], [2 * up])
    ['up']
    """

    def statistics(one):
        parts = one.mean(0), one.std(0), *np.quantile(one, [0, 0.25, 0.5, 0.75, 1], axis=0)
        change = np.abs(np.diff(one, axis=0)).sum(0) / max(1, len(one) - 1)
        return np.concatenate([*parts, one[0], one[-1], change])

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(np.stack([statistics(one) for one in series]), labels)
    return model.predict(np.stack([statistics(one) for one in others])).tolist()


def nearest_window_distances(train, series, width):
    """Scores the steps of a series by the distance of their windows to the nearest training window.

    Args:
        train: (S, C), a series without anomalies.
        series: (T, C), the series to score.
        width: int, steps of a window.

    Returns:
        float (T,), the distance of the window around each step; at the ends, of the nearest window.

    Example:

    >>> nearest_window_distances(np.zeros((9, 1)), np.array([[0.0], [0], [3], [0], [0]]), 1)
    array([0., 0., 3., 0., 0.])
    """

    def windows(one):
        found = np.lib.stride_tricks.sliding_window_view(one, width, axis=0)
        return found.reshape(len(found), -1)

    distances, _ = NearestNeighbors(n_neighbors=1).fit(windows(train)).kneighbors(windows(series))
    before = width // 2
    return np.pad(distances[:, 0], (before, width - 1 - before), mode="edge")


def paired_vectors(train, test, seed):
    """Embeds sentences of two languages by latent semantic indexing of sentence pairs.

    Each training pair is one document, and the words of both languages are its columns
    (Dumais et al. 1997). The number of axes, and their weights, the roots of the singular values,
    are the best on Multi30k's validation set.

    Args:
        train: two lists of str, sentences and their translations.
        test: two lists of str.
        seed: int.

    Returns:
        Two arrays of unit vectors (N, D), of the sentences of `test`.

    Example:

    >>> pairs = ["a cat", "a dog"] * 2, ["eine Katze", "ein Hund"] * 2
    >>> first, second = paired_vectors(pairs, pairs, 0)
    >>> (first @ second.T).argmax(axis=1).tolist()[:2]
    [0, 1]
    """
    counts = [TfidfVectorizer(sublinear_tf=True).fit(lines) for lines in train]
    both = hstack([one.transform(lines) for one, lines in zip(counts, train, strict=True)]).tocsr()
    svd = TruncatedSVD(min(1000, both.shape[1] - 1), random_state=seed).fit(both)
    weighted = svd.components_ * np.sqrt(svd.singular_values_)[:, None]
    axes = np.split(weighted, [len(counts[0].vocabulary_)], axis=1)
    found = (
        one.transform(lines) @ axis.T for one, lines, axis in zip(counts, test, axes, strict=True)
    )
    return tuple(normalize(some) for some in found)


class StatePolicy:
    """Chooses actions by logistic regression on the state alone.

    Args:
        states: (T, F), the states of all logged steps.
        actions: (T,) integers.

    Call arguments:
        states: (N, F).

    Returns:
        (N,) integers, the most likely actions.
    """

    def __init__(self, states, actions):
        self._model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self._model.fit(states, actions)

    def __call__(self, states):
        return self._model.predict(states)


def backoff_nats(train, test, contexts):
    """Measures a model of counts with back-off: nats per symbol, interpolated by Witten and Bell.

    The probability of a symbol after a context is mixed with the probability after the next shorter
    context. The share of the longer one is n / (n + t) for a context seen n times with t different
    symbols (Witten and Bell 1991).

    Args:
        train: list of sequences of hashable symbols.
        test: list of sequences; all their symbols count.
        contexts: function (sequence, place) -> list of contexts, from the shortest to the longest.
            The probabilities without any context are uniform over the symbols of `train`, with one
            more for unknown symbols.

    Returns:
        float, the mean of -log(probability).

    Example:

    >>> last = lambda sequence, place: [(), sequence[max(0, place - 1) : place]]
    >>> round(backoff_nats(["abababab"], ["abab"], last), 2)
    0.17
    """
    counts = defaultdict(Counter)
    for sequence in train:
        for place, symbol in enumerate(sequence):
            for context in contexts(sequence, place):
                counts[context][symbol] += 1
    totals = {context: (sum(found.values()), len(found)) for context, found in counts.items()}
    uniform = 1 / (len({symbol for sequence in train for symbol in sequence}) + 1)
    nats = []
    for sequence in test:
        for place, symbol in enumerate(sequence):
            probability = uniform
            for context in contexts(sequence, place):
                if context in totals:
                    seen, kinds = totals[context]
                    probability = (counts[context][symbol] + kinds * probability) / (seen + kinds)
            nats.append(-np.log(probability))
    return float(np.mean(nats))
