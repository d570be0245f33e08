"""Times of layers."""

import time

import tensorflow as tf


def milliseconds(functions, lengths, size, rounds=5):
    """Measures a compiled forward pass over one sequence, for several layers and lengths.

    Args:
        functions: dict from a name to a layer, or to another function of a tensor (1, n, size).
        lengths: list of int, the lengths n.
        size: int, size of a vector.
        rounds: int, number of measurements. The shortest counts, because other work only adds
            time. Defaults to 5.

    Returns:
        Dict from a name to a list of float, one for each length.

    Example:

    >>> times = milliseconds({"sum": tf.math.cumsum}, [4, 8], size=2)
    >>> len(times["sum"])
    2
    """
    shortest = {name: [] for name in functions}
    for name, function in functions.items():
        for length in lengths:
            x, times = tf.random.normal((1, length, size)), []
            compiled = tf.function(function)
            compiled(x)  # traced here
            for _ in range(rounds):
                start = time.perf_counter()
                compiled(x)
                times.append(1000 * (time.perf_counter() - start))
            shortest[name].append(min(times))
    return shortest


def shortest(calls, rounds=10):
    """Measures functions in turn. The shortest time counts, because other work only adds time.

    Args:
        calls: dict from a name to a function without arguments.
        rounds: int, number of measurements. Defaults to 10.

    Returns:
        Dict from a name to milliseconds.

    Example:

    >>> list(shortest({"sum": lambda: sum(range(10))}))
    ['sum']
    """
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: min(found) for name, found in times.items()}
