"""Plain tf2onnx files of a model's forward pass, and times of files in turn.

    plain_file(model, "plain.onnx")
    export_onnx(model, "ours")
    seconds = in_turn({"plain": "plain.onnx", "ours": "ours/model.onnx"}, {"ids": ids})

All files run in one process on the same inputs and take turns in every round, so that a busy
machine slows all of them equally. Compare only medians of the same call.
"""

import functools
import statistics
import time

import bench
import keras
import numpy as np
import onnxruntime
import tensorflow as tf

OPSET = 17  # as in `export_onnx`


def plain_file(model, path):
    """Converts a Keras model with `tf2onnx.convert.from_function`; inputs keep their names.

    Args:
        model: functional Keras model.
        path: file to write.
    """
    import tf2onnx

    names = [tensor.name for tensor in model.inputs]

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs],
    )
    def forward(*tensors):
        by_name = dict(zip(names, tensors, strict=True))
        arranged = keras.tree.map_structure(lambda x: by_name[x.name], model.input)
        return keras.tree.flatten(model(arranged, training=False))

    tf2onnx.convert.from_function(
        forward, input_signature=forward.input_signature, opset=OPSET, output_path=str(path)
    )


def is_right(path, inputs, expected, disabled=()):
    """Returns whether ONNX Runtime computes roughly Keras' outputs.

    Args:
        path: ONNX file.
        inputs: dict from names of inputs to arrays.
        expected: list of arrays, the outputs in order.
        disabled: names of ONNX Runtime's optimizers to disable. Defaults to none.
    """
    run = _runner(path, inputs, 1, disabled)
    pairs = zip(run(), expected, strict=True)
    return all(np.abs(y - x).max() <= 0.01 * max(1.0, np.abs(x).max()) for y, x in pairs)


def in_turn(
    files, inputs, rounds=21, threads=1, shortest=0.01, clock=time.perf_counter, disabled=None
):
    """Returns the median seconds of one run of each file; files take turns in each round.

    Args:
        files: dict from a name to the path of an ONNX file.
        inputs: dict from names of inputs to arrays, fed to all files.
        rounds: number of turns of each file. Defaults to 21.
        threads: number of threads of each session. Defaults to 1.
        shortest: minimum seconds of a turn; a fast file runs several times in it.
        clock: function that returns seconds. With one thread, use `time.thread_time`: other
            programs disturb processor time less. Defaults to `time.perf_counter`.
        disabled: dict from names of files to lists of optimizers to disable. Defaults to `None`.

    Returns:
        Dict from the names to seconds.
    """
    turns = {}
    for name, path in files.items():
        run = _runner(path, inputs, threads, (disabled or {}).get(name, ()))
        run()
        count = max(1, round(shortest / max(_seconds(run, 1, clock), 1e-6)))
        turns[name] = functools.partial(_seconds, run, count, clock)
    taken = bench.in_turn(turns, rounds, warm_up=0, pause=0)
    return {name: statistics.median(times) for name, times in taken.items()}


def _runner(path, inputs, threads, disabled):
    """Opens a session; returns a function that runs the file once on these inputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled)
    )
    feed = {value.name: inputs[value.name.partition(":")[0]] for value in session.get_inputs()}
    return lambda: session.run(None, feed)


def _seconds(run, count, clock):
    """Returns the mean seconds of `count` runs."""
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count
