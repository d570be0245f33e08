"""The layout "steps": two files without a loop give the same tokens as one file."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import exports
from helpers.exports import LINES, MAX_LENGTH, source
from helpers.tiers import quick

from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import Translator, steps_session
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.session import (
    CUDA,
    open_session,
    records_graphs,
    without_graphs,
)
from keras_transformer.export.runtime.steps_session import StepsSession, final_outputs
from keras_transformer.search import BeamSearch

SEARCHES = {"beam": exports.BEAM, "greedy": exports.GREEDY}


def folder(name):
    return exports.artefact(SEARCHES[name], layout="steps")


@pytest.mark.full
@pytest.mark.parametrize("name", quick(SEARCHES, "beam"))
def test_workers_return_the_same_results_as_one(name):
    """`test_routes.py` compares both layouts with Keras."""
    alone = Translator(folder(name), threads=1).n_best(LINES * 5, tokens_per_batch=40)
    shared = Translator(folder(name), workers=3).n_best(LINES * 5, tokens_per_batch=20)
    assert [item.texts for item in shared] == [item.texts for item in alone]


def test_the_manifest_names_the_layout():
    manifest = read_artefact(folder("beam")).manifest
    assert manifest["layout"] == "steps"
    assert set(manifest["files"]) == {"first.onnx", "step.onnx", "tokenizer.model"}
    names = [value["name"] for value in (*manifest["inputs"], *manifest["outputs"])]
    assert names == ["source_ids", "token_ids", "scores"]
    for layout in ("loop", "both"):
        with pytest.raises(ValueError, match=r"artefact.json is damaged.*(model.onnx|layout)"):
            seal({**manifest, "layout": layout})


def test_a_step_has_no_loop_and_keeps_every_shape():
    """CUDA graphs need steps without control flow and with constant shapes."""
    step = onnx.load(folder("beam") / "step.onnx")
    found = exports.counts(step.graph)
    assert not {"Loop", "If", "Scan", "Softmax"} & set(found)
    assert found["MultiHeadAttention"] == 4  # two in each block
    axes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*step.graph.input, *step.graph.output]
    }
    changed = {name for name in axes if name.startswith("next.")}
    assert len(changed) == 5 + 4 + 3  # position and state, two blocks, the bias and two places
    assert all(axes[name] == axes[name.removeprefix("next.")] for name in changed)


def test_only_the_scatter_reads_the_caches_that_it_writes():
    """Otherwise writing them in place would change inputs of another node."""
    step = onnx.load(folder("beam") / "step.onnx")
    slots = {value.name for value in step.graph.input if value.name.startswith("blocks")}
    readers = [node for node in step.graph.node if slots & set(node.input)]
    assert len(readers) == len(slots) == 4
    for node in readers:
        assert (node.op_type, *node.output) == ("ScatterND", f"next.{node.input[0]}")


def test_a_step_writes_its_slots_and_leaves_the_others():
    session = open_session(read_artefact(folder("greedy")))
    buffers = session.run_first({"source_ids": source(3, 5)})
    place = buffers.pair[0]["blocks.0"].data_ptr()
    *_, (after, count, unfinished) = session.run_steps(buffers)
    assert not unfinished
    keys = after["blocks.0"].numpy()
    assert keys.shape[2] == MAX_LENGTH and after["blocks.0"].data_ptr() == place
    written = np.abs(keys).sum(axis=(0, 1, 3)) > 0
    assert written.tolist() == [slot < count for slot in range(MAX_LENGTH)]


def test_a_search_without_steps_is_refused():
    session = open_session(read_artefact(folder("greedy")))
    buffers = session.run_first({"source_ids": source(3, 5)})
    nothing = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((3, 1, 0), np.int32))
    buffers.pair[0]["history"] = nothing
    with pytest.raises(ValueError, match="history for 0 steps.*at least 1.*export it again"):
        list(session.run_steps(buffers))


@pytest.mark.full
@pytest.mark.parametrize(
    "precision, kind",
    [("float16", onnx.TensorProto.FLOAT16), ("int8", onnx.TensorProto.FLOAT)],
)
def test_reduced_precisions_are_proven_too(precision, kind):
    path = exports.artefact(BeamSearch(2), precision=precision, layout="steps")
    step = onnx.load(path / "step.onnx")
    kinds = {value.name: value.type.tensor_type.elem_type for value in step.graph.input}
    assert kinds["blocks.0"] == kinds["memory.0"] == kind
    assert kinds["scores"] == onnx.TensorProto.FLOAT
    written = {
        node.input[0]: node.output[0] for node in step.graph.node if node.op_type == "ScatterND"
    }
    assert written["blocks.0"] == "next.blocks.0"  # in place, without a copy


FINAL = {
    "after the prompt, up to the longest": (
        ([[[7, 5, 3, 0, 0]], [[8, 9, 5, 6, 0]]], [[-1.0], [-2.0]], [[1], [3]]),
        ([[[7, 5, 3]], [[5, 6, 0]]], [[-1.0], [-2.0]]),
    ),
    "sorted, and empty where there is none": (
        ([[[7, 3], [8, 3], [9, 9]]], [[-2.0, -1.0, -np.inf]], [[1]]),
        ([[[8, 3], [7, 3], [0, 0]]], [[-1.0, -2.0, -np.inf]]),
    ),
}


@pytest.mark.parametrize("case", FINAL.values(), ids=FINAL)
def test_final_outputs_are(case):
    (ids, scores, starts), expected = case
    arrays = np.array(ids, np.int32), np.array(scores, np.float32), np.array(starts, np.int32)
    assert tuple(array.tolist() for array in final_outputs(*arrays)) == expected


@pytest.mark.parametrize("flag, recorded", [("1", True), (True, True), ("True", True), (0, False)])
def test_only_the_steps_record_cuda_graphs(flag, recorded):
    provider = CUDA, {"device_id": 0, "enable_cuda_graph": flag}
    assert records_graphs(provider) is recorded
    assert not records_graphs(without_graphs(provider)) and not records_graphs(CUDA)
    assert without_graphs(provider)[1]["device_id"] == 0 and without_graphs(CUDA) == CUDA


@pytest.fixture(scope="module")
def sessions():
    """A session that keeps its buffers, as CUDA graphs need, and one without."""
    plain = open_session(read_artefact(folder("beam")))
    return StepsSession(plain.first, plain.step, graphs=True), plain


def test_kept_buffers_give_the_same_tokens(sessions):
    for rows, length in [(3, 5), (2, 7), (3, 5), (1, 4), (2, 7), (3, 5)]:
        ids = np.random.default_rng(rows).permuted(source(rows, length), axis=1)
        kept, plain = (session.run(None, {"source_ids": ids}) for session in sessions)
        for found, expected in zip(kept, plain, strict=True):
            np.testing.assert_array_equal(found, expected)


def places(session, ids):
    """Returns the addresses of a call's tensors and the ids of its graphs."""
    buffers = session.run_first({"source_ids": ids})
    names = [options.get_run_config_entry("gpu_graph_id") for options in buffers.graphs]
    return {tensor.data_ptr() for each in buffers.pair for tensor in each.values()}, names


def test_calls_of_one_shape_and_thread_share_buffers_and_graphs(sessions):
    session, plain = sessions
    first, other = places(session, source(3, 6)), places(session, source(4, 6))
    assert places(session, source(3, 6)) == first
    assert not first[0] & other[0] and len({*first[1], *other[1]}) == 4
    assert int(min(first[1], key=int)) > 0  # ONNX Runtime reserves 0
    with ThreadPoolExecutor(1) as another:  # its thread has separate graphs
        there = another.submit(places, session, source(3, 6)).result()
    assert not there[0] & first[0] and not {*there[1]} & {*first[1]}
    assert places(plain, source(3, 6))[1] == ["-1", "-1"]


def test_shapes_beyond_the_limit_run_without_a_graph(sessions, monkeypatch):
    _, plain = sessions
    session = StepsSession(plain.first, plain.step, graphs=True)
    monkeypatch.setattr(steps_session, "MOST_SHAPES", 1)
    kept = places(session, source(3, 6))
    assert places(session, source(2, 6))[1] == ["-1", "-1"]
    assert places(session, source(3, 6)) == kept


def test_check_runs_both_files(capsys):
    assert check(folder("greedy"), ["CPUExecutionProvider"], threads=1) == 0
    assert capsys.readouterr().out == "verdict: serves on CPUExecutionProvider\n"
