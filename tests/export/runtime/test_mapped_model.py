"""Mapped models: the graph is read without its weights, which stay in the model's file."""

import itertools
import os
import pathlib
import platform
import re
import sys

import numpy as np
import onnx
import pytest
from helpers import runtime_process
from onnx import TensorProto, numpy_helper

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.runtime import mapped_model
from keras_transformer.export.runtime.mapped_model import SMALLEST, MappedModel
from keras_transformer.export.runtime.session import CPU, open_session

SIZE = 67
VECTOR = f"float[{SIZE}]"
MODEL = f"""
<ir_version: 8, opset_import: ["": 17]>
outer ({VECTOR} x) => ({VECTOR} y) {{
    a = MatMul (x, outer_weight)
    two = Constant <value_int: int = 2> ()
    y = Loop <body = middle (int64 i, bool go, {VECTOR} b) => (bool on, {VECTOR} e) {{
        c = MatMul (b, middle_weight)
        e = Loop <body = inner (int64 j, bool run, {VECTOR} f) => (bool more, {VECTOR} h) {{
            g = MatMul (f, inner_weight)
            h = Add (g, inner_bias)
            more = Identity (run)
        }}> (two, , c)
        on = Identity (go)
    }}> (two, , a)
}}
"""


def graphs(graph):
    """Returns `graph` and its subgraphs."""
    inner = [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    return [graph, *itertools.chain.from_iterable(map(graphs, inner))]


@pytest.fixture
def made(tmp_path):
    """Returns the path of a model of three nested graphs with weights in each, and the weights."""
    model, random, weights = onnx.parser.parse_model(MODEL), np.random.default_rng(0), {}
    for graph in graphs(model.graph):
        weight = random.normal(size=(SIZE, SIZE)).astype(np.float32) / 8
        weights[f"{graph.name}_weight"] = weight
        graph.initializer.append(numpy_helper.from_array(weight, f"{graph.name}_weight"))
    weights["inner_bias"] = random.normal(size=SIZE).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weights["inner_bias"], "inner_bias"))
    path = tmp_path / "made" / signature.MODEL_FILE
    path.parent.mkdir()
    onnx.save(model, path)
    return path, weights


def artefact(folder, size=SIZE):
    x = {"name": "x", "dtype": "float32", "axes": [size]}
    manifest = {"precision": "float32", "inputs": [x], "outputs": [{"name": "y"}]}
    return Artefact(folder, manifest | {"versions": {}, "files": {}}, None)


def check_weights(found, expected):
    """Compares dicts of arrays."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def check_outputs(session, x, expected):
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_the_graph_refers_to_its_weights_in_the_file(made):
    path, weights = made
    data, mapped = path.read_bytes(), MappedModel(path)
    assert len(mapped.graph) < SMALLEST
    in_bodies = {name: weights[name] for name in ("middle_weight", "inner_weight")}
    check_weights(mapped.arrays, in_bodies)
    model = onnx.load_from_string(mapped.graph)
    for graph in graphs(model.graph):
        assert graph.initializer[0].data_location == TensorProto.EXTERNAL
    onnx.load_external_data_for_model(model, str(path.parent))
    for graph in graphs(model.graph):
        graph.initializer[0].ClearField("data_location")
    assert model == onnx.load_from_string(data)


def with_shared_weight(folder, size):
    """Writes a model whose outer graph and step share a weight; returns path and weight."""
    vector = f"float[{size}]"
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["": 17]>
    outer ({vector} x) => ({vector} y) <int64[2] shape = {{{size}, {size}}}> {{
        a = MatMul (x, w)
        two = Constant <value_int: int = 2> ()
        y = Loop <body = step (int64 i, bool go, {vector} b) => (bool on, {vector} e) {{
            "w/step" = Reshape (w, shape)
            other = Reshape (w, shape)
            c = MatMul (b, "w/step")
            e = MatMul (c, other)
            on = Identity (go)
        }}> (two, , a)
    }}""")
    weight = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32) / 8
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = folder / signature.MODEL_FILE
    onnx.save(model, path)
    return path, weight


@pytest.mark.parametrize("size", [67, 5])
def test_a_step_reads_a_shared_weight_in_the_file(tmp_path, size):
    """The weight is large or small. A Reshape with another name of its output stays."""
    path, weight = with_shared_weight(tmp_path, size)
    mapped = MappedModel(path)
    (_, step) = graphs(onnx.load_from_string(mapped.graph).graph)
    assert [item.name for item in step.initializer] == ["w/step"]
    assert [node.output[0] for node in step.node if node.op_type == "Reshape"] == ["other"]
    check_weights(mapped.arrays, {"w/step": weight} if weight.nbytes >= SMALLEST else {})
    x, session = np.ones(size, np.float32), open_session(artefact(tmp_path, size), [CPU])
    check_outputs(session, x, x @ np.linalg.matrix_power(weight, 5))


@pytest.mark.parametrize("size", [67, 5])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_shared_weight_of_speech_is_packed_for_steps_of_several_rows_only(tmp_path, size, rows):
    path, weight = with_shared_weight(tmp_path, size)
    mapped = MappedModel(path, pack_loop=rows > 1, pack_start=False)
    graph = onnx.load_from_string(mapped.graph).graph
    assert [item.name for item in graph.input] == ["x", "w"]
    (_, step) = graphs(graph)
    assert [item.name for item in step.initializer] == (["w/step"] if rows > 1 else [])
    once = rows > 1 and weight.nbytes >= SMALLEST
    check_weights(mapped.arrays, {"w": weight, "w/step": weight} if once else {})
    assert bool(mapped.read_once) == once
    del mapped  # and the pages that were compared
    search = {"class_name": "SpeechSearch", "config": {"beam_width": rows}}
    x, speech = np.ones(size, np.float32), {"task": "transcribe", "search": search}
    for change in ({}, {"precision": "int8"}, {"task": "translate"}):
        one = artefact(tmp_path, size)
        one.manifest.update(speech | change)
        session = open_session(one, [CPU])
        names = [value.name for value in session.get_overridable_initializers()]
        assert names == ([] if change else ["w"])
        check_outputs(session, x, x @ np.linalg.matrix_power(weight, 5))
        if sys.platform == "linux" and not change:  # pages that greedy search reads again stay
            assert bool(resident(path)) == (rows == 1 and weight.nbytes >= SMALLEST)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff" * 3_000_017, "byte 0 begins no number"),
        (b"\0" * 50_000_017, "byte 0 begins no field"),
        (b"\x3a\x80\x80\x80\x10" + b"\x2a\0" * 2**24, "more than 10007 fields"),
        (b"\x0f", "byte 0 begins no field"),  # an unknown wire type
        (b"\x08\x08\x3a\x7f", "byte 2 begins no field"),  # longer than the file
        (b"\x08", "begins no number"),
    ],
)
def test_bytes_that_are_no_model_are_refused_at_once(tmp_path, data, message, monkeypatch):
    monkeypatch.setattr(mapped_model, "MOST_FIELDS", 10_007)
    path = tmp_path / signature.MODEL_FILE
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        MappedModel(path)


CUT = """
import os, pathlib, sys
from keras_transformer.export.runtime.mapped_model import MappedModel
path, fstat = pathlib.Path(sys.argv[1]), os.fstat
def cutting(number):
    found = fstat(number)
    os.truncate(path, 0)
    return found
os.fstat = cutting
try:
    MappedModel(path)
except ValueError as error:
    print(error)
"""


def test_a_file_that_is_cut_while_it_is_read_is_an_error(made):
    path, _ = made
    assert runtime_process.run(CUT, path) == "the file ends at byte 0: it was cut off.\n"


def resident(path):
    """Returns the kilobytes of this mapped file that are in memory."""
    mappings = pathlib.Path("/proc/self/smaps").read_text("utf-8")
    # A line with the path, and lines of numbers.
    found = re.findall(rf" {re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+)", mappings)
    return sum(map(int, found))


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux' list of mapped files")
def test_packed_weights_leave_no_pages_in_memory(made):
    path, _ = made
    session = open_session(artefact(path.parent), [CPU])
    assert resident(path) == 0
    session.arrays["inner_weight"].numpy().sum()
    assert resident(path) > 0


TABLE = """
<ir_version: 8, opset_import: ["": 17]>
outer (float[64] x) => (float[64] y) {{
    two = Constant <value_int: int = 2> ()
    rows = Cast <to: int = 7> (x)
    gathered = Gather <axis: int = 0> (table, rows)
    started = ReduceSum <keepdims: int = 0> (gathered, zero)
    a = Add (x, started)
    y = Loop <body = step (int64 i, bool go, float[64] b) => (bool on, float[64] d) {{
        row = {reader}
        d = Add (b, row)
        on = Identity (go)
    }}> (two, , a)
}}
"""
READERS = {
    "in the step, too": "Gather <axis: int = 0> (table, i)",
    "before the loop only": "Identity (x)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux' list of mapped files")
@pytest.mark.parametrize("least", [1, 1 << 30])
@pytest.mark.parametrize("reader", READERS)
def test_pages_of_a_large_table_are_released_after_each_call(tmp_path, monkeypatch, reader, least):
    monkeypatch.setattr(mapped_model, "LEAST_TABLE", least)
    table = np.random.default_rng(0).normal(size=(1000, 64)).astype(np.float32)
    model = onnx.parser.parse_model(TABLE.format(reader=READERS[reader]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "zero"))
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    path, x = tmp_path / signature.MODEL_FILE, np.ones(64, np.float32)
    onnx.save(model, path)
    session = open_session(artefact(tmp_path, 64), [CPU])
    added = table[0] + table[1] if "Gather" in READERS[reader] else 2 * x
    for _ in range(2):
        check_outputs(session, x, x + 64 * table[1] + added)
        assert bool(resident(path)) == (least > table.nbytes)


PEAK = """
import pathlib, sys
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.runtime.session import open_session
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
x = {"name": "x", "dtype": "float32", "axes": [1021]}
manifest = {"precision": "float32", "inputs": [x], "outputs": [{"name": "y"}], "versions": {}}
before = peak()
session = open_session(Artefact(pathlib.Path(sys.argv[1]), manifest, None), threads=1)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from Linux' /proc")
def test_packing_keeps_few_pages_in_memory(tmp_path):
    """The packed copy takes 1.0 of the weights' size; with all pages of the file, 2.0."""
    vector, count = "float[1021]", 12
    products = "\n".join(f"x{i + 1} = MatMul (x{i}, w{i})" for i in range(count))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> outer ({vector} x) => ({vector} y) {{
            two = Constant <value_int: int = 2> ()
            y = Loop <body = inner (int64 i, bool go, {vector} x0) => (bool on, {vector} x{count})
                {{ {products}
                   on = Identity (go) }}> (two, , x)
        }}"""
    )
    weights = np.ones((1021, 1021), np.float32)
    body = graphs(model.graph)[1]
    body.initializer.extend(numpy_helper.from_array(weights, f"w{i}") for i in range(count))
    onnx.save(model, tmp_path / signature.MODEL_FILE)
    grown = 1024 * int(runtime_process.run(PEAK, tmp_path))
    assert grown < 1.7 * count * weights.nbytes


FREED = """
import ctypes, pathlib
from keras_transformer.export.runtime.mapped_model import return_freed_memory
def resident():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
blocks = [ctypes.create_string_buffer(100_000) for _ in range(500)]
last = ctypes.create_string_buffer(100_000)  # behind them: free() cannot return them
held = resident()
del blocks
kept = resident()
return_freed_memory()
print(held - kept, kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such call")
def test_freed_memory_is_returned_to_the_system(tmp_path):
    by_itself, by_the_call = map(int, runtime_process.run(FREED, tmp_path).split())
    assert by_itself < 5_000 and by_the_call > 45_000  # kB


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_session_reads_weights_from_the_file_and_behind_links(made, tmp_path, link):
    path, weights = made
    folder = path.parent
    if link:
        folder = tmp_path / "linked"
        folder.mkdir()
        link(path, folder / signature.MODEL_FILE)
    x = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    y = x @ weights["outer_weight"]
    for _ in range(2):
        y = y @ weights["middle_weight"]
        for _ in range(2):
            y = y @ weights["inner_weight"] + weights["inner_bias"]
    check_outputs(open_session(artefact(folder), [CPU]), x, y)
