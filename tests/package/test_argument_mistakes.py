"""Arguments in each other's place, names of files as text, ranges: the errors name the cure."""

import inspect

import pytest

import keras_transformer as kt
from keras_transformer.call_options import check_option

LINES = ["a b", "c d"]
TOKENIZER = kt.Tokenizer.train(LINES * 9, 300, hard_vocab_limit=False)
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
SEARCH = kt.GreedySearch()


@pytest.fixture(scope="module")
def models():
    return {
        kt.translate: kt.Transformer(TOKENIZER.vocab_size, **SIZES),
        kt.generate: kt.CausalTransformer(TOKENIZER.vocab_size, **SIZES),
    }


SWAPPED = {
    "model first": (("model", "search", "tokenizer", "lines"), "search must be a search"),
    "tokenizer first": (("tokenizer", "search", "model", "lines"), "search must be a search"),
    "lines before tokenizer": (("search", "model", "lines", "tokenizer"), "must be a Tokenizer"),
    "tokenizer before model": (("search", "tokenizer", "model", "lines"), "must be a Tokenizer"),
    "two searches": (("search", "search", "tokenizer", "lines"), "model must be a model"),
    "lines second": (("search", "lines", "model", "tokenizer"), "model must be a model"),
    "a search as tokenizer": (("search", "model", "search", "lines"), "must be a Tokenizer"),
    "a model as tokenizer": (("search", "model", "model", "lines"), "must be a Tokenizer"),
}


@pytest.mark.parametrize("function", [kt.translate, kt.generate])
@pytest.mark.parametrize("name", SWAPPED)
def test_swapped_arguments_of_translate_and_generate_are_named(name, function, models):
    order, message = SWAPPED[name]
    given = {"search": SEARCH, "model": models[function], "tokenizer": TOKENIZER, "lines": LINES}
    with pytest.raises(TypeError, match=message):
        function(*(given[each] for each in order))


BATCHES = {
    kt.translation_batches: (LINES, LINES),
    kt.language_model_batches: (LINES,),
    kt.classification_batches: (LINES, [0, 1]),
    kt.tagging_batches: ([["a"], ["b"]], [["X"], ["Y"]]),
    kt.pair_batches: (LINES, LINES),
    kt.answer_batches: (LINES, LINES, [(0, 1), (0, 1)]),
}


@pytest.mark.parametrize("function", BATCHES)
def test_a_tokenizer_in_the_first_place_of_batches_is_named(function):
    with pytest.raises(TypeError, match="tokenizer must be a Tokenizer, but .*order of the arg"):
        function(TOKENIZER, *BATCHES[function])


def test_each_function_of_batches_is_in_the_table():
    names = {name for name in kt.__all__ if name.endswith("_batches")}
    optional = {"feature_batches", "image_batches", "speech_batches"}  # or checked
    assert {function.__name__ for function in BATCHES} == names - optional
    for function in BATCHES:
        assert "tokenizer" in inspect.signature(function).parameters


@pytest.mark.parametrize(
    "read",
    [
        lambda path: kt.Tokenizer.train([path], 300),
        lambda path: kt.translation_batches([path], [path], TOKENIZER),
        lambda path: kt.pair_batches([path], [path], TOKENIZER),
        lambda path: kt.language_model_batches([path], TOKENIZER),
        lambda path: kt.language_model_batches([path], TOKENIZER, window=2),
    ],
)
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_the_name_of_a_file_is_no_training_text(read, kind, tmp_path):
    (tmp_path / "train.en").write_text("a b\n")
    with pytest.raises(ValueError, match=r"is the name of a file. Read it with .*read_lines"):
        read(kind(tmp_path / "train.en"))


@pytest.mark.parametrize(
    "read",
    [
        lambda path: kt.translation_batches(path, path, TOKENIZER),
        lambda path: kt.language_model_batches(path, TOKENIZER),
        kt.read_lines,
    ],
)
def test_a_missing_text_file_is_named_with_the_folder(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"no such text file in {tmp_path}.*'nope.en'"):
        read("nope.en")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 0, "temperature must be above 0 and finite, got 0.*GreedySearch"),
        ("temperature", float("inf"), "temperature must be above 0 and finite, got inf"),
        ("repetition_penalty", 0.0, "repetition_penalty must be above 0 and finite"),
        ("top_p", 0, "top_p must be above 0 and at most 1, got 0"),
        ("top_p", 1.5, "top_p must be above 0 and at most 1, got 1.5"),
        ("length_penalty", -1, "length_penalty must be at least 0 and finite, got -1"),
        ("length_penalty", float("nan"), "length_penalty must be at least 0 and finite, got nan"),
        ("max_length", 0, "max_length must be at least 1 and at most 2147483647, got 0"),
        ("seed", -1, "seed must be at least 0 and at most 2147483646, got -1"),
    ],
)
def test_the_error_of_an_option_gives_its_range_in_words(name, value, message):
    with pytest.raises(ValueError, match=message):
        check_option(name, value)


def test_a_decoder_on_an_encoder_is_sent_to_the_model_that_can_be_searched():
    import keras

    vectors = keras.Input((None, 8))
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.TokenEmbedding(29, 8)
    model = keras.Model(
        [vectors, ids], embedding.logits(kt.DecoderBlock(2, 16)(embedding(ids), vectors))
    )
    with pytest.raises(TypeError, match=r"use Transformer\(encoder=\.\.\.\)"):
        SEARCH(model, [[5]])
