"""Continues prompts with an exported language model, without TensorFlow and Keras."""

from typing import NamedTuple

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime.lines import checked_lines
from keras_transformer.export.runtime.runner import with_warnings
from keras_transformer.export.runtime.search_runner import SearchRunner
from keras_transformer.special_ids import BEGIN_ID


class Generation(NamedTuple):
    """The result of one prompt.

    Attributes:
        texts: tuple of str, continuations, best first, without the prompt. One empty text for a
            prompt without text; none for one that could not be continued.
        scores: tuple of float, one for each text: sum of log-probabilities / length penalty. 0 for
            a prompt without text.
        error: str, why the prompt could not be continued, or None.
        full_texts: tuple of str, prompt and continuation, one for each text. Their tokens are
            decoded together, so that spaces between them are right.
    """

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    error: str | None = None
    full_texts: tuple[str, ...] = ()

    @property
    def text(self):
        """The best continuation, or an empty string."""
        return self.texts[0] if self.texts else ""

    @property
    def full_text(self):
        """The prompt with its best continuation, or an empty string."""
        return self.full_texts[0] if self.full_texts else ""


class Generator(SearchRunner):
    """Serves one exported language model: greedy search, beam search or sampling.

    The model reads the begin token and the pieces of the prompt. Odd lines, threads, providers and
    streams are as in `Translator`. So a prompt without text has one empty continuation of score 0;
    to generate from nothing, run `session` with the begin token alone, `[[2]]`.

    An artefact that samples takes a seed. It fixes what every prompt gets, together with the
    prompt's own tokens and the number of the sample: neither the other prompts of a call nor their
    order, batches, workers or threads matter, and equal prompts get equal texts. Without a seed
    each call draws one for all its prompts.

    Arguments and errors are those of `Translator`.

    Attributes:
        provider, manifest, tokenizer, session: as in `Translator`.

    Example:

    >>> generator = Generator("out/story")  # doctest: +SKIP
    >>> generator.generate(["Once upon a time"], seed=7)  # doctest: +SKIP
    ['there was a fox.']
    """

    _task, _inputs = "generate", ([signature.SOURCE_IDS], [signature.SOURCE_IDS, signature.SEED])
    _serves = "'generate': greedy search, beam search or sampling of a language model"
    _begin = (BEGIN_ID,)
    _empty = Generation(("",), (0.0,), None, ("",))

    def generate(self, prompts, seed=None, batch_tokens=2048):
        """Best continuation of each prompt; with sampling, of its samples the likeliest.

        Args:
            prompts: iterable of str, or of bytes in UTF-8. A newline at the end is left out.
            seed: int from 0 to 2^31 - 2, for an artefact that samples. Defaults to `None`: drawn.
            batch_tokens: int, most prompt tokens of a batch, padding included. A longer prompt is
                a batch of its own.

        Returns:
            List of str, in the order of `prompts`: what follows the prompt, without it.

        Raises:
            TypeError: `prompts` is one string, or holds something that is neither str nor bytes;
                or `seed` is no integer.
            ValueError: `batch_tokens` is less than 1, `seed` is out of its range, or passed where
                the artefact does not sample.
        """
        prompts = list(checked_lines(prompts, "generate([prompt])"))
        return list(self.generate_stream(prompts, seed, batch_tokens, max(1, len(prompts))))

    def generate_stream(self, prompts, seed=None, batch_tokens=2048, read_ahead=1024):
        """As `generate`, lazily: reads at most `read_ahead` prompts beyond the one that it yields.

        The prompts read ahead are those sorted by length. One seed holds for all of them.

        Returns:
            Iterator of str.
        """
        results = self.n_best_stream(prompts, seed, batch_tokens, read_ahead)
        return (result.text for result in with_warnings(results, "continued"))

    def n_best(self, prompts, seed=None, batch_tokens=2048):
        """All continuations of each prompt, with scores, a list of `Generation`; as `generate`."""
        prompts = list(checked_lines(prompts, "n_best([prompt])"))
        return self._list(prompts, batch_tokens, self._seeded(seed))

    def n_best_stream(self, prompts, seed=None, batch_tokens=2048, read_ahead=1024):
        """As `n_best`, lazily: iterator of `Generation`. Else as `generate_stream`."""
        prompts = checked_lines(prompts, "n_best_stream([prompt])")
        return self._stream(prompts, batch_tokens, read_ahead, self._seeded(seed))

    def _result(self, row, outputs):
        token_ids, scores = self._hypotheses(outputs)
        full = [np.r_[row, ids] for ids in token_ids]
        return Generation(self._decoded(token_ids), scores, None, self._decoded(full))

    def _failed(self, reason):
        return Generation((), (), str(reason))
