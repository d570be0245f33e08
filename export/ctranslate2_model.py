"""Export to CTranslate2 (https://github.com/OpenNMT/CTranslate2), an engine in C++.

CTranslate2 implements the paper's encoder-decoder with its own search, so no search is exported.
It reads and writes strings: a vocabulary maps each id to its string.

Shapes: B sentences, T tokens of the longest, D d_model, V vocabulary, P positions.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import ctranslate2
import keras
import numpy as np
import sentencepiece
from ctranslate2 import specs

from keras_transformer.export.encoder_decoder import (
    CONFIG_FILE,
    PRODUCER,
    check_translator,
    depths,
    differences,
    position_tables,
    positions_to_write,
    refuse,
    weights_of,
    why_not_engine,
)
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.proof import comparison
from keras_transformer.export.staging import ExportError, Progress, staged
from keras_transformer.importers import ctranslate2_translator
from keras_transformer.importers.activations import TO_CTRANSLATE2
from keras_transformer.importers.mapping import NEVER
from keras_transformer.models import Transformer
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import StrPath

PRECISIONS = ("float32", "float16", "bfloat16", "int16", "int8")
MODEL_FILE = "model.bin"
VOCABULARIES = [f"{side}_vocabulary.json" for side in ("shared", "source", "target")]
TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.model", "target_tokenizer.model"
FILES = (MODEL_FILE, CONFIG_FILE, *VOCABULARIES, TOKENIZER_FILE, TARGET_TOKENIZER_FILE)
# Positions of a model without a limit, which also limit the tokens that CTranslate2 reads.
POSITIONS = 1024


def export_ctranslate2(
    model: Transformer,
    path: StrPath,
    tokenizer: Tokenizer | None = None,
    *,
    target_tokenizer: Tokenizer | None = None,
    precision: str = "float32",
    max_length: int | None = None,
    tolerance: float | None = None,
    verbose: bool = True,
) -> list[str]:
    """Writes the folder of a CTranslate2 model with the weights of a `Transformer`.

    The folder holds `model.bin`, `config.json`, the vocabularies and the tokenizers' SentencePiece
    models. CTranslate2 reads and writes pieces, and adds the end token to the source. Like our
    searches, it never writes padding or the begin token: their logits get the bias -100.

    Before the folder appears, CTranslate2 translates random sources with it. All tokens and scores
    are compared with Keras' forward pass.

    Args:
        model: `Transformer` whose positions are added to embeddings. Its weights are exported from
            float32, whatever its dtype policy.
        path: folder to write. An earlier export at this place is replaced in one step, at the end.
        tokenizer: `Tokenizer`, for the vocabulary. Defaults to `None`: strings such as "<id 17>".
        target_tokenizer: `Tokenizer` of the target, for models with two vocabularies. Defaults to
            `None`: `tokenizer`.
        precision: dtype of the stored weights: "float32", "float16", "bfloat16", "int16" or "int8".
            You choose the compute dtype when you load the model. Defaults to "float32".
        max_length: longest text in tokens. Defaults to `None`: 1024, or the limit of a model with
            learned positions.
        tolerance: largest error of a score, as in `export_onnx`. Defaults to `None`: 1e-4 for
            "float32", else 0.15.
        verbose: whether to write the progress to stderr. Defaults to `True`.

    Returns:
        List of str, the strings that the model writes, in the order of ids.

    Raises:
        TypeError, ValueError: an invalid argument, or a model that CTranslate2 does not support.
        ExportError: CTranslate2 gave other tokens. `path` is unchanged.

    Example:

    >>> export_ctranslate2(model, "out/ct2", tokenizer)  # doctest: +SKIP
    >>> engine = ctranslate2.Translator("out/ct2")  # doctest: +SKIP
    >>> pieces = processor.encode(["A man rides."], out_type=str)  # doctest: +SKIP
    >>> processor.decode(engine.translate_batch(pieces)[0].hypotheses[0])  # doctest: +SKIP
    """
    check_translator(model, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, but {precision!r} was passed.")
    if tolerance is None:
        tolerance = comparison.TOLERANCES["float32" if precision == "float32" else "int8"]
    max_length = positions_to_write(model, max_length, POSITIONS)
    refuse("CTranslate2", differences(model, TO_CTRANSLATE2))
    model = as_float32(model)
    sizes = model.vocab_size, model.target_vocab_size or model.vocab_size
    words = vocabulary(sizes[0], tokenizer), vocabulary(sizes[1], target_tokenizer or tokenizer)
    progress = Progress(verbose)
    with staged(path, why_not_engine(*FILES)) as folder:
        with progress("writing"):
            spec = _specification(model, max_length)
            _register(spec, words, model)
            spec.optimize(quantization=None if precision == "float32" else precision)
            spec.save(str(folder))
            config = json.loads((folder / CONFIG_FILE).read_bytes())
            (folder / CONFIG_FILE).write_text(json.dumps({**config, **PRODUCER}, indent=2), "utf-8")
            if tokenizer is not None:
                tokenizer.save(folder / TOKENIZER_FILE)
            if target_tokenizer is not None:
                target_tokenizer.save(folder / TARGET_TOKENIZER_FILE)
        with progress("proving it in CTranslate2"):
            _prove(folder, model, words, max_length, precision, tolerance)
    return words[1]


def vocabulary(size: int, tokenizer: Tokenizer | None = None) -> list[str]:
    """Returns a distinct string for each id: the tokenizer's piece, else `<id 17>`."""
    pieces = []
    if tokenizer is not None:
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        pieces = processor.id_to_piece(list(range(tokenizer.vocab_size)))
    return pieces + [f"<id {i}>" for i in range(len(pieces), size)]


def _register(spec: Any, words: Sequence[list[str]], model: Transformer) -> None:
    """Adds the vocabularies and the configuration to a specification."""
    source, target = words
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = target[1:4]
    spec.config.decoder_start_token = target[BEGIN_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.epsilon
    spec.validate()


def _specification(model: Transformer, max_length: int) -> Any:
    """Returns the `TransformerSpec` with all weights."""
    number = TO_CTRANSLATE2[keras.activations.get(model.activation)]
    spec = specs.TransformerSpec.from_config(
        depths(model),
        model.num_heads,
        pre_norm=model.norm_first,
        activation=specs.common_spec.Activation(number),
        layernorm_embedding=model.embedding_norm,
    )
    table, arrays = ctranslate2_translator.table_of(model), weights_of(model)
    for text, positions in zip(
        ("source", "target"), position_tables(model, max_length), strict=True
    ):
        arrays[f"{text}_positions/embeddings"] = positions
    path, size = f"{table.logits}/output_bias", model.target_vocab_size or model.vocab_size
    arrays[path] = arrays.get(path, np.zeros(size, np.float32)).copy()
    arrays[path][[PAD_ID, BEGIN_ID]] = NEVER
    tensors = table.write(arrays, {})
    for copy, original in table.copies.items():
        tensors[copy] = tensors[original]
    for name, array in tensors.items():
        layer, _, attribute = name.rpartition("/")
        setattr(specs.model_spec.index_spec(spec, layer), attribute, array)
    return spec


def _prove(
    folder: pathlib.Path,
    model: Transformer,
    words: Sequence[list[str]],
    max_length: int,
    precision: str,
    tolerance: float,
) -> None:
    """Raises `ExportError` unless CTranslate2 gives Keras' greedy tokens and scores.

    Each token must be the likeliest after the tokens before it, except for ties. A score must be
    the sum of the log-probabilities. Rounded weights may choose other tokens, but the scores must
    be right within the tolerance.
    """
    random = np.random.default_rng(0)
    longest = min(max_length, 24) - 1
    ids = [random.integers(4, len(words[0]), n).tolist() for n in (1, *range(2, longest, 3))]
    engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    found = engine.translate_batch(
        [[words[0][id] for id in row] for row in ids],
        beam_size=1,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=longest,
        max_batch_size=4,
        return_end_token=True,
        return_scores=True,
    )
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
    for source, row, one, padded in zip(ids, tokens, found, logits, strict=True):
        log_probs = padded[: len(row)]  # (T, V)
        chosen = log_probs[range(len(row)), row]
        usual = log_probs > -comparison.LARGE
        size = -chosen.sum()
        if not exact:
            size = np.where(usual, log_probs, 0.0).std(axis=1, where=usual).sum()
        error = abs(chosen.sum() - one.scores[0]) / max(size, 1.0)
        untied = (log_probs.max(axis=1) - chosen > comparison.TIE).any()
        if not error <= tolerance or (exact and untied):
            raise ExportError(
                f"Parity with CTranslate2: it wrote {row} for the source {source}, with score "
                f"{one.scores[0]:.6g}; Keras gives these tokens the score {chosen.sum():.6g}, and "
                f"its likeliest are {log_probs.argmax(axis=1).tolist()}. Please report it with the "
                "model's configuration."
            )
