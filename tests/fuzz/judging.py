"""Inputs that the exporter did not choose, and the comparison of outputs with Keras.

TensorFlow and ONNX Runtime round differently. A few models magnify this: a vector of norm 1e-7 is
scaled to norm 1, or two nearly equal logits decide. If a number differs, Keras computes it again
with noise in all its numbers. The number is wrong unless the noise moves it as well, or unless
Keras in float64 agrees with the file. In the latter case, Keras' float32 result is inaccurate.
A case is ill-conditioned if all of its differing numbers are excused.
"""

from unittest import mock

import keras
import numpy as np
import recipes

from keras_transformer.decoding import call_encoder

# Noise relative to a number, or to 1 for smaller ones. Errors of float32 are a tenth of it.
NOISE, DRAWS = 1e-5, 8
TOLERANCE = 1e-4  # relative in the same way
SHAPES = ((1, 1), (2, 3), (3, 7), (17, 33), (2, 13), (4, 5), (1, 32), (0, 5))
SOURCES = ((1, 1), (1, 32), (9, 17), (4, 5), (2, 29), (3, 2), (6, 8), (0, 4))  # for searches
# Operations whose results may round to 1 or -1.
SATURATING = (keras.layers.RNN, keras.layers.Bidirectional)
SATURATING_OPERATORS = ("Tanh", "Sigmoid", "Erf", "Softmax")
# Call options that every export takes if the search has them. `OFF`: values that disable two.
ALWAYS = ("max_length", "length_penalty", "temperature", "top_k", "top_p")
OFF = {"top_k": 0, "top_p": 1}
NUMBERS = {
    "max_length": (1, 13),
    "min_length": (0, 4),
    "length_penalty": (0, 1.5),
    "temperature": (0.5, 1.5),
    "top_k": (1, 4),
    "top_p": (0.3, 1),
    "no_repeat_ngram_size": (0, 2),
    "repetition_penalty": (0.7, 1.6),
    "prefix_bias": (0, 0.9),
}
STYLES = ("normal", "small", "padded", "normal", "large", "zeros", "small", "normal")


def feeds(model, random):
    """Returns inputs that the exporter did not choose. The last batch is empty."""
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
    """Returns an array for an input, in a style."""
    if tensor.dtype == "bool":
        return random.random(shape) < 0.5
    if "int" in tensor.dtype:
        if "ids" in tensor.name:
            array = random.integers(1, recipes.VOCAB, shape)
        elif style == "large":
            # Neighbours that float32 cannot distinguish. Sums stay below 2^31, where TensorFlow
            # wraps around and ONNX Runtime stops.
            array = random.integers(0, 9, shape) + 25 * 10**6
            array = array * random.choice([-1, 1], shape)
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


def noisy(array, random, sign, least=0.0, all_rounded=False):
    """Returns the array with noise, except in numbers that float16 holds exactly.

    Numbers such as 0, 1.5 or 3 are not rounded. With `all_rounded`, they have noise too, because
    the 1 of a saturated tanh comes from rounding.

    The two signs have opposite noise, so one of them swaps each nearly equal pair.
    """
    gap = sign * NOISE * random.uniform(-1, 1, array.shape) * np.maximum(np.abs(array), least)
    with np.errstate(over="ignore"):
        exact = (array.astype("float16") == array) & (not all_rounded)
    return np.where(exact, array, array + gap).astype(array.dtype)


class Judge:
    """Compares an export with Keras."""

    def __init__(self, model, random):
        self.model, self.random = model, random

    def verdict(self, feed, expected, found):
        """Returns the outcome and the difference."""
        if not (off := self.off(expected, found, [])):
            return "right", ""
        still = self.off(expected, found, self.near(feed))
        if still and (exact := self.exact(feed)) is not None:
            still = self.off(exact, found, []) and still
        return ("wrong", still) if still else ("ill-conditioned", off)

    def exact(self, feed):
        """Returns the answer in float64, or `None`."""
        return None

    def near(self, feed):
        """Returns answers with noise in weights, inputs, and results of layers and operators."""
        weights, answers = self.model.get_weights(), []
        for seed in self.random.integers(2**31, size=DRAWS):
            for sign in (1, -1):
                random = np.random.default_rng(seed)
                self.model.set_weights([moved(weight, random, sign) for weight in weights])
                near = {name: moved(array, random, sign) for name, array in feed.items()}
                with noise(random, sign):
                    answers.append(self.answer(near))
        self.model.set_weights(weights)
        return answers


def moved(array, random, sign):
    return noisy(array, random, sign) if array.dtype.kind == "f" else array


def noise(random, sign):
    """Returns a context that adds noise to results of uncompiled layers and operators."""
    plain = keras.Operation.__call__

    def add(tensor, saturates):
        if not hasattr(tensor, "numpy") or "float" not in keras.backend.standardize_dtype(
            tensor.dtype
        ):
            return tensor
        made = keras.ops.convert_to_tensor(noisy(tensor.numpy(), random, sign, 1.0, saturates))
        if (mask := getattr(tensor, "_keras_mask", None)) is not None:
            made._keras_mask = mask
        return made

    def call(self, *args, **kwargs):
        saturates = isinstance(self, SATURATING) or type(self).__name__ in SATURATING_OPERATORS
        found = plain(self, *args, **kwargs)
        return keras.tree.map_structure(lambda tensor: add(tensor, saturates), found)

    return mock.patch.object(keras.Operation, "__call__", call)


class ModelJudge(Judge):
    """Compares the outputs of an exported model with Keras.

    Args:
        model: the Keras model.
        random: NumPy random generator.
        in_precision: function from a dtype to the model in this dtype. Optional.
    """

    def __init__(self, model, random, in_precision=None):
        super().__init__(model, random)
        self.in_precision = in_precision

    def exact(self, feed):
        if self.in_precision is None:
            return None
        double = {n: a.astype("float64") if a.dtype.kind == "f" else a for n, a in feed.items()}
        return type(self)(self.in_precision("float64"), self.random).answer(double)

    def feeds(self):
        return feeds(self.model, self.random)

    def answer(self, feed):
        given = keras.tree.pack_sequence_as(self.model.input, list(feed.values()))
        found = self.model(given, training=False)
        found = found if isinstance(found, dict) else {"": found}
        return {name: np.asarray(array) for name, array in found.items()}

    def off(self, expected, found, near):
        for name, array in expected.items():
            served = name or next(iter(found))
            if told := difference(array, found[served], [answer[name] for answer in near]):
                return f"{served}: {told}"
        return None


class SearchJudge(Judge):
    """Compares the hypotheses of an exported search with Keras."""

    def __init__(self, model, random, search, export_options):
        super().__init__(model, random)
        self.search, self.max_length = search, export_options["max_length"]
        self.names = {*ALWAYS, *export_options["options"]} & {*search.call_defaults}
        self.names.update(*(rule.inputs for rule in search.constraints))
        self.names -= {name for name, off in OFF.items() if getattr(search, name, off) == off}
        self.seed = {"seed": 5} if "Sampling" in type(search).__name__ else {}

    def feeds(self):
        encoder = getattr(self.model, "encoder", None)
        inputs = encoder.inputs if isinstance(encoder, keras.Model) else None
        if inputs is None:
            inputs = [keras.Input((None,), dtype="int32", name="source_ids")]
        made = []
        for rows, length in SOURCES:
            feed = {}
            for tensor in inputs:
                shape = (rows, *(length if n is None else n for n in tensor.shape[1:]))
                array = numbers(tensor, shape, "normal", self.random)
                if len(shape) > 1 and tensor.shape[1] is None:
                    for row in range(1, rows):
                        array[row, max(0, length - 2 * row) :] = 0
                feed[tensor.name] = array
            feed |= {name: np.array(seed, "int32") for name, seed in self.seed.items()}
            made.append(feed | (self.options(rows) if made else {}))  # first the exported defaults
        return made

    def options(self, rows):
        """Returns random call options for a batch of `rows` sentences."""
        random, made = self.random, {}
        for name in sorted(self.names):
            if random.random() < 0.5:
                continue
            default = self.search.call_defaults[name]
            if name in NUMBERS:
                shape = (rows,) * default.ndim
                array = random.uniform(*NUMBERS[name], shape)
            else:  # ids, padded on the right
                array = random.integers(4, 11, (rows, *random.integers(1, 4, default.ndim - 1)))
                array[rows // 2 :, ..., 1:] = 0
            made[name] = array.astype(default.dtype)
        return made

    def answer(self, feed):
        call = {name: array for name, array in feed.items() if name in self.names | {"seed"}}
        source = {name: array for name, array in feed.items() if name not in call}
        if getattr(self.model, "source_inputs", None):
            # Raises if a kernel is longer than the input. Compiled code does not.
            call_encoder(self.model.encoder, source)
        result = self.search(self.model, source, **{"max_length": self.max_length, **call})
        found = zip(("token_ids", *result._fields[1:]), result, strict=True)
        return {name: np.asarray(array) for name, array in found if np.ndim(array) > 1}

    def off(self, expected, found, near):
        """Describes rows with other ids or scores. A row is excused if noise moves it as far."""
        width = max(answer["token_ids"].shape[-1] for answer in (expected, found, *near))
        ids = padded(expected, width)
        if ids.shape != padded(found, width).shape:
            return f"shape {found['token_ids'].shape}, Keras {expected['token_ids'].shape}"
        tied = np.zeros(len(ids), bool)
        for answer in near:
            tied |= (padded(answer, width) != ids).any(axis=(1, 2))
        scores, served = expected["scores"], found["scores"]
        with np.errstate(invalid="ignore"):
            own = np.max([np.abs(answer["scores"] - scores) for answer in near], 0, initial=0)
            allowed = TOLERANCE * np.maximum(np.abs(scores), 1) + 3 * np.nan_to_num(own)
            apart = ~(np.abs(served - scores) <= allowed)
        apart = (apart & (served != scores)).any(axis=1)
        off = (apart | (padded(found, width) != ids).any(axis=(1, 2))) & ~tied
        if off.any():
            row = int(off.argmax())
            told = [(a["scores"][row], padded(a, width)[row].tolist()) for a in (found, expected)]
            return f"{off.sum()} of {len(off)} rows, first {row}: {told[0]}, Keras {told[1]}"
        for name in expected.keys() - {"token_ids", "scores"}:
            details = [padded(answer, width, name)[~tied] for answer in (expected, found, *near)]
            if told := difference(*details[:2], details[2:]):
                return f"{name}: {told}"
        longest = found["token_ids"].shape[-1], expected["token_ids"].shape[-1]
        if longest[0] != longest[1] and not tied.any():
            return f"{longest[0]} tokens, Keras {longest[1]}"
        return None


def padded(answer, width, name="token_ids"):
    """Returns an array (B, W, T, ...) padded to `width` tokens."""
    array = answer[name]
    return np.pad(
        array, [(0, width - array.shape[2] if axis == 2 else 0) for axis in range(array.ndim)]
    )


def difference(reference, found, near):
    """Returns the difference as text, or `None`."""
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return f"{found.dtype}{found.shape}, Keras {reference.dtype}{reference.shape}"
    if reference.dtype.kind != "f":
        off = (found != reference) & np.all([array == reference for array in near], axis=0)
    else:
        with np.errstate(all="ignore"):
            own = np.max([np.abs(array - reference) for array in near], axis=0, initial=0)
            own = np.nan_to_num(own, nan=np.inf)
            allowed = TOLERANCE * np.maximum(np.abs(reference), 1) + 3 * own
            off = np.isfinite(reference) & ~(np.abs(found - reference) <= allowed)
    if not off.any():
        return None
    first = tuple(map(int, np.argwhere(off)[0]))
    return f"{off.sum()} of {off.size}, first at {first}: {found[first]}, Keras {reference[first]}"
