"""Drives on a motorway: views, advice and the mirrored road. The first test needs highway-env."""

import numpy as np
import pytest
from support.sets import roads

pytest.importorskip("highway_env")


@pytest.fixture(scope="module")
def road():
    return roads.Road()


def test_a_view_has_the_own_vehicle_first_and_the_others_by_distance(road):
    view = road.start(7)
    assert view.shape == (13, 6) and view.dtype == np.float32
    present = int(view[:, 0].sum())
    assert 2 <= present <= 13 and view[:present, 0].all() and not view[present:].any()
    assert view[:, 1].tolist() == [1] + [0] * 12
    away = np.abs(view[1:present, 2]) * roads.DISTANCE
    assert (np.diff(away) >= 0).all() and away[-1] <= roads.SEEN
    assert view[0, 2] == 0 and view[0, 3] in (-1, 0, 1)  # the left, middle or right lane
    lanes = view[1:present, 3] + view[0, 3]
    assert {*np.round(lanes, 5)} <= {-1, 0, 1}
    np.testing.assert_array_equal(road.start(7), view)
    assert (road.start(8) != view).any()


def test_lane_changes_move_the_own_vehicle_and_speeds_change(road):
    start = road.start(11)[0, 3]
    side = "right" if start < 1 else "left"
    for _ in range(3):
        view, *_ = road.step(roads.ACTIONS.index(side))
    assert (view[0, 3] > start) == (side == "right")
    road.start(11)
    speeds = [road.step(roads.ACTIONS.index("slower"))[3] for _ in range(4)]
    assert speeds[-1] == pytest.approx(20, abs=0.5) and speeds[0] > speeds[-1]


def test_the_driver_model_brakes_behind_a_slow_vehicle_and_leaves_the_road_as_it_was(road):
    road.start(11)
    own, other, *others = (vehicles := road._environment.unwrapped.road.vehicles)
    before = list(vehicles)
    for lane, vehicle in zip((0, 1, 2), (other, *others), strict=False):  # a wall of vehicles
        vehicle.position = own.position * [1, 0] + [14, 4 * lane]
        vehicle.speed = 20
    for vehicle in others[2:]:
        vehicle.position = own.position + [1000, 0]
    assert roads.ACTIONS[road.advice()] == "slower"
    for vehicle in vehicles[1:]:
        vehicle.position = own.position + [1000, 0]
    assert roads.ACTIONS[road.advice()] == "faster"
    assert all(a is b for a, b in zip(vehicles, before, strict=True))


def test_demonstrations_repeat_and_their_mirror_exchanges_left_and_right():
    views, advice = roads.demonstrations(2, seed=3)
    again, same = roads.demonstrations(2, seed=3)
    np.testing.assert_array_equal(views, again)
    np.testing.assert_array_equal(advice, same)
    assert len(views) == len(advice) and {*advice} <= {*range(5)}
    both, actions = roads.with_mirrored(views, advice)
    count = len(views)
    np.testing.assert_array_equal(both[count:, :, [3, 5]], -views[:, :, [3, 5]])
    np.testing.assert_array_equal(both[count:, :, [0, 1, 2, 4]], views[:, :, [0, 1, 2, 4]])
    np.testing.assert_array_equal(roads.MIRRORED[actions[count:]], advice)
    np.testing.assert_array_equal(roads.MIRRORED[roads.MIRRORED], np.arange(5))
