"""What serves an artefact with a search: lines as ids, hypotheses as texts.

Lines become ids, ids of similar length become batches, and one `session.run` a batch does the rest:
encoder, decoder and search are inside the graph.

Shapes: `B` lines of a batch, `S` tokens of the longest, `W` beam width, `T` tokens of the longest
hypothesis.
"""

import secrets

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.runtime.lines import encode_lines
from keras_transformer.export.runtime.runner import Runner
from keras_transformer.padding import pad_rows


class SearchRunner(Runner):
    """The base of `Translator`, `Generator` and `Transcriber`: all but what a result is.

    A subclass defines `_task` and `_inputs`, what it serves; `_serves`, the same in words; and the
    ids `_begin` and `_end` around those of a line.
    """

    _begin = _end = ()
    _outputs = (signature.TOKEN_IDS, signature.SCORES)

    def _check(self, artefact):
        """Raises unless the artefact does this class's task, and has a tokenizer."""
        task, folder = artefact.manifest["task"], artefact.folder
        inputs = [value["name"] for value in artefact.manifest["inputs"]]
        if task != self._task or not self._takes(inputs):
            raise ArtefactError(
                f"{folder} was exported for the task {task!r} with the inputs {inputs}, and "
                f"{type(self).__name__} serves {self._serves}. Take what serves this task, run "
                f"{artefact.model.name} with onnxruntime itself, or export it with such a search."
            )
        if artefact.tokenizer is None:
            raise ArtefactError(
                f"{folder} holds no {signature.TOKENIZER_FILE}. Export the model with its "
                "tokenizer: export_onnx(model, path, tokenizer, search)."
            )
        self.target_tokenizer = artefact.target_tokenizer

    def _takes(self, inputs):
        return inputs in self._inputs

    def _read(self, lines):
        limit = self.manifest["limits"]["source_length"]
        return encode_lines(lines, self.tokenizer, limit, begin=self._begin, end=self._end)

    def _stack(self, rows):
        return {signature.SOURCE_IDS: pad_rows(rows)}

    def _seeded(self, seed):
        """The input `seed` of the model, where it has one, as a dict."""
        samples = any(value["name"] == signature.SEED for value in self.manifest["inputs"])
        if not samples and seed is not None:
            raise ValueError(
                f"`seed` was passed, but this artefact holds {self.manifest['search']}, which "
                "draws no random numbers. Leave it out, or export the model with Sampling."
            )
        if not samples:
            return {}
        if seed is None:
            seed = secrets.randbelow(signature.MOST_SEED + 1)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(f"`seed` must be an integer, got {seed!r}.")
        if not 0 <= seed <= signature.MOST_SEED:
            raise ValueError(f"`seed` must be from 0 to {signature.MOST_SEED}, got {seed}.")
        return {signature.SEED: np.array(seed, np.int32)}

    def _hypotheses(self, outputs):
        """Ids, a list of arrays, and scores, a tuple of float, of those that the search has found.

        Args:
            outputs: a line's ids (W, T) and scores (W,).
        """
        token_ids, scores = outputs
        if np.isnan(scores).any() or scores[0] == -np.inf:
            raise ValueError(f"the model gave the scores {scores.tolist()}")
        # The rest of the beam has the score -inf where the search found fewer hypotheses.
        filled = scores > -np.inf
        return list(token_ids[filled]), tuple(scores[filled].tolist())

    def _decoded(self, rows):
        """The texts of rows of ids, a tuple."""
        texts = (self.target_tokenizer.decode(ids) for ids in rows)
        return tuple(text.replace("\0", signature.REPLACEMENT) for text in texts)
