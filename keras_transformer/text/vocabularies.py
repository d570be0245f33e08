"""Checks that a tokenizer belongs to a model. Imports no framework.

Tables of embeddings (`layers.base.DigestRecord`) record the `digest` of the tokenizers that they
were trained with, by side: "source" and "target". Files of their weights hold the record.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

Tokenizers = Mapping[str, Any]  # tokenizers by side


def digest_of(pieces: Sequence[str]) -> str:
    """Returns a hash of pieces in the order of their ids."""
    return hashlib.blake2b(json.dumps(pieces).encode(), digest_size=8).hexdigest()


def digests(tokenizers: Tokenizers) -> dict[str, str]:
    """Returns the digest of each tokenizer that has one, by side."""
    found = {side: getattr(each, "digest", None) for side, each in tokenizers.items()}
    return {side: digest for side, digest in found.items() if digest is not None}


def check_tokenizer(tokenizer: Any, name: str = "tokenizer") -> None:
    """Raises `TypeError` unless an argument is a tokenizer: an object with the method `encode`."""
    # Strings and searchable models have an `encode`, too.
    others = isinstance(tokenizer, str) or hasattr(tokenizer, "decode_step")
    if others or not hasattr(tokenizer, "encode"):
        raise TypeError(
            f"{name} must be a Tokenizer, but {type(tokenizer).__name__} was passed. Check the "
            "order of the arguments."
        )


def between_of(tokenizer: Any) -> list[int]:
    """Returns the ids before a second text in a row, after the end token of the first."""
    return getattr(tokenizer, "between", [])


def vocabulary_sizes(model: Any) -> dict[str, int | None]:
    """Returns the numbers of ids that a model reads ("source") and writes ("target").

    `None` means no ids or an unknown number, as in an encoder of the caller.
    """
    size = getattr(model, "vocab_size", None)
    reads_ids = getattr(model, "source_inputs", None) is None
    target = getattr(model, "target_vocab_size", None) or size
    writes_ids = hasattr(model, "decode_step")  # unlike an encoder
    return {"source": size if reads_ids else None, "target": target if writes_ids else None}


def of_both_sides(model: Any, tokenizer: Any, target_tokenizer: Any = None) -> dict[str, Any]:
    """Returns the tokenizers of a model by side.

    Args:
        model: any model.
        tokenizer: the tokenizer of the source, and of the target by default.
        target_tokenizer: the tokenizer of the target, or `None`.

    Raises:
        ValueError: the model has two vocabularies, but there is one tokenizer.
    """
    if getattr(model, "target_vocab_size", None) is not None and target_tokenizer is None:
        raise ValueError(
            "The model writes ids of a second vocabulary (target_vocab_size), but only one "
            "tokenizer was passed. Pass target_tokenizer too; the same one, if both sides share it."
        )
    return {"source": tokenizer, "target": target_tokenizer or tokenizer}


def _layers(model: Any) -> list[Any]:
    """Returns a model and the layers and models in it."""
    return model._flatten_layers() if hasattr(model, "_flatten_layers") else [model]


def _tables(model: Any, side: str) -> list[Any]:
    """Returns the tables of a model that hold ids of a side; all tables if none is known to.

    A table may be part of several models: of a translator, where it serves both sides, and of
    another one, which has its encoder and a decoder of its own.
    """
    layers = _layers(model)
    tables = [layer for layer in layers if hasattr(layer, "digests")]
    inside: dict[str, set[int]] = {"source": set(), "target": set()}
    for part in layers:
        if hasattr(part, "encoder") and hasattr(part, "decoder"):
            inside["source"] |= {id(layer) for layer in _layers(part.encoder)}
            inside["target"] |= {id(layer) for layer in _layers(part.decoder)}
    apart = (inside["source"] | inside["target"]) - inside[side]
    return [table for table in tables if id(table) not in apart] or tables


def recorded_digests(model: Any) -> dict[str, str]:
    """Returns the recorded digests of the tokenizers of a model, by side."""
    return {
        side: table.digests[side]
        for side in ("source", "target")
        for table in _tables(model, side)
        if side in table.digests
    }


def record_digests(model: Any, record: Mapping[str, str]) -> None:
    """Records digests, by side, in each table of embeddings of a model that holds ids of the side.

    A side without a digest is forgotten, except for the target of a table that other models write
    with, if this model only reads it.
    """
    writes = any(hasattr(layer, "decode_step") for layer in _layers(model))
    for side in ("target", "source"):
        for table in _tables(model, side):
            others = {name: digest for name, digest in table.digests.items() if name != side}
            if side in record:
                table.digests = {**others, side: record[side]}
            elif side == "source" or writes or "source" not in others:
                table.digests = others


def with_tokenizers(model: Any, tokenizers: Any) -> tuple[Any, Any]:
    """Records the tokenizers of an imported model, one or a pair, and returns both arguments."""
    pair = tokenizers if isinstance(tokenizers, tuple) else (tokenizers, tokenizers)
    sides = ("source", "target") if hasattr(model, "decode_step") else ("source",)
    record_digests(model, digests(dict(zip(sides, pair, strict=False))))
    return model, tokenizers


def check_tokenizers(
    model: Any, tokenizers: Tokenizers, sizes: Mapping[str, int | None] | None = None
) -> None:
    """Raises `ValueError` unless tokenizers belong to a model.

    A tokenizer may have fewer ids than the model, but no more. Its pieces must be the pieces of the
    recorded tokenizer, if the model has one.

    Args:
        model: any model.
        tokenizers: the tokenizers by side.
        sizes: the numbers of ids by side. Defaults to `None`: `vocabulary_sizes(model)`.
    """
    inner = [part for part in _layers(model) if part is not model and hasattr(part, "layers")]
    for known in [sizes or vocabulary_sizes(model), *map(vocabulary_sizes, inner)]:
        for side, does in (("source", "reads"), ("target", "writes")):
            count, size = getattr(tokenizers.get(side), "vocab_size", 0), known[side]
            if size is not None and count > size:
                raise ValueError(
                    f"The tokenizer of the {side} has {count} ids, but the model {does} {size}. "
                    "Pass the tokenizer that the model was trained with, or make a model of "
                    f"{count} ids."
                )
    refuse_other_tokenizers(recorded_digests(model), digests(tokenizers), "The model")


def refuse_other_tokenizers(
    before: Mapping[str, str], now: Mapping[str, str], trained: str
) -> None:
    """Raises `ValueError` if the digests of a side differ; `trained` is the sentence's subject."""
    for side in ("source", "target"):
        if side in before and before[side] != now.get(side, before[side]):
            raise ValueError(
                f"{trained} was trained with another tokenizer of the {side}: its pieces have the "
                f"digest {before[side]}, the pieces of the one here {now[side]}. Pass the "
                "tokenizer that it was trained with."
            )
