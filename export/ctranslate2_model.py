"""Export to CTranslate2 (https://github.com/OpenNMT/CTranslate2), an engine in C++.

Its encoder-decoder is the paper's. It searches by itself, so that no search is exported, and it
speaks strings: a vocabulary says which one stands for which id.

Shapes: B sentences, T tokens of the longest, D d_model, V vocabulary, P positions.
"""

import json

import keras
import numpy as np
import sentencepiece

from keras_transformer.export import verify
from keras_transformer.export.encoder_decoder import (
    CONFIG_FILE,
    PRODUCER,
    check_translator,
    depths,
    differences,
    position_tables,
    refuse,
    weights_of,
    why_not_made_of,
)
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.staging import ExportError, Progress, staged
from keras_transformer.importers.mapping import NEVER
from keras_transformer.layers.blocks import gelu_tanh
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID

ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.activations.silu: "SWISH",
    keras.activations.gelu: "GELU",
    gelu_tanh: "GELUTanh",
    keras.activations.tanh: "Tanh",
}
PRECISIONS = ("float32", "float16", "bfloat16", "int16", "int8")
MODEL_FILE = "model.bin"
SIDES = ("shared", "source", "target")
VOCABULARIES = [f"{side}_vocabulary.json" for side in SIDES]
TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.model", "target_tokenizer.model"
FILES = (MODEL_FILE, CONFIG_FILE, *VOCABULARIES, TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
# Positions of a model that has no end of its own: so many tokens CTranslate2 reads at most, too.
POSITIONS = 1024


def export_ctranslate2(
    model,
    path,
    tokenizer=None,
    *,
    target_tokenizer=None,
    precision="float32",
    max_length=None,
    tolerance=None,
    verbose=True,
):
    """Writes the folder of a CTranslate2 model with the weights of a `Transformer`.

    The folder holds `model.bin`, `config.json`, the vocabularies and the tokenizers' SentencePiece
    models. CTranslate2 reads pieces, adds the end token to the source itself, and writes pieces.
    As our searches do, it never writes padding or the begin token: their logits get the bias -100.

    Before the folder appears CTranslate2 has translated random sources with it, and each of its
    tokens and scores has been held to Keras' forward pass.

    Args:
        model: `Transformer` whose positions are added to embeddings. Its weights are exported from
            float32, whatever its dtype policy.
        path: folder to write. An earlier export at this place is replaced in one move, at the end.
        tokenizer: `Tokenizer`, for the vocabulary. Defaults to `None`: strings such as "<id 17>".
        target_tokenizer: `Tokenizer` of what the model writes, for models whose vocabularies are
            apart. Defaults to `None`: `tokenizer`.
        precision: how weights are stored: "float32", "float16", "bfloat16", "int16" or "int8". In
            which they are computed is chosen when the model is loaded.
        max_length: most tokens of a text. Defaults to `None`: 1024, or what a model with learned
            positions can hold.
        tolerance: largest error of a score, as in `export_onnx`. Defaults to `None`: 1e-4 for
            "float32", else 0.15.
        verbose: whether to tell on stderr what is being done. Defaults to `True`.

    Returns:
        The strings that the model writes, list of str in the order of ids.

    Raises:
        ImportError: `ctranslate2` is not installed.
        TypeError, ValueError: an argument of the wrong kind, or a model that CTranslate2 cannot
            hold, before anything is done.
        ExportError: CTranslate2 gave other tokens. What was at `path` is as before.

    Example:

    >>> export_ctranslate2(model, "out/ct2", tokenizer)  # doctest: +SKIP
    >>> engine = ctranslate2.Translator("out/ct2")  # doctest: +SKIP
    >>> pieces = processor.encode(["A man rides."], out_type=str)  # doctest: +SKIP
    >>> processor.decode(engine.translate_batch(pieces)[0].hypotheses[0])  # doctest: +SKIP
    """
    specs = _specs()
    check_translator(model, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, but {precision!r} was passed.")
    if tolerance is None:
        tolerance = verify.TOLERANCES["float32" if precision == "float32" else "int8"]
    max_length = _length(model, max_length)
    refuse("CTranslate2", differences(model, ACTIVATIONS))
    model = as_float32(model)
    sizes = [model.vocab_size, model.target_vocab_size or model.vocab_size]
    given = [tokenizer, target_tokenizer or tokenizer]
    words = [vocabulary(*pair) for pair in zip(sizes, given, strict=True)]
    tell = Progress(verbose)
    with staged(path, why_not_made_of(*FILES)) as folder:
        with tell("writing"):
            spec = _specification(specs, model, max_length)
            _register(spec, words, model)
            spec.optimize(quantization=None if precision == "float32" else precision)
            spec.save(str(folder))
            config = json.loads((folder / CONFIG_FILE).read_bytes())
            (folder / CONFIG_FILE).write_text(json.dumps({**config, **PRODUCER}, indent=2), "utf-8")
            names = (TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
            for name, one in zip(names, (tokenizer, target_tokenizer), strict=True):
                if one is not None:
                    one.save(folder / name)
        with tell("proving it in CTranslate2"):
            _prove(folder, model, words, max_length, precision, tolerance)
    return words[1]


def vocabulary(size, tokenizer=None):
    """One distinct string an id: the tokenizer's pieces, `<id 17>` where it has none."""
    pieces = []
    if tokenizer is not None:
        if tokenizer.vocab_size > size:
            raise ValueError(
                f"The tokenizer has {tokenizer.vocab_size} ids, but the model {size}. Pass the one "
                "that it was trained with, or leave it out."
            )
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        pieces = processor.id_to_piece(list(range(tokenizer.vocab_size)))
    return pieces + [f"<id {i}>" for i in range(len(pieces), size)]


def _specs():
    """CTranslate2's modules of specifications."""
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise ImportError(
            "Exporting to CTranslate2 needs the package of that name. Install it with: "
            "pip install 'keras-transformer-onnx[ctranslate2]'"
        ) from error
    return specs


def _length(model, max_length):
    """How many positions are written."""
    longest = model.max_length or max_length or POSITIONS
    if max_length is None:
        return longest
    if not isinstance(max_length, int) or not 0 < max_length <= longest:
        raise ValueError(
            f"max_length must be an integer from 1 to the model's {longest} positions, but "
            f"{max_length!r} was passed."
        )
    return max_length


def _register(spec, words, model):
    """Tells a specification its strings, and what else it must know beside the weights."""
    source, target = words
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = target[1:4]
    spec.config.decoder_start_token = target[BEGIN_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.epsilon
    spec.validate()


def _specification(specs, model, max_length):
    """The `TransformerSpec` that holds the weights, found by their paths."""
    weights = weights_of(model)
    activation = ACTIVATIONS[keras.activations.get(model.activation)]
    spec = specs.TransformerSpec.from_config(
        depths(model),
        model.num_heads,
        pre_norm=model.norm_first,
        activation=getattr(specs.common_spec.Activation, activation),
        layernorm_embedding=model.embedding_norm,
    )
    sides = (
        (spec.encoder, "encoder", "source", spec.encoder.embeddings[0]),
        (spec.decoder, "decoder", "target", spec.decoder.embeddings),
    )
    tables = position_tables(model, max_length)
    for (stack, side, text, embeddings), table in zip(sides, tables, strict=True):
        own = "token" if model.target_vocab_size is None else text
        embeddings.weight = weights[f"{own}_embedding/embeddings"]
        stack.position_encodings.encodings = table
        if model.norm_first:
            _set_norm(stack.layer_norm, weights, f"{side}_norm")
        if model.embedding_norm:
            _set_norm(stack.layernorm_embedding, weights, f"{text}_embedding_norm")
        for i, layer in enumerate(stack.layer):
            _set_block(layer, weights, f"{side}_block_{i}")
    _set_projection(spec.decoder, weights, f"{own}_embedding")
    return spec


def _set_projection(decoder, weights, name):
    """The matrix and the bias that give the logits."""
    decoder.projection.weight = decoder.embeddings.weight
    if f"{name}/output_kernel" in weights:
        decoder.projection.weight = np.ascontiguousarray(weights[f"{name}/output_kernel"].T)
    size = len(decoder.projection.weight)
    bias = weights.get(f"{name}/output_bias", np.zeros(size, np.float32)).copy()
    bias[[PAD_ID, BEGIN_ID]] = NEVER
    decoder.projection.bias = bias


def _set_block(layer, weights, name):
    """Fills one block. CTranslate2 fuses the projections that read the same input."""
    _set_attention(layer.self_attention, weights, f"{name}/self_attention", [3])
    if hasattr(layer, "attention"):
        _set_attention(layer.attention, weights, f"{name}/cross_attention", [1, 2])
    _set_linear(layer.ffn.linear_0, weights, [f"{name}/feed_forward/hidden"])
    _set_linear(layer.ffn.linear_1, weights, [f"{name}/feed_forward/output"])
    _set_norm(layer.ffn.layer_norm, weights, f"{name}/feed_forward_norm")


def _set_attention(attention, weights, name, fused):
    """Query, key and value in products of `fused` each, then the output projection."""
    names = [f"{name}/{part}" for part in ("query", "key", "value")]
    for linear, count in zip(attention.linear, fused, strict=False):
        _set_linear(linear, weights, names[:count])
        names = names[count:]
    _set_linear(attention.linear[-1], weights, [f"{name}/output"])
    _set_norm(attention.layer_norm, weights, f"{name}_norm")


def _set_linear(linear, weights, names):
    """Ours computes x W, CTranslate2 x W^T, so kernels are transposed. A missing bias stays so."""
    linear.weight = np.concatenate([weights[f"{name}/kernel"].T for name in names])
    if f"{names[0]}/bias" in weights:
        linear.bias = np.concatenate([weights[f"{name}/bias"] for name in names])


def _set_norm(norm, weights, name):
    norm.gamma, norm.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]


def _prove(folder, model, words, max_length, precision, tolerance):
    """Raises `ExportError` unless CTranslate2's greedy tokens and scores are those of Keras.

    Each of its tokens must be the likeliest after those before it, but for ties, and a score the
    sum of their log-probabilities. Rounded weights may choose other tokens; their scores must be
    right within the tolerance.
    """
    import ctranslate2

    random = np.random.default_rng(0)
    longest = min(max_length, 24) - 1
    ids = [random.integers(4, len(words[0]), n).tolist() for n in (1, *range(2, longest, 3))]
    engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    found = engine.translate_batch(
        [[words[0][id] for id in row] for row in ids],
        beam_size=1, length_penalty=0, min_decoding_length=0, max_decoding_length=longest,
        max_batch_size=4, return_end_token=True, return_scores=True,
    )  # fmt: skip
    id_of = {word: id for id, word in enumerate(words[1])}
    tokens = [[id_of[word] for word in one.hypotheses[0]] for one in found]
    inputs = {
        "source_ids": pad_rows([[*row, END_ID] for row in ids]),
        "target_ids": pad_rows([[BEGIN_ID, *row[:-1]] for row in tokens]),
    }
    logits = np.asarray(model(inputs), np.float64)  # (B, T, V)
    logits[..., [PAD_ID, BEGIN_ID]] = -np.inf
    logits -= np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    exact = precision == "float32"
    for number, (row, one, log_probs) in enumerate(zip(tokens, found, logits, strict=True)):
        log_probs = log_probs[: len(row)]  # (T, V)
        chosen = log_probs[range(len(row)), row]
        usual = log_probs > -verify.LARGE
        size = np.where(usual, log_probs, 0.0).std(axis=1, where=usual).sum()
        size = max(1.0, -chosen.sum()) if exact else max(size, 1.0)
        error = abs(chosen.sum() - one.scores[0]) / size
        if not error <= tolerance or exact and (log_probs.max(axis=1) - chosen > verify.TIE).any():
            raise ExportError(
                f"Parity with CTranslate2: it wrote {row} for source {number}, {ids[number]}, with "
                f"score {one.scores[0]:.6g}; Keras gives these tokens {chosen.sum():.6g}, and "
                f"{log_probs.argmax(axis=1).tolist()} are its likeliest. Please report it with the "
                "model's configuration."
            )
