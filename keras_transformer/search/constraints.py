"""Constraints bias or forbid the tokens that a search may choose next.

A grammar, a list of forbidden words and a penalty on repetition are constraints. A search takes
several of them: `BeamSearch(constraints=[...])`.

Shapes: B batch, W hypotheses, S source length, V vocabulary, t tokens so far.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import tensorflow as tf

from keras_transformer.search.inputs import for_each_sentence, missing_methods
from keras_transformer.search.scores import Scores
from keras_transformer.types import AnyTokenizer, Array, Tensor

Logits = TypeVar("Logits", Tensor, Scores)


class Past(NamedTuple):
    """The tokens before the next one.

    Attributes:
        ids: int32 (B, W), the last token of each hypothesis; first the begin token.
        history: int32 (B, W, t), all tokens after the first one, the newest last. A prompt's tokens
            are part of it. It may start with zeros.
        count: int32, (B, 1) or a scalar, the number of generated tokens, the next one included. It
            is below 1 within a prompt.
        left: int32 (B, 1), the greatest number of tokens that the output can still get, the next
            one and the end token included.
    """

    ids: Tensor
    history: Tensor
    count: Tensor
    left: Tensor


class Constraint(Protocol):
    """Biases or forbids next tokens. A subclass defines `step`, and other methods that it needs.

    Attributes:
        inputs: the arguments that each call of the search may pass to the constraint: dict from
            name to default, an array of int32 or float32. A scalar applies to the whole batch. All
            others have a first axis for the sentences, of size 1 in the default, which applies to
            every sentence. Other axes of the default may be empty. An exported file has an input
            with this default for each.
        listed_inputs: the names of the inputs that hold ids (B, ...) that a `Shortlist` must allow.
        takes_listed: bool, whether `step` takes and returns `Scores`, which hold only the listed
            logits of a `Shortlist`. Otherwise it gets the logits of the whole vocabulary, which
            takes more time. Defaults to `False`.
        least_length: int, the number of tokens of the shortest output that it allows. A smaller
            `max_length` is refused. Defaults to 0.
        search: the class of searches that follows the constraint, if not every search does: a
            subclass of the public search that makes it. Defaults to `None`: every search.
        tokenizer: the target's tokenizer, if the constraint knows the texts of its ids. A search
            refuses a model that was trained with another one. Defaults to `None`.

    Example:

    >>> class NoTokenTwiceInARow(Constraint):
    ...     def step(self, logits, past, state, known):
    ...         return forbid_tokens(logits, past.ids[..., None] == np.arange(97)), state
    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> search = GreedySearch(constraints=[NoTokenTwiceInARow()])
    >>> ids = search(model, source_ids, max_length=10).ids.numpy()
    >>> bool((ids[:, :, 1:] == ids[:, :, :-1])[ids[:, :, 1:] > 0].any())
    False
    """

    inputs: Mapping[str, Array] = {}
    listed_inputs: ClassVar[Sequence[str]] = ()
    takes_listed: ClassVar[bool] = False
    least_length: int = 0
    search: ClassVar[type | None] = None
    tokenizer: AnyTokenizer | None = None

    def read(self, source: Any, inputs: Mapping[str, Tensor]) -> Any:
        """Reads source and inputs once, before the first step.

        Args:
            source: the input of the model's encoder: ids (B, S), or a dict of tensors.
            inputs: dict from the names in `self.inputs` to tensors: scalars, or (B, ...).

        Returns:
            A nest of scalars and tensors (B, ...) for `start` and `step`; `()` for nothing.
        """
        return ()

    def start(self, known: Any, batch_size: Tensor, width: int) -> Any:
        """Returns the state before the first token.

        Args:
            known: the result of `read`.
            batch_size: B, int32 scalar.
            width: int, W.

        Returns:
            A nest of tensors (B, W, ...) whose shapes no step changes; `()` for none.
        """
        return ()

    def step(self, logits: Tensor, past: Past, state: Any, known: Any) -> tuple[Tensor, Any]:
        """Changes the logits of the next tokens.

        Args:
            logits: float32 (B, W, V), from the model or the previous constraint.
            past: `Past`. The state does not include `past.ids` yet.
            state: the state before `past.ids`. The search reorders it with the hypotheses.
            known: the result of `read`.

        Returns:
            The new logits, and the state after `past.ids`. `forbid_tokens` forbids tokens.
        """
        raise NotImplementedError


def forbid_tokens(logits: Logits, forbidden: Tensor) -> Logits:
    """Returns logits with -inf for the forbidden tokens.

    The padding token, which searches never choose, gets the probability of the forbidden tokens. So
    the log-probabilities of all other tokens stay the same.

    Args:
        logits: float32 (B, W, V), or `Scores` of C columns.
        forbidden: boolean, broadcasts to (B, W, V), or to (B, W, C) for `Scores`.

    Raises:
        ValueError: if the vocabularies differ.
    """
    if isinstance(logits, Scores):
        return logits.without(forbidden)
    size = logits.shape[-1]
    if forbidden.shape[-1] not in (None, 1, size):
        raise ValueError(
            f"The model has a vocabulary of {size} ids, but the constraint has "
            f"{forbidden.shape[-1]}. Make the constraint from the model's target vocabulary."
        )
    return Scores(logits).without(forbidden).values


def start_constraints(
    constraints: Sequence[Constraint],
    source: Any,
    inputs: Mapping[str, Any],
    batch_size: Tensor,
    width: int,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the results of `read` and `start` of each constraint.

    Args:
        constraints: sequence of constraints.
        source: the input of the model's encoder.
        inputs: dict from names to tensors; missing ones get the constraints' defaults.
        batch_size: B, int32 scalar.
        width: int, W.
    """
    known, states = [], []
    for constraint in constraints:
        values = {
            name: for_each_sentence(inputs.get(name, tf.constant(default)), batch_size)
            for name, default in constraint.inputs.items()
        }
        facts = constraint.read(source, values)
        known.append(tf.nest.map_structure(tf.convert_to_tensor, facts))
        states.append(constraint.start(known[-1], batch_size, width))
    return tuple(known), tuple(states)


def constrain(
    constraints: Sequence[Constraint],
    scores: Scores,
    past: Past,
    states: Sequence[Any],
    known: Sequence[Any],
) -> tuple[Scores, tuple[Any, ...]]:
    """Applies all constraints in order; returns the logits and the states."""
    after = []
    for constraint, state, facts in zip(constraints, states, known, strict=True):
        if not constraint.takes_listed:
            scores = Scores(scores.dense)
        given = scores if constraint.takes_listed else scores.values
        new, state_after = constraint.step(given, past, state, facts)
        scores = new if isinstance(new, Scores) else scores.with_values(new)
        after.append(tf.nest.map_structure(_with_static_shape, state_after, state))
    return scores, tuple(after)


def _with_static_shape(new: Tensor, old: Tensor) -> Tensor:
    """Gives a new tensor the static shape of the old one, which the loop requires."""
    new = tf.convert_to_tensor(new)
    new.set_shape([None, *old.shape[1:]])
    return new


def check_constraints(constraints: Sequence[Any], search: Any) -> None:
    """Raises unless a search can follow all constraints, and their inputs have new names.

    Args:
        constraints: sequence of constraints.
        search: the search.
    """
    names = list(search.options)
    for constraint in constraints:
        kind = type(constraint).__name__
        if missing := missing_methods(constraint, Constraint):
            raise TypeError(
                f"{kind} has no {missing}, so it is not a constraint. Pass "
                "objects of subclasses of keras_transformer.search.Constraint."
            )
        if constraint.search is not None and not isinstance(search, constraint.search):
            needed = constraint.search.__base__.__name__
            raise TypeError(
                f"{kind} need a {needed}, but the search is {type(search).__name__}. Use "
                f"{needed}(constraints=[{kind}()])."
            )
        for name in constraint.inputs:
            if name in names:
                raise ValueError(
                    f"{kind} has the input {name!r}, which the search or "
                    "another constraint has too. Give it another name."
                )
            names.append(name)
