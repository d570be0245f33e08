"""The folder of a training run: what the run is, its checkpoints, its history, its report.

| file | content |
| --- | --- |
| `run.json` | what makes the run what it is: another run does not go on in its folder |
| `state/` | checkpoints that a stopped run goes on from |
| `weights/` | weights after each epoch, to be averaged |
| `history.jsonl` | a line an epoch, what was logged |
| `tokenizer.model` | the tokenizer |
| `model.keras` | the model to use |
| `metrics.json`, `learning_curve.png` | the report on the finished run |
"""

import json
import platform
import statistics
import time
from importlib.metadata import version

import keras

from keras_transformer.files import checked_path, whole_file
from keras_transformer.plots import plot_learning_curve
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import StopOnNonFinite, Throughput
from keras_transformer.training.checkpoints import CheckpointAveraging, average_checkpoints
from keras_transformer.training.resume import TrainingCheckpoint

PACKAGES = ("tensorflow", "keras", "sentencepiece")


class RunFolder:
    """A folder that holds one training run and nothing else.

    Args:
        path: str or path; `claim` makes it.

    Attributes:
        path: `pathlib.Path`.

    Example:

    >>> run = RunFolder("translator")
    >>> run.claim({"d_model": 128, "seed": 1})  # doctest: +SKIP
    >>> model.fit(batches, epochs=9, callbacks=run.callbacks(batches, 9))  # doctest: +SKIP
    """

    def __init__(self, path):
        self.path = checked_path(path)
        self._settings = None

    def claim(self, settings, finished=False):
        """Makes the folder, or makes sure that the run in it has the same settings.

        Args:
            settings: dict that JSON can hold: model, data, seed.
            finished: bool, whether at least one epoch must be there. Defaults to `False`.

        Raises:
            ValueError: the folder holds another run, or one without `run.json`, or no epoch.
        """
        self._settings = settings = json.loads(json.dumps(settings))  # as in the file: no tuples
        path, weights = self.path / "run.json", self.weights()
        if finished and not weights:
            raise ValueError(f"{self.path} holds no finished epoch. Train first.")
        if path.exists():
            other = json.loads(path.read_text("utf-8"))
            names = ", ".join(name for name in settings if settings[name] != other.get(name))
            if names:
                raise ValueError(
                    f"{self.path} holds another run: it differs in {names}. Repeat its arguments "
                    "to go on with it, or choose another folder."
                )
        elif weights and not finished:
            raise ValueError(
                f"{self.path} holds checkpoints, but no run.json that says of what run. Choose "
                "another folder, or only evaluate them."
            )
        elif not weights:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_json("run.json", settings)

    def weights(self):
        """Weights after each epoch: a dict from the epoch, counted from 1, to the file."""
        files = sorted((self.path / "weights").glob("weights-*.npz"))
        return {int(file.stem[-5:]) + 1: file for file in files}

    def load(self, model, epochs):
        """Sets the weights of a model to the average of those after `epochs`."""
        files = self.weights()
        model.set_weights(average_checkpoints([files[epoch] for epoch in epochs]))

    def save_model(self, model):
        """Writes `model.keras`."""
        with self.replace("model.keras") as aside:
            model.save(aside)

    def tokenizer(self, lines, vocab_size, name="tokenizer.model"):
        """A tokenizer of the run, trained on `lines` unless the file `name` is there already."""
        path = self.path / name
        if not path.exists():
            with self.replace(path.name) as aside:
                Tokenizer.train(lines, vocab_size=vocab_size).save(aside)
        return Tokenizer.load(path)

    def callbacks(self, batches, epochs):
        """Callbacks for `fit`: progress, history, the weights of every epoch, checkpoints.

        With them the same call of `fit`, made again, goes on where a stopped run was.

        Args:
            batches: dataset of `translation_batches` that `fit` gets.
            epochs: int, the epochs of the whole run.
        """
        return [
            StopOnNonFinite(),
            Throughput(batches),
            HistoryLog(self.path / "history.jsonl"),
            CheckpointAveraging(self.path / "weights", last=epochs),
            TrainingCheckpoint(self.path / "state", every=500, data=batches),
        ]

    def history(self) -> dict[str, list[float]]:
        """The logs of all epochs: a dict from name to a list, as `History.history` of Keras.

        A value that is not logged in every epoch, such as `val_bleu`, has a shorter list.
        """
        path = self.path / "history.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        # An epoch that was stopped before its checkpoint is done twice. The later one counts.
        rows = {row.pop("epoch"): row for row in map(json.loads, lines)}
        history: dict[str, list[float]] = {}
        for epoch in sorted(rows):
            for name, number in rows[epoch].items():
                history.setdefault(name, []).append(number)
        return history

    def write_report(self, **facts):
        """Writes `metrics.json` (`facts`, how long the run took, with what) and the curves."""
        history = self.history()
        rates = history.get("tokens_per_second")
        devices = {device.partition(":")[0].upper() for device in keras.distribution.list_devices()}
        report = {
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in PACKAGES},
            "device": "GPU" if "GPU" in devices else "CPU",
            "epochs": max(self.weights()),
            "minutes": sum(history["minutes"]) if history else None,
            "tokens_per_second": statistics.median(rates) if rates else None,
            "recipe": self._settings,
            **facts,
            "history": history,
        }
        self.write_json("metrics.json", report)
        curves = {name: history[name] for name in history if name.endswith(("loss", "perplexity"))}
        if curves:
            with self.replace("learning_curve.png") as aside:
                plot_learning_curve(curves).savefig(aside)

    def write_json(self, name, content):
        """Writes a file of the folder as JSON."""
        with self.replace(name) as aside:
            aside.write_text(json.dumps(content, indent=2) + "\n", "utf-8")

    def replace(self, name):
        """A context whose path is moved to the file `name` when it ends; see `whole_file`."""
        return whole_file(self.path / name)


class HistoryLog(keras.callbacks.Callback):
    """Appends a line of JSON for each epoch to a file: its number from 0, its logs, its minutes.

    Unlike `keras.callbacks.CSVLogger` it leaves no file open when `fit` is interrupted.

    Args:
        path: str or path; an existing file goes on.

    Example:

    >>> model.fit(train, epochs=9, callbacks=[HistoryLog("history.jsonl")])  # doctest: +SKIP
    """

    def __init__(self, path):
        super().__init__()
        self.path = checked_path(path)

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        numbers = {name: float(number) for name, number in (logs or {}).items()}
        numbers["minutes"] = (time.perf_counter() - self._begin) / 60
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps({"epoch": epoch, **numbers}), file=file)
