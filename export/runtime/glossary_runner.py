"""`GlossaryRunner`, the base of `Translator`: searches that take a glossary for each line.

With the constraint `Terms`, the glossary gives terms to each line. With alignments and prefixes,
its terms take the place of aligned words; see `glossaries`.
"""

import functools
import itertools
from collections.abc import Generator as Steps
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.options import Option, options_of
from keras_transformer.export.artefact.results import Row, Translation
from keras_transformer.export.runtime.glossaries import (
    glossaries_of_lines,
    place_in_rows,
    terms_of_lines,
)
from keras_transformer.export.runtime.options import CallInputs
from keras_transformer.export.runtime.streaming import SearchRunner

# The option where its terms take the place of words, and where they become the option `terms`.
PLACED, CONSTRAINED = Option("glossary", "object", 1), Option("glossary", "object", 0)


def hint_of(manifest: Mapping[str, Any]) -> str:
    """Returns what else to check if a search has found no text."""
    if "terms" in options_of(manifest):
        return "; do all terms fit into max_length?"
    return "; can an output fulfil all constraints, and min_length?"


class GlossaryRunner(SearchRunner):
    """A `SearchRunner` with the option `glossary`."""

    @property
    def places_terms(self) -> bool:
        """Whether terms of a glossary take the place of the words aligned to their phrases."""
        return "target_prefix" in self._options.known and signature.ALIGNMENTS in self._outputs

    @property
    def options(self) -> dict[str, Option]:
        """As `Runner.options`, with the glossary."""
        if self.places_terms:
            return super().options | {PLACED.name: PLACED}
        if "terms" in self._options.known:
            return super().options | {CONSTRAINED.name: CONSTRAINED}
        return super().options

    def results(
        self,
        items: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[Translation]:
        """As `Runner.results`; a `glossary` gives terms to each line."""
        has_glossary = options.get("glossary") is not None
        if has_glossary and not self.places_terms and not isinstance(items, self._reader.alone):
            items, lines = itertools.tee(items)
            options = self._with_terms(lines, **options)
        return super().results(items, seed, tokens_per_batch, read_ahead, **options)

    def stream_steps(
        self, item: Any, seed: int | None = None, *, with_prompt: bool = False, **options: Any
    ) -> Steps[str, None, Translation]:
        """As `SearchRunner.stream_steps`; a `glossary` gives terms to the line."""
        options = self._with_terms([item], **options)
        return super().stream_steps(item, seed, with_prompt=with_prompt, **options)

    def _with_terms(
        self, lines: Iterable[str | bytes], glossary: Any = None, terms: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Returns the options of a call, with a glossary replaced by its terms."""
        if glossary is not None:
            if "terms" not in self._options.known:
                has = "alignments, which no stream uses," if self.places_terms else "no alignments"
                raise ValueError(
                    f"`glossary` was passed, but the artefact has {has} and no terms. Export a "
                    "search with alignments=True and options=('target_prefix',), or, for streams "
                    "too, with the constraint Terms."
                )
            terms = terms_of_lines(lines, glossary, terms)
        return {**options, "terms": terms}

    def _read_options(self, options: dict[str, Any]) -> CallInputs:
        glossary, prefix = options.get("glossary"), options.get("target_prefix")
        if glossary is None:
            return super()._read_options(options)
        if isinstance(prefix, str):
            prefix = itertools.repeat(prefix)
        options = {**options, "glossary": None, "target_prefix": prefix or itertools.repeat("")}
        return super()._read_options(options)._replace(glossaries=glossaries_of_lines(glossary))

    def _run_rows(
        self, rows: dict[int, Row], items: list[Any], call: CallInputs, tokens_per_batch: int
    ) -> dict[int, Any]:
        run = functools.partial(
            super()._run_rows, items=items, call=call, tokens_per_batch=tokens_per_batch
        )
        results = run(rows)
        if call.glossaries is None:
            return results
        return place_in_rows(rows, items, results, call.glossaries, self.target_tokenizer, run)
