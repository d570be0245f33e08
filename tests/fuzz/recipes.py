"""Random models and searches, written as lines of Python that build them.

A recipe is drawn line by line. Each line is run at once, and a line that Keras refuses is dropped.
So the printed lines alone rebuild a failing model. To add an operator, add a line to `models.txt`.
An operator that jumps at 0 must read rounded values. For large inputs, softmax and silu are exactly
0 in one of TensorFlow and ONNX Runtime, and nearly 0 in the other. An operator that distinguishes 0
from -0 must read only 0, because neither keeps the sign of zeros in `max` and `where`.

Placeholders of a template: `{f}` a float tensor, `{s}` one of rank 3, `{v}` of rank 2, `{g}` of
rank 4, `{i}` integers, `{ids}` ids below 11, `{b}` booleans, `{t}` any tensor, `{same}` the
previous tensor. The file defines the others at its top. `LAYER <- CALL` makes a layer, which later
lines may share.
"""

import pathlib
import re

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.search import loop

VOCAB = 11


@keras.saving.register_keras_serializable("fuzz")
class ByHand(keras.layers.Layer):
    """Control flow and attention, as users write them in a layer."""

    def __init__(self, what, **kwargs):
        super().__init__(**kwargs)
        self.what = what

    def get_config(self):
        return {**super().get_config(), "what": self.what}

    def call(self, x):
        ops, y = keras.ops, keras.ops.tanh(x)
        if self.what == "cond":
            return ops.cond(ops.sum(x) > 0, lambda: ops.exp(y), lambda: y) + 1
        if self.what == "while":
            return ops.while_loop(
                lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a + 1), (0, y, x)
            )[1]
        if self.what == "scan":
            steps = ops.scan(lambda c, e: (c + e, c * 0.5), y[:, 0], ops.swapaxes(y, 0, 1))[1]
            return ops.swapaxes(steps, 0, 1)
        if self.what == "half":
            return ops.cast(ops.cast(ops.round(y * 8), "float16") * 3, x.dtype)
        q, k, v = ops.split(ops.concatenate([y, x, y * 2], axis=-1), 3, axis=-1)
        scores = ops.matmul(q * 0.7, ops.swapaxes(k, -1, -2))
        if self.what == "causal":
            length = ops.shape(scores)[-1]
            scores = ops.where(ops.tri(length, dtype="bool"), scores, -1e9)
        return ops.matmul(ops.softmax(scores, axis=-2 if self.what == "slots" else -1), v)


def read(name):
    """Returns the choices of each placeholder, and the blocks of templates."""
    text = pathlib.Path(__file__).with_name(name).read_text("utf-8")
    choices, *blocks = text.split("\n\n")
    choices = dict(line.split(" = ") for line in choices.splitlines())
    return choices, *(block.splitlines() for block in blocks)


CHOICES, TEMPLATES = read("models.txt")
SEARCH_CHOICES, SEARCHED, SEARCHES = read("searches.txt")
INPUTS = {
    "s": "keras.Input((None, 4))",
    "v": "keras.Input((6,))",
    "g": "keras.Input((8, 6, 3))",
    "ids": "keras.Input((None,), dtype='int32', name='ids{}')",
    "i": "keras.Input(({},), dtype='{}')",
    "b": "keras.Input((None,), dtype='bool')",
}
POLICIES = ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"]
RANKS = {"s": 3, "v": 2, "g": 4}


class Model:
    """Draws a functional model. `lines` rebuild `model`."""

    choices = CHOICES

    def __init__(self, random):
        self.random, self.lines, self.layers, self.pool, self.count = random, [], [], [], 0
        self.names = dict(NAMES)
        self.reduced = random.random() < 0.12
        policies = POLICIES if self.reduced else ["float32"]
        self.run(f"keras.config.set_dtype_policy('{random.choice(policies)}')")
        self.run(f"keras.utils.set_random_seed({random.integers(1000)})")
        kinds = random.choice("s s s ids i i v b g".split(), random.integers(1, 4))
        inputs = [self._input(str(kind)) for kind in kinds]
        for _ in range(random.integers(2, 8)):
            self.step()
        made = [name for name in self.pool if name not in inputs and self._is_judged(name)]
        outputs = made[-1:] + [n for n in made[:-1] if random.random() < 0.3]
        outputs = [self._served(name) for name in outputs]
        told = ", ".join(f"'y{i}': {name}" for i, name in enumerate(outputs))
        told = f"{{{told}}}" if len(outputs) > 1 or random.random() < 0.5 else outputs[0]
        self.run(f"model = keras.Model([{', '.join(inputs)}], {told})")
        self.run(f"shake(model, {random.integers(1000)})")
        self.model = self.names["model"]
        self.judged = self.in_precision("float32") if self.reduced else self.model

    def in_precision(self, dtype):
        return in_precision(dtype, self.lines, self.model)

    def run(self, line):
        exec(line, self.names)
        self.lines.append(line)

    def name(self, letter="t"):
        self.count += 1
        return f"{letter}{self.count}"

    def _input(self, kind):
        dtype, size = self.random.choice(["int32", "int32", "int64"]), self.random.choice([4, None])
        name = self.name("x")
        self.run(f"{name} = {INPUTS[kind].format(*(name,) if kind == 'ids' else (size, dtype))}")
        self.pool.append(name)
        return name

    def _served(self, name):
        """Returns the tensor, cast if artefacts lack its dtype."""
        dtype = self.names[name].dtype
        if dtype in ("float32", "int32", "int64", "bool"):
            return name
        made = self.name()
        self.run(f"{made} = ops.cast({name}, '{'float32' if 'float' in dtype else 'int32'}')")
        return made

    def _is_judged(self, name):
        """Returns whether a tensor may be an output. Last bits of float16 change integers."""
        return not self.reduced or "float" in self.names[name].dtype

    def _fits(self, name, kind):
        tensor = self.names[name]
        dtype, rank = tensor.dtype, len(tensor.shape)
        if kind == "t" or rank < 2:
            return kind == "t" and rank > 1
        if kind in ("i", "ids"):
            return "int" in dtype and (kind == "i") != tensor.name.startswith("ids")
        return (
            dtype == "bool" if kind == "b" else "float" in dtype and RANKS.get(kind, rank) == rank
        )

    def filled(self, template):
        return re.sub(r"\{(\w+)\}", self._fill, template)

    def _fill(self, match):
        kind = match[1]
        if kind in self.choices:
            return self.filled(str(self.random.choice(self.choices[kind].split())))
        if kind == "same":
            return self.last
        fitting = [name for name in self.pool if self._fits(name, kind)]
        if not fitting:
            raise LookupError(kind)
        late = self.random.random() < 0.6
        self.last = fitting[-1] if late else str(self.random.choice(fitting))
        return self.last

    def step(self):
        """Adds a line that Keras accepts."""
        for _ in range(200):
            template, before = str(self.random.choice(TEMPLATES)), len(self.lines)
            try:
                made = self._nested() if template == "nested" else self._line(template)
            except Exception:  # Keras refuses it, or no tensor fits
                del self.lines[before:]
                continue
            if hasattr(self.names[made], "shape") and len(self.names[made].shape) < 6:
                self.pool.append(made)
                return
            del self.lines[before:]

    def _line(self, template):
        layer, arrow, call = template.partition(" <- ")
        filled = self.filled(call if arrow else template)
        made = self.name()
        if arrow:
            shared = [name for name, of in self.layers if of == layer]
            if not shared or self.random.random() < 0.5:
                shared = [self.name("layer")]
                self.run(f"{shared[0]} = {self.filled(layer)}")
            filled = f"{shared[0]}({filled})"
        self.run(f"{made} = {filled}")
        if arrow:
            self.layers.append((shared[0], layer))
        return made

    def _nested(self):
        """Adds a nested model, called once or twice."""
        outer, given, inner = self.pool, self._fill([0, "f"]), self.name("x")
        shape = tuple(self.names[given].shape[1:])
        dtype = self.names[given].dtype
        told = "" if "float" in dtype else f", dtype='{dtype}'"
        self.run(f"{inner} = keras.Input({shape}{told})")
        self.pool = [inner]
        try:
            for _ in range(2):
                self.step()
            last, model, made = self.pool[-1], self.name("model"), self.name()
        finally:
            self.pool = outer
        self.run(f"{model} = keras.Model({inner}, {last})")
        again = f" + {model}({given} * 0.5)" if "float" in self.names[last].dtype else ""
        self.run(f"{made} = {model}({given}){again}")
        return made


class Search(Model):
    """Draws a model, a search, and `options` of the export."""

    choices, reduced = SEARCH_CHOICES, False

    def __init__(self, random):
        self.random, self.lines = random, []
        self.names = dict(NAMES)
        self.run(f"keras.utils.set_random_seed({random.integers(1000)})")
        self.run(self.filled(str(random.choice(SEARCHED))))
        self.run(self.filled(f"shake(model, {random.integers(1000)}, {{scale}})"))
        self.run(self.filled(f"search = {random.choice(SEARCHES)}"))
        self.run(
            self.filled("options = dict(layout={layout}, max_length={length}, options={asked})")
        )
        self.run(self.filled("close_slots({closed}, {opened})"))
        self.model, self.search = self.names["model"], self.names["search"]
        self.options = self.names["options"]


def in_precision(dtype, lines, model):
    """Returns the model of the lines under another policy, such as float32."""
    names, (policy, *others) = dict(NAMES), lines
    floatx = keras.config.floatx()
    try:
        keras.config.set_floatx(dtype)
        exec("\n".join([f"keras.config.set_dtype_policy('{dtype}')", *others, policy]), names)
    finally:
        keras.config.set_floatx(floatx)
    copy = names["model"]
    copy.set_weights([np.asarray(keras.ops.cast(weight, "float32")) for weight in model.weights])
    for mine, theirs in zip(copy.inputs, model.inputs, strict=True):
        mine.name = theirs.name
    return copy


def shake(model, seed, scale=0.3):
    """Adds noise to all weights, so that none is 0 or 1."""
    random = np.random.default_rng(seed)
    for variable in model.variables:
        if "float" in variable.dtype and "seed" not in variable.path:
            noise = np.abs if "variance" in variable.path else np.array
            old = keras.ops.convert_to_numpy(variable).astype("float32")
            variable.assign(old + noise(random.normal(0, scale, variable.shape)))


def close_slots(size, steps):
    """Closes caches that grow by at least so many numbers, after so many steps."""
    decoding.LEAST_CLOSED, loop.OPEN_STEPS = size, steps


NAMES = {
    "keras": keras,
    "layers": keras.layers,
    "ops": keras.ops,
    "kt": kt,
    "np": np,
    "ByHand": ByHand,
    "shake": shake,
    "close_slots": close_slots,
}
