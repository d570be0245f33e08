"""Mean average precision of detections.

A box is (middle x, middle y, width, height).
"""

from typing import NamedTuple

import numpy as np


class Detection(NamedTuple):
    """One detected object.

    Attributes:
        label: int, its class.
        score: float, the probability of the class.
        box: float (4,).
    """

    label: int
    score: float
    box: np.ndarray


def detections(prediction, lowest=0.05, overlap=None):
    """Returns the detections of a scene: the likeliest class of each prediction.

    Args:
        prediction: float (Q, C + 5), logits of the classes and of "nothing", and a box.
        lowest: float, the smallest score. Defaults to 0.05.
        overlap: float or `None`. If given, a detection is left out if a better one of its class
            has a greater intersection over union with it (non-maximum suppression).

    Returns:
        List of `Detection`, the highest score first.
    """
    logits = prediction[:, :-4].astype(float)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = (shares / shares.sum(axis=1, keepdims=True))[:, :-1]  # without "nothing"
    labels, scores = shares.argmax(axis=1), shares.max(axis=1)
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        one = Detection(int(labels[i]), float(scores[i]), prediction[i, -4:])
        same = [other.box for other in kept if other.label == one.label]
        if one.score < lowest:
            break
        if overlap is None or not same or iou(one.box, np.array(same)).max() <= overlap:
            kept.append(one)
    return kept


def iou(box, boxes):
    """Returns intersection over union of a box (4,) with boxes (K, 4): (K,)."""
    low, high = box[:2] - box[2:] / 2, box[:2] + box[2:] / 2
    lows, highs = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    common = np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0).prod(axis=1)
    return common / (box[2:].prod() + boxes[:, 2:].prod(axis=1) - common)


def average_precisions(found, objects, overlap=0.5):
    """Computes the average precision of each class: the area below precision over recall.

    Detections of all scenes are sorted by score. A detection is right if its box overlaps an object
    of its class that no earlier detection has taken. The precision at a recall is the greatest at
    this recall or a higher one (PASCAL VOC from 2010 on).

    Args:
        found: list of N lists of `Detection`.
        objects: (N, M, 5), the class (-1 for none) and box of each object.
        overlap: float, the least intersection over union. Defaults to 0.5.

    Returns:
        Dict from the number of each class that occurs to a float. Their mean is the mean average
        precision.

    Example:

    >>> box = np.array([0.5, 0.5, 0.2, 0.2])
    >>> average_precisions([[Detection(3, 0.9, box)]], np.array([[[3, *box]]]))
    {3: 1.0}
    """
    precisions = {}
    for label in np.unique(objects[objects[..., 0] >= 0][:, 0]).astype(int).tolist():
        true = [rows[rows[:, 0] == label][:, 1:] for rows in np.asarray(objects)]
        free = [np.ones(len(boxes), bool) for boxes in true]
        mine = [(one, i) for i, some in enumerate(found) for one in some if one.label == label]
        right = []
        for one, i in sorted(mine, key=lambda pair: -pair[0].score):
            shares = np.where(free[i], iou(one.box, true[i]), 0.0)
            right.append(bool(len(shares)) and shares.max() >= overlap)
            if right[-1]:
                free[i][shares.argmax()] = False
        hits = np.cumsum(right)
        precision = hits / np.arange(1, len(hits) + 1)
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        precisions[label] = float(precision[np.array(right, bool)].sum() / sum(map(len, true)))
    return precisions


def mean_average_precision(found, objects, overlap=0.5):
    """Returns the mean of `average_precisions` over classes that occur, with the same arguments."""
    return float(np.mean([*average_precisions(found, objects, overlap).values()]))
