"""Names of classes to ids and back."""

import numpy as np

PADDING_LABEL = -1  # of rows and positions that count neither in a loss nor in a metric


def label_ids(labels, label_names=None):
    """Turns labels into class ids.

    Args:
        labels: sequence of N labels, all str or all int.
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted; for ints "0", "1", ... up to the largest.

    Returns:
        int32 (N,), and the list of names.

    Raises:
        TypeError: a label is neither str nor int, or both occur.
        ValueError: a label is unknown, or a name comes twice.
    """
    labels = list(labels)
    names = None if label_names is None else [str(name) for name in label_names]
    if names is not None and len(set(names)) < len(names):
        raise ValueError(f"label_names must differ, got {names}.")
    kinds = {str: str, int: int, np.integer: int}
    first = None
    for number, label in enumerate(labels):
        found = next((k for t, k in kinds.items() if isinstance(label, t)), None)
        first = first or found
        if found is None or found is not first:
            raise TypeError(
                f"labels must be all names (str) or all class numbers (int), got {label!r} of type "
                f"{type(label).__name__} as label {number}."
            )
    if names is None:
        names = sorted(set(labels)) if first is str else _numbers(labels)
    known = {name: i for i, name in enumerate(names)} if first is str else range(len(names))
    for number, label in enumerate(labels):
        if label not in known:
            raise ValueError(
                f"label {number} is {label!r}, but the labels are {names}. Pass label_names= with "
                "all of them, the same for training and validation."
            )
    ids = [known[label] for label in labels]
    return np.array(ids, np.int32), names


def _numbers(labels):
    return [str(i) for i in range(max(labels, default=-1) + 1)]


def pad_labels(labels, size):
    """int32 (B,): one label a row; missing rows get -1."""
    padded = np.full(size, PADDING_LABEL, np.int32)
    padded[: len(labels)] = labels
    return padded


def check_counts_agree(**lists):
    """Raises `ValueError` unless lists that belong together have one length."""
    counts = {name: len(values) for name, values in lists.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"There must be as many of each, but there are {said}.")
