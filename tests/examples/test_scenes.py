"""Scenes of several items, the set loss, and average precision."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from support import set_loss
from support.scores.detections import (
    Detection,
    average_precisions,
    detections,
    iou,
    mean_average_precision,
)
from support.set_loss import SetLoss, cheapest_match, generalized_iou, match_by_cell
from support.sets import scenes
from support.sets.pictures import made_pictures

DRAW = np.random.default_rng(11)


def boxes(*shape):
    return np.concatenate(
        [DRAW.uniform(0.2, 0.8, (*shape, 2)), DRAW.uniform(0.1, 0.4, (*shape, 2))], axis=-1
    ).astype("float32")


def test_scenes_hold_one_to_five_items_that_hardly_overlap():
    items = scenes.make_items(*made_pictures(count=60).train, darkest=0.5)
    drawn = scenes.draw_scenes(items, 50, np.random.default_rng(3))
    assert drawn.pixels.shape == (50, 64, 64, 1) and drawn.objects.shape == (50, 5, 5)
    counts = (drawn.objects[..., 0] >= 0).sum(axis=1)
    assert {*counts.tolist()} == {1, 2, 3, 4, 5}
    for picture, rows in zip(drawn.pixels[..., 0], drawn.objects, strict=True):
        outside = picture.copy()
        for _, x, y, width, height in rows[rows[:, 0] >= 0] * [1, 64, 64, 64, 64]:
            left, top = round(x - width / 2), round(y - height / 2)
            inside = slice(top, top + round(height)), slice(left, left + round(width))
            part, outside[inside] = picture[inside], 0
            # The box is tight: something is in its first and last row and column.
            assert part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()
        assert not outside.any()


def test_generalized_iou_follows_the_formula():
    a = np.array([0.5, 0.5, 0.4, 0.4], "float32")
    b = np.array([0.7, 0.5, 0.4, 0.4], "float32")  # half of it overlaps
    far = np.array([0.9, 0.1, 0.2, 0.2], "float32")
    found = np.asarray(generalized_iou(tf.constant([a, a, a]), tf.constant([a, b, far])))
    hull = 0.7 * 0.7
    np.testing.assert_allclose(found, [1, 1 / 3, -(hull - 0.2) / hull], atol=1e-5)
    assert iou(a, b[None])[0] == pytest.approx(1 / 3, abs=1e-6)


def cost(objects, predictions, pairs):
    """Computes the cost of a matching with loops."""
    total = 0.0
    for query, number in pairs:
        label, box = int(objects[number, 0]), objects[number, 1:]
        shares = np.exp(predictions[query, :-4])
        total -= shares[label] / shares.sum()
        total += set_loss.BOX * np.abs(predictions[query, -4:] - box).sum()
        overlap = generalized_iou(tf.constant(predictions[query, -4:]), tf.constant(box))
        total -= set_loss.OVERLAP * float(overlap)
    return total


def test_the_match_is_the_cheapest_of_all_or_by_cell():
    objects = np.concatenate([DRAW.integers(0, 3, (2, 3, 1)), boxes(2, 3)], axis=-1)
    objects = objects.astype("float32")
    objects[1, 1:] = -1  # one object in the second scene
    predictions = np.concatenate([DRAW.normal(size=(2, 4, 4)), boxes(2, 4)], axis=-1)
    predictions = predictions.astype("float32")
    owners = cheapest_match(objects, predictions)
    for i, count in enumerate((3, 1)):
        found = [(query, number) for query, number in enumerate(owners[i]) if number >= 0]
        assert sorted(number for _, number in found) == list(range(count))
        least = min(
            cost(objects[i], predictions[i], list(zip(chosen, range(count), strict=True)))
            for chosen in itertools.permutations(range(4), count)
        )
        assert cost(objects[i], predictions[i], found) == pytest.approx(least, abs=1e-5)
    corner = np.full((1, 2, 5), -1, "float32")
    corner[0, 0] = [1, 0.9, 0.1, 0.2, 0.2]
    assert match_by_cell(corner, np.zeros((1, 4, 7)))[0].tolist() == [-1, 0, -1, -1]


def test_the_set_loss_ignores_the_order_and_is_zero_when_right():
    objects = np.array([[[0, 0.3, 0.3, 0.2, 0.2], [1, 0.7, 0.7, 0.2, 0.4], [-1] * 5]], "float32")
    right = np.zeros((1, 3, 7), "float32")
    right[0, :, -4:] = [[0.7, 0.7, 0.2, 0.4], [0.3, 0.3, 0.2, 0.2], [0.5, 0.5, 0.5, 0.5]]
    right[0, [0, 1, 2], [1, 0, 2]] = 20.0  # class 1, class 0, nothing
    wrong = right.copy()
    wrong[0, 0, -4] += 0.1
    both = np.stack([right, wrong], axis=1)  # two decoder blocks
    pairs = (
        (objects, right),
        (objects[:, [1, 2, 0]], right[:, [2, 0, 1]]),
        (objects, wrong),
        (objects, both),
    )
    zero, reordered, high, mean = (float(SetLoss(cheapest_match)(*pair)) for pair in pairs)
    np.testing.assert_allclose([zero, reordered], 0, atol=1e-4)
    assert high > 0.2 and mean == pytest.approx((zero + high) / 2, rel=1e-4)


def test_average_precision_counts_each_object_once():
    one, two, other = boxes(3)
    one[:2], two[:2], other[:2] = (0.2, 0.2), (0.5, 0.5), (0.8, 0.8)
    objects = np.array([[[0, *one], [0, *two], [1, *other]]])
    found = [
        Detection(0, 0.9, one),  # right
        Detection(0, 0.8, one),  # the object is taken
        Detection(0, 0.7, two),  # right: precision 2/3 at recall 1
        Detection(1, 0.6, one),  # another class
    ]
    assert average_precisions([found], objects) == {0: pytest.approx((1 + 2 / 3) / 2), 1: 0.0}
    assert mean_average_precision([found], objects) == pytest.approx((1 + 2 / 3) / 4)
    assert average_precisions([[]], objects) == {0: 0.0, 1: 0.0}


def test_detections_are_sorted_and_duplicates_removed():
    box, far = [0.5, 0.5, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1]
    rows = np.array([[3, 0, 0, *box], [5, 0, 0, *box], [0, 9, 0, *far], [0, 0, 9, *far]], "float32")
    found = detections(rows)  # the last class is "nothing"
    assert [one.label for one in found] == [1, 0, 0]
    assert found[1].score > found[2].score > 0.9
    assert [one.label for one in detections(rows, overlap=0.5)] == [1, 0]
