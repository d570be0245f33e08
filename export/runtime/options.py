"""Converts the options of a call to inputs of the model.

Shapes: `B` rows of a batch, `N` texts of a row, `L` tokens of the longest.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.call_options import (
    CALL_OPTIONS,
    CONSTRAINT_OPTIONS,
    check_lengths,
    check_needs,
)
from keras_transformer.export.artefact.messages import nearest
from keras_transformer.export.artefact.options import Option, options_of
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.padding import pad_rows, pad_words
from keras_transformer.text.words import OptionWords
from keras_transformer.types import Array


class CallInputs(NamedTuple):
    """The options of one call.

    Attributes:
        fixed: dict from names of inputs to arrays, the same for all lines.
        by_line: dict from names of inputs to iterators over their values, one for each line.
        glossaries: iterator over a `Glossary` for each line, whose terms take the place of aligned
            words; or `None`.
    """

    fixed: dict[str, Array]
    by_line: dict[str, Iterator[Any]]
    glossaries: Iterator[Any] | None = None


class OptionReader:
    """Turns options into inputs of the model.

    Args:
        artefact: Artefact. `options` of its manifest are the inputs with a default.

    Attributes:
        known: dict from names to `Option`.
    """

    def __init__(self, artefact: Artefact):
        self.known: dict[str, Option] = options_of(artefact.manifest)
        self._folder, self._tokenizer = artefact.folder, artefact.target_tokenizer

    def read(self, options: Mapping[str, Any]) -> CallInputs:
        """Returns the inputs for options of a call. `None` counts as not passed.

        A number or a text applies to all lines. Options with a batch axis also take a list with one
        value for each line. If a value is a list of texts, a list of lists has one for each line.

        Raises:
            TypeError: a value is neither number nor text.
            ValueError: the artefact does not take an option, a number is out of range, or two
                options contradict each other.
        """
        check_needs(options)
        fixed, by_line = {}, {}
        for name, value in options.items():
            if value is None:
                continue
            if name not in self.known:
                hint = nearest(name, self.known)
                if name in CONSTRAINT_OPTIONS or name in ("length_penalty", "temperature"):
                    hint += " Export it with a search that has it."
                elif name in CALL_OPTIONS:
                    hint += f" Export it with options=[{name!r}] if its search has this option."
                raise ValueError(
                    f"{name!r} was passed, but {self._folder} takes the options "
                    f"{sorted(self.known)}.{hint}"
                )
            if self.known[name].differs(value):
                by_line[name] = iter(value)
            else:
                fixed[name] = self.stack(name, [self.value(name, value)])
        if not by_line.keys() & {"min_length", "max_length"}:
            self.check_lengths(fixed)
        return CallInputs(fixed, by_line)

    def check_lengths(self, inputs: Mapping[str, Any]) -> None:
        """Raises `ValueError` if the `max_length` of a line is below its `min_length`.

        Args:
            inputs: dict from names of inputs to values. Others have the exported value.
        """
        names = [name for name in ("min_length", "max_length") if name in self.known]
        if len(names) == 2:
            check_lengths(*(inputs.get(name, self.known[name].default) for name in names))

    def value(self, name: str, value: Any) -> Any:
        """Returns the value of an option for one line: a number, or texts as tokens."""
        option = self.known[name]
        if isinstance(value, (np.generic, np.ndarray)) and not value.shape:
            value = value.item()
        option.check(value)
        if option.rank < 2:
            return value
        if option.rank == 2:
            return self._tokenizer.encode(value)
        texts = [value] if isinstance(value, str) else value
        return [ids for text in texts for ids in self._words(name, text)]

    def stack(self, name: str, values: Sequence[Any]) -> Array:
        """Returns the input for the values of a batch: (B,), (B, L) or (B, N, L); or a scalar.

        Args:
            name: name of the option.
            values: results of `value`, one for each line or one for all.
        """
        rank, dtype = self.known[name].rank, self.known[name].dtype
        if rank < 2:
            return np.array(values if rank else values[0], dtype)
        if rank == 2:
            return pad_rows(values).astype(dtype)
        return pad_words(values).astype(dtype)

    @functools.cached_property
    def _words(self) -> OptionWords:
        return OptionWords(self._tokenizer)
