"""The loss of a model that predicts a set of objects, and two ways to match them.

Predictions are rows (Q, C + 1 + 4): a logit for each class and one for "nothing", then a box
(middle x, middle y, width, height) from 0 to 1. Objects are rows (M, 5): class number, -1 for none,
and box.

Shapes: B batch, L layers, Q predictions, C classes, M objects of a scene at most.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from scipy.optimize import linear_sum_assignment

# Weights of box distance and overlap, and of predictions of "nothing" (Carion et al. 2020).
BOX, OVERLAP, NOTHING = 5.0, 2.0, 0.1


def generalized_iou(a, b):
    """Computes generalized intersection over union (Rezatofighi et al. 2019, arXiv 1902.09630).

    Args:
        a, b: boxes (..., 4); leading axes broadcast.

    Returns:
        Tensor (...), from -1 to 1.
    """
    (low_a, high_a), (low_b, high_b) = (
        (box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2) for box in (a, b)
    )
    sides = ops.maximum(ops.minimum(high_a, high_b) - ops.maximum(low_a, low_b), 0.0)
    common = sides[..., 0] * sides[..., 1]
    union = a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - common
    hull = ops.maximum(high_a, high_b) - ops.minimum(low_a, low_b)
    hull = hull[..., 0] * hull[..., 1]
    tiny = keras.config.epsilon()
    return common / (union + tiny) - (hull - union) / (hull + tiny)


def cheapest_match(objects, predictions):
    """Matches each object to one prediction, at the smallest total cost.

    Uses the Hungarian algorithm (Kuhn 1955), as DETR (Carion et al. 2020, arXiv 2005.12872).

    Args:
        objects: float32 (B, M, 5).
        predictions: float32 (B, Q, C + 5).

    Returns:
        int32 (B, Q), the object of each prediction, -1 for none.
    """
    classes = objects[..., 0].astype(int)  # (B, M)
    logits, boxes = predictions[..., :-4], predictions[..., None, -4:]
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    index = np.maximum(classes, 0)[:, None].repeat(logits.shape[1], axis=1)  # (B, Q, M)
    true = objects[:, None, :, 1:]  # (B, 1, M, 4)
    cost = BOX * np.abs(boxes - true).sum(axis=-1) - np.take_along_axis(shares, index, axis=2)
    cost -= OVERLAP * generalized_iou(tf.constant(boxes), tf.constant(true)).numpy()
    owners = np.full(logits.shape[:2], -1, np.int32)
    for owner, costs, exists in zip(owners, cost, classes >= 0, strict=True):
        numbers = np.flatnonzero(exists)
        rows, columns = linear_sum_assignment(costs[:, numbers])
        owner[rows] = numbers[columns]
    return owners


def match_by_cell(objects, predictions):
    """Matches each object to the prediction of the cell that contains its middle.

    Predictions are the cells of a square grid, row by row. If two objects share a cell, the later
    one takes it.

    Args and returns as in `cheapest_match`.
    """
    side = int(predictions.shape[1] ** 0.5)
    owners = np.full(predictions.shape[:2], -1, np.int32)
    rows, numbers = np.nonzero(objects[..., 0] >= 0)
    column, row = np.minimum(objects[rows, numbers, 1:3] * side, side - 1).astype(int).T
    owners[rows, row * side + column] = numbers
    return owners


class SetLoss(keras.losses.Loss):
    """Cross-entropy of the classes, distance and overlap of the boxes (section 3.1 of DETR).

    Args:
        match: `cheapest_match` or `match_by_cell`.

    Call arguments:
        y_true: objects, float32 (B, M, 5).
        y_pred: predictions, float32 (B, Q, C + 5); or (B, L, Q, C + 5) of several decoder blocks,
            which are matched separately and weighted equally.

    Returns:
        Scalar.
    """

    def __init__(self, match, **options):
        super().__init__(**options)
        self.match = match

    def call(self, y_true, y_pred):
        shape = ops.shape(y_pred)
        if len(shape) == 4:
            y_true = ops.repeat(y_true, shape[1], axis=0)
            y_pred = ops.reshape(y_pred, (-1, *y_pred.shape[2:]))
        owners = tf.numpy_function(self.match, [y_true, y_pred], tf.int32)
        owners.set_shape([None, y_pred.shape[1]])
        owned = ops.cast(owners >= 0, "float32")  # (B, Q)
        targets = tf.gather(y_true, ops.maximum(owners, 0), batch_dims=1)  # (B, Q, 5)
        nothing = y_pred.shape[-1] - 5
        classes = ops.where(owners >= 0, ops.cast(targets[..., 0], "int32"), nothing)
        weights = owned + NOTHING * (1.0 - owned)
        losses = keras.losses.sparse_categorical_crossentropy(
            classes, y_pred[..., :-4], from_logits=True
        )
        distances = ops.sum(ops.abs(y_pred[..., -4:] - targets[..., 1:]), axis=-1)
        overlaps = 1.0 - generalized_iou(y_pred[..., -4:], targets[..., 1:])
        boxes = ops.sum(owned * (BOX * distances + OVERLAP * overlaps))
        count = ops.maximum(ops.sum(owned), 1.0)
        return ops.sum(weights * losses) / ops.sum(weights) + boxes / count
