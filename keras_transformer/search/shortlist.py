"""A lexical shortlist: a search may write only words that are likely for those of the source.

Most of a small translator's time goes into the logits of the whole vocabulary. With a shortlist
only those of the candidates are computed: of the words that may always occur, and of those that a
table has for the tokens of the source (L'Hostis et al. 2016, arXiv 1610.00072).

Shapes: B batch, W hypotheses, S source length, V vocabulary, C candidates of a source token, K
candidates of a batch, D d_model.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import CachedDecoding
from keras_transformer.special_ids import END_ID, PAD_ID

# The logit of what is no candidate: e^-10000 is 0, and no step of a search makes NaN of it.
FORBIDDEN = -1e4


class Shortlist:
    """Which target ids may be written, for each source id.

    Args:
        table: integers (V of the source, C): candidates of each source id, `END_ID` where there are
            fewer than C.
        always: boolean (V of the target,), the ids that may always be written. The end token must
            be one.
        multiple: int. The lowest ids that may `fill` are added until the number of candidates of a
            sentence is a multiple of it, as Marian does. Defaults to 1: none.
        fill: boolean (V of the target,), ids that may be added so. Defaults to `None`: all.

    Raises:
        ValueError: shapes or ids do not fit, or the end token may not be written.

    Example:

    >>> table = np.array([[3, 3], [3, 3], [3, 3], [3, 3], [5, 3], [4, 6]])
    >>> shortlist = Shortlist(table, always=np.arange(7) < 4)
    >>> shortlist.candidates(np.array([[5, 3, 0]]))[0].nonzero()[0].tolist()
    [0, 1, 2, 3, 4, 6]
    """

    def __init__(self, table, always, multiple=1, fill=None):
        self.table, self.always = np.asarray(table, np.int32), np.asarray(always, bool)
        self.fill = np.ones_like(self.always) if fill is None else np.asarray(fill, bool)
        self.multiple, size = int(multiple), len(self.always)
        if self.table.ndim != 2 or self.fill.shape != (size,) or self.multiple < 1:
            raise ValueError(
                f"A shortlist takes a table (V, C), always and fill (V,) and a multiple from 1, "
                f"got {self.table.shape}, {self.always.shape}, {self.fill.shape} and {multiple}."
            )
        if self.table.min() < 0 or self.table.max() >= size or not self.always[END_ID]:
            raise ValueError(
                f"The table must hold ids from 0 to {size - 1}, and the end token {END_ID} must "
                f"always be allowed; it holds {self.table.min()} to {self.table.max()}."
            )

    def candidates(self, source_ids):
        """Which ids may be written about each source (B, S): boolean (B, V)."""
        return self.chosen(tf.convert_to_tensor(source_ids, tf.int32)).numpy() > 0.5

    def chosen(self, source_ids):
        """As `candidates`, for a graph: a tensor (B, V) of 0 and 1."""
        size = len(self.always)
        ids = tf.gather(self.table, source_ids)  # (B, S, C)
        ids = tf.where(tf.expand_dims(source_ids != PAD_ID, 2), ids, END_ID)
        batch_size = tf.shape(source_ids)[0]
        places = tf.reshape(ids, [batch_size, -1]) + size * tf.range(batch_size)[:, tf.newaxis]
        places = tf.reshape(places, [-1, 1])  # (B S C, 1)
        start = tf.tile(self.always.astype("float32"), [batch_size])  # (B V,)
        ones = tf.ones_like(places[:, 0], tf.float32)
        chosen = tf.reshape(tf.tensor_scatter_nd_update(start, places, ones), [batch_size, size])
        if self.multiple == 1:
            return chosen
        more = tf.math.floormod(-tf.reduce_sum(chosen, axis=1, keepdims=True), self.multiple)
        free = (1.0 - chosen) * self.fill.astype("float32")
        return chosen + free * tf.cast(tf.cumsum(free, axis=1) <= more, tf.float32)


class ShortMemory(NamedTuple):
    """What every step needs of the source, and of the candidates.

    Attributes:
        memory: the model's own.
        bias: (B, K), added to the logits: the output's own, and `FORBIDDEN` at what is no candidate
            of the sentence.
        kernel: (D, K), the columns that give the logits. All sentences share it.
        words: int64 (K,), the candidates' ids. All sentences share them.
    """

    memory: Any
    bias: Any
    kernel: Any
    words: Any

    def of(self, sentences):
        """The memory of these sentences: what all of them share stays whole."""
        own = tf.nest.map_structure(lambda x: tf.gather(x, sentences), (self.memory, self.bias))
        return ShortMemory(*own, self.kernel, self.words)


class Shortlisted:
    """A model as a search knows it, that writes only the candidates of a shortlist.

    A sentence's candidates do not depend on the others of its batch, and probabilities are those
    among them.

    Args:
        model: `Transformer` that reads token ids.
        shortlist: `Shortlist` of its vocabularies.

    Raises:
        ValueError: the sizes of model and shortlist differ.

    Example:

    >>> model, tokenizer = bergamot.load(folder)  # doctest: +SKIP
    >>> short = Shortlisted(model, bergamot.load_shortlist(folder))  # doctest: +SKIP
    >>> GreedySearch(allow_unknown=False)(short, source_ids)  # doctest: +SKIP
    """

    def __init__(self, model, shortlist):
        sizes = [model.vocab_size, getattr(model, "target_vocab_size", None) or model.vocab_size]
        found = [len(shortlist.table), len(shortlist.always)]
        if sizes != found:
            raise ValueError(
                f"The shortlist is of {found} ids, of the source and the target, but the model "
                f"reads and writes {sizes}. Pass the one that was made for it."
            )
        self.model, self.shortlist = model, shortlist
        self.max_length, self.start_ids = model.max_length, model.start_ids
        self.initial_cache = model.initial_cache

    def narrowed(self, least):
        """The same model over the candidates alone, `Narrowed`.

        `None` where that would not be the same: for subclasses that encode or decode in their own
        way, models that do not start with the begin token alone, and vocabularies below `least`.

        Args:
            least: int, how many words a search needs, so that all ids below it are added.
        """
        same = type(self).encode is Shortlisted.encode
        same = same and type(self).decode_step is Shortlisted.decode_step
        same = same and getattr(type(self.model), "start_ids", None) is CachedDecoding.start_ids
        return Narrowed(self, least) if same and least <= len(self.shortlist.always) else None

    def encode(self, source_ids):
        """`ShortMemory` of the source, ids (B, S)."""
        return self.short_memory(source_ids)

    def short_memory(self, source_ids, least=0):
        """As `encode`; all ids below `least` are among the words."""
        embedding = self.model.decoder_stack.embedding
        chosen = self.shortlist.chosen(source_ids)  # (B, V)
        lowest = (np.arange(len(self.shortlist.always)) < least).astype("float32")
        words = tf.where(tf.maximum(tf.reduce_max(chosen, axis=0), lowest) > 0)[:, 0]  # (K,)
        bias = (1.0 - tf.gather(chosen, words, axis=1)) * FORBIDDEN
        if embedding.output_bias:
            bias += tf.gather(tf.convert_to_tensor(embedding.bias), words)
        if embedding.tie_output:
            table = tf.convert_to_tensor(embedding.embeddings)
            kernel = tf.transpose(tf.gather(table, words))
        else:
            kernel = tf.gather(tf.convert_to_tensor(embedding.kernel), words, axis=1)
        return ShortMemory(self.model.encode(source_ids), bias, kernel, words)

    def decode_step(self, ids, position, memory, cache):
        """As the model's, with `FORBIDDEN` as the logit of what is no candidate."""
        logits, cache = self.candidate_logits(ids, position, memory, cache)
        batch_size, width, size = tf.shape(ids)[0], tf.shape(ids)[1], len(self.shortlist.always)
        # Rows of a word are copied as a whole: ONNX Runtime gathers single numbers far slower.
        rows = tf.transpose(tf.reshape(logits, [batch_size * width, -1]))  # (K, B W)
        every = tf.fill([size, batch_size * width], FORBIDDEN)
        every = tf.tensor_scatter_nd_update(every, tf.expand_dims(memory.words, 1), rows)
        return tf.reshape(tf.transpose(every), [batch_size, width, size]), cache

    def candidate_logits(self, ids, position, memory, cache):
        """As `decode_step`, but the logits of the candidates alone, (B, W, K)."""
        vectors, cache = self.model.decode_vectors(ids, position, memory.memory, cache)
        logits = tf.matmul(tf.cast(vectors, tf.float32), memory.kernel)  # (B, W, K)
        return logits + memory.bias[:, tf.newaxis], cache


class Narrowed:
    """A `Shortlisted` model over the candidates of a batch, numbered from 0 in the order of ids.

    To rank them takes a part of the time that the whole vocabulary takes. The lowest ids are among
    them, so that the special ones keep their numbers. What is no candidate of a sentence has its
    own logit and `FORBIDDEN`.

    Args:
        short: `Shortlisted`.
        least: int, all ids below it are added; `NUM_SPECIAL` or more.
    """

    def __init__(self, short, least):
        self.short, self.least = short, least
        self.max_length, self.initial_cache = short.max_length, short.initial_cache

    def encode(self, source_ids):
        """As `Shortlisted` does."""
        return self.short.short_memory(source_ids, self.least)

    def decode_step(self, ids, position, memory, cache):
        """As `Shortlisted` does, but ids are numbers of candidates, and the logits are theirs."""
        return self.short.candidate_logits(self.restored(ids, memory), position, memory, cache)

    def restored(self, ids, memory):
        """The ids, int32 of any shape, of numbers of candidates."""
        return tf.cast(tf.gather(memory.words, ids), tf.int32)
