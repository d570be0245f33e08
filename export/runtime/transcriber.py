"""Writes text about what is no text: sound, pictures, series, read by an encoder of one's own."""

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime.rows import (
    ArrayReader,
    checked_inputs,
    read_items,
    row_group,
    row_length,
    stacked,
)
from keras_transformer.export.runtime.runner import with_warnings
from keras_transformer.export.runtime.search_runner import SearchRunner
from keras_transformer.export.runtime.translator import Translation


class Transcriber(SearchRunner):
    """Serves a search over an encoder that reads no ids: sound to text, pictures to text.

    An input is an array without batch axis, or a dict of arrays by input name; a string is JSON for
    that. Only arrays of equal shapes share a batch, so no result depends on the other inputs of a
    call. Arrays that the model does not take have an `error`; so have arrays with an axis of free
    size that is longer than the artefact's `limits["source_length"]`. Seeds are as in `Generator`;
    threads, providers, streams and errors as in `Translator`.

    Arguments are those of `Translator`.

    Attributes:
        provider, manifest, tokenizer, session: as in `Translator`.

    Example:

    >>> transcriber = Transcriber("out/listener")  # doctest: +SKIP
    >>> transcriber.transcribe([frames])  # doctest: +SKIP
    ['one two three']
    """

    _task = "transcribe"
    _serves = "'transcribe': a search over an encoder that reads arrays"
    _empty = Translation(("",), (0.0,))
    _length = staticmethod(row_length)

    def transcribe(self, inputs, seed=None, batch_tokens=2048):
        """The best text of each input.

        Args:
            inputs: iterable of arrays or dicts of arrays; an array with batch axis will do.
            seed: as in `Generator`.
            batch_tokens: int, most of a batch, where the first axis of an input counts.

        Returns:
            List of str, in the order of `inputs`; an empty one, and a warning, for an input that
            is refused or fails.
        """
        results = with_warnings(self.n_best(inputs, seed, batch_tokens), "transcribed")
        return [result.text for result in results]

    def n_best(self, inputs, seed=None, batch_tokens=2048):
        """All texts of each input, with scores: list of `Translation`. Else as `transcribe`."""
        return self._list(list(checked_inputs(inputs)), batch_tokens, self._seeded(seed))

    def n_best_stream(self, inputs, seed=None, batch_tokens=2048, read_ahead=1024):
        """As `n_best`, lazily: reads at most `read_ahead` inputs beyond the one that it yields."""
        items = iter(checked_inputs(inputs))
        return self._stream(items, batch_tokens, read_ahead, self._seeded(seed))

    def _takes(self, inputs):
        return True

    def _check(self, artefact):
        super()._check(artefact)
        values = artefact.manifest["inputs"]
        self._read_inputs = [value for value in values if value["name"] != signature.SEED]
        most = artefact.manifest["limits"]["source_length"]
        self._reader = ArrayReader(self._read_inputs, most)

    def _read(self, items):
        return read_items(self._reader, items)

    def _group(self, row):
        return row_group(row, padded=False)

    def _stack(self, rows):
        return stacked(rows, self._read_inputs)

    def _result(self, row, outputs):
        token_ids, scores = self._hypotheses(outputs)
        return Translation(self._decoded(token_ids), scores)

    def _failed(self, reason):
        return Translation((), (), str(reason))
