"""Options of a call: Keras, both ONNX layouts and the SavedModel return the same results."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports, runtime_process
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.padding import pad_rows

SEARCH = kt.BeamSearch(
    3,
    0.6,
    constraints=[
        kt.NoRepeatNgrams(2),
        kt.RepetitionPenalty(1.2),
        kt.ForbiddenWords([[7, 9]]),
        kt.BiasedPrefix(0.5),
    ],
)
ASKED = ("min_length", "target_prefix", "beam_width")
LINES, TOKENIZER = exports.LINES, exports.tokenizer()


@pytest.fixture(scope="module", params=quick(["loop", "steps"], nightly=["steps"]))
def translator(request):
    folder = exports.artefact(SEARCH, layout=request.param, options=ASKED)
    return Translator(folder, threads=1)


def ids(*texts):
    return pad_rows(TOKENIZER.encode(list(texts)))


def check(found, **options):
    """Compares results with Keras' search of the same lines."""
    source_ids = pad_rows([[*row, 3] for row in TOKENIZER.encode(LINES)])
    options = {"max_length": exports.MAX_LENGTH, **options}
    expected = SEARCH(exports.shared_model(), source_ids, **options)
    for result, rows, scores in zip(found, *(part.numpy() for part in expected[:2]), strict=True):
        texts = [text.replace("\0", "\ufffd") for text in TOKENIZER.decode(rows)]
        # A list of texts has each of them once.
        exists = [
            i for i in range(len(texts)) if scores[i] > -np.inf and i == texts.index(texts[i])
        ]
        assert result.error is None
        np.testing.assert_allclose(result.scores, scores[exists], rtol=1e-4)
        assert list(result.texts) == [texts[i] for i in exists]


@pytest.mark.full
def test_every_option_gives_the_results_of_keras(translator):
    words = ["the dog", "red"]
    prefixes = ["the dog", "", "red", ""]
    cases = [
        ({}, {}),
        ({"max_length": 3}, {}),
        ({"max_length": np.array(3)}, {"max_length": 3}),
        ({"max_length": [2, 4, 3, 1]}, {"max_length": np.array([2, 4, 3, 1])}),
        ({"min_length": [7, 6, 7, 7]}, {"min_length": np.array([7, 6, 7, 7])}),
        ({"beam_width": 2, "length_penalty": 1.5}, {}),
        ({"target_prefix": "the dog"}, {"target_prefix": ids("the dog")}),
        ({"target_prefix": prefixes}, {"target_prefix": ids(*prefixes)}),
        ({"repetition_penalty": 2.0, "no_repeat_ngram_size": 1}, {}),
        ({"forbidden_words": words}, {"forbidden_words": ids(*words)[None]}),
        ({"forbidden_words": "red"}, {"forbidden_words": ids("red")[None]}),
        (
            {"biased_prefix": "the dog", "prefix_bias": 0.9},
            {"biased_prefix": ids("the dog")},
        ),
    ]
    seen = []
    for passed, tensors in cases:
        found = translator.n_best(LINES, **passed)
        check(found, **{**passed, **tensors})
        seen.append(found)
    # These options change the results. Few texts of this model are shorter than `min_length`.
    assert all(found != seen[0] for found in [*seen[1:4], *seen[5:9]])


@pytest.mark.full
@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"temperature": 0.5}, ValueError, "takes the options.*Export it with a search that has"),
        ({"terms": ["x"]}, ValueError, "takes the options.*Export it with a search that has it"),
        ({"top_k": 3}, ValueError, r"takes the options.*Export it with options=\['top_k'\] if"),
        ({"foo": 1}, ValueError, r"'foo' was passed.*takes the options \[.*\]\.$"),
        ({"max_length": 0}, ValueError, "max_length must be at least 1"),
        ({"max_length": 2.5}, TypeError, "max_length must be an integer, got 2.5"),
        ({"beam_width": 4}, ValueError, "beam_width must be at least 1 and at most 3, got 4"),
        ({"length_penalty": "1"}, TypeError, "length_penalty must be a number"),
        ({"max_length": [5, 6]}, ValueError, "`max_length` has 2 values, but there are 4 lines"),
        ({"max_length": [5] * 5}, ValueError, "`max_length` has 5 values, but there are 4 lines"),
        ({"max_length": iter([5])}, ValueError, "`max_length` has fewer values than there are"),
        ({"target_prefix": 5}, TypeError, "target_prefix must be a text, got 5"),
        ({"forbidden_words": [""]}, ValueError, "no pieces for '' of forbidden_words. Leave it"),
        ({"max_length": 3, "min_length": 4}, ValueError, "max_length 3 is below min_length 4"),
        ({"min_length": 12}, ValueError, "max_length 11 is below min_length 12"),
        ({"max_length": [9, 3, 9, 9], "min_length": 4}, ValueError, "3 is below min_length 4"),
        ({"max_length": 3, "min_length": [1, 4, 1, 1]}, ValueError, "3 is below min_length 4"),
        (
            {"max_length": [9, 9, 9, 5], "min_length": [1, 4, 6, 6]},
            ValueError,
            "max_length 5 is below min_length 6",
        ),
        ({"prefix_bias": 0.5}, ValueError, "prefix_bias has no effect without biased_prefix"),
    ],
)
def test_errors_name_the_wrong_option(translator, options, error, words):
    with pytest.raises(error, match=words):
        translator.translate(LINES, **options)


@pytest.mark.full
def test_the_command_line_takes_options(translator):
    flags = ["--max-length", "5", "--target-prefix", "the dog", "--forbidden-words", "red"]
    options = dict(max_length=5, target_prefix="the dog", forbidden_words=["red"])
    data, folder = "\n".join(LINES).encode(), translator._arguments["folder"]
    status, output, errors = runtime_process.translate(data, folder, "--quiet", *flags)
    expected = [text.replace("\n", " ") for text in translator.translate(LINES, **options)]
    assert (status, output.split("\n")[:-1], errors) == (0, expected, "")


@pytest.mark.full
def test_sampling_takes_all_its_options():
    search, options = kt.Sampling(num_samples=2), ("top_k", "top_p")
    generator = Generator(exports.artefact(search, "generate", options=options), threads=1)
    prompts, seen = pad_rows([[2, *row] for row in TOKENIZER.encode(LINES)]), set()
    for passed in ({}, {"temperature": 0.1}, {"top_k": 3}, {"top_p": 0.3}, {"max_length": 4}):
        found = generator.n_best(LINES, seed=7, **passed)
        arguments = {"max_length": exports.MAX_LENGTH, "seed": 7, **passed}
        expected = search(exports.shared_model("generate"), prompts, **arguments)
        scores = np.array([result.scores for result in found])
        np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)
        seen.add(tuple(scores.ravel()))
    assert len(seen) == 5


@pytest.mark.full
@pytest.mark.usefixtures("forked_proofs")
def test_a_saved_model_has_a_signature_with_options(tmp_path):
    model, search, source_ids = exports.shared_model(), kt.BeamSearch(2, 0.6), exports.source()
    options = dict(max_length=7, options=["min_length"], verbose=False)
    export_saved_model(model, tmp_path / "saved", None, search, **options)
    signatures = tf.saved_model.load(tmp_path / "saved").signatures
    plain = signatures["search"](source_ids=tf.constant(source_ids))
    np.testing.assert_array_equal(plain["token_ids"], search(model, source_ids, max_length=7).ids)
    limits = np.array([5, 4, 3, 6, 2], "int32")
    values = {"max_length": limits, "min_length": [2], "length_penalty": np.float32(1.5)}
    found = signatures["search_with_options"](
        source_ids=tf.constant(source_ids), **{name: tf.constant(x) for name, x in values.items()}
    )
    expected = search(model, source_ids, limits, min_length=2, length_penalty=1.5)
    np.testing.assert_array_equal(found["token_ids"], expected.ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:  # as a server runs it
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "saved"))
        entry = graph.signature_def["search_with_options"]
        assert set(entry.defaults) == set(values)
        feeds = {entry.inputs["source_ids"].name: source_ids}
        served = session.run(entry.outputs["token_ids"].name, feeds)
    np.testing.assert_array_equal(served, plain["token_ids"])


@pytest.mark.full
def test_slow_options_are_inputs_only_on_request():
    names = {
        exports.artefact(): ["max_length", "length_penalty"],
        exports.artefact(exports.GREEDY, layout="steps"): ["max_length", "min_length"],
    }
    for folder, expected in names.items():
        manifest = read_artefact(folder).manifest
        assert [entry["name"] for entry in manifest["options"]] == expected
        assert [value["name"] for value in manifest["inputs"]] == ["source_ids"]
