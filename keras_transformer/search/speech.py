"""The search of OpenAI's decoder for Whisper.

Shapes: B batch, W hypotheses, P start tokens, V vocabulary, C next tokens, K start scores.
"""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import check_number
from keras_transformer.decoding import Cache, SearchModel
from keras_transformer.search import loop
from keras_transformer.search.beam import BeamSearch
from keras_transformer.search.inputs import START_IDS, batch_size_of, checked_alignments
from keras_transformer.search.loop import GivenTokens, Hypotheses, LoopInputs
from keras_transformer.search.sampling import draw, start_draws
from keras_transformer.search.scores import Forbidden, Scores, forbid, select
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID
from keras_transformer.types import Tensor


class SpeechResult(NamedTuple):
    """The result of a `SpeechSearch`.

    Attributes:
        ids, scores, token_scores, alignments: as in `SearchResult`.
        start_scores: float32 (B, K), log-probabilities after the begin token.
        word_attention: float32 (B, A, T', S), the attention of A heads to the source, for the text
            of the best hypothesis. `()` unless the search has `word_heads`.
        word_scores: float32 (B, T' - 1), log-probabilities among text tokens of each token after
            the first one; `()` unless the search has `word_heads`.
    """

    ids: Tensor
    scores: Tensor
    token_scores: Tensor | tuple[()]
    alignments: Tensor | tuple[()]
    start_scores: Tensor
    word_attention: Tensor | tuple[()] = ()
    word_scores: Tensor | tuple[()] = ()


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class SpeechSearch(BeamSearch):
    """Beam search, greedy search and sampling of a Whisper model, as in OpenAI's decoder.

    It differs from `BeamSearch` in these points:

    - The start tokens pass through the decoder at once, not one by one.
    - The unknown token 1 among the start tokens, after the begin token, stands for the language.
      The search replaces it by the most likely one of `languages`.
    - The result has `start_scores`, the log-probabilities after the begin token: of `no_speech`,
      then of each language.
    - A call with `temperature` above 0 samples W hypotheses instead.
    - The score of a hypothesis of n tokens, without its end token, is its sum of log-probabilities
      over n^alpha.
    - A call with `word_times=1` gives `word_attention` and `word_scores`, if the search has
      `word_heads`. The text of the best hypothesis, without its times, passes through the decoder
      once more. T' counts the start tokens, `no_times`, the text, the end token, then padding.
    - It generates at most half of the model's positions: the other half is for previous text.

    The model must read `start_ids`, see `Transformer(reads_start=True)`.

    Args:
        beam_width: int, W. 1 is greedy search. Defaults to 5.
        length_penalty: number, alpha. Defaults to 1.0, the mean.
        no_speech: int, the token that stands for sound without speech.
        languages: sequence of ids, the tokens of the languages. Defaults to none.
        no_times: the token that asks for text without times. Required with `word_heads`.
        word_heads: pairs of a decoder block and a head of its attention to the source, which show
            the time of each token. Defaults to none.
        early_stop, min_length, allow_unknown, constraints, token_scores, alignments: as in
            `BeamSearch`.

    Call arguments: as in `BeamSearch`, and `temperature`, `seed` and `word_times`. Equal seeds and
        start tokens draw equal random numbers.

    Returns:
        `SpeechResult`.

    Raises:
        ValueError: the model does not read `start_ids`, or an id is not in its vocabulary.

    Example:

    >>> SpeechSearch(1, no_speech=50, languages=[44, 45]).start_tokens
    (50, 44, 45)
    """

    options: ClassVar[tuple[str, ...]] = (
        *BeamSearch.options,
        "temperature",
        "seed",
        "word_times",
    )
    temperature: ClassVar[float] = 0.0
    word_times: ClassVar[int] = 0
    reads_start_at_once: ClassVar[bool] = True
    reads_windows: ClassVar[bool] = True

    beam_width: int = 5
    length_penalty: float = 1.0
    no_speech: int = field(kw_only=True)
    languages: Sequence[int] = field(default=(), kw_only=True)
    no_times: int | None = field(default=None, kw_only=True)
    word_heads: Sequence[tuple[int, int]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", tuple(map(int, self.languages)))
        heads = checked_alignments(self.word_heads) if self.word_heads else ()
        object.__setattr__(self, "word_heads", heads)
        if heads and self.no_times is None:
            raise ValueError("word_heads needs no_times, the token for text without times.")
        for id in self.start_tokens:
            check_number(id, "a token of no_speech or languages", numbers.Integral, END_ID + 1)

    @property
    def free_options(self) -> set[str]:
        """See `Search.free_options`."""
        words = {"word_times"} if self.word_heads else set()
        return super().free_options | {"temperature", "seed"} | words

    @property
    def result_names(self) -> list[str]:
        """The names of the result's fields that are not `()`."""
        words = ["word_attention", "word_scores"] if self.word_heads else []
        return [*super().result_names, "start_scores", *words]

    @property
    def start_tokens(self) -> tuple[int, ...]:
        """The tokens of `start_scores`: `no_speech`, then the languages."""
        return (self.no_speech, *self.languages)

    def length_divisor(self, count: Any, length_penalty: Any = None) -> Any:
        """Returns n^alpha, without the end token; at least 1."""
        penalty = self.length_penalty if length_penalty is None else length_penalty
        lowest = tf.maximum if tf.is_tensor(count) else np.maximum
        return lowest(count - 1.0, 1.0) ** penalty

    def begin(
        self, model: SearchModel, inputs: dict[str, Any]
    ) -> tuple[Any, LoopInputs, Hypotheses]:
        """Does the same as in `Search`, but a temperature above 0 runs W random hypotheses."""
        if START_IDS not in inputs["source"]:
            raise ValueError(
                f"SpeechSearch needs the source input {START_IDS!r}, which this model does not "
                "read. Build the model with reads_start=True."
            )
        memory, loop_inputs, hypotheses = super().begin(model, inputs)
        if model.max_length is not None:
            limit = tf.minimum(loop_inputs.limit, model.max_length // 2)
            loop_inputs = loop_inputs._replace(limit=limit)
        start = inputs["source"][START_IDS]
        if not loop_inputs.given:
            given = GivenTokens(tf.ones_like(start), tf.pad(start, [[0, 0], [0, 1]]))
            loop_inputs = loop_inputs._replace(given=given)
        if "temperature" in inputs:
            seed = inputs.get("seed", tf.zeros([], tf.int32))
            loop_inputs, drawn = start_draws(start, seed, self.width, loop_inputs, hypotheses)
            running = select(inputs["temperature"] > 0, drawn.running, hypotheses.running)
            hypotheses = hypotheses._replace(running=running)
        return memory, loop_inputs, hypotheses

    def _traced(self, model: Any, inputs: dict[str, Any]) -> Any:
        memory, loop_inputs, hypotheses = self.begin(model, inputs)
        start, given = inputs["source"][START_IDS], loop_inputs.given
        vectors, cache = model.prefill(start, memory, self.width)
        after_begin = tf.argmax(start == BEGIN_ID, axis=1)[:, tf.newaxis]
        vectors = tf.gather(vectors, after_begin, batch_dims=1)  # (B, 1, D)
        logits = tf.cast(model.decoder_stack.embedding.logits(vectors), tf.float32)
        start_scores = self._start_scores(tf.nn.log_softmax(logits)[:, 0])

        first_unknown = given.prompt_length[:, 0]
        tokens = given.tokens
        if self.languages:
            language = tf.argmax(start_scores[:, 1:], axis=1)[:, tf.newaxis]
            language = tf.gather(np.array(self.languages, "int32"), language)
            is_unknown = tokens == UNKNOWN_ID
            tokens = tf.where(is_unknown, language, tokens)
            column = tf.range(tf.shape(tokens)[1])
            column = tf.where(is_unknown, column, tf.shape(tokens)[1])
            first_unknown = tf.minimum(first_unknown, tf.reduce_min(column, axis=1))
        # The prefilled tokens that the cache keeps: all but the last one, up to the language.
        kept = tf.minimum(given.prompt_length[:, 0] - 1, first_unknown)
        kept = tf.clip_by_value(tf.reduce_min(kept), 0, tf.shape(start)[1] - 1)
        # Constraints with a state must see each token. A bias of W hypotheses needs W keys at each
        # position of the cache.
        has_bias = model.decoder_stack.has_bias
        if tf.nest.flatten(hypotheses.constraint_states) or (has_bias and self.width > 1):
            kept = tf.zeros_like(kept)
        hypotheses = self._after(tokens, kept, hypotheses)
        loop_inputs = loop_inputs._replace(given=given._replace(tokens=tokens))
        hypotheses = loop.run(
            self,
            model,
            memory,
            loop_inputs,
            hypotheses,
            batch_size_of(inputs["source"]),
            kept,
            _first_slots(cache, kept),
        )
        result = SpeechResult(*self._result(hypotheses, loop_inputs), start_scores)
        if not self.word_heads:
            return result
        columns = after_begin + tf.range(3 if self.languages else 1, dtype=after_begin.dtype)
        start = tf.gather(tokens, columns, batch_dims=1)  # begin, language, task
        wanted = inputs.get("word_times", tf.zeros([], tf.int32))
        return self._with_words(model, memory, start, wanted, result)

    def _with_words(
        self, model: Any, memory: Any, start: Tensor, wanted: Tensor, result: SpeechResult
    ) -> SpeechResult:
        """Adds attention and log-probabilities of the text to the result, if `wanted` is 1."""
        ids = result.ids[:, 0]  # (B, T)
        is_text = tf.logical_and(ids > END_ID, ids <= self.no_times)
        place = tf.cumsum(tf.cast(is_text, tf.int32), axis=1)
        last = tf.shape(ids)[1] + 1
        row = tf.zeros_like(ids) + tf.range(tf.shape(ids)[0])[:, tf.newaxis]
        # Times go to the last column, which is cut off; the end token follows the text.
        places = tf.stack([row, tf.where(is_text, place - 1, last)], axis=2)
        text = tf.zeros([tf.shape(ids)[0], last + 1], tf.int32)
        text = tf.tensor_scatter_nd_update(text, places, ids)[:, :-1]  # (B, T + 1)
        count = tf.reduce_sum(tf.cast(is_text, tf.int32), axis=1, keepdims=True)
        text = tf.where(tf.range(last) == count, END_ID, text)
        no_times = tf.fill([tf.shape(ids)[0], 1], self.no_times)
        forced = tf.concat([start, no_times, text], axis=1)
        forced = forced[:, : 1 + wanted * tf.shape(forced)[1]]
        vectors, _, attention = model.prefill(forced, memory, alignments=self.word_heads)
        logits = tf.cast(model.decoder_stack.embedding.logits(vectors), tf.float32)[:, :-1]
        first_special = min(*self.start_tokens, self.no_times)
        log_probs = tf.nn.log_softmax(logits[..., END_ID + 1 : first_special])
        chosen = tf.clip_by_value(forced[:, 1:] - END_ID - 1, 0, first_special - END_ID - 2)
        scores = tf.gather(log_probs, chosen, batch_dims=2)
        return result._replace(word_attention=attention, word_scores=scores)

    def _start_scores(self, log_probs: Tensor) -> Tensor:
        """Selects the log-probabilities (B, K) of the start tokens from all of them (B, V)."""
        size = log_probs.shape[-1]
        if max(self.start_tokens) >= size:
            raise ValueError(
                f"no_speech and languages hold {max(self.start_tokens)}, but the model has {size} "
                "ids. Take them from the model's tokenizer."
            )
        return tf.gather(log_probs, np.array(self.start_tokens, "int32"), axis=1)

    def _after(self, tokens: Tensor, count: Tensor, hypotheses: Hypotheses) -> Hypotheses:
        """Returns the hypotheses after `count` start tokens, whose records are 0."""
        rows = self.history_rows
        history = tf.tile(tokens[:, tf.newaxis, 1 : count + 1], [1, rows, 1])
        records = {
            name: tf.pad(x, [[0, 0], [0, 0], [0, count], [0, 0]][: x.shape.rank])
            for name, x in hypotheses.records.items()
        }
        last = tf.tile(tokens[:, count : count + 1], [1, self.width])
        return hypotheses._replace(**{**records, "history": history, "ids": last})

    def _done(
        self, scores: Tensor, running: Tensor, count: Tensor, loop_inputs: LoopInputs
    ) -> Tensor:
        """Returns whether W hypotheses have finished, which ends OpenAI's search, (B, 1)."""
        if not self.early_stop:
            return super()._done(scores, running, count, loop_inputs)
        return scores[:, -1:] > -np.inf

    def _choose(
        self, position: Tensor, log_probs: Scores, forbidden: Forbidden, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor]:
        """Returns the best next tokens; with a temperature above 0 one random token."""
        values, ids = super()._choose(position, log_probs, forbidden, loop_inputs)
        if "temperature" not in loop_inputs.options:
            return values, ids
        temperature = loop_inputs.options["temperature"]

        def sample() -> tuple[Tensor, Tensor]:
            number = tf.gather(loop_inputs.noise, position)
            warm = tf.maximum(temperature, np.float32(1e-3))
            every = forbid(log_probs.values, log_probs.column_ids, forbidden)
            drawn, score = draw(every, None, number, warm)  # (B, W, 1)
            # The drawn token is the only one.
            only = tf.where(np.arange(values.shape[-1]) < 1, score, -np.inf)
            return only, tf.zeros_like(ids) + tf.cast(drawn, ids.dtype)

        # A branch, because a draw computes with the whole vocabulary, about a fifth of a step.
        return tf.cond(temperature > 0, sample, lambda: (values, ids))


def _first_slots(cache: Cache, count: Tensor) -> Cache:
    """Returns the cache of the first `count` tokens."""
    slots, past_bias, closed = cache
    blocks = tf.nest.map_structure(lambda x: x[:, :, :count], slots.blocks)
    if tf.is_tensor(past_bias):
        past_bias = past_bias[:, :, :count]
    return Cache(slots._replace(blocks=blocks), past_bias, closed)
