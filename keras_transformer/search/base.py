"""The base class of all searches: arguments, compilation, and what comes before and after the loop.

Shapes: B batch, W beam width, P prompt length, T generated length, t steps so far.
"""

import numbers
import weakref
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import START_IDS, SearchModel
from keras_transformer.search import loop
from keras_transformer.search.inputs import (
    SOURCE_IDS,
    batch_size_of,
    check_flag,
    check_number,
    check_right_padded,
    model_source,
    read_inputs,
    source_lengths,
    source_specs,
    start_ids,
)
from keras_transformer.search.loop import Hypotheses, LoopInputs
from keras_transformer.search.ranking import Forbidden
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.types import Tensor

# By default a sentence may have this many more tokens than its source (section 6.1).
EXTRA_LENGTH = 50


class SearchResult(NamedTuple):
    """The result of a search, best hypothesis first.

    Attributes:
        ids: int32 (B, W, T), the generated tokens: no begin token, then the end token if the
            hypothesis has one, then 0. T is the length of the longest hypothesis of the batch.
        scores: float32 (B, W), sum of log-probabilities / length penalty. If fewer than W
            hypotheses exist (tiny vocabularies), all others have score -inf and ids 0.
    """

    ids: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Search(loop.StepSearch):
    """The base of all searches. A subclass defines `width` and `advance`, see `loop.StepSearch`."""

    _: KW_ONLY
    min_length: int = 0
    allow_unknown: bool = True
    # model -> (names of the inputs, ids of the weights) -> tf.function. An entry disappears with
    # its model. Quantization and LoRA replace weights, so the search is compiled again after them.
    _compiled: Any = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_number(self.min_length, "min_length", numbers.Integral, 0)
        check_flag(self.allow_unknown, "allow_unknown")

    def __call__(
        self,
        model: SearchModel,
        source_ids: Any,
        max_length: Any = None,
        *,
        target_prefix: Any = None,
    ) -> SearchResult:
        """Searches for the most likely sequences of a model.

        Eager code compiles the search once for each model and set of arguments, for all
        shapes. Inside a `tf.function` it becomes part of that function's graph.

        Args:
            model: a `Transformer`, a `CausalTransformer`, or any other
                `keras_transformer.search.SearchModel`.
            source_ids: integers (B, S), padded with 0: sources, or prompts for a
                `CausalTransformer`. Prompts are padded on the right.
            max_length: int, or integers (B,): the greatest number of generated tokens of a
                sentence, end token included. A hypothesis of this length is finished, with or
                without end token. Defaults to the number of source tokens of the sentence + 50
                (section 6.1). It is never more than the model has positions. A sentence with a
                limit below 1 has no hypothesis: its ids are 0 and its score is -inf.
            target_prefix: integers (B, Q), padded with 0 on the right: the first tokens of every
                hypothesis. They count for ids, length and score. Defaults to none.

        Returns:
            `SearchResult`. Each row of ids holds the tokens after its own prompt. The tokens of
            the prompt count neither for length nor for score.

        Masking: 0 in `source_ids` is padding. A result depends neither on padding nor on the other
        sentences of the batch. A source of padding only is searched too; the model then attends to
        nothing. An empty prompt starts from token 0. An empty batch gives ids (0, W, 0).

        Raises:
            TypeError: if ids are not integers, if `model` lacks a method, or if an argument has the
                wrong type.
            ValueError: if an argument is out of range, if shapes do not fit, if a prompt or a
                prefix has padding before a token, or if Keras' backend is not TensorFlow. Inside a
                `tf.function` padding cannot be checked: other tokens are generated then.
        """
        inputs = read_inputs(model, source_ids, max_length, target_prefix, self.min_length)
        return self._search(model, inputs)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A search with the arguments that `get_config` returned."""
        return cls(**config)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles leave the compiled functions behind.
        return type(self).from_config, (self.get_config(),)

    @property
    def history_rows(self) -> int:
        """The number of rows that the history has for each sentence."""
        return self.width

    def length_divisor(self, count: Any) -> Any:
        """Returns the divisor of the score of a hypothesis; 1 without a length penalty.

        Args:
            count: tensor or NumPy array of the numbers of tokens, at least 1.
        """
        return 1.0

    def _search(self, model: SearchModel, inputs: dict[str, Any]) -> SearchResult:
        """Eager code compiles the search once for each model; other code traces it."""
        if not tf.executing_eagerly():
            return self._traced(model, inputs)
        prompt = START_IDS if START_IDS in inputs["source"] else SOURCE_IDS
        check_right_padded(start_ids(model, inputs["source"]), f"The prompt in {prompt}")
        if "target_prefix" in inputs:
            check_right_padded(inputs["target_prefix"], "target_prefix")
        functions = self._compiled.setdefault(model, {})
        key = frozenset(inputs), tuple(map(id, getattr(model, "weights", ())))
        if key not in functions:
            signature = {
                name: tf.TensorSpec([None] * value.shape.rank, value.dtype, name)
                for name, value in inputs.items()
                if name != "source"
            }
            signature["source"] = source_specs(model)
            # A strong reference would keep alive the model that the function is stored under.
            reference = weakref.ref(model)
            functions[key] = tf.function(
                lambda inputs: self._traced(reference(), inputs),
                input_signature=[signature],
                autograph=False,
            )
        return functions[key](inputs)

    def _traced(self, model: SearchModel, inputs: dict[str, Any]) -> SearchResult:
        """The whole search as one pure function of tensors."""
        memory, loop_inputs, hypotheses = self.begin(model, inputs)
        batch_size = batch_size_of(inputs["source"])
        hypotheses = loop.run(self, model, memory, loop_inputs, hypotheses, batch_size)
        return self._result(hypotheses, loop_inputs)

    def begin(
        self, model: SearchModel, inputs: dict[str, Any]
    ) -> tuple[Any, LoopInputs, Hypotheses]:
        """Returns memory, inputs of the loop and hypotheses before the first step.

        Args:
            model: `SearchModel`.
            inputs: the result of `read_inputs`, and the seed of a sampling search.
        """
        source = inputs["source"]
        start = start_ids(model, source)  # (B, P)
        memory = model.encode(model_source(source))
        given = loop.given_tokens(start, inputs.get("target_prefix"))
        prompt_length = given.prompt_length if given else 1
        if "max_length" in inputs:
            limit = inputs["max_length"][:, tf.newaxis]  # (B, 1)
        else:
            limit = EXTRA_LENGTH + source_lengths(source, memory)  # (B, 1)
        positions = getattr(model, "max_length", None)
        if positions is not None:
            # The last token is never fed, so a hypothesis has one more token than positions.
            limit = tf.minimum(limit, positions + 1 - prompt_length)
        batch_size, width = tf.shape(start)[0], self.width
        # All hypotheses are equal before the first step, so that only one of them is running.
        first = np.where(np.arange(width) < 1, 0.0, -np.inf).astype("float32")
        hypotheses = Hypotheses(
            ids=tf.tile(start[:, :1], [1, width]),
            running=tf.where(limit > 0, first, -np.inf),
            scores=tf.fill([batch_size, width], -np.inf),
            history=tf.zeros([batch_size, self.history_rows, 0], tf.int32),
        )
        return memory, LoopInputs(limit, given), hypotheses

    def _forbidden(self, count: Tensor) -> Forbidden:
        """`count`: number of tokens, including the next one."""
        pairs = [(PAD_ID, None), (BEGIN_ID, None)]
        if not self.allow_unknown:
            pairs.append((UNKNOWN_ID, None))
        if self.min_length > 1:
            pairs.append((END_ID, tf.reshape(count, [-1, 1, 1]) < self.min_length))
        return pairs

    def _ends(self, ids: Tensor, count: Tensor, loop_inputs: LoopInputs) -> Tensor:
        """Whether each of the new tokens, (B, W) or (B, 2W), finishes its hypothesis."""
        ends = tf.equal(ids, END_ID)
        if loop_inputs.given:
            ends = tf.logical_and(ends, count > 0)  # a prompt may hold end tokens
        return tf.logical_or(ends, count >= loop_inputs.limit)

    def _result(self, hypotheses: Hypotheses, loop_inputs: LoopInputs) -> SearchResult:
        """The result of finished hypotheses.

        `final_outputs` of `export/runtime/steps_session.py` does the same with NumPy.
        """
        ids = hypotheses.history[:, -self.width :]  # (B, W, t)
        if loop_inputs.given:
            ids = loop.without_prompt(ids, loop_inputs.given.prompt_length)
        ids *= tf.cast(tf.expand_dims(hypotheses.scores, 2) > -np.inf, tf.int32)
        used = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=[0, 1]) > 0  # (t,)
        return SearchResult(ids[:, :, : tf.reduce_sum(tf.cast(used, tf.int32))], hypotheses.scores)
