"""Columns of the table of kinds: outputs of a saved or exported model, compared with Keras.

Each column returns the largest error, as `keras_transformer.export.proof.comparison` measures it,
or raises.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
import onnxruntime
import tensorflow as tf
from kinds_rows import real_places

from keras_transformer import export
from keras_transformer.export.artefact import signature
from keras_transformer.export.prepare import as_float32
from keras_transformer.export.proof import comparison
from keras_transformer.export.runtime.session import session_options
from keras_transformer.export.tasks import ForwardTask, SearchTask

GENERATED = 12  # maximum of generated tokens
PRECISIONS = ("float32", "int8", "weight_int8", "weight_int4")
COLUMNS = (".keras", "SavedModel", *PRECISIONS, "padding")


class Kind:
    """A row's model, with Keras' outputs for all cases.

    Args:
        row: a `kinds_rows.Row`.
        sizes: batch sizes, lengths and sides of the padding, like `kinds_rows.CASES`.
    """

    def __init__(self, row, sizes):
        keras.utils.set_random_seed(3)
        self.row, self.model, self._runners = row, row.build(), {}
        disturb(self.model)
        settle(self.model, row.inputs(np.random.default_rng(2), real_places(16, 9, "right")))
        self.search = row.search() if row.search else None
        self.options = {"search": self.search, "max_length": GENERATED} if self.search else {}
        self.task = self._task(self.model)
        self.cases = row.cases(sizes)
        if getattr(self.task, "random", False):
            for seed, case in enumerate(self.cases):
                case[signature.SEED] = np.array(seed, np.int32)
        self.expected = [self.task.expected(case) for case in self.cases]

    def check(self, column):
        """Returns the largest error of a column."""
        if column == "padding":
            return self._padding()
        exact = column not in PRECISIONS or column == "float32"
        tolerance = comparison.TOLERANCES["float32" if exact else column]
        found = [*map(self._runner(column), self.cases)]
        return self.task.compare(self.cases, self.expected, found, tolerance, exact)

    def _runner(self, column):
        """Writes the file of a column once; returns a function from a case to its outputs."""
        if column not in self._runners:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "artefact"
                if column in PRECISIONS:
                    self._runners[column] = self._onnx(path, column)
                else:
                    write = self._saved if column == ".keras" else self._saved_model
                    self._runners[column] = write(path)
        return self._runners[column]

    def _task(self, model):
        model = as_float32(model)
        return SearchTask(model, self.search, GENERATED) if self.search else ForwardTask(model)

    def _saved(self, path):
        """Saves and loads the model; returns a function from a case to its outputs."""
        path = path.with_suffix(".keras")
        self.model.save(path)
        loaded = self._task(keras.models.load_model(path, compile=False))
        if self.search is None:
            return loaded.expected
        names = (signature.TOKEN_IDS, signature.SCORES)
        return lambda case: dict(zip(names, loaded.expected(case), strict=True))

    def _saved_model(self, path):
        export.export_saved_model(
            self.model, path, **self.options, samples=self._samples(), verbose=False
        )
        signatures = tf.saved_model.load(str(path)).signatures
        names = [signature.SEARCH] if self.search else ["forward", signature.LOGITS]
        run = next(signatures[name] for name in names if name in signatures)

        def outputs(case):
            found = run(**{name: tf.constant(array) for name, array in case.items()})
            return {name: tensor.numpy() for name, tensor in found.items()}

        return outputs

    def _onnx(self, path, precision):
        export.export_onnx(
            self.model,
            path,
            **self.options,
            precision=precision,
            samples=self._samples(),
            verbose=False,
        )
        session = onnxruntime.InferenceSession(
            path / signature.MODEL_FILE,
            session_options(threads=None, arena=True, spinning=True),
            providers=["CPUExecutionProvider"],
        )
        names = [output.name for output in session.get_outputs()]
        return lambda case: dict(zip(names, session.run(names, case), strict=True))

    def _samples(self):
        """Returns cases for the exporter's proof, whose default inputs may not suit the model."""
        some = [self.cases[i] for i in (0, len(self.cases) // 2)]
        if self.search is None:
            return some
        arrays = [{n: x for n, x in case.items() if n != signature.SEED} for case in some]
        plain = set(arrays[0]) == {signature.SOURCE_IDS}
        return [case[signature.SOURCE_IDS] for case in arrays] if plain else arrays

    def _padding(self):
        """Returns the change of float32 ONNX outputs when a row is padded on a side of `sides`."""
        run, worst = self._runner("float32"), 0.0
        rng = np.random.default_rng(9)
        alone = self.row.inputs(rng, np.ones((2, 6), bool))
        seed = (
            {} if signature.SEED not in self.cases[0] else {signature.SEED: np.array(4, np.int32)}
        )
        answer = run({**alone, **seed})
        for side in self.row.sides:
            longer = run({**{name: padded(x, side) for name, x in alone.items()}, **seed})
            for name, wanted in answer.items():
                found = longer[name]
                if found.shape != wanted.shape:  # an output per position
                    length = wanted.shape[1]
                    found = found[:, :length] if side == "right" else found[:, -length:]
                scale = max(1.0, float(np.abs(wanted[np.abs(wanted) < 1e8]).max(initial=0.0)))
                worst = max(worst, float(np.abs(found - wanted).max()) / scale)
        if worst > comparison.TOLERANCES["float32"]:
            raise export.ExportError(f"Padding moves the answers by {worst:.2g} of their size.")
        return worst


def padded(array, side, more=5):
    """Pads an array (B, S, ...) by `more` positions; returns arrays without a length unchanged."""
    if array.ndim not in (2, 3) or array.dtype.kind == "f" and array.ndim == 2:
        return array
    widths = [(0, 0)] * array.ndim
    widths[1] = (0, more) if side == "right" else (more, 0)
    return np.pad(array, widths)


def disturb(model):
    """Adds noise to biases and norms, so that a lost or swapped one changes the outputs."""
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        if len(weight.shape) == 1:
            weight.assign_add(0.1 * rng.standard_normal(weight.shape).astype("float32"))


def settle(model, case):
    """Gives batch norms the statistics of a case; without them, activations vanish."""
    norms = [x for x in every_layer(model) if isinstance(x, keras.layers.BatchNormalization)]
    for norm in norms:
        norm.momentum = 0.0
    if norms:
        model(case, training=True)


def every_layer(model):
    """Yields the layers of a model and of nested models."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from every_layer(layer)
        yield layer
