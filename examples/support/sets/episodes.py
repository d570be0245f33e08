"""Logged episodes of gymnasium's environments, played by policies of mixed quality.

Shapes: T steps of an episode, F numbers of a state, A actions, K steps of a window.
"""

from typing import NamedTuple

import numpy as np

# Simple rules that solve the tasks: whether to push right, or to which side to turn.
RULES = {
    "CartPole-v1": lambda state: int(state[2] + 0.5 * state[3] > 0),
    "Acrobot-v1": lambda state: 2 if state[5] > 0 else 0,
}
LONGEST = 500  # steps of an episode in both environments


class Episode(NamedTuple):
    """One episode.

    Attributes:
        states: float32 (T, F), before each action.
        actions: int32 (T,).
        rewards: float32 (T,).
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


def make_environment(name):
    """Makes an environment of gymnasium.

    Raises:
        ValueError: gymnasium is not installed.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ValueError(
            "the environments need gymnasium, which is not installed: pip install gymnasium"
        ) from error
    return gymnasium.make(name)


def logged_episodes(name, count, seed=0):
    """Plays episodes of a rule with random actions, whose rate from 0 to 1 is drawn per episode.

    Args:
        name: str, "CartPole-v1" or "Acrobot-v1".
        count: int, number of episodes.
        seed: int. Defaults to 0.

    Returns:
        List of `Episode`, the same for the same arguments.

    Raises:
        ValueError: gymnasium is not installed, or there is no rule for `name`.
    """
    if name not in RULES:
        raise ValueError(f"there are rules for {[*RULES]}, but none for {name!r}.")
    environment, draw, episodes = make_environment(name), np.random.default_rng(seed), []
    for number in range(count):
        chance, rows, done = draw.random(), [], False
        state, _ = environment.reset(seed=seed * 100_000 + number)
        while not done:
            action = RULES[name](state)
            if draw.random() < chance:
                action = int(draw.integers(environment.action_space.n))
            after, reward, ended, cut, _ = environment.step(action)
            rows.append((state, action, reward))
            state, done = after, ended or cut
        states, actions, rewards = zip(*rows, strict=True)
        columns = np.float32(states), np.int32(actions), np.float32(rewards)
        episodes.append(Episode(*columns))
    return episodes


def step_features(states, actions, wanted, count):
    """Returns the input of a policy at each step.

    Args:
        states: (T, F).
        actions: (T - 1,) or more integers, the action after each state but the last.
        wanted: (T,), the remaining requested return; zeros for a policy without returns.
        count: A, number of actions.

    Returns:
        float32 (T, 2 + F + A): the return in units of 500, the time in units of 500 steps, the
        state, and the previous action (zeros at the first step).

    Example:

    >>> step_features(np.ones((2, 1)), [1], [500, 499], 2).tolist()[0]
    [1.0, 0.0, 1.0, 0.0, 0.0]
    """
    length = len(states)
    before = np.zeros((length, count))
    before[np.arange(1, length), np.asarray(actions, int)[: length - 1]] = 1
    time = np.arange(length)[:, None] / LONGEST
    rest = np.asarray(wanted, float)[:, None] / LONGEST
    return np.concatenate([rest, time, states, before], axis=1).astype("float32")


def training_windows(episodes, count, length, actions, use_returns=True, seed=0):
    """Draws random windows of consecutive steps, and returns them with the actions.

    Args:
        episodes: list of `Episode`.
        count: N, number of windows.
        length: K.
        actions: A, number of actions.
        use_returns: bool, whether steps have the return from there on, else 0. Defaults to
            `True`.
        seed: int. Defaults to 0.

    Returns:
        float32 (N, K, 2 + F + A), and int32 (N, K). Short episodes end with rows of zeros and the
        action -1.
    """
    draw, rows = np.random.default_rng(seed), []
    for one in episodes:
        wanted = np.cumsum(one.rewards[::-1])[::-1] * use_returns
        rows.append(step_features(one.states, one.actions, wanted, actions))
    sizes = np.array([len(one) for one in rows])
    inputs = np.zeros((count, length, rows[0].shape[1]), "float32")
    labels = np.full((count, length), -1, "int32")
    for place, number in enumerate(draw.choice(len(rows), count, p=sizes / sizes.sum())):
        start = draw.integers(max(1, sizes[number] - length + 1))
        part = rows[number][start : start + length]
        inputs[place, : len(part)] = part
        labels[place, : len(part)] = episodes[number].actions[start : start + length]
    return inputs, labels
