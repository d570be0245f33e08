"""The three models: NumPy reference, cached steps, weights, saving, training and errors.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary, W hypotheses a sentence.
"""

import pathlib
import re

import keras
import numpy as np
import pytest
from helpers import reference, tiers
from helpers.checks import (
    LOW_PRECISION,
    assert_close,
    assert_rounding_only,
    check_config,
    check_gradients,
    gradients,
    integers,
    largest_difference,
    normal,
    numpy64,
    randomise,
    weights_of,
)
from helpers.linear_bias import LinearBias
from keras import ops

from keras_transformer import (
    ClassToken,
    GatedFeedForward,
    GreedySearch,
    LearnedPositionEncoding,
    MaskedConv1D,
    PatchEmbedding,
    RelativePositionBias,
    SegmentEmbedding,
)
from keras_transformer.models import CausalTransformer, Transformer, TransformerEncoder

B, T, S, V = 3, 5, 7, 23
SIZES = {"num_layers": 2, "d_model": 22, "num_heads": 3, "d_ff": 19, "key_dim": 10}
VARIANTS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True, "activation": "gelu"},
    "learned": {"positions": LearnedPositionEncoding(13), "use_bias": True},
    "rotary": {"positions": "rotary", "value_dim": 17},
    "linear bias": {"positions": LinearBias()},
    "own output": {
        "tie_output": False,
        "output_bias": True,
        "embedding_norm": True,
        "epsilon": 1e-2,
    },
}
KINDS = [Transformer, TransformerEncoder, CausalTransformer]
variants = pytest.mark.parametrize("variant", VARIANTS)
SIDES = ["left", "right"]
kinds = pytest.mark.parametrize("cls", KINDS)


def make(cls, variant=None, **options):
    """Returns a model with random weights, and its arguments."""
    config = {"vocab_size": V, **SIZES, **VARIANTS.get(variant, {}), **options}
    if cls is TransformerEncoder:  # it has no logits
        config = {name: value for name, value in config.items() if "output" not in name}
    return randomise(cls(**config)), config


def ids_of(length, side="right", seed=0, vocabulary=V):
    """Returns ids (B, length). All rows but the last are padded."""
    ids = integers(3, vocabulary, B, length, seed=seed)
    for row, padding in enumerate((length - 2, 2, 0)):
        padded = slice(length - padding, None) if side == "right" else slice(0, padding)
        ids[row, padded] = 0
    return ids


def batch(side="right", seed=0):
    return {"source_ids": ids_of(S, side, seed), "target_ids": ids_of(T, side, seed + 1)}


def inputs_of(model, side="right"):
    return batch(side) if isinstance(model, Transformer) else ids_of(T, side)


def expected_of(model, config, inputs, weights=None):
    """Returns the reference's result for this model."""
    name = {TransformerEncoder: "transformer_encoder", CausalTransformer: "causal_transformer"}
    compute = getattr(reference, name.get(type(model), "transformer"))
    inputs = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    return compute(weights_of(model) if weights is None else weights, config, *inputs)


# Against the reference


CASES = [(cls, variant, side) for cls in KINDS for variant in VARIANTS for side in SIDES]
QUICK = [case for case in CASES if case[2] == "left" or case[0] is Transformer]


@pytest.mark.numeric
@pytest.mark.parametrize("cls, variant, side", tiers.quick(CASES, *QUICK))
def test_a_model_matches_the_reference(cls, variant, side):
    model, config = make(cls, variant)
    inputs = inputs_of(model, side)
    assert_close(model(inputs), expected_of(model, config, inputs))


def with_parts(cls, **options):
    """Returns a model with other networks and norms, and biases that each stack shares."""
    positions = RelativePositionBias(8, 6), RelativePositionBias(8, 6, bidirectional=False)
    if cls is not Transformer:
        positions = positions[cls is CausalTransformer]
    parts = {"feed_forward": GatedFeedForward(19, use_bias=False), "norm": "rms"}
    parts |= {"d_ff": None, "norm_first": True, "positions": positions, **options}
    return make(cls, **parts)[0]


@kinds
def test_a_model_of_other_parts_is_saved_frozen_and_updated(cls, tmp_path):
    model = with_parts(cls)
    shared = [path for path in weights_of(model) if path.endswith("positions/buckets")]
    assert len(shared) == 1 + (cls is Transformer)  # one for each stack
    inputs, expected = inputs_of(model), numpy64(model(inputs_of(model)))
    for weight in model.weights:
        if "buckets" in weight.path:
            weight.assign(weight + 1.0 * np.arange(8)[:, None])
    assert largest_difference(model(inputs), expected) > 1e-3  # the biases have an effect
    model.enable_lora(2, names=("query", "gate"))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    assert_close(loaded(inputs), numpy64(model(inputs)), 0.0)
    assert not any("buckets" in v.path for v in loaded.trainable_variables)


@pytest.mark.numeric
@pytest.mark.parametrize("target_vocab_size", [None, 29])
@pytest.mark.parametrize("tie_output", [True, False])
def test_separate_vocabularies_and_output_bias_match_the_reference(tie_output, target_vocab_size):
    options = {"tie_output": tie_output, "target_vocab_size": target_vocab_size}
    model, config = make(Transformer, output_bias=True, **options)
    inputs = {"source_ids": ids_of(S), "target_ids": ids_of(T, vocabulary=target_vocab_size or V)}
    assert_close(model(inputs), expected_of(model, config, inputs))


@pytest.mark.numeric
@pytest.mark.parametrize("side", SIDES)
def test_segments_match_the_reference(side):
    model, config = make(TransformerEncoder, num_segments=3, embedding_norm=True)
    ids = ids_of(S, side)
    segment_ids = np.where(ids > 0, integers(1, 4, B, S), 0).astype("int32")
    inputs = {"source_ids": ids, "segment_ids": segment_ids}
    assert_close(model(inputs), expected_of(model, config, inputs))
    with pytest.raises(TypeError, match="integers.*float32"):
        model({**inputs, "segment_ids": segment_ids.astype("float32")})


@pytest.mark.numeric
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_has_the_right_gradients(norm_first):
    model, config = make(Transformer, num_layers=1, norm_first=norm_first)
    inputs, cotangent = batch(), normal(B, T, V)

    def loss(weights):
        return np.sum(expected_of(model, config, inputs, weights) * cotangent)

    check_gradients(gradients(model, cotangent, inputs), weights_of(model), loss)


@pytest.mark.numeric
@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_low_precision_errors_are_rounding_only(policy):
    """Roundings in sequence: 18 in each of 2 encoder blocks, 29 in each of 2 decoder blocks,
    and embedding, scale, position, sum, kernel and logits: 100.
    """
    model, config = make(Transformer)
    low, inputs = randomise(Transformer(**config, dtype=policy)), batch()
    expected = expected_of(model, config, inputs)
    logits = low(inputs)
    assert low.encoder_stack.blocks[0].compute_dtype == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert_rounding_only(logits, expected, policy, 100)


# Equivalent computations


@pytest.mark.numeric
@pytest.mark.parametrize(
    "variant", tiers.quick([*VARIANTS, "recurrent"], "post-norm", "rotary", "recurrent")
)
def test_cached_steps_of_branching_hypotheses_equal_the_full_pass(variant):
    """W hypotheses of a sentence share its memory. They are reordered after every step.

    The logits must equal a full pass over the tokens of each hypothesis.
    """
    width = 4
    model, _ = make(Transformer, variant, recurrent_decoder=variant == "recurrent")
    source, tokens = ids_of(S), integers(3, V, T, B, width)
    parents = integers(0, width, T, B, width, seed=1)
    memory, cache = model.encode(source), model.initial_cache(B, width)
    past = np.zeros((B, width, T), "int32")  # of one length: JAX compiles for each shape anew
    for position in range(T):
        past[:, :, position] = tokens[position]
        logits, cache = model.decode_step(tokens[position], position, memory, cache)
        rows = past.reshape(B * width, T)
        whole = model({"source_ids": np.repeat(source, width, axis=0), "target_ids": rows})
        assert_close(logits, numpy64(whole)[:, position].reshape(B, width, V))
        chosen = parents[position][..., None]
        past = np.take_along_axis(past, chosen, axis=1)
        rows = [numpy64(x) for x in keras.tree.flatten(cache.by_hypothesis)]
        rows = [np.take_along_axis(x, chosen, axis=1).astype("float32") for x in rows]
        rows = keras.tree.pack_sequence_as(cache.by_hypothesis, rows)
        cache = cache._replace(by_hypothesis=rows)


@pytest.mark.numeric
@variants
@pytest.mark.parametrize("tensor_positions", [False, True])
def test_causal_steps_with_a_cache_equal_the_full_pass(tensor_positions, variant):
    model, _ = make(CausalTransformer, variant)
    ids = integers(3, V, B, T)
    whole = numpy64(model(ids))
    cache, memory = model.initial_cache(B), model.encode(ids)
    for t in range(T):
        position = ops.convert_to_tensor(t, "int32") if tensor_positions else t
        logits, cache = model.decode_step(ids[:, t : t + 1], position, memory, cache)
        assert_close(logits, whole[:, t : t + 1])


@pytest.mark.numeric
def test_a_search_starts_with_the_begin_id_or_the_prompt():
    model, source = make(Transformer)[0], ids_of(S)
    assert_close(model.start_ids(source), np.full((B, 1), 2), 0.0)
    assert_close(model.encode(source).mask, source != 0, 0.0)
    assert tuple(model.initial_cache(11, 5).by_hypothesis.shape) == (11, 5, 0)
    assert model.initial_cache(11).by_hypothesis == ()  # one hypothesis shares nothing
    causal, _ = make(CausalTransformer)
    assert_close(causal.start_ids(source), source, 0.0)
    assert causal.encode(source) == ()


@pytest.mark.numeric
def test_the_encoder_passes_the_padding_mask_on():
    model, _ = make(TransformerEncoder)
    ids = ids_of(S)
    ends = keras.Input((None,), dtype="int32")
    mean = keras.Model(ends, keras.layers.GlobalAveragePooling1D()(model(ends)))(ids)
    by_hand = [numpy64(model(ids))[row, ids[row] > 0].mean(0) for row in range(B)]
    assert_close(mean, by_hand)


def test_dropout_acts_in_training_only():
    model, _ = make(Transformer, dropout=0.5, attention_dropout=0.5)
    inputs = batch()
    still = numpy64(model(inputs, training=False))
    assert_close(model(inputs), still, 0.0)
    assert largest_difference(model(inputs, training=True), still) > 1e-2


# The weight contract


def documented_weights():
    """Returns [(pattern of a path, shape)] from the weight contract in the documentation."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "weights.md"
    rows = re.findall(r"^\| `(.+?)` \| \((.+?)\) \|", page.read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 30
    patterns = []
    for path, shape in rows:
        of_stack = path.startswith(("*_block", "*_norm"))
        sides = "(encoder|decoder)" if of_stack else "(source|target)"
        path = re.sub(r"^\*", sides, path).replace("block_i", r"block_\d+")
        patterns.append((path, tuple(shape.rstrip(",").split(", "))))
    return patterns


@kinds
def test_every_weight_is_in_the_documented_table(cls):
    sizes = {"D": 22, "F": 19, "V": V, "H K": 3 * 10, "H U": 3 * 17, "max_length": 13}
    options = {"value_dim": 17, "positions": LearnedPositionEncoding(13), "norm_first": True}
    model, _ = make(cls, "own output", **options, use_bias=True)
    for path, weight in weights_of(model).items():
        shapes = [shape for pattern, shape in documented_weights() if re.fullmatch(pattern, path)]
        assert len(shapes) == 1, f"{path} matches {len(shapes)} rows"
        assert weight.shape == tuple(sizes[size] for size in shapes[0]), path


def layers_that_stand_alone():
    frames, segment_ids = keras.Input((None, 5)), keras.Input((None,), dtype="int32")
    images = keras.Input((8, 8, 3))
    x = ClassToken(name="class_token")(MaskedConv1D(7, 3, name="masked_conv1d")(frames))
    x = SegmentEmbedding(name="segment_embedding")(x, segment_ids)
    patches = PatchEmbedding(7, 4, name="patch_embedding")(images)
    return keras.Model([frames, segment_ids, images], [x, patches])


def test_every_documented_weight_exists():
    options = {"positions": "learned", "norm_first": True, "use_bias": True}
    paths = set(weights_of(make(Transformer, "own output", **options)[0]))
    paths |= set(weights_of(make(Transformer, "own output", target_vocab_size=29, **options)[0]))
    paths |= set(weights_of(make(Transformer, recurrent_decoder=True)[0]))
    parts = {"feed_forward": GatedFeedForward(19), "positions": RelativePositionBias()}
    paths |= set(weights_of(make(Transformer, d_ff=None, **parts)[0]))
    paths |= set(weights_of(layers_that_stand_alone()))
    for pattern, _ in documented_weights():
        assert any(re.fullmatch(pattern, path) for path in paths), pattern


def test_models_have_only_the_weights_of_their_kind():
    whole, encoder, causal = (set(weights_of(make(cls)[0])) for cls in KINDS)
    assert encoder == {p for p in whole if not p.startswith("decoder")}
    assert causal == {p for p in whole if not p.startswith("encoder") and "cross" not in p}


# Configuration and saving

ARGUMENTS = {
    "vocab_size": V,
    "num_layers": 2,
    "d_model": 22,
    "num_heads": 3,
    "d_ff": 19,
    "dropout": 0.3,
    "key_dim": 10,
    "value_dim": 17,
    "attention_dropout": 0.2,
    "activation": "gelu",
    "norm_first": True,
    "positions": "rotary",
    "target_vocab_size": 29,
    "use_bias": True,
    "epsilon": 1e-6,
    "embedding_norm": True,
    "tie_output": False,
    "output_bias": True,
    "norm": "rms",
}
CAUSAL = {name: value for name, value in ARGUMENTS.items() if name != "target_vocab_size"}
ENCODER = {name: value for name, value in CAUSAL.items() if "output" not in name}
CLASSES = [
    (
        Transformer,
        {
            **ARGUMENTS,
            "num_layers": [1, 2],
            "recurrent_decoder": True,
            "reads_end": False,
            "target_start": (2, 5),
        },
    ),
    (TransformerEncoder, {**ENCODER, "num_segments": 3}),
    (CausalTransformer, CAUSAL),
]


@pytest.mark.parametrize("cls, config", CLASSES)
def test_the_configuration_is_complete(cls, config):
    check_config(cls, config, elsewhere=["encoder", "reads_start", "feed_forward"])
    named = cls(**{**config, "dtype": "mixed_bfloat16", "name": "given"})
    assert named.name == "given" and named.get_config()["name"] == "given"
    again = cls.from_config(named.get_config())
    assert again.get_config() == named.get_config()
    stack = again.encoder_stack or again.decoder_stack
    assert stack.blocks[0].compute_dtype == "bfloat16"
    depths = [len(part.blocks) for part in (again.encoder_stack, again.decoder_stack) if part]
    assert depths == [*np.atleast_1d(config["num_layers"])]


@kinds
def test_only_learned_positions_have_a_maximum_length(cls):
    assert make(cls)[0].max_length is make(cls, "rotary")[0].max_length is None
    assert make(cls, "learned")[0].max_length == 13
    assert cls(V, **SIZES, positions="learned").max_length == 1024
    model, _ = make(cls, positions=LearnedPositionEncoding(4))
    with pytest.raises(ValueError, match="max_length=4"):
        model(inputs_of(model))


@pytest.mark.full("linear bias-Transformer", "linear bias-TransformerEncoder")
@kinds
@pytest.mark.parametrize("variant", tiers.quick(VARIANTS, "linear bias", "own output"))
def test_a_loaded_model_equals_the_saved_one(variant, cls, tmp_path):
    model, _ = make(cls, variant)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is cls
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    inputs = inputs_of(model)
    assert_close(loaded(inputs), numpy64(model(inputs)), 0.0)


@pytest.mark.parametrize("variant", tiers.quick(VARIANTS, "learned", "linear bias"))
def test_a_head_on_the_encoder_can_be_saved_cloned_and_copied(variant, tmp_path):
    """Tests the usual classifier, built on the encoder's input and output."""
    encoder, _ = make(TransformerEncoder, variant)
    pooled = keras.layers.GlobalAveragePooling1D()(encoder.output)
    model = keras.Model(encoder.input, keras.layers.Dense(2)(pooled))
    ids, clone = ids_of(S), keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save(tmp_path / "head.keras")
    for other in (clone, keras.saving.load_model(tmp_path / "head.keras")):
        assert_close(other(ids), numpy64(model(ids)), 1e-6)


# Training


@pytest.mark.full
def test_a_model_learns_to_copy():
    """After plain compile and fit, a greedy search copies unseen sentences."""
    vocabulary, length, rows = 11, 5, 2048
    tokens = integers(4, vocabulary, rows + 256, length, seed=1)
    tokens[::2, length - 1] = 0  # half of them are shorter
    targets = np.pad(tokens, ((0, 0), (1, 0)), constant_values=2)
    labels = np.pad(tokens, ((0, 0), (0, 1)))
    labels[np.arange(len(labels)), (tokens > 0).sum(1)] = 3

    model = Transformer(vocabulary, num_layers=1, d_model=32, num_heads=2, d_ff=64, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(5e-3), loss)
    inputs = {"source_ids": tokens[:rows], "target_ids": targets[:rows]}
    model.fit(inputs, labels[:rows], batch_size=64, epochs=8, verbose=0)
    copied = GreedySearch()(model, tokens[rows:], max_length=length + 1).ids.numpy()[:, 0]
    assert (copied == labels[rows:])[labels[rows:] > 0].mean() >= 0.98


# Errors


UNKNOWN = {
    Transformer: ("number_of_layers", "max_length", "num_segments"),
    TransformerEncoder: ("number_of_layers", "max_length", "tie_output", "output_bias"),
    CausalTransformer: ("number_of_layers", "max_length", "num_segments"),
}


@pytest.mark.parametrize("cls, name", [(cls, name) for cls in KINDS for name in UNKNOWN[cls]])
def test_unknown_arguments_are_refused(cls, name):
    with pytest.raises(TypeError, match=f"no arguments .'{name}'"):
        cls(V, **SIZES, **{name: 2})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"feed_forward": GatedFeedForward(8)}, "d_ff would have no effect.*feed_forward"),
        ({"feed_forward": "gated", "d_ff": None}, "feed_forward must be a layer.*'gated'"),
        ({"norm": "batch"}, 'norm must be a layer, such as "layer", "rms".*batch'),
        ({"norm": keras.layers.LayerNormalization(), "epsilon": 1e-3}, "epsilon would have no"),
        ({"norm_first": "first"}, "norm_first must be False, True"),
        ({"embedding_norm": "first"}, "replaces the first norm of pre-norm blocks"),
        ({"embedding_norm": "last", "norm_first": True}, "embedding_norm='last' was passed"),
        ({"positions": ["rotary"] * 3}, "positions has 3 entr|positions has 3 encodings for 2"),
        ({"positions": "fourier"}, '"sinusoidal", "learned" or "rotary".*fourier'),
        ({"num_layers": 0}, "num_layers must be at least 1, but 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, but 0"),
        ({"d_model": 0}, "d_model must be at least 1, but 0"),
        ({"d_ff": 0}, "d_ff must be at least 1, but 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, but 0"),
        ({"key_dim": 0}, "key_dim must be at least 1, but 0"),
        ({"key_dim": None}, "d_model=22.*num_heads=3.*key_dim"),
        ({"num_heads": 0, "key_dim": None}, "d_model=22.*num_heads=0.*key_dim"),
        ({"d_model": 21}, "even.*21"),
        ({"positions": "rotary", "key_dim": 11}, "even.*11"),
    ],
)
@kinds
def test_invalid_arguments_are_refused(cls, options, message):
    with pytest.raises(ValueError, match=message):
        make(cls, **options)


@kinds
def test_ids_that_are_not_integers_are_refused(cls):
    model, _ = make(cls)
    inputs = keras.tree.map_structure(lambda ids: ids.astype("float32"), inputs_of(model))
    for run in (model, lambda inputs: model.predict(inputs, verbose=0)):
        with pytest.raises(TypeError, match="integers.*float32.*Cast"):
            run(inputs)
