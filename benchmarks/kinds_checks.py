"""Columns of the table of kinds: outputs of a saved or exported model, compared with Keras.

Each column returns the largest error, as `keras_transformer.export.proof.comparison` measures it,
or raises.
"""

from pathlib import Path

import keras
import numpy as np
from kinds_rows import real_places

from keras_transformer import export
from keras_transformer.export.artefact import signature
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.proof import comparison, run_exported
from keras_transformer.export.tasks import ForwardTask, SearchTask

GENERATED = 12  # maximum of generated tokens
PRECISIONS = ("float32", "int8", "weight_int8", "weight_int4")
COLUMNS = (".keras", "SavedModel", *PRECISIONS, "padding")


class Kind:
    """A row's model, with Keras' outputs for all cases.

    Args:
        row: a `kinds_rows.Row`.
        sizes: batch sizes, lengths and sides of the padding, like `kinds_rows.CASES`.
        folder: where to write files.
    """

    def __init__(self, row, sizes, folder):
        keras.utils.set_random_seed(3)
        self.row, self.model = row, row.build()
        self._folder = Path(folder)
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
        found = self._outputs(column, self.cases)
        return self.task.compare(self.cases, self.expected, found, tolerance, exact)

    def _outputs(self, column, cases):
        """Writes the file of a column if it is missing; returns its outputs for some cases."""
        path = self._folder / column
        if column == ".keras":
            self.model.save(path.with_suffix(".keras"))
            loaded = keras.models.load_model(path.with_suffix(".keras"), compile=False)
            found = [self._task(loaded).expected(case) for case in cases]
            names = (signature.TOKEN_IDS, signature.SCORES)
            return [dict(zip(names, one, strict=True)) for one in found] if self.search else found
        if column == "SavedModel":
            options = {**self.options, "samples": self._samples(), "verbose": False}
            export.export_saved_model(self.model, path, **options)
            logits = not self.search and self.task.outputs == [signature.LOGITS]
            name = signature.SEARCH if self.search else signature.FORWARD
            signatures = [signature.LOGITS if logits else name] * len(cases)
            return run_exported([path], cases, signatures=signatures).outputs
        if not path.exists():
            options = {**self.options, "samples": self._samples(), "verbose": False}
            export.export_onnx(self.model, path, precision=column, **options)
        return run_exported([path / signature.MODEL_FILE], cases).outputs

    def _task(self, model):
        model = as_float32(model)
        return SearchTask(model, self.search, GENERATED) if self.search else ForwardTask(model)

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
        worst, alone = 0.0, self.row.inputs(np.random.default_rng(9), np.ones((2, 6), bool))
        random = signature.SEED in self.cases[0]
        seed = {signature.SEED: np.array(4, np.int32)} if random else {}
        cases = [{name: padded(x, side) for name, x in alone.items()} for side in self.row.sides]
        answer, *found = self._outputs("float32", [case | seed for case in (alone, *cases)])
        for side, longer in zip(self.row.sides, found, strict=True):
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
