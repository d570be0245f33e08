"""Token scores and alignments of exported searches, and the details of `n_best`.

`test_routes.py` compares the arrays with Keras, and `search/test_token_scores.py` Keras' arrays
with a forward pass.
"""

import json

import numpy as np
import onnx
import pytest
from helpers import exports, runtime_process
from helpers.tiers import nightly

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Translator, open_runner

OUTPUTS = ["token_ids", "scores", "token_scores", "alignments"]
SEARCH = exports.DETAILED
LINES = ["a man 's hat", "two words", "", "the dog runs red"]


def folder(layout="loop"):
    return exports.artefact(SEARCH, **({} if layout == "loop" else {"layout": layout}))


def test_only_a_search_with_alignments_has_their_outputs_and_nodes():
    plain, asked = (onnx.load(path / "model.onnx") for path in (exports.artefact(), folder()))
    assert [value.name for value in plain.graph.output] == OUTPUTS[:2]
    assert [value.name for value in asked.graph.output] == OUTPUTS
    axes = [[d.dim_param for d in o.type.tensor_type.shape.dim] for o in asked.graph.output]
    assert axes[3] == ["batch", "beam", "target_length", "source_length"]
    # Alignments need the weights of one layer, so its attention is not one operator.
    operators = [exports.counts(graph.graph)["MultiHeadAttention"] for graph in (plain, asked)]
    assert operators[0] - operators[1] == 1


LISTED = kt.Shortlist(
    np.random.default_rng(0).integers(4, exports.VOCAB, (exports.VOCAB, 5)),
    np.arange(exports.VOCAB) < 8,
)


# The export fails unless token scores and alignments equal a forward pass.
@pytest.mark.parametrize("options", [{"shortlist": LISTED}, nightly({"precision": "int8"})])
@pytest.mark.full
def test_files_of_reduced_weights_have_scores_and_alignments(tmp_path, options):
    model, path = exports.tiny(), tmp_path / "out"
    manifest = export_onnx(model, path, None, SEARCH, max_length=7, verbose=False, **options)
    assert [value["name"] for value in manifest["outputs"]] == OUTPUTS


@pytest.fixture(scope="module")
def translator():
    return Translator(folder())


def test_n_best_has_pieces_words_and_alignments(translator):
    tokenizer = exports.tokenizer()
    for line, result in zip(LINES, translator.n_best(LINES), strict=True):
        assert len(result.details) == (3 if line else 0)
        for text, score, details in zip(result.texts, result.scores, result.details, strict=False):
            count = len(details.pieces)
            assert tokenizer.decode([tokenizer.pieces.index(x) for x in details.pieces]) == text
            assert " ".join(details.words) == " ".join(text.split())
            total = sum(details.token_scores) / SEARCH.length_divisor(count)
            in_words = sum(details.token_scores[: count - (details.pieces[-1] == "</s>")])
            found = total, sum(details.word_scores)
            assert found == pytest.approx((score, in_words), abs=1e-4)
            source_pieces = [tokenizer.pieces[i] for i in tokenizer.encode(line)]
            assert details.source_pieces == (*source_pieces, "</s>")
            assert details.weights.shape == (count, len(details.source_pieces))
            np.testing.assert_allclose(details.weights.sum(axis=1), 1, atol=1e-5)
            sources, targets = zip(*details.alignment, strict=True)
            assert targets == tuple(range(len(details.words)))
            assert set(sources) <= set(range(len(line.split())))
            assert details.pharaoh == " ".join(f"{i}-{j}" for i, j in details.alignment)


@pytest.mark.full
def test_results_of_both_layouts_and_of_any_batch_agree(translator):
    results = translator.n_best(LINES)
    scores = [one.token_scores for result in results for one in result.details]
    for other in (
        open_runner(folder("steps")).n_best(LINES),
        list(translator.n_best_stream(LINES, read_ahead=1)),
    ):
        for one, two in zip(results, other, strict=True):
            assert one.texts == two.texts
            assert [x.alignment for x in one.details] == [x.alignment for x in two.details]
        found = [one.token_scores for result in other for one in result.details]
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(scores), atol=1e-5)


def test_the_command_writes_alignments(translator):
    data, results = "\n".join(LINES).encode(), translator.n_best(LINES)
    status, output, _ = runtime_process.translate(data, folder(), "--alignments")
    rows = [row.split("\t") for row in output.split("\n")[:-1]]
    expected = [[one.text, one.details[0].pharaoh if one.details else ""] for one in results]
    assert (status, rows) == (0, expected)
    _, output, _ = runtime_process.translate(data, folder(), "--json")
    details = [json.loads(row).get("details") for row in output.split("\n")[:-1]]
    assert details == [[one.columns() for one in result.details] or None for result in results]
    status, output, errors = runtime_process.translate(data, exports.artefact(), "--alignments")
    assert (status, output) == (2, "") and "this artefact has none" in errors
