"""The three models: against the NumPy reference, against themselves step by step, saved, trained.

Shapes: B batch, S source length, T target length, D d_model, V vocabulary, W hypotheses a sentence.
"""

import pathlib
import re

import keras
import numpy as np
import pytest
from keras import ops
from support import processes, reference
from support.checks import (
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
from support.linear_bias import LinearBias

from keras_transformer import (
    ClassToken,
    LearnedPositionEncoding,
    MaskedConv1D,
    PatchEmbedding,
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
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
sides = pytest.mark.parametrize("side", ["left", "right"])


def make(cls, **options):
    config = {"vocab_size": V, **SIZES, **options}
    if cls is TransformerEncoder:  # it has no logits
        config = {name: value for name, value in config.items() if "output" not in name}
    return randomise(cls(**config)), config


def ids_of(length, side="right", seed=0, vocabulary=V):
    """(B, length) tokens, the first rows padded; the last row is full."""
    ids = integers(3, vocabulary, B, length, seed=seed)
    for row, padding in enumerate((length - 2, 2, 0)):
        padded = slice(length - padding, None) if side == "right" else slice(0, padding)
        ids[row, padded] = 0
    return ids


def batch(side="right", seed=0):
    return {"source_ids": ids_of(S, side, seed), "target_ids": ids_of(T, side, seed + 1)}


# Against the reference


@pytest.mark.numeric
@variants
@sides
def test_transformer_is_the_formula(side, options):
    model, config = make(Transformer, **options)
    inputs = batch(side)
    expected = reference.transformer(weights_of(model), config, **inputs)
    assert_close(model(inputs), expected)


@pytest.mark.numeric
@variants
@sides
def test_encoder_is_the_formula(side, options):
    model, config = make(TransformerEncoder, **options)
    ids = ids_of(S, side)
    assert_close(model(ids), reference.transformer_encoder(weights_of(model), config, ids))


@pytest.mark.numeric
@variants
@sides
def test_causal_transformer_is_the_formula(side, options):
    model, config = make(CausalTransformer, **options)
    ids = ids_of(T, side)
    assert_close(model(ids), reference.causal_transformer(weights_of(model), config, ids))


@pytest.mark.numeric
def test_separate_vocabularies_are_the_formula():
    model, config = make(Transformer, target_vocab_size=29)
    inputs = {"source_ids": ids_of(S), "target_ids": ids_of(T, vocabulary=29)}
    weights = weights_of(model)
    assert weights["source_embedding/embeddings"].shape == (V, 22)
    assert weights["target_embedding/embeddings"].shape == (29, 22)
    assert_close(model(inputs), reference.transformer(weights, config, **inputs))


@pytest.mark.numeric
@pytest.mark.parametrize("target_vocab_size", [None, 29])
@pytest.mark.parametrize("tie_output", [True, False])
def test_a_bias_of_the_logits_is_the_formula(tie_output, target_vocab_size):
    options = {"tie_output": tie_output, "target_vocab_size": target_vocab_size}
    model, config = make(Transformer, output_bias=True, **options)
    side = "token" if target_vocab_size is None else "target"
    paths = {p for p in weights_of(model) if "output_" in p}
    expected = {"output_bias"} if tie_output else {"output_bias", "output_kernel"}
    assert paths == {f"{side}_embedding/{name}" for name in expected}
    expected = reference.transformer(weights_of(model), config, **batch())
    assert_close(model(batch()), expected)


@pytest.mark.numeric
@sides
def test_segments_are_the_formula(side):
    model, config = make(TransformerEncoder, num_segments=3, embedding_norm=True)
    ids = ids_of(S, side)
    segment_ids = np.where(ids > 0, integers(1, 4, B, S), 0).astype("int32")
    expected = reference.transformer_encoder(weights_of(model), config, ids, segment_ids)
    inputs = {"source_ids": ids, "segment_ids": segment_ids}
    assert_close(model(inputs), expected)
    with pytest.raises(TypeError, match="integers.*float32"):
        model({**inputs, "segment_ids": segment_ids.astype("float32")})


def test_a_bias_of_the_logits_is_float32_where_all_else_is_low():
    model = Transformer(V, **SIZES, output_bias=True, dtype="mixed_float16")
    bias = model.get_layer("token_embedding").bias
    value = np.full(V, 1.0 + 2.0**-20, "float32")  # float16 would round it to 1
    before = numpy64(model(batch()))
    bias.assign(value)
    assert_close(model(batch()), before + value, 1e-6)


@pytest.mark.parametrize("argument", ["tie_output", "output_bias"])
def test_an_encoder_takes_no_arguments_of_logits(argument):
    with pytest.raises(TypeError, match=argument):
        TransformerEncoder(V, **SIZES, **{argument: True})


@pytest.mark.numeric
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_has_the_right_gradients(norm_first):
    model, config = make(Transformer, num_layers=1, norm_first=norm_first)
    inputs, cotangent = batch(), normal(B, T, V)

    def loss(weights):
        return np.sum(reference.transformer(weights, config, **inputs) * cotangent)

    check_gradients(gradients(model, cotangent, inputs), weights_of(model), loss)


@pytest.mark.numeric
@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_low_precision_errs_as_little_as_its_rounding(policy):
    """Rounded in sequence: 18 times in each of 2 encoder blocks, 29 in each of 2 decoder blocks,
    and embedding, scale, position, sum, kernel and logits: 100.
    """
    model, config = make(Transformer)
    low, inputs = randomise(Transformer(**config, dtype=policy)), batch()
    expected = reference.transformer(weights_of(model), config, **inputs)
    logits = low(inputs)
    assert low.encoder_stack.blocks[0].compute_dtype == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert_rounding_only(logits, expected, policy, 100)


# Two ways to one answer


@pytest.mark.numeric
@variants
def test_steps_with_a_cache_are_the_full_pass(options):
    """W hypotheses a sentence share its memory; every position of each equals the full pass."""
    width = 4
    model, _ = make(Transformer, **options)
    source, target = ids_of(S), integers(3, V, B, width, T)
    memory = model.encode(source)
    cache = model.initial_cache(B, width)
    whole = model(
        {
            "source_ids": np.repeat(source, width, axis=0),
            "target_ids": target.reshape(B * width, T),
        }
    )
    whole = numpy64(whole).reshape(B, width, T, V)
    for position in range(T):
        logits, cache = model.decode_step(target[:, :, position], position, memory, cache)
        assert_close(logits, whole[:, :, position])


@pytest.mark.numeric
@variants
def test_hypotheses_that_branch_take_their_own_past_along(options):
    """After every reordering, each hypothesis' logits are the full pass over its own tokens."""
    width = 4  # as above: JAX compiles for each shape anew
    model, _ = make(Transformer, **options)
    source, tokens = ids_of(S), integers(3, V, T, B, width)
    parents = integers(0, width, T, B, width, seed=1)
    memory, cache = model.encode(source), model.initial_cache(B, width)
    own = np.zeros((B, width, T), "int32")  # of one length, for the same reason
    for position in range(T):
        own[:, :, position] = tokens[position]
        logits, cache = model.decode_step(tokens[position], position, memory, cache)
        rows = own.reshape(B * width, T)
        whole = model({"source_ids": np.repeat(source, width, axis=0), "target_ids": rows})
        assert_close(logits, numpy64(whole)[:, position].reshape(B, width, V))
        chosen = parents[position][..., None]
        own = np.take_along_axis(own, chosen, axis=1)
        past = np.take_along_axis(numpy64(cache.by_hypothesis), chosen, axis=1)
        cache = cache._replace(by_hypothesis=ops.convert_to_tensor(past, "float32"))


@pytest.mark.numeric
@variants
def test_causal_steps_with_a_cache_are_the_full_pass(options):
    model, _ = make(CausalTransformer, **options)
    ids = integers(3, V, B, T)
    whole = numpy64(model(ids))
    cache, memory = model.initial_cache(B), model.encode(ids)
    for position in range(T):
        logits, cache = model.decode_step(ids[:, position : position + 1], position, memory, cache)
        assert_close(logits, whole[:, position : position + 1])


def test_positions_of_a_step_may_be_tensors():
    for options in ({}, {"positions": "learned"}, {"positions": "rotary"}):
        model, _ = make(CausalTransformer, **options)
        ids, cache = integers(3, V, B, 2), model.initial_cache(B)
        for position in range(2):
            at = ops.convert_to_tensor(position, "int32")
            logits, cache = model.decode_step(ids[:, position : position + 1], at, {}, cache)
        assert_close(logits, numpy64(model(ids))[:, 1:])


@variants
def test_a_sentence_does_not_depend_on_its_batch(options):
    """Alone and unpadded, or in company and padded: the same logits."""
    model, _ = make(Transformer, **options)
    inputs = batch()
    together = numpy64(model(inputs))
    for row in range(B):
        source, target = (ids[row : row + 1][:, ids[row] > 0] for ids in inputs.values())
        alone = model({"source_ids": source, "target_ids": target})
        assert_close(alone, together[row : row + 1, : target.shape[1]])


@pytest.mark.numeric
def test_with_rotary_positions_it_does_not_matter_where_a_sentence_stands():
    """Only distances count, so that padding on the left is no different from none."""
    model, _ = make(CausalTransformer, positions="rotary")
    ids = integers(3, V, B, T)
    shifted = np.concatenate([np.zeros((B, 2), "int32"), ids], axis=1)
    assert_close(model(shifted)[:, 2:], numpy64(model(ids)))


@pytest.mark.numeric
def test_what_a_search_starts_from():
    model, _ = make(Transformer)
    source = ids_of(S)
    np.testing.assert_array_equal(numpy64(model.start_ids(source)), np.full((B, 1), 2))
    memory, cache = model.encode(source), model.initial_cache(11, 5)
    np.testing.assert_array_equal(numpy64(memory.mask), source != 0)
    shapes = [tuple(x.shape) for x in keras.tree.flatten(memory.blocks)]
    assert shapes == [(B, 3, S, 10)] * 4
    shapes = [tuple(x.shape) for x in keras.tree.flatten(cache.by_sentence.blocks)]
    assert shapes == [(11, 3, 0, 10)] * 4
    assert tuple(cache.by_hypothesis.shape) == (11, 5, 0)
    assert model.initial_cache(11).by_hypothesis == ()  # one hypothesis shares with none
    causal, _ = make(CausalTransformer)
    np.testing.assert_array_equal(numpy64(causal.start_ids(source)), source)
    assert causal.encode(source) == ()


@pytest.mark.numeric
def test_max_length_is_a_limit_of_learned_positions_only():
    assert make(Transformer)[0].max_length is None
    assert make(Transformer, positions="rotary")[0].max_length is None
    assert make(Transformer, positions=LearnedPositionEncoding(13))[0].max_length == 13


@pytest.mark.numeric
def test_the_encoder_hands_on_the_mask_of_its_ids():
    model, _ = make(TransformerEncoder)
    ids = ids_of(S)
    ends = keras.Input((None,), dtype="int32")
    mean = keras.Model(ends, keras.layers.GlobalAveragePooling1D()(model(ends)))(ids)
    by_hand = [numpy64(model(ids))[row, ids[row] > 0].mean(0) for row in range(B)]
    assert_close(mean, by_hand)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_empty_sentence_brings_no_nan_to_loss_or_gradient(norm_first):
    model, _ = make(Transformer, norm_first=norm_first)
    inputs = batch("left")
    inputs["source_ids"][0] = 0
    inputs["target_ids"][1] = 0
    assert np.isfinite(numpy64(model(inputs))).all()
    found = gradients(model, normal(B, T, V), inputs)
    assert all(np.isfinite(gradient).all() for gradient in found.values())
    # The empty sentence changes nothing for the last one.
    whole = batch("left")
    assert_close(model(inputs)[2:], numpy64(model(whole))[2:])


def test_dropout_is_off_but_in_training():
    model, _ = make(Transformer, dropout=0.5, attention_dropout=0.5)
    inputs = batch()
    still = numpy64(model(inputs, training=False))
    assert_close(model(inputs), still, 0.0)
    assert largest_difference(model(inputs, training=True), still) > 1e-2


# The contract of weights


def documented_weights():
    """[(regular expression of a path, its shape)] from the documentation's weight contract."""
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


@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_every_weight_is_in_the_documented_table(cls):
    sizes = {"D": 22, "F": 19, "V": V, "H K": 3 * 10, "H U": 3 * 17, "max_length": 13}
    options = {"value_dim": 17, "positions": LearnedPositionEncoding(13), "norm_first": True}
    options |= VARIANTS["own output"]
    model, _ = make(cls, **options, use_bias=True)
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
    options |= VARIANTS["own output"]
    paths = set(weights_of(make(Transformer, **options)[0]))
    paths |= set(weights_of(make(Transformer, target_vocab_size=29, **options)[0]))
    paths |= set(weights_of(make(Transformer, recurrent_decoder=True)[0]))
    paths |= set(weights_of(layers_that_stand_alone()))
    for pattern, _ in documented_weights():
        assert any(re.fullmatch(pattern, path) for path in paths), pattern


def test_models_hold_what_their_kind_needs_and_no_more():
    whole = set(weights_of(make(Transformer)[0]))
    encoder = set(weights_of(make(TransformerEncoder)[0]))
    causal = set(weights_of(make(CausalTransformer)[0]))
    assert encoder == {p for p in whole if not p.startswith("decoder")}
    assert causal == {p for p in whole if not p.startswith("encoder") and "cross" not in p}
    assert not any("bias" in p and "attention" in p for p in whole)
    assert not any(p.startswith(("encoder_norm", "decoder_norm")) for p in whole)


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
}
CAUSAL = {name: value for name, value in ARGUMENTS.items() if name != "target_vocab_size"}
ENCODER = {name: value for name, value in CAUSAL.items() if "output" not in name}
CLASSES = [
    (Transformer, {**ARGUMENTS, "recurrent_decoder": True}),
    (TransformerEncoder, {**ENCODER, "num_segments": 3}),
    (CausalTransformer, CAUSAL),
]


def inputs_of(model):
    return batch() if isinstance(model, Transformer) else ids_of(T)


@pytest.mark.parametrize("cls, config", CLASSES)
def test_the_configuration_is_complete(cls, config):
    check_config(cls, config, elsewhere=["encoder"])
    named = cls(**{**config, "dtype": "mixed_bfloat16", "name": "given"})
    assert named.name == "given" and named.get_config()["name"] == "given"
    again = cls.from_config(named.get_config())
    assert again.get_config() == named.get_config()
    stack = again.encoder_stack or again.decoder_stack
    assert stack.blocks[0].compute_dtype == "bfloat16"


@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_the_longest_text_is_an_argument_of_the_learned_positions_alone(cls):
    assert cls(V, **SIZES, positions=LearnedPositionEncoding(13)).max_length == 13
    assert cls(V, **SIZES, positions="learned").max_length == 1024
    with pytest.raises(TypeError, match="no arguments .'max_length'"):
        cls(V, **SIZES, max_length=13)


def test_an_argument_that_there_is_not_is_refused():
    with pytest.raises((TypeError, ValueError), match="number_of_layers"):
        Transformer(V, number_of_layers=2)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_head_on_the_encoder_can_be_saved_cloned_and_copied(options, tmp_path):
    """The usual way to a classifier: from the encoder's input, through its output."""
    encoder, _ = make(TransformerEncoder, **options)
    pooled = keras.layers.GlobalAveragePooling1D()(encoder.output)
    model = keras.Model(encoder.input, keras.layers.Dense(2)(pooled))
    ids, clone = ids_of(S), keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_close(clone(ids), numpy64(model(ids)), 1e-6)
    model.save(tmp_path / "head.keras")
    assert_close(keras.saving.load_model(tmp_path / "head.keras")(ids), numpy64(model(ids)), 1e-6)


def test_positions_are_copied_for_each_side():
    """One object for a model, two tables: the source's and the target's."""
    model = Transformer(V, **SIZES, positions=LearnedPositionEncoding(13))
    paths = [v.path for v in model.weights if "positions" in v.path]
    assert sorted(paths) == ["source_positions/embeddings", "target_positions/embeddings"]


@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_a_saved_model_comes_back_the_same(cls, tmp_path):
    for options in VARIANTS.values():
        model, _ = make(cls, **options)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert type(loaded) is cls
        assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
        inputs = inputs_of(model)
        assert_close(loaded(inputs), numpy64(model(inputs)), 0.0)


LOAD = """
import sys
import numpy as np
import keras_transformer
import keras
folder = sys.argv[1]
for name in ("Transformer", "TransformerEncoder", "CausalTransformer", "inside"):
    model = keras.saving.load_model(f"{folder}/{name}.keras")
    inputs = dict(np.load(f"{folder}/{name}.inputs.npz"))
    output = model(inputs if len(inputs) > 1 else inputs["ids"])
    np.save(f"{folder}/{name}.output.npy", keras.ops.convert_to_numpy(output))
"""


def test_models_load_in_a_process_that_only_imported_the_package(tmp_path):
    """Alone, and as a part of somebody else's functional model."""
    expected = {}
    for cls in (Transformer, TransformerEncoder, CausalTransformer):
        model, inputs = make(cls)[0], inputs_of(make(cls)[0])
        model.save(tmp_path / f"{cls.__name__}.keras")
        inputs = inputs if isinstance(inputs, dict) else {"ids": inputs}
        np.savez(tmp_path / f"{cls.__name__}.inputs.npz", **inputs)
        expected[cls.__name__] = model(inputs.get("ids", inputs))
    ids = keras.Input((None,), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(make(TransformerEncoder)[0](ids))
    inside = keras.Model(ids, keras.layers.Dense(2)(pooled))
    inside.save(tmp_path / "inside.keras")
    np.savez(tmp_path / "inside.inputs.npz", ids=ids_of(S))
    expected["inside"] = inside(ids_of(S))

    processes.run("-c", LOAD, tmp_path, cwd=tmp_path).check_returncode()
    for name, output in expected.items():
        assert_close(np.load(tmp_path / f"{name}.output.npy"), numpy64(output), 1e-6)


# Training


def test_it_learns_to_copy():
    """Plain compile and fit; then greedy steps copy sentences that it has never seen."""
    vocabulary, length, rows = 11, 5, 2048

    def sentences(rows, seed):
        tokens = integers(4, vocabulary, rows, length, seed=seed)
        tokens[: rows // 2, length - 1] = 0  # half of them are shorter
        return tokens

    def examples(tokens):
        begin = np.full((len(tokens), 1), 2, "int32")
        ended = np.pad(tokens, ((0, 0), (0, 1)))
        ended[np.arange(len(ended)), (tokens > 0).sum(1)] = 3
        return {"source_ids": tokens, "target_ids": np.hstack([begin, tokens])}, ended

    model = Transformer(vocabulary, num_layers=1, d_model=32, num_heads=2, d_ff=64, dropout=0.0)
    inputs, labels = examples(sentences(rows, seed=1))
    model.compile(
        keras.optimizers.Adam(5e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    )
    model.fit(inputs, labels, batch_size=64, epochs=8, verbose=0)

    inputs, labels = examples(sentences(256, seed=2))
    forced = np.argmax(model.predict(inputs, verbose=0), axis=-1)
    assert (forced == labels)[labels > 0].mean() >= 0.98

    memory, cache = model.encode(inputs["source_ids"]), model.initial_cache(256)
    ids, copied = model.start_ids(inputs["source_ids"]), []
    for position in range(length + 1):
        logits, cache = model.decode_step(ids, position, memory, cache)
        ids = ops.cast(ops.argmax(logits, axis=-1), "int32")
        copied.append(numpy64(ids))
    assert (np.hstack(copied) == labels)[labels > 0].mean() >= 0.98


# Errors


@pytest.mark.parametrize(
    "options, message",
    [
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
@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_arguments_that_make_no_model_are_refused(cls, options, message):
    with pytest.raises(ValueError, match=message):
        make(cls, **options)


@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_sequences_beyond_max_length_are_refused(cls):
    model, _ = make(cls, positions=LearnedPositionEncoding(4))
    with pytest.raises(ValueError, match="max_length=4"):
        model(inputs_of(model))


@pytest.mark.parametrize("cls", [Transformer, TransformerEncoder, CausalTransformer])
def test_ids_that_are_not_integers_are_refused(cls):
    model, _ = make(cls)
    inputs = keras.tree.map_structure(lambda ids: ids.astype("float32"), inputs_of(model))
    with pytest.raises(TypeError, match="integers.*float32.*Cast"):
        model(inputs)
    with pytest.raises(TypeError, match="integers.*float32.*Cast"):
        model.predict(inputs, verbose=0)
