"""Batches and settings that all training engines share.

Rows are full, so that no engine saves work on padding. Ids are random, because no product's time
depends on them.
"""

import numpy as np

DROPOUT = 0.1
SMOOTHING = 0.1
RATE = 1e-4


def random_batch(task, steps):
    """Draws source ids, target ids and labels of all steps of a round, each (steps * B, T)."""
    generator = np.random.default_rng(task["seed"])
    shape = (3, steps * task["batch"], task["length"])
    return generator.integers(4, task["vocabulary"], shape).astype("int32")
