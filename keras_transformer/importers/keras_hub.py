"""KerasHub's `CausalLM` and `Seq2SeqLM` for our searches and exports.

Other importers copy weights into our models. This one wraps KerasHub's layers and shares their
weights: GPT-2, Gemma, Llama or BART go from `from_preset` to one ONNX file that generates text.
Only the ids are ours.

KerasHub is imported on first use. The wrapping models are in `hub_model`.
"""

import inspect
import json
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras

from keras_transformer.importers import pieces
from keras_transformer.importers.hub_model import HubCausalModel, HubModel, HubSeq2SeqModel
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, StrPath

# Inputs of a task, by its kind, and the arguments of its method that decodes with a cache.
CAUSAL_INPUTS = {"token_ids", "padding_mask"}
CAUSAL_ARGUMENTS = ("token_ids", "cache", "cache_update_index")
SEQ2SEQ_INPUTS = {
    f"{side}_{name}" for side in ("encoder", "decoder") for name in ("token_ids", "padding_mask")
}
SEQ2SEQ_ARGUMENTS = (
    *("encoder_hidden_states", "encoder_padding_mask", "decoder_token_ids"),
    *("self_attention_cache", "self_attention_cache_update_index"),
    *("cross_attention_cache", "cross_attention_cache_update_index"),
)


def load_model(
    task: keras.Model | StrPath,
    *,
    begin_id: int | None = None,
    end_id: int | None = None,
    pad_id: int | None = None,
    unknown_id: int | None = None,
    start: Sequence[int] | None = None,
    name: str | None = None,
) -> HubModel:
    """Wraps a task of KerasHub in a Keras model for searches and exports.

    The model shares the weights of the task, so you can train either. It reads and writes our ids
    (0 to 3 are padding, unknown, begin and end); `hub_ids` and `our_ids` convert ids. A saved model
    contains its task (`model.task`).

    Args:
        task: `keras_hub.models.CausalLM` or `Seq2SeqLM`, or the name or folder of a preset.
        begin_id, end_id, pad_id, unknown_id: int, KerasHub's ids of the special tokens. Default to
            the ids of the task's tokenizer; without a tokenizer to `None`, a token that is absent.
        start: list of int, for a `Seq2SeqLM`: KerasHub's ids of the first tokens of each target.
            Defaults to the start that the preprocessor adds, or `[begin_id]`.
        name: str, name of the model. Defaults to the name of the task.

    Returns:
        `hub_model.HubCausalModel` or `hub_model.HubSeq2SeqModel`.

    Raises:
        ImportError: KerasHub is missing.
        TypeError: a task of another class, with image or sound inputs, or with another kind of
            cache.
        ValueError: the end token is unknown, or the task has no such id.

    Example:

    >>> task = keras_hub.models.CausalLM.from_preset("gpt2_base_en")  # doctest: +SKIP
    >>> model = load_model(task)  # doctest: +SKIP
    >>> export_onnx(model, "out/gpt2", search=GreedySearch())  # doctest: +SKIP
    """
    task = _checked(task)
    given = {"begin_id": begin_id, "end_id": end_id, "pad_id": pad_id, "unknown_id": unknown_id}
    ids = _special_ids(task) | {key: id for key, id in given.items() if id is not None}
    kind = HubCausalModel
    if _reads_source(task):
        kind, start = HubSeq2SeqModel, _start(task) if start is None else start
        if ids.get("begin_id") is None and start:
            ids["begin_id"] = start[-1]
        ids["start"] = start or [ids.get("begin_id")]
    if ids.get("end_id") is None or None in ids.get("start", ()):
        raise ValueError(
            f"{task.name} has no preprocessor, which would give the tokens that begin and end a "
            "text. Pass end_id and begin_id, and pad_id if the task has a padding token."
        )
    return kind(task, name=name or task.name, **{"begin_id": None, **ids})


def load(task: keras.Model | StrPath, **options: Any) -> tuple[HubModel, Tokenizer | JsonTokenizer]:
    """Loads the model of `load_model`, and the tokenizer of the task with our ids.

    Returns:
        `(model, tokenizer)`: a `Tokenizer` (SentencePiece) or a `JsonTokenizer` (byte pairs). It
        segments text as KerasHub's tokenizer does outside of a graph.

    Raises:
        TypeError: a tokenizer of another kind.
        ValueError: the task has no preprocessor; otherwise as `load_model`.
    """
    model = load_model(task, **options)
    preprocessor = model.task.preprocessor
    if preprocessor is None:
        raise ValueError(
            f"{model.name} has no preprocessor and so no tokenizer. Attach the preprocessor of "
            "its training, or use load_model and export ids."
        )
    return with_tokenizers(model, _tokenizer(model, preprocessor.tokenizer))


def _hub() -> ModuleType:
    """Imports the package keras_hub."""
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "KerasHub's models need the package keras-hub, which is not installed here. Install "
            "it with: pip install keras-hub",
            name="keras_hub",
        ) from error
    return keras_hub


def _reads_source(task: Any) -> bool:
    return isinstance(task, _hub().models.Seq2SeqLM)


def _checked(task: Any) -> Any:
    """Returns the task, loaded if `task` names its preset.

    Raises:
        TypeError: a search cannot call its methods.
    """
    if isinstance(task, (str, os.PathLike)):
        task = _hub().models.CausalLM.from_preset(str(task))  # a Seq2SeqLM is one, too
    if not isinstance(task, _hub().models.CausalLM):
        raise TypeError(
            "task must be a CausalLM or Seq2SeqLM of keras_hub.models, or the name of a preset, "
            f"but is {type(task).__name__}. Export a functional model without a search by "
            "export_onnx(model, path)."
        )
    source = _reads_source(task)
    method = "call_decoder_with_cache" if source else "call_with_cache"
    expected = SEQ2SEQ_ARGUMENTS if source else CAUSAL_ARGUMENTS
    found = getattr(task, method, None)
    arguments = tuple(inspect.signature(found).parameters) if found else ()
    inputs = {tensor.name for tensor in task.inputs}
    if arguments != expected or inputs != (SEQ2SEQ_INPUTS if source else CAUSAL_INPUTS):
        raise TypeError(
            f"{type(task).__name__} reads {sorted(inputs)} and has {method}{arguments}. A search "
            f"needs {method}{expected} and ids as the only inputs: models with images, sound or "
            "another kind of cache are not supported."
        )
    return task


def _special_ids(task: Any) -> dict[str, Any]:
    """Returns the tokenizer's ids of special tokens, by our arguments."""
    tokenizer = getattr(task.preprocessor, "tokenizer", None)
    if tokenizer is None:
        return {}
    names = {"begin_id": "start", "end_id": "end", "pad_id": "pad"}
    # A tokenizer without padding reports id 0, which is an ordinary token.
    ids = {
        ours: getattr(tokenizer, f"{theirs}_token_id")
        for ours, theirs in names.items()
        if getattr(tokenizer, f"{theirs}_token", None) is not None
    }
    if getattr(tokenizer, "proto", None):
        ids["unknown_id"] = pieces.unknown_id(tokenizer.proto)
    return ids


def _start(task: Any) -> list[int] | None:
    """Returns KerasHub's ids that a `Seq2SeqLM`'s preprocessor puts before a target."""
    if task.preprocessor is None:
        return None
    packed = _packed(task)
    mask = packed["decoder_padding_mask"][0] != 0
    return packed["decoder_token_ids"][0][mask].tolist()


def _packed(task: Any) -> dict[str, Array]:
    """Returns the inputs that a `Seq2SeqLM`'s preprocessor makes of empty texts, by name."""
    packed = task.preprocessor.generate_preprocess({"encoder_text": [""], "decoder_text": [""]})
    return {name: keras.ops.convert_to_numpy(array) for name, array in packed.items()}


def _tokenizer(model: HubModel, tokenizer: Any) -> Tokenizer | JsonTokenizer:
    """Returns KerasHub's tokenizer with our ids."""
    kinds = _hub().tokenizers
    if isinstance(tokenizer, kinds.SentencePieceTokenizer):
        names = pieces.piece_names(pieces.piece_ids(tokenizer.proto), model.order)
        return pieces.renumbered(tokenizer.proto, names)
    # KerasHub segments text with the package `tokenizers`. The object has no public name, and the
    # vocabulary and merges alone do not contain its rules.
    inner = getattr(tokenizer, "_tokenizer", None)
    if not isinstance(tokenizer, kinds.BytePairTokenizer) or inner is None:
        raise TypeError(
            f"{type(tokenizer).__name__} is neither a SentencePiece model nor a tokenizer of the "
            "package tokenizers, so it cannot have our ids. Use load_model and export ids."
        )
    begin = None
    if _reads_source(model.task) and model.begin_id in _packed(model.task)["encoder_token_ids"]:
        begin = tokenizer.start_token  # every source begins with it, as in BERT
    return pieces.renumbered_json(json.loads(inner.to_str()), model.order, begin)
