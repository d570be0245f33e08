"""Exported models with heads, and language models: the runtime returns Keras' results."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import exports
from helpers.tiers import quick
from keras import layers

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Generator, Predictor
from keras_transformer.export.saved_model import why_not_saved_model
from keras_transformer.export.staging import ExportError
from keras_transformer.export.tasks import ForwardTask
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID

pytestmark = pytest.mark.usefixtures("forked_proofs")

LINES = ["a man", "the dog runs", "", "two words , red", "ein mann fährt fahrrad ."]
LABELS = ["red", "green", "blue"]
TAGS = export.TokenClassification(LABELS)
BOTH = export.Heads(tag=TAGS, kind=export.Classification(["n", "y"]))


def ids_input(name="source_ids", length=None):
    return keras.Input((length,), dtype="int32", name=name)


def encoded(ids):
    encoder = kt.TransformerEncoder(exports.VOCAB, num_layers=1, d_model=12, num_heads=2, d_ff=17)
    return encoder(ids)


def classifier(units=3, activation=None):
    ids = ids_input()
    pooled = layers.GlobalAveragePooling1D()(encoded(ids))
    return keras.Model(ids, layers.Dense(units, activation)(pooled))


def tagger(activation="softmax"):
    ids = ids_input()
    return keras.Model(ids, layers.Dense(3, activation)(encoded(ids)))


def two_headed():
    ids = ids_input()
    vectors = encoded(ids)
    pooled = kt.SequencePooling()(vectors)
    return keras.Model(ids, {"kind": layers.Dense(2)(pooled), "tags": layers.Dense(3)(vectors)})


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


@pytest.fixture(scope="module")
def tokenizer():
    return exports.tokenizer()


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory):
    """A function that exports a model and returns the manifest and a `Predictor`."""

    def write(model, head=None, read=tokenizer, **options):
        folder = tmp_path_factory.mktemp("heads") / "onnx"
        manifest = export.export_onnx(model, folder, read, head=head, verbose=False, **options)
        return manifest, Predictor(folder, threads=1)

    return write


@pytest.fixture(scope="module")
def classes(exported):
    model = classifier()
    return model, *exported(model, export.Classification(LABELS))


@pytest.fixture(scope="module")
def generator():
    return Generator(exports.artefact(exports.SAMPLING, "generate"), threads=1)


# Equality with Keras


def answer(model, ids):
    """Returns Keras' outputs for one row of ids."""
    return model(np.array([ids], "int32"))[0]


def test_labels_equal_keras(tokenizer, classes):
    model, manifest, predictor = classes
    config = {"labels": LABELS, "from_logits": True}
    assert manifest["head"] == {"class_name": "Classification", "config": config}
    assert (manifest["task"], manifest["ignores_padding"]) == ("classify", True)
    results = dict(zip(LINES, predictor.predict(LINES), strict=True))
    assert results.pop("").labels == ()
    for line, result in results.items():
        logits = answer(model, [*tokenizer.encode(line), END_ID])
        found = dict(zip(result.labels, result.probabilities, strict=True))
        expected = keras.ops.softmax(logits)
        np.testing.assert_allclose([found[label] for label in LABELS], expected, atol=1e-5)


def test_tags_equal_keras(tokenizer, exported):
    model, words = tagger(), ["two", "words", "hat"]
    _, predictor = exported(model, export.TokenClassification(LABELS, from_logits=False))
    (result,) = predictor.predict([words])
    pieces = [tokenizer.encode(word) for word in words]
    first = np.cumsum([0, *map(len, pieces[:-1])])
    found = np.asarray(answer(model, [*sum(pieces, []), END_ID]))
    assert result.tags == tuple(LABELS[i] for i in found[first].argmax(axis=-1))
    np.testing.assert_allclose(result.probabilities, found[first].max(axis=-1), atol=1e-5)


def test_several_heads_read_the_same_words(tokenizer, exported):
    model, words = two_headed(), ["two", "words", "hat"]
    head = export.Heads(
        tags=export.TokenClassification(LABELS), kind=export.Classification(["n", "y"])
    )
    manifest, predictor = exported(model, head)
    assert predictor.head == head and manifest["task"] == "heads" and manifest["ignores_padding"]
    single, blank, *_ = predictor.predict([words, "", " ".join(words), ["a"] * 9])
    outputs = model(np.array([[*sum(map(tokenizer.encode, words), []), END_ID]], "int32"))
    first = np.cumsum([0, *(len(tokenizer.encode(word)) for word in words[:-1])])
    best = np.asarray(outputs["tags"])[0, first].argmax(axis=-1)
    assert single.results["tags"].tags == tuple(LABELS[i] for i in best)
    found = dict(zip(*single.results["kind"][:2], strict=True))
    np.testing.assert_allclose(
        [found["n"], found["y"]], keras.ops.softmax(outputs["kind"])[0], atol=1e-5
    )
    assert blank.results == {} and blank.error is None


@pytest.mark.parametrize("two_rows", quick([False, True], False))
def test_answers_equal_keras(tokenizer, exported, two_rows):
    model, question, passage = reader(two_rows), "what hat ?", "a man 's hat , red ."
    manifest, predictor = exported(model, export.QuestionAnswering(1))
    (result,) = predictor.predict([(question, passage)])
    ask, tell = ([*tokenizer.encode(text), END_ID] for text in (question, passage))
    if two_rows:
        inputs, before = {"question_ids": ask, "passage_ids": tell}, 0
    else:
        segments = [1] * len(ask) + [2] * len(tell)
        inputs, before = {"source_ids": ask + tell, "segment_ids": segments}, len(ask)
    outputs = model({name: np.array([ids], "int32") for name, ids in inputs.items()})
    start, end = (keras.ops.softmax(outputs[name])[0] for name in ("start", "end"))
    scores = np.asarray(start * end)[before : before + len(tell) - 1]
    spans = tokenizer.encode_with_spans(passage)[1]
    begin, stop = spans[scores.argmax()]
    assert result.text == passage[begin:stop].strip()
    np.testing.assert_allclose(result.score, scores.max(), rtol=1e-4)
    assert manifest["task"] == "answer"


def test_vectors_equal_keras(tokenizer, exported):
    ids = ids_input()
    model = keras.Model(ids, encoded(ids))
    _, predictor = exported(model, export.FeatureExtraction())
    lines = [line for line in LINES if line]
    for line, result in zip(lines, predictor.predict(lines), strict=True):
        expected = answer(model, [*tokenizer.encode(line), END_ID])
        np.testing.assert_allclose(result.vector, expected, atol=1e-5)


def test_lines_are_padded_to_a_fixed_length(tokenizer, exported):
    ids = ids_input(length=11)
    model = keras.Model(
        ids, layers.Dense(3)(layers.Flatten()(layers.Embedding(exports.VOCAB, 5)(ids)))
    )
    manifest, predictor = exported(model, export.Classification(LABELS))
    good, bad = predictor.predict(["a man", "a man rides a bicycle , red ."])
    logits = model(pad_rows([[*tokenizer.encode("a man"), END_ID]], length=11))
    best = int(keras.ops.argmax(logits))
    assert good.label == LABELS[best] and "takes at most 11" in bad.error
    assert manifest["ignores_padding"]


def test_pictures_are_classified_too(exported):
    pictures = keras.Input((5, 5, 2), name="pictures")
    model = keras.Model(pictures, layers.Dense(1, "sigmoid")(layers.Flatten()(pictures)))
    head = export.Classification(["cat", "dog"], from_logits=False)
    _, predictor = exported(model, head, read=None)
    batch = np.random.default_rng(0).normal(size=(7, 5, 5, 2)).astype("float32")
    found = [dict(zip(*result[:2], strict=True))["dog"] for result in predictor.predict(batch)]
    np.testing.assert_allclose(found, np.asarray(model(batch))[:, 0], atol=1e-5)


def test_continuations_equal_keras(tokenizer, generator):
    prompts = [line for line in LINES if line]
    ids = pad_rows([[BEGIN_ID, *row] for row in tokenizer.encode(prompts)])
    found = exports.SAMPLING(exports.shared_model("generate"), ids, exports.MAX_LENGTH, seed=23)
    results = generator.n_best(prompts, seed=23)
    texts = [tokenizer.decode(rows) for rows in found.ids.numpy()]
    texts = [tuple(text.replace("\0", "\ufffd") for text in some) for some in texts]
    assert [result.texts for result in results] == texts
    np.testing.assert_allclose([r.scores for r in results], found.scores, rtol=1e-4)
    assert generator.generate(prompts, seed=29) != [result.text for result in results]


@pytest.mark.full
def test_learned_positions_limit_the_length_of_a_prompt(tokenizer, tmp_path):
    model = exports.tiny("generate", num_layers=1, positions=kt.LearnedPositionEncoding(5))
    export.export_onnx(model, tmp_path / "x", tokenizer, kt.GreedySearch(), verbose=False)
    prompts = ["two", "xyz", "abcd"]
    assert [len(tokenizer.encode(prompt)) for prompt in prompts] == [2, 4, 5]
    found = Generator(tmp_path / "x", threads=1).n_best(prompts)
    assert found[0].text and found[1].text and "takes at most 5" in found[2].error


# Eight threads


def same_in_threads(answer, lines):
    """Counts the requests, of 500, that 8 threads answer as one thread does."""
    draw = random.Random(20170612)
    requests = [draw.choices(lines, k=draw.randint(1, 3)) for _ in range(500)]
    serial = [answer(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        return sum(map(list.__eq__, serial, pool.map(answer, requests)))


def test_eight_threads_share_a_predictor(classes):
    assert same_in_threads(classes[-1].predict, LINES) == 500


# Padding


def test_the_manifest_says_whether_a_model_ignores_padding(exported):
    ids = ids_input()
    vectors = layers.Embedding(exports.VOCAB, 5)(ids)  # without a mask
    model = keras.Model(ids, layers.Dense(3)(layers.GlobalAveragePooling1D()(vectors)))
    manifest, predictor = exported(model, export.Classification(LABELS))
    assert not manifest["ignores_padding"]
    alone = [predictor.predict([line])[0] for line in LINES]
    assert predictor.predict(LINES) == alone


@pytest.mark.parametrize("positions, ignores", [(5, True), (3, False)])  # 3: too short to try it
def test_padding_is_tried_within_learned_positions(positions, ignores):
    ids, sizes = ids_input(), {"num_layers": 1, "d_model": 12, "num_heads": 2, "d_ff": 17}
    encoder = kt.TransformerEncoder(23, **sizes, positions=kt.LearnedPositionEncoding(positions))
    task = ForwardTask(keras.Model(ids, encoder(ids)), export.FeatureExtraction())
    assert task.ignores_padding(task.cases(None)) is ignores


def halved():
    """A model whose outputs have half the length of its ids, rounded up."""
    ids = ids_input()
    vectors = layers.Embedding(exports.VOCAB, 5, mask_zero=True)(ids)
    vectors = kt.MaskedConv1D(4, 3, strides=2, padding="same", use_bias=False)(vectors)
    return keras.Model(ids, layers.Dense(3)(vectors))


def test_shorter_outputs_are_not_padded():
    task = ForwardTask(halved(), export.FeatureExtraction())
    assert not task.ignores_padding(task.cases(None))


def test_a_head_for_each_token_needs_an_output_of_the_length_of_the_ids():
    task = ForwardTask(halved(), TAGS)
    cases = task.cases(None)
    expected = [task.expected(case) for case in cases]
    with pytest.raises(ExportError, match="TokenClassification needs the numbers of each token"):
        task.compare(cases, expected, expected, 1e-4)


# Heads that do not fit the model


def without_segments():
    ids = ids_input()
    vectors = encoded(ids)
    return keras.Model(ids, {"start": vectors[..., 0], "end": vectors[..., 1]})


def with_segments():
    ids, segments = ids_input(), ids_input("segment_ids")
    vectors = layers.Add()([encoded(ids), layers.Embedding(3, 12)(segments)])
    return keras.Model([ids, segments], layers.Dense(3)(vectors))


@pytest.mark.parametrize(
    ("make", "head", "message"),
    [
        (classifier, export.Classification(["a", "b"]), "has 2 labels, but .* has 3 classes"),
        (classifier, export.TokenClassification(LABELS), r"needs an output \(B, S, C\), but 'de"),
        (classifier, export.QuestionAnswering(), r"two outputs \(B, S\) named 'start' and 'end'"),
        (reader, export.FeatureExtraction(), "FeatureExtraction describes one output.*Pass Heads"),
        (two_headed, BOTH, r"outputs named \['kind', 'tag'\]"),
        (two_headed, export.Heads(kind=TAGS, tags=TAGS), r"needs an output \(B, S, C\), but 'kind"),
        (without_segments, export.QuestionAnswering(), r"The inputs are \['source_ids'\]"),
        (with_segments, export.TokenClassification(LABELS), "needs a model with one input of ids"),
    ],
)
def test_a_head_that_does_not_fit_the_model_is_refused(tmp_path, tokenizer, make, head, message):
    with pytest.raises(ValueError, match=message):
        export.export_onnx(make(), tmp_path / "x", tokenizer, head=head)


def test_unknown_heads_heads_of_searches_and_missing_tokenizers_are_refused(tmp_path):
    head, path = export.FeatureExtraction(), tmp_path / "x"
    with pytest.raises(TypeError, match="head must be one of Classification.* but str"):
        export.export_onnx(classifier(), path, head="classify")
    with pytest.raises(ValueError, match="pass `search` or `head`, not both"):
        export.export_onnx(exports.shared_model(), path, search=exports.BEAM, head=head)
    with pytest.raises(ValueError, match="QuestionAnswering needs a tokenizer, and a model that"):
        export.export_onnx(reader(), path, head=export.QuestionAnswering())


@pytest.mark.parametrize(
    ("make", "head", "message"),
    [
        (classifier, export.Classification(LABELS, False), "not probabilities. Pass from_logits=T"),
        (lambda: classifier(3, "softmax"), export.Classification(LABELS), "Pass from_logits=False"),
        (lambda: classifier(1, "sigmoid"), export.Classification(["n", "y"]), "from_logits=False"),
        (
            tagger,
            export.TokenClassification(LABELS),
            "from_logits=True, but .* gives probabilities",
        ),
        (
            lambda: tagger(None),
            export.TokenClassification(LABELS, False),
            "from_logits=False, but the model gives",
        ),
        (
            two_headed,
            export.Heads(tags=TAGS, kind=export.Classification(["n", "y"], False)),
            "from_logits=False, but the model gives",
        ),
    ],
)
def test_errors_name_a_wrong_from_logits(make, head, message):
    task = ForwardTask(make(), head)
    cases = task.cases(None)
    expected = [task.expected(case) for case in cases]
    with pytest.raises(ExportError, match=message):
        task.compare(cases, expected, expected, 1e-4)


# SavedModel


def test_a_saved_model_stores_its_head(tmp_path, tokenizer):
    path, head = tmp_path / "saved", export.Classification(LABELS)
    export.export_saved_model(classifier(), path, tokenizer, head=head, verbose=False)
    written = json.loads((path / "assets.extra/head.json").read_text("utf-8"))
    assert written == {"class_name": "Classification", "config": head.get_config()}
    assert why_not_saved_model(path) is None  # so a later export may replace it
    (path / "assets.extra/other").touch()
    assert "assets.extra is not part" in why_not_saved_model(path)
    for served in tf.saved_model.load(str(path)).signatures.values():
        (output,) = served(source_ids=tf.constant([[5, 3]])).values()
        assert output.shape == (1, 3)
