"""Small artefacts without a search, made by hand, with known answers.

Shapes: B rows, S tokens.
"""

import onnx
from helpers import artefacts

from keras_transformer.export.artefact import signature

IDS = "int32[batch, source_length] source_ids"
# Numbers of a row: the sum of ids times 0.001, the count of tokens times 0.25.
SUM_AND_COUNT = """
    all = ReduceSum <keepdims = 0> (source_ids, last)
    sum = Cast <to = 1> (all)
    is_pad = Equal (source_ids, pad)
    is_token = Not (is_pad)
    ones = Cast <to = 1> (is_token)
    count = ReduceSum <keepdims = 0> (ones, last)
    scaled_sum = Mul (sum, thousandth)
    scaled_count = Mul (count, quarter)
    first = Unsqueeze (scaled_sum, last)
    second = Unsqueeze (scaled_count, last)
"""
CONSTANTS = """
    int32 pad = {0}, int32 three = {3}, int32[3] kinds = {0, 1, 2}, int64[1] last = {1},
    int64[1] behind = {2}, float thousandth = {0.001}, float tenth = {0.1},
    float quarter = {0.25}, float[1] zero = {0.0}
"""


def model(inputs, outputs, nodes):
    """Returns an ONNX model of nodes in `onnx.parser` syntax."""
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> hand ({inputs}) => ({outputs}) <{CONSTANTS}>'
        f"{{ {nodes} }}"
    )
    onnx.checker.check_model(made, full_check=True)
    return made


# By name: task, inputs, outputs and nodes.
MODELS = {
    # logits of three classes: sum, count and 0
    "classify": (
        "classify",
        IDS,
        "float[batch, 3] classes",
        SUM_AND_COUNT
        + "zeros = Mul (first, zero)\n classes = Concat <axis = 1> (first, second, zeros)",
    ),
    # a logit of 1 for the class id mod 3
    "tag": (
        "tag",
        IDS,
        "float[batch, source_length, 3] classes",
        """
        kind = Mod (source_ids, three)
        each = Unsqueeze (kind, behind)
        same = Equal (each, kinds)
        classes = Cast <to = 1> (same)
        """,
    ),
    # start: id / 1000; end: (class + segment) / 10
    "answer": (
        "answer",
        f"{IDS}, int32[batch, source_length] segment_ids",
        "float[batch, source_length] start, float[batch, source_length] end",
        """
        ids = Cast <to = 1> (source_ids)
        start = Mul (ids, thousandth)
        kind = Mod (source_ids, three)
        segmented = Add (kind, segment_ids)
        weighted = Cast <to = 1> (segmented)
        end = Mul (weighted, tenth)
        """,
    ),
    "embed": (
        "embed",
        IDS,
        "float[batch, 2] vector",
        SUM_AND_COUNT + "vector = Concat <axis = 1> (first, second)",
    ),
    # a vector for each token, here the id
    "embed_tokens": (
        "embed",
        IDS,
        "float[batch, source_length, 1] vectors",
        "ids = Cast <to = 1> (source_ids)\n vectors = Unsqueeze (ids, behind)",
    ),
    # the mean of ids, padding included
    "embed_mean": (
        "embed",
        IDS,
        "float[batch, 1] vector",
        "ids = Cast <to = 1> (source_ids)\n vector = ReduceMean <axes = [1]> (ids)",
    ),
    # two inputs of ids: the vector is the difference of their sums
    "pair": (
        "embed",
        f"{IDS}, int32[batch, other_length] other_ids",
        "float[batch, 1] vector",
        """
        one = ReduceSum (source_ids, last)
        two = ReduceSum (other_ids, last)
        difference = Sub (one, two)
        vector = Cast <to = 1> (difference)
        """,
    ),
    # a vector that is not finite
    "infinite": (
        "embed",
        IDS,
        "float[batch, 2] vector",
        SUM_AND_COUNT + "both = Concat <axis = 1> (first, second)\n vector = Div (both, zero)",
    ),
    # the ids, unchanged
    "echo": (
        "forward",
        IDS,
        "int32[batch, source_length] ids",
        "ids = Identity (source_ids)",
    ),
    # a text and numbers
    "mixed": (
        "embed",
        f"{IDS}, float[batch, 2] numbers",
        "float[batch, 2] vector",
        SUM_AND_COUNT + "both = Concat <axis = 1> (first, second)\n vector = Add (both, numbers)",
    ),
    # a series of pairs: its sum, and its double
    "series": (
        "forward",
        "float[batch, series_length, 2] series",
        "float[batch, 2] total, float[batch, series_length, 2] doubled",
        "total = ReduceSum <keepdims = 0> (series, last)\n doubled = Add (series, series)",
    ),
}
HEADS = {
    "classify": ("Classification", {"labels": ["sum", "count", "none"], "from_logits": True}),
    "tag": ("TokenClassification", {"labels": ["a", "b", "c"], "from_logits": True}),
    "answer": ("QuestionAnswering", {"max_answer_length": 3}),
    "embed": ("FeatureExtraction", {}),
}


def described(value):
    """Returns the manifest's entry of an input or output."""
    tensor = value.type.tensor_type
    return {
        "name": value.name,
        "dtype": {1: "float32", 6: "int32"}[tensor.elem_type],
        "axes": [axis.dim_param or axis.dim_value for axis in tensor.shape.dim],
    }


def write(folder, tokenizer, name, **fields):
    """Writes the artefact of a model of `MODELS`; `fields` replaces fields of the manifest."""
    task, *parts = MODELS[name]
    made, head = model(*parts), {}
    if task in HEADS:
        class_name, config = HEADS[task]
        head = {"head": {"class_name": class_name, "config": config}}
        head["ignores_padding"] = name != "embed_mean"
    fields = {
        "task": task,
        "inputs": [described(value) for value in made.graph.input],
        "outputs": [described(value) for value in made.graph.output],
        "search": None,
        **head,
        **fields,
    }
    files = {}
    if tokenizer is None:
        tokenizer, files = artefacts.tokenizer(), {signature.TOKENIZER_FILE: None}
    return artefacts.write(folder, tokenizer, made.SerializeToString(), files.items(), **fields)
