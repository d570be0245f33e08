"""`kt.generate` and `kt.translate` give the tokens of the exported model, and take its options."""

import numpy as np
import pytest
from helpers import exports, tiers

import keras_transformer as kt
from keras_transformer.export.runtime import Generator, Translator

PROMPTS = ["a man", "two words", "", "the dog runs", "a", "  "]
TOKENIZER = exports.tokenizer()


@pytest.fixture(scope="module")
def model():
    return exports.tiny("generate")


@pytest.mark.parametrize("search", [exports.GREEDY, tiers.full(exports.BEAM), exports.SAMPLING])
def test_generate_continues_prompts_as_the_exported_model(search, model):
    generator = Generator(exports.artefact(search, "generate"), threads=1)
    seed = {"seed": 5} if isinstance(search, kt.Sampling) else {}
    expected = generator.generate(PROMPTS, **seed)
    options = {"max_length": exports.MAX_LENGTH, **seed}
    assert kt.generate(search, model, TOKENIZER, PROMPTS, **options) == expected
    assert expected[2] == expected[5] == "" and len(set(expected)) > 2
    # One prompt a batch, and prompts in another order.
    assert kt.generate(search, model, TOKENIZER, PROMPTS, 1, **options) == expected
    turned = kt.generate(search, model, TOKENIZER, PROMPTS[::-1], **options)
    assert turned[::-1] == expected


def test_translators_sample_as_keras():
    translator = Translator(exports.artefact(exports.SAMPLING, layout="steps"), threads=1)
    expected = translator.translate(PROMPTS, seed=5)
    options = {"max_length": exports.MAX_LENGTH, "seed": 5}
    assert kt.translate(exports.SAMPLING, exports.tiny(), TOKENIZER, PROMPTS, **options) == expected
    assert translator.translate(PROMPTS[::-1], 1, seed=5)[::-1] == expected
    assert list(translator.translate_stream(PROMPTS, seed=5)) == expected
    assert ["".join(translator.stream(line, seed=5)) for line in PROMPTS] == expected
    samples = translator.n_best(PROMPTS, seed=5)
    assert [one.texts[0] for one in samples] == expected
    assert samples == list(translator.n_best_stream(PROMPTS, seed=5))
    assert len(samples[0].texts) == 2
    assert translator.translate(PROMPTS, seed=6) != expected
    assert len({translator.translate(["a man"])[0] for _ in range(4)}) > 1
    with pytest.raises(ValueError, match="seed must be at least 0"):
        translator.translate(PROMPTS, seed=-1)
    greedy = Translator(exports.artefact(exports.GREEDY), threads=1)
    with pytest.raises(ValueError, match="`seed` was passed, but this artefact"):
        greedy.translate(PROMPTS, seed=5)


def test_a_search_without_seed_draws_one_for_all_prompts_of_a_call(model):
    search = kt.Sampling(num_samples=1)
    for _ in range(2):
        one, two = kt.generate(search, model, TOKENIZER, ["a man"] * 2, 1, max_length=9)
        assert one == two
    several = {kt.generate(search, model, TOKENIZER, ["a"], max_length=9)[0] for _ in range(4)}
    assert len(several) > 1


LIMITS = [3, 5, 2, 7, 4, 6]  # one for each prompt


@pytest.mark.parametrize("kind", tiers.quick(["generate", "translate"], "translate"))
def test_an_option_may_have_one_row_for_each_line(kind):
    function, model = getattr(kt, kind), exports.tiny(kind)
    search = kt.GreedySearch()
    together = function(search, model, TOKENIZER, PROMPTS, 5, max_length=LIMITS)
    alone = [
        function(search, model, TOKENIZER, [prompt], max_length=limit)[0]
        for prompt, limit in zip(PROMPTS, LIMITS, strict=True)
    ]
    assert together == alone
    assert together != function(search, model, TOKENIZER, PROMPTS, max_length=2)
    prefix = np.array(TOKENIZER.encode(["dog"]))
    found = function(search, model, TOKENIZER, PROMPTS, max_length=9, target_prefix=prefix)
    assert all("dog" in text for text, prompt in zip(found, PROMPTS, strict=True) if prompt.strip())
    with pytest.raises(ValueError, match="max_length has 2 rows, but there are 6 lines"):
        function(search, model, TOKENIZER, PROMPTS, max_length=[3, 4])
    with pytest.raises(TypeError, match="has no max_lenght"):
        function(search, model, TOKENIZER, PROMPTS, max_lenght=3)
    with pytest.raises(TypeError, match=r"Pass a list of strings, \[text\]"):
        function(search, model, TOKENIZER, "a man")


def test_each_function_names_the_other_for_the_other_kind_of_model(model):
    translator = exports.tiny("translate")
    with pytest.raises(ValueError, match=r"translates none. Use kt\.generate\("):
        kt.translate(exports.GREEDY, model, TOKENIZER, PROMPTS)
    with pytest.raises(ValueError, match=r"continues no text. Use kt\.translate\("):
        kt.generate(exports.GREEDY, translator, TOKENIZER, PROMPTS)
    with pytest.raises(ValueError, match=r"Use kt\.generate\("):
        kt.translate(exports.GREEDY, kt.Ensemble([model, model]), TOKENIZER, PROMPTS)
