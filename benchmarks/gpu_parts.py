"""What `gpu.py` does in processes of its own: correctness, serving, models to serve, replicas.

Shapes: B batch, T target length, S source length, D d_model, H heads, W hypotheses a sentence.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import workers
from workers import Missing, WorkerError

PROVIDERS = {"cpu": "CPUExecutionProvider", "gpu": "CUDAExecutionProvider"}
# Unit roundoff of one rounding, and how many of them an error may be. Rounding errors add up as
# their root mean square: 8 units are some 200 roundings in sequence, far more than these models
# have; float32 also sums long products, in an order of the machine's choice.
UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "float16": 2.0**-11}
UNITS_ALLOWED = {"float32": 64, "tf32": 8, "bfloat16": 8, "float16": 8}
# Work that belongs on the GPU. What else may stay on the CPU: lengths, shapes, loop conditions.
PRODUCTS = ("MatMul", "Gemm", "Attention", "LayerNorm", "Softmax", "TopK", "Gelu", "Quant")


def tests_module(name):
    """A module of the checkout's tests: the float64 reference, and what goes with it."""
    tests = workers.ROOT / "tests"
    if not (tests / f"{name}.py").exists():
        raise Missing(f"{tests}: the reference is part of the checkout")
    if str(tests) not in sys.path:
        sys.path.append(str(tests))
    return __import__(name)


# --- correctness ---


def correctness(task):
    """Errors of every layer and model in every precision that the device has."""
    workers.use_checkout()
    import keras

    backend = keras.backend.backend()
    gpu = task["device"] == "gpu"
    if gpu and not workers.gpus(backend):
        raise Missing(f"{backend} sees no GPU")
    tests_module("checks")
    # No TF32 units in CPUs.
    precisions = [p for p in workers.PRECISIONS if gpu or p != "tf32"]
    rows = []
    for precision in precisions:
        workers.set_precision(backend, precision)
        dtype = workers.dtype_policy(precision)
        generator = np.random.default_rng([task["seed"], precisions.index(precision)])
        for name, make, *case in cases(generator, task["quick"]):
            try:
                seed = int(generator.integers(2**31))
                row = errors(make(dtype), *case, unit=UNIT[precision], seed=seed, gpu=gpu)
            except Exception as error:  # the other layers are still of interest
                row = {"error": f"{type(error).__name__}: {error}"[:200]}
            limit = UNIT[precision] * UNITS_ALLOWED[precision]
            rows.append({"layer": name, "precision": precision, "limit": limit, **row})
    return {"rows": rows}


def errors(layer, inputs, options, expected, *, unit, seed, gpu):
    """Relative errors of one layer with random weights."""
    checks = tests_module("checks")
    layer(*inputs, **options)  # builds it
    if layer.weights:
        checks.randomise(layer, seed=seed)
    output = layer(*inputs, **options)
    if gpu and not workers.on_gpu(output):
        raise WorkerError(f"it ran on {output.device}, not on the GPU")
    wanted, found = expected(checks.weights_of(layer)), checks.numpy64(output)
    size = np.sqrt(np.mean(wanted**2))
    error = float(np.sqrt(np.mean((found - wanted) ** 2)) / size)
    largest = float(np.max(np.abs(found - wanted)) / size)
    return {"relative_error": error, "largest_error": largest, "units": error / unit}


def cases(generator, quick):
    """Every layer and model: name, maker, inputs, options, and the reference's function.

    The maker takes a dtype policy; the reference takes {path: float64 array}.
    """
    import keras_transformer as kt

    reference = tests_module("reference")
    B, T, S, D, H, F, V, N = (
        (2, 5, 7, 24, 4, 31, 61, 2) if quick else (5, 29, 37, 256, 4, 509, 997, 4)
    )
    x, memory = (generator.normal(size=(B, n, D)).astype("float32") for n in (T, S))
    source, target = (generator.integers(1, V, (B, n)).astype("int32") for n in (S, T))
    source[0, -2:] = target[-1, -2:] = 0  # padding
    mask, memory_mask = target != 0, source != 0
    wide = mask[:, None], memory_mask[:, None]  # (B, 1, T), (B, 1, S)
    heads = generator.normal(size=(B, H, T, D // H)).astype("float32")
    long = [a.astype("float64") for a in (x, memory, heads)]
    config = dict(num_layers=N, d_model=D, num_heads=H, d_ff=F)
    ids = {"source_ids": source, "target_ids": target}

    def layer(cls, *arguments, **keywords):
        return lambda policy: cls(*arguments, **keywords, dtype=policy)

    block = layer(kt.EncoderBlock, H, F, dropout=0.0)
    yield (
        "MultiHeadAttention", layer(kt.MultiHeadAttention, H, D // H), [x, memory],
        {"attention_mask": memory_mask},
        lambda w: reference.multi_head_attention(w, H, long[0], long[1], mask=wide[1])[0],
    )  # fmt: skip
    yield (
        "AdditiveAttention", layer(kt.AdditiveAttention, D), [x, memory],
        {"attention_mask": memory_mask},
        lambda w: reference.additive_attention(w, long[0], long[1], long[1], wide[1]),
    )  # fmt: skip
    yield ("FeedForward", layer(kt.FeedForward, F), [x], {},
           lambda w: reference.feed_forward(w, long[0]))  # fmt: skip
    yield ("TokenEmbedding", layer(kt.TokenEmbedding, V, D), [source], {},
           lambda w: w["embeddings"][source] * D**0.5)  # fmt: skip
    yield ("SinusoidalPositionEncoding", layer(kt.SinusoidalPositionEncoding), [x], {},
           lambda w: long[0] + reference.sinusoids(T, D))  # fmt: skip
    yield ("LearnedPositionEncoding", layer(kt.LearnedPositionEncoding, T + 2), [x], {},
           lambda w: long[0] + w["embeddings"][:T])  # fmt: skip
    yield ("RotaryPositionEncoding", layer(kt.RotaryPositionEncoding), [heads], {},
           lambda w: reference.rotate(long[2]))  # fmt: skip
    yield ("EncoderBlock", block, [x], {"attention_mask": mask},
           lambda w: reference.encoder_block(w, long[0], mask, num_heads=H))  # fmt: skip
    yield (
        "DecoderBlock", layer(kt.DecoderBlock, H, F, dropout=0.0), [x, memory],
        {"attention_mask": mask, "memory_mask": memory_mask},
        lambda w: reference.decoder_block(w, *long[:2], mask, memory_mask, num_heads=H),
    )  # fmt: skip
    yield ("TransformerEncoder", layer(kt.TransformerEncoder, V, **config), [source], {},
           lambda w: reference.transformer_encoder(w, config, source))  # fmt: skip
    yield ("CausalTransformer", layer(kt.CausalTransformer, V, **config), [target], {},
           lambda w: reference.causal_transformer(w, config, target))  # fmt: skip
    yield ("Transformer", layer(kt.Transformer, V, **config), [ids], {},
           lambda w: reference.transformer(w, config, source, target))  # fmt: skip


# --- serving ---


def make(task):
    """Writes a random model that never ends a sentence: artefacts, CTranslate2's model, weights."""
    workers.use_checkout()
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(task["seed"])
    config = {"vocab_size": task["vocabulary"], **task["shape"]}
    model = never_ending(kt.Transformer(**config, dropout=0.0))
    np.savez(folder / "weights.npz", **{v.path: np.asarray(v) for v in model.weights})
    described = {"config": config, "length": task["length"]}
    (folder / "model.json").write_text(json.dumps(described), "utf-8")
    written = ["weights.npz", "model.json"]
    with contextlib.suppress(ModuleNotFoundError):  # a rival less
        from ctranslate2_model import save_ctranslate2

        save_ctranslate2(model, folder / "ctranslate2")
        written.append("ctranslate2")
    searches = {"greedy": kt.GreedySearch(), "beam4": kt.BeamSearch(4, 0.6)}
    for precision in task["precisions"]:
        for name, search in searches.items():
            written.append(f"{name}-{precision}")
            export.export_onnx(
                model,
                folder / written[-1],
                search=search,
                precision=precision,
                max_length=task["length"],
                verbose=False,
            )
    return {"folder": str(folder), "written": written}


def never_ending(model):
    """Gives a post-norm model weights by which it never writes a special id.

    One channel of its output is always 4, and the matrix of the logits holds -8 there for pad,
    begin and end, 0 for all others: their logits are -32 and more, and no other logit changes. So
    every hypothesis is as long as it may be, in every engine and without an engine's own options.
    """
    weights = {variable.path: variable for variable in model.weights}
    last = f"decoder_block_{len(model.decoder.blocks) - 1}/feed_forward_norm"
    for path, rows, value in (
        (f"{last}/gamma", 0, 0.0),
        (f"{last}/beta", 0, 4.0),
        ("token_embedding/embeddings", (slice(None), 0), 0.0),
        ("token_embedding/embeddings", [0, 2, 3], 0.0),
        ("token_embedding/embeddings", ([0, 2, 3], 0), -8.0),
    ):
        array = np.array(weights[path])
        array[rows] = value
        weights[path].assign(array)
    return model


def serving(task):
    """One engine that answers requests for a batch of random sentences."""
    engine = {"onnx": onnx_engine, "ctranslate2": ctranslate2_engine, "torch": torch_engine}
    facts, translate = engine[task["engine"]](task)

    def run(batch, ids=False):
        generator = np.random.default_rng(task["seed"])
        sources = generator.integers(4, task["vocabulary"], (batch, task["source_length"]))
        sources = sources.astype("int32")
        sources[:, -1] = 3  # the end mark
        start = time.perf_counter()
        found = translate(sources)  # the best hypotheses, lists of ids
        seconds = time.perf_counter() - start
        memory = workers.peak_memory()
        if ids:
            return {"ids": [list(map(int, row)) for row in found]}
        return {"seconds": seconds, "tokens": sum(map(len, found)), "memory": memory}

    run(1)  # an engine that does not run here fails now, and not amid a comparison
    return facts, run


def onnx_engine(task):
    for name in ("keras", "tensorflow", "jax"):  # serving needs none, and they would take memory
        sys.modules.setdefault(name, None)
    workers.use_checkout()
    import onnxruntime

    from keras_transformer.export.runtime.artefact import read_artefact
    from keras_transformer.export.runtime.session import CPU, open_session

    provider, artefact = task["provider"], read_artefact(task["artefact"])
    if provider not in onnxruntime.get_available_providers():
        raise Missing(f"onnxruntime {onnxruntime.__version__} has no {provider}")
    if provider != CPU:
        with contextlib.suppress(ModuleNotFoundError):
            import torch  # noqa: F401  # brings CUDA libraries where no package of their own does
    session = open_session(artefact, [provider], threads=task["threads"])
    facts = {"provider": session.get_providers()[0]}
    facts |= nodes_by_provider(artefact.model, provider, task)

    def translate(sources):
        (ids,) = session.run(["token_ids"], {"source_ids": sources})  # (B, W, T)
        return [row[row != 0] for row in ids[:, 0]]

    return facts, translate


def nodes_by_provider(model, provider, task):
    """What a profile says of which provider ran what.

    `cpu_products`: operators that belong on the GPU and that the CPU ran. `share`: of the nodes'
    own time, what `provider` took (loops not counted, for their time is that of their bodies).
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 4
    options.intra_op_num_threads = task["threads"]
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = onnxruntime.InferenceSession(model, options, providers=[provider])
        sources = np.full((2, task["source_length"]), 5, "int32")
        session.run(["token_ids"], {"source_ids": sources})
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    nodes = [
        (event["args"]["op_name"], event["args"]["provider"], event["dur"])
        for event in events
        if event.get("cat") == "Node" and event["args"].get("provider")
    ]
    if not nodes:
        raise WorkerError(f"the profile of {model} names no node")
    nodes = [node for node in nodes if node[0] not in ("Loop", "If", "Scan")]
    elsewhere = [node for node in nodes if node[1] != provider]
    time_there = sum(node[2] for node in nodes) - sum(node[2] for node in elsewhere)
    heavy = {op for op, _, _ in elsewhere if any(name in op for name in PRODUCTS)}
    return {
        "nodes": len(nodes),
        "nodes_elsewhere": len(elsewhere),
        "operators_elsewhere": sorted({node[0] for node in elsewhere}),
        "cpu_products": sorted(heavy),
        "share": time_there / max(1, sum(node[2] for node in nodes)),
    }


def ctranslate2_engine(task):
    import ctranslate2

    folder = Path(task["model"], "ctranslate2")
    if not folder.is_dir():
        raise Missing(f"no such folder: {folder}")
    gpu = task["device"] == "gpu"
    if gpu and not ctranslate2.get_cuda_device_count():
        raise Missing(f"ctranslate2 {ctranslate2.__version__} sees no GPU")
    translator = ctranslate2.Translator(
        str(folder),
        device="cuda" if gpu else "cpu",
        compute_type=task["precision"],
        inter_threads=1,
        intra_threads=task["threads"],
    )
    length = json.loads(Path(task["model"], "model.json").read_text("utf-8"))["length"]

    def translate(sources):
        found = translator.translate_batch(
            [[f"<id {i}>" for i in row] for row in sources],
            beam_size=task["beam"],
            max_decoding_length=length,
            length_penalty=0.6,
        )
        return [[int(token[4:-1]) for token in each.hypotheses[0]] for each in found]

    return {"version": ctranslate2.__version__}, translate


def torch_engine(task):
    import torch
    from torch_search import TorchTranslator

    folder = Path(task["model"])
    if not (folder / "weights.npz").exists():
        raise Missing(f"no weights.npz in {folder}")
    gpu = task["device"] == "gpu"
    if gpu and not torch.cuda.is_available():
        raise Missing(f"torch {torch.__version__} sees no GPU")
    torch.set_num_threads(task["threads"])
    described = json.loads((folder / "model.json").read_text("utf-8"))
    with np.load(folder / "weights.npz") as weights:
        device = "cuda" if gpu else "cpu"
        model = TorchTranslator(dict(weights), described["config"], device, task["precision"])

    def translate(sources):
        return model.search(sources, task["beam"], described["length"])[0][:, 0]

    return {"version": torch.__version__}, translate


# --- replicas ---


def replicas(task):
    """One update on two replicas and on one, from the same weights with the same batch."""
    workers.use_checkout()
    import keras
    import tensorflow as tf

    import keras_transformer as kt
    from keras_transformer.training import prepare

    workers.set_precision("tensorflow", "float32")
    devices, reduction = two_devices(tf, task["device"])
    generator = np.random.default_rng(task["seed"])
    source, target, labels = generator.integers(4, task["vocabulary"], (3, 6, 7)).astype("int32")
    for row in range(len(source)):  # replicas hold different numbers of tokens
        source[row, 2 + row :] = target[row, 1 + row :] = labels[row, 1 + row :] = 0

    def updated(strategy):
        keras.utils.set_random_seed(task["seed"])
        with strategy.scope():
            model = kt.Transformer(task["vocabulary"], **task["shape"], dropout=0.0)
            model.compile(
                keras.optimizers.SGD(0.5, global_clipnorm=1.0),
                loss=kt.SequenceCrossentropy(label_smoothing=0.1),
                jit_compile=False,
            )
        prepare(model)
        before = [np.array(v) for v in model.trainable_variables]
        x = {"source_ids": source, "target_ids": target}
        model.fit(x, labels, batch_size=len(source), epochs=1, shuffle=False, verbose=0)
        after = [np.array(v) for v in model.trainable_variables]
        return before, after

    start = time.perf_counter()
    before, both = updated(tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction))
    seconds = time.perf_counter() - start
    _, one = updated(tf.distribute.OneDeviceStrategy(devices[0]))
    differences = [
        np.linalg.norm(a - b) / max(np.linalg.norm(b - c), 1e-30)
        for a, b, c in zip(both, one, before, strict=True)
        if np.linalg.norm(b - c) > 1e-6 * np.linalg.norm(c)
    ]
    moved = len(differences) / len(one)
    if moved < 0.5:
        raise WorkerError(f"only {moved:.0%} of the weights were updated: nothing is compared")
    # Sums of a few hundred float32 numbers in another order.
    limit = 1e-4
    difference = float(max(differences))
    wrong = [] if difference <= limit else ["difference"]
    found = {"devices": devices, "difference": difference, "limit": limit, "wrong": wrong}
    return found | {"seconds_with_tracing": seconds}


def two_devices(tf, device):
    """Names of two devices, and how gradients are summed over them."""
    kind = device.upper()
    physical = tf.config.list_physical_devices(kind)
    if not physical:
        raise Missing(f"tensorflow sees no {kind}")
    names = [f"{kind}:0", f"{kind}:1"]
    if len(physical) > 1:
        return names, None
    memory = 4096 if device == "gpu" else None  # MB of each
    logical = [tf.config.LogicalDeviceConfiguration(memory_limit=memory) for _ in names]
    tf.config.set_logical_device_configuration(physical[0], logical)
    # NCCL refuses two replicas on one GPU.
    return names, tf.distribute.ReductionToOneDevice()


def set_up(task):
    if task["part"] == "serving":
        return serving(task)
    parts = {"correctness": correctness, "make": make, "replicas": replicas}
    return parts[task["part"]](task), None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", required=True, help="a task as JSON")
    workers.answer(set_up, parser.parse_args().worker)
