"""The base class of all searches: arguments, compilation, and the steps before and after the loop.

Shapes: B batch, W beam width, P prompt length, T generated length, t steps so far.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import CALL_OPTIONS, check_option
from keras_transformer.decoding import Alignments, SearchModel
from keras_transformer.search import loop
from keras_transformer.search.constraints import Constraint, check_constraints, start_constraints
from keras_transformer.search.inputs import (
    EXTRA_LENGTH,
    batch_size_of,
    check_ids,
    checked_alignments,
    for_each_sentence,
    length_limits,
    memory_length,
    model_source,
    read_inputs,
    source_specs,
    start_ids,
)
from keras_transformer.search.loop import Hypotheses, LoopInputs
from keras_transformer.search.scores import Forbidden
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.text.vocabularies import check_tokenizers
from keras_transformer.types import Array, Tensor


class SearchResult(NamedTuple):
    """The result of a search, best hypothesis first.

    Attributes:
        ids: int32 (B, W, T), the generated tokens without begin token, the end token if the
            hypothesis has one, then 0. T is the length of the longest hypothesis of the batch.
        scores: float32 (B, W), sum of log-probabilities / length divisor. If fewer than W
            hypotheses exist (tiny vocabularies), all others have score -inf and ids 0.
        token_scores: float32 (B, W, T), the log-probability of each token, 0 after the end. Their
            sum over the length divisor is the score. `()` unless the search has `token_scores`.
        alignments: float32 (B, W, T, S), the attention of the step that generated each token to
            each position of the source; 0 after the end. `()` unless the search has `alignments`.
    """

    ids: Tensor
    scores: Tensor
    token_scores: Tensor | tuple[()] = ()
    alignments: Tensor | tuple[()] = ()


@dataclass(frozen=True)
class Search(loop.StepSearch):
    """The base of all searches. A subclass defines `width` and `advance`, see `loop.StepSearch`."""

    # Names of the options that a call may pass, see `call_options`.
    options: ClassVar[tuple[str, ...]] = ("max_length", "min_length", "target_prefix")
    # The tokens whose log-probabilities after the begin token are part of the result.
    start_tokens: ClassVar[tuple[int, ...]] = ()
    # Whether the start tokens pass through the decoder at once, and not one by one.
    reads_start_at_once: ClassVar[bool] = False
    # Whether sources are windows of one length, with some vectors much larger than others.
    reads_windows: ClassVar[bool] = False

    _: KW_ONLY
    min_length: int = 0
    allow_unknown: bool = True
    constraints: Sequence[Constraint] = ()
    token_scores: bool = False
    alignments: Alignments = False
    # model -> (names of the inputs, ids of the weights) -> tf.function. An entry disappears with
    # its model. Quantization and LoRA replace weights, so they compile the search again.
    _compiled: Any = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __new__(cls, *args: Any, constraints: Sequence[Constraint] = (), **kwargs: Any) -> Self:
        """Makes the subclass that a constraint needs, see `Constraint.search`."""
        for constraint in constraints if isinstance(constraints, Sequence) else ():
            kind = getattr(constraint, "search", None)
            if kind is not None and issubclass(kind, cls):
                return object.__new__(kind)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in CALL_OPTIONS and value is not None:
                check_option(item.name, value)
            elif item.type is bool and not isinstance(value, bool):
                raise TypeError(f"{item.name} must be True or False, got {value!r}.")
        if not isinstance(self.constraints, list | tuple):
            raise TypeError(
                f"constraints must be a list, but {type(self.constraints).__name__} was passed. "
                f"Write {type(self).__name__}(constraints=[...])."
            )
        object.__setattr__(self, "constraints", tuple(self.constraints))
        if self.constraints:
            check_constraints(self.constraints, self)
        # Lists from JSON become tuples, so that a search can be hashed.
        object.__setattr__(self, "alignments", checked_alignments(self.alignments))

    def __call__(
        self, model: SearchModel, source_ids: Any, max_length: Any = None, **options: Any
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
                (section 6.1), or to `min_length` if it is larger. It never exceeds the model's
                positions. A sentence with a limit of 0 has no hypothesis: its ids are 0 and its
                score is -inf. -1 in an array stands for the default.
            **options: the inputs of the constraints, and options of this call. `min_length`,
                `beam_width`, `length_penalty`, `temperature`, `top_k`, `top_p` and `seed` replace
                the constructor's values where the search has them. `min_length` may also be
                integers (B,), one for each sentence. `beam_width` and `top_k` may be at most the
                constructor's. `target_prefix`, integers (B, Q), padded with 0 on the right, are the
                first tokens of every hypothesis. They count for ids, length and score;
                `max_length` cuts them, too.

        Returns:
            `SearchResult`. Each row of ids holds the tokens after its own prompt. The tokens of
            the prompt count neither for length nor for score.

        Masking: 0 in `source_ids` is padding. A result depends neither on padding nor on the other
        sentences of the batch. A source of padding only gives a result too; the model then attends
        to nothing. An empty prompt starts from token 0. An empty batch gives ids (0, W, 0).

        Raises:
            TypeError: if ids are not integers, if `model` lacks a method, or if an argument has the
                wrong type.
            ValueError: if an argument is out of range, if `max_length` is below `min_length`, if
                `min_length` or a prompt has more tokens than the model has positions, if shapes do
                not fit, if a constraint has another tokenizer than the model, if a prompt
                or a prefix has padding before a token, or if Keras' backend is not TensorFlow.
                Inside a `tf.function` the values of tensors are not checked, and misplaced padding
                gives wrong tokens.
        """
        options = {"max_length": max_length, **options}
        inputs = read_inputs(model, source_ids, options, self.call_defaults)
        self.check_room(model, max_length, options.get("min_length"))
        self.check_tokenizers(model)
        if not tf.executing_eagerly():
            return self._traced(model, inputs)
        least = np.maximum(self.least_length, inputs.get("min_length", self.min_length))
        check_ids(model, inputs, least)
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

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {**config, "constraints": list(self.constraints)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a search from the result of `get_config`."""
        constraints = [
            keras.saving.deserialize_keras_object(item) if isinstance(item, dict) else item
            for item in config.get("constraints", ())
        ]
        return cls(**{**config, "constraints": constraints})

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles leave the compiled functions behind.
        return type(self).from_config, (self.get_config(),)

    @property
    def history_rows(self) -> int:
        """The number of rows that the history has for each sentence."""
        return self.width

    @property
    def call_defaults(self) -> dict[str, Array]:
        """The options of a call: dict from name to an array of its dtype and rank.

        The array holds the default, if there is one. The default of `max_length`, -1, stands for
        the source length + 50.
        """
        unset = {"max_length": [-1], "target_prefix": np.zeros([1, 0]), "seed": 0}
        inputs = {}
        for name in self.options:
            value, option = getattr(self, name, None), CALL_OPTIONS[name]
            value = unset[name] if value is None else np.full([1] * option.rank, value)
            inputs[name] = np.array(value, option.dtype)
        for constraint in self.constraints:
            inputs.update(constraint.inputs)
        return inputs

    @property
    def free_options(self) -> set[str]:
        """The names of the options of a call that cost no time in a step, or are in use.

        An exported search has an input for each of them.
        """
        names = {name for constraint in self.constraints for name in constraint.inputs}
        return names | ({"max_length", "min_length"} if self.min_length > 1 else {"max_length"})

    @property
    def result_names(self) -> list[str]:
        """The names of the result's fields that are not `()`."""
        records = [name for name in ("token_scores", "alignments") if getattr(self, name)]
        return ["ids", "scores", *records]

    @property
    def least_length(self) -> int:
        """The number of tokens of the shortest output that the constraints allow, at least 1."""
        return max([1, *(constraint.least_length for constraint in self.constraints)])

    def check_room(self, model: SearchModel, max_length: Any, min_length: Any = None) -> None:
        """Raises `ValueError` if no output has as few or as many tokens as it must.

        Args:
            model: `SearchModel`.
            max_length: int or integers (B,), -1 for the default; symbolic tensors are not checked.
                `None` stands for the default, too.
            min_length: int or integers (B,). Defaults to `None`: the constructor's.
        """
        positions = getattr(model, "max_length", None)
        least = self.min_length if min_length is None else min_length
        if positions is not None and not tf.is_symbolic_tensor(least):
            if (least := np.max(least, initial=0)) > positions:
                raise ValueError(
                    f"min_length is {least}, but the model has positions for {positions} tokens. "
                    "Pass a smaller min_length, or build the model with more positions."
                )
        if self.least_length == 1 or tf.is_symbolic_tensor(max_length):
            return
        given = np.array(-1 if max_length is None else max_length)
        room = np.where(given < 0, EXTRA_LENGTH, given).min(initial=self.least_length)
        if positions is not None and positions < room:
            room = positions
        if room < self.least_length:
            raise ValueError(
                f"The shortest output that the constraints allow has {self.least_length} tokens, "
                f"but there is room for {room}. Pass max_length, at least {self.least_length}, to "
                "a model with as many positions."
            )

    def check_tokenizers(self, model: SearchModel) -> None:
        """Raises `ValueError` if a constraint knows the texts of another tokenizer's ids."""
        for constraint in self.constraints:
            if constraint.tokenizer is not None:
                check_tokenizers(model, {"target": constraint.tokenizer})

    def length_divisor(self, count: Any, length_penalty: Any = None) -> Any:
        """Returns the divisor of the score of a hypothesis; 1 without a length penalty.

        Args:
            count: tensor or NumPy array of the numbers of tokens, at least 1.
            length_penalty: number or scalar tensor. Defaults to `None`: the constructor's.
        """
        return 1.0

    def _traced(self, model: SearchModel, inputs: dict[str, Any]) -> SearchResult:
        """Runs the whole search as one pure function of tensors."""
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
            inputs: the result of `read_inputs`.
        """
        source = inputs["source"]
        start = start_ids(model, source)  # (B, P)
        batch_size, width = tf.shape(start)[0], self.width
        memory = self._encode(model, source, inputs)
        prefix = inputs.get("target_prefix")
        if prefix is not None:
            prefix = for_each_sentence(prefix, batch_size)
        given = loop.given_tokens(start, prefix)
        prompt_length = given.prompt_length if given else 1
        least = inputs.get("min_length", self.min_length)
        limit = length_limits(source, memory, inputs.get("max_length"), least, batch_size)
        positions = getattr(model, "max_length", None)
        if positions is not None:
            # The last token is never fed back, so it needs no position.
            limit = tf.minimum(limit, positions + 1 - prompt_length)
        options = {
            name: inputs[name]
            for name in self.options
            if name in inputs and not CALL_OPTIONS[name].once
        }
        if "min_length" in options:
            options["min_length"] = for_each_sentence(options["min_length"], batch_size)[:, None]
        known, states = (), ()
        if self.constraints:
            known, states = start_constraints(
                self.constraints, model_source(source), inputs, batch_size, width
            )
        # All hypotheses are equal before the first step, so only one of them runs.
        first = np.where(np.arange(width) < 1, 0.0, -np.inf).astype("float32")
        hypotheses = Hypotheses(
            ids=tf.tile(start[:, :1], [1, width]),
            running=tf.where(limit > 0, first, -np.inf),
            scores=tf.fill([batch_size, width], -np.inf),
            history=tf.zeros([batch_size, self.history_rows, 0], tf.int32),
            constraint_states=states,
        )
        rows = [batch_size, self.history_rows, 0]
        if self.token_scores:
            hypotheses = hypotheses._replace(token_scores=tf.zeros(rows))
        if self.alignments:
            length = memory_length(model, memory)
            hypotheses = hypotheses._replace(alignments=tf.zeros([*rows, length]))
        return memory, LoopInputs(limit, given, options=options, known=known), hypotheses

    def _encode(
        self, model: SearchModel, source: dict[str, Tensor], inputs: Mapping[str, Tensor]
    ) -> Any:
        """Encodes the source. A shortlist also allows the ids that the call names."""
        names = ["target_prefix", *(x for one in self.constraints for x in one.listed_inputs)]
        named = [for_each_sentence(inputs[x], batch_size_of(source)) for x in names if x in inputs]
        if named and hasattr(model, "encode_allowing"):
            return model.encode_allowing(model_source(source), named)
        return model.encode(model_source(source))

    def _forbidden(self, position: Tensor, loop_inputs: LoopInputs) -> Forbidden:
        """Returns the special ids that may not follow at a position."""
        pairs = [(PAD_ID, None), (BEGIN_ID, None)]
        if not self.allow_unknown:
            pairs.append((UNKNOWN_ID, None))
        min_length = loop_inputs.options.get("min_length", self.min_length)
        if tf.is_tensor(min_length) or min_length > 1:
            early = loop_inputs.count(position) < min_length
            pairs.append((END_ID, tf.reshape(early, [-1, 1, 1])))
        return pairs

    def _ends(self, ids: Tensor, count: Tensor, loop_inputs: LoopInputs) -> Tensor:
        """Returns whether each new token (B, ...) finishes its hypothesis."""
        ends = tf.equal(ids, END_ID)
        if loop_inputs.given:
            ends = tf.logical_and(ends, count > 0)  # a prompt may hold end tokens
        return tf.logical_or(ends, count >= loop_inputs.limit)

    def _result(self, hypotheses: Hypotheses, loop_inputs: LoopInputs) -> SearchResult:
        """Returns the result of finished hypotheses.

        `final_outputs` of `export/runtime/steps_session.py` does the same with NumPy.
        """
        records = {name: x[:, -self.width :] for name, x in hypotheses.records.items()}
        if loop_inputs.given:
            length = loop_inputs.given.prompt_length
            records = {name: loop.without_prompt(x, length) for name, x in records.items()}
        ids = records.pop("history")  # (B, W, t)
        ids *= tf.cast(tf.expand_dims(hypotheses.scores, 2) > -np.inf, tf.int32)
        used = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=[0, 1]) > 0  # (t,)
        count = tf.reduce_sum(tf.cast(used, tf.int32))  # T
        ids = ids[:, :, :count]
        for name, record in records.items():
            is_token = tf.cast(ids != PAD_ID, tf.float32)
            if record.shape.rank > 3:
                is_token = tf.expand_dims(is_token, 3)
            records[name] = record[:, :, :count] * is_token
        return SearchResult(ids, hypotheses.scores, **records)
