"""Searches: from a model's logits to the sequences that it finds likeliest (section 6.1).

What lives here: one file a search (`greedy`, `beam`, `sampling`), what they share (`base`,
`independent`), the loop over steps (`loop`), the ranking of tokens (`candidates`), the tokens that
are given (`given`), models that write the words of a lexical shortlist only (`shortlist`) or what a
grammar allows (`grammar`, `bracket_grammar`), and the checks of arguments (`checks`).

What may be imported: TensorFlow, the layers, special ids. Models are not: a search knows a model
by its methods. A new search is one file here, and its name below.

What a model must offer to be searched: three methods.

- `encode(source_ids)`, with int32 (B, S): returns the memory, what every step needs of the source.
  It is computed once. Any nest of tensors (B, ...); `()` for nothing. A memory with tensors of
  other shapes has a method `of(sentences)`, the memory of these.
- `initial_cache(batch_size, beam_width)`, with an int32 scalar and an int: returns the `Cache`
  before the first token, with tensors (B, ...) in `by_sentence` and (B, W, ...) in `by_hypothesis`.
- `decode_step(ids, position, memory, cache)`, with the last token of each hypothesis, int32 (B, W),
  and the number of tokens before it, int32 scalar: returns the logits of the next token, float
  (B, W, V), and the next `Cache`. An axis of the cache that is empty (size 0) at first may grow.
  All other axes keep their size.

Between two steps a search may drop sentences that are over, from memory and cache, and reorder
`by_hypothesis`, so that hypothesis w finds there what the one that it continues has left.

And three members that it may offer:

- `start_ids(source_ids)`: the tokens before the first generated one, int32 (B, P), right-padded
  with 0. Without it every sentence starts with the begin token.
- `max_length`: the number of positions that the model has. Without it, or if it is `None`, there is
  no limit.
- `narrowed(least)`, of its class: a model that is searched in its place, over a vocabulary of this
  batch with `least` words or more, or `None`. It has the three methods and `max_length`, starts
  with the begin token, and numbers its words by itself, the special ids (0 to 3) as always: ids in
  `decode_step` are such numbers, and the graph need not know how many there are. Its method
  `restored(ids, memory)`, with what its `encode` returned, gives the ids of numbers, 0 for 0.
  Searches for the likeliest tokens ask for it where no prefix is given.

A recurrent translator, for example, whose state is all that it remembers:

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

from keras_transformer.decoding import Cache
from keras_transformer.search.base import SearchResult
from keras_transformer.search.beam import BeamSearch
from keras_transformer.search.bracket_grammar import BracketGrammar
from keras_transformer.search.grammar import Constrained
from keras_transformer.search.greedy import GreedySearch
from keras_transformer.search.sampling import Sampling
from keras_transformer.search.shortlist import Shortlist, Shortlisted

__all__ = [
    "BeamSearch",
    "BracketGrammar",
    "Cache",
    "Constrained",
    "GreedySearch",
    "Sampling",
    "SearchResult",
    "Shortlist",
    "Shortlisted",
]
