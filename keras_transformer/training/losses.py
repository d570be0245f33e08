"""Cross-entropies over padded sequences and over pairs, exact on any number of replicas.

Shapes: B batch, T target length, N = B T tokens, flattened; V vocabulary, or number of classes.
With one label per row T is absent and N = B.
"""

import inspect
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.training.replicas import mean_over_replicas
from keras_transformer.types import Tensor

# The softmax gives it exactly 0. Unlike -inf, it can be subtracted from itself.
LEAST_LOGIT = -1e9


def token_weights(labels: Tensor, sample_weight: Tensor = None, pad_id: int = 0) -> Tensor:
    """Computes the weight of each target token: 0 for padding, else 1 or the sample weight.

    Args:
        labels: integer tensor (B, T) or (B,).
        sample_weight: float tensor (B,), (B, 1) or (B, T), or `None`.
        pad_id: the id of padding. Defaults to 0.

    Returns:
        Float32 tensor of the labels' shape.

    Raises:
        ValueError: `sample_weight` has another rank than 1 or 2, or a weight per token where each
            row has one label.
    """
    weights = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
    rank = len(sample_weight.shape)
    if len(labels.shape) == 1 and (rank == 1 or sample_weight.shape[1:] == (1,)):
        return weights * (sample_weight if rank == 1 else sample_weight[:, 0])
    if rank not in (1, 2) or len(labels.shape) == 1:
        raise ValueError(
            "sample_weight must be one weight per sentence, shape (B,), or per token, shape "
            f"(B, T), but its shape is {tuple(sample_weight.shape)} and the shape of the labels is "
            f"{tuple(labels.shape)}."
        )
    return weights * (sample_weight[:, None] if rank == 1 else sample_weight)


def check_class_weight(labels: Tensor, outputs: Tensor) -> None:
    """Raises `ValueError` if `fit` has `class_weight` and the labels belong to positions.

    Keras then takes the argmax over the positions of a row as its class, so the weights of classes
    have no effect.

    Args:
        labels: tensor of labels, or its specification.
        outputs: tensor (..., V), the output of the model.
    """
    if len(labels.shape) < 2 or len(outputs.shape) != len(labels.shape) + 1:
        return
    frame = inspect.currentframe()  # Keras passes the loss only the weights of the rows
    while frame is not None:
        if frame.f_code.co_name in ("fit", "train_on_batch") and "class_weight" in frame.f_locals:
            if frame.f_locals["class_weight"] is None:
                return
            raise ValueError(
                f"class_weight was passed, and the labels {tuple(labels.shape)} are one for each "
                "position. Keras weights whole rows by it, so it cannot weight positions. Pass "
                "sample_weight of the labels' shape instead: weights[np.maximum(labels, 0)] with "
                "an array of one weight per class, or for a dataset "
                "dataset.map(lambda x, y: (x, y, tf.gather(weights, tf.maximum(y, 0))))."
            )
        frame = frame.f_back


def check_labels(labels: Any, classes: int, pad_id: int) -> None:
    """Raises `ValueError` for labels, an array or eager tensor, that no class has."""
    if keras.backend.backend() == "tensorflow" and hasattr(labels, "numpy"):
        labels = labels.numpy()
    if not isinstance(labels, np.ndarray):
        return  # of a graph, without values
    found = labels[labels != pad_id]
    if found.size and (found.min() < 0 or found.max() >= classes):
        raise ValueError(
            f"Labels are from {found.min()} to {found.max()}, but the classes are 0 to "
            f"{classes - 1}, and the loss leaves out the label {pad_id} only (`pad_id`)."
        )


def flat_tokens(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None, pad_id: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Checks the arguments of a loss or a metric, and flattens the tokens.

    Losses and metrics share `flat_tokens`, `log_normalizer`, `label_logits` and `weighted_sum`.
    TensorFlow's graph optimiser and XLA compute equal subgraphs once, so a metric needs no second
    pass over V.

    Args:
        y_true: integer tensor of labels, (B, T) or (B,).
        y_pred: float tensor of logits, (B, T, V) or (B, V).
        sample_weight: float tensor (B,), (B, 1) or (B, T), or `None`.
        pad_id: the label that marks padding. Defaults to 0.

    Returns:
        Labels int32 (N,), logits float32 (N, V) and weights float32 (N,). A weight is 0 for
        padding, else 1 or the sample weight. A negative label of padding becomes 0.

    Raises:
        ValueError: the shapes do not fit together, or see `token_weights` and `check_class_weight`.
    """
    labels = ops.cast(y_true, "int32")
    logits = ops.cast(y_pred, "float32")
    if len(logits.shape) == 2 and labels.shape[1:] == (1,):
        labels = labels[:, 0]  # Keras adds an axis to the labels of arrays
    fits = len(labels.shape) in (1, 2) and len(logits.shape) == len(labels.shape) + 1
    pairs = zip(labels.shape, logits.shape[:-1], strict=False)
    if not fits or any(None not in (a, b) and a != b for a, b in pairs):
        raise ValueError(
            "Labels must have shape (B, T) and logits (B, T, V) with the same B and T, or (B,) and "
            f"(B, V), but the shapes are {tuple(labels.shape)} and {tuple(logits.shape)}."
        )
    if sample_weight is not None:
        check_class_weight(labels, logits)
    if logits.shape[-1] is not None:
        check_labels(labels, logits.shape[-1], pad_id)
    weights = token_weights(labels, sample_weight, pad_id)  # (B, T)
    if pad_id < 0:
        labels = ops.maximum(labels, 0)  # an index into the logits
    if len(labels.shape) == 2:
        logits = ops.reshape(logits, (-1, logits.shape[-1]))  # (N, V)
    return ops.reshape(labels, (-1,)), logits, ops.reshape(weights, (-1,))  # (N,)


def log_normalizer(logits: Tensor) -> Tensor:
    """Computes the log-sum-exp over the vocabulary: (N, V) -> (N, 1), without gradient.

    The largest probability is exp(largest logit) over that sum, and never below 1 / V. So the
    softmax, which the loss's gradient needs anyway, also gives the sum.
    """
    logits = ops.stop_gradient(logits)
    # `initial`, because a replica may have no tokens (N = 0), and Keras rejects an empty maximum.
    largest = ops.max(logits, axis=-1, keepdims=True, initial=float("-inf"))  # (N, 1)
    likeliest = ops.max(ops.softmax(logits), axis=-1, keepdims=True, initial=0.0)  # (N, 1)
    return largest - ops.log(likeliest)


def label_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns each label's logit: (N, V), (N,) -> (N, 1), without gradient."""
    return ops.take_along_axis(ops.stop_gradient(logits), labels[:, None], axis=-1)


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Sums values (N,) times weights (N,). A value of weight 0 may be infinite or NaN."""
    return ops.sum(ops.where(weights != 0, values * weights, 0.0))


def token_crossentropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Computes the cross-entropy of each token, with its gradient in closed form.

    The target distribution is q = (1 - ε) onehot + ε / V. With logits z and n = log Σ exp z, the
    loss is n - (1 - ε) z[label] - ε mean(z), and its gradient is softmax(z) - q. Automatic
    differentiation would keep several (N, V) tensors for the backward pass; this function keeps
    one, the softmax. It is also faster than TensorFlow's fused kernel, which has no smoothing.
    Tokens of weight 0, such as padding, have the gradient 0, whatever their logits are.

    Args:
        logits: float32 tensor (N, V).
        labels: int32 tensor (N,), each in [0, V).
        label_smoothing: ε. Defaults to 0.

    Returns:
        Float32 tensor (N,).
    """
    # The classes may be positions of a row, whose number is known only at run time.
    vocabulary = logits.shape[-1] or ops.cast(ops.shape(logits)[-1], "float32")
    constant = ops.stop_gradient(logits)
    loss = log_normalizer(constant) - (1.0 - label_smoothing) * label_logits(constant, labels)
    if label_smoothing:  # without it, a logit of -inf (a class masked out) would give 0 * inf
        loss = loss - label_smoothing * ops.mean(constant, axis=-1, keepdims=True)  # (N, 1)
    probabilities = ops.softmax(constant)  # (N, V)
    at_label = ops.take_along_axis(probabilities, labels[:, None], axis=-1) - (
        1.0 - label_smoothing * (1.0 - 1.0 / vocabulary)
    )  # (N, 1)

    @ops.custom_gradient
    def crossentropy(z: Tensor) -> tuple[Tensor, Any]:
        del z  # the loss is computed above; only its gradient is defined here

        def gradient(
            *args: Tensor, upstream: Tensor = None
        ) -> Tensor:  # backends call it differently
            upstream = args[0] if upstream is None else upstream  # (N, 1)
            result = _with_labels(probabilities - label_smoothing / vocabulary, labels, at_label)
            return ops.where(upstream != 0, result * upstream, 0.0)  # padding may be NaN

        return loss, gradient

    return crossentropy(logits)[:, 0]


def _with_labels(values: Tensor, labels: Tensor, at_label: Tensor) -> Tensor:
    """Returns values (N, V) with those of the labels (N,) replaced by `at_label` (N, 1).

    XLA fuses a comparison with its neighbours, so that the gradient takes one pass over (N, V). A
    scatter takes one more, but it raises an error for a label that is no id, so a CPU uses it.
    """
    if xla_compiles():
        is_label = ops.arange(ops.shape(values)[-1], dtype="int32") == labels[:, None]  # (N, V)
        return ops.where(is_label, at_label, values)
    rows = ops.arange(ops.shape(labels)[0], dtype="int32")
    return ops.scatter_update(values, ops.stack([rows, labels], axis=-1), at_label[:, 0])


def xla_compiles() -> bool:
    """Returns whether Keras compiles a training step with XLA by default: on JAX and on a GPU."""
    backend = keras.backend.backend()
    gpus = keras.distribution.list_devices("gpu") if backend == "tensorflow" else ()
    return backend == "jax" or bool(gpus)


def token_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Computes KL(P || Q) + KL(Q || P) of each token, with its gradient in closed form.

    P and Q are the softmax of the two logits. With their difference d, the sum of both divergences
    is Σ (P - Q) d: the normalisers cancel. Its gradient is (P - Q) + P (d - Σ P d) for the first
    logits and -(P - Q) - Q (d - Σ Q d) for the second. Tokens of weight 0 have the gradient 0,
    whatever their logits are. `token_crossentropy` tells why the form is closed.

    Args:
        first: float32 tensor (N, V). An id with the logit -inf has the probability 0.
        second: float32 tensor (N, V).

    Returns:
        Float32 tensor (N,).
    """
    constants = ops.stop_gradient(first), ops.stop_gradient(second)
    p, q = (ops.softmax(z) for z in constants)
    # The difference of two logits of -inf would be NaN.
    d = ops.subtract(*(ops.maximum(z, LEAST_LOGIT) for z in constants))
    excess = p - q
    divergence = ops.sum(excess * d, axis=-1, keepdims=True)  # (N, 1)

    @ops.custom_gradient
    def symmetric(a: Tensor, b: Tensor) -> tuple[Tensor, Any]:
        del a, b  # only the gradient is defined here

        def gradient(*args: Tensor, upstream: Tensor = None) -> tuple[Tensor, Tensor]:
            upstream = args[0] if upstream is None else upstream  # (N, 1)
            mean = ops.sum(p * d, axis=-1, keepdims=True)  # Σ P d; Σ Q d is less by the divergence
            results = excess + p * (d - mean), q * (mean - divergence - d) - excess
            counts = upstream != 0  # padding may be NaN
            results = [ops.where(counts, upstream * result, 0.0) for result in results]
            return results[0], results[1]

        return divergence, gradient

    return symmetric(first, second)[:, 0]


class ReplicaLoss(keras.losses.Loss):
    """Base class of this package's losses, which `mean_over_replicas` scales.

    Training steps scale all other losses, and weight batches by `batch_weight` when they accumulate
    gradients.
    """

    def batch_weight(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the divisor of this replica's mean."""
        raise NotImplementedError


@keras.saving.register_keras_serializable("keras_transformer")
class SequenceCrossentropy(ReplicaLoss):
    """Computes the cross-entropy with label smoothing, a mean over all tokens of the global batch.

    Rows may have different numbers of tokens: padding counts neither in the sum nor in the divisor.
    Use `pad_id=-1` for classes and tags: `classification_batches` and `tagging_batches` write the
    label -1 where there is none. Under `tf.distribute` the divisor is the number of target tokens
    on *all* replicas. The summed gradient then equals the gradient of one device with the whole
    batch. Each replica reports the same value, so Keras' average over replicas is exact.

    Section 5.4 of the paper: label smoothing ε_ls = `label_smoothing`. ε is spread over the whole
    vocabulary, including the label: each token gets ε / V, the label 1 - ε + ε / V, as in Keras'
    `CategoricalCrossentropy`. Other toolkits leave out the label, or padding.

    Args:
        label_smoothing: ε in [0, 1). Defaults to 0.
        pad_id: the label that marks padding. Defaults to 0.
        name: defaults to "sequence_crossentropy".

    Call arguments:
        y_true: integer tensor of labels, (B, T), or (B,) for one label per row; `pad_id` marks
            padding.
        y_pred: float tensor of logits, (B, T, V) or (B, V), of any float dtype; computed in
            float32. Without smoothing a logit may be -inf (a class that is masked out) unless it is
            the label's. Logits of padding may be anything.
        sample_weight: float tensor (B,) or (B, T), or `None`. With weights, the result is the sum
            of weight times loss, divided by the sum of weights. Negative weights count in both
            sums; if the weights sum to 0, the loss is 0.

    Returns:
        Float32 scalar. A batch of only padding gives 0, and zero gradients.

    Masking: only `y_true != pad_id` counts; a Keras mask on `y_pred` is ignored.

    Raises:
        ValueError: `label_smoothing` outside [0, 1), or shapes that do not fit together.

    Example:

    >>> loss = SequenceCrossentropy(label_smoothing=0.1)
    >>> logits = keras.ops.zeros((1, 3, 4))
    >>> round(float(loss([[1, 2, 0]], logits)), 4)  # log 4: all tokens are equally likely
    1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
        name: str = "sequence_crossentropy",
    ) -> None:
        super().__init__(name=name, dtype="float32")
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(
                f"label_smoothing must be in [0, 1), but it is {label_smoothing}. "
                "The paper uses 0.1; 0 turns it off."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        # Not `call`: Keras would divide its result by the local batch's size.
        labels, logits, weights = flat_tokens(y_true, y_pred, sample_weight, self.pad_id)
        losses = token_crossentropy(logits, labels, self.label_smoothing)  # (N,)
        return mean_over_replicas(weighted_sum(losses, weights), ops.sum(weights))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss of each token, (B, T) or (B,), including padding."""
        labels, logits, _ = flat_tokens(y_true, y_pred, pad_id=self.pad_id)
        losses = token_crossentropy(logits, labels, self.label_smoothing)  # (N,)
        return ops.reshape(losses, ops.shape(y_true))  # (B, T)

    def batch_weight(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the divisor of this batch's mean: its number (or weight) of target tokens.

        Gradient accumulation weights batches by it.
        """
        labels = ops.cast(y_true, "int32")
        return ops.sum(token_weights(labels, sample_weight, self.pad_id))

    def get_config(self) -> dict[str, Any]:
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class PairCrossentropy(ReplicaLoss):
    """Computes the in-batch softmax loss in both directions, for pairs of texts or other inputs.

    The model scores every first text of a batch against every second one, as two towers do. The
    scores of the pairs are on the diagonal; the other B - 1 scores of a row or column belong to
    wrong answers. The loss is the mean of two cross-entropies: of the second texts given the first
    (rows), and of the first texts given the second (columns), as in CLIP (Radford et al., arXiv
    2103.00020, figure 3).

    Pairs with the label -1 are padding: they count neither in a sum nor as wrong answers. Other
    labels are ignored.

    Under `tf.distribute`, B is the size of one replica's part of the batch: only texts of the same
    replica are wrong answers. The divisor is the number of pairs on all replicas. So two replicas
    with batches of B train like one with two batches of B. One batch of 2 B would have more wrong
    answers.

    Args:
        name: defaults to "pair_crossentropy".

    Call arguments:
        y_true: integers (B,), as `pair_batches` makes them without labels; -1 marks padding.
        y_pred: float tensor (B, B), scores before the softmax: row i belongs to first text i.
        sample_weight: float tensor (B,), or `None`.

    Returns:
        Float32 scalar. A batch of only padding gives 0, and zero gradients.

    Raises:
        ValueError: `y_pred` is not (B, B).

    Example:

    >>> loss = PairCrossentropy()
    >>> round(float(loss([0, 1], [[9.0, 0.0], [0.0, 9.0]])), 4)
    0.0001
    """

    def __init__(self, name: str = "pair_crossentropy") -> None:
        super().__init__(name=name, dtype="float32")
        self._crossentropy = SequenceCrossentropy(pad_id=-1)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        scores = ops.cast(y_pred, "float32")
        if len(scores.shape) != 2 or None not in scores.shape and len(set(scores.shape)) > 1:
            raise ValueError(
                "PairCrossentropy needs the scores of each first text against each second one, "
                f"shape (B, B), but the shape is {tuple(scores.shape)}."
            )
        real = ops.reshape(ops.cast(y_true, "int32"), (-1,)) >= 0  # (B,)
        partner = ops.where(real, ops.arange(ops.shape(scores)[0], dtype="int32"), -1)
        directions = (
            ops.where(real, across, LEAST_LOGIT) for across in (scores, ops.transpose(scores))
        )
        return sum(self._crossentropy(partner, each, sample_weight) for each in directions) / 2

    def batch_weight(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the divisor of this batch's mean: its number (or weight) of pairs."""
        return self._crossentropy.batch_weight(y_true, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}
