"""Searches: from a model's logits to its most likely sequences (section 6.1).

`base` holds the base class of the searches, and `inputs` checks their arguments. `loop` adds tokens
step by step, and `scores` holds the scores of the next tokens, ranks them and looks them up.
`beam`, `greedy` and `sampling` are the searches, and `speech` is Whisper's search. `shortlist`
restricts the tokens whose logits a model computes. `constraints` has the protocol of rules that
bias or forbid next tokens; `rules`, `timestamps`, `pattern` and `terms` are such rules. `terms`
also has the beam search that follows them.

This folder may import TensorFlow, the layers and special ids, but no models: a search accepts any
`SearchModel`. To add a new search, write a subclass of `base.Search` in a file of this folder and
add its name below. A constraint that only this search can follow names it, see `Constraint.search`.

For example, this recurrent translator, which keeps one state, is a `SearchModel`:

>>> class Recurrent:
...     def __init__(self, vocab_size, size):
...         draw = np.random.default_rng(0).normal
...         self.embeddings = draw(size=(vocab_size, size)).astype("float32")  # (V, D)
...         self.kernel = draw(size=(size, size)).astype("float32")  # (D, D)
...
...     def encode(self, source_ids):
...         return tf.reduce_sum(tf.gather(self.embeddings, source_ids), axis=1)  # (B, D)
...
...     def initial_cache(self, batch_size, beam_width):
...         return Cache(by_hypothesis=tf.zeros([batch_size, beam_width, len(self.kernel)]))
...
...     def decode_step(self, ids, position, memory, cache):
...         state = cache.by_hypothesis @ self.kernel + memory[:, None]  # (B, W, D)
...         state = tf.tanh(state + tf.gather(self.embeddings, ids))
...         logits = tf.matmul(state, self.embeddings, transpose_b=True)  # (B, W, V)
...         return logits, Cache(by_hypothesis=state)
>>> source_ids = np.array([[5, 11, 3], [7, 3, 0]], "int32")
>>> result = BeamSearch(beam_width=4)(Recurrent(vocab_size=13, size=8), source_ids)
>>> result.scores.shape
TensorShape([2, 4])
"""

from keras_transformer.decoding import Cache, SearchModel, Shared
from keras_transformer.search.base import SearchResult
from keras_transformer.search.beam import BeamSearch
from keras_transformer.search.constraints import Constraint, Past, forbid_tokens
from keras_transformer.search.greedy import GreedySearch
from keras_transformer.search.pattern import Pattern
from keras_transformer.search.rules import (
    BiasedPrefix,
    ForbiddenWords,
    NoRepeatNgrams,
    RepetitionPenalty,
)
from keras_transformer.search.sampling import Sampling
from keras_transformer.search.scores import Scores
from keras_transformer.search.shortlist import Shortlist, Shortlisted
from keras_transformer.search.terms import Terms, TermSearch

__all__ = [
    "BeamSearch",
    "BiasedPrefix",
    "Cache",
    "Constraint",
    "ForbiddenWords",
    "GreedySearch",
    "NoRepeatNgrams",
    "Past",
    "Pattern",
    "RepetitionPenalty",
    "Sampling",
    "Scores",
    "SearchModel",
    "SearchResult",
    "Shared",
    "Shortlist",
    "Shortlisted",
    "TermSearch",
    "Terms",
    "forbid_tokens",
]
