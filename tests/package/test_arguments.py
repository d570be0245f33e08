"""Every public argument has an effect: another value of it changes a result or raises.

`CASES` is a table of classes and functions. A row has arguments, another value for each argument,
and a function that observes the result. An argument that is missing in its row fails the test, and
so does a public name that is neither in `CASES` nor in `ELSEWHERE`.

`Wrong(error)` is a value that must raise. An argument in `UNSEEN` changes no result: it changes
speed, memory or messages.
"""

import pathlib
import tempfile

import keras
import numpy as np
import pytest
from helpers import exports
from helpers.argument_cases import (
    Case,
    Made,
    Wrong,
    check_effects,
    check_row,
    known,
    name_of,
    takes_others,
)
from helpers.fake_model import FakeModel

import keras_transformer as kt

ROOT = pathlib.Path(__file__).parents[1]
V, D = 13, 8
IDS = np.array([[5, 3, 7, 0, 0], [4, 12, 9, 2, 3]], "int32")
X = np.random.default_rng(0).normal(size=(2, 5, D)).astype("float32")
MASK = IDS != 0
SOUND = np.random.default_rng(1).normal(size=(1, 800)).astype("float32")


def drawn(make, **given):
    """Returns a new object, the same for the same arguments."""
    keras.utils.set_random_seed(1)
    return make(**given)


def of_layer(layer, *inputs, **call):
    """Returns a function of a layer's arguments: its output, and the names of its weights."""

    def observe(**given):
        made = drawn(layer, **given)
        return made(*inputs, **call), weights_of(made), made.dtype

    return observe


def weights_of(layer):
    return [(weight.path.split("/", 1)[-1], *weight.shape) for weight in layer.weights]


def of_call(layer, **made):
    """Returns a function of a call's arguments: the output of a layer."""

    def observe(**given):
        new = drawn(layer, **made)
        found = new(**given)
        # Biases begin with zeros.
        for weight in new.trainable_weights:
            weight.assign(weight + 0.1)
        return new(**given), found

    return observe


def of_bias(encoding):
    """Returns a function of an encoding's arguments: encoded queries, the bias and the mask."""

    def observe(**given):
        made, queries = drawn(encoding, **given), np.ones((1, 2, 13, D), "float32")
        encoded = made(queries)
        for weight in made.weights:  # they begin with zeros
            weight.assign(np.arange(np.prod(weight.shape)).reshape(weight.shape))
        between = (get(queries, queries, None) for get in (made.bias_between, made.mask_between))
        return encoded, [np.zeros(0) if each is None else each for each in between]

    return observe


ATTENTION = {
    "num_heads": 4,
    "key_dim": 3,
    "value_dim": 3,
    "dropout": 0.5,
    "use_bias": False,
    "positions": "rotary",
}
BLOCK = {
    "num_heads": 4,
    "d_ff": 17,
    "dropout": 0.5,
    "activation": "gelu",
    "norm_first": True,
    "key_dim": 6,
    "value_dim": 6,
    "attention_dropout": 0.5,
    "use_bias": True,
    "positions": "rotary",
    "epsilon": 0.5,
    "feed_forward": Wrong(ValueError, kt.GatedFeedForward(16)),  # excludes `d_ff`
    "norm": "rms",
}
MODEL = {
    **BLOCK,
    "vocab_size": 17,
    "num_layers": 2,
    "d_model": 12,
    "positions": "rotary",
    "embedding_norm": True,
}
TINY = {"vocab_size": V, "num_layers": 1, "d_model": D, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
BLOCK_BASE = {"num_heads": 2, "d_ff": 16, "dropout": 0.0}
TIED = {"tie_output": False, "output_bias": True}


def of_model(make):
    """Returns a function of a model's arguments: its logits, weights and sources."""

    def observe(**given):
        made = drawn(make, **given)
        inputs = {
            tensor.name: np.minimum(IDS, 2) if "seg" in tensor.name else IDS
            for tensor in made.inputs
        }
        found = made(inputs if len(inputs) > 1 else IDS, training=True)
        own = hasattr(made, "target_start") and len(inputs) > 1  # a model with a source
        start = made.start_ids(inputs) if own else ()
        return found, weights_of(made), start

    return observe


def own_encoder():
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    return keras.Model(ids, keras.layers.Embedding(V, D)(ids))


LAYERS = [
    Case(kt.AdditiveAttention, {"units": 3}, {"units": 5}, of_layer(kt.AdditiveAttention, X, X)),
    Case(
        kt.AdditiveAttention.call,
        {"query": X, "value": X},
        {
            "query": 2 * X,
            "value": 2 * X,
            "key": -X,
            "attention_mask": MASK,
            "value_mask": MASK,
            "key_mask": MASK,
        },
        of_call(kt.AdditiveAttention, units=3),
    ),
    Case(kt.ClassToken, {}, {}, of_layer(kt.ClassToken, X)),
    Case(kt.EncoderBlock, BLOCK_BASE, BLOCK, of_layer(kt.EncoderBlock, X, training=True)),
    Case(
        kt.EncoderBlock.call,
        {"inputs": X},
        {
            "inputs": 2 * X,
            "attention_mask": MASK,
            "use_causal_mask": True,
            "training": True,
            "return_attention_scores": True,
        },
        of_call(kt.EncoderBlock, num_heads=2, d_ff=16, dropout=0.5),
    ),
    Case(kt.DecoderBlock, BLOCK_BASE, BLOCK, of_layer(kt.DecoderBlock, X, X, training=True)),
    Case(
        kt.DecoderBlock.call,
        {"inputs": X, "memory": X},
        {
            "inputs": 2 * X,
            "memory": -X,
            "attention_mask": MASK,
            "memory_mask": MASK,
            "use_causal_mask": False,
            "training": True,
            "return_attention_scores": True,
        },
        of_call(kt.DecoderBlock, num_heads=2, d_ff=16, dropout=0.5),
    ),
    Case(
        kt.RecurrentDecoderBlock,
        BLOCK_BASE,
        {**BLOCK, "positions": Wrong(ValueError, "rotary")},
        of_layer(kt.RecurrentDecoderBlock, X, X, training=True),
    ),
    Case(
        kt.FeedForward,
        {"d_ff": 16},
        {"d_ff": 17, "activation": "gelu", "use_bias": False},
        of_layer(kt.FeedForward, X),
    ),
    Case(
        kt.GatedFeedForward,
        {"d_ff": 16},
        {"d_ff": 17, "activation": "relu", "use_bias": False},
        of_layer(kt.GatedFeedForward, X),
    ),
    Case(
        kt.GridPositionEncoding,
        {"columns": 2},
        {"columns": 3, "start": 1, "base": 100.0},
        of_layer(kt.GridPositionEncoding, X),
    ),
    Case(
        kt.LearnedPositionEncoding,
        {"max_length": 9},
        {"max_length": Wrong(ValueError, 3)},
        of_layer(kt.LearnedPositionEncoding, X),
    ),
    Case(kt.LogMel, {"mels": 8}, {"mels": 9, "frames": 41}, of_layer(kt.LogMel, SOUND)),
    Case(
        kt.MaskedConv1D,
        {"filters": 3, "kernel_size": 3},
        {"filters": 4, "kernel_size": 2, "strides": 2, "padding": "causal"},
        of_layer(kt.MaskedConv1D, X),
    ),
    Case(
        kt.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 4},
        ATTENTION,
        of_layer(kt.MultiHeadAttention, X, X, training=True),
    ),
    Case(
        kt.MultiHeadAttention.call,
        {"query": X, "value": X},
        {
            "query": 2 * X,
            "value": 2 * X,
            "key": -X,
            "attention_mask": MASK,
            "use_causal_mask": True,
            "training": True,
            "return_attention_scores": True,
            "value_mask": MASK,
            "key_mask": MASK,
        },
        of_call(kt.MultiHeadAttention, num_heads=2, key_dim=4, dropout=0.5),
    ),
    Case(
        kt.PatchEmbedding,
        {"d_model": 4, "patch_size": 2},
        {"d_model": 5, "patch_size": 3},
        of_layer(kt.PatchEmbedding, np.ones((1, 6, 6, 3), "float32")),
    ),
    Case(
        kt.PositionEncoding,
        {},
        {"window": Wrong(ValueError, 3)},
        of_layer(kt.PositionEncoding, X),
    ),
    Case(
        kt.RelativePositionBias,
        {"num_buckets": 8, "max_distance": 9},
        {"num_buckets": 12, "max_distance": 5, "bidirectional": False, "window": 3},
        of_bias(kt.RelativePositionBias),
    ),
    Case(
        kt.RotaryPositionEncoding,
        {},
        {"base": 100.0, "size": 4, "window": 3},
        of_bias(kt.RotaryPositionEncoding),
    ),
    Case(kt.SSRU, {}, {}, of_layer(kt.SSRU, X)),
    Case(
        kt.SegmentEmbedding,
        {},
        {"num_segments": 3},
        of_layer(kt.SegmentEmbedding, X, np.array([[1, 1, 2, 0, 0], [1, 2, 2, 2, 2]])),
    ),
    Case(
        kt.SequencePooling,
        {},
        {"mode": "max"},
        of_layer(kt.SequencePooling, X, mask=MASK),
    ),
    Case(
        kt.SinusoidalPositionEncoding,
        {},
        {"base": 100.0},
        of_layer(kt.SinusoidalPositionEncoding, X),
    ),
    Case(
        kt.TokenEmbedding,
        {"vocab_size": V, "d_model": D},
        {"vocab_size": 17, "d_model": 4, **TIED},
        of_layer(kt.TokenEmbedding, IDS),
    ),
    Case(
        kt.TokenEmbedding.call,
        {"inputs": IDS},
        {"inputs": IDS[:1], "logits": Wrong(ValueError, True)},
        of_call(kt.TokenEmbedding, vocab_size=V, d_model=D),
    ),
]
MODELS = [
    Case(
        kt.TransformerEncoder, TINY, {**MODEL, "num_segments": 2}, of_model(kt.TransformerEncoder)
    ),
    Case(kt.CausalTransformer, TINY, {**MODEL, **TIED}, of_model(kt.CausalTransformer)),
    Case(
        kt.Transformer,
        TINY,
        {
            **MODEL,
            **TIED,
            "target_vocab_size": 17,
            "encoder": Made(own_encoder),
            "recurrent_decoder": True,
            "reads_start": Wrong(ValueError, True),
            "reads_end": False,
            "target_start": (2, 5),
        },
        of_model(kt.Transformer),
    ),
    Case(
        kt.Ensemble,
        {"models": Made(lambda: [exports.shared_model(), exports.tiny(num_layers=1)])},
        {"models": Made(lambda: [exports.shared_model(), exports.tiny(d_model=8)])},
        lambda models: kt.GreedySearch(token_scores=True)(
            kt.Ensemble(models), exports.source(), max_length=3
        )[:3],
    ),
]
TOGETHER = {
    "reads_end": False,
    "num_layers": (1, 2),
    "target_vocab_size": 17,
}


@pytest.mark.parametrize(("name", "value"), TOGETHER.items())
def test_arguments_of_the_encoder_are_refused_together_with_an_encoder(name, value):
    with pytest.raises(ValueError, match=name):
        kt.Transformer(**{**TINY, name: value}, encoder=own_encoder())


def test_positions_in_no_attention_are_refused():
    options = {"positions": "rotary", "recurrent_decoder": True}
    with pytest.raises(ValueError, match="positions has no effect together with encoder="):
        kt.Transformer(**TINY, encoder=own_encoder(), **options)
    model = kt.Transformer(**TINY, **options)  # the encoder has them
    assert [block.get_config()["positions"] for block in model.decoder_stack.blocks] == [None]


# Searches. `FakeModel` has random logits; many rows show rare effects.
SEARCH = {
    "min_length": 5,
    "allow_unknown": False,
    "constraints": [kt.RepetitionPenalty(5.0)],
    "token_scores": True,
    "alignments": Wrong(ValueError, True),  # this model has no attention
}
ROWS = np.random.default_rng(4).integers(4, V, (40, 5)).astype("int32")


def of_search(make, **call):
    """Returns a function of a search's arguments: its result for a model of random logits."""

    def observe(**given):
        model = FakeModel(V, end_bias=2.0)
        model.table[:, 1] += 3.0  # the unknown token
        found = make(**given)(model, ROWS, **{"max_length": 7, **call})
        return [np.asarray(part) for part in found]

    return observe


def of_rule(make, **call):
    """Returns a function of a constraint's arguments: the result of a search with it."""
    search = of_search(lambda **given: kt.GreedySearch(constraints=[make(**given)]), **call)
    return lambda **given: search(**given)


def speech_model():
    features = keras.Input((None, 7), name="features")
    keras.utils.set_random_seed(2)
    encoder = keras.Model(features, keras.layers.Dense(16)(features))
    made = kt.Transformer(
        97,
        1,
        16,
        2,
        32,
        encoder=encoder,
        reads_start=True,
        positions="learned",
        output_bias=True,
    )
    random = np.random.default_rng(3)
    for weight in made.trainable_variables:
        weight.assign(weight + 0.3 * random.normal(size=weight.shape))
    likely = np.zeros(97)
    likely[[1, 3]] = 2.0, 1.0  # the unknown token and the end
    (bias,) = (weight for weight in made.trainable_variables if weight.shape == (97,))
    bias.assign(3.0 * likely)
    return made


SPEECH = {"no_speech": 59, "languages": (43, 47, 53), "no_times": 60}
SPEECH_SOURCE = {
    "features": np.random.default_rng(7).normal(size=(3, 11, 7)).astype("float32"),
    "start_ids": np.array([[41, 2, 1, 57], [2, 47, 57, 0], [2, 1, 57, 0]], "int32"),
}


def of_speech(make=kt.SpeechSearch, **call):
    def observe(**given):
        found = make(**given)(speech_model(), SPEECH_SOURCE, max_length=11, **call)
        return [np.asarray(part) for part in found]

    return observe


def of_times(**given):
    return of_speech(lambda **rules: kt.SpeechSearch(1, **SPEECH, constraints=[rules["rules"]]))(
        rules=kt.TimestampRules(**given)
    )


BEAM = {**SEARCH, "beam_width": 3, "length_penalty": 2.0, "early_stop": False}
SEARCHES = [
    Case(kt.GreedySearch, {}, SEARCH, of_search(kt.GreedySearch)),
    Case(kt.BeamSearch, {"beam_width": 2}, BEAM, of_search(kt.BeamSearch)),
    Case(
        kt.Sampling,
        {"seed": 1},
        {**SEARCH, "temperature": 0.5, "top_k": 2, "top_p": 0.5, "seed": 2, "num_samples": 2},
        of_search(kt.Sampling),
    ),
    Case(
        kt.SpeechSearch,
        {**SPEECH, "beam_width": 2, "word_heads": [(0, 0)]},
        {
            **BEAM,
            "alignments": True,
            "no_speech": 58,
            "languages": (43, 47),
            "no_times": 61,
            "word_heads": [(0, 1)],
        },
        of_speech(word_times=1),
    ),
    Case(kt.BiasedPrefix, {}, {"strength": 0.9}, of_rule(kt.BiasedPrefix, biased_prefix=[[7, 5]])),
    Case(kt.ForbiddenWords, {}, {"words": [[7], [9], [4, 5]]}, of_rule(kt.ForbiddenWords)),
    Case(kt.NoRepeatNgrams, {"size": 2}, {"size": 1}, of_rule(kt.NoRepeatNgrams)),
    Case(
        kt.Pattern,
        {"regex": "[0-9]+", "tokenizer": exports.tokenizer()},
        {
            "regex": "[a-z]+",
            "json_schema": Wrong(ValueError, {"type": "null"}),  # beside `regex`
            "choices": Wrong(ValueError, ["yes"]),
            "tokenizer": Wrong(TypeError, None),
        },
        lambda **given: kt.Pattern(**given).automaton,
    ),
    Case(kt.RepetitionPenalty, {}, {"penalty": 9.0}, of_rule(kt.RepetitionPenalty)),
    Case(kt.Terms, {}, {}, None),
    Case(
        kt.TimestampRules,
        {"first_time": 61, "no_times": 60},
        {
            "first_time": 81,
            "no_times": 57,
            "suppressed": tuple(range(4, 50)),
            "suppressed_first": tuple(range(61, 80)),
            "latest_start": 0,
        },
        of_times,
    ),
    Case(
        kt.Shortlist,
        {"table": np.full((V, 2), 5), "always": np.arange(V) < 5},
        {
            "table": np.full((V, 2), 7),
            "always": np.arange(V) < 7,
            "multiple": 4,
            "fill": np.arange(V) > 8,
        },
        lambda **given: kt.Shortlist(
            **{"multiple": 4 * ("fill" in given) or 1, **given}
        ).candidates(IDS),
    ),
    Case(
        kt.Shortlisted,
        {"model": Made(lambda: drawn(kt.Transformer, **TINY)), "shortlist": None},
        {
            "model": Made(lambda: drawn(kt.Transformer, **{**TINY, "num_layers": 2})),
            "shortlist": kt.Shortlist(np.full((V, 2), 7), np.arange(V) < 4),
        },
        lambda model, shortlist: kt.GreedySearch()(
            kt.Shortlisted(model, shortlist or kt.Shortlist(np.full((V, 2), 5), np.arange(V) < 4)),
            IDS,
            max_length=4,
        )[:2],
    ),
]

# Losses, metrics and schedules.
LOGITS = np.random.default_rng(2).normal(size=(2, 5, V)).astype("float32")


def of_loss(make, outputs=LOGITS, labels=IDS):
    def observe(**given):
        loss = make(**given)
        return loss(labels, outputs), loss.name

    return observe


def of_metric(make):
    def observe(**given):
        metric = make(**given)
        metric.update_state(IDS, LOGITS + 9 * np.eye(V)[np.where(IDS == 3, 4, IDS)])
        return metric.result(), metric.name, metric.dtype

    return observe


def of_fit(make):
    """Returns a function of a loss's arguments: its value in a step of training."""

    def observe(**given):
        loss = make(**given)
        model = drawn(kt.CausalTransformer, **{**TINY, "dropout": 0.5})
        model.compile(keras.optimizers.SGD(0.0), loss)
        return model.train_on_batch(IDS, IDS), loss.name

    return observe


def teacher(depth):
    return drawn(kt.CausalTransformer, **{**TINY, "num_layers": depth})


SMOOTH = kt.SequenceCrossentropy(0.1)
TRAINING = [
    Case(
        kt.SequenceCrossentropy,
        {},
        {"label_smoothing": 0.1, "pad_id": 3, "name": "other"},
        of_loss(kt.SequenceCrossentropy),
    ),
    Case(
        kt.PairCrossentropy,
        {},
        {"name": "other"},
        of_loss(kt.PairCrossentropy, LOGITS[0, :, :5], np.zeros(5, "int32")),
    ),
    Case(
        kt.AlignmentCrossentropy, {}, {"name": "x"}, lambda **x: kt.AlignmentCrossentropy(**x).name
    ),
    Case(kt.RDrop, {}, {"loss": SMOOTH, "alpha": 1.0, "name": "x"}, of_fit(kt.RDrop)),
    Case(
        kt.Distillation,
        {"teacher": Made(lambda: teacher(1)), "weight": 0.5},
        {"teacher": Made(lambda: teacher(2)), "loss": SMOOTH, "weight": 0.9, "name": "x"},
        of_fit(kt.Distillation),
    ),
    *(
        Case(metric, {}, {"pad_id": 3, "name": "x", "dtype": "float16"}, of_metric(metric))
        for metric in (kt.TokenAccuracy, kt.Perplexity)
    ),
    Case(
        kt.InverseSquareRootWarmup,
        {"d_model": 8},
        {
            "d_model": 16,
            "warmup_steps": 9,
            "scale": 2.0,
            "peak": Wrong(ValueError, 0.1),
            "initial": Wrong(ValueError, 0.1),
        },
        lambda **given: [kt.InverseSquareRootWarmup(**given)(step) for step in (0, 5, 50)],
    ),
    Case(
        kt.InverseSquareRootWarmup.__init__,
        {"peak": 0.1},
        {
            "d_model": Wrong(ValueError, 8),
            "warmup_steps": 9,
            "scale": Wrong(ValueError, 2.0),
            "peak": 0.2,
            "initial": 0.01,
        },
        lambda **given: [kt.InverseSquareRootWarmup(**given)(step) for step in (0, 5, 50)],
    ),
    Case(
        kt.Throughput,
        {"tokens_per_batch": 7},
        {"tokens_per_batch": 8, "data": Wrong(ValueError, [1])},
        lambda **given: kt.Throughput(**given).tokens_per_batch,
    ),
    Case(kt.StopOnNonFinite, {}, {}, None),
]

# Functions of tensors.
FUNCTIONS = [
    Case(kt.causal_mask, {"length": 3}, {"length": 4, "offset": 1, "num_keys": 5}, kt.causal_mask),
    Case(kt.padding_mask, {"ids": IDS}, {"ids": IDS[:1], "pad_id": 3}, kt.padding_mask),
    Case(
        kt.scaled_dot_product_attention,
        {"query": X, "key": X, "value": X},
        {
            "query": 2 * X,
            "key": -X,
            "value": 2 * X,
            "mask": MASK[:, None],
            "dropout": lambda weights: 0.5 * weights,
            "attention_bias": X[:, :, :5],
        },
        kt.scaled_dot_product_attention,
    ),
    Case(
        kt.with_alignments,
        {"model": Made(exports.shared_model), "alignments": [(-1, 0)]},
        {"model": Made(lambda: exports.tiny(num_layers=1)), "alignments": [(-1, 1)]},
        lambda **given: drawn(kt.with_alignments, **given)(
            {"source_ids": exports.source(), "target_ids": exports.source()}
        ),
    ),
]

# Texts and batches.
LINES = ["a man 's hat , red .", "two wo@@ rds", "the dog runs", "a red dog", "words"] * 2
OTHERS = ["ein mann", "zwei", "der hund", "ein roter hund", "worte"] * 2
TOKENIZER = kt.Tokenizer.train(LINES + OTHERS, 300, hard_vocab_limit=False)
SECOND = kt.Tokenizer.train(OTHERS, 280, hard_vocab_limit=False)


def of_batches(make, **fixed):
    """Returns a function of the arguments: two epochs of batches."""

    def observe(**given):
        made = make(**{**fixed, **given})
        batches = [keras.tree.map_structure(np.asarray, batch) for _ in range(2) for batch in made]
        return batches, made.batches.labels

    return observe


def of_options(**given):
    size = given.pop("tokens_per_batch", 40)
    given = {"seed": 0, **given}
    return of_batches(kt.language_model_batches)(
        texts=LINES, tokenizer=TOKENIZER, tokens_per_batch=size, **given
    )


UNIGRAM = dict(lines=[*LINES, *OTHERS, "é"], vocab_size=5000, hard_vocab_limit=False)


def of_tokenizer(**given):
    made = kt.Tokenizer.train(**given)
    return made.encode(["\uff21\uff22 a man \xe4", *LINES, *OTHERS]), made.pieces


TEXTS = [
    Case(
        kt.Tokenizer.train,
        UNIGRAM,
        {
            "lines": LINES,
            "vocab_size": 285,
            "model_type": "bpe",
            "normalization": "nfkc",
            "byte_fallback": False,
            "character_coverage": 0.98,
            "symbols": [" man"],
            "hard_vocab_limit": Wrong(ValueError, True),
        },
        of_tokenizer,
    ),
    Case(
        kt.Tokenizer.encode,
        {"text": LINES, "sample": True, "alpha": 0.1, "seed": 1},
        {"text": OTHERS, "sample": False, "alpha": 2.0, "seed": 2},
        lambda **given: TOKENIZER.encode(**given),
    ),
    Case(
        kt.Tokenizer,
        {"model": TOKENIZER.model},
        {"model": SECOND.model},
        lambda model: kt.Tokenizer(model).pieces,
    ),
    Case(
        kt.Glossary,
        {"entries": {"dog": "Hund"}},
        {"entries": {"dog": "Hündin"}},
        lambda entries: kt.Glossary(entries).terms("the dog"),
    ),
    Case(
        kt.BatchOptions,
        {},
        {
            "tokens_per_batch": 60,
            "max_length": 5,
            "shuffle": False,
            "seed": 1,
            "bucket_boundaries": [5, 30],
            "static_shapes": True,
            "batch_multiple": 3,
        },
        of_options,
    ),
    Case(
        kt.language_model_batches,
        {"texts": LINES, "tokenizer": TOKENIZER},
        {
            "texts": OTHERS,
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "window": 4,
            "begin": Wrong(ValueError, False),
            "sampling_alpha": 0.1,
        },
        of_batches(kt.language_model_batches),
    ),
    Case(
        kt.language_model_batches,
        {"texts": LINES, "tokenizer": TOKENIZER, "window": 6},
        {
            "texts": OTHERS,
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "window": 4,
            "begin": False,
            "sampling_alpha": Wrong(ValueError, 0.1),
        },
        of_batches(kt.language_model_batches),
    ),
    Case(
        kt.translation_batches,
        {"source": LINES, "target": OTHERS, "tokenizer": TOKENIZER},
        {
            "source": OTHERS,
            "target": LINES,
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "target_tokenizer": SECOND,
            "sampling_alpha": 0.1,
            "undo_bpe": True,
            "alignments": ["0-0"] * 10,
            "glossary": kt.Glossary({"dog": "hund"}),
        },
        of_batches(kt.translation_batches),
    ),
    Case(
        kt.pair_batches,
        {"first": LINES, "second": OTHERS, "tokenizer": TOKENIZER},
        {
            "first": OTHERS,
            "second": LINES,
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "labels": ["no", "yes"] * 5,
            "one_row": True,
            "label_names": Wrong(ValueError, ["yes", "no"]),
        },
        of_batches(kt.pair_batches),
    ),
    Case(
        kt.classification_batches,
        {"texts": LINES, "labels": ["no", "yes"] * 5, "tokenizer": TOKENIZER, "max_length": 12},
        {
            "texts": OTHERS,
            "labels": ["yes", "no"] * 5,
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "label_names": ["yes", "no"],
            "truncate": True,
            "sampling_alpha": 0.1,
        },
        of_batches(kt.classification_batches),
    ),
    Case(
        kt.tagging_batches,
        {
            "sentences": [line.split() for line in OTHERS],
            "tags": [["N"] * len(line.split()) for line in OTHERS],
            "tokenizer": TOKENIZER,
        },
        {
            "sentences": [line.split()[::-1] for line in OTHERS],
            "tags": [[*["N"] * (len(line.split()) - 1), "V"] for line in OTHERS],
            "tokenizer": SECOND,
            "tokens_per_batch": 40,
            "label_names": ["M", "N"],
            "sentence_labels": ["no", "yes"] * 5,
            "sentence_label_names": Wrong(ValueError, ["no"]),
            "sampling_alpha": 0.1,
        },
        of_batches(kt.tagging_batches),
    ),
    Case(
        kt.answer_batches,
        {
            "questions": OTHERS,
            "passages": LINES,
            "answers": [(0, 3)] * 10,
            "tokenizer": TOKENIZER,
        },
        {
            "questions": LINES,
            "passages": [line[::-1] for line in LINES],
            "answers": [(0, 5)] * 10,
            "tokenizer": SECOND,
            "tokens_per_batch": 60,
            "one_row": False,
        },
        of_batches(kt.answer_batches),
    ),
    Case(
        kt.feature_batches,
        {"features": [X[0], X[1, :3]] * 3, "targets": OTHERS[:6], "tokenizer": TOKENIZER},
        {
            "features": [X[1], X[1, :3]] * 3,
            "targets": OTHERS[1:7],
            "tokenizer": SECOND,
            "tokens_per_batch": 20,
            "name": "sound",
            "label_names": Wrong(ValueError, ["a"]),
            "max_length": 10,
        },
        of_batches(kt.feature_batches),
    ),
    Case(
        kt.feature_batches,
        {"features": [X[0], X[1, :3]] * 3, "targets": [0, 1] * 3},
        {
            "features": [X[1], X[1, :3]] * 3,
            "targets": [1, 0] * 3,
            "tokenizer": Wrong((TypeError, ValueError), TOKENIZER),
            "tokens_per_batch": 10,
            "name": Wrong(ValueError, "sound"),
            "label_names": Wrong((TypeError, ValueError), ["a"]),
            "max_length": 4,
        },
        of_batches(kt.feature_batches),
    ),
    Case(
        kt.image_batches,
        {"images": [X[0], X[1, :, :3]] * 3, "targets": OTHERS[:6], "tokenizer": TOKENIZER},
        {
            "images": [X[1], X[1, :, :3]] * 3,
            "targets": OTHERS[1:7],
            "tokenizer": SECOND,
            "tokens_per_batch": 20,
            "name": "lines",
            "label_names": Wrong(ValueError, ["a"]),
            "max_length": 10,
            "fill": -7.0,
        },
        of_batches(kt.image_batches),
    ),
    Case(
        kt.image_batches,
        {"images": [X[0], X[1, :, :3]] * 3, "targets": [0, 1] * 3},
        {
            "images": [X[1], X[1, :, :3]] * 3,
            "targets": [1, 0] * 3,
            "tokenizer": Wrong((TypeError, ValueError), TOKENIZER),
            "tokens_per_batch": 16,
            "name": Wrong(ValueError, "lines"),
            "label_names": Wrong((TypeError, ValueError), ["a"]),
            "max_length": 4,
            "fill": -7.0,
        },
        of_batches(kt.image_batches),
    ),
]

FOLDER = pathlib.Path(tempfile.mkdtemp())
(FOLDER / "bpe.txt").write_text("a two@@ word\n")


def of_file(path, **given):
    path.unlink(missing_ok=True)  # else `distil` continues it
    return kt.distil(path=path, **given), path.read_text("utf-8")


FILES = [
    Case(
        kt.read_lines,
        {"path": FOLDER / "bpe.txt"},
        {"path": Wrong(OSError, FOLDER / "none"), "undo_bpe": True},
        kt.read_lines,
    ),
    Case(
        kt.distil,
        {"translate": lambda lines: lines, "source": LINES, "path": FOLDER / "a"},
        {
            "translate": lambda lines: ["x"] * len(lines),
            "source": OTHERS[:3],
            "path": Wrong(OSError, FOLDER / "none" / "a"),
        },
        of_file,
    ),
    Case(
        kt.translate,
        {
            "search": kt.GreedySearch(),
            "model": Made(exports.shared_model),
            "tokenizer": Made(exports.tokenizer),
            "lines": exports.LINES,
        },
        {
            "search": kt.GreedySearch(constraints=[kt.RepetitionPenalty(5.0)]),
            "model": Made(lambda: exports.tiny(num_layers=1)),
            "tokenizer": SECOND,
            "lines": exports.LINES[:2],
            "target_tokenizer": kt.Tokenizer.train(OTHERS, 286, hard_vocab_limit=False),
        },
        kt.translate,
    ),
    Case(
        kt.generate,
        {
            "search": kt.GreedySearch(),
            "model": Made(lambda: exports.tiny("generate")),
            "tokenizer": Made(exports.tokenizer),
            "prompts": exports.LINES,
        },
        {
            "search": kt.GreedySearch(constraints=[kt.RepetitionPenalty(5.0)]),
            "model": Made(lambda: exports.tiny("generate", num_layers=1)),
            "tokenizer": SECOND,
            "prompts": exports.LINES[:2],
        },
        kt.generate,
    ),
]

CASES = [*LAYERS, *MODELS, *SEARCHES, *TRAINING, *FUNCTIONS, *TEXTS, *FILES]
# Names of arguments that change no result, with the reason.
UNSEEN: dict[str, str] = {}
# Public names without a row: the file whose tests cover their arguments, or the reason.
ELSEWHERE: dict[str, str] = {
    "Batches": "made by the functions above",
    "Constraint": "a protocol",
    "SearchResult": "a result",
    "combine_masks": "takes masks only",
    "importers": "a module",
    "training": "a module",
    "BleuCallback": "training/test_callbacks.py",
    "CheckpointAveraging": "training/test_checkpoints.py",
    "Model": "training/test_models_of_users.py",
    "Run": "training/test_resume.py",
    "average_checkpoints": "training/test_checkpoints.py",
    "layout_map": "training/test_sharding.py",
    "quantization_aware": "training/test_quantization.py",
    "recompute": "training/test_recomputation.py",
    "speech_batches": "training/test_whisper_fine_tuning.py",
}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_each_argument_has_another_value_in_its_row(case):
    search = case.thing in (kt.translate, kt.generate)
    check_row(case, {*UNSEEN, *(["tokens_per_batch"] if search else [])})


# Models, searches and training are slow.
SLOW = {name_of(case) for case in (*MODELS, *SEARCHES)} | {"RDrop", "Distillation"}
SLOW |= {"translate", "generate"}
SLOW |= {name_of(case) for case in CASES if "_batches" in name_of(case)} - {"pair_batches"}
SLOW |= {name_of(case) for case in LAYERS if "Block" in name_of(case)}
TIERS = dict.fromkeys(SLOW, pytest.mark.full)
# Tests of their folders hold these arguments to a reference.
LONG = ("SpeechSearch", "TimestampRules", "Ensemble", "RDrop", "Distillation")
TIERS |= dict.fromkeys(LONG, pytest.mark.nightly)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=TIERS.get(name_of(case), ()), id=name_of(case))
        for case in CASES
        if case.others
    ],
)
def test_another_value_of_each_argument_changes_the_result_or_raises(case):
    check_effects(case)


def test_every_public_name_has_a_row():
    names = {case.thing.__qualname__.partition(".")[0] for case in CASES}
    assert set(kt.__all__) - names == set(ELSEWHERE)
    for name, place in ELSEWHERE.items():
        if place.endswith(".py"):
            assert name in (ROOT / place).read_text("utf-8"), place


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if takes_others(case.thing) and case.observe],
    ids=name_of,
)
def test_an_argument_without_a_meaning_is_refused(case):
    with pytest.raises((TypeError, ValueError), match="no_such_argument"):
        base = {name: known(value) for name, value in case.base.items()}
        case.observe(**base, no_such_argument=1)
