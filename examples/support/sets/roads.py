"""Drives on a motorway of highway-env, and the advice of its driver model at each step.

Shapes: N drives, T steps of all drives, V vehicles, F = 6 numbers of a vehicle.
"""

import numpy as np

ACTIONS = ("left", "keep", "right", "faster", "slower")  # in the order of highway-env
MIRRORED = np.array([2, 1, 0, 3, 4])  # the actions on the mirrored road
VEHICLES = 13  # on the road, with our own
SEEN = 150  # metres, to both sides
LANE, DISTANCE, SPEED = 4.0, 50.0, 5.0  # units of a view: metres, metres, metres per second
LIMIT, START = 30.0, 25.0  # the driver's desired speed and the speed at the start, in m/s
# The driver asks for another speed from this acceleration on, in m/s2.
NOTICEABLE = 0.5


class Road:
    """A motorway of three lanes with twelve other vehicles; a drive lasts 30 steps of one second.

    The environment is "highway-fast-v0" with 0.7 times its density, so that there are gaps to pass
    slower vehicles. The actions are the environment's: change the lane, or set a target speed of
    20, 25 or 30 m/s.

    Raises:
        ValueError: highway-env is not installed.
    """

    def __init__(self):
        try:
            import gymnasium
            import highway_env  # noqa: F401, adds its environments to gymnasium
        except ModuleNotFoundError as error:
            raise ValueError(
                "the road needs highway-env, which is not installed: pip install highway-env"
            ) from error
        # The environment's own table of vehicles takes longer than the simulation, so it is small.
        table = {"type": "Kinematics", "vehicles_count": 1, "normalize": False}
        config = dict(vehicles_count=VEHICLES - 1, vehicles_density=0.7, observation=table)
        options = dict(config=config, disable_env_checker=True)
        self._environment = gymnasium.make("highway-fast-v0", **options)

    def start(self, seed):
        """Starts a drive; returns its first view."""
        self._environment.reset(seed=seed)
        return self.view()

    def step(self, action):
        """Drives for one second.

        Args:
            action: int, an index of `ACTIONS`.

        Returns:
            The view, whether the drive has ended, whether by a crash, and the speed in m/s.
        """
        _, _, ended, cut, facts = self._environment.step(int(action))
        return self.view(), ended or cut, facts["crashed"], facts["speed"]

    def view(self):
        """Returns the vehicles within 150 m, float32 (V, F); rows of zeros are absent vehicles.

        The first row is the own vehicle, the others are sorted by distance. A row has: 1; whether
        it is the own vehicle; the position along and across the road; the speed along and across.
        Positions and speeds are relative to the own vehicle, whose own row has the position across
        the road relative to the middle lane, and the speed relative to 25 m/s.
        """
        own = self._environment.unwrapped.vehicle
        others = [one for one in self._environment.unwrapped.road.vehicles if one is not own]
        moves = [
            np.append(one.position - own.position, one.velocity - own.velocity) for one in others
        ]
        moves = sorted((one for one in moves if abs(one[0]) <= SEEN), key=lambda one: abs(one[0]))
        first = [0, own.position[1] - LANE, own.velocity[0] - START, own.velocity[1]]
        view = np.zeros((VEHICLES, 6), "float32")
        view[: len(moves) + 1, 0], view[0, 1] = 1, 1
        view[: len(moves) + 1, 2:] = np.array([first, *moves]) / [DISTANCE, LANE, SPEED, SPEED]
        return view

    def advice(self):
        """Returns the action of highway-env's driver model, with the speed limit as its wish.

        MOBIL decides on lanes (Kesting et al. 2007). Else IDM's acceleration (Treiber et al. 2000)
        decides on the speed. The driver knows the lanes to which vehicles are changing, and sees
        any distance.
        """
        from highway_env.vehicle.behavior import IDMVehicle

        own = self._environment.unwrapped.vehicle
        road, place = own.road, own.road.vehicles.index(own)
        driver = IDMVehicle.create_from(own)
        driver.target_speed = LIMIT
        road.vehicles[place] = driver  # else the driver takes the own vehicle for another one
        try:
            return self._decide(driver, road)
        finally:
            road.vehicles[place] = own

    @staticmethod
    def _decide(driver, road):
        def acceleration(lane):
            return driver.acceleration(driver, *road.neighbour_vehicles(driver, lane))

        pulls = min(map(acceleration, (driver.lane_index, driver.target_lane_index)))
        if driver.lane_index == driver.target_lane_index:
            lanes = filter(driver.mobil, road.network.side_lanes(driver.lane_index))
            best = max(lanes, key=acceleration, default=None)
            if best is not None:
                return ACTIONS.index("left" if best[2] < driver.lane_index[2] else "right")
        change = "faster" if pulls > NOTICEABLE else "slower" if pulls < -NOTICEABLE else "keep"
        return ACTIONS.index(change)


def demonstrations(count, chance=0.2, seed=0):
    """Drives as the driver model advises, but now and then by a random action.

    After a random action, the advice shows how to leave a situation that the driver model would
    avoid. The advice is recorded, not the random action.

    Args:
        count: N.
        chance: float, the rate of random actions. Defaults to 0.2.
        seed: int. Defaults to 0.

    Returns:
        The views, float32 (T, V, F), and the advice, int32 (T,), in the order of the drives. The
        same for the same arguments.

    Raises:
        ValueError: highway-env is not installed.
    """
    road, draw, views, advice = Road(), np.random.default_rng(seed), [], []
    for number in range(count):
        view, ended = road.start(seed * 100_000 + number), False
        while not ended:
            views.append(view)
            advice.append(road.advice())
            random = draw.random() < chance
            action = draw.integers(len(ACTIONS)) if random else advice[-1]
            view, ended, *_ = road.step(action)
    return np.stack(views), np.int32(advice)


def with_mirrored(views, advice):
    """Returns views and advice, and those of the road with left and right exchanged.

    Args:
        views: (T, V, F).
        advice: (T,) integers.

    Returns:
        Arrays (2 T, V, F) and (2 T,).

    Example:

    >>> with_mirrored(np.ones((1, 1, 6)), np.array([0]))[0][1].tolist()
    [[1.0, 1.0, 1.0, -1.0, 1.0, -1.0]]
    """
    mirrored = views * np.array([1, 1, 1, -1, 1, -1], views.dtype)
    return np.concatenate([views, mirrored]), np.concatenate([advice, MIRRORED[advice]])
