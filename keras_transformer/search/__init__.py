"""Searches: from a model's logits to the sequences that it finds likeliest (section 6.1).

What lives here: the loop that all searches share (`loop`), the ranking of a step's tokens
(`candidates`), and one file a search (`greedy`, `beam`, `sampling`).

What may be imported: TensorFlow, the layers, special ids. Models are not: a search knows a model
by what it offers. A new search is one file here, and its name below.

What a model must offer to be searched:

- `start_ids(source_ids)`: the tokens that precede the first generated one, (B, P) int32;
- `encode(source_ids)`: what every step needs of the source, computed once. Any nest of tensors
  with one row a sentence;
- `initial_cache(batch_size, width)` and `decode_step(ids, position, memory, cache)`: the state
  before the first token, and the logits of the next token with the state after it;
- `max_length`: most positions that the model has, or `None`.
"""

from keras_transformer.search.beam import BeamSearch
from keras_transformer.search.greedy import GreedySearch
from keras_transformer.search.loop import SearchResult
from keras_transformer.search.sampling import Sampling

__all__ = ["BeamSearch", "GreedySearch", "Sampling", "SearchResult"]
