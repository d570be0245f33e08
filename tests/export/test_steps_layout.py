"""The layout "steps": two files, the loop outside, and the same tokens as from one file."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from support import exports
from support.exports import LINES, MAX_LENGTH, source, tiny, tokenizer

from keras_transformer.export import export_onnx
from keras_transformer.export.artefact.manifest import seal
from keras_transformer.export.artefact.reader import ArtefactError, read_artefact
from keras_transformer.export.runtime import Generator, Translator, steps_session
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.session import (
    CUDA,
    open_session,
    records_graphs,
    without_graphs,
)
from keras_transformer.export.runtime.steps_session import StepsSession, finished
from keras_transformer.search import BeamSearch, GreedySearch, Sampling

SEARCHES = {"beam": exports.BEAM, "greedy": GreedySearch(min_length=3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A function of a search and a layout: the folder of the export, written once."""

    @functools.cache
    def written(name, layout="steps"):
        if (name, layout) == ("beam", "loop"):
            return exports.shared_artefact()
        path = tmp_path_factory.mktemp(f"{name}_{layout}") / "onnx"
        model, search = exports.shared_model(), SEARCHES[name]
        export_onnx(
            model, path, tokenizer(), search,
            max_length=MAX_LENGTH, layout=layout, verbose=False,
        )  # fmt: skip
        return path

    return written


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("rows, length", [(1, 1), (3, 5), (7, 13)])
def test_steps_give_keras_tokens(folder, name, rows, length):
    ids = source(rows, length)
    expected = SEARCHES[name](exports.shared_model(), ids, MAX_LENGTH)
    session = open_session(read_artefact(folder(name)))
    found, scores = session.run(None, {"source_ids": ids})
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEARCHES)
def test_translator_serves_both_layouts_with_one_result(folder, name):
    one, two = (
        Translator(folder(name, layout), threads=1).n_best(LINES * 5, batch_tokens=40)
        for layout in ("loop", "steps")
    )
    assert [item.texts for item in one] == [item.texts for item in two]
    scores = [[item.scores for item in items] for items in (one, two)]
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_threads_share_a_translator(folder):
    alone = Translator(folder("beam"), threads=1).n_best(LINES * 9, batch_tokens=20)
    shared = Translator(folder("beam"), workers=3).n_best(LINES * 9, batch_tokens=20)
    assert [item.texts for item in shared] == [item.texts for item in alone]


@pytest.mark.parametrize("search", [BeamSearch(2), Sampling(num_samples=2, top_k=9)])
def test_prompts_and_samples_are_those_of_one_file(tmp_path, search):
    model, results = tiny("generate"), []
    seed = {"seed": 5} if isinstance(search, Sampling) else {}
    for layout in ("loop", "steps"):
        path = tmp_path / layout
        export_onnx(model, path, tokenizer(), search, max_length=5, layout=layout, verbose=False)
        results.append(Generator(path, threads=1).n_best(LINES, **seed))
    assert [item.texts for item in results[0]] == [item.texts for item in results[1]]


def test_folder_says_its_layout(folder):
    manifest = read_artefact(folder("beam")).manifest
    assert manifest["layout"] == "steps"
    assert set(manifest["files"]) == {"first.onnx", "step.onnx", "tokenizer.model"}
    assert [value["name"] for value in manifest["inputs"]] == ["source_ids"]
    assert [value["name"] for value in manifest["outputs"]] == ["token_ids", "scores"]
    assert "layout" not in read_artefact(folder("beam", "loop")).manifest


@pytest.mark.parametrize("fields", [{"layout": "loop"}, {"layout": "both"}])
def test_layout_must_be_that_of_the_files(folder, tmp_path, fields):
    manifest = json.loads((folder("beam") / "artefact.json").read_bytes())
    with pytest.raises(ValueError, match=r"artefact.json is damaged.*(model.onnx|layout)"):
        seal({**manifest, **fields})


def test_missing_step_is_told(folder, tmp_path):
    for file in folder("beam").iterdir():
        if file.name != "step.onnx":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ArtefactError, match=r"step.onnx cannot be read.*incomplete"):
        Translator(tmp_path)


def test_a_step_has_no_loop_and_keeps_every_shape(folder):
    """What a CUDA graph asks for: no control flow, and the same shapes in every step."""
    step = onnx.load(folder("beam") / "step.onnx")
    assert not {"Loop", "If", "Scan"} & {node.op_type for node in step.graph.node}
    axes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*step.graph.input, *step.graph.output]
    }
    changed = {name for name in axes if name.startswith("next.")}
    assert len(changed) == 5 + 4 + 3  # position and state, two blocks, the bias and two places
    for name in changed:
        assert axes[name] == axes[name.removeprefix("next.")], name


def test_only_the_scatter_reads_the_caches_that_it_writes(folder):
    """Else writing them in place would change what another node still has to read."""
    step = onnx.load(folder("beam") / "step.onnx")
    slots = {value.name for value in step.graph.input if value.name.startswith("blocks")}
    readers = [node for node in step.graph.node if slots & set(node.input)]
    assert len(readers) == len(slots) == 4
    for node in readers:
        assert node.op_type == "ScatterND"
        assert list(node.output) == [f"next.{node.input[0]}"]


def test_a_step_writes_its_slots_and_leaves_the_others(folder):
    session = open_session(read_artefact(folder("greedy")))
    buffers = session.run_first({"source_ids": source(3, 5)})
    place = buffers.pair[0]["blocks.0"].data_ptr()
    after, count = session.run_steps(buffers)
    keys = after["blocks.0"].numpy()
    assert keys.shape[2] == MAX_LENGTH and after["blocks.0"].data_ptr() == place
    written = np.abs(keys).sum(axis=(0, 1, 3)) > 0
    assert written.tolist() == [slot < count for slot in range(MAX_LENGTH)]


def test_attention_of_a_step_is_fused(folder):
    step = onnx.load(folder("beam") / "step.onnx")
    found = exports.counts(step.graph)
    assert found["MultiHeadAttention"] == 4 and found["Softmax"] == 0  # two blocks, two of each


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_reduced_precisions_are_proven_too(tmp_path, precision):
    export_onnx(
        exports.shared_model(), tmp_path / "onnx", None, BeamSearch(2), precision,
        max_length=5, layout="steps", verbose=False,
    )  # fmt: skip
    step = onnx.load(tmp_path / "onnx" / "step.onnx")
    kind = {value.name: value.type.tensor_type.elem_type for value in step.graph.input}
    half = onnx.TensorProto.FLOAT16 if precision == "float16" else onnx.TensorProto.FLOAT
    assert kind["blocks.0"] == kind["memory.0"] == half
    assert kind["scores"] == onnx.TensorProto.FLOAT
    written = {
        node.input[0]: node.output[0] for node in step.graph.node if node.op_type == "ScatterND"
    }
    assert written["blocks.0"] == "next.blocks.0"  # in place, as it is


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"layout": "both"}, "layout must be one of"),
        ({"layout": "steps"}, "pass a search"),
        ({"layout": "steps", "search": BeamSearch(2), "text": True}, "pass layout='loop'"),
    ],
)
def test_what_has_no_such_layout_is_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export_onnx(exports.shared_model(), tmp_path / "onnx", tokenizer(), **arguments)
    assert not (tmp_path / "onnx").exists()


def test_results_begin_after_the_prompt_and_end_with_the_longest():
    ids = np.array([[[7, 5, 3, 0, 0]], [[8, 9, 5, 6, 0]]], np.int32)
    found, scores = finished(
        ids, np.array([[-1.0], [-2.0]], np.float32), np.array([[1], [3]], np.int32)
    )
    assert found.tolist() == [[[7, 5, 3]], [[5, 6, 0]]]
    assert scores.tolist() == [[-1.0], [-2.0]]


def test_results_are_in_order_and_hypotheses_that_do_not_exist_are_empty():
    ids = np.array([[[7, 3], [8, 3], [9, 9]]], np.int32)
    found, scores = finished(ids, np.array([[-2.0, -1.0, -np.inf]], np.float32))
    assert found.tolist() == [[[8, 3], [7, 3], [0, 0]]]
    assert scores.tolist() == [[-1.0, -2.0, -np.inf]]


@pytest.mark.parametrize("flag, recorded", [("1", True), (True, True), ("True", True), (0, False)])
def test_only_the_steps_record_cuda_graphs(flag, recorded):
    provider = CUDA, {"device_id": 0, "enable_cuda_graph": flag}
    assert records_graphs(provider) is recorded
    assert not records_graphs(without_graphs(provider)) and not records_graphs(CUDA)
    assert without_graphs(provider)[1]["device_id"] == 0 and without_graphs(CUDA) == CUDA


@pytest.fixture(scope="module")
def sessions(folder):
    """One that keeps its buffers, as CUDA graphs ask for, and one that does not."""
    plain = open_session(read_artefact(folder("beam")))
    return StepsSession(plain.first, plain.step, graphs=True), plain


def test_kept_buffers_give_the_same_tokens(sessions):
    for rows, length in [(3, 5), (2, 7), (3, 5), (1, 4), (2, 7), (3, 5)]:
        ids = np.random.default_rng(rows).permuted(source(rows, length), axis=1)
        kept, plain = (session.run(None, {"source_ids": ids}) for session in sessions)
        for found, expected in zip(kept, plain, strict=True):
            np.testing.assert_array_equal(found, expected)


def places(session, ids):
    """Where the tensors of a call lie, and which graphs it would record."""
    buffers = session.run_first({"source_ids": ids})
    names = [options.get_run_config_entry("gpu_graph_id") for options in buffers.graphs]
    return {tensor.data_ptr() for each in buffers.pair for tensor in each.values()}, names


def test_a_graph_is_replayed_where_it_was_recorded(sessions):
    session, plain = sessions
    first, other = places(session, source(3, 6)), places(session, source(4, 6))
    assert places(session, source(3, 6)) == first
    assert not first[0] & other[0] and len({*first[1], *other[1]}) == 4
    assert int(min(first[1], key=int)) > 0  # 0 is ONNX Runtime's own
    with ThreadPoolExecutor(1) as another:  # whose graphs are its own
        there = another.submit(places, session, source(3, 6)).result()
    assert not there[0] & first[0] and not {*there[1]} & {*first[1]}
    assert places(plain, source(3, 6))[1] == ["-1", "-1"]


def test_shapes_beyond_the_most_run_without_a_graph(sessions, monkeypatch):
    _, plain = sessions
    session = StepsSession(plain.first, plain.step, graphs=True)
    monkeypatch.setattr(steps_session, "MOST_SHAPES", 1)
    kept = places(session, source(3, 6))
    assert places(session, source(2, 6))[1] == ["-1", "-1"]
    assert places(session, source(3, 6)) == kept


def test_check_runs_both_files(folder, capsys):
    assert check(folder("greedy"), ["CPUExecutionProvider"], threads=1, as_json=True) == 0
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    nodes = sum(len(onnx.load(path).graph.node) for path in read_artefact(folder("greedy")).models)
    assert trial["error"] is None
    assert 0 < sum(trial["nodes"].values()) <= nodes  # ONNX Runtime takes some out
