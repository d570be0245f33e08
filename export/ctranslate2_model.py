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

from keras_transformer.export.artefact import signature
from keras_transformer.export.encoder_decoder import (
    CONFIG_FILE,
    PRODUCER,
    GreedyTask,
    check_translator,
    depths,
    differences,
    position_tables,
    positions_to_write,
    weights_of,
    why_not_engine,
)
from keras_transformer.export.exporter import Case, Format, Part, export
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.staging import Progress, WhyNot
from keras_transformer.importers import ctranslate2_translator
from keras_transformer.importers.activations import TO_CTRANSLATE2
from keras_transformer.importers.mapping import NEVER
from keras_transformer.models import Transformer
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, Ids, StrPath

PRECISIONS = ("float32", "float16", "bfloat16", "int16", "int8")
MODEL_FILE = "model.bin"
VOCABULARIES = [f"{side}_vocabulary.json" for side in ("shared", "source", "target")]
TOKENIZERS = signature.TOKENIZER_FILE, signature.TARGET_TOKENIZER_FILE
FILES = (MODEL_FILE, CONFIG_FILE, *VOCABULARIES, *TOKENIZERS)
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

    Before the folder appears, CTranslate2 translates random sources with it. All tokens are
    compared with a greedy search by Keras' forward pass, and all scores with this pass.

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
        tolerance: largest error of a score, as in `export_onnx`. Defaults to `None`:
            `proof.comparison.TOLERANCES[precision]`.
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
    limits = differences(TO_CTRANSLATE2)
    check_translator(model, tokenizer, target_tokenizer, "CTranslate2", limits)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {PRECISIONS}, but {precision!r} was passed.")
    max_length = positions_to_write(model, max_length, POSITIONS)
    made = CTranslate2(model, max_length, precision, tokenizer, target_tokenizer)
    made.tolerance = tolerance
    export(path, made, verbose=verbose)
    return made.words[1]


class CTranslate2(Format):
    """The folder of a CTranslate2 model, which runs a greedy search.

    Args:
        model: `Transformer`.
        max_length: the number of positions P.
        precision, tokenizer, target_tokenizer: as in `export_ctranslate2`.

    Attributes:
        words: for source and target the string of each id.
    """

    why_not: WhyNot = staticmethod(why_not_engine(*FILES))

    def __init__(
        self,
        model: Transformer,
        max_length: int,
        precision: str,
        tokenizer: Tokenizer | None,
        target_tokenizer: Tokenizer | None,
    ) -> None:
        self.model: Transformer = as_float32(model)
        self.max_length: int = max_length
        self.precision: str = precision
        self.tokenizers: Sequence[Any] = (tokenizer, target_tokenizer)
        sizes = model.vocab_size, model.target_vocab_size or model.vocab_size
        given = tokenizer, target_tokenizer or tokenizer
        self.words: list[list[str]] = list(map(vocabulary, sizes, given))
        random, longest = np.random.default_rng(0), min(max_length, 24) - 1
        rows = [random.integers(4, sizes[0], n).tolist() for n in (1, *range(2, longest, 3))]
        task = GreedyTask(self.model, longest, passed=model)
        source = pad_rows([[*row, END_ID] for row in rows])
        self.parts: Sequence[Part] = [Part(task, [{signature.SOURCE_IDS: source}], made_up=True)]

    def write(self, folder: pathlib.Path, progress: Progress) -> None:
        with progress("writing"):
            spec = _specification(self.model, self.max_length)
            _register(spec, self.words, self.model)
            spec.optimize(quantization=None if self.precision == "float32" else self.precision)
            spec.save(str(folder))
            config = json.loads((folder / CONFIG_FILE).read_bytes())
            (folder / CONFIG_FILE).write_text(json.dumps({**config, **PRODUCER}, indent=2), "utf-8")

    def run(
        self, folder: pathlib.Path, calls: Sequence[tuple[str, Case]]
    ) -> list[dict[str, Array]]:
        engine = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
        return [self._translated(engine, case["source_ids"]) for _, case in calls]

    def _translated(self, engine: Any, source: Ids) -> dict[str, Array]:
        """Returns greedy token_ids (B, 1, T) and scores (B, 1) of sources (B, S)."""
        words, ids = self.words[0], {word: id for id, word in enumerate(self.words[1])}
        found = engine.translate_batch(
            [[words[id] for id in row if id > END_ID] for row in source],
            beam_size=1,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=self.parts[0].task.max_length,
            max_batch_size=4,
            return_end_token=True,
            return_scores=True,
        )
        rows = pad_rows([[ids[word] for word in one.hypotheses[0]] for one in found])
        scores = np.array([one.scores for one in found], np.float32)
        return {"token_ids": rows[:, np.newaxis], "scores": scores}


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
