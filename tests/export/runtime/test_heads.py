"""Heads: their arguments, the numbers they read, and their fields in a manifest."""

import itertools
import json

import numpy as np
import pytest
from helpers import head_artefacts

from keras_transformer import export
from keras_transformer.export.artefact import signature, task_heads
from keras_transformer.export.artefact.results import Outputs, Passage, Row, Translation
from keras_transformer.export.runtime import Predictor, Tags
from keras_transformer.export.runtime.lines import Format, format_result

ROW = Row({}, 0)


@pytest.mark.parametrize(
    ("head", "numbers", "expected"),
    [
        (export.Classification(["n", "y"]), [0.0], (("n", "y"), (0.5, 0.5))),
        (export.Classification(["n", "y"]), [np.log(3)], (("y", "n"), (0.75, 0.25))),
        (export.Classification(["n", "y"], False), [0.25], (("n", "y"), (0.75, 0.25))),
        (export.Classification(["n", "y"], False), [0.25, 0.75], (("y", "n"), (0.75, 0.25))),
        (export.Classification(["n", "y"]), [-np.inf, 2.0], (("y", "n"), (1.0, 0.0))),
    ],
)
def test_classification_reads_logits_probabilities_and_one_number(head, numbers, expected):
    result = head.result(ROW, {"output": np.float32(numbers)})
    assert result.labels == expected[0]
    np.testing.assert_allclose(result.probabilities, expected[1], rtol=1e-6)


def test_tags_of_a_series_have_no_words():
    head = export.TokenClassification(["a", "b", "c"], from_logits=False)
    result = head.result(ROW, {"output": np.eye(3, dtype=np.float32)[[2, 0]]})
    assert result == Tags((), ("c", "a"), (1.0, 1.0)) and result.line() == "c a"


def test_hypotheses_without_details_all_have_a_line():
    found = Translation(("a", "b"), (0.0, -1.0))
    lines = format_result(1, found, Format(n_best=2, alignments=True)).splitlines()
    assert lines == [b"1\t0.0000\ta\t", b"1\t-1.0000\tb\t"]


def test_numbers_that_json_does_not_have_are_null():
    masked = Outputs({"x": np.array([[-np.inf, 0.5], [np.nan, 1]], "float32")})
    assert masked.line() == '{"x": [[null, 0.5], [null, 1.0]]}'


def test_entity_tags_are_the_most_probable_valid_sequence():
    labels = ["I-x", "O", "B-x", "B-y", "I-y"]
    head = export.TokenClassification(labels, from_logits=False, bio=True)
    draw = np.random.default_rng(7).dirichlet([1] * 5, size=4).astype("float32")
    draw[0, 0] = 0.9  # an entity may not start with I-x

    def valid(tags):
        pairs = zip(("O", *tags), tags, strict=False)
        return all(
            not tag.startswith("I-") or (before != "O" and before[2:] == tag[2:])
            for before, tag in pairs
        )

    def probability(tags):
        return np.prod([row[labels.index(tag)] for row, tag in zip(draw, tags, strict=True)])

    result = head.result(ROW, {"output": draw})
    assert result.tags == max(filter(valid, itertools.product(labels, repeat=4)), key=probability)
    assert np.prod(result.probabilities) == pytest.approx(probability(result.tags))


@pytest.mark.parametrize(
    ("most", "expected"), [(1, ("dogs", 4, 8)), (2, ("two dogs", 0, 8)), (30, ("two dogs", 0, 8))]
)
def test_an_answer_is_no_longer_than_allowed(most, expected):
    """Row: question, end, two, dogs, run, end. Best start: `two`; best end: `dogs`."""
    passage = Passage("two dogs run", [(0, 3), (3, 8), (8, 12)], slice(2, 5))
    outputs = {"start": np.float32([9, 9, 3, 2, 0, 9]), "end": np.float32([9, 9, 0, 5, 1, 9])}
    row = Row({}, 6, length=6, passage=passage)
    assert export.QuestionAnswering(most).result(row, outputs)[:3] == expected


KINDS = export.Classification(["n", "y"])
TAGS = export.TokenClassification(["a", "b"])


def test_several_heads_have_a_result_each_and_are_written_as_json():
    head = export.Heads(kind=KINDS, tags=TAGS)
    again = task_heads.head_of(task_heads.describe_head(head))
    assert again == head != export.Heads(a=TAGS, b=KINDS)
    row = Row({}, 3, length=3, words=("x", "y"), first_pieces=[0, 1])
    outputs = {"tags": np.float32([[0, 9], [9, 0], [0, 0]]), "kind": np.float32([0, 0])}
    result = head.result(row, outputs)
    assert list(result.results) == ["kind", "tags"] and result.results["kind"].label == "n"
    assert result.line() == '{"kind": "n\\t0.5000", "tags": "x/b y/a"}'
    assert result.columns() == {"text": result.line(), "score": None}
    line = json.loads(format_result(1, result, Format(json=True)))
    assert line["results"]["kind"] == {"labels": ["n", "y"], "probabilities": [0.5, 0.5]}
    assert head.empty.line() == "" and head.empty._replace(error="x").columns()["text"] is None


WRONG_LABELS = [
    (("ab",), {}, TypeError, "labels must be a list of strings"),
    (([1, 2],), {}, TypeError, "labels must be a list of strings"),
    ((["a"],), {}, ValueError, "at least two"),
    ((["a", "a"],), {}, ValueError, "at least two, all different"),
    ((["a", "b"], 1), {}, TypeError, "from_logits must be True or False"),
]


@pytest.mark.parametrize(
    ("kind", "arguments", "named", "error", "message"),
    [
        *((export.Classification, *case) for case in WRONG_LABELS),
        *((export.TokenClassification, *case) for case in WRONG_LABELS),
        (
            export.TokenClassification,
            (["O", "x"],),
            {"bio": True},
            ValueError,
            r"labels must be .*not \['x'\]",
        ),
        (
            export.TokenClassification,
            (["O", "B-x"],),
            {"bio": 1},
            TypeError,
            "bio must be True or False",
        ),
        *(
            (export.QuestionAnswering, (length,), {}, ValueError, "must be a positive integer")
            for length in (0, -1, 1.5, True)
        ),
        (export.Heads, (), {"a": TAGS}, ValueError, r"two or more heads, but got \['a'\]"),
        (
            export.Heads,
            (),
            {"a": TAGS, "b": export.QuestionAnswering()},
            TypeError,
            "head 'b' must be one of Classification",
        ),
    ],
)
def test_wrong_arguments_are_refused(kind, arguments, named, error, message):
    with pytest.raises(error, match=message):
        kind(*arguments, **named)


LABELS = {"labels": ["a", "b"], "from_logits": False}
CONFIGS = {
    "Classification": LABELS,
    "QuestionAnswering": {"max_answer_length": 7},
    "FeatureExtraction": {},
    "TokenClassification": {**LABELS, "bio": False},
}


@pytest.mark.parametrize("name", sorted(task_heads.HEADS.keys() - {"Heads"}))
def test_heads_are_restored_from_the_manifest(name):
    head = task_heads.HEADS[name](**CONFIGS[name])
    assert head.get_config() == CONFIGS[name] and getattr(export, name) is type(head)
    assert task_heads.read_head({"head": {"class_name": name, "config": CONFIGS[name]}}) == head


def test_every_head_has_a_task_and_no_head_means_forward():
    assert sorted(kind.task for kind in task_heads.HEADS.values()) == sorted(signature.HEAD_TASKS)
    assert task_heads.read_head({}).task == "forward"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"head": None}, "head is None"),
        ({"head": {"class_name": "Classification"}}, "head is"),
        ({"head": {"class_name": "Other", "config": {}}}, "head is"),
        ({"head": {"class_name": "FeatureExtraction", "config": {}}}, "head is"),
        ({"head": {"class_name": "Classification", "config": {"labels": ["a"]}}}, "at least two"),
        ({"head": {"class_name": "Classification", "config": {"other": 1}}}, "head is .*other"),
        ({"ignores_padding": None}, "ignores_padding is None"),
        ({"task": "forward"}, "task 'forward' with the fields"),
        ({"task": "embed"}, "head is"),
        ({"task": "heads", "head": {"class_name": "Heads", "config": {"a": 1, "b": 2}}}, "head is"),
        (
            {"task": "heads", "head": task_heads.describe_head(export.Heads(a=TAGS, b=TAGS))},
            "heads .'a', 'b'",
        ),
    ],
)
def test_a_head_that_no_exporter_writes_is_refused(tmp_path, tokenizer, fields, problem):
    with pytest.raises(ValueError, match=f"damaged or was edited by hand: .*{problem}"):
        head_artefacts.write(tmp_path, tokenizer, "classify", **fields)


@pytest.mark.parametrize("name", ["classify", "tag"])
@pytest.mark.parametrize("labels", [["a", "b"], list("abcde")])
def test_labels_that_do_not_fit_the_output_are_refused(tmp_path, tokenizer, name, labels):
    class_name, config = head_artefacts.HEADS[name]
    head = {"class_name": class_name, "config": {**config, "labels": labels}}
    with pytest.raises(ValueError, match=f"{len(labels)} labels and an output of 3 classes"):
        head_artefacts.write(tmp_path, tokenizer, name, head=head)
    length = ["source_length"] * (name == "tag")
    free = {"name": "classes", "dtype": "float32", "axes": ["batch", *length, "classes"]}
    folder = head_artefacts.write(tmp_path, tokenizer, name, head=head, outputs=[free])
    (result,) = Predictor(folder).predict(["two dogs"])
    assert f"3 classes, and the head has {len(labels)} labels" in result.error
