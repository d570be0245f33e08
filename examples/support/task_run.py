"""Shared parts of the example scripts: arguments, run folder, interruptible training, score.

| file | content |
| --- | --- |
| `model.keras` | the model: of the best epoch if `fit` gets `best`, else of the last update |
| `training.json` | facts of the training, which `--trained` reads |
| `score.json` | scores, with date, processor and versions |
| `*.png` | figures of `draw` |
| `onnx` | the artefact, if the script exports one |
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path

import keras

from keras_transformer.files import checked_path, whole_file
from keras_transformer.training.callbacks import StopOnNonFinite
from keras_transformer.training.optimizers import build_optimizer

PACKAGES = ("tensorflow", "keras", "onnxruntime", "numpy")
LOW = ("loss", "perplexity", "error")  # parts of names of values to minimise


def make_parser(name, description, epochs, data=True):
    """Returns a parser with the arguments of every task; a script adds its own.

    Args:
        name: str, the script's name without ".py"; `--output` then defaults to "runs/NAME".
        description: str; its first line is shown.
        epochs: int, the default of `--epochs`; `None` if it depends on the data.
        data: bool, whether to add `--data`, a folder of real data. Defaults to `True`.
    """
    parser = argparse.ArgumentParser(
        f"python examples/{name}.py", description=description.splitlines()[0]
    )
    output = Path("runs", name)
    add = parser.add_argument
    if data:
        add("--data", type=Path, help="folder of real data; default: small synthetic data")
    add("--limit", type=int, help="use the first LIMIT examples of each set only")
    usual = "depends on the data" if epochs is None else epochs
    add("--epochs", type=int, default=epochs, help=f"default: {usual}")
    add("--seed", type=int, default=1, help="default: 1")
    add("--output", type=Path, default=output, help=f"folder of the run; default: {output}")
    add("--trained", action="store_true", help="measure the model in --output without training")
    return parser


def parse(parser, argv=None):
    """Parses arguments. Integers must be at least 1, a seed 0; `--data` must exist.

    Args:
        parser: parser of `make_parser`.
        argv: list of str. Defaults to `None`: `sys.argv[1:]`.

    Returns:
        The arguments. `command` holds the whole command for a report, without `--trained`, so that
        it also trains. It names folders only by their last part, to keep paths private.
    """
    args = checked(parser, argv)
    if getattr(args, "data", None) and not args.data.is_dir():
        parser.error(f"--data: there is no folder {args.data}")
    return args


def checked(parser, argv=None):
    """Parses arguments as `parse` does, but does not look for the folder of `--data`."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(argv)
    shown = [argument.rstrip(os.sep).split(os.sep)[-1] for argument in argv]
    shown = [argument for argument in shown if argument != "--trained"]
    args.command = f"{parser.prog} {shlex.join(shown)}".strip()
    for name, number in vars(args).items():
        if type(number) is int and number < (least := 0 if name == "seed" else 1):
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {number}")
    return args


class TaskRun:
    """One run of a task's script. After an error or Ctrl-C it prints the reason.

    Args:
        args: result of `parse`.

    Attributes:
        path: `pathlib.Path` of the folder, made on entry.

    Raises:
        SystemExit: at the end of the block, after `ValueError` or `OSError` with status 1, after
            Ctrl-C with status 130.

    Example:

    >>> with TaskRun(args) as run:  # doctest: +SKIP
    ...     run.fit(model, batches, validation_data=valid, epochs=args.epochs, best="val_accuracy")
    ...     run.draw("confusions.png", figure)
    ...     run.write_score(model, {"accuracy": 0.9}, data="SST-2")
    """

    def __init__(self, args):
        self.args, self.path = args, checked_path(args.output)
        self._start = time.perf_counter()
        self._minutes = 0.0
        self._earlier = 0.0  # processor minutes of an earlier run
        self._epochs = self._models = 0
        self._model = None  # the last fitted one

    def __enter__(self):
        self.path.mkdir(parents=True, exist_ok=True)
        keras.utils.set_random_seed(self.args.seed)
        return self

    def __exit__(self, kind, error, trace):
        if kind is KeyboardInterrupt:
            saved = self.path / "model.keras"
            has = f"{saved} is the model so far." if self._epochs else "No epoch was finished."
            print(f"\nStopped. {has}", flush=True)
            raise SystemExit(130)  # as shells do after Ctrl-C
        if kind is not None and issubclass(kind, (ValueError, OSError)):
            raise SystemExit(f"{self.args.command.split()[1]}: {error}")

    def fit(self, model, *batches, best=None, callbacks=(), **options):
        """Calls `model.fit` and saves the model, also after Ctrl-C.

        With `--trained` it loads the weights of the saved model instead.

        Args:
            model: compiled model.
            *batches: training data: a dataset, or inputs and targets.
            best: str, the logged value that selects the epoch whose weights are kept, such as
                "val_loss". Values with "loss", "perplexity" or "error" in their names are
                minimised, others maximised. Defaults to `None`: the last epoch's weights.
            callbacks: further callbacks.
            **options: other arguments of `fit`.

        Returns:
            Keras' `History`.

        Raises:
            ValueError: with `--trained`, the folder holds no model of this command.
        """
        if self.args.trained:
            return self._trained(model)
        self._models += model is not self._model
        self._model = model
        chosen = [_BestWeights(best)] if best else []
        counted = keras.callbacks.LambdaCallback(on_epoch_end=self._count)
        callbacks = [StopOnNonFinite(), *callbacks, *chosen, counted]
        options.setdefault("verbose", 1 if sys.stdout.isatty() else 2)
        start = time.perf_counter()
        build_optimizer(model)
        try:
            model.fit(*batches, callbacks=callbacks, **options)
            return model.history
        finally:
            self._minutes += (time.perf_counter() - start) / 60
            for callback in chosen:
                callback.restore(model)
            if self._epochs:
                self.save(model)
                self._tell_training(model.history.history)

    def _tell_training(self, history):
        """Writes `training.json`."""
        facts = {
            "command": self.args.command,
            "models": self._models,
            "epochs": self._epochs,
            "minutes": {"training": self._minutes, "processor": time.process_time() / 60},
            "history": history,
        }
        with whole_file(self.path / "training.json") as aside:
            aside.write_text(json.dumps(facts, indent=1, default=float) + "\n", "utf-8")

    def _trained(self, model):
        """Loads the weights of the earlier run into `model`; returns its `History`."""
        told = self.path / "training.json"
        if not told.exists():
            raise ValueError(f"{self.path} holds no trained model. Train without --trained first.")
        facts = json.loads(told.read_text("utf-8"))
        if facts["command"] != self.args.command:
            raise ValueError(
                f"the model in {self.path} is of another command, {facts['command']!r}. Pass its "
                "arguments, or omit --trained."
            )
        if facts["models"] > 1:
            raise ValueError(
                f"the run trained {facts['models']} models, but {self.path} holds only the last. "
                "Omit --trained."
            )
        model.load_weights(self.path / "model.keras")
        self._epochs, self._minutes = facts["epochs"], facts["minutes"]["training"]
        self._earlier = facts["minutes"]["processor"]
        history = keras.callbacks.History()
        history.history = facts["history"]
        return history

    def _count(self, epoch, logs):
        self._epochs += 1

    def save(self, model):
        """Writes `model.keras`."""
        with whole_file(self.path / "model.keras") as aside:
            model.save(aside)

    def draw(self, name, figure):
        """Writes a Matplotlib figure to the file `name`."""
        with whole_file(self.path / name) as aside:
            figure.savefig(aside, dpi=120)

    def write_score(self, model, score, others=None, **facts):
        """Writes `score.json`, and prints the score.

        Args:
            model: the model, whose parameters are counted.
            score: dict from a measure's name to its value on the test set.
            others: dict from the name of a variant, such as "without the grammar", to its scores
                in the form of `score`. Defaults to `None`: no variants.
            **facts: further facts for the report, such as `data`, `published` or `baseline`.
        """
        artefact = self.path / "onnx"
        size = sum(file.stat().st_size for file in artefact.rglob("*") if file.is_file())
        report = {
            "date": time.strftime("%Y-%m-%d"),
            "processor": processor(),
            "cores": os.cpu_count(),
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in PACKAGES},
            "command": self.args.command,
            "seed": self.args.seed,
            "epochs": self._epochs,
            "minutes": {
                "training": self._minutes,
                "whole": (time.perf_counter() - self._start) / 60
                + (self._minutes if self.args.trained else 0),
                # Of all cores; excludes other processes.
                "processor": self._earlier + time.process_time() / 60,
            },
            "parameters": model.count_params(),
            "artefact_bytes": size or None,
            "score": score,
            "others": others or {},
            **facts,
        }
        with whole_file(self.path / "score.json") as aside:
            aside.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
        told = [f"{name}: {_told(found)}" for name, found in report["others"].items()]
        told = "; ".join([_told(score), *told, f"{report['minutes']['whole']:.1f} minutes"])
        print(f"{told}. Saved in {self.path}", flush=True)


def _told(score):
    return ", ".join(f"{name} {value:.4g}" for name, value in score.items())


class _BestWeights(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best logged value.

    `EarlyStopping(restore_best_weights=True)` restores them only when `fit` ends without
    Ctrl-C.
    """

    def __init__(self, name):
        super().__init__()
        self.name, self.best, self._weights = name, None, None

    def on_epoch_end(self, epoch, logs=None):
        if self.name not in (logs or {}):
            raise ValueError(f"{self.name!r} is not logged; logged are {sorted(logs or {})}.")
        low = any(part in self.name for part in LOW)
        value = -logs[self.name] if low else logs[self.name]
        if self.best is None or value > self.best:
            self.best, self._weights = value, self.model.get_weights()

    def restore(self, model):
        if self._weights is not None:
            model.set_weights(self._weights)


def processor():
    """Returns the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
