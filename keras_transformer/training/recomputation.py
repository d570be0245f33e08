"""Training with less memory: activations are computed twice instead of stored.

The forward pass stores the inputs of each block only. The backward pass computes a block again
before its gradients (Chen et al., arXiv 1604.06174). Keras' own `RematScope` fails in `fit` on
TensorFlow: `tf.recompute_grad` accepts no keyword arguments in a graph, which Keras passes.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.checks import check_model
from keras_transformer.training.checks import forget_compile
from keras_transformer.types import Tensor


def recompute(model: keras.Model) -> keras.Model:
    """Makes training compute the activations of blocks twice, which needs less memory.

    Plain training stores all activations of all blocks for the backward pass. After this call it
    stores the inputs of the blocks, and computes a block again when its gradients are due. A step
    takes longer by about the time of the blocks' forward pass. Losses and gradients stay the same:
    the second computation draws the same dropout.

    It changes `EncoderBlock`, `DecoderBlock` and `RecurrentDecoderBlock`, also those of an
    `encoder=` or of a functional model. Activations of other layers, such as the logits, are still
    stored. The names of the weights, saved files and exports do not change, and a saved model loads
    without recomputation. Call it again after loading, and after functions that copy the model,
    such as `quantization_aware`.

    Args:
        model: Keras model that contains blocks. Compile it after this call, and each model that
            contains one of the blocks: `fit` refuses an earlier `compile`.

    Returns:
        The same model.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: the model contains no block.

    Example:

    >>> model = kt.Transformer(vocab_size=23, num_layers=2, d_model=16, num_heads=2, d_ff=32)
    >>> model = kt.recompute(model)
    >>> model.compile("adam", kt.SequenceCrossentropy())
    """
    check_model(model)
    kinds = EncoderBlock | DecoderBlock
    blocks = [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]
    if not blocks:
        raise ValueError(
            f"recompute would have no effect: {model.name!r} contains no EncoderBlock and no "
            "DecoderBlock. Build its blocks from these, or leave recompute out."
        )
    for block in blocks:
        block.call = functools.partial(_call, block)
    forget_compile(blocks)
    return model


def _call(block: keras.Layer, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
    call = functools.partial(type(block).call, block)
    if not training:
        return call(*args, **kwargs)
    leaves = keras.tree.flatten((args, kwargs))
    masks = [getattr(leaf, "_keras_mask", None) for leaf in leaves]
    vectors = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
    variables = block.variables
    learned = [i for i, variable in enumerate(variables) if variable.trainable]
    # Dropout starts from these states in both passes.
    values = _in_training(lambda: [ops.copy(variable.value) for variable in variables])
    results = []

    def run(floats: list[Tensor]) -> list[Tensor]:
        """Calls the block as a function of its vectors and weights, without side effects."""
        inputs, state = list(leaves), list(values)
        for i, x in zip(vectors, floats, strict=False):
            inputs[i] = x
            if masks[i] is not None:
                x._keras_mask = masks[i]
        for i, x in zip(learned, floats[len(vectors) :], strict=True):
            state[i] = x
        inner, named = keras.tree.pack_sequence_as((args, kwargs), inputs)
        scope = keras.StatelessScope(zip(variables, state, strict=True), collect_losses=True)
        before = dict(scope.state_mapping)
        with scope:
            outputs = call(*inner, **named)
        after = {i: scope.get_current_value(variable) for i, variable in enumerate(variables)}
        changed = {i: x for i, x in after.items() if x is not before[id(variables[i])]}
        results.append(((outputs, scope.losses), changed))
        return keras.tree.flatten(results[-1][0])

    floats = [*(leaves[i] for i in vectors), *(values[i] for i in learned)]
    if keras.backend.backend() == "tensorflow":  # gradients of arguments only
        outputs = keras.remat(lambda *floats: _in_training(lambda: run(floats)))(*floats)
        structure, changed = results[0]
    else:  # its tensors may not leave the function, except as results
        outputs, changed = keras.remat(
            lambda: (_in_training(lambda: run(floats)), results[-1][1])
        )()
        structure = results[0][0]
    for i, value in changed.items():
        variables[i].assign(value)
    outputs, losses = keras.tree.pack_sequence_as(structure, outputs)
    for loss in losses:
        block.add_loss(loss)
    return outputs


def _in_training(function: Callable[[], Any]) -> Any:
    """Calls a function as a layer in training: in the backward pass no layer is being called.

    Without autocast, a mixed policy does not round the weights that the function reads.
    """
    layer = keras.layers.Lambda(lambda _: function(), autocast=False, name="recompute")
    return layer([], training=True)


def _is_float(x: Any) -> bool:
    return ops.is_tensor(x) and keras.backend.is_float_dtype(x.dtype)
