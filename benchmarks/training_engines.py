"""Engines that train, each started by `training.py` in a separate process.

An engine returns its number of parameters, and a function that trains for a round and returns the
seconds. Every round also times a chain of large matrix products. The products of the training step
are compared with their rate.
"""

import bench
import devices
import numpy as np
from bench import Missing

# Rows and columns of the matrices, and number of products in the chain.
PRODUCT_SIZE = {"cpu": 2048, "gpu": 8192}
PRODUCTS = 4
DROPOUT, SMOOTHING, RATE = 0.1, 0.1, 1e-4


def random_batch(task, steps):
    """Draws source ids, target ids and labels of all steps of a round, each (steps * B, T).

    Rows are full, so that no engine saves work on padding. Ids are random, because no product's
    time depends on them.
    """
    generator = np.random.default_rng(task["seed"])
    shape = (3, steps * task["batch"], task["length"])
    return generator.integers(4, task["vocabulary"], shape).astype("int32")


def set_up(task):
    """Sets up an engine for a `bench.Worker`."""
    with_keras = task["engine"] != "torch"
    if with_keras:
        devices.use_checkout()
        import keras
        import training_keras as engines

        framework = keras.backend.backend()
    else:
        import training_torch as engines

        framework = "torch"
    devices.set_precision(framework, task["precision"])
    if task["device"] == "gpu" and not devices.gpus(framework):
        raise Missing(f"{framework} sees no GPU")
    parameters, train = engines.engine(task)
    size = task.get("product_size") or PRODUCT_SIZE[task["device"]]
    multiply = engines.product(size, task)

    def run():
        multiply(PRODUCTS)  # warms up
        rate = 2 * PRODUCTS * size**3 / bench.timed(lambda: multiply(PRODUCTS))[0]
        seconds = train() / task["steps"]
        on_gpu = task["device"] == "gpu"
        memory = devices.gpu_memory(framework) if on_gpu else 2**20 * bench.memory()["peak_mb"]
        return {"flops_per_second": rate, "seconds": seconds, "memory": memory}

    return {"parameters": parameters, "framework": framework}, run
