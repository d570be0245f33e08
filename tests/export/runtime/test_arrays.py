"""Models that read arrays: valid arrays, refused arrays, and arrays that share a batch."""

import json
import re
import types

import numpy as np
import pytest
from helpers import artefacts, head_artefacts

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import ArtefactError, Outputs, Predictor


def test_only_arrays_of_equal_shape_share_a_batch(served, monkeypatch):
    predictor, shapes = served("series"), []
    session = predictor.session

    def run(names, feed):
        shapes.append(feed["series"].shape)
        return session.run(names, feed)

    monkeypatch.setattr(predictor, "session", types.SimpleNamespace(run=run))
    items = [np.full((length, 2), length) for length in (3, 5, 3, 2, 5, 3)]
    results = predictor.predict(items, tokens_per_batch=7)
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result.arrays["total"], item.sum(axis=0))
        np.testing.assert_array_equal(result.arrays["doubled"], np.float32(2 * item), strict=True)
    assert shapes == [(1, 2, 2), (2, 3, 2), (1, 3, 2), (1, 5, 2), (1, 5, 2)]


def test_arrays_are_read_from_lists_dicts_json_and_batches(served):
    items = [[[1, 2], [3, 4]], {"series": np.ones((2, 2))}, "[[1, 2]]", b'{"series": [[5, 6]]}\n']
    batch = np.arange(12).reshape(3, 2, 2)
    found = [*served("series").predict(items), *served("series").predict(batch)]
    totals = [result.arrays["total"].tolist() for result in found]
    assert totals == [[4, 6], [2, 2], [1, 2], [5, 6], *batch.sum(axis=1).tolist()]
    assert served("series").predict(["", " \n"]) == [Outputs()] * 2


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: .*recursion"),
        ("[[1e400, 1]]", "not JSON: '1e400' is not a finite number"),
        ("[[1, -Infinity]]", "not JSON: '-Infinity' is not a finite number"),
        ([[1, 2, 3]], r"'series' has the shape \(1, 3\) and dtype int64"),
        (np.ones((0, 2)), r"has the shape \(0, 2\)"),
        ([["a", "b"]], "dtype <U1, where the model takes .* float32"),
        ([[1, 2], [3]], "inhomogeneous"),
        ({"other": [[1, 2]]}, r"reads a dict of \['series'\], and got \['other'\]"),
    ],
)
def test_a_bad_array_has_an_error_and_leaves_the_others_alone(served, item, reason):
    first, bad, last = served("series").predict([[[1, 2]], item, [[1, 2]]])
    assert re.search(reason, bad.error) and bad.arrays == {}
    assert first.arrays["total"].tolist() == last.arrays["total"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "numbers", "first"),
    [
        ("int32", [-(2**31), 2**31 - 1], None),
        ("float32", [np.inf, 1.0], None),
        ("float32", [2**64, 2**70], None),  # more than 64 bits
        ("int32", [3_000_000_000], "3000000000"),
        ("int32", [5, -(2**31) - 1, 2**40], "-2147483649"),
        ("int64", [2**63], "9223372036854775808"),
        ("int32", [7, 2**64], "18446744073709551616"),
        ("float32", [-(10**400), 1], "-10000000"),
        ("float32", [1.0, 1e39], "1e+39"),
        ("float16", [70_000], "70000"),
    ],
)
def test_numbers_that_the_dtype_cannot_hold_are_refused(tmp_path, dtype, numbers, first):
    kind = dtype.replace("32", "") if dtype == "float32" else dtype
    shape, values = (
        f"{kind}[batch, source_length]",
        {"dtype": dtype, "axes": ["batch", "source_length"]},
    )
    made = head_artefacts.model(f"{shape} ids", f"{shape} same", "same = Identity (ids)")
    folder = artefacts.write(
        tmp_path,
        artefacts.tokenizer(),
        made.SerializeToString(),
        files={signature.TOKENIZER_FILE: None}.items(),
        task="forward",
        inputs=[{"name": "ids", **values}],
        outputs=[{"name": "same", **values}],
        search=None,
    )
    found, good = Predictor(folder, threads=1).predict([numbers, [5, 7]])
    assert good.arrays["same"].tolist() == [5, 7] and good.arrays["same"].dtype == dtype
    if first is None:
        assert found.arrays["same"].tolist() == numbers
    else:
        assert found.arrays == {} and f"holds {first}" in found.error
        assert f", which {dtype} cannot hold" in found.error


def test_an_input_without_a_batch_axis_is_refused(tmp_path, tokenizer):
    inputs = [{"name": "series", "dtype": "float32", "axes": []}]
    with pytest.raises(ArtefactError, match="has the input 'series' without a batch axis"):
        Predictor(head_artefacts.write(tmp_path, tokenizer, "series", inputs=inputs))


def test_arrays_of_the_model_dtype_are_not_range_checked(served, monkeypatch):
    monkeypatch.setattr(np, "isfinite", None)
    (result,) = served("series").predict([np.float32([[1, 2]])])
    assert result.arrays["total"].tolist() == [1, 2]


def test_arrays_are_no_longer_than_the_artefact_allows(served):
    most = artefacts.SOURCE_LIMIT
    long, fits = served("series").predict([np.ones((most + 1, 2)), np.ones((most, 2))])
    reason = f"shape ({most + 1}, 2), where this artefact takes lengths up to {most}"
    assert reason in long.error and long.arrays == {}
    assert fits.arrays["total"].tolist() == [most, most]


def test_errors_shorten_long_inputs(served):
    names = {f"name{i}": 1 for i in range(10_007)}
    results = served("series").predict([names, json.dumps(names), "[" * 50 + "]" * 50])
    assert all(len(result.error) < 300 for result in results)
    with pytest.raises(TypeError) as caught:
        served("classify").predict([list(range(10_007))])
    assert len(str(caught.value)) < 300
