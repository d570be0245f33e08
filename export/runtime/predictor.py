"""`Predictor` serves models without a search; `open_runner` opens any artefact by its task."""

from collections.abc import Iterable, Iterator
from typing import Any

from keras_transformer.export.artefact.manifest import id_inputs
from keras_transformer.export.artefact.reader import Artefact, ArtefactError, read_task
from keras_transformer.export.artefact.results import ResultMaker
from keras_transformer.export.artefact.signature import SEARCH_TASKS
from keras_transformer.export.artefact.task_heads import read_head, tags_words
from keras_transformer.export.runtime.input_readers import ArrayReader, InputReader
from keras_transformer.export.runtime.runner import ALL, Runner
from keras_transformer.export.runtime.searches import Generator, Translator
from keras_transformer.export.runtime.speech.transcriber import Transcriber
from keras_transformer.export.runtime.text_readers import TextReader, WordReader
from keras_transformer.types import StrPath


class Predictor(Runner):
    """Serves an exported model without a search, by the head that it was exported with.

    | head of the export | an input is | its result |
    | --- | --- | --- |
    | `Classification` | a text, or two | `Labels`: all labels with probabilities, best first |
    | `TokenClassification` | words: a list, or a text to be split at white space | `Tags` |
    | `QuestionAnswering` | question and passage | `Answer`: its text, place and score |
    | `FeatureExtraction` | a text, or two | `Vector` |
    | `Heads` | words with a `TokenClassification`, else a text, or two | `Results`, by head |
    | none | a text, or two | `Outputs`: the model's outputs by name |

    `Predictor` reads text if the model has an input of ids and the artefact a tokenizer. Two texts,
    for models with two inputs of ids or with `segment_ids`, are a pair, or one string with a TAB
    between them. If a model has other inputs too, an input is a dict by input name, with texts for
    the ids and arrays for the others.

    Models that read no text take arrays without batch axis, or dicts of arrays by input name. All
    models that read arrays take a string as JSON. An axis of free size may be as long as the
    artefact's `limits["source_length"]`, and a number must fit the input's dtype.

    Results do not depend on the other inputs of a call. Rows of ids share a padded batch only if
    the export has checked that padding changes nothing. Other rows and arrays share a batch if
    their shapes are equal. Unusual lines, threads, providers and streams are as in `Translator`.
    An input without text has an empty result: no labels, tags, vector or outputs. So has a pair of
    texts if one is blank.

    Arguments are the same as in `Translator`.

    Attributes:
        head: the head that the artefact was exported with.
        provider, manifest, tokenizer, session: as in `Translator`; `tokenizer` may be `None`.

    Raises:
        ArtefactError: the folder is missing, damaged, foreign, of a newer format, holds a search,
            or reads words or passages without a tokenizer.
        ProviderError, ValueError: as in `Translator`.

    Example:

    >>> predictor = Predictor("out/sentiment")  # doctest: +SKIP
    >>> [result.label for result in predictor.predict(["What a film!"])]  # doctest: +SKIP
    ['positive']
    """

    def predict(self, inputs: Iterable[Any], tokens_per_batch: int = 2048) -> list[Any]:
        """Returns the result of each input.

        Args:
            inputs: iterable of inputs as in the table above, str or bytes in UTF-8 for text; for a
                model that reads one array, also one array with batch axis.
            tokens_per_batch: int, maximum number of tokens of a batch, padding included; the first
                axis of an array counts. A longer input is a batch alone.

        Returns:
            List of `Labels`, `Tags`, `Answer`, `Vector`, `Results` or `Outputs`, in the order of
            `inputs`. An input that is refused or fails has its reason in `error` and affects no
            other.

        Raises:
            TypeError: `inputs` is one string or one dict, or holds an object of another type.
            ValueError: `tokens_per_batch` is less than 1.
        """
        return list(self.results(inputs, tokens_per_batch=tokens_per_batch, read_ahead=ALL))

    def predict_stream(
        self, inputs: Iterable[Any], tokens_per_batch: int = 2048, read_ahead: int = 1024
    ) -> Iterator[Any]:
        """Predicts lazily: reads at most `read_ahead` inputs beyond the one that it yields.

        Returns:
            Iterator of results.
        """
        return self.results(inputs, tokens_per_batch=tokens_per_batch, read_ahead=read_ahead)

    def _reader_and_result_maker(self, artefact: Artefact) -> tuple[InputReader, ResultMaker]:
        manifest, task = artefact.manifest, artefact.manifest["task"]
        if task in SEARCH_TASKS:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r} with a search, and "
                "Predictor serves models without one. Use Translator, Generator or Transcriber."
            )
        ids = id_inputs(self._inputs) if artefact.tokenizer else []
        if task == "answer" and not ids:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r} and reads no text. Export "
                "the model with its tokenizer: export_onnx(model, path, tokenizer, head=head)."
            )
        self.head: Any = read_head(manifest)
        words = tags_words(self.head)
        if words and ids and len(self._inputs) > 1:
            raise ArtefactError(
                f"{artefact.folder} was exported for the task {task!r}, which reads words from one "
                f"input, and has the inputs {[value['name'] for value in self._inputs]}. Export "
                "the model without a head."
            )
        padded = manifest.get("ignores_padding", False)
        if not ids:
            reader = ArrayReader(self._inputs, manifest["limits"]["source_length"])
        else:
            reader = (WordReader if words else TextReader)(artefact, padded)
        return reader, self.head


_BY_TASK = {kind.task: kind for kind in (Translator, Generator, Transcriber)}


def open_runner(folder: StrPath, providers: list[Any] | None = None, **options: Any) -> Runner:
    """Opens an artefact with the class that serves its task.

    Args:
        folder: str or path, the folder that `keras_transformer.export.export_onnx` wrote.
        providers, options: as `Translator` takes them.

    Returns:
        A `Translator`, `Generator`, `Transcriber` or `Predictor`. Its method `results` has the same
        arguments for every task.

    Raises:
        ArtefactError, ProviderError, ValueError: as `Translator`.

    Example:

    >>> open_runner("out/onnx").manifest["task"]  # doctest: +SKIP
    'translate'
    """
    return _BY_TASK.get(read_task(folder), Predictor)(folder, providers, **options)
