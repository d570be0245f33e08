"""KerasHub's models as they are: its `CausalLM` and `Seq2SeqLM` for our searches and exports.

Other importers copy weights into a model of ours. Here the origin's own layers compute, by the
methods that its `generate` uses, and share their weights: GPT-2, Gemma, Llama or BART go from
`from_preset` to one ONNX file that generates. Only the ids are ours.

KerasHub is imported when it is needed. The models themselves are in `hub_model`.
"""

import inspect
import json
import os

import keras

from keras_transformer.importers import json_pieces, pieces
from keras_transformer.importers.hub_model import HubCausalModel, HubSeq2SeqModel

# What a task reads, by its kind, and the arguments of its method that decodes with a cache.
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
    task, *, begin_id=None, end_id=None, pad_id=None, unknown_id=None, start=None, name=None
):
    """A task of KerasHub's as a Keras model that searches and exports take.

    The model has the task's weights, not copies: train either, by its own `fit`. It reads and
    writes our ids, 0 to 3 for padding, unknown, begin and end, and has two methods between the
    two, `hub_ids` and `our_ids`. It is saved as any other; its task comes with it (`model.task`).

    Args:
        task: `keras_hub.models.CausalLM` or `Seq2SeqLM`, or what `from_preset` takes: the name or
            the folder of a preset.
        begin_id, end_id, pad_id, unknown_id: KerasHub's ids of the special tokens. Default to
            those of the task's tokenizer; without one, to `None` for a token that is not there.
        start: for a `Seq2SeqLM`, KerasHub's ids of what each target starts with, a list. Defaults
            to what the task's preprocessor puts there, or `[begin_id]`.
        name: of the model. Defaults to the task's.

    Returns:
        `hub_model.HubCausalModel` or `hub_model.HubSeq2SeqModel`.

    Raises:
        ImportError: KerasHub is missing.
        TypeError: a task of another class, one that reads images or sound, or keeps another kind
            of cache.
        ValueError: it is not known which token ends a text, or an id is none of the task's.

    Example:

    >>> task = keras_hub.models.CausalLM.from_preset("gpt2_base_en")  # doctest: +SKIP
    >>> model = load_model(task)  # doctest: +SKIP
    >>> export_onnx(model, "out/gpt2", search=GreedySearch())  # doctest: +SKIP
    """
    task = _checked(_loaded(task))
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
            f"{task.name} has no preprocessor, so it is not known which of its tokens end a text "
            "and begin one. Pass end_id and begin_id, and pad_id where it has such a token."
        )
    return kind(task, name=name or task.name, **{"begin_id": None, **ids})


def load(task, **options):
    """As `load_model`, and the tokenizer of the task's preprocessor, with our ids.

    Returns:
        `(model, tokenizer)`, the second a `Tokenizer` (SentencePiece) or a `JsonTokenizer` (byte
        pairs). It cuts text as KerasHub's tokenizer does when it is called outside of a graph.

    Raises:
        TypeError: a tokenizer of another kind.
        ValueError: the task has no preprocessor; otherwise as `load_model`.
    """
    model = load_model(task, **options)
    preprocessor = model.task.preprocessor
    if preprocessor is None:
        raise ValueError(
            f"{model.name} has no preprocessor, and so no tokenizer. Attach the one that it was "
            "trained with, or take load_model and export ids."
        )
    return model, _tokenizer(model, preprocessor.tokenizer)


def _hub():
    """The package."""
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "KerasHub's models need the package keras-hub, which is not installed here. Install "
            "it with: pip install keras-hub",
            name="keras_hub",
        ) from error
    return keras_hub


def _loaded(task):
    """The task itself, or that of a preset."""
    if isinstance(task, (str, os.PathLike)):
        return _hub().models.CausalLM.from_preset(str(task))  # a Seq2SeqLM is one, too
    return task


def _reads_source(task):
    return isinstance(task, _hub().models.Seq2SeqLM)


def _checked(task):
    """The task; raises `TypeError` unless it can be searched as it is."""
    if not isinstance(task, _hub().models.CausalLM):
        raise TypeError(
            "A CausalLM or Seq2SeqLM of keras_hub.models is needed, or the name of a preset, but "
            f"{type(task).__name__} was passed. A functional model without a search can be "
            "exported as it is: export_onnx(model, path)."
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


def _special_ids(task):
    """KerasHub's ids of the special tokens by our arguments, as far as a tokenizer tells them."""
    tokenizer = getattr(task.preprocessor, "tokenizer", None)
    if tokenizer is None:
        return {}
    names = {"begin_id": "start", "end_id": "end", "pad_id": "pad"}
    # A tokenizer without padding calls its id 0 that, which is a token like any other.
    ids = {
        ours: getattr(tokenizer, f"{theirs}_token_id")
        for ours, theirs in names.items()
        if getattr(tokenizer, f"{theirs}_token", None) is not None
    }
    if getattr(tokenizer, "proto", None):
        ids["unknown_id"] = pieces.unknown_id(tokenizer.proto)
    return ids


def _start(task):
    """What the preprocessor of a `Seq2SeqLM` starts a target with, KerasHub's ids."""
    if task.preprocessor is None:
        return None
    packed = _packed(task)
    there = packed["decoder_padding_mask"][0] != 0
    return packed["decoder_token_ids"][0][there].tolist()


def _packed(task):
    """What the preprocessor of a `Seq2SeqLM` makes of empty texts, arrays by name."""
    packed = task.preprocessor.generate_preprocess({"encoder_text": [""], "decoder_text": [""]})
    return {name: keras.ops.convert_to_numpy(array) for name, array in packed.items()}


def _tokenizer(model, tokenizer):
    """KerasHub's tokenizer with our ids."""
    kinds = _hub().tokenizers
    if isinstance(tokenizer, kinds.SentencePieceTokenizer):
        names = pieces.piece_names(pieces.piece_ids(tokenizer.proto), model.order)
        return pieces.renumbered(tokenizer.proto, names)
    # KerasHub cuts text with the package tokenizers. It has no public way to that object, but its
    # rules are more than the vocabulary and the merges.
    known = getattr(tokenizer, "_tokenizer", None)
    if not isinstance(tokenizer, kinds.BytePairTokenizer) or known is None:
        raise TypeError(
            f"{type(tokenizer).__name__} can be given our ids neither as a SentencePiece model nor "
            "as one of the package tokenizers. Take load_model and export ids."
        )
    begin = None
    if _reads_source(model.task) and model.begin_id in _packed(model.task)["encoder_token_ids"]:
        begin = tokenizer.start_token  # every source begins with it, as BERT's texts do
    return json_pieces.renumbered(json.loads(known.to_str()), model.order, begin)
