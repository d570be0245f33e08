"""`kt.generate` and `kt.translate` give the tokens of the exported model, and take its options."""

import functools

import numpy as np
import pytest
from helpers import exports, tiers

import keras_transformer as kt
from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.padding import pad_rows

PROMPTS = ["a man", "two words", "", "the dog runs", "a", "  "]
TOKENIZER = exports.tokenizer()


@pytest.mark.full("search0")
@pytest.mark.parametrize("search", [exports.GREEDY, tiers.full(exports.BEAM), exports.SAMPLING])
def test_generate_continues_prompts_as_the_exported_model(search):
    generator = Generator(exports.artefact(search, "generate"), threads=1)
    seed = {"seed": 5} if isinstance(search, kt.Sampling) else {}
    expected = generator.generate(PROMPTS, **seed)
    given = search, exports.shared_model("generate"), TOKENIZER
    options = {"max_length": exports.MAX_LENGTH, **seed}
    assert kt.generate(*given, PROMPTS, **options) == expected
    assert expected[2] == expected[5] == "" and len(set(expected)) > 2
    # One prompt a batch, and prompts in another order.
    assert kt.generate(*given, PROMPTS, 1, **options) == expected
    assert kt.generate(*given, PROMPTS[::-1], **options)[::-1] == expected


@pytest.mark.parametrize("kind", ["generate", "translate"])
def test_a_text_ends_as_in_the_runtime(kind):
    function, model = getattr(kt, kind), exports.shared_model(kind)
    search, ends = kt.GreedySearch(), ["", "\n", "\r\n", "\0", "\0 dog\n"]
    (expected, *others) = function(search, model, TOKENIZER, [f"a man{end}" for end in ends], 99)
    assert expected and others == [expected] * 4
    assert function(search, model, TOKENIZER, [b"a man"], 99) == [expected]
    assert TOKENIZER.encode("a man\0 dog") != TOKENIZER.encode("a man")
    for wrong, error in ((5, TypeError), (b"\xff", ValueError), ("\ud800", ValueError)):
        with pytest.raises(error):
            function(search, model, TOKENIZER, [wrong])


@pytest.mark.full
@pytest.mark.parametrize("layout", ["loop", "steps"])
def test_an_exported_seed_is_the_default_of_a_call(layout):
    search = kt.Sampling(1.5, seed=5, num_samples=2)
    generator = Generator(exports.artefact(search, "generate", layout=layout), threads=1)
    options = {"max_length": exports.MAX_LENGTH}
    given = search, exports.shared_model("generate"), TOKENIZER, PROMPTS
    expected = kt.generate(*given, **options)
    assert generator.generate(PROMPTS) == generator.generate(PROMPTS, seed=5) == expected
    assert kt.generate(*given, **options, seed=6) == generator.generate(PROMPTS, seed=6) != expected
    if layout == "steps":
        assert ["".join(generator.stream(prompt)) for prompt in PROMPTS] == expected


@pytest.mark.full
def test_translators_sample_as_keras():
    translator = Translator(exports.artefact(exports.SAMPLING, layout="steps"), threads=1)
    options = {"max_length": exports.MAX_LENGTH, "seed": 5}
    expected = kt.translate(exports.SAMPLING, exports.tiny(), TOKENIZER, PROMPTS, **options)
    assert translator.translate(PROMPTS, seed=5) == expected
    assert translator.translate(PROMPTS[::-1], 1, seed=5)[::-1] == expected
    assert ["".join(translator.stream(line, seed=5)) for line in PROMPTS] == expected


@pytest.mark.full
def test_a_search_without_seed_draws_one_for_all_prompts_of_a_call():
    given = kt.Sampling(num_samples=1), exports.shared_model("generate"), TOKENIZER
    for _ in range(2):
        one, two = kt.generate(*given, ["a man"] * 2, 1, max_length=9)
        assert one == two
    several = {kt.generate(*given, ["a"], max_length=9)[0] for _ in range(4)}
    assert len(several) > 1


LIMITS = [3, 5, 2, 7, 4, 6]  # one for each prompt


@pytest.mark.full
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
    assert found == function(search, model, TOKENIZER, PROMPTS, max_length=9, target_prefix="dog")
    for error, told, lines, options in (
        (
            ValueError,
            "max_length has 2 rows, but there are 6 lines",
            PROMPTS,
            {"max_length": [3, 4]},
        ),
        (TypeError, "has no max_lenght", PROMPTS, {"max_lenght": 3}),
        (ValueError, "rows of 1 to 2 ids", PROMPTS, {"target_prefix": [[5]] * 5 + [[5, 6]]}),
        (TypeError, r"Pass a list of strings, \[text\]", "a man", {}),
    ):
        with pytest.raises(error, match=told):
            function(search, model, TOKENIZER, lines, **options)


def test_options_take_texts_in_the_place_of_ids():
    model = exports.tiny()

    @functools.cache
    def search_with(*constraints):
        return kt.BeamSearch(2, constraints=list(constraints))

    def translated(constraints=(), **options):
        search = search_with(*constraints)
        return kt.translate(search, model, TOKENIZER, PROMPTS, max_length=9, **options)

    prefixes = ["dog", "", "a man", "red", "the", "dog"]
    ids = pad_rows(TOKENIZER.encode(prefixes))
    assert translated(target_prefix=prefixes) == translated(target_prefix=ids)
    assert translated(target_prefix=prefixes) != translated()
    words = ["f", "dog"]
    given = pad_rows(TOKENIZER.encode(words))[None]
    for constraint in (kt.ForbiddenWords(), kt.Terms()):
        (name,) = constraint.inputs
        expected = translated([constraint], **{name: given})
        assert translated([constraint], **{name: words}) == expected != translated()
        with pytest.raises(ValueError, match=f"no pieces for '' of {name}. Leave it out"):
            translated([constraint], **{name: ["dog", ""]})
    each = [["dog", "red"], [], [], ["a man"], [], ["dog"]]  # words of each line
    alone = [
        kt.translate(search_with(kt.Terms()), model, TOKENIZER, [line], max_length=9, terms=[*own])
        for line, own in zip(PROMPTS, each, strict=True)
    ]
    assert translated([kt.Terms()], terms=each) == [text for (text,) in alone]
    with pytest.raises(TypeError, match="reads token ids, but text was passed"):
        translated([kt.ForbiddenWords()], forbidden_words=[["dog", 5]] * 6)


SPACELESS = ["三十五二百二十一", "十二二三", "九銅十五銀", "二十銅"] * 20


@pytest.mark.parametrize("kind", ["char", "unigram", "bpe"])
def test_words_of_a_script_without_spaces_are_found_within_the_text(kind):
    tokenizer = kt.Tokenizer.train(SPACELESS, 290, model_type=kind, hard_vocab_limit=False)
    model = kt.Transformer(
        tokenizer.vocab_size, 1, d_model=8, num_heads=2, d_ff=16, output_bias=True
    )
    bias = np.zeros(tokenizer.vocab_size)
    bias[[tokenizer.pieces.index(piece) for piece in ("二", "銅", "▁")]] = 90, 80, 70
    model.get_layer("token_embedding").bias.assign(bias)

    def translated(constraint, **options):
        search = kt.BeamSearch(4, min_length=6, constraints=[constraint])
        return kt.translate(search, model, tokenizer, SPACELESS[:2], max_length=9, **options)

    assert translated(kt.ForbiddenWords()) == ["二" * 9] * 2
    assert translated(kt.ForbiddenWords(), forbidden_words=["二"]) == ["銅" * 9] * 2
    for text in translated(kt.Terms(), terms=["九", "銀"]):
        assert set(text) == {*"二九銀"}  # and no space


@pytest.mark.parametrize(
    "function, make, told",
    [
        (kt.translate, lambda one: one, r"translates none. Use kt\.generate\("),
        (kt.generate, lambda one: exports.tiny(), r"continues no text. Use kt\.translate\("),
        (kt.translate, lambda one: kt.Ensemble([one, one]), r"Use kt\.generate\("),
    ],
)
def test_each_function_names_the_other_for_the_other_kind_of_model(function, make, told):
    with pytest.raises(ValueError, match=told):
        function(exports.GREEDY, make(exports.shared_model("generate")), TOKENIZER, PROMPTS)
