"""The cost of a step of the tiny search beside its floor in ONNX Runtime, and beside CTranslate2.

    python benchmarks/floor.py --work FOLDER

One sentence, one thread, float32, random weights. A step's cost is the slope between searches of
10 and of 40 tokens. The floor adds up what no rewrite of this graph can avoid; each part runs alone
in a `Loop`, on the shapes of a step:

- `products`: all products with weights, which come from the processor's larger caches.
- `attention`: `MultiHeadAttention` after 25 tokens, with its cache.
- `small nodes`: all other nodes, each at the cost of the cheapest operator (`Neg`).
- `loop`: an iteration that passes on as many tensors as the search does.

The rest of a step is the numbers that small nodes compute. The folder keeps the exported models.
"""

import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bench
import subjects

SHORT, LONG, TOKENS, STEPS = 10, 40, 12, 200
SEARCHES = {"greedy": 1, "beam 4": 4}
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm")
ATTENTION = "MultiHeadAttention"


def exported(work):
    """Exports the tiny model for both engines."""
    if all((work / name).exists() for name in ("ctranslate2", *SEARCHES)):
        return
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    keras.utils.set_random_seed(0)
    model, theirs = kt.Transformer(**subjects.SHAPES["tiny"]), work / "ctranslate2"
    if not theirs.exists():
        export.export_ctranslate2(model, theirs, verbose=False)
    for name, width in SEARCHES.items():
        if not (work / name).exists():
            search = kt.BeamSearch(width) if width > 1 else kt.GreedySearch()
            export.export_onnx(model, work / name, search=search, verbose=False)


def step_body(path):
    """Returns the model, and the body of its innermost loop."""
    import onnx

    model = onnx.load(path)
    body = model.graph
    while loops := [node for node in body.node if node.op_type == "Loop"]:
        body = next(item.g for item in loops[-1].attribute if item.name == "body")
    return model, body


def looped(nodes, carried, weights):
    """Returns a function that gives the microseconds of an iteration of a loop with these nodes.

    Args:
        nodes: list of `onnx.NodeProto`.
        carried: dict from names to arrays, which the loop passes on unchanged.
        weights: list of `onnx.TensorProto`.
    """
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import helper

    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        for name, array in carried.items()
    ]
    after = [
        helper.make_tensor_value_info(f"{name}/next", onnx.TensorProto.FLOAT, array.shape)
        for name, array in carried.items()
    ]
    copies = [helper.make_node("Identity", [name], [f"{name}/next"]) for name in carried]
    number = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
    going = [
        helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("go", "on")
    ]
    copies.append(helper.make_node("Identity", ["go"], ["on"]))
    body = helper.make_graph(
        [*nodes, *copies], "body", [number, going[0], *values], [going[1], *after], weights
    )
    last = [f"{name}/last" for name in carried]
    loop = helper.make_node("Loop", ["steps", "", *carried], last, body=body)
    outputs = [helper.make_empty_tensor_value_info(name) for name in last]
    graph = helper.make_graph(
        [loop],
        "floor",
        values,
        outputs,
        [helper.make_tensor("steps", onnx.TensorProto.INT64, [], [STEPS])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options(), providers=["CPUExecutionProvider"]
    )
    feed = {name: np.ascontiguousarray(array) for name, array in carried.items()}

    def run():
        seconds, _ = bench.timed(lambda: session.run(None, feed))
        return 1e6 * seconds / STEPS

    return run


def options():
    """Returns the options of the runtime's sessions, with one thread."""
    from keras_transformer.export.runtime.session import session_options

    return session_options(threads=1, arena=True, spinning=True)


def parts(path, width):
    """Returns the parts of the floor as functions, and the number of small nodes."""
    import numpy as np
    import onnx

    model, body = step_body(path)
    shape = subjects.SHAPES["tiny"]
    d_model, heads = shape["d_model"], shape["num_heads"]
    weights = {item.name: item for graph in (model.graph, body) for item in graph.initializer}
    reshaped = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Reshape"}
    kept, products, attention, small = [], [], [], 0
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type in PRODUCTS:
            name = reshaped.get(node.input[1], node.input[1])
            dims = weights[name].dims
            rows = dims[1] if node.op_type == "FusedMatMul" else dims[0]
            copy.input[0], copy.input[1] = f"x{rows}", name
            kept.append(weights[name])
            products.append(copy)
        elif node.op_type == ATTENTION:
            past = len(node.input) > 6
            copy.input[0] = attention[-1].output[0] if attention else f"x{d_model}"
            source = [copy.input[0]] * 2 if past else ["memory", "memory"]
            copy.input[1], copy.input[2] = source
            for i in range(3, len(copy.input)):
                copy.input[i] = ""
            if past:
                copy.input[6] = copy.input[7] = "cache"
            attention.append(copy)
        elif not (node.op_type == "Reshape" and node.input[0] in weights):  # folded when it opens
            small += 1
    random = np.random.default_rng(0)
    sizes = {f"x{size}": (1, width, size) for size in (d_model, shape["d_ff"])}
    caches = {
        "cache": (1, heads, (SHORT + LONG) // 2 * width, d_model // heads),
        "memory": (1, heads, TOKENS, d_model // heads),
    }
    vectors = {name: random.normal(size=size).astype("float32") for name, size in sizes.items()}
    caches = {name: random.normal(size=size).astype("float32") for name, size in caches.items()}
    # ONNX Runtime merges equal nodes, so each reads the one before it.
    names = [f"x{d_model}", *(f"n{i}" for i in range(small))]
    negations = [
        onnx.helper.make_node("Neg", [x], [y]) for x, y in zip(names, names[1:], strict=False)
    ]
    state = {f"s{i}": np.zeros((1, width), "float32") for i in range(len(body.input) - 2)}
    unique = {item.name: item for item in kept}
    return small, {
        "empty": looped([], vectors, []),
        "products": looped(products, vectors, list(unique.values())),
        "empty, caches": looped([], {**vectors, **caches}, []),
        "attention": looped(attention, {**vectors, **caches}, []),
        "small nodes": looped(negations, vectors, []),
        "loop": looped([], state, []),
    }


def ours(path):
    """Returns a function that gives the microseconds of a step of our file."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(path, options(), providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(4, 5000, (1, TOKENS), "int32")

    def search(length):
        inputs = {"source_ids": ids, "max_length": np.array([length], "int32")}
        assert session.run(None, inputs)[0].shape[2] == length  # random weights write no end
        return lambda: session.run(None, inputs)

    return slope(search)


def theirs(folder, width):
    """Returns the same for CTranslate2."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder), compute_type="float32", inter_threads=1, intra_threads=1
    )
    tokens = [f"▁{i}" for i in range(TOKENS)]

    def search(length):
        settings = {"beam_size": width, "max_decoding_length": length}
        assert len(translator.translate_batch([tokens], **settings)[0].hypotheses[0]) == length
        return lambda: translator.translate_batch([tokens], **settings)

    return slope(search)


def slope(search):
    """Returns a function that gives the microseconds of a step, from two lengths of a search."""

    def run():
        ends = []
        for length in (SHORT, LONG):
            found = search(length)
            found()
            start = time.perf_counter()
            for _ in range(8):
                found()
            ends.append((time.perf_counter() - start) / 8)
        return 1e6 * (ends[1] - ends[0]) / (LONG - SHORT)

    return run


def measure(task):
    """Returns the rows of the report; runs in a separate process without TensorFlow."""
    import statistics

    rows = []
    for name, width in SEARCHES.items():
        folder = Path(task["work"])
        path = folder / name / "model.onnx"
        small, found = parts(path, width)
        runs = {**found, "ours": ours(path), "ctranslate2": theirs(folder / "ctranslate2", width)}
        answers = bench.in_turn(runs, task["rounds"], pause=0)
        us = {key: statistics.median(values) for key, values in answers.items()}
        row = {"search": name, "nodes": len(step_body(path)[1].node), "small": small}
        row["products"] = us["products"] - us["empty"]
        row["attention"] = us["attention"] - us["empty, caches"]
        row["small_nodes"] = us["small nodes"] - us["empty"]
        row["loop"] = us["loop"]
        names = ("products", "attention", "small_nodes", "loop")
        row |= {"floor": sum(row[name] for name in names), "ours": us["ours"]}
        row["ctranslate2"] = us["ctranslate2"]
        row["times_ctranslate2"] = bench.ratio(answers["ctranslate2"], answers["ours"])
        rows.append(row)
    return {"rows": rows}


def main():
    parser = bench.Parser(__doc__, "work", "rounds", rounds=21, threads=1)
    args = parser.parse_args()
    exported(args.work)
    task = {"work": args.work, "rounds": args.rounds}
    found = bench.call("floor:measure", task, bench.SERVES)
    args.output = args.output or bench.RESULTS / "floor.json"
    bench.finish(args, "floor", {"rounds": args.rounds, **found})


if __name__ == "__main__":
    main()
