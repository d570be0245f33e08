"""`kt.Model` around our layers has the checks of our own models; changes inside any model count."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.checks import numpy64
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import Classification, export_onnx

TEXTS, LABELS = ["a b", "c", "b a c", "c c"], ["x", "y", "x", "y"]
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
IDS, CLASSES = np.array([[2, 5, 7, 3], [2, 6, 3, 0]], "int32"), np.array([0, 1])


def trained(lines):
    return kt.Tokenizer.train(lines * 9, 268, hard_vocab_limit=False)


OWN, ALIEN = trained(["a b c", "d e f"]), trained(["u v w", "x y z"])
SIZE = OWN.vocab_size


def data(tokenizer):
    return kt.classification_batches(TEXTS, LABELS, tokenizer, tokens_per_batch=32)


def with_head(inputs, vectors, kind=kt.Model):
    return kind(inputs, keras.layers.Dense(2, name="head")(kt.SequencePooling()(vectors)))


def of_encoder(kind=kt.Model):
    encoder = kt.TransformerEncoder(SIZE, **SIZES)
    return with_head(encoder.input, encoder.output, kind)


def around_encoder(kind=kt.Model):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    return with_head(ids, kt.TransformerEncoder(SIZE, **SIZES)(ids), kind)


def of_a_side(kind=kt.Model):
    side = kt.Transformer(SIZE, **SIZES).encoder
    return with_head(side.input, side.output, kind)


def of_layers(kind=kt.Model):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    return with_head(ids, kt.EncoderBlock(2, 16)(kt.TokenEmbedding(SIZE, 8)(ids)), kind)


def of_two_towers(kind=kt.Model):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    towers = [kt.TransformerEncoder(SIZE, **SIZES, name=name)(ids) for name in ("one", "two")]
    return with_head(ids, keras.layers.Add()(towers), kind)


MAKERS = [of_encoder, around_encoder, of_a_side, of_layers, of_two_towers]
makers = pytest.mark.parametrize("make", quick(MAKERS, around_encoder))


def fitted(model, *given):
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    model.fit(*(given or (IDS, CLASSES)), verbose=0)
    return model


@makers
def test_a_model_of_a_user_knows_its_tokenizer(make, tmp_path):
    model = fitted(make(), data(OWN))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        assert each.tokenizers == {"source": OWN.digest}
        for run in (each.fit, each.evaluate, each.predict):
            with pytest.raises(ValueError, match="another tokenizer"):
                run(data(ALIEN), verbose=0)
        with pytest.raises(ValueError, match="another tokenizer"):
            export_onnx(each, tmp_path / "out", ALIEN, head=Classification(["x", "y"]))
    np.testing.assert_array_equal(loaded(IDS), model(IDS))


@pytest.mark.full
@makers
def test_an_id_beyond_the_table_gives_one_sentence(make):
    model = fitted(make())
    with pytest.raises(ValueError, match=f"{SIZE}"):
        model.fit(np.array([[2, SIZE, 3, 0]] * 2), CLASSES, verbose=0)


EXTRA = {"source_ids": IDS, "segment_ids": IDS}
UNREAD = r"'segment_ids'\].* would have no effect"


@makers
def test_data_that_the_model_does_not_read_is_refused(make):
    model = fitted(make())
    for run in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=UNREAD):
            run(EXTRA, CLASSES, verbose=0)
        with pytest.raises(ValueError, match=UNREAD):
            run(tf.data.Dataset.from_tensors((EXTRA, CLASSES)), verbose=0)
    with pytest.raises(ValueError, match=UNREAD):
        model.predict(EXTRA, verbose=0)
    with pytest.raises(ValueError, match=UNREAD):
        model.fit(IDS, CLASSES, validation_data=(EXTRA, CLASSES), verbose=0)


@pytest.mark.full
def test_inputs_are_known_by_the_keys_of_a_dict():
    ids = keras.Input((None,), dtype="int32", name="text")
    pooled = kt.SequencePooling()(kt.TransformerEncoder(SIZE, **SIZES)(ids))
    model = fitted(kt.Model({"text": ids}, keras.layers.Dense(2)(pooled)), {"text": IDS}, CLASSES)
    with pytest.raises(ValueError, match="the model reads .'text'"):
        model.fit({"text": IDS, "some_ids": IDS}, CLASSES, verbose=0)


def test_pairs_for_a_language_model_are_refused():
    model = kt.CausalTransformer(SIZE, **SIZES)
    model.compile("adam", kt.SequenceCrossentropy())
    with pytest.raises(ValueError, match="the model reads .'target_ids'"):
        model.fit(kt.translation_batches(TEXTS, TEXTS, OWN), verbose=0)


@pytest.mark.parametrize("kind", [kt.CausalTransformer, kt.TransformerEncoder])
def test_a_row_beyond_the_positions_gives_one_sentence(kind):
    positions = kt.LearnedPositionEncoding(max_length=3)
    inner = kind(SIZE, **SIZES, positions=positions)
    model = inner
    if kind is kt.TransformerEncoder:
        model = with_head(inner.input, inner.output)
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    labels = IDS if model is inner else CLASSES
    for run in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="3 learned positions|max_length=3 tokens only"):
            run(IDS, labels, verbose=0)


@makers
@pytest.mark.parametrize("kind", quick([kt.Model, keras.Model], keras.Model))
def test_updates_inside_a_trained_model_need_a_new_compile(make, kind):
    model, other = fitted(make(kind)), fitted(of_layers(keras.Model))
    kt.Model(model.input, model.output).enable_lora(2)
    with pytest.raises(ValueError, match="compile"):
        model.fit(IDS, CLASSES, verbose=0)
    other.fit(IDS, CLASSES, verbose=0)  # shares no layer with it
    before = [numpy64(weight) for weight in model.weights]
    fitted(model)
    pairs = zip(model.weights, before, strict=True)
    changed = [weight.path for weight, value in pairs if (numpy64(weight) != value).any()]
    assert changed and all("lora" in path for path in changed)


@pytest.mark.full
@makers
def test_recomputed_blocks_inside_a_trained_model_need_a_new_compile(make):
    model = fitted(make(keras.Model))
    kt.recompute(keras.Model(model.input, model.output))
    with pytest.raises(ValueError, match="compile"):
        model.fit(IDS, CLASSES, verbose=0)
    fitted(model)


@makers
@pytest.mark.parametrize("state", quick([False, True], False))
def test_layers_frozen_after_a_step_was_traced_need_a_new_compile(make, state):
    model = make()
    layer = next(each for each in model.layers if each.weights)
    layer.trainable = not state
    fitted(model)
    layer.trainable = state
    with pytest.raises(ValueError, match="before trainable changed .*model.compile"):
        model.fit(IDS, CLASSES, verbose=0)
    before = [numpy64(weight) for weight in layer.weights]
    fitted(model)
    pairs = zip(layer.weights, before, strict=True)
    assert any((numpy64(weight) != value).any() for weight, value in pairs) == state


@pytest.mark.full("True")
@pytest.mark.parametrize("fits", [False, True])
def test_layers_of_a_loaded_model_that_were_frozen_need_a_new_compile(fits, tmp_path):
    model = of_encoder()
    model.get_layer("token_embedding").trainable = False
    fitted(model).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    if fits:
        loaded.fit(IDS, CLASSES, verbose=0)
    loaded.get_layer("token_embedding").trainable = True
    with pytest.raises(ValueError, match="(before|step was made).* trainable.*model.compile again"):
        loaded.fit(IDS, CLASSES, verbose=0)
    before = numpy64(loaded.get_layer("token_embedding").weights[0])
    fitted(loaded)
    assert (numpy64(loaded.get_layer("token_embedding").weights[0]) != before).any()


def test_layers_frozen_before_the_first_step_are_frozen():
    model = of_encoder()
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    embedding = model.get_layer("token_embedding")
    embedding.trainable = False
    before = numpy64(embedding.weights[0])
    model.fit(IDS, CLASSES, verbose=0)
    assert (numpy64(embedding.weights[0]) == before).all()


def test_a_step_without_a_graph_sees_a_layer_that_was_frozen():
    model = of_encoder()
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1), run_eagerly=True)
    model.fit(IDS, CLASSES, verbose=0)
    model.get_layer("token_embedding").trainable = False
    before = numpy64(model.get_layer("token_embedding").weights[0])
    model.fit(IDS, CLASSES, verbose=0)
    assert (numpy64(model.get_layer("token_embedding").weights[0]) == before).all()
