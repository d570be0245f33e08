"""The export of a search from strings to strings: the tokenizer around it.

Input ends at a NUL character, as in onnxruntime-extensions, and NUL in the output becomes U+FFFD. A
blank text gives one empty hypothesis of score 0. So SavedModel, text model and runtime agree on
every string.

Shapes: B texts, W hypotheses, S source length, T target length.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import reads_ids
from keras_transformer.export.artefact import signature
from keras_transformer.export.exporter import Case, Rule
from keras_transformer.export.proof import comparison
from keras_transformer.export.tasks.samples import proof_texts
from keras_transformer.export.tasks.search import SearchTask
from keras_transformer.padding import pad_rows
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array, Ids, Tensor

Search: TypeAlias = Callable[[Case], tuple[Ids, Array]]  # ids (B, W, T) and scores (B, W)


class TextTask:
    """A search from strings to strings; from the inputs of an encoder that reads no ids.

    Args:
        task: `SearchTask`.
        tokenizer: `Tokenizer` of the source.
        target_tokenizer: `Tokenizer` of the target. Ids that it lacks are written like the unknown
            token. Defaults to `None`: `tokenizer`.
        search: function of the inputs of `task`, whose strings are expected. Defaults to `None`:
            the search in Keras.

    Attributes:
        name, option_defaults, lowest: as in `task`.
        specs: the `tf.TensorSpec` of each input, by name.
    """

    def __init__(
        self,
        task: SearchTask,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        search: Search | None = None,
    ) -> None:
        self.task: SearchTask = task
        self.tokenizer: Tokenizer = tokenizer
        self.target_tokenizer: Tokenizer = target_tokenizer or tokenizer
        self.search: Search = search or task.expected
        self.name: str = task.name
        self.option_defaults: dict[str, Array] = task.option_defaults
        self.lowest: dict[str, int] = task.lowest
        self.specs: dict[str, tf.TensorSpec] = dict(task.specs)
        if task.reads_ids:
            del self.specs[signature.SOURCE_IDS]
            text = tf.TensorSpec([None], tf.string, signature.TEXT)
            self.specs = {signature.TEXT: text, **self.specs}

    def function(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Returns strings and scores (B, W); exporters trace this function."""
        if not self.task.reads_ids:
            return self._decoded(inputs)
        special = signature.SPECIAL_IDS
        text = tf.strings.regex_replace(inputs.pop(signature.TEXT), r"(?s)\x00.*", "")
        ids = self.tokenizer.tf_encode(text)  # ragged (B, S)
        blank = tf.strings.regex_full_match(text, signature.BLANK) | (ids.row_lengths() == 0)
        blank = blank[:, tf.newaxis]  # (B, 1)
        generate = self.name == "generate"
        mark = tf.fill([tf.shape(text)[0], 1], special["begin" if generate else "end"])
        ids = tf.concat([mark, ids] if generate else [ids, mark], axis=1)
        found = self._decoded({signature.SOURCE_IDS: ids.to_tensor(special["pad"]), **inputs})
        scores = found[signature.SCORES]
        return {
            signature.TEXTS: tf.where(blank, "", found[signature.TEXTS]),
            signature.SCORES: tf.where(blank, _nothing(scores.shape[1]), scores),
        }

    def _decoded(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = self.task.function(**inputs)
        tokens = found[signature.TOKEN_IDS]
        # The model may have more ids than the tokenizer.
        known = tokens < self.target_tokenizer.vocab_size
        tokens = tf.where(known, tokens, signature.SPECIAL_IDS["unknown"])
        texts = self.target_tokenizer.tf_decode(tokens)
        texts = tf.strings.regex_replace(texts, r"\x00", signature.REPLACEMENT)
        return {signature.TEXTS: texts, signature.SCORES: found[signature.SCORES]}

    def cases(self, samples: Sequence[Any] | None = None) -> list[dict[str, Array]]:
        """Returns the inputs of the proof: made-up texts, or a sample of an encoder's inputs."""
        if not self.task.reads_ids:
            return self.task.cases(samples)[:1]
        seed = {signature.SEED: np.array(17, np.int32)} if self.task.random else {}
        return [{signature.TEXT: np.array(proof_texts(self.tokenizer, self.task.longest)), **seed}]

    def expected(self, case: Case) -> dict[str, Array]:
        """Returns the strings of the tokenizer around the search, and their scores."""
        inputs, blank = dict(case), []
        if self.task.reads_ids:
            texts, special = inputs.pop(signature.TEXT).tolist(), signature.SPECIAL_IDS
            blank = [not text.strip() for text in texts]
            rows = self.tokenizer.encode(texts)
            if self.name == "generate":
                rows = [[special["begin"], *row] for row in rows]
            else:
                rows = [[*row, special["end"]] for row in rows]
            inputs[signature.SOURCE_IDS] = pad_rows(rows)
        tokens, scores = self.search(inputs)
        known = tokens < self.target_tokenizer.vocab_size
        rows = np.where(known, tokens, signature.SPECIAL_IDS["unknown"])
        decoded = [text for row in rows for text in self.target_tokenizer.decode(row)]
        texts = np.array([text.replace("\0", signature.REPLACEMENT) for text in decoded])
        texts = texts.reshape(scores.shape)
        if any(blank):
            texts[blank], scores = "", scores.copy()
            scores[blank] = _nothing(scores.shape[1])
        return {signature.TEXTS: texts, signature.SCORES: scores}

    def compare(
        self,
        cases: Sequence[Case],
        expected: Sequence[Case],
        found: Sequence[Case],
        tolerance: float,
        exact: bool = True,
    ) -> float:
        """Raises `ExportError` unless strings and scores agree; returns the largest error."""
        pairs = zip(expected, found, strict=True)
        return max(comparison.compare_texts(one, other, tolerance) for one, other in pairs)

    def same_tokens(self, expected: Sequence[Any], found: Sequence[Case]) -> None:
        """Returns `None`: the search is compared token by token."""


def _nothing(width: int) -> Array:
    """Returns the scores (W,) of a blank text."""
    return np.where(np.arange(width) < 1, 0.0, -np.inf).astype(np.float32)


def _json(arguments: Any) -> bool:
    return any(isinstance(given, JsonTokenizer) for given in arguments.tokenizers)


RULES = (
    Rule(
        ValueError,
        lambda a: a.text and (a.tokenizer is None or a.search is None),
        lambda a: "text=True needs a tokenizer and a search: pass both, or leave it out.",
    ),
    Rule(
        ValueError,
        lambda a: a.text and not reads_ids(a.model),
        lambda a: (
            "text=True writes a file from text to text, but this model's encoder reads "
            f"{[tensor.name for tensor in a.model.encoder.inputs]}. Leave it out: the runtime "
            "decodes the model's output."
        ),
    ),
    Rule(
        TypeError,
        lambda a: a.in_graph and _json(a),
        lambda a: (
            "Strings inside the graph need a Tokenizer, a SentencePiece model, but a JsonTokenizer "
            f"was passed. {a.in_graph}."
        ),
    ),
)
