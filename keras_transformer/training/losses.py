"""Cross-entropy over the tokens of padded sequences, exact on any number of replicas.

Shapes: B batch, T target length, N = B T tokens, flattened; V vocabulary, or number of classes.
Where a row has one label and no sequence of them, T is absent and N = B.
"""

import keras
from keras import ops

from keras_transformer.training.replicas import replica_count, sum_over_replicas


def token_weights(labels, sample_weight=None, pad_id=0):
    """Weight of each target token: 0 for padding, else 1 or the sample weight.

    Args:
        labels: integer tensor (B, T) or (B,).
        sample_weight: float tensor (B,), (B, 1) or (B, T), or `None`.
        pad_id: the id of padding. Defaults to 0.

    Returns:
        Float32 tensor of the labels' shape.

    Raises:
        ValueError: `sample_weight` has another rank than 1 or 2.
    """
    weights = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
    rank = len(sample_weight.shape)
    if len(labels.shape) == 1 and rank in (1, 2):
        return weights * (sample_weight if rank == 1 else sample_weight[:, 0])
    if rank not in (1, 2):
        raise ValueError(
            "sample_weight must be one weight a sentence, shape (B,), or one a token, shape "
            f"(B, T), but its shape is {tuple(sample_weight.shape)}."
        )
    return weights * (sample_weight[:, None] if rank == 1 else sample_weight)


def flat_tokens(y_true, y_pred, sample_weight=None, pad_id=0):
    """Checks what Keras passes to a loss or a metric, and flattens the tokens.

    Loss and metrics share this, and the two functions below: TensorFlow's graph optimiser and XLA
    see equal subgraphs and compute them once, so that a metric costs no second pass over V.

    Args:
        y_true: integer tensor of labels, (B, T) or (B,).
        y_pred: float tensor of logits, (B, T, V) or (B, V).
        sample_weight: float tensor (B,), (B, 1) or (B, T), or `None`.
        pad_id: the label that marks padding. Defaults to 0.

    Returns:
        Labels int32 (N,), logits float32 (N, V) and weights float32 (N,). A weight is 0 for
        padding, else 1 or the sample weight. A negative label, which padding may have, becomes 0.

    Raises:
        ValueError: the shapes do not fit, or see `token_weights`.
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
    weights = token_weights(labels, sample_weight, pad_id)  # (B, T)
    if pad_id < 0:
        labels = ops.maximum(labels, 0)  # an index into the logits
    if len(labels.shape) == 2:
        logits = ops.reshape(logits, (-1, logits.shape[-1]))  # (N, V)
    return ops.reshape(labels, (-1,)), logits, ops.reshape(weights, (-1,))  # (N,)


def largest_logit(logits):
    """The largest logit of each token: (N, V) -> (N, 1), without gradient."""
    # `initial`, because a replica may hold no token (N = 0), and Keras refuses the maximum of none.
    return ops.max(ops.stop_gradient(logits), axis=-1, keepdims=True, initial=float("-inf"))


def log_normalizer(logits):
    """log of the sum of exp over the vocabulary: (N, V) -> (N, 1), without gradient.

    The largest probability is exp(largest logit) over that sum, and never below 1 / V. So the
    softmax, one fused kernel that the loss's gradient needs anyway, also gives the sum.
    """
    logits = ops.stop_gradient(logits)
    likeliest = ops.max(ops.softmax(logits), axis=-1, keepdims=True, initial=0.0)  # (N, 1)
    return largest_logit(logits) - ops.log(likeliest)


def label_logits(logits, labels):
    """Each label's logit: (N, V), (N,) -> (N, 1), without gradient."""
    return ops.take_along_axis(ops.stop_gradient(logits), labels[:, None], axis=-1)


def weighted_sum(values, weights):
    """Sum of values (N,) times weights (N,). A value of weight 0 may be infinite or NaN."""
    return ops.sum(ops.where(weights != 0, values * weights, 0.0))


def token_crossentropy(logits, labels, label_smoothing=0.0):
    """Cross-entropy of each token against its smoothed label, with its gradient in closed form.

    The target distribution is q = (1 - ε) onehot + ε / V, so that with z the logits and
    n = log Σ exp z the loss is n - (1 - ε) z[label] - ε mean(z) and its gradient softmax(z) - q.
    Automatic differentiation would keep several (N, V) tensors for the backward pass; this keeps
    one, the softmax. It is also faster than TensorFlow's fused kernel, which has no smoothing.
    Where the loss of a token has no gradient, as for padding, the gradient is 0 whatever the
    logits are.

    Args:
        logits: float32 tensor (N, V).
        labels: int32 tensor (N,), each in [0, V).
        label_smoothing: ε. Defaults to 0.

    Returns:
        Float32 tensor (N,).
    """
    # Positions of a row are classes too, and their number is known while training only.
    vocabulary = logits.shape[-1] or ops.cast(ops.shape(logits)[-1], "float32")
    constant = ops.stop_gradient(logits)
    loss = log_normalizer(constant) - (1.0 - label_smoothing) * label_logits(constant, labels)
    if label_smoothing:  # else a logit of -inf, a class that is masked out, would give 0 * inf
        loss = loss - label_smoothing * ops.mean(constant, axis=-1, keepdims=True)  # (N, 1)
    probabilities = ops.softmax(constant)  # (N, V)
    positions = ops.stack([ops.arange(ops.shape(labels)[0], dtype="int32"), labels], axis=-1)
    at_label = ops.take_along_axis(probabilities, labels[:, None], axis=-1) - (
        1.0 - label_smoothing * (1.0 - 1.0 / vocabulary)
    )  # (N, 1)

    @ops.custom_gradient
    def crossentropy(z):
        del z  # the loss is computed above; only its gradient is defined here

        def gradient(*args, upstream=None):  # the backends differ in how they call it
            upstream = args[0] if upstream is None else upstream  # (N, 1)
            result = probabilities - label_smoothing / vocabulary  # (N, V)
            result = ops.scatter_update(result, positions, at_label[:, 0])
            return ops.where(upstream != 0, result * upstream, 0.0)  # padding may be NaN

        return loss, gradient

    return crossentropy(logits)[:, 0]


@keras.saving.register_keras_serializable("keras_transformer")
class SequenceCrossentropy(keras.losses.Loss):
    """Cross-entropy with label smoothing: the mean over all target tokens of the global batch.

    For padded rows with different numbers of tokens. Padding counts neither in
    the sum nor in the divisor. With `pad_id=-1` it is the loss of classes and tags whose labels are
    -1 where there is nothing to learn, as `classification_batches` and `tagging_batches` give them.
    Under `tf.distribute` the divisor is the number of target tokens
    on *all* replicas, so that the summed gradient is that of one device with the whole batch; and
    each replica reports the same value, so that Keras' own average over replicas is exact.

    Section 5.4, label smoothing ε_ls = `label_smoothing`. ε is spread over the whole vocabulary,
    label included: each token gets ε / V, the label 1 - ε + ε / V, as in Keras'
    `CategoricalCrossentropy`. Other toolkits leave out the label, or padding.

    Args:
        label_smoothing: ε in [0, 1). Defaults to 0.
        pad_id: the label that marks padding. Defaults to 0.
        name: defaults to "sequence_crossentropy".

    Call arguments:
        y_true: integer tensor of labels, (B, T), or (B,) for one label a row; `pad_id` marks
            padding.
        y_pred: float tensor of logits, (B, T, V) or (B, V), of any float dtype; computed in
            float32. A logit may be -inf (a class that is masked out) if the label is another one
            and there is no smoothing. Logits of padding may be anything.
        sample_weight: float tensor (B,) or (B, T), or `None`. The mean is weighted then:
            sum of weight times loss, over the sum of weights. Negative weights count in both sums;
            if the weights sum to 0, the loss is 0.

    Returns:
        Float32 scalar. A batch of padding alone gives 0, and zero gradients.

    Masking: a Keras mask on `y_pred` is ignored, `y_true != pad_id` alone decides.

    Raises:
        ValueError: `label_smoothing` outside [0, 1), or shapes that do not fit together.

    Example:

    >>> loss = SequenceCrossentropy(label_smoothing=0.1)
    >>> logits = keras.ops.zeros((1, 3, 4))
    >>> round(float(loss([[1, 2, 0]], logits)), 4)  # log 4: all tokens are equally likely
    1.3863
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="sequence_crossentropy"):
        super().__init__(name=name, dtype="float32")
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(
                f"label_smoothing must be in [0, 1), but it is {label_smoothing}. "
                "The paper takes 0.1; 0 turns it off."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Not `call`: Keras would divide what that returns by the local batch's size.
        labels, logits, weights = flat_tokens(y_true, y_pred, sample_weight, self.pad_id)
        losses = token_crossentropy(logits, labels, self.label_smoothing)  # (N,)
        total, count = weighted_sum(losses, weights), ops.sum(weights)
        replicas = replica_count()
        if replicas == 1:
            return ops.divide_no_nan(total, count)
        global_total, global_count = sum_over_replicas([ops.stop_gradient(total), count])
        loss = ops.divide_no_nan(total, global_count)
        # Keras multiplies what it reports by the number of replicas and averages over them. So
        # each replica's value is 1/R of the global mean; its gradient is that of its own tokens.
        reported = ops.divide_no_nan(global_total, global_count * replicas)
        return loss + ops.stop_gradient(reported - loss)

    def call(self, y_true, y_pred):
        """Loss of each token, (B, T) or (B,), padding included."""
        labels, logits, _ = flat_tokens(y_true, y_pred, pad_id=self.pad_id)
        losses = token_crossentropy(logits, labels, self.label_smoothing)  # (N,)
        return ops.reshape(losses, ops.shape(y_true))  # (B, T)

    def batch_weight(self, y_true, sample_weight=None):
        """The divisor of this batch's mean: its number (or weight) of target tokens, float32.

        Gradient accumulation weights micro-batches by it.
        """
        labels = ops.cast(y_true, "int32")
        return ops.sum(token_weights(labels, sample_weight, self.pad_id))

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }
