"""Lexical shortlists: a search may use only words that are likely for the words of the source.

A small translator spends most of its time on the logits of the whole vocabulary. A shortlist
restricts them to candidates: words that are always allowed, and words that a table lists for the
tokens of the source (L'Hostis et al. 2016, arXiv 1610.00072).

Shapes: B batch, W hypotheses, S source length, V vocabulary, C candidates of a source token, K
candidates of a batch, D d_model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.decoding import (
    Alignments,
    Cache,
    CachedDecoding,
    Shared,
    is_causal,
    reads_ids,
)
from keras_transformer.search.scores import LEAST_LISTED, NOT_LISTED, Scores
from keras_transformer.special_ids import END_ID, NUM_SPECIAL, PAD_ID
from keras_transformer.types import Array, Tensor


class Shortlist:
    """The target ids that a search may use, for each source id.

    Args:
        table: integers (V of the source, C): candidates of each source id, padded with `END_ID`.
        always: boolean (V of the target,), the ids that are always allowed. The end token must be
            one of them.
        multiple: int. The lowest ids of `fill` are added until the number of candidates of a
            sentence is a multiple of it, as in Marian. Defaults to 1: none are added.
        fill: boolean (V of the target,), the ids that may be added. Defaults to `None`: all.

    Raises:
        ValueError: if shapes or ids do not fit, or if the end token is not always allowed.

    Example:

    >>> table = np.array([[3, 3], [3, 3], [3, 3], [3, 3], [5, 3], [4, 6]])
    >>> shortlist = Shortlist(table, always=np.arange(7) < 4)
    >>> shortlist.candidates(np.array([[5, 3, 0]]))[0].nonzero()[0].tolist()
    [0, 1, 2, 3, 4, 6]
    """

    def __init__(
        self,
        table: npt.ArrayLike,
        always: npt.ArrayLike,
        multiple: int = 1,
        fill: npt.ArrayLike | None = None,
    ) -> None:
        self.table: Array = np.asarray(table, np.int32)
        self.always: Array = np.asarray(always, bool)
        self.fill: Array = np.ones_like(self.always) if fill is None else np.asarray(fill, bool)
        self.multiple: int = int(multiple)
        size = len(self.always)
        if self.table.ndim != 2 or self.fill.shape != (size,) or self.multiple < 1:
            raise ValueError(
                f"A shortlist takes a table (V, C), always and fill (V,) and a multiple above 0, "
                f"got {self.table.shape}, {self.always.shape}, {self.fill.shape} and {multiple}."
            )
        if self.table.min() < 0 or self.table.max() >= size or not self.always[END_ID]:
            raise ValueError(
                f"The table must hold ids from 0 to {size - 1}, and the end token {END_ID} must "
                f"always be allowed; it holds {self.table.min()} to {self.table.max()}."
            )

    @classmethod
    def from_pairs(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        source_size: int,
        target_size: int | None = None,
        *,
        candidates: int = 50,
        frequent: int = 100,
        rounds: int = 5,
    ) -> Self:
        """Makes a shortlist of the likeliest translations of each source id in sentence pairs.

        IBM model 1 (Brown et al. 1993, section 4.2): each target token comes from one token of the
        source, and expectation maximization finds P(target | source). 60,000 pairs of 13 tokens
        take 5 seconds and 0.7 GB; a sample of a larger corpus is enough.

        Args:
            sources, targets: lists of N lists of token ids, as `tokenizer.encode` returns them.
            source_size, target_size: vocabulary sizes. The target's defaults to the source's.
            candidates: C, greatest number of candidates of a source id. Defaults to 50.
            frequent: number of most frequent target ids, which are always allowed. Defaults to 100.
            rounds: number of rounds of expectation maximization. Defaults to 5.

        Raises:
            ValueError: the lists differ in length, an id is not below its vocabulary size, or a
                number is too small.

        Example:

        >>> shortlist = Shortlist.from_pairs([[5], [5, 6]], [[8], [9, 8]], 10, frequent=0)
        >>> shortlist.table[[5, 6], 0].tolist()  # the likeliest target of each
        [8, 9]
        """
        if min(candidates, rounds) < 1 or frequent < 0:
            raise ValueError(
                "`candidates` and `rounds` must be at least 1, and `frequent` at least 0, got "
                f"{candidates}, {rounds} and {frequent}."
            )
        size = target_size or source_size
        pairs = [
            (np.array(s, np.int64), np.array(t, np.int64))
            for s, t in zip(sources, targets, strict=True)
        ]
        pairs = [(s, t) for s, t in pairs if len(s) and len(t)]
        nothing = np.zeros(0, int)
        ids = [np.concatenate([nothing, *(pair[side] for pair in pairs)]) for side in (0, 1)]
        for name, found, most in zip(("sources", "targets"), ids, (source_size, size), strict=True):
            if found.min(initial=0) < 0 or found.max(initial=0) >= most:
                raise ValueError(
                    f"Ids of {name} must be from 0 to {most - 1}, got {found.min()} to "
                    f"{found.max()}. Pass the tokenizer's vocabulary size."
                )
        always = np.arange(size) < NUM_SPECIAL
        always[np.argsort(-np.bincount(ids[1], minlength=size), kind="stable")[:frequent]] = True
        table = np.full((source_size, candidates), END_ID)
        if pairs:
            source, target, probability = _ibm_model_1(pairs, size, rounds)
            order = np.lexsort((-probability, source))
            source, target = source[order], target[order]
            rank = np.arange(len(source)) - np.searchsorted(source, source)
            kept = rank < candidates
            table[source[kept], rank[kept]] = target[kept]
        return cls(table, always)

    def candidates(self, source_ids: npt.ArrayLike) -> Array:
        """Returns the ids that are allowed for each source (B, S): boolean (B, V)."""
        return self.chosen(tf.convert_to_tensor(source_ids, tf.int32)).numpy() > 0.5

    def chosen(self, source_ids: Tensor, also: Sequence[Tensor] = ()) -> Tensor:
        """Computes `candidates` in a graph: float32 (B, V), 1 for allowed ids, else 0.

        Args:
            source_ids: int32 (B, S).
            also: int32 tensors (B, ...), further ids that are allowed. 0 is padding; ids outside
                the vocabulary allow nothing.
        """
        size = len(self.always)
        ids = tf.gather(self.table, source_ids)  # (B, S, C)
        ids = tf.where(tf.expand_dims(source_ids != PAD_ID, 2), ids, END_ID)
        batch_size = tf.shape(source_ids)[0]
        places = []
        for more in (ids, *also):
            offset = tf.reshape(size * tf.range(batch_size), [-1, *[1] * (len(more.shape) - 1)])
            more = tf.where(tf.logical_and(more > PAD_ID, more < size), more, END_ID)
            places.append(tf.reshape(more + offset, [-1, 1]))
        places = tf.concat(places, axis=0) if also else places[0]  # (B S C + ..., 1)
        start = tf.tile(self.always.astype("float32"), [batch_size])  # (B V,)
        ones = tf.ones_like(places[:, 0], tf.float32)
        chosen = tf.reshape(tf.tensor_scatter_nd_update(start, places, ones), [batch_size, size])
        if self.multiple == 1:
            return chosen
        counts = tf.reduce_sum(chosen, axis=1, keepdims=True)
        more = tf.math.floormod(-counts, self.multiple)
        # Below the lowest free ids, all ids are chosen or may not be added.
        others = self.multiple - 1 + np.sum(~self.fill)
        end = tf.cast(tf.reduce_max(counts), tf.int32) + others
        low = chosen[:, :end]
        free = (1.0 - low) * tf.constant(self.fill.astype("float32"))[:end]
        low += free * tf.cast(tf.cumsum(free, axis=1) <= more, tf.float32)
        return tf.concat([low, chosen[:, end:]], axis=1)


def _ibm_model_1(
    pairs: Sequence[tuple[Array, Array]], size: int, rounds: int
) -> tuple[Array, Array, Array]:
    """Returns sources, targets and P(target | source), each (P,), of all ids that share a pair."""
    keys = np.concatenate([np.add.outer(s * size, t).ravel() for s, t in pairs])
    keys, places = np.unique(keys, return_inverse=True)
    starts = np.cumsum([0, *(len(t) for _, t in pairs[:-1])])
    words = np.concatenate(  # the target token that each place belongs to
        [
            np.tile(np.arange(start, start + len(t)), len(s))
            for start, (s, t) in zip(starts, pairs, strict=True)
        ]
    )
    source = keys // size
    probability = np.ones(len(keys))
    for _ in range(rounds):
        share = probability[places]  # of each source token in each target token
        share /= np.bincount(words, share)[words]
        probability = np.bincount(places, share)
        probability /= np.bincount(source, probability)[source]
    return source, keys % size, probability


class ShortMemory(NamedTuple):
    """The encoded source, and the output layer for the candidates of the batch.

    Attributes:
        memory: the model's own memory.
        bias: (B, K), added to the logits: the bias of the output layer, and `NOT_LISTED` for ids
            that are not candidates of the sentence.
        kernel: (D, K), the columns of the output layer.
        ids: int64 (K,), the ids of the candidates.
        columns: int32 (V,), the place of each id in `ids`; 0 for other ids.
    """

    memory: Any
    bias: Tensor
    kernel: Shared
    ids: Shared
    columns: Shared


class Shortlisted:
    """A `SearchModel` that generates only the candidates of a shortlist.

    The candidates of a sentence do not depend on the other sentences of its batch. Probabilities
    are normalised over the candidates.

    Args:
        model: `Transformer` that reads token ids.
        shortlist: `Shortlist` of its vocabularies.

    Raises:
        TypeError: if `shortlist` is not a `Shortlist`.
        ValueError: if the model reads or writes something else, or if the vocabulary sizes of model
            and shortlist differ.

    Example:

    >>> model, tokenizer = bergamot.load(folder)  # doctest: +SKIP
    >>> short = Shortlisted(model, bergamot.load_shortlist(folder))  # doctest: +SKIP
    >>> GreedySearch(allow_unknown=False)(short, source_ids)  # doctest: +SKIP
    """

    def __init__(self, model: CachedDecoding, shortlist: Shortlist) -> None:
        if not isinstance(shortlist, Shortlist):
            raise TypeError(
                f"shortlist must be a Shortlist, but {type(shortlist).__name__} was passed."
            )
        if not isinstance(model, CachedDecoding) or is_causal(model) or not reads_ids(model):
            raise ValueError(
                "A shortlist limits the tokens that a search may write for a source of token ids: "
                f"pass a Transformer that reads ids, or leave it out ({type(model).__name__})."
            )
        target_size: int | None = getattr(model, "target_vocab_size", None)
        sizes = [model.vocab_size, target_size or model.vocab_size]
        listed = [len(shortlist.table), len(shortlist.always)]
        if sizes != listed:
            raise ValueError(
                f"The shortlist is for {listed} ids of source and target, but the model has "
                f"{sizes}. Pass the shortlist that belongs to the model."
            )
        self.model: CachedDecoding = model
        self.shortlist: Shortlist = shortlist
        self.vocab_size: int = model.vocab_size
        self.target_vocab_size: int | None = target_size
        self.digests: Mapping[str, str] = model.tokenizers
        self.max_length: int | None = model.max_length
        self.max_source_length: int | None = model.max_source_length
        self.start_ids: Callable[[Tensor], Tensor] = model.start_ids
        self.initial_cache: Callable[[Tensor, int], Cache] = model.initial_cache
        self.close: Callable[[Cache, Tensor], Cache] = model.close

    def logit_bias(self, source_ids: Array) -> Array:
        """Returns what `decode_step` adds to logits for sources (B, S): 0 for a candidate, (B, V).

        A candidate is an id that `Shortlist.candidates` allows. All others get `NOT_LISTED`.
        """
        return np.where(self.shortlist.candidates(source_ids), 0.0, NOT_LISTED)

    @property
    def weights(self) -> list[keras.Variable]:
        """The model's weights. A search compiles anew if other weights take their place."""
        return self.model.weights

    def encode(self, source_ids: Tensor) -> ShortMemory:
        """Encodes the source, ids (B, S), and selects the candidates of the batch."""
        return self.encode_allowing(source_ids, ())

    def encode_allowing(self, source_ids: Tensor, also: Sequence[Tensor]) -> ShortMemory:
        """Encodes as `encode`, with further candidates.

        Args:
            source_ids: int32 (B, S).
            also: int32 tensors (B, ...), ids that are candidates of their sentence too; 0 is
                padding. A search passes its target prefix and the tokens of its terms.
        """
        embedding = self.model.decoder_stack.embedding
        chosen = self.shortlist.chosen(source_ids, also)  # (B, V)
        lowest = (np.arange(len(self.shortlist.always)) < LEAST_LISTED).astype("float32")
        ids = tf.where(tf.maximum(tf.reduce_max(chosen, axis=0), lowest) > 0)[:, 0]  # (K,)
        bias = (1.0 - tf.gather(chosen, ids, axis=1)) * NOT_LISTED
        if embedding.output_bias:
            bias += tf.gather(tf.convert_to_tensor(embedding.bias), ids)
        if embedding.tie_output:
            table = tf.convert_to_tensor(embedding.embeddings)
            kernel = tf.transpose(tf.gather(table, ids))
        else:
            kernel = tf.gather(tf.convert_to_tensor(embedding.kernel), ids, axis=1)
        columns = tf.scatter_nd(
            ids[:, tf.newaxis], tf.range(tf.size(ids)), self.shortlist.always.shape
        )
        memory = self.model.encode(source_ids)
        return ShortMemory(memory, bias, Shared(kernel), Shared(ids), Shared(columns))

    def decode_step(
        self,
        ids: Tensor,
        position: Tensor,
        memory: ShortMemory,
        cache: Cache,
        alignments: Alignments = False,
    ) -> tuple[Any, ...]:
        """Computes the logits of the candidates; all other ids have the logit `NOT_LISTED`."""
        vectors, cache, *weights = self.model.decode_vectors(
            ids, position, memory.memory, cache, alignments
        )
        logits = tf.matmul(tf.cast(vectors, tf.float32), memory.kernel.tensor)  # (B, W, K)
        logits += memory.bias[:, tf.newaxis]
        scores = Scores(logits, memory.ids.tensor, memory.columns.tensor)
        return scores, cache, *weights
