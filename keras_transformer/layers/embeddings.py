"""Embeddings of tokens, tied to the logits (section 3.4 of the paper), and of segments and words.

Shapes: B batch, T and S lengths, D d_model, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import BaseLayer, DigestRecord
from keras_transformer.layers.checks import check_id_range, check_ids, check_positive
from keras_transformer.layers.positions import ADDED_STDDEV
from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(DigestRecord, BaseLayer):
    """Turns ids into vectors, and vectors into logits, with one matrix E (V, D).

    Section 3.4: the two embeddings and the pre-softmax linear transformation share the matrix, and
    embeddings are multiplied by sqrt(d_model). E is drawn from a normal distribution of standard
    deviation D^-1/2. The components of a scaled embedding then have variance 1, and the sinusoidal
    encodings added to it have mean square 1/2. The logits of a normalised vector also have
    variance 1.

    Weights: `embeddings` (V, D); `output_kernel` (D, V) without `tie_output`, drawn like E;
    `output_bias` (V,), zeros, with `output_bias`.

    Args:
        vocab_size: V, number of ids.
        d_model: D, size of the vectors.
        tie_output: whether E also computes the logits. With `False`, another matrix does. Defaults
            to `True`.
        output_bias: whether the logits have a bias. Defaults to `False`.

    Call arguments:
        inputs: (B, T) integer ids below V; or, with `logits=True`, (B, T, D) vectors.
        logits: whether to project vectors to logits. Defaults to `False`. `embedding.logits(x)` is
            the same as `embedding(x, logits=True)`.

    Returns:
        (B, T, D) vectors sqrt(D) E[id] in the compute dtype; or (B, T, V) float32 logits x E^T, or
        x W + b. The lookup sets the Keras mask, True where the id is not 0. The projection passes
        the mask of its input on.

    Raises:
        ValueError: a size is not positive, or the last axis of the vectors is not D.
        TypeError: ids are not integers.

    Example:

    >>> embedding = TokenEmbedding(vocab_size=11, d_model=4)
    >>> x = embedding(keras.ops.array([[5, 3, 0]]))
    >>> x.shape, embedding.logits(x).shape
    ((1, 3, 4), (1, 3, 11))
    """

    # `quantization_aware` replaces these functions.
    product, look_up = staticmethod(ops.matmul), staticmethod(ops.take)

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        tie_output: bool = True,
        output_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(vocab_size=vocab_size, d_model=d_model)
        self.vocab_size, self.d_model = int(vocab_size), int(d_model)
        self.tie_output, self.output_bias = tie_output, output_bias

    def build(self, input_shape: Shape | None = None) -> None:
        normal = keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
        shape = (self.vocab_size, self.d_model)
        # Without autocast, logits are computed in float32 under every dtype policy.
        options = {"autocast": False}
        self.embeddings = self.add_weight(shape, normal, name="embeddings", **options)
        if not self.tie_output:
            kernel = normal.clone()
            self.kernel = self.add_weight(shape[::-1], kernel, name="output_kernel", **options)
        if self.output_bias:
            self.bias = self.add_weight(shape[:1], "zeros", name="output_bias", **options)

    def call(self, inputs: Tensor, logits: bool = False) -> Tensor:
        if logits:
            if inputs.shape[-1] != self.d_model:
                raise ValueError(
                    f"Vectors of size {inputs.shape[-1]} were passed, but this embedding has "
                    f"d_model={self.d_model}. Project them to d_model first."
                )
            kernel = ops.transpose(self.embeddings) if self.tie_output else self.kernel
            # In bfloat16, 3 to 4 % of rows would have two equal largest logits.
            inputs, kernel = ops.cast(inputs, "float32"), ops.cast(kernel, "float32")
            products = self.product(inputs, kernel)  # (B, T, V)
            return products + ops.cast(self.bias, "float32") if self.output_bias else products
        inputs = check_ids(inputs, "pass `logits=True` to project vectors")
        check_id_range(inputs, self.vocab_size, "The input")
        vectors = ops.cast(self.look_up(self.embeddings, inputs, axis=0), self.compute_dtype)
        return vectors * ops.cast(self.d_model**0.5, vectors.dtype)  # (B, T, D)

    def logits(self, vectors: Tensor) -> Tensor:
        """Projects vectors (B, T, D) to float32 logits (B, T, V)."""
        return self(vectors, logits=True)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        is_lookup = "int" in keras.backend.standardize_dtype(inputs.dtype)
        return ops.not_equal(inputs, PAD_ID) if is_lookup else previous_mask

    def compute_output_shape(self, input_shape: Shape, logits: bool = False) -> Shape:
        return (*input_shape[:-1], self.vocab_size) if logits else (*input_shape, self.d_model)

    def compute_output_spec(self, inputs: Tensor, logits: bool = False) -> keras.KerasTensor:
        shape = self.compute_output_shape(inputs.shape, logits)
        return keras.KerasTensor(shape, "float32" if logits else self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        names = ("vocab_size", "d_model", "tie_output", "output_bias")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("keras_transformer")
class SegmentEmbedding(BaseLayer):
    """Adds a learned vector that tells which text a token belongs to.

    Use it for two texts in one row, such as a question and a passage, as in BERT (arXiv 1810.04805,
    section 3).

    Weights: `embeddings` (num_segments + 1, D), drawn from a normal distribution of variance
    1/2, as learned positions. The first row is the vector of padding.

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

    look_up = staticmethod(ops.take)  # `quantization_aware` replaces it

    def __init__(self, num_segments: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(num_segments=num_segments)
        self.num_segments = num_segments

    def build(self, input_shape: Shape) -> None:
        normal = keras.initializers.RandomNormal(stddev=ADDED_STDDEV)
        shape = (self.num_segments + 1, input_shape[-1])
        self.embeddings = self.add_weight(shape, normal, name="embeddings")

    def call(self, inputs: Tensor, segment_ids: Tensor) -> Tensor:
        segment_ids = check_ids(segment_ids, "pass the vectors first, then the segment ids")
        remedy = "Number the texts from 1, and padding with 0."
        check_id_range(segment_ids, self.num_segments + 1, "segment_ids", remedy)
        vectors = self.look_up(self.embeddings, segment_ids, axis=0)  # (B, S, D)
        return inputs + ops.cast(vectors, inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_segments": self.num_segments}
