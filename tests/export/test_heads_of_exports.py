"""Exported models with heads, and language models: the runtime returns Keras' results."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from helpers import exports
from helpers.tiers import quick
from keras import layers

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.artefact.results import Passage, Row
from keras_transformer.export.artefact.task_heads import tags_words
from keras_transformer.export.runtime import Generator, Predictor
from keras_transformer.export.saved_model import why_not_saved_model
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks import ForwardTask
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID

pytestmark = pytest.mark.usefixtures("forked_proofs")

LINES = ["a man", "the dog runs", "", "two words , red", "ein mann fährt fahrrad ."]
LABELS = ["red", "green", "blue"]
TOKENIZER = exports.tokenizer()
TAGS = export.TokenClassification(LABELS)


def ids_input(name="source_ids", length=None):
    return keras.Input((length,), dtype="int32", name=name)


def on_encoder(make, **arguments):
    """Returns a model whose outputs `make` computes from the vectors of an encoder."""
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 2, "d_ff": 17}
    ids = ids_input()
    vectors = kt.TransformerEncoder(exports.VOCAB, **sizes, **arguments)(ids)
    return keras.Model(ids, make(vectors))


def classifier(units=3, activation=None):
    dense, pooling = layers.Dense(units, activation), layers.GlobalAveragePooling1D()
    return on_encoder(lambda vectors: dense(pooling(vectors)))


def tagger(activation="softmax"):
    return on_encoder(layers.Dense(3, activation))


def two_headed():
    kind, tags, pooling = layers.Dense(2), layers.Dense(3), kt.SequencePooling()
    return on_encoder(lambda vectors: {"kind": kind(pooling(vectors)), "tags": tags(vectors)})


def reader(two_rows=False):
    """A model that marks answers, in one row with segments or in the passage."""
    passage = ids_input("passage_ids" if two_rows else "source_ids")
    other = ids_input("question_ids" if two_rows else "segment_ids")
    x = kt.TokenEmbedding(exports.VOCAB, 12)(passage)
    if two_rows:
        question = layers.GlobalAveragePooling1D()(kt.TokenEmbedding(exports.VOCAB, 12)(other))
        x = layers.Multiply()([x, layers.RepeatVector(1)(question)])
    else:
        x = kt.SegmentEmbedding()(x, other)
    numbers = layers.Dense(2)(x)
    outputs = {"start": numbers[..., 0], "end": numbers[..., 1]}
    return keras.Model([other, passage] if two_rows else [passage, other], outputs)


def exported(model, head, folder):
    """Exports a model; returns the manifest and a `Predictor`."""
    manifest = export.export_onnx(model, folder, TOKENIZER, head=head, verbose=False)
    return manifest, Predictor(folder, threads=1)


# Equality with Keras: `runtime/test_heads.py` tests the results of a head for given outputs


def check(result, head, row, outputs):
    """Compares a result with the head of Keras' outputs for one row."""
    arrays = {name: np.asarray(array)[0] for name, array in outputs.items()}
    expected = keras.tree.flatten(head.result(row, arrays))
    for one, other in zip(keras.tree.flatten(result), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


HEADS = {
    "labels": (classifier, export.Classification(LABELS)),
    "tags": (tagger, export.TokenClassification(LABELS, from_logits=False)),
    "several": (two_headed, export.Heads(tags=TAGS, kind=export.Classification(["n", "y"]))),
    "vectors": (lambda: tagger(None), export.FeatureExtraction()),
}


@pytest.mark.full("vectors", "labels", "several")
@pytest.mark.parametrize("name", HEADS)
def test_results_equal_the_head_of_keras_outputs(name, tmp_path):
    make, head = HEADS[name]
    model = make()
    manifest, predictor = exported(model, head, tmp_path)
    assert predictor.head == head and manifest["task"] == head.task and manifest["ignores_padding"]
    for line, result in zip(LINES, predictor.predict(LINES), strict=True):
        words = line.split() if tags_words(head) else [line]
        pieces = TOKENIZER.encode(words)
        ids = [*sum(pieces, []), END_ID]
        outputs = model(np.array([ids], "int32"))
        first = np.cumsum([0, *map(len, pieces[:-1])]).tolist()
        row = Row({}, 0, length=len(ids), words=tuple(words), first_pieces=first)
        if line:
            check(result, head, row, outputs if isinstance(outputs, dict) else {"": outputs})
        else:
            assert result == head.empty


@pytest.mark.parametrize("two_rows", quick([False, True], False))
def test_answers_equal_keras(two_rows, tmp_path):
    model, question, passage = reader(two_rows), "what hat ?", "a man 's hat , red ."
    manifest, predictor = exported(model, export.QuestionAnswering(1), tmp_path)
    (result,) = predictor.predict([(question, passage)])
    ask, tell = ([*TOKENIZER.encode(text), END_ID] for text in (question, passage))
    inputs, before = {"question_ids": ask, "passage_ids": tell}, 0
    if not two_rows:
        segments, before = [1] * len(ask) + [2] * len(tell), len(ask)
        inputs = {"source_ids": ask + tell, "segment_ids": segments}
    outputs = model({name: np.array([ids], "int32") for name, ids in inputs.items()})
    spans, tokens = TOKENIZER.encode_with_spans(passage)[1], slice(before, before + len(tell) - 1)
    row = Row({}, 0, length=before + len(tell), passage=Passage(passage, spans, tokens))
    check(result, predictor.head, row, outputs)
    assert manifest["task"] == "answer"


def test_lines_are_padded_to_a_fixed_length(tmp_path):
    ids = ids_input(length=11)
    model = keras.Model(
        ids, layers.Dense(3)(layers.Flatten()(layers.Embedding(exports.VOCAB, 5)(ids)))
    )
    manifest, predictor = exported(model, export.Classification(LABELS), tmp_path)
    good, bad = predictor.predict(["a man", "a man rides a bicycle , red ."])
    logits = model(pad_rows([[*TOKENIZER.encode("a man"), END_ID]], length=11))
    best = int(keras.ops.argmax(logits))
    assert good.label == LABELS[best] and "takes at most 11" in bad.error
    assert manifest["ignores_padding"]


@pytest.mark.full
def test_learned_positions_limit_the_length_of_a_prompt(tmp_path):
    model = exports.tiny("generate", num_layers=1, positions=kt.LearnedPositionEncoding(5))
    export.export_onnx(model, tmp_path / "x", TOKENIZER, kt.GreedySearch(), verbose=False)
    prompts = ["two", "xyz", "abcd"]
    assert [len(TOKENIZER.encode(prompt)) for prompt in prompts] == [2, 4, 5]
    found = Generator(tmp_path / "x", threads=1).n_best(prompts)
    assert found[0].text and found[1].text and "takes at most 5" in found[2].error


@pytest.mark.full
def test_eight_threads_share_a_predictor(tmp_path):
    _, predictor = exported(classifier(), export.Classification(LABELS), tmp_path)
    requests = [random.Random(number).choices(LINES, k=1 + number % 3) for number in range(500)]
    serial = [predictor.predict(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(predictor.predict, requests)) == serial


# Padding


def unmasked():
    ids = ids_input()
    vectors = layers.Embedding(exports.VOCAB, 5)(ids)
    return keras.Model(ids, layers.GlobalAveragePooling1D()(vectors))


def halved():
    """A model whose outputs have half the length of its ids, rounded up."""
    ids = ids_input()
    vectors = layers.Embedding(exports.VOCAB, 5, mask_zero=True)(ids)
    vectors = kt.MaskedConv1D(4, 3, strides=2, padding="same", use_bias=False)(vectors)
    return keras.Model(ids, layers.Dense(3)(vectors))


def limited(length):
    """A model that reads a few positions."""
    return on_encoder(layers.Identity(), positions=kt.LearnedPositionEncoding(length))


@pytest.mark.parametrize(
    "make, ignores",
    [
        (lambda: limited(5), True),
        (lambda: limited(3), False),  # too few positions to try it
        (halved, False),
        (unmasked, False),
    ],
)
def test_padding_is_tried_within_learned_positions(make, ignores):
    """`runtime/test_predictor.py` tests that such models get no padding."""
    task = ForwardTask(make(), export.FeatureExtraction())
    assert task.ignores_padding(task.cases(None)) is ignores


# Heads that do not fit the model


def without_segments():
    return on_encoder(lambda vectors: {"start": vectors[..., 0], "end": vectors[..., 1]})


def with_segments():
    ids, segments = ids_input(), ids_input("segment_ids")
    vectors = layers.Add()(
        [layers.Embedding(exports.VOCAB, 5)(ids), layers.Embedding(3, 5)(segments)]
    )
    return keras.Model([ids, segments], layers.Dense(3)(vectors))


VECTORS, ANSWERS = export.FeatureExtraction(), export.QuestionAnswering()
BOTH = export.Heads(tag=TAGS, kind=export.Classification(["n", "y"]))


@pytest.mark.parametrize(
    ("make", "head", "message", "options"),
    [
        (classifier, export.Classification(["a", "b"]), "has 2 labels, but .* has 3 classes", {}),
        (classifier, TAGS, r"needs an output \(B, S, C\), but 'de", {}),
        (classifier, ANSWERS, r"two outputs \(B, S\) named 'start' and 'end'", {}),
        (reader, VECTORS, "FeatureExtraction describes one output.*Pass Heads", {}),
        (two_headed, BOTH, r"outputs named \['kind', 'tag'\]", {}),
        (two_headed, export.Heads(kind=TAGS, tags=TAGS), r"output \(B, S, C\), but 'kind", {}),
        (without_segments, ANSWERS, r"The inputs are \['source_ids'\]", {}),
        (with_segments, TAGS, "needs a model with one input of ids", {}),
        (classifier, "classify", "head must be one of Classification.* but str", {}),
        (exports.shared_model, VECTORS, "pass `search` or `head`", {"search": exports.BEAM}),
        (reader, ANSWERS, "needs a tokenizer, and a model that", {"tokenizer": None}),
    ],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path, make, head, message, options):
    error = TypeError if isinstance(head, str) else ValueError
    with pytest.raises(error, match=message):
        export.export_onnx(make(), tmp_path, **{"tokenizer": TOKENIZER, "head": head, **options})


PROBABILITIES = export.Classification(["n", "y"], from_logits=False)


@pytest.mark.parametrize(
    ("make", "head", "message"),
    [
        (classifier, export.Classification(LABELS, False), "not probabilities. Pass from_logits=T"),
        (lambda: classifier(3, "softmax"), export.Classification(LABELS), "Pass from_logits=False"),
        (lambda: classifier(1, "sigmoid"), export.Classification(["n", "y"]), "from_logits=False"),
        (tagger, TAGS, "from_logits=True, but .* gives probabilities"),
        (lambda: tagger(None), export.TokenClassification(LABELS, False), "=False, but the model"),
        (two_headed, export.Heads(tags=TAGS, kind=PROBABILITIES), "=False, but the model gives"),
        (halved, TAGS, "TokenClassification needs the numbers of each token"),
    ],
)
def test_outputs_of_another_kind_than_the_heads_are_named(make, head, message):
    task = ForwardTask(make(), head)
    cases = task.cases(None)
    expected = [task.expected(case) for case in cases]
    with pytest.raises(ExportError, match=message):
        task.compare(cases, expected, expected, 1e-4)


# SavedModel


@pytest.mark.full
def test_a_saved_model_stores_its_head(tmp_path):
    path, head = tmp_path / "saved", export.Classification(LABELS)
    export.export_saved_model(classifier(), path, TOKENIZER, head=head, verbose=False)
    written = json.loads((path / "assets.extra/head.json").read_text("utf-8"))
    assert written == {"class_name": "Classification", "config": head.get_config()}
    assert why_not_saved_model(path) is None  # so a later export may replace it
