"""Engines that train, each started by `training.py` in a separate process.

An engine returns its number of parameters, and a function that trains for a round and returns the
seconds. Every round also times a chain of large matrix products. The products of the training step
are compared with their rate.
"""

import argparse
import time

import workers
from workers import Missing

# Rows and columns of the matrices, and number of products in the chain.
PRODUCT_SIZE = {"cpu": 2048, "gpu": 8192}
PRODUCTS = 4


def set_up(task):
    """Sets up an engine for a `Worker` of this script."""
    with_keras = task["engine"] != "torch"
    if with_keras:
        workers.use_checkout()
        import keras
        import training_keras as engines

        framework = keras.backend.backend()
    else:
        import training_torch as engines

        framework = "torch"
    workers.set_precision(framework, task["precision"])
    if task["device"] == "gpu" and not workers.gpus(framework):
        raise Missing(f"{framework} sees no GPU")
    parameters, train = engines.engine(task)
    size = task.get("product_size") or PRODUCT_SIZE[task["device"]]
    multiply = engines.product(size, task)

    def products():
        start = time.perf_counter()
        multiply(PRODUCTS)
        return time.perf_counter() - start

    def run():
        products()  # warms up
        rate = 2 * PRODUCTS * size**3 / products()
        seconds = train() / task["steps"]
        on_gpu = task["device"] == "gpu"
        memory = workers.gpu_memory(framework) if on_gpu else workers.peak_memory()
        return {"flops_per_second": rate, "seconds": seconds, "memory": memory}

    return {"parameters": parameters, "framework": framework}, run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", required=True, help="a task as JSON")
    workers.answer(set_up, parser.parse_args().worker)
