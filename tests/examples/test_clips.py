"""Clips of two items, what continues them, and attention over space and time."""

import keras
import numpy as np
import pytest
from helpers import scripts
from support.extrapolation import LAGS, continued, displacements, errors, shifted
from support.next_frames import moved, next_frames
from support.sets.clips import GIVEN, MOTIONS, NEXT, SHARED, SIDE, Clips, draw_clips, placed

COUNT = 1200
BRIGHT, DARK = (0.6, np.inf), (0.2, 0.5)  # levels of the two classes


@pytest.fixture(scope="module")
def clips():
    """Clips of discs, whose class 0 is bright and class 1 dark."""
    y, x = np.indices((20, 20)) - 9.5
    disc = np.hypot(x, y) < 10
    pixels = np.stack([255 * disc, 120 * disc]).astype("uint8")
    return draw_clips(pixels, np.arange(2), COUNT, np.random.default_rng(7))


def track(frames, low, high):
    """Returns rows and columns of the middle of the pixels between two levels, and their areas."""
    seen = ((frames > low) & (frames < high)).astype(float)
    area = seen.sum(axis=(2, 3))
    places = [(seen * place).sum(axis=(2, 3)) / area for place in np.indices((SIDE, SIDE))]
    return np.stack(places, axis=-1), area


def test_an_item_moves_as_its_motion_says(clips):
    assert clips.frames.shape == (COUNT, GIVEN + NEXT, 32, 32)
    assert clips.frames.dtype == np.float32 and 0.9 < clips.frames.max() <= 1 + 1e-6
    alone = (clips.moving == 0) & (clips.still == 1)
    places, areas = track(clips.frames[alone, :GIVEN], *BRIGHT)
    steps = places[:, [2, 5]] - places[:, [0, 2]]
    (down, right), bigger = np.moveaxis(steps.sum(axis=1), 1, 0), areas[:, -1] / areas[:, 0]
    # Clockwise on a picture, whose rows count downwards.
    turn = steps[:, 0, 1] * steps[:, 1, 0] - steps[:, 0, 0] * steps[:, 1, 1]
    found = {
        "left": -right,
        "right": right,
        "up": -down,
        "down": down,
        "clockwise": turn,
        "anticlockwise": -turn,
        "growing": bigger - 1,
        "shrinking": 1 / bigger - 1,
    }
    for number, motion in enumerate(MOTIONS):
        values = found[motion][clips.motions[alone] == number]
        assert len(values) > 10 and (values > 0.2).mean() > 0.95, motion


def test_the_shared_frame_tells_neither_the_motion_nor_which_item_moves(clips):
    for seen, classes in ((BRIGHT, (0, 1)), (DARK, (1, 0))):
        pair = (clips.moving == classes[0]) & (clips.still == classes[1])
        other = (clips.moving == classes[1]) & (clips.still == classes[0])
        for frame, most in ((SHARED, 1.5), (0, np.inf)):
            (here, area), (there, area_there) = (
                track(clips.frames[rows, frame : frame + 1], *seen) for rows in (pair, other)
            )
            assert np.abs(here.mean(axis=0) - there.mean(axis=0)).max() < most
            assert np.abs(area.mean() / area_there.mean() - 1) < 0.1 * most
        places, _ = track(clips.frames[pair], *seen)
        left, right = (places[clips.motions[pair] == number, :, 1] for number in (0, 1))
        assert abs(left[:, SHARED].mean() - right[:, SHARED].mean()) < 4
        assert left[:, 0].mean() - right[:, 0].mean() > 4


def test_a_placed_picture_is_shifted_and_shrunk_exactly():
    picture = np.random.default_rng(5).random((1, SIDE, SIDE))
    middle = (SIDE - 1) / 2
    (found,) = placed(picture, middle + np.array([[[0, 0], [3, -5]]]), np.full((1, 2), SIDE))
    np.testing.assert_allclose(found[0], picture[0], atol=1e-6)
    np.testing.assert_allclose(found[1, 3:, :-5], picture[0, :-3, 5:], atol=1e-6)
    assert not found[1, :3].any() and not found[1, :, -5:].any()
    (half,) = placed(picture, np.full((1, 1, 2), 7.5), np.full((1, 1), SIDE / 2))
    blocks = picture[0].reshape(16, 2, 16, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(half[0, :16, :16], blocks, atol=1e-6)
    assert not half[0, 16:].any()


def moving_squares():
    """Returns clips of a square that moves by 1 row and -2 columns, and one that stands still."""
    frames = np.zeros((3, GIVEN + NEXT, SIDE, SIDE), "float32")
    for step in range(GIVEN + NEXT):
        frames[:, step, 5 + step : 9 + step, 24 - 2 * step : 28 - 2 * step] = 0.7
    frames[:, :, 25:30, 3:7] = 0.5
    return Clips(frames, *np.zeros((3, 3), int))


def test_the_moving_part_is_continued():
    clips = moving_squares()
    given = clips.frames[:, :GIVEN]
    np.testing.assert_array_equal(displacements(given[:, 0, :20], given[:, 3, :20]), [[3, -6]] * 3)
    found = shifted(given, 2, parts=True)
    np.testing.assert_allclose(found, clips.frames[:, GIVEN:], atol=1e-6)
    np.testing.assert_allclose(errors(found, clips), np.zeros(3), atol=1e-9)
    np.testing.assert_allclose(continued(clips, clips, parts=True), found)
    whole = [errors(shifted(given, lag, parts=False), clips).mean() for lag in LAGS]
    assert min(whole) > 1e-3
    best = errors(continued(clips, clips, parts=False), clips).mean()
    assert best == pytest.approx(min(whole))


def test_a_patch_shows_the_place_that_it_moves_to():
    last = np.random.default_rng(2).random((2, 12, 12)).astype("float32")
    moves = np.zeros((2, 9, 3, 3), "float32")
    moves[:, :, 1] = 2, -3, 0
    moves[:, :, 2, 2] = np.log(0.5)  # the middle, enlarged
    found = np.asarray(moved(last, moves))
    assert found.shape == (2, 9, 3, 4, 4)
    middle = found[:, 4]
    np.testing.assert_allclose(middle[:, 0], last[:, 4:8, 4:8], atol=1e-6)
    np.testing.assert_allclose(middle[:, 1], last[:, 6:10, 1:5], atol=1e-6)
    # The first pixel shows the place between (4, 4) and (5, 5), 0.75 from the first.
    weights = np.outer([0.25, 0.75], [0.25, 0.75])
    corner = (last[:, 4:6, 4:6] * weights).sum(axis=(1, 2))
    np.testing.assert_allclose(middle[:, 2, 0, 0], corner, atol=1e-6)
    np.testing.assert_array_equal(found[:, 0, 1, :, :3], 0)  # outside of the frame
    frames = next_frames(last * 0, np.ones((2, 9, 5), "float32"), 3)
    np.testing.assert_array_equal(frames, np.zeros((2, 3, 12, 12)))  # black stays black at first


@pytest.mark.parametrize(
    "kind, frames, patches",
    [("space", [2], range(4)), ("time", range(3), [1]), ("joint", range(3), range(4))],
)
def test_a_patch_is_read_by_its_frame_by_its_place_or_by_all(kind, frames, patches):
    inputs = keras.Input((3, 4, 8))
    model = keras.Model(inputs, scripts.load("video").attend(inputs, kind))
    x = np.random.default_rng(7).normal(size=(1, 3, 4, 8)).astype("float32")
    other = x.copy()
    other[0, 2, 1, 0] += 1  # of all channels, the norm would remove it
    changed = np.abs(np.asarray(model(x)) - np.asarray(model(other))).max(axis=(0, 3)) > 1e-6
    expected = np.zeros((3, 4), bool)
    expected[np.ix_([*frames], [*patches])] = True
    np.testing.assert_array_equal(changed, expected)
