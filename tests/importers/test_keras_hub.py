"""KerasHub tasks in our searches and exports, compared with their `generate`.

Shapes: B batch, S source length, T target length, W hypotheses, V vocabulary.
"""

import functools
import sys

import keras
import numpy as np
import pytest
from helpers import exports, hub_tasks, tiers
from helpers.hub_tasks import LINES, NEW, hub

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.tasks import SearchTask
from keras_transformer.importers import hub_model, keras_hub

# The encoder of KerasHub's BART has a mask that keeps its attention from becoming one operator.
pytestmark = pytest.mark.filterwarnings("ignore:The model has 1 layers of the kind MultiHead")

SERVED = {"gpt2": Generator, "gemma": Generator, "bart": Translator}


class Origin:
    """A KerasHub task, trained for an epoch as our model, and its export."""

    def __init__(self, name, folder):
        self.name, self._folder = name, folder
        self.task = hub_tasks.drawn(getattr(hub_tasks, name))
        self.model, self.tokenizer = keras_hub.load(self.task, name=name)
        self.before = [np.array(weight) for weight in self.task.get_weights()]
        train(self.model)
        rows = hub_tasks.prompts(self.model, rows=100 - len(LINES))
        self.prompts = np.concatenate([rows, self.lines(rows.shape[1])])
        self.expected = hub_tasks.generated(self.model, self.prompts)
        self.search = kt.GreedySearch()

    @functools.cached_property
    def folder(self):
        """The folder of the exported model."""
        options = {"search": self.search, "max_length": NEW, "verbose": False}
        export_onnx(self.model, self._folder, self.tokenizer, **options)
        return self._folder

    def lines(self, length):
        """Returns ids of `LINES` as the runtime reads them."""
        begin, end = ([], [3]) if self.name == "bart" else ([2], [])
        rows = [[*begin, *row, *end] for row in self.tokenizer.encode(LINES)]
        return np.array([row + [0] * (length - len(row)) for row in rows], "int32")


def train(model):
    """Trains for an epoch on random ids with our loss."""
    ids = hub_tasks.prompts(model, rows=8, longest=5)
    targets = np.c_[np.full((8, 1), 2), ids]
    inputs = {"source_ids": ids, "target_ids": targets[:, :-1]}
    inputs = inputs if hasattr(model, "start") else targets[:, :-1]
    model.compile("adam", kt.SequenceCrossentropy(), jit_compile=False)
    model.fit(inputs, targets[:, 1:], batch_size=4, epochs=1, verbose=0)


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """Returns a function from a name to its `Origin`, made once."""
    folder = tmp_path_factory.mktemp("hub")
    return functools.cache(lambda name: Origin(name, folder / name))


@pytest.fixture(params=tiers.quick(SERVED, "gpt2", nightly=["gemma"]))
def origin(request, origins):
    return origins(request.param)


def found(token_ids):
    """Returns the best tokens of each row, without padding."""
    return [[int(id) for id in row[0] if id > 0] for row in np.asarray(token_ids)]


@pytest.mark.full
def test_a_trained_task_writes_what_generate_writes(origin):
    after = origin.task.get_weights()
    moved = [not np.array_equal(*pair) for pair in zip(origin.before, after, strict=True)]
    assert np.mean(moved) > 0.8  # dropout's random state does not count
    result = origin.search(origin.model, origin.prompts, NEW)
    assert found(result.ids) == origin.expected
    ended = sum(3 in row for row in origin.expected)
    assert 3 < ended < 97 and len({tuple(row) for row in origin.expected}) > 30


@pytest.mark.full
def test_the_file_equals_the_task_in_any_batch(origin):
    """Compares ids and texts with `generate`, and ids with KerasHub's tokenizer."""
    session = exports.session(origin.folder)
    for batch in (slice(0, 61), slice(61, 99), slice(99, 100)):
        ids = origin.prompts[batch]
        ids = ids[:, : (ids > 0).sum(axis=1).max()]
        tokens, _ = session.run(None, {"source_ids": ids})
        assert found(tokens) == origin.expected[batch]
    served = SERVED[origin.name](origin.folder)
    tokenizer = origin.task.preprocessor.tokenizer
    begun = 1 if origin.name == "bart" else 0  # its sources begin with a special token
    read = [origin.model.hub_ids(row).tolist()[begun:] for row in served.tokenizer.encode(LINES)]
    assert read == [np.asarray(tokenizer(line)).tolist() for line in LINES]
    written = [[id for id in row if id != 3] for row in origin.expected[-len(LINES) :]]
    texts = [tokenizer.detokenize(origin.model.hub_ids(row).tolist()) for row in written]
    results = served.translate(LINES) if origin.name == "bart" else served.generate(LINES)
    assert results == texts and any(texts)


SEARCHES = {"bart": kt.BeamSearch(3), "gemma": kt.Sampling(seed=3, num_samples=2)}


@pytest.mark.parametrize("name", tiers.quick(SEARCHES, nightly=["gemma"]))
def test_scores_of_other_searches_equal_the_forward_pass(name, origins):
    """The forward pass has no cache, so it checks how the search reorders its cache."""
    origin, search = origins(name), SEARCHES[name]
    prompts = origin.prompts[:13]
    result = search(origin.model, prompts, NEW)
    task = SearchTask(origin.model, search, NEW)
    expected = task.forced({"source_ids": prompts}, np.asarray(result.ids)).scores
    np.testing.assert_allclose(result.scores, expected, rtol=1e-4, atol=1e-4)
    assert (np.asarray(result.ids)[:, 0] != np.asarray(result.ids)[:, 1]).any(axis=1).mean() > 0.9


POLICIES = {"gpt2": "mixed_float16", "gemma": "mixed_bfloat16", "bart": "mixed_float16"}


@pytest.mark.full
@pytest.mark.parametrize("name", tiers.quick(POLICIES, nightly=["bart", "gemma"]))
def test_a_model_of_mixed_precision_with_frozen_embeddings_is_exported_in_float32(name, tmp_path):
    make, policy = getattr(hub_tasks, name), POLICIES[name]
    task, before = hub_tasks.drawn(make, policy), hub_tasks.drawn(make)
    task.backbone.token_embedding.trainable = False
    task.compile(run_eagerly=True)  # two steps: tracing would take longer
    lines = {"encoder_text": LINES, "decoder_text": LINES} if name == "bart" else LINES
    task.fit(lines, batch_size=2, epochs=1, shuffle=False, verbose=0)
    moved = [
        weight.path
        for weight, old in zip(task.weights, before.weights, strict=True)
        if not np.array_equal(weight, old)
    ]
    assert moved and "token_embedding/embeddings" not in moved
    model = keras_hub.load_model(task)
    with hub_tasks.dtype_policy(policy):  # as users set it globally
        plain = as_float32(model)
    found = {layer.compute_dtype for layer in plain.task.backbone._flatten_layers()}
    assert found == {"float32"}
    assert (task.compute_dtype, plain.task.compute_dtype) == (policy[6:], "float32")
    for weight, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight, other)
    ids = hub_tasks.prompts(model, rows=5)
    inputs = {"source_ids": ids, "target_ids": ids} if name == "bart" else ids
    mixed, exact = (np.asarray(kind(inputs))[ids > 0][:, 4:] for kind in (model, plain))
    rounding = np.sqrt(np.mean((mixed - exact) ** 2)) / exact.std()
    assert 1e-5 < rounding < 0.2  # a number has 8 or 11 bits in Keras
    search = kt.BeamSearch(2)
    export_onnx(model, tmp_path / "out", search=search, max_length=5, verbose=False)
    tokens, scores = exports.session(tmp_path / "out").run(None, {"source_ids": ids})
    again = SearchTask(plain, search, 5).forced({"source_ids": ids}, tokens).scores
    np.testing.assert_allclose(scores, again, rtol=1e-4)


@pytest.mark.full
def test_llama_without_a_tokenizer():
    task = hub_tasks.drawn(hub_tasks.llama)
    model = keras_hub.load_model(task, begin_id=1, end_id=2, unknown_id=0)
    prompts = hub_tasks.prompts(model)
    assert found(kt.GreedySearch()(model, prompts, NEW).ids) == hub_tasks.generated(model, prompts)


@pytest.mark.full
def test_a_saved_model_includes_its_task(origins, tmp_path):
    origin = origins("gpt2")
    origin.model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(origin.model) and again.task is not origin.task
    np.testing.assert_array_equal(again.order, origin.model.order)
    ids = origin.prompts[:5]
    np.testing.assert_array_equal(again(ids), origin.model(ids))
    assert keras_hub.load(again.task)[1].encode(LINES) == origin.tokenizer.encode(LINES)


def test_a_preset_is_loaded_from_its_folder(tmp_path):
    task = hub_tasks.drawn(hub_tasks.bart)
    task.save_to_preset(str(tmp_path / "preset"))
    model, tokenizer = keras_hub.load(tmp_path / "preset")
    assert isinstance(model, hub_model.HubSeq2SeqModel) and model.start == [2, 0]
    np.testing.assert_array_equal(model.start_ids(np.ones((2, 3))), [[3, 2], [3, 2]])
    np.testing.assert_array_equal(
        model.task.backbone.token_embedding.embeddings, task.backbone.token_embedding.embeddings
    )
    assert tokenizer.encode("the")[0] == 2


def test_ids_of_a_model_without_padding():
    """GPT-2's id 0 is a token like any other, though its tokenizer pads with it."""
    model = keras_hub.load_model(hub_tasks.gpt2())
    assert model.order[:5].tolist() == [-1, -1, 1, 1, 0] and model.pad_id is None
    np.testing.assert_array_equal(model.our_ids([[0, 1, 2]]), [[4, 3, 5]])
    np.testing.assert_array_equal(model.hub_ids([[4, 3, 2, 5]]), [[0, 1, 1, 2]])
    logits = np.asarray(model(np.array([[2, 5, 7]])))
    assert (logits[..., :3] < -1e3).all() and (logits[..., 3:] > -1e3).all()
    of_pieces = keras_hub.load_model(hub_tasks.gemma())
    assert of_pieces.order[:5].tolist() == [0, 3, 2, 1, 4]


def test_a_sequence_to_sequence_task_without_a_preprocessor():
    task = bare(hub_tasks.bart)()
    model = keras_hub.load_model(task, begin_id=0, end_id=2, pad_id=1)
    assert model.start == [0]
    model = keras_hub.load_model(task, end_id=2, start=[2, 0])
    assert model.start == [2, 0] and model.begin_id == 0 and model.pad_id is None


class Other(hub.models.CausalLM):
    def __init__(self):
        backbone = hub_tasks.gpt2().backbone
        self.backbone, self.preprocessor = backbone, None
        super().__init__(inputs=backbone.input, outputs=backbone(backbone.input))


class Stateful(Other):
    def call_with_cache(self, token_ids, cache):
        raise NotImplementedError


def classifier():
    return hub.models.BertTextClassifier(hub.models.BertBackbone(11, 1, 2, 4, 8), 3)


def bare(make):
    """Returns a function that makes a task without a preprocessor."""

    def made():
        task = make()
        task.preprocessor = None
        return task

    return made


def without_workflow():
    task = hub_tasks.gpt2()
    vocabulary = hub_tasks.byte_pairs("!", "<|endoftext|>")
    inside = hub.models.GPT2Tokenizer(**vocabulary, _allow_python_workflow=False)
    task.preprocessor = hub.models.GPT2CausalLMPreprocessor(inside)
    return task


LLAMA, BART = bare(hub_tasks.llama), bare(hub_tasks.bart)


@pytest.mark.parametrize(
    "make, load, options, message",
    [
        (classifier, "load_model", {}, "but is BertTextClassifier"),
        (lambda: hub_tasks.gpt2().backbone, "load_model", {}, "but is GPT2Backbone"),
        (object, "load_model", {}, "but is object"),
        (Other, "load_model", {"end_id": 1}, "another kind of cache"),
        (Stateful, "load_model", {"end_id": 1}, "another kind of cache"),
        *((task, "load_model", {}, "Pass end_id and begin_id") for task in (LLAMA, BART)),
        *(
            (task, "load_model", {"begin_id": 1, "end_id": 999}, "not among")
            for task in (LLAMA, BART)
        ),
        (LLAMA, "load", {"begin_id": 1, "end_id": 2}, "no preprocessor and so no tokenizer"),
        (BART, "load", {"begin_id": 1, "end_id": 2}, "no preprocessor and so no tokenizer"),
        (without_workflow, "load", {}, "GPT2Tokenizer is neither"),
    ],
)
def test_other_tasks_are_refused(make, load, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(keras_hub, load)(make(), **options)


def test_without_keras_hub_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(ImportError, match="pip install keras-hub"):
        keras_hub.load_model("gpt2_base_en")
