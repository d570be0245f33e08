"""Inputs that the exporter did not choose, Keras' outputs for them, and when others are wrong."""

import keras
import numpy as np
import recipes

SHAPES = ((1, 1), (2, 3), (3, 7), (17, 33), (2, 13), (4, 5), (1, 32), (0, 5))
STYLES = ("normal", "small", "padded", "normal", "large", "zeros", "small", "normal")


def feeds(model, random):
    """Inputs that the exporter did not choose; the last batch is empty."""
    made = []
    for unequal in (False, True):
        for (rows, length), style in zip(SHAPES, STYLES, strict=True):
            feed = {}
            for tensor in model.inputs:
                length = int(random.integers(1, 34)) if unequal else length
                shape = (rows, *(length if n is None else n for n in tensor.shape[1:]))
                feed[tensor.name] = numbers(tensor, shape, style, random)
            made.append(feed)
    return made[len(SHAPES) :: 2] + made[: len(SHAPES)]


def numbers(tensor, shape, style, random):
    """An array for an input, in a style."""
    if tensor.dtype == "bool":
        return random.random(shape) < 0.5
    if "int" in tensor.dtype:
        if "ids" in tensor.name:
            array = random.integers(1, recipes.VOCAB, shape)
        elif style == "large":
            # Sums stay below 2^31: TensorFlow wraps around there, ONNX Runtime stops.
            array = random.integers(2**24, 3 * 10**7, shape) * random.choice([-1, 1], shape)
        else:
            array = random.integers(-9, 10, shape)
    else:
        array = random.normal(0, 1, shape)
        if style == "small":
            array = np.round(array * 2) / 2
        if style == "large":
            array = array * 100 - 3
    if style == "zeros":
        array = array * 0
    if style == "padded" and len(shape) > 1:
        array[-1, (shape[1] + 1) // 2 :] = 0
    return array.astype(tensor.dtype)


class Keras:
    """The outputs of the model, and how much the last bits of inputs and weights move them."""

    def __init__(self, model, reduced, random):
        self.model, self.random = model, random
        self.noise = 4e-3 if reduced else 1e-6
        self.weights = [np.asarray(keras.ops.cast(w, "float32")) if "float" in w.dtype
                        else np.asarray(w) for w in model.weights]  # fmt: skip

    def __call__(self, feed):
        def run(values):
            given = keras.tree.pack_sequence_as(self.model.input, list(values))
            found = self.model(given, training=False)
            found = found if isinstance(found, dict) else {"": found}
            return {name: np.asarray(array) for name, array in found.items()}

        expected, moved, arrays = run(feed.values()), [], [*self.weights, *feed.values()]
        noise = [self.random.choice([-self.noise, self.noise], array.shape) for array in arrays]
        for sign in (1, -1):
            near = [
                (array * (1 + sign * gap)).astype(array.dtype) if array.dtype.kind == "f" else array
                for array, gap in zip(arrays, noise, strict=True)
            ]
            self.model.set_weights(near[: len(self.weights)])
            moved.append(run(near[len(self.weights) :]))
        self.model.set_weights(self.weights)
        return expected, moved


def difference(reference, moved, found, reduced):
    """Why an output is wrong, or `None`."""
    if reduced and reference.dtype.kind == found.dtype.kind == "f":
        reference = reference.astype(found.dtype)  # the file is of the float32 copy
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return f"{found.dtype}{found.shape}, Keras {reference.dtype}{reference.shape}"
    moved = [array for array in moved if array.shape == reference.shape]
    if reference.dtype.kind != "f":
        wrong = (found != reference) & np.all([m == reference for m in moved], axis=0)
        few = 0.02 * wrong.size if reduced else 0
    else:
        reference, found = reference.astype("float64"), found.astype("float64")
        finite = np.isfinite(reference) & np.all([np.isfinite(m) for m in moved], axis=0)
        with np.errstate(all="ignore"):
            own = np.max([np.abs(m - reference) for m in moved], axis=0, initial=0)
            spread = np.abs(reference[finite]).max(initial=1) if reduced else 1
            scale = np.maximum(np.abs(reference), spread)
            wrong = finite & ~(np.abs(found - reference) <= scale * (0.03 if reduced else 1e-4)
                               + 30 * own)  # fmt: skip
        few = 0.02 * wrong.size if reduced else 0
    if wrong.sum() <= few:
        return None
    first = tuple(np.argwhere(wrong)[0])
    return (
        f"{wrong.sum()} of {wrong.size}, first at {first}: {found[first]}, Keras {reference[first]}"
    )
