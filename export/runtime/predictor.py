"""Runs exported models without a search: labels, tags, answers, vectors, or plain outputs."""

from keras_transformer.export.artefact.heads import read_head
from keras_transformer.export.artefact.manifest import id_inputs
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.artefact.signature import SEARCH_TASKS
from keras_transformer.export.runtime.rows import (
    ArrayReader,
    checked_inputs,
    read_items,
    row_group,
    row_length,
    stacked,
)
from keras_transformer.export.runtime.runner import Runner
from keras_transformer.export.runtime.text_rows import TextReader, WordReader


class Predictor(Runner):
    """Serves one exported model without a search, by the head that it was exported with.

    | head of the export | an input is | its result |
    | --- | --- | --- |
    | `Classification` | a text, or two | `Labels`: all labels with probabilities, best first |
    | `TokenClassification` | words: a list, or a text to be split at white space | `Tags` |
    | `QuestionAnswering` | question and passage | `Answer`: its text, place and score |
    | `FeatureExtraction` | a text, or two | `Vector` |
    | none | a text, or two | `Outputs`: the model's outputs by name |

    Text is read where the model has an input of ids and the artefact a tokenizer. Two texts are a
    pair, or one text with a TAB between them: for models with two inputs of ids, or with
    `segment_ids`. Where a model has other inputs too, an input is a dict by their names, with texts
    for the ids and arrays for the others.

    Models that read no text take arrays without batch axis, or dicts of arrays by input name. For
    all models that read arrays a string is JSON. An axis of free size may be as long as the
    artefact's `limits["source_length"]`, and a number must fit the input's dtype.

    No result depends on the other inputs of a call. Rows of ids share a batch with padding only
    where the export has seen that padding changes nothing; other rows and arrays share one where
    their shapes are equal. Odd lines, threads, providers and streams are as in `Translator`; in
    place of an empty hypothesis an input without text has an empty result: no labels, tags, vector
    or outputs. The same holds for two texts of which one is blank.

    Arguments are those of `Translator`.

    Attributes:
        head: what the artefact was exported with.
        provider, manifest, tokenizer, session: as in `Translator`; `tokenizer` may be `None`.

    Raises:
        ArtefactError: the folder is missing, damaged, foreign, of a newer format, holds a search,
            or words and passages are to be read without a tokenizer.
        ProviderError, ValueError: as in `Translator`.

    Example:

    >>> predictor = Predictor("out/sentiment")  # doctest: +SKIP
    >>> [result.label for result in predictor.predict(["What a film!"])]  # doctest: +SKIP
    ['positive']
    """

    def predict(self, inputs, batch_tokens=2048):
        """The result of each input.

        Args:
            inputs: iterable of what the table above says, str or bytes in UTF-8 for text; for a
                model that reads one array, an array with batch axis will do.
            batch_tokens: int, most tokens of a batch, padding included; of an array its first axis
                counts. A longer input is a batch of its own.

        Returns:
            List of `Labels`, `Tags`, `Answer`, `Vector` or `Outputs`, in the order of `inputs`. An
            input that is refused, or that fails, has its reason in `error` and touches no other.

        Raises:
            TypeError: `inputs` is one string or one dict, or holds something that is no input.
            ValueError: `batch_tokens` is less than 1.
        """
        return self._list(list(checked_inputs(inputs)), batch_tokens)

    def predict_stream(self, inputs, batch_tokens=2048, read_ahead=1024):
        """As `predict`, lazily: reads at most `read_ahead` inputs beyond the one that it yields.

        Returns:
            Iterator of results.
        """
        return self._stream(iter(checked_inputs(inputs)), batch_tokens, read_ahead)

    def _check(self, artefact):
        manifest, task = artefact.manifest, artefact.manifest["task"]
        if task in SEARCH_TASKS:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r} with a search, and "
                "Predictor serves models without one. Take Translator, Generator or Transcriber."
            )
        self.head, self._inputs = read_head(manifest), manifest["inputs"]
        ids = id_inputs(self._inputs) if artefact.tokenizer else []
        if task == "answer" and not ids:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r} and reads no text. Export "
                "the model with its tokenizer: export_onnx(model, path, tokenizer, head=head)."
            )
        if task == "tag" and ids and len(self._inputs) > 1:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r}, which reads words from one "
                f"input, and has the inputs {[value['name'] for value in self._inputs]}. Export "
                "the model without a head."
            )
        if not ids:
            self._reader = ArrayReader(self._inputs, manifest["limits"]["source_length"])
        else:
            self._reader = (WordReader if task == "tag" else TextReader)(artefact)
        self._padded = manifest.get("ignores_padding", False)
        self._empty = self.head.empty

    def _read(self, items):
        return read_items(self._reader, items)

    def _length(self, row):
        return row_length(row)

    def _group(self, row):
        return row_group(row, self._padded)

    def _stack(self, rows):
        return stacked(rows, self._inputs)

    def _result(self, row, outputs):
        names = (value["name"] for value in self.manifest["outputs"])
        return self.head.result(row, dict(zip(names, outputs, strict=True)))

    def _failed(self, reason):
        return self.head.failed(reason)
