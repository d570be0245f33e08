"""Small artefacts, made by hand and without TensorFlow, for the tests of serving.

The model reverses a sentence and shifts every id by `SHIFT`. A second hypothesis repeats the
source. `expected_hypotheses` computes the translation from the tokenizer alone.

Shapes: B sentences, S source length; beam width 2, target length S.
"""

import hashlib

import numpy as np
import onnx
import onnxruntime

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import seal
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer

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
    """Returns the id that the model writes for `token`. Special ids stay unchanged."""
    return (
        token
        if token <= END_ID
        else END_ID + 1 + (token - END_ID - 1 + SHIFT) % (vocab_size - END_ID - 1)
    )


# The second hypothesis is the source, with a score lower by 1.
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
reverse (int32[batch, source_length] source_ids)
    => (int32[batch, beam, target_length] token_ids, float[batch, beam] scores)
<int32[{size}] table = {{{table}}}, int32 pad = {{{pad}}}, int64 one = {{1}},
    int64[1] last_axis = {{1}}, int32[1] zero = {{0}}, int32[1] target_axis = {{2}},
    int32[1] max_length = {{1000}}, float[1, 2] difference = {{0, -1}},
    float thousandth = {{-0.001}}>
{{
    is_pad = Equal (source_ids, pad)
    is_token = Not (is_pad)
    ones = Cast <to = 7> (is_token)
    length = ReduceSum <keepdims = 0> (ones, last_axis)
    words = Sub (length, one)
    reverse = ReverseSequence <batch_axis = 0, time_axis = 1> (source_ids, words)
    moved = Gather (table, reverse)
    first = Unsqueeze (moved, last_axis)
    second = Unsqueeze (source_ids, last_axis)
    both = Concat <axis = 1> (first, second)
    token_ids = Slice (both, zero, max_length, target_axis)
    sum = ReduceSum (source_ids, last_axis)
    float_sum = Cast <to = 1> (sum)
    best = Mul (float_sum, thousandth)
    {scores} = Add (best, difference)
    {replaced}
}}
"""
REPLACED = """
    two_axes = Shape (unused)
    scores = Expand (score, two_axes)
"""


def model(vocab_size, known=None, score=None):
    """Returns the ONNX model. Ids from `known` on fail at run time; `score` replaces scores."""
    table = [shifted(token, vocab_size) for token in range(vocab_size)][:known]
    made = onnx.parser.parse_model(
        MODEL.format(
            size=len(table),
            table=", ".join(map(str, table)),
            pad=PAD_ID,
            scores="scores" if score is None else "unused",
            replaced="" if score is None else REPLACED,
        )
    )
    if score is not None:  # the parser cannot read infinity
        made.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(score, np.float32), "score")
        )
    # An initializer with the name of an input is its default value.
    rows = onnx.helper.make_tensor_value_info("max_length", onnx.TensorProto.INT32, ["rows"])
    made.graph.input.append(rows)
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString()


OPTIONS = [
    {"name": "max_length", "dtype": "int32", "axes": ["rows"], "default": [1000]}
    | {"lowest": 1, "highest": 2**31 - 1}
]


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
        **({} if model_bytes else {"options": OPTIONS}),
        **fields,
    }
    (folder / signature.MANIFEST_FILE).write_bytes(seal(manifest))
    return folder


def expected_hypotheses(tokenizer, line):
    """Returns the expected texts of a nonempty line, and their scores."""
    ids = tokenizer.encode(line)
    best = [shifted(token, tokenizer.vocab_size) for token in reversed(ids)]
    score = np.float32(sum(ids) + END_ID) * np.float32(-0.001)
    scores = (float(score), float(score + np.float32(-1)))
    texts = tokenizer.decode(best), tokenizer.decode(ids)
    texts = dict.fromkeys(text.replace("\0", signature.REPLACEMENT) for text in texts)
    return tuple(texts), scores[: len(texts)]


assert BEGIN_ID < END_ID  # `shifted` moves ids after the end token
