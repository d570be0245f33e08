"""A model knows the tokenizer that it was trained with, and refuses others of the same size."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.export import (
    export_ctranslate2,
    export_marian,
    export_onnx,
    export_saved_model,
)
from keras_transformer.importers import marian
from keras_transformer.text.vocabularies import with_tokenizers

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config"),  # graphs read data sets
]
SOURCES, TARGETS = ["a b", "c"], ["d", "e f"]
SIZES = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
OTHER = "was trained with another tokenizer of the {}: its pieces have the digest"
SEARCH = kt.GreedySearch()


def trained(lines, **options):
    return kt.Tokenizer.train(lines * 9, 268, hard_vocab_limit=False, **options)


OWN, ALIEN = trained(["a b c", "d e f"]), trained(["u v w", "x y z"])
LARGE = kt.Tokenizer.train(["u v w x y z a b", "zx yv uw"] * 9, 290, hard_vocab_limit=False)


def batches(tokenizer=OWN, target=None):
    return kt.translation_batches(SOURCES, TARGETS, tokenizer, target_tokenizer=target)


def fitted(model, data):
    model.compile("sgd", kt.SequenceCrossentropy())
    model.fit(data, verbose=0, shuffle=False)
    return model


def translator():
    return fitted(kt.Transformer(OWN.vocab_size, **SIZES), batches())


def check(model, own=OWN, other=ALIEN, side="source", **options):
    """Asserts that a model translates with its tokenizer, and refuses another one."""
    options["max_length"] = 2
    assert len(kt.translate(SEARCH, model, own, SOURCES, **options)) == 2
    with pytest.raises(ValueError, match=OTHER.format(side)):
        kt.translate(SEARCH, model, other, SOURCES, **options)


def reloaded(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def from_weights(model, path):
    model.save_weights(path / "a.weights.h5")
    other = kt.Transformer(OWN.vocab_size, **SIZES)
    other.load_weights(path / "a.weights.h5")
    return other


COPIES = {
    "fit": lambda model, path: model,
    ".keras": reloaded,
    ".weights.h5": from_weights,
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "inside of another model": lambda model, path: reloaded(kt.Ensemble([model, model]), path),
}


@pytest.fixture(scope="module")
def model():
    return translator()


@pytest.mark.quick("pickle")
@pytest.mark.parametrize("name", COPIES)
def test_the_tokenizer_travels_with_the_weights(name, model, tmp_path):
    check(COPIES[name](model, tmp_path))


DOORS = {
    "translate": lambda model, one, path: kt.translate(SEARCH, model, one, SOURCES, max_length=2),
    "export_onnx": lambda model, one, path: export_onnx(model, path / "a", one, SEARCH),
    "export_saved_model": lambda model, one, path: export_saved_model(
        model, path / "a", one, search=SEARCH
    ),
    "export_ctranslate2": lambda model, one, path: export_ctranslate2(model, path / "a", one),
    "fit": lambda model, one, path: model.fit(batches(one), verbose=0),
    "validation": lambda model, one, path: model.fit(
        batches(), validation_data=batches(one), verbose=0
    ),
    "evaluate": lambda model, one, path: model.evaluate(batches(one), verbose=0),
    "BleuCallback": lambda model, one, path: model.fit(
        batches(), callbacks=[kt.BleuCallback(SEARCH, one, SOURCES, TARGETS)], verbose=0
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_another_tokenizer_of_the_same_size(door, model, tmp_path):
    assert ALIEN.vocab_size == OWN.vocab_size
    with pytest.raises(ValueError, match=OTHER.format("source")):
        DOORS[door](model, ALIEN, tmp_path)
    assert not list(tmp_path.iterdir())


def choosing(tokenizer, search=kt.GreedySearch, **options):
    return search(constraints=[kt.Pattern(choices=["a", "b"], tokenizer=tokenizer)], **options)


class Own(kt.search.Constraint):
    """A constraint of the caller that knows the texts of ids."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def step(self, logits, past, state, known):
        return logits, state


def in_graph(model, one):
    return tf.function(lambda ids: choosing(one)(model, ids, 4).ids)(tf.constant([[5, 3]]))


def taught(one):
    teacher = fitted(kt.Transformer(OWN.vocab_size, **SIZES), batches(one))
    student = kt.Transformer(OWN.vocab_size, **SIZES)
    student.compile("sgd", kt.Distillation(teacher))
    student.fit(batches(), verbose=0)


def listed(model, one):
    every = kt.Shortlist(np.full((OWN.vocab_size, 1), 9), np.ones(OWN.vocab_size, bool))
    return choosing(one)(kt.search.Shortlisted(model, every), [[5, 3]], 4)


def other_member(one):
    return fitted(kt.Transformer(OWN.vocab_size, **SIZES), batches(one))


# What a search, a callback, an ensemble or a loss does with something that a tokenizer made.
MEETINGS = {
    "a pattern, greedy search": lambda model, one: choosing(one)(model, [[5, 3]], 4),
    "beam search": lambda model, one: choosing(one, kt.BeamSearch, beam_width=2)(
        model, [[5, 3]], 4
    ),
    "samples": lambda model, one: choosing(one, kt.Sampling)(model, [[5, 3]], 4, seed=1),
    "beside the right tokenizer": lambda model, one: kt.translate(
        choosing(one), model, OWN, SOURCES, max_length=4
    ),
    "in a graph": in_graph,
    "an ensemble searched": lambda model, one: choosing(one)(kt.Ensemble([model] * 2), [[5, 3]], 4),
    "a shortlist": listed,
    "own constraint": lambda model, one: kt.GreedySearch(constraints=[Own(one)])(
        model, [[5, 3]], 4
    ),
    "BleuCallback": lambda model, one: model.fit(
        batches(),
        callbacks=[kt.BleuCallback(choosing(one), OWN, SOURCES, TARGETS)],
        verbose=0,
    ),
    "a member of an ensemble": lambda model, one: kt.Ensemble([model, other_member(one)]),
    "a teacher": lambda model, one: taught(one),
}


FAST = ("a pattern, greedy search", "own constraint", "a member of an ensemble", "a teacher")


@pytest.mark.full("a member of an ensemble", "a teacher")
@pytest.mark.parametrize("name", quick(MEETINGS, *FAST))
def test_what_another_tokenizer_made_is_refused(name, model):
    meet = MEETINGS[name]
    meet(model, OWN)
    with pytest.raises(ValueError, match=OTHER.format("(source|target)")):
        meet(model, ALIEN)


@pytest.mark.parametrize("export", [export_onnx, export_saved_model])
def test_an_export_refuses_the_pattern_of_another_tokenizer(export, model, tmp_path):
    """Before it traces, where each error sounds like one of the model's layers."""
    for tokenizer, told in (
        (ALIEN, OTHER.format("target")),
        (LARGE, "^The tokenizer of the target has"),
    ):
        with pytest.raises(ValueError, match=told):
            export(model, tmp_path / "a", OWN, choosing(tokenizer), max_length=4)
    assert not list(tmp_path.iterdir())


ALIENS = {
    "other pieces": ALIEN,
    "another order of the pieces": trained(["d e f", "a b c c c"]),
    "no bytes": trained(["a b c", "d e f"], byte_fallback=False),
    "characters": trained(["a b c", "d e f"], model_type="char"),
    "byte pairs": trained(["a b c", "d e f"], model_type="bpe"),
}
SAME = {
    "itself": OWN,
    "trained again": trained(["a b c", "d e f"]),
    "a copy": pickle.loads(pickle.dumps(OWN)),
    "other normalization, same pieces": trained(["a b c", "d e f"], normalization="nfkc"),
}


@pytest.mark.parametrize("name", ALIENS)
def test_other_pieces_or_another_order_are_another_tokenizer(name, model):
    check(model, other=ALIENS[name])


@pytest.mark.parametrize("name", SAME)
def test_equal_pieces_are_the_same_tokenizer(name, model):
    check(model, SAME[name])


def test_json_tokenizers_have_a_digest_of_their_pieces():
    tokenizers = pytest.importorskip("tokenizers")
    texts = []
    for words in ("<pad> <unk> <s> </s> a b", "<pad> <unk> <s> </s> b a"):
        ids = {word: id for id, word in enumerate(words.split())}
        model = tokenizers.models.WordLevel(ids, unk_token="<unk>")
        texts.append(tokenizers.Tokenizer(model).to_str())
    from keras_transformer.text.json_tokenizer import JsonTokenizer

    one, same, other = (JsonTokenizer(text) for text in (texts[0], texts[0], texts[1]))
    assert one.digest == same.digest != other.digest
    assert one.pieces == ["<pad>", "<unk>", "<s>", "</s>", "a", "b"]


def test_each_side_has_its_own_tokenizer():
    sizes = {"target_vocab_size": ALIEN.vocab_size, **SIZES}
    two = fitted(kt.Transformer(OWN.vocab_size, **sizes), batches(OWN, ALIEN))
    check(two, other=ALIEN, target_tokenizer=ALIEN)
    figure = plots.plot_translation(two, OWN, SOURCES[0], TARGETS[1], target_tokenizer=ALIEN)
    assert len(figure.axes[0].get_yticklabels()) == len(ALIEN.encode(TARGETS[1])) + 1
    with pytest.raises(ValueError, match=OTHER.format("target")):
        kt.translate(SEARCH, two, OWN, SOURCES, target_tokenizer=OWN)
    with pytest.raises(ValueError, match="only one tokenizer was passed"):
        kt.translate(SEARCH, two, OWN, SOURCES)


def test_a_language_model_knows_its_tokenizer():
    data = kt.language_model_batches(SOURCES, OWN)
    model = fitted(kt.CausalTransformer(OWN.vocab_size, **SIZES), data)
    assert len(kt.generate(SEARCH, model, OWN, SOURCES, max_length=2)) == 2
    with pytest.raises(ValueError, match=OTHER.format("target")):
        kt.generate(SEARCH, model, ALIEN, SOURCES, max_length=2)


def test_a_head_on_an_encoder_knows_the_tokenizer_of_the_encoder(tmp_path):
    encoder = kt.TransformerEncoder(OWN.vocab_size, **SIZES)
    with_tokenizers(encoder, OWN)
    pooled = kt.SequencePooling()(encoder(encoder.input))
    model = reloaded(keras.Model(encoder.input, keras.layers.Dense(2)(pooled)), tmp_path)
    with pytest.raises(ValueError, match=OTHER.format("source")):
        export_onnx(model, tmp_path / "a", ALIEN)


def test_an_imported_encoder_in_a_translator_has_a_tokenizer_of_the_source_only():
    encoder, _ = with_tokenizers(kt.TransformerEncoder(OWN.vocab_size, **SIZES), OWN)
    assert LARGE.vocab_size > OWN.vocab_size
    two = kt.Transformer(LARGE.vocab_size, **SIZES, encoder=encoder)
    check(fitted(two, batches(OWN, LARGE)), target_tokenizer=LARGE)


def test_models_that_share_the_table_share_the_record():
    model = kt.Transformer(OWN.vocab_size, **SIZES)
    guided = kt.with_alignments(model)
    losses = {"logits": kt.SequenceCrossentropy(), "alignments": kt.AlignmentCrossentropy()}
    guided.compile("sgd", losses)
    data = kt.translation_batches(["a", "b"], ["c", "d"], OWN, alignments=["0-0", "0-0"])
    guided.fit(data, verbose=0, shuffle=False)
    assert model.tokenizers == guided.tokenizers == {"source": OWN.digest, "target": OWN.digest}


def with_new_decoder(model, tokenizer):
    return kt.Transformer(tokenizer.vocab_size, **SIZES, encoder=model.encoder)


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_a_new_decoder_on_a_trained_encoder_has_a_target_of_its_own(two_vocabularies, cleared):
    sizes = {"target_vocab_size": ALIEN.vocab_size} if two_vocabularies else {}
    target = ALIEN if two_vocabularies else OWN
    old = fitted(kt.Transformer(OWN.vocab_size, **sizes, **SIZES), batches(OWN, target))
    record = {"source": OWN.digest, "target": target.digest}
    new = with_new_decoder(old, LARGE)
    assert new.tokenizers == {"source": OWN.digest}
    if cleared:
        new.tokenizers = {}
    assert fitted(new, batches(OWN, LARGE)).tokenizers == {
        "source": OWN.digest,
        "target": LARGE.digest,
    }
    assert old.tokenizers == record
    check(new, target_tokenizer=LARGE)
    check(old, target_tokenizer=target)
    with pytest.raises(ValueError, match=OTHER.format("source")):
        new.fit(batches(ALIEN, LARGE), verbose=0)


def test_a_head_that_forgets_its_tokenizer_leaves_the_target_of_the_translator():
    model = translator()
    ids = keras.Input((None,), dtype="int32")
    vectors = kt.SequencePooling()(model.encoder(ids))
    head = kt.Model(ids, keras.layers.Dense(2)(vectors))
    head.tokenizers = {}
    assert model.tokenizers == {"target": OWN.digest}
    labelled = kt.classification_batches(SOURCES, ["x", "y"], OWN)
    head.compile("sgd", kt.SequenceCrossentropy(pad_id=-1))
    head.fit(labelled, verbose=0)
    check(model)


def test_layers_of_a_language_model_forget_its_tokenizer():
    language_model = kt.CausalTransformer(OWN.vocab_size, **SIZES)
    model = kt.Model(language_model.input, language_model.output)
    fitted(model, kt.language_model_batches(SOURCES, OWN))
    assert model.tokenizers == language_model.tokenizers == {"target": OWN.digest}
    model.tokenizers = {}
    assert model.tokenizers == language_model.tokenizers == {}


def test_members_of_an_ensemble_keep_their_targets_apart():
    old = translator()
    new = fitted(with_new_decoder(old, OWN), batches())
    check(kt.Ensemble([old, new]))


def test_models_that_no_batches_of_ours_trained_accept_every_tokenizer():
    ids = np.full((2, 3), 5)
    data = tf.data.Dataset.from_tensors(({"source_ids": ids, "target_ids": ids}, ids))
    model = fitted(kt.Transformer(OWN.vocab_size, **SIZES), data)
    for tokenizer in (OWN, ALIEN):
        assert len(kt.translate(SEARCH, model, tokenizer, SOURCES, max_length=2)) == 2


def test_a_changed_vocabulary_is_trained_after_the_record_is_cleared(model):
    changed = copy.deepcopy(model)
    changed.tokenizers = {}
    check(fitted(changed, batches(ALIEN)), ALIEN, OWN)


@pytest.mark.parametrize("kind", ["model of this package", "functional model"])
def test_a_run_resumes_with_its_own_tokenizer_only(kind, tmp_path):
    def fit(tokenizer, epochs):
        if kind == "functional model":
            data = kt.classification_batches(SOURCES, [0, 1], tokenizer)
            inputs = keras.Input((None,), dtype="int32")
            vectors = kt.TokenEmbedding(OWN.vocab_size, 8)(inputs)
            model = keras.Model(inputs, keras.layers.Dense(2)(kt.SequencePooling()(vectors)))
        else:
            data, model = batches(tokenizer), kt.Transformer(OWN.vocab_size, **SIZES)
        model.compile("sgd", kt.SequenceCrossentropy(pad_id=-1))
        return kt.Run(tmp_path).fit(model, data, epochs=epochs, verbose=0, shuffle=False)

    fit(OWN, 1)
    with pytest.raises(ValueError, match=f"The run of .*{OTHER.format('source')}"):
        fit(ALIEN, 2)
    assert fit(OWN, 2).epoch == [1]


@pytest.mark.full
def test_an_imported_model_knows_its_tokenizer(model, tmp_path):
    export_marian(model, tmp_path / "marian", OWN, verbose=False)
    check(marian.load(tmp_path / "marian")[0])
