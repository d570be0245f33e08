"""Embeddings of tokens, tied to the pre-softmax projection (section 3.4), and of segments.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_ids, check_positive
from keras_transformer.layers.masks import padding_mask


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(layers.Layer):
    """Turns ids into vectors, and vectors into logits, with one matrix E (V, D).

    Section 3.4: the two embeddings and the pre-softmax linear transformation
    share the matrix, and embeddings are multiplied by sqrt(d_model). E is drawn
    from a normal distribution of standard deviation D^-1/2: the components of a
    scaled embedding then have variance 1 (sinusoidal encodings, which are added
    to it, have mean square 1/2), and so have the logits of a normalised vector.

    Weights: `embeddings` (V, D); `output_kernel` (D, V) without `tie_output`, drawn as E is;
    `output_bias` (V,), zeros, with `output_bias`.

    Args:
        vocab_size: V, number of ids.
        d_model: D, size of the vectors.
        tie_output: whether E gives the logits, too. `False`: a matrix of their own does. Defaults
            to `True`.
        output_bias: whether a bias is added to the logits. Defaults to `False`.

    Call arguments:
        inputs: (B, T) integer ids below V; or, with `logits=True`, (B, T, D) vectors.
        logits: whether to project vectors to logits. Defaults to `False`.
            `embedding.logits(x)` is the same and reads better.

    Returns:
        (B, T, D) vectors sqrt(D) E[id] in the compute dtype; or (B, T, V) float32
        logits x E^T, or x W + b. Lookup also sets the Keras mask, True where id is not 0;
        the projection passes its input's mask on.

    Raises:
        ValueError: sizes are not positive, or the vectors' last axis is not D.
        TypeError: ids are not integers.

    Example:

    >>> embedding = TokenEmbedding(vocab_size=11, d_model=4)
    >>> x = embedding(keras.ops.array([[5, 3, 0]]))
    >>> x.shape, embedding.logits(x).shape
    ((1, 3, 4), (1, 3, 11))
    """

    def __init__(self, vocab_size, d_model, tie_output=True, output_bias=False, **kwargs):
        super().__init__(**kwargs)
        check_positive(vocab_size=vocab_size, d_model=d_model)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.tie_output = tie_output
        self.output_bias = output_bias
        self.supports_masking = True

    def build(self, input_shape=None):
        normal = keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
        shape = (self.vocab_size, self.d_model)
        # No autocast: logits are computed in float32 under every dtype policy.
        options = {"autocast": False}
        self.embeddings = self.add_weight(shape, normal, name="embeddings", **options)
        if not self.tie_output:
            kernel = normal.clone()
            self.kernel = self.add_weight(shape[::-1], kernel, name="output_kernel", **options)
        if self.output_bias:
            self.bias = self.add_weight(shape[:1], "zeros", name="output_bias", **options)

    def call(self, inputs, logits=False):
        if logits:
            if inputs.shape[-1] != self.d_model:
                raise ValueError(
                    f"Vectors of size {inputs.shape[-1]} were passed, but this embedding has "
                    f"d_model={self.d_model}. Project them to d_model first."
                )
            kernel = ops.transpose(self.embeddings) if self.tie_output else self.kernel
            # In bfloat16, 3 to 4 % of rows would have two equal largest logits.
            inputs, kernel = ops.cast(inputs, "float32"), ops.cast(kernel, "float32")
            products = ops.matmul(inputs, kernel)  # (B, T, V)
            return products + self.bias if self.output_bias else products
        check_ids(inputs, "pass `logits=True` to project vectors")
        vectors = ops.cast(ops.take(self.embeddings, inputs, axis=0), self.compute_dtype)
        return vectors * ops.cast(self.d_model**0.5, vectors.dtype)  # (B, T, D)

    def logits(self, vectors):
        """Projects vectors (B, T, D) to float32 logits (B, T, V)."""
        return self(vectors, logits=True)

    def compute_mask(self, inputs, previous_mask=None):
        if "int" in keras.backend.standardize_dtype(inputs.dtype):
            return padding_mask(inputs)
        return previous_mask

    def compute_output_shape(self, input_shape, logits=False):
        return (*input_shape[:-1], self.vocab_size) if logits else (*input_shape, self.d_model)

    def compute_output_spec(self, inputs, logits=False):
        shape = self.compute_output_shape(inputs.shape, logits)
        return keras.KerasTensor(shape, "float32" if logits else self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "tie_output": self.tie_output,
            "output_bias": self.output_bias,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class SegmentEmbedding(layers.Layer):
    """Adds a learned vector that says which text a token belongs to.

    For two texts in one row, such as a question and a passage: BERT's segment embeddings (arXiv
    1810.04805, section 3). It adds, as position encodings do, and so keeps the mask.

    Weights: `embeddings` (num_segments + 1, D), drawn from a normal distribution of standard
    deviation D^-1/2. The first row is that of padding.

    Args:
        num_segments: number of texts in a row. Defaults to 2.

    Call arguments:
        inputs: (B, S, D) embeddings.
        segment_ids: (B, S) integers: 0 for padding, 1 for the first text, 2 for the second.

    Returns:
        (B, S, D): `inputs` + the vector of each token's segment. The Keras mask of `inputs` passes
        through.

    Raises:
        ValueError: `num_segments` is not positive.
        TypeError: segment ids are not integers.

    Example:

    >>> x, segment_ids = keras.ops.ones((1, 4, 8)), keras.ops.array([[1, 1, 2, 0]])
    >>> SegmentEmbedding()(x, segment_ids).shape
    (1, 4, 8)
    """

    def __init__(self, num_segments=2, **kwargs):
        super().__init__(**kwargs)
        check_positive(num_segments=num_segments)
        self.num_segments = num_segments
        self.supports_masking = True

    def build(self, inputs_shape, segment_ids_shape=None):
        d_model = inputs_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_segments + 1, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, inputs, segment_ids):
        check_ids(segment_ids, "pass the vectors first, then the segment ids")
        vectors = ops.take(self.embeddings, segment_ids, axis=0)  # (B, S, D)
        return inputs + ops.cast(vectors, inputs.dtype)

    def compute_output_shape(self, inputs_shape, segment_ids_shape=None):
        return inputs_shape

    def get_config(self):
        return {**super().get_config(), "num_segments": self.num_segments}
