"""GPT-2 folders: logits and searches against `transformers`, in Keras and in ONNX Runtime.

Shapes: B batch, T length, U their vocabulary, V ours.
"""

import functools
import itertools
import shutil

import keras
import numpy as np
import pytest
from helpers import exports, published, tiers
from helpers.published import torch, transformers

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.importers import gpt2
from keras_transformer.padding import pad_rows

SIZES = {"vocab_size": 41, "n_positions": 29, "n_embd": 16, "n_layer": 2, "n_head": 2}
VARIANTS = {
    "as GPT-2": {"bos_token_id": 40, "eos_token_id": 40},
    "other ids": {
        "bos_token_id": 3,
        "eos_token_id": 0,
        "activation_function": "relu",
        "n_inner": 24,
        "tie_word_embeddings": False,
    },
}
MAX_LENGTH = 12


class Origin:
    """A model of `transformers`, its folder, and the imported model."""

    def __init__(self, folder, options):
        self.folder, self.config = folder, transformers.GPT2Config(**SIZES, **options)
        self.model = published.drawn(transformers.GPT2LMHeadModel(self.config))
        self.model.save_pretrained(folder)
        self.ours = gpt2.load_model(folder)
        (self.order,) = gpt2.row_orders(folder)

    def generate(self, prompts, beams, words=(), **options):
        """Returns our ids that `transformers` writes, a list per prompt. It needs left padding."""
        left = np.array([np.roll(row, (row == 0).sum()) for row in prompts])
        never = [[id] for id in {self.config.bos_token_id} - {self.config.eos_token_id}]
        never += [[int(self.order[id]) for id in word] for word in words]
        with torch.no_grad():
            generated = self.model.generate(
                input_ids=published.theirs(self.order, left),
                attention_mask=published.mask(left),
                max_new_tokens=MAX_LENGTH,
                num_beams=beams,
                do_sample=False,
                pad_token_id=self.config.eos_token_id,
                bad_words_ids=never or None,
                **({"length_penalty": 0.0} if beams > 1 else {}),
                **options,
            )
        return published.tokens(self.order, generated[:, left.shape[1] :], end=3)


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """Returns a function from the name of a variant to its `Origin`, made once."""
    folder = tmp_path_factory.mktemp("gpt2")
    return functools.cache(lambda name: Origin(folder / name, VARIANTS[name]))


@pytest.fixture(params=VARIANTS)
def origin(request, origins):
    return origins(request.param)


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_equal_transformers(origin, side):
    target = published.ids(len(origin.order), rows=7, side=side, end=False)
    with torch.no_grad():
        expected = origin.model(
            input_ids=published.theirs(origin.order, target),
            attention_mask=published.mask(target),
            position_ids=torch.arange(target.shape[1])[None].expand(*target.shape),
        ).logits.numpy()
    logits = np.asarray(origin.ours(target))
    counted = [row for row in range(logits.shape[2]) if logits[0, 0, row] > gpt2.NEVER / 2]
    assert sorted(origin.order[counted]) == list(range(41))  # each of theirs once
    expected = expected[..., origin.order[counted]]
    assert published.relative(logits[target > 0][:, counted], expected[target > 0]) <= 1e-5


@pytest.mark.parametrize(
    "variant, beams", tiers.quick(itertools.product(VARIANTS, (1, 4)), ("other ids", 4))
)
def test_searches_equal_generate(origins, variant, beams):
    origin = origins(variant)
    prompts = published.ids(len(origin.order), end=False)
    search = kt.GreedySearch() if beams == 1 else kt.BeamSearch(beams, length_penalty=0.0)
    ours = published.found(search(origin.ours, prompts, MAX_LENGTH).ids)
    assert ours == origin.generate(prompts, beams)
    assert len(set(map(tuple, ours))) > 5


def test_a_saved_model_is_loaded_and_trains(origins, tmp_path):
    origin = origins("as GPT-2")
    prompts = published.ids(len(origin.order), rows=7, end=False)
    origin.ours.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model(prompts), origin.ours(prompts))
    model.get_layer("token_embedding").trainable = False
    model.compile("sgd", loss=kt.SequenceCrossentropy(label_smoothing=0.1), run_eagerly=True)
    loss = model.fit(prompts, np.roll(prompts, -1, axis=1), verbose=0).history["loss"][0]
    assert loss < 100  # label smoothing over forbidden ids costs little


@pytest.mark.full
def test_onnx_runtime_equals_generate(origins, tmp_path):
    origin, options = origins("as GPT-2"), {"max_length": MAX_LENGTH, "verbose": False}
    export_onnx(origin.ours, tmp_path / "onnx", search=kt.GreedySearch(), **options)
    prompts = published.ids(len(origin.order), end=False)
    token_ids, _ = exports.session(tmp_path / "onnx").run(None, {"source_ids": prompts})
    assert published.found(token_ids) == origin.generate(prompts, 1)


@pytest.mark.full
def test_rules_equal_generate_in_keras_and_in_onnx_runtime(origins, tmp_path):
    """The penalty is greedy only: beams of `transformers` scale log-probabilities, not logits."""
    origin = origins("other ids")
    random = np.random.default_rng(3)
    prompts = random.integers(4, len(origin.order), size=(97, 5)).astype("int32")
    prompts[:, 0] = 2  # the begin token
    free = origin.generate(prompts, 1)
    words = [free[0][:1], free[1][:2], free[2][1:4]]
    rules = [kt.NoRepeatNgrams(2), kt.ForbiddenWords(words[:1])]
    theirs = {"no_repeat_ngram_size": 2, "min_new_tokens": 4, "words": words}
    ours = {"forbidden_words": pad_rows(words[1:])[None], "min_length": np.array([5], "int32")}
    search = kt.BeamSearch(3, length_penalty=0.0, constraints=rules)
    found = published.found(search(origin.ours, prompts, MAX_LENGTH, **ours).ids)
    assert found == origin.generate(prompts, 3, **theirs) != origin.generate(prompts, 3)
    search = kt.GreedySearch(constraints=[kt.RepetitionPenalty(1.0), *rules])
    penalty = np.array(1.3, "float32")
    result = search(origin.ours, prompts, MAX_LENGTH, repetition_penalty=penalty, **ours)
    expected = origin.generate(prompts, 1, repetition_penalty=1.3, **theirs)
    assert published.found(result.ids) == expected != free
    options = {"max_length": MAX_LENGTH, "options": ["min_length"], "verbose": False}
    export_onnx(origin.ours, tmp_path / "onnx", search=search, **options)
    inputs = {"source_ids": prompts, "repetition_penalty": penalty, **ours}
    token_ids, _ = exports.session(tmp_path / "onnx").run(None, inputs)
    assert published.found(token_ids) == expected


def test_names_without_the_head_are_read(origins, tmp_path):
    """The model was saved without its head, with the masks of old files."""
    origin = origins("as GPT-2")
    shutil.copy(origin.folder / "config.json", tmp_path)
    state = {**origin.model.transformer.state_dict(), "h.1.attn.bias": torch.ones((1, 1, 29, 29))}
    torch.save(state, tmp_path / "pytorch_model.bin")
    ids = published.ids(len(origin.order), rows=3, end=False)
    np.testing.assert_array_equal(gpt2.load_model(tmp_path)(ids), origin.ours(ids))


def test_a_missing_begin_token_is_named(tmp_path):
    transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=3).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks \['bos_token_id'\]"):
        gpt2.load_model(tmp_path)
