"""Small artefacts, made by hand and without TensorFlow, for the tests of what serves them.

Their "model" turns a sentence around and moves every id by `SHIFT`; a second hypothesis repeats the
source. So what a translation must be is known from the tokenizer alone: `expected_hypotheses`.

Shapes: B sentences, S source length; beam width 2, target length S.
"""

import hashlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.export.runtime import signature
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID

SHIFT = 7
SOURCE_LIMIT = 61
LINES = [
    "a man rides a bicycle .",
    "two dogs run along the beach .",
    "ein mann fährt fahrrad .",
    "a child in a red hat jumps .",
    "the quick brown fox , the lazy dog !",
]


def tokenizer():
    return Tokenizer.train(LINES, vocab_size=400, hard_vocab_limit=False)


def shifted(token, vocab_size):
    """The id that the model writes for `token`; special ids stay as they are."""
    return (
        token
        if token <= END_ID
        else END_ID + 1 + (token - END_ID - 1 + SHIFT) % (vocab_size - END_ID - 1)
    )


def model(vocab_size, known=None, score=None):
    """The ONNX model. Ids from `known` on fail when it runs; `score` replaces every score."""
    table = [shifted(token, vocab_size) for token in range(vocab_size)][:known]
    constants = {
        "table": np.array(table, np.int32),
        "pad": np.array(PAD_ID, np.int32),
        "one": np.array(1, np.int64),
        "last_axis": np.array([1], np.int64),
        "zero_and_one": np.array([[0.0, -1.0]], np.float32),
        "thousandth": np.array(-0.001, np.float32),
    }
    nodes = [
        helper.make_node("Equal", ["source_ids", "pad"], ["is_pad"]),
        helper.make_node("Not", ["is_pad"], ["is_token"]),  # (B, S)
        helper.make_node("Cast", ["is_token"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones", "last_axis"], ["length"], keepdims=0),  # (B,)
        helper.make_node("Sub", ["length", "one"], ["words"]),  # all but the end mark
        helper.make_node(
            "ReverseSequence", ["source_ids", "words"], ["reverse"], batch_axis=0, time_axis=1
        ),
        helper.make_node("Gather", ["table", "reverse"], ["moved"]),  # (B, S)
        helper.make_node("Unsqueeze", ["moved", "last_axis"], ["first"]),  # (B, 1, S)
        helper.make_node("Unsqueeze", ["source_ids", "last_axis"], ["second"]),
        helper.make_node("Concat", ["first", "second"], ["token_ids"], axis=1),  # (B, 2, S)
        # -sum of the source's ids / 1000, and one less for the second hypothesis
        helper.make_node("ReduceSum", ["source_ids", "last_axis"], ["sum"], keepdims=1),
        helper.make_node("Cast", ["sum"], ["float_sum"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float_sum", "thousandth"], ["best"]),  # (B, 1)
        helper.make_node("Add", ["best", "zero_and_one"], ["scores" if score is None else "_"]),
    ]
    if score is not None:
        constants["score"] = np.array(score, np.float32)
        nodes.append(helper.make_node("Shape", ["_"], ["two_axes"]))
        nodes.append(helper.make_node("Expand", ["score", "two_axes"], ["scores"]))
    graph = helper.make_graph(
        nodes,
        "reverse",
        [
            helper.make_tensor_value_info(
                "source_ids", TensorProto.INT32, ["batch", "source_length"]
            )
        ],
        [
            helper.make_tensor_value_info(
                "token_ids", TensorProto.INT32, ["batch", "beam", "target_length"]
            ),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "beam"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


def described(name, dtype):
    return {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}


def write(folder, tokenizer, model_bytes=None, files=(), **fields):
    """Writes an artefact as an exporter would; `fields` replaces fields of `artefact.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        signature.MODEL_FILE: model_bytes or model(tokenizer.vocab_size),
        signature.TOKENIZER_FILE: tokenizer.model,
        **dict(files),
    }
    content = {name: data for name, data in content.items() if data is not None}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    manifest = {
        "task": "translate",
        "inputs": [described("source_ids", "int32")],
        "outputs": [described("token_ids", "int32"), described("scores", "float32")],
        "text": None,
        "special_ids": signature.SPECIAL_IDS,
        "vocab_size": {"source": tokenizer.vocab_size, "target": tokenizer.vocab_size},
        "limits": {
            "source_length": SOURCE_LIMIT,
            "target_length": None,
            "extra_length": 0,
        },
        "search": {"class_name": "BeamSearch", "config": {"beam_width": 2}},
        "precision": "float32",
        "opsets": {"": 17},
        "ir_version": 8,
        "versions": {"onnxruntime": onnxruntime.__version__},
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in content.items()
        },
        **fields,
    }
    (folder / signature.MANIFEST_FILE).write_bytes(signature.seal(manifest))
    return folder


def expected_hypotheses(tokenizer, line):
    """What the model must make of a line with text: two texts and their scores."""
    ids = tokenizer.encode(line)
    best = [shifted(token, tokenizer.vocab_size) for token in reversed(ids)]
    score = np.float32(sum(ids) + END_ID) * np.float32(-0.001)
    scores = (float(score), float(score + np.float32(-1)))
    texts = tokenizer.decode(best), tokenizer.decode(ids)
    return tuple(text.replace("\0", signature.REPLACEMENT) for text in texts), scores


assert BEGIN_ID < END_ID  # `shifted` moves what comes after the end mark
