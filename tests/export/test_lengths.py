"""Lengths that a model has no positions for are refused by an export and by its file."""

import keras
import pytest

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.runtime import Generator

TOKENIZER = kt.Tokenizer.train(["a b c d e f"] * 9, 268, hard_vocab_limit=False)
POSITIONS = kt.LearnedPositionEncoding(max_length=7)
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "positions": POSITIONS}
GREEDY = kt.GreedySearch()


def language_model():
    return kt.CausalTransformer(TOKENIZER.vocab_size, **SIZES)


def translator():
    return kt.Transformer(TOKENIZER.vocab_size, **SIZES)


def encoder():
    return kt.TransformerEncoder(TOKENIZER.vocab_size, **SIZES)


REFUSED = {
    "source": (language_model, GREEDY, {"max_source_length": 8}, "model reads at most 7"),
    "source of a pair": (translator, GREEDY, {"max_source_length": 8}, "model reads at most 7"),
    "source of an encoder": (encoder, None, {"max_source_length": 8}, "model reads at most 7"),
    "output": (language_model, GREEDY, {"max_length": 8}, "has positions for 7"),
    "output of a pair": (translator, GREEDY, {"max_length": 8}, "has positions for 7"),
    "least output": (translator, kt.BeamSearch(2, min_length=8), {}, "min_length is 8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_export_refuses_lengths_without_positions(name, tmp_path):
    make, search, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        export_onnx(make(), tmp_path / "out", TOKENIZER if search else None, search, **options)
    assert not (tmp_path / "out").exists()


def test_a_saved_model_refuses_an_output_without_positions(tmp_path):
    with pytest.raises(ValueError, match="has positions for 7"):
        export_saved_model(language_model(), tmp_path / "out", TOKENIZER, GREEDY, max_length=8)


def test_the_file_knows_its_positions(tmp_path):
    options = {"max_length": 7, "max_source_length": 7, "verbose": False}
    search = kt.GreedySearch(min_length=1)
    manifest = export_onnx(
        language_model(), tmp_path, TOKENIZER, search, options=["min_length"], **options
    )
    assert manifest["limits"]["source_length"] == manifest["limits"]["target_length"] == 7
    generator = Generator(tmp_path)
    assert len(generator.n_best(["a"], min_length=7, max_length=7)) == 1
    with pytest.raises(ValueError, match="min_length must be at least 0 and at most 7, got 8"):
        generator.n_best(["a"], min_length=8)


def test_an_export_names_what_is_wrong_with_a_search(tmp_path):
    for search, error, words in (
        (kt.BeamSearch, TypeError, r"the class BeamSearch was passed. Call it: BeamSearch\(\)"),
        (keras.Model(), TypeError, "Functional was passed|Model was passed"),
    ):
        with pytest.raises(error, match=words):
            export_onnx(translator(), tmp_path / "out", TOKENIZER, search)


@pytest.mark.full
def test_the_message_for_a_short_output_names_the_constraints(tmp_path):
    pattern = kt.Pattern(regex="[abc]{9}", tokenizer=TOKENIZER)
    model = kt.CausalTransformer(TOKENIZER.vocab_size, 1, d_model=8, num_heads=2, d_ff=16)
    search = kt.GreedySearch(constraints=[pattern])
    export_onnx(model, tmp_path, TOKENIZER, search, max_length=30, verbose=False)
    with pytest.raises(ValueError, match="at least .* constraints of the search allow no shorter"):
        Generator(tmp_path).generate(["a"], max_length=2)


def test_a_line_without_an_output_is_named():
    pattern = kt.Pattern(choices=["a"], tokenizer=TOKENIZER)
    model = kt.CausalTransformer(TOKENIZER.vocab_size, 1, d_model=8, num_heads=2, d_ff=16)
    search = kt.GreedySearch(constraints=[pattern])
    with pytest.warns(UserWarning, match="Line 0 has no output"):
        assert kt.generate(search, model, TOKENIZER, ["b"], min_length=20) == [""]
