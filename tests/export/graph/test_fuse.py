"""Fusion of our models: fewer nodes, the same numbers."""

import keras
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import exports
from helpers.exports import (
    BEAM,
    artefact,
    convert,
    counts,
    fused,
    graph,
    numbers,
    operators,
    parsed,
    run,
    same_results,
    source,
    tiny,
)
from helpers.tiers import quick

from keras_transformer.export.graph.fuse_patterns import Rule
from keras_transformer.export.graph.simplify import simplify
from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.layers.positions import RelativePositionBias
from keras_transformer.search import BeamSearch, GreedySearch

# Loop depths: the phases of a search, and the steps of a phase.
PHASES, STEPS = 1, 2
PRECISIONS = ("float32", "int8", "float16")


@pytest.fixture(scope="module")
def models():
    """Returns the graph of a beam search: converted, simplified, fused for each precision."""
    converted = exports.shared_graph(BEAM)
    plain = graph(converted)
    simplify(plain)
    fused_graphs = {precision: fused(converted, precision) for precision in PRECISIONS}
    return {"converted": graph(converted), "simplified": plain, **fused_graphs}


@pytest.mark.full
@pytest.mark.parametrize("kind", quick(["simplified", *PRECISIONS], *PRECISIONS))
def test_tokens_and_scores_stay_the_same(models, kind):
    ids = source()
    ids[1] = 0  # a sentence of padding: attention to it gives zeros, not means
    before, after = (run(models[name], source_ids=ids) for name in ("converted", kind))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5)


def test_fusing_gives_the_same_logits_with_padding_on_both_sides():
    feed = {"source_ids": source(5, 7), "target_ids": source(5, 5, seed=1)}
    feed["source_ids"][2] = 0
    forward = exports.shared_graph()
    same_results(graph(forward), fused(forward), **feed)


@pytest.mark.full("float32")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_norm_and_attention_is_one_operator(models, precision):
    found = operators(models[precision])
    # An encoder block has two norms and one attention, a decoder block three and two.
    gpu = precision == "float16"
    norm = "SkipLayerNormalization" if gpu else "LayerNormalization"
    assert found[norm] == 2 * 2 + 2 * 3
    assert found["Sum"] == (0 if gpu else found[norm])  # residuals
    assert found["Attention"] == (2 if precision == "float32" else 0)
    assert found["Attention"] + found["MultiHeadAttention"] == 2 + 2 * 2
    norms = {"LayerNormalization", "SkipLayerNormalization"} - {norm}
    assert not found.keys() & {"ReduceMean", "Reciprocal", "Softmax", *norms}
    assert found["FusedMatMul"] == 1  # logits, from the embedding table


@pytest.mark.full
@pytest.mark.parametrize("search", [GreedySearch(), BEAM])
def test_a_bias_of_positions_joins_the_operator_of_attention(search):
    """The bias of each head is added to the mask, or to the bias of the hypotheses in a step."""
    positions = [RelativePositionBias(8, 9, both) for both in (True, False)]
    before = convert(tiny(positions=tuple(positions), norm="rms", norm_first=True), search)
    after = fused(before)
    found = operators(after)
    assert found["Attention"] + found["MultiHeadAttention"] == 2 + 2 * 2
    assert "Softmax" not in found and found["ReduceMean"] == 2 * 2 + 2 * 3 + 2  # norms
    same_results(graph(before), after, source_ids=source())


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_norms_without_beta_are_one_operator(precision):
    norm = keras.layers.LayerNormalization(center=False)
    before = convert(tiny("encode", norm=norm, norm_first=True, embedding_norm="first"))
    after = fused(before, precision)
    found = operators(after)
    assert found["LayerNormalization"] + found["SkipLayerNormalization"] == 1 + (2 * 2 - 1) + 1
    assert not found.keys() & {"ReduceMean", "Reciprocal"}
    same_results(graph(before), after, source_ids=source())


@pytest.mark.full
def test_a_written_file_is_fused_and_has_few_nodes_per_step(tmp_path):
    export_onnx(tiny(num_layers=1), tmp_path / "one", search=BEAM, verbose=False)
    one, two = (onnx.load(path / "model.onnx").graph for path in (tmp_path / "one", artefact()))
    step = counts(one, STEPS)
    block = counts(two, STEPS) - step
    assert block["MultiHeadAttention"] == 2
    assert not block.keys() & {"Softmax", "Transpose", "Gather"}  # beams move no keys and values
    assert block.total() <= 18
    # All of a step except its one block. To compare the best hypotheses costs four nodes.
    assert (step - block).total() <= 74
    # An encoder block; and the work per phase for a decoder block's attention.
    assert (counts(two, 0) - counts(one, 0)).total() <= 20
    assert (counts(two, PHASES) - counts(one, PHASES)).total() <= 5


@pytest.mark.full
@pytest.mark.parametrize(("search", "most"), [(GreedySearch(), 105), (BeamSearch(4), 147)])
def test_a_step_of_the_tiny_translator_has_few_nodes(search, most):
    """`benchmarks/floor.py` measures such a step; the written file has one more, for a weight."""
    model = tiny(vocab_size=5000, num_layers=4, d_model=128, num_heads=4, d_ff=256)
    step = counts(ir.to_proto(fused(convert(model, search))).graph, STEPS)
    assert step.total() <= most
    assert step["Sum"] == step["LayerNormalization"] == 12  # biases join the residuals


VIEWS = """
views (float[B,T,4] x, float[4] v, float[T,1] w) => (float[B,T,4] y, float[1,1,4] z) {
    axes = Constant <value_ints: ints = [0, 1]>()
    first = Constant <value_ints: ints = [0]>()
    three = Unsqueeze(v, axes)
    wide = Unsqueeze(w, first)
    sum = Add(x, three)
    y = Mul(wide, sum)
    one = Constant <value_float: float = 1.5>()
    z = Mul(three, one)
}"""


def test_operators_that_broadcast_read_values_without_leading_axes():
    """The last product would lose axes, so its input keeps them."""
    model = parsed(VIEWS)
    simplify(model)
    assert operators(model) == {"Unsqueeze": 1, "Add": 1, "Mul": 2}
    x, v, w = numbers(3, 5, 4), numbers(4), numbers(5, 1)
    same_results(parsed(VIEWS), model, rtol=0, x=x, v=v, w=w)


@pytest.mark.full
def test_a_decoder_block_is_few_nodes_on_a_gpu():
    graphs = (fused(convert(tiny(num_layers=n), GreedySearch()), "float16") for n in (1, 2))
    one, two = (counts(ir.to_proto(model).graph, STEPS).total() for model in graphs)
    assert two - one <= 14


def test_rule_docstrings_show_the_graph_before_and_after():
    rules = Rule.__subclasses__()
    assert len(rules) > 3
    for rule in rules:
        before, _, after = rule.__doc__.partition("    after    ")
        assert "    before   " in before and after.strip()
