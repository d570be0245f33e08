"""The folder of a training run: settings, checkpoints, history and report.

| file | content |
| --- | --- |
| `run.json` | the settings that identify the run: the folder accepts no other run |
| `state/` | checkpoints from which a stopped run resumes |
| `weights/` | weights after each epoch, for averages |
| `history.jsonl` | the logs, one line per epoch |
| `tokenizer.model` | the tokenizer |
| `model.keras` | the final model |
| `metrics.json`, `learning_curve.png` | the report of the finished run |
"""

import json
import platform
import shutil
import statistics
import time
from importlib.metadata import version

import keras

from keras_transformer.files import checked_path, whole_file
from keras_transformer.plots import plot_learning_curve
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import StopOnNonFinite, Throughput
from keras_transformer.training.checkpoints import CheckpointAveraging, average_checkpoints
from keras_transformer.training.resume import Run

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
    >>> run.fit(model, batches, epochs=9)  # doctest: +SKIP
    """

    def __init__(self, path):
        self.path = checked_path(path)
        self._settings = None

    def claim(self, settings, finished=False):
        """Makes the folder, or checks that the run in it has the same settings.

        Args:
            settings: dict that JSON can hold: model, data, seed.
            finished: bool, whether a finished epoch is required. Defaults to `False`.

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
                    f"{self.path} holds another run: it differs in {names}. Pass its arguments "
                    "to resume it, or choose another folder."
                )
        elif weights and not finished:
            raise ValueError(
                f"{self.path} holds checkpoints, but no run.json with their settings. Choose "
                "another folder, or evaluate them without training."
            )
        elif not weights:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_json("run.json", settings)

    def weights(self):
        """Returns a dict from each epoch, counted from 1, to its file of weights."""
        files = sorted((self.path / "weights").glob("weights-*.npz"))
        return {int(file.stem[-5:]) + 1: file for file in files}

    def load(self, model, epochs):
        """Sets the weights of a model to their average over `epochs`."""
        files = self.weights()
        model.set_weights(average_checkpoints([files[epoch] for epoch in epochs]))

    def save_model(self, model):
        """Writes `model.keras`."""
        with self.replace("model.keras") as aside:
            model.save(aside)

    def tokenizer(self, lines, vocab_size, name="tokenizer.model"):
        """Loads the run's tokenizer `name`; if it is missing, trains it on `lines` first."""
        path = self.path / name
        if not path.exists():
            try:
                made = Tokenizer.train(lines, vocab_size=vocab_size)
            except ValueError as error:  # with the option of the command line
                raise ValueError(str(error).replace("vocab_size=", "--vocab-size ")) from error
            with self.replace(path.name) as aside:
                made.save(aside)
        return Tokenizer.load(path)

    def copy_tokenizer(self, folder, name="tokenizer.model"):
        """Copies the tokenizer of another run."""
        with self.replace(name) as aside:
            shutil.copyfile(folder / name, aside)

    def fit(self, model, batches, epochs, **options):
        """Trains a model, with progress, a history, checkpoints, and the weights of every epoch.

        The same call resumes a stopped run.

        Args:
            model: compiled model.
            batches: dataset of `translation_batches`.
            epochs: int, the epochs of the whole run.
            **options: other arguments of `model.fit`.
        """
        callbacks = [
            StopOnNonFinite(),
            Throughput(batches),
            HistoryLog(self.path / "history.jsonl"),
            CheckpointAveraging(self.path / "weights", last=epochs),
        ]
        run = Run(self.path / "state", every=500)
        run.fit(model, batches, epochs=epochs, callbacks=callbacks, **options)

    def history(self) -> dict[str, list[float]]:
        """Returns the logs of all epochs, a dict from name to list, as Keras' `History.history`.

        A value that is not logged in every epoch, such as `val_bleu`, has a shorter list.
        """
        path = self.path / "history.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        # An epoch that stops before its checkpoint runs twice. The second run counts.
        rows = {row.pop("epoch"): row for row in map(json.loads, lines)}
        history: dict[str, list[float]] = {}
        for epoch in sorted(rows):
            for name, number in rows[epoch].items():
                history.setdefault(name, []).append(number)
        return history

    def write_report(self, **facts):
        """Writes `metrics.json` (`facts`, times, versions, device) and the learning curves."""
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
        """Returns a context that moves its path to the file `name` at its end; see `whole_file`."""
        return whole_file(self.path / name)


class HistoryLog(keras.callbacks.Callback):
    """Appends a line of JSON for each epoch to a file: number from 0, logs and minutes.

    Unlike `keras.callbacks.CSVLogger` it leaves no file open when `fit` is interrupted.

    Args:
        path: str or path; an existing file is extended.

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
