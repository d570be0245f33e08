"""The fields of a request: a table of names, kinds and places, and the only parser.

A protocol lists its fields as a tuple of `Field`. `read_fields` checks a request against the table,
so that all protocols refuse unknown names and wrong values with the same words.

    FIELDS = (
        Field("prompt", TEXT, needed=True),
        Field("n", integer(1, 9), 1),
        Field("max_tokens", NUMBER, option="max_length"),
    )
    values = read_fields({"prompt": "a"}, FIELDS)  # {"prompt": "a", "n": 1}

A new kind of value is a `Kind` here.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras_transformer.export.artefact.messages import nearest, shorten
from keras_transformer.export.serving.refusals import Invalid

DIGITS = 20  # of an integer that is written as text


class Kind(NamedTuple):
    """A kind of values.

    Attributes:
        words: str, the values that fit, in the message for all others: "an integer from 1 to 9".
        fits: function of a value, which returns whether it fits.
        parse: function from a text of a form or an address to a value. It raises `ValueError` or
            `KeyError` for a text that is none.
    """

    words: str
    fits: Callable[[Any], bool]
    parse: Callable[[str], Any] = str


class Field(NamedTuple):
    """A field of a protocol.

    Attributes:
        name: str.
        kind: `Kind` of its values.
        default: value of a request without the field.
        needed: bool, whether a request without the field is refused.
        option: str, the option of the search that the field sets, which the model checks in place
            of `kind`. Defaults to `None`: the protocol itself uses the value.
    """

    name: str
    kind: Kind
    default: Any = None
    needed: bool = False
    option: str | None = None


Table: TypeAlias = tuple[Field, ...]


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, kind) for entry in value)


def _parse_integer(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) >= DIGITS:
        raise ValueError(text)
    return int(text)


ANY = Kind("any value", lambda value: True)  # of a field without an effect
TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a text or a list of texts", lambda value: isinstance(value, str) or _is_text(value))
FLAG = Kind(
    "true or false",
    lambda value: type(value) is bool,
    lambda text: {"true": True, "false": False}[text.lower()],
)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
OBJECTS = Kind("a list of objects", lambda value: _is_list_of(dict, value))


def _is_text(value: object) -> bool:
    return _is_list_of(str, value)


def integer(lowest: int, highest: int) -> Kind:
    """Returns the kind of the integers in a range."""
    return Kind(
        f"an integer from {lowest} to {highest}",
        lambda value: type(value) is int and lowest <= value <= highest,
        _parse_integer,
    )


def number(lowest: float, highest: float) -> Kind:
    """Returns the kind of the numbers in a range."""
    return Kind(
        f"a number from {lowest} to {highest}",
        lambda value: type(value) in (int, float) and lowest <= value <= highest,
        float,
    )


def one_of(values: Iterable[str]) -> Kind:
    """Returns the kind of some texts."""
    known = tuple(values)
    return Kind(f"one of {', '.join(known)}", lambda value: value in known)


def some_of(values: Sequence[str]) -> Kind:
    """Returns the kind of lists of some texts."""
    words = f"a list of {' and '.join(values)}"
    return Kind(words, lambda value: _is_text(value) and set(value) <= set(values))


def texts(most: int, characters: int) -> Kind:
    """Returns the kind of a few texts, none of them empty, and none with too many characters."""

    def fits(value: object) -> bool:
        entries = as_list(value)
        if not _is_text(entries) or len(entries) > most:
            return False
        return all(0 < len(entry) <= characters for entry in entries)

    return Kind(f"at most {most} texts of 1 to {characters} characters", fits)


def only(*neutral: Any) -> Kind:
    """Returns the kind of the values with which a field that is not supported has no effect."""
    words = " or ".join([*map(shorten, neutral), "left out: it is not supported"])
    return Kind(words, lambda value: value in neutral)


def as_list(value: Any) -> list[Any]:
    """Returns a value as a list, such as a text of `TEXTS`."""
    return value if isinstance(value, list) else [value]


def read_fields(
    given: Mapping[str, Any],
    table: Table,
    whose: str = "The request",
    *,
    written: bool = False,
    has_options: bool = False,
) -> dict[str, Any]:
    """Checks the fields of a request, and returns their values by name.

    Fields that set an option are left to `Model.checked_options`. `None` counts as not passed.

    Args:
        given: dict from names to values, of a request or of an object in it.
        table: the fields of the protocol.
        whose: str, the owner of the fields, for messages.
        written: bool, whether values may be written as text, as in forms and addresses.
        has_options: bool, whether names outside of the table are left to `Model.checked_options`.

    Raises:
        Invalid: a field is unknown or missing, or has another kind.
    """
    names = [field.name for field in table]
    if not has_options:
        for name, value in given.items():
            if value is not None and name not in names:
                raise unknown(whose, name, names)
    values = {}
    for field in table:
        value = given.get(field.name)
        if value is None and field.needed:
            raise Invalid(f"{field.name} is missing: it must be {field.kind.words}.")
        if field.option is None:
            values[field.name] = field.default if value is None else _read(field, value, written)
    return values


def _read(field: Field, value: Any, written: bool) -> Any:
    parsed = value
    if written and isinstance(value, str):
        with contextlib.suppress(ValueError, KeyError):
            parsed = field.kind.parse(value)
    if not field.kind.fits(parsed):
        raise Invalid(f"{field.name} must be {field.kind.words}, got {shorten(value)}.")
    return parsed


def unknown(whose: str, name: str, known: Sequence[str], others: Sequence[str] = ()) -> Invalid:
    """Returns the refusal of a name that is not known.

    Args:
        whose: str, the model, or the part of the request.
        name: str.
        known: the names that the message lists.
        others: more names that may be meant.
    """
    meant = nearest(name, [*known, *others])
    listed = ", ".join(known) or "nothing"
    return Invalid(f"{whose} does not take {name:.100}.{meant} It takes: {listed}.")
