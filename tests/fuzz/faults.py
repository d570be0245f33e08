"""Kills and full disks at every file change: the old or the new files are whole.

    python tests/fuzz/faults.py --out faults.json

A task first runs to its end and counts the changes below its folder: files opened for writing,
moves, new and removed folders. Then it runs again for each change. A run is killed before its k-th
change, or all changes from the k-th on fail with a full disk. On Linux, as root, the task also
fills a file system in memory of several sizes.

After a kill, the earlier or the new files are whole, and the same task then runs to its end. A full
disk must also raise a clear error and leave nothing behind. Each case is a forked process.
"""

import fuzzing  # isort: split

import collections
import contextlib
import errno
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.export import ExportError, export_onnx
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.training.checkpoints import read_if_whole

# Audit events that change files, beside "open". A full disk still allows removals.
REMOVES = ("os.remove", "os.rmdir")
CHANGES = ("os.rename", "os.mkdir", "os.link", "os.symlink", "os.truncate", *REMOVES)
OUTCOMES = ("whole", "not resumed", "damaged", "unclear error", "left behind")
SIZES = 12  # of the file system in memory


class Task:
    """Writes files, which `check` reads. `version`: 0 for earlier files, 1 for new ones."""

    version = 0
    only = ""  # name of the only file or folder that a run leaves

    def check(self, folder):
        """Raises an error if a file is damaged. Returns whether no other file is left behind."""
        self.read(folder / self.only)
        return [path.name for path in folder.iterdir()] == [self.only]


class Export(Task):
    """Exports a model over an earlier export."""

    only, read = "out", staticmethod(read_artefact)

    def run(self, folder):
        keras.utils.set_random_seed(self.version)
        model = kt.Transformer(23, num_layers=1, d_model=16, num_heads=2, d_ff=8)
        search = kt.GreedySearch()
        export_onnx(model, folder / "out", search=search, max_length=5, verbose=False)


class Tokenizer(Task):
    """Saves a tokenizer over an earlier one."""

    only, read = "t.model", staticmethod(kt.Tokenizer.load)

    def run(self, folder):
        lines = [f"a line of words {i + self.version}" for i in range(40)]
        kt.Tokenizer.train(lines, 300, hard_vocab_limit=False).save(folder / "t.model")


class Training(Task):
    """Trains two epochs with a checkpoint every second update. Resumes after a kill."""

    expected = None

    def run(self, folder):
        keras.utils.set_random_seed(5)
        x = keras.Input((3,))
        model = keras.Model(x, keras.layers.Dense(2)(x))
        model.compile("adam", "mse")
        batches = np.random.default_rng(0).normal(size=(2, 20, 5)).astype("float32")
        training = kt.Run(folder / "state", every=2)
        inputs, targets = batches[0, :, :3], batches[1, :, :2]
        fit = {"epochs": 2, "batch_size": 4, "shuffle": False, "verbose": 0}
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            training.fit(model, inputs, targets, **fit)
        np.save(folder / "weights.npy", np.concatenate([w.ravel() for w in model.get_weights()]))

    def check(self, folder):
        if (folder / "weights.npy").exists():
            found = np.load(folder / "weights.npy")
            if self.expected is None:
                self.expected = found
            np.testing.assert_array_equal(found, self.expected)
        whole = [read_if_whole(path) is not None for path in folder.glob("state/*.npz")]
        assert all(whole), whole
        return True


TASKS = {"export": Export, "tokenizer": Tokenizer, "training": Training}


def changes(folder, act):
    """Calls `act(number, event)` before each change below a folder, from now on."""
    root, number = os.fspath(folder), 0

    def hook(event, arguments):
        nonlocal number
        path = arguments[0] if arguments else None
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(root):
            return
        flags = arguments[2] if event == "open" else 0
        if event in CHANGES or (event == "open" and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            number += 1
            act(number, event)

    sys.addaudithook(hook)


def work(task, folder, act, send):
    """Runs a task; sends the number of changes, whether an error is clear, and the error."""
    counted, told, message = 0, "", ""

    def count(number, event):
        nonlocal counted
        counted = number
        act(number, event)

    changes(folder, count)
    try:
        task.run(folder)
    except BaseException as error:
        clear = isinstance(error, OSError | ValueError | ExportError)
        told, message = "clear" if clear else "unclear", f"{type(error).__name__}: {error}"
    send((counted, told, message))
    os._exit(0)


def run(task, folder, act=lambda number, event: None):
    """Runs a task in a forked process; returns what `work` sends."""
    process, receiver = fuzzing.forked(work, task, folder, act)
    try:
        return receiver.recv()
    except EOFError:
        return 0, "killed", ""
    finally:
        process.join()


def judge(task, folder, kind, error):
    """Returns the outcome of a case."""
    if kind == "full" and error[1] == "unclear":
        return "unclear error"
    outcome = inspect(task, folder)
    if outcome == "damaged" or (kind == "full" and outcome != "whole"):
        return outcome
    if run(task, folder)[1]:
        return "not resumed"
    return "damaged" if inspect(task, folder) == "damaged" else "whole"


def inspect(task, folder):
    """Returns the outcome for the files of a task."""
    try:
        return "whole" if task.check(folder) else "left behind"
    except Exception:  # any error means that a file is damaged
        return "damaged"


def kill(number, event, at):
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)


def full(number, event, at):
    if number >= at and event not in REMOVES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def small_disk(folder, size):
    """Mounts a file system of `size` bytes at a folder. Yields whether this worked."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    done = os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", folder], check=True)


def cases(name, folder, every):
    """Yields the kind, number, outcome and error of each case of a task."""
    task = TASKS[name]()

    def fresh():
        """Empties the folder, and writes earlier files."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        task.version = 0
        if name != "training":
            _, told, error = run(task, folder)
            assert not told, error
        task.version = 1

    fresh()
    total, told, error = run(task, folder)
    assert not told, error
    task.check(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    for act in (kill, full):
        for at in range(1, total + 1, every):
            fresh()
            found = run(task, folder, functools.partial(act, at=at))
            yield act.__name__, at, judge(task, folder, act.__name__, found), found[2]
    for part in range(1, SIZES + 1, every):
        shutil.rmtree(folder)
        folder.mkdir()
        room = 4096 * (8 + round(part / SIZES * 2.2 * size / 4096))
        with small_disk(folder, room) as there:
            if not there:
                return
            task.version = 0
            earlier = name == "training" or run(task, folder)[1:]
            task.version = 1
            found = run(task, folder)
            if found[1] == "unclear":
                outcome = "unclear error"
            elif found[1] and name != "training" and earlier[0]:  # no room for either
                outcome = "left behind" if any(folder.iterdir()) else "whole"
            else:
                outcome = inspect(task, folder)
            yield "small disk", part, outcome, found[2]


def main():
    parser = fuzzing.parser(__doc__, seeded=False)
    parser.add_argument("--only", choices=TASKS, help="run one task")
    parser.add_argument("--every", type=int, default=1, help="run one in n changes; default all")
    given = parser.parse_args()
    rows, wrong = collections.defaultdict(collections.Counter), []
    for name in [given.only] if given.only else TASKS:
        with tempfile.TemporaryDirectory() as scratch:
            for kind, at, outcome, told in cases(name, pathlib.Path(scratch) / "work", given.every):
                rows[f"{name}, {kind}"][outcome] += 1
                if outcome != "whole":
                    wrong.append({"task": name, "fault": kind, "at": at, "outcome": outcome})
                    print(json.dumps({**wrong[-1], "told": told}), flush=True)
    for row, count in rows.items():
        print(row, dict(count), flush=True)
    table = {row: {name: count[name] for name in OUTCOMES} for row, count in rows.items()}
    fuzzing.write(given.out, rows=table, wrong=wrong)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
