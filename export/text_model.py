"""The string-to-string ONNX file: SentencePiece around the model, by onnxruntime-extensions.

Text goes through the tokenizer's own operator. The way back needs none: pieces are looked up in a
table of strings and joined. Byte pieces are single bytes there, so that joining them gives back the
character that they spell.

Shapes: B texts, N tokens of all of them, S of the longest, W hypotheses, T tokens of each.
"""

import numpy as np
import onnx
import sentencepiece
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.export import verify
from keras_transformer.export.runtime import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks.samples import proof_texts

CONTRIB = "ai.onnx.contrib"
# How SentencePiece writes a space, and the unknown token.
SPACE, UNKNOWN = "\u2581", " \u2047 "
# Scores of the file and of the ids' own run: the same graph, so only their way differs.
TOLERANCE = 1e-6


def add_text_model(folder, tokenizer, task, vocab_size, longest=None):
    """Writes the text model beside `model.onnx` in `folder` and proves it.

    Args:
        folder: `pathlib.Path` with the model, ids in and out.
        tokenizer: `Tokenizer` of the model.
        task: "translate" (pieces and the end mark) or "generate" (begin mark and pieces).
        vocab_size: how many ids the model may write. Those that the tokenizer lacks, as where a
            vocabulary was rounded up, are written like the unknown token.
        longest: most tokens that the model can read. Defaults to `None`: any number.

    Returns:
        `{"inputs", "outputs"}` as the manifest lists them.

    Raises:
        ExportError: the model is too large for one file, or strings differ from the tokenizer's.
    """
    if (folder / signature.WEIGHTS_FILE).exists():
        raise ExportError(
            "The model is too large for one file, and the text model has to be one. Leave out "
            "text=True and serve with keras_transformer.export.runtime."
        )
    model = onnx.load(folder / signature.MODEL_FILE)
    seeded = any(value.name == signature.SEED for value in model.graph.input)
    made = wrap(model, tokenizer, task, vocab_size)
    onnx.save(made, folder / signature.TEXT_MODEL_FILE)
    _prove(folder, tokenizer, task, seeded, proof_texts(tokenizer, longest))
    seed = [{"name": signature.SEED, "dtype": "int32", "axes": []}] if seeded else []
    return {
        "inputs": [_entry(signature.TEXT, "string"), *seed],
        "outputs": [_entry(signature.TEXTS, "string"), _entry(signature.SCORES, "float32")],
    }


def _entry(name, dtype):
    return {"name": name, "dtype": dtype, "axes": list(signature.AXES[name])}


class _Nodes:
    """Collects nodes and constants under names that no model uses."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, array):
        name = f"text/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type, *inputs, domain="", outputs=1, **attributes):
        names = [f"text/{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names


def wrap(model, tokenizer, task, vocab_size):
    """The ONNX model from `text` to `texts` and `scores` around one from ids to ids."""
    graph, made = model.graph, _Nodes()
    ids, blank = _encode(made, tokenizer, task)
    before = len(made.nodes)
    texts, scores = _decode(made, tokenizer, blank, vocab_size)
    made.nodes.append(helper.make_node("Identity", [texts], [signature.TEXTS]))
    made.nodes.append(helper.make_node("Identity", [scores], [signature.SCORES]))
    for node in _all_nodes(graph):
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = {
                    signature.SOURCE_IDS: ids,
                    signature.SCORES: "text/scores",
                }.get(name, name)
    nodes = [*made.nodes[:before], *graph.node, *made.nodes[before:]]
    values = [
        helper.make_tensor_value_info(name, kind, signature.AXES[name])
        for name, kind in (
            (signature.TEXT, TensorProto.STRING),
            (signature.TEXTS, TensorProto.STRING),
            (signature.SCORES, TensorProto.FLOAT),
        )
    ]
    rest = [value for value in graph.input if value.name != signature.SOURCE_IDS]
    constants = [*graph.initializer, *made.constants]
    whole = helper.make_graph(nodes, graph.name, [values[0], *rest], values[1:], constants)
    opsets = [*model.opset_import, helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=model.ir_version)


def _all_nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)


def _encode(made, tokenizer, task):
    """Nodes from `text` to padded ids (B, S), and to whether it is blank (B, 1); their names."""
    generate = task == "generate"
    flags = [np.array([flag]) for flag in (generate, not generate, False, False)]
    tokens, starts = made.add(
        "SentencepieceTokenizer",
        signature.TEXT,
        made.constant(np.array([0], np.int64)),
        made.constant(np.array([0], np.float32)),
        *map(made.constant, flags),
        domain=CONTRIB,
        outputs=2,
        model=tokenizer.model,
    )  # (N,), (B + 1,): where each text begins, and the end
    zero, one = made.constant(np.array([0])), made.constant(np.array([1]))
    first = made.add("Slice", starts, zero, made.constant(np.array([-1])), zero)  # (B,)
    end = made.add("Slice", starts, one, made.constant(np.array([2**31 - 1])), zero)  # (B,)
    count = made.add("Sub", end, first)
    longest = made.add("ReduceMax", count, keepdims=0)
    scalars = [made.constant(np.array(number)) for number in (0, 1)]
    column = made.add("Unsqueeze", made.add("Range", scalars[0], longest, scalars[1]), zero)
    index = made.add("Add", made.add("Unsqueeze", first, one), column)  # (B, S)
    last = made.add("Sub", made.add("Size", tokens), scalars[1])
    found = made.add("Gather", tokens, made.add("Min", index, last))  # (B, S)
    there = made.add("Less", column, made.add("Unsqueeze", count, one))
    pad = made.constant(np.array(signature.SPECIAL_IDS["pad"], np.int32))
    rest = _substitute(made, signature.TEXT, f"^{signature.BLANK}$", "")
    length = made.add("StringLength", rest, domain=CONTRIB)  # (B,)
    blank = made.add(
        "Or", made.add("Equal", length, scalars[0]), made.add("Equal", count, scalars[1])
    )
    return made.add("Where", there, found, pad), made.add("Unsqueeze", blank, one)


def _decode(made, tokenizer, blank, vocab_size):
    """Nodes from `token_ids` (B, W, T) to strings and scores (B, W); returns their names."""
    found = pieces(tokenizer, vocab_size)
    table = helper.make_tensor("text/pieces", TensorProto.STRING, [len(found)], found)
    made.constants.append(table)
    words = made.add("Gather", table.name, signature.TOKEN_IDS)  # (B, W, T)
    broken = _broken_bytes(made, tokenizer, vocab_size)
    words = made.add("Where", broken, _string(made, signature.REPLACEMENT), words)
    text = made.add(
        "StringJoin", words, _string(made, ""), made.constant(np.array([2])), domain=CONTRIB
    )
    text = _substitute(made, text, f"^{SPACE}", "")
    text = _substitute(made, text, SPACE, " ")
    # Blank text has one empty hypothesis of score 0 and no other.
    beam = made.add("Shape", "text/scores", start=1)
    others = made.add("Range", *_range_of(made, beam))  # (W,)
    nothing = made.add(
        "Where",
        made.add("Less", others, made.constant(np.array(1))),
        made.constant(np.array(0, np.float32)),
        made.constant(np.array(-np.inf, np.float32)),
    )
    return (
        made.add("Where", blank, _string(made, ""), text),
        made.add("Where", blank, nothing, "text/scores"),
    )


def _broken_bytes(made, tokenizer, vocab_size):
    """Nodes that find, (B, W, T), the byte pieces that do not spell a character of UTF-8."""
    value, need, low, high = (
        made.constant(np.array(column, np.int64))
        for column in zip(*_byte_table(tokenizer, vocab_size), strict=True)
    )
    zeros = made.constant(np.array([0, 0, 3, 0, 0, 3]))  # three more tokens on either side
    ids = made.add("Pad", made.add("Cast", signature.TOKEN_IDS, to=TensorProto.INT64), zeros)

    def at(name, shift):
        """`name` of the tokens `shift` places on."""
        start = made.constant(np.array([3 + shift]))
        # The three at the far end stay out: 0 would mean an empty slice.
        end = made.constant(np.array([shift - 3 if shift < 3 else 2**31 - 1]))
        return made.add("Slice", name, start, end, made.constant(np.array([2])))

    def within(values, lowest, highest):
        return made.add(
            "And",
            made.add("GreaterOrEqual", values, lowest),
            made.add("LessOrEqual", values, highest),
        )

    def both(*conditions):
        made_of = conditions[0]
        for condition in conditions[1:]:
            made_of = made.add("And", made_of, condition)
        return made_of

    def number(value):
        return made.constant(np.array(value))

    needs, values = made.add("Gather", need, ids), made.add("Gather", value, ids)
    here = [at(values, shift) for shift in range(4)]
    mine = at(needs, 0)
    follows = within(
        here[1],
        made.add("Gather", low, at(ids, 0)),
        made.add("Gather", high, at(ids, 0)),
    )
    rest = [within(here[shift], number(0x80), number(0xBF)) for shift in (2, 3)]
    leads = [
        both(made.add("Equal", mine, number(1 + more)), follows, *rest[:more]) for more in range(3)
    ]
    lead = made.add("Or", made.add("Or", leads[0], leads[1]), leads[2])
    good = lead
    length = made.add("Mul", made.add("Cast", lead, to=TensorProto.INT64), mine)
    length = made.add("Pad", length, zeros)
    for shift in (1, 2, 3):  # covered by a character that began `shift` tokens before
        covered = made.add("GreaterOrEqual", at(length, -shift), number(shift))
        good = made.add("Or", good, covered)
    return both(
        made.add("GreaterOrEqual", here[0], number(0x80)),
        made.add("Not", good),
    )


def _byte_table(tokenizer, vocab_size):
    """For each id: its byte or -1, how many bytes must follow it, and bounds of the next one."""
    second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
    for byte in byte_values(tokenizer, vocab_size):
        need = sum(low <= byte <= high for low, high in ((0xC2, 0xF4), (0xE0, 0xF4), (0xF0, 0xF4)))
        yield (byte, need, *second.get(byte, (0x80, 0xBF)))


def _range_of(made, size):
    zero, one = (made.constant(np.array(number)) for number in (0, 1))
    return zero, made.add("Squeeze", size), one


def _string(made, text):
    name = f"text/constant_{len(made.constants)}"
    made.constants.append(helper.make_tensor(name, TensorProto.STRING, [1], [text.encode()]))
    return name


def _substitute(made, text, regex, by):
    return made.add(
        "StringRegexReplace",
        text,
        _string(made, regex),
        _string(made, by),
        domain=CONTRIB,
        global_replace=1,
    )


def byte_values(tokenizer, vocab_size):
    """The byte that each id stands for, -1 where it is no byte piece."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for token in range(processor.get_piece_size()):
        yield int(processor.id_to_piece(token)[3:-1], 16) if processor.is_byte(token) else -1
    yield from [-1] * (vocab_size - processor.get_piece_size())


def pieces(tokenizer, vocab_size):
    """What each id stands for, as bytes: nothing for marks, one byte for a byte piece but NUL."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = []
    for token in range(processor.get_piece_size()):
        piece = processor.id_to_piece(token)
        if processor.is_unknown(token):
            found.append(UNKNOWN.encode())
        elif processor.is_control(token):
            found.append(b"")
        elif processor.is_byte(token):
            byte = bytes([int(piece[3:-1], 16)])  # "<0x2A>"
            found.append(signature.REPLACEMENT.encode() if byte == b"\0" else byte)
        else:
            found.append(piece.encode())
    return found + [UNKNOWN.encode()] * (vocab_size - len(found))


def _prove(folder, tokenizer, task, seeded, proof):
    """Holds strings from the written file to the tokenizer around the model of ids."""
    marks = signature.SPECIAL_IDS
    ids = [
        [marks["begin"], *row] if task == "generate" else [*row, marks["end"]]
        for row in tokenizer.encode(proof)
    ]
    padded = np.zeros((len(ids), max(map(len, ids))), np.int32)
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = tokens
    seed = {signature.SEED: np.array(17, np.int32)} if seeded else {}
    (expected,) = verify.probe(
        folder / signature.MODEL_FILE, [{signature.SOURCE_IDS: padded, **seed}]
    )
    (found,) = verify.probe(
        folder / signature.TEXT_MODEL_FILE,
        [{signature.TEXT: np.array(proof), **seed}],
        extensions=True,
    )
    texts, scores = [], expected[signature.SCORES].copy()
    for text, row, score in zip(proof, expected[signature.TOKEN_IDS], scores, strict=True):
        row = np.where(row < tokenizer.vocab_size, row, marks["unknown"])
        decoded = [one.replace("\0", signature.REPLACEMENT) for one in tokenizer.decode(row)]
        texts.append(decoded if text.strip() else [""] * len(decoded))
        if not text.strip():
            score[:] = np.where(np.arange(len(score)) < 1, 0.0, -np.inf)
    encoded = np.array([[one.encode() for one in row] for row in texts], dtype=object)
    verify.compare_texts(
        {signature.TEXTS: encoded, signature.SCORES: scores}, found, tolerance=TOLERANCE
    )
