"""Scenes of several items, the set loss, average precision, and the plot of boxes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from support import set_loss
from support.plots import plot_boxes
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


@pytest.fixture(scope="module")
def items():
    return scenes.make_items(*made_pictures(count=60).train, darkest=0.5)


def boxes(*shape):
    return np.concatenate(
        [DRAW.uniform(0.2, 0.8, (*shape, 2)), DRAW.uniform(0.1, 0.4, (*shape, 2))], axis=-1
    ).astype("float32")


def test_scenes_hold_one_to_five_items_that_hardly_overlap(items):
    drawn = scenes.draw_scenes(items, 50, np.random.default_rng(3))
    assert drawn.pixels.shape == (50, 64, 64, 1) and drawn.objects.shape == (50, 5, 5)
    counts = (drawn.objects[..., 0] >= 0).sum(axis=1)
    assert {*counts.tolist()} == {1, 2, 3, 4, 5}
    for picture, rows in zip(drawn.pixels[..., 0], drawn.objects, strict=True):
        covered = np.zeros_like(picture, bool)
        for _, x, y, width, height in rows[rows[:, 0] >= 0] * [1, 64, 64, 64, 64]:
            left, top = round(x - width / 2), round(y - height / 2)
            part = picture[top : top + round(height), left : left + round(width)]
            covered[top : top + round(height), left : left + round(width)] = True
            # The box is tight: something is in its first and last row and column.
            assert part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()
        assert not picture[~covered].any()
    again = scenes.draw_scenes(items, 50, np.random.default_rng(3))
    np.testing.assert_array_equal(again.pixels, drawn.pixels)


def test_generalized_iou_follows_the_formula():
    a = np.array([0.5, 0.5, 0.4, 0.4], "float32")
    b = np.array([0.7, 0.5, 0.4, 0.4], "float32")  # half of it overlaps
    far = np.array([0.9, 0.1, 0.2, 0.2], "float32")
    found = np.asarray(generalized_iou(tf.constant([a, a, a]), tf.constant([a, b, far])))
    hull = 0.7 * 0.7
    expected = [1, 1 / 3, -(hull - 0.2) / hull]
    np.testing.assert_allclose(found, expected, atol=1e-5)
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


def test_the_match_is_the_cheapest_of_all():
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


def test_objects_match_the_cell_of_their_middle():
    objects = np.full((1, 2, 5), -1, "float32")
    objects[0, 0] = [1, 0.9, 0.1, 0.2, 0.2]
    assert match_by_cell(objects, np.zeros((1, 4, 7)))[0].tolist() == [-1, 0, -1, -1]


def test_the_set_loss_ignores_the_order_and_is_zero_when_right():
    objects = np.array([[[0, 0.3, 0.3, 0.2, 0.2], [1, 0.7, 0.7, 0.2, 0.4], [-1] * 5]], "float32")
    right = np.zeros((1, 3, 7), "float32")
    right[0, :, -4:] = [[0.7, 0.7, 0.2, 0.4], [0.3, 0.3, 0.2, 0.2], [0.5, 0.5, 0.5, 0.5]]
    right[0, [0, 1, 2], [1, 0, 2]] = 20.0  # class 1, class 0, nothing
    loss = SetLoss(cheapest_match)
    assert float(loss(objects, right)) == pytest.approx(0, abs=1e-4)
    assert float(loss(objects[:, [1, 2, 0]], right[:, [2, 0, 1]])) == pytest.approx(0, abs=1e-4)
    wrong = right.copy()
    wrong[0, 0, -4] += 0.1
    assert float(loss(objects, wrong)) > 0.2
    both = np.stack([right, wrong], axis=1)  # two decoder blocks
    mean = (float(loss(objects, right)) + float(loss(objects, wrong))) / 2
    assert float(loss(objects, both)) == pytest.approx(mean, rel=1e-4)


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


def test_boxes_are_drawn_over_scenes(items):
    drawn = scenes.draw_scenes(items, 3, np.random.default_rng(1))
    some = [[Detection(2, 0.75, np.array([0.5, 0.5, 0.5, 0.25]))], [], []]
    figure = plot_boxes(drawn.pixels, some, drawn.objects, list("abcde"))
    panel = figure.axes[0]
    assert [text.get_text() for text in panel.texts] == ["c 75%"]
    x, y = panel.lines[-1].get_data()
    assert (min(x), max(x), min(y), max(y)) == (15.5, 47.5, 23.5, 39.5)
    counts = [len(axes.lines) for axes in figure.axes[:3]]
    true = (drawn.objects[..., 0] >= 0).sum(axis=1)
    assert counts == [true[0] + 1, true[1], true[2]]
    with pytest.raises(ValueError, match="the same number of lists"):
        plot_boxes(drawn.pixels, some[:1], drawn.objects, "abcde")
