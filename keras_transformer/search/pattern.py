"""Pattern: outputs that match a regular expression or a JSON schema, or are one of some choices.

The pattern becomes a finite automaton over bytes, and then one over tokens. Tokens that lead to the
same states from every state are one class, so the table of the automaton is small enough to be a
constant of an exported file.

Shapes: B batch, W hypotheses, V vocabulary, S states of the automaton, C classes of tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.constraints import Constraint, Past
from keras_transformer.search.scores import Scores, spread
from keras_transformer.special_ids import END_ID
from keras_transformer.types import AnyTokenizer, Array, Tensor

# The first states: no text can follow, after the end token, before the text.
DEAD, ENDED, START = range(3)
NEVER = 2**30  # tokens that are missing in a state from which no text of the pattern follows
BYTES = 256
# Follows the text. Without it, outlines-core 0.2.14 drops bytes after which a text that was
# complete is not: "." in "3.5" for [0-9]+(\.[0-9]+)?
LAST = "\U0010ffff"
# outlines-core reads the first of these keywords of a schema, and those in brackets beside it. It
# ignores all others without an error.
READS = {
    "properties": {"type", "required", "additionalProperties"},  # no others are ever written
    **{"anyOf": set(), "oneOf": set(), "$ref": set()},
    **dict.fromkeys(("prefixItems", "enum", "const", "pattern", "format"), {"type"}),
    "type": {"minLength", "maxLength", "items", "minItems", "maxItems", "additionalProperties"},
}
NOTES = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"}
FORMATS = ("date", "date-time", "uuid")  # its others allow texts that are no JSON


class TokenAutomaton(NamedTuple):
    """The automaton of a pattern, which reads tokens.

    Attributes:
        classes: int32 (V,), the class of each token.
        after: int32 (S, C), the state after a token of a class.
        missing: int32 (S,), the smallest number of tokens that completes the text.
    """

    classes: Array
    after: Array
    missing: Array


@keras.saving.register_keras_serializable("keras_transformer")
class Pattern(Constraint):
    """Makes every output match a pattern: a regular expression, a JSON schema or a list of choices.

    The whole output matches, not a part of it. A token is allowed if the text can still be
    completed within `max_length`. So an output never breaks off, even if the model has learned
    nothing. Forbidden tokens keep their share of the probability, as with all constraints.

    Tokens of a prompt are not part of the output. Tokens of `target_prefix` are. If they do not fit
    the pattern, or if another constraint or `min_length` forbids all tokens that do, the sentence
    has no hypothesis: its ids are 0 and its score is -inf. The same holds for a `Shortlist` without
    the tokens of the text. An exported file holds the pattern.

    Args:
        regex: str, a regular expression in the syntax of Rust's crate `regex`, which has no look-
            around and no back-references. Defaults to `None`.
        json_schema: dict or str, a JSON schema with the keywords that `outlines-core` follows;
            others, such as `minimum`, are refused. Keys are written in the order of the schema,
            with at most one space between two parts. Strings and arrays without `maxLength` and
            `maxItems` can be as long as `max_length` allows. Defaults to `None`.
        choices: sequence of str, the possible outputs. Defaults to `None`.
        tokenizer: the target's tokenizer: a `Tokenizer`, or a `JsonTokenizer` of bytes. A search
            refuses a model that was trained with another one.

    Raises:
        ImportError: if the package `outlines-core` is missing.
        TypeError: if `tokenizer` is missing or does not tell the bytes of its pieces.
        ValueError: unless exactly one pattern was passed; if the pattern is not valid; or if the
            tokenizer has no pieces that write it.

    Example:

    >>> tokenizer = Tokenizer.train(["yes no 0123456789"], vocab_size=277)
    >>> model = Transformer(vocab_size=277, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> pattern = Pattern(regex="(yes|no), [1-9][0-9]{0,2}", tokenizer=tokenizer)
    >>> ids = BeamSearch(2, constraints=[pattern])(model, np.array([[5, 11, 3]])).ids.numpy()[0]
    >>> import re
    >>> all(re.fullmatch(pattern.regex, text) for text in tokenizer.decode(ids))
    True
    """

    takes_listed: ClassVar[bool] = True

    def __init__(
        self,
        regex: str | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        choices: Sequence[str] | None = None,
        tokenizer: AnyTokenizer | None = None,
    ) -> None:
        if not hasattr(tokenizer, "piece_bytes"):
            raise TypeError(
                "Pattern must know the text of each id. Pass the target's tokenizer, not "
                f"{type(tokenizer).__name__}."
            )
        self.regex: str = _as_regex(regex, json_schema, choices)
        self.tokenizer: AnyTokenizer | None = tokenizer
        texts = tokenizer.piece_bytes
        self.automaton: TokenAutomaton = token_automaton(
            *_byte_automaton(self.regex), texts, *_first_texts(tokenizer, texts)
        )
        if self.least_length >= NEVER:
            raise ValueError(
                f"The tokenizer has no pieces that write a text of the pattern {self.regex[:200]}. "
                "Train the tokenizer on text with its characters, or with byte_fallback=True."
            )
        for choice in choices or ():
            if tokenizer.decode(tokenizer.encode(choice)) != choice:
                raise ValueError(
                    f"The tokenizer cannot write the choice {choice!r}, only "
                    f"{tokenizer.decode(tokenizer.encode(choice))!r}. Train it on text with all "
                    "choices, or change the choice."
                )

    @property
    def least_length(self) -> int:
        """The number of tokens of the shortest output."""
        return int(self.automaton.missing[START])

    def get_config(self) -> dict[str, Any]:
        """Returns the pattern. The tokenizer is not part of it."""
        return {"regex": self.regex}

    def start(self, known: Any, batch_size: Tensor, width: int) -> Tensor:
        """Returns the state before the first token, int32 (B, W)."""
        return tf.fill([batch_size, width], START)

    def step(self, scores: Scores, past: Past, state: Tensor, known: Any) -> tuple[Scores, Any]:
        """Follows the last token, and forbids tokens after which the text cannot be completed."""
        classes, after, missing = self.automaton
        if scores.vocab_size not in (None, len(classes)):
            raise ValueError(
                f"The model has a vocabulary of {scores.vocab_size} ids, but the tokenizer of the "
                f"pattern has {len(classes)}. Pass the target's tokenizer."
            )
        after = tf.constant(after)  # once, because each use of an array is a constant of the file
        row = tf.gather(after, state)  # (B, W, C)
        moved = tf.gather(row, tf.gather(classes, past.ids), batch_dims=2)
        state = tf.where(past.count > 1, moved, state)
        length = 1 + tf.gather(missing, tf.gather(after, state))  # (B, W, C), the next one included
        is_late = length > tf.expand_dims(past.left, 2)
        return scores.without(spread(is_late, tf.gather(classes, scores.column_ids))), state


def _as_regex(
    regex: str | None, json_schema: Mapping[str, Any] | str | None, choices: Sequence[str] | None
) -> str:
    """Returns the regular expression of the one pattern that was passed."""
    given = {"regex": regex, "json_schema": json_schema, "choices": choices}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise ValueError(f"Pass one of {', '.join(given)}; got {', '.join(names) or 'none'}.")
    if choices is not None:
        if isinstance(choices, str) or not choices or not all(choices):
            raise ValueError(f"choices must be a list of texts that are not empty, got {choices!r}")
        return "|".join(map(re.escape, choices))
    if json_schema is not None:
        schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        try:
            made = _outlines().json_schema.build_regex_from_schema(
                json.dumps(_read_schema(json.loads(schema)))
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"json_schema cannot be used: {error}. It is {schema[:200]}") from None
        # Rust's digits are those of all scripts.
        return re.sub(r"\\(.)", lambda pair: "[0-9]" if pair[1] == "d" else pair[0], made)
    assert regex is not None
    return regex


def _read_schema(schema: Any) -> Any:
    """Checks that outlines-core follows a schema, and escapes its keys, which outlines-core omits.

    Raises:
        ValueError: a part of the schema would have no effect.
    """
    if not isinstance(schema, dict):
        return schema
    first = next((name for name in READS if name in schema), "")
    if ignored := {*schema} - {first} - READS.get(first, set()) - NOTES:
        beside = f" beside {first}" if first else ""
        raise ValueError(f"Pattern cannot follow {', '.join(sorted(ignored))}{beside}")
    if schema.get("format", "date") not in FORMATS:
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}")
    if missing := {*schema.get("required", ())} - {*schema.get("properties", ())}:
        raise ValueError(f"required names {sorted(missing)}, which properties lacks")
    pattern = schema.get("pattern", "").removeprefix("^").removesuffix("$")
    after, _ = _byte_automaton(pattern)
    if (after[:, [*range(32), *b'"\\']] != DEAD).any():
        raise ValueError(
            f"the pattern {pattern!r} can write a quotation mark, a backslash or a control "
            "character, which JSON escapes. Exclude these characters"
        )
    made = dict(schema)
    for name in {"items", "additionalProperties"} & {*schema}:
        made[name] = _read_schema(schema[name])
    for name in {"anyOf", "oneOf", "prefixItems"} & {*schema}:
        made[name] = [*map(_read_schema, schema[name])]
    for name in {"properties", "$defs", "definitions"} & {*schema}:
        written = _escaped if name == "properties" else str
        made[name] = {written(key): _read_schema(value) for key, value in schema[name].items()}
    if "required" in schema:
        made["required"] = [*map(_escaped, schema["required"])]
    return made


def _escaped(key: str) -> str:
    """Writes a key as JSON does, without its quotation marks."""
    return json.dumps(key, ensure_ascii=False)[1:-1]


def _outlines() -> Any:
    """Imports `outlines-core`."""
    try:
        import outlines_core
        import outlines_core.json_schema
    except ImportError as error:
        raise ImportError(
            "Pattern needs the package outlines-core. Install it with: pip install outlines-core"
        ) from error
    return outlines_core


def _byte_automaton(regex: str) -> tuple[Array, Array]:
    """Returns the automaton of a regular expression over bytes.

    Returns:
        The state after each byte, int32 (S, 256), and whether the text may end in each state,
        boolean (S,). The states `DEAD` and `ENDED` have no text; the third one comes first.
    """
    outlines = _outlines()
    every_byte = outlines.Vocabulary(BYTES, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = outlines.Index(f"(?:{regex}){LAST}", every_byte)
    except ValueError as error:
        raise ValueError(
            f"{regex[:200]!r} is no regular expression of Rust's crate regex: {error}. It has no "
            "look-around and no back-references. The whole output matches: leave out ^, $ and \\b."
        ) from None
    found, final = index.get_transitions(), index.get_final_states()
    first = index.get_initial_state()
    names = [first, *sorted({*found, *final} - {first})]
    number = {name: place for place, name in enumerate(names, START)}
    after = np.full([START + len(names), BYTES], DEAD, np.int32)
    for state, following in found.items():
        for byte, target in following.items():
            if byte < BYTES:
                after[number[state], byte] = number.get(target, DEAD)
    ends = np.arange(len(after))
    for byte in LAST.encode():
        ends = after[ends, byte]
    return after, np.isin([-1] * START + names, list(final))[ends]


def _first_texts(tokenizer: AnyTokenizer, texts: list[bytes]) -> tuple[list[bytes], bool]:
    """Returns the text that each token adds at the start, and whether all spaces are lost there.

    SentencePiece drops the space of the first word, and with some normalizations all first spaces.
    """
    first = list(texts)
    spaced = [id for id, text in enumerate(texts) if text[:1] == b" "]
    for id, text in zip(spaced, tokenizer.decode([[id] for id in spaced]), strict=True):
        first[id] = text.encode()
    lost = [id for id in spaced if not first[id]]
    return first, bool(lost) and not tokenizer.decode(lost[:1] * 2)


def token_automaton(
    after: Array,
    accepts: Array,
    texts: Sequence[bytes],
    first: Sequence[bytes],
    loses_spaces: bool,
) -> TokenAutomaton:
    """Turns an automaton that reads bytes into one that reads tokens.

    Args:
        after: int32 (S, 256), the state after each byte.
        accepts: boolean (S,), whether the text may end in each state.
        texts: V byte strings, the text that each token adds; empty for tokens without text.
        first: the same for the first token of an output.
        loses_spaces: whether the token after a first token without text is a first one, too.
    """
    # A text maps each state to another one. Texts with the same map are one class.
    maps = [np.arange(len(after), dtype=np.int32)]
    numbers = {maps[0].tobytes(): 0}
    longer: dict[tuple[int, int], int] = {}  # (class, byte) -> class of the longer text

    def class_of(text: bytes) -> int:
        found = 0
        for byte in text:
            if (found, byte) not in longer:
                new = after[maps[found], byte]
                longer[found, byte] = numbers.setdefault(new.tobytes(), len(maps))
                if longer[found, byte] == len(maps):
                    maps.append(new)
            found = longer[found, byte]
        return found

    # Only the first token leaves START. Later texts that lead to it lead to a copy of it.
    again = len(after)
    keys = [(class_of(text), class_of(begin)) for text, begin in zip(texts, first, strict=True)]
    keys = [key if text else None for key, text in zip(keys, texts, strict=True)]
    keys[END_ID] = END_ID
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    table = np.full([again + 1, len(places)], DEAD, np.int32)
    for key, place in places.items():
        if isinstance(key, tuple):
            column = np.array([*maps[key[0]], maps[key[0]][START]])
            column[START] = maps[key[1]][START]
            table[:, place] = np.where(column == START, again, column)
            if loses_spaces and not key[1]:
                table[START, place] = START
    accepts = np.array([*accepts, accepts[START]])
    missing = np.where(accepts, 0, NEVER).astype(np.int32)
    while True:
        fewer = np.minimum(missing, 1 + missing[table].min(axis=1))
        if (fewer == missing).all():
            break
        missing = fewer
    missing[ENDED] = 0
    table[accepts, places[END_ID]] = ENDED
    return TokenAutomaton(np.array([places[key] for key in keys], np.int32), table, missing)
