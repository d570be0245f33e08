"""Checkpoint files: damage, flushing, names of variables and averages of weights."""

import io
import json
import logging
import os
import pathlib
import types
import zipfile

import keras
import numpy as np
import pytest
from helpers.resuming import (
    assert_equal_weights,
    dataset,
    fit,
    fit_until,
    make_model,
    make_translator,
    names,
    pairs,
    stop_at,
)
from support.run_folder import HistoryLog, RunFolder

import keras_transformer as kt
from keras_transformer.training.checkpoints import read_checkpoint, write_checkpoint


def damaged_files():
    def zipped(**members):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)
        return file.getvalue()

    def npy(text):
        file = io.BytesIO()
        np.save(file, np.array(text))
        return file.getvalue()

    huge = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(huge, header)
    note = npy(json.dumps({"info": {}, "dtypes": {"weights/a": "float32"}}))
    bomb = io.BytesIO()
    np.savez_compressed(bomb, **{"weights/a": np.zeros(2**20)}, note=np.array("{}"))
    encrypted = bytearray(zipped(note=note))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(header) + flags] |= 1 << 6  # strong encryption
    return {
        "huge shape": zipped(**{"weights/a": huge.getvalue(), "note": note}),
        "deep note": zipped(note=npy("[" * 100_000)),
        "note is a list": zipped(note=npy("[]")),
        "note is a number": zipped(note=npy(5)),
        "no dtype": zipped(**{"weights/a": npy(5.0)}, note=npy('{"info": 1, "dtypes": {}}')),
        "compressed": bomb.getvalue(),
        "encrypted": bytes(encrypted),
        "empty": b"",
    }


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog):
    fit(make_model(), tmp_path, epochs=1)
    path = tmp_path / "checkpoint-00007-00000000.npz"
    newest = kt.Run(tmp_path).newest
    (tmp_path / "checkpoint-00009-00000000.npz.1.partial").write_bytes(b"half")
    whole = (tmp_path / "checkpoint-00001-00000000.npz").read_bytes()
    for content in (*damaged_files().values(), whole[:-50]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged or no checkpoint"):
            read_checkpoint(path)
        with caplog.at_level(logging.INFO):
            assert newest()[2]["epoch"] == 1
        assert "damaged" in caplog.text and "was not finished" in caplog.text
        caplog.clear()
    for note in ({"epoch": 7, "batch": 0}, [], "note"):  # a checkpoint of another kind
        write_checkpoint(path, {}, note)
        assert newest()[2]["epoch"] == 1
    assert fit(make_model(), tmp_path, epochs=2).epoch == [1]


def test_a_changed_byte_of_an_array_is_noticed(tmp_path):
    path = tmp_path / "one.npz"
    write_checkpoint(path, {"weights/0": np.arange(1000.0)}, {"epoch": 5})
    assert list(tmp_path.iterdir()) == [path]
    arrays, info = read_checkpoint(path)
    np.testing.assert_equal((arrays, info), ({"weights/0": np.arange(1000.0)}, {"epoch": 5}))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "none.npz")


def test_keep_counts_undamaged_checkpoints_and_leaves_folders(tmp_path):
    folder = tmp_path / "checkpoint-00000-00000003.npz"
    folder.mkdir()
    fit(make_model(), tmp_path, epochs=2, every=2, keep=2)
    older, newest = (path.name for path in sorted(tmp_path.glob("*.npz")) if path.is_file())
    (tmp_path / newest).write_bytes(b"damaged")
    fit_until(1, None, make_model(), tmp_path, every=1, keep=2)
    assert names(tmp_path) == [folder.name, older, "checkpoint-00001-00000005.npz"]
    for name in names(tmp_path)[1:]:
        read_checkpoint(tmp_path / name)


def test_checkpoints_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def note(opened):
        flushed.append(pathlib.Path(os.readlink(f"/proc/self/fd/{opened}")).name)
        fsync(opened)

    monkeypatch.setattr(os, "fsync", note)
    fit(make_model(), tmp_path / "run" / "state", epochs=1)
    name = "checkpoint-00001-00000000.npz"
    # The names of the new folders, the content of the file, and its name.
    assert flushed[: flushed.index(name) + 2] == ["run", tmp_path.name, name, "state"]


def test_damaged_final_weights_are_written_again(tmp_path, caplog):
    first, again = make_model(), make_model()
    fit(first, tmp_path, epochs=1)
    final = tmp_path / "final" / "weights-00001.npz"
    final.write_bytes(b"damaged")
    assert fit(again, tmp_path, epochs=1).epoch == []
    assert f"{final} is damaged" in caplog.text
    assert_equal_weights(first, again)
    read_checkpoint(final)


@pytest.mark.full
def test_final_weights_of_a_deleted_run_are_not_used(tmp_path):
    fit(make_model(rate=0.5), tmp_path, epochs=1)
    for path in tmp_path.glob("*.npz"):
        path.unlink()
    new, again = make_model(), make_model()
    fit_until(1, 0, new, tmp_path)  # no final weights yet
    fit(again, tmp_path, epochs=1)
    assert (tmp_path / "final").exists()
    other = make_model()
    fit(other, tmp_path / "other", epochs=1)
    assert_equal_weights(other, again)


# Names of variables


class Twins(keras.Model):
    """A model of two equal layers, made in the given order, without a configuration."""

    def __init__(self, *order):
        super().__init__()
        self.parts = {name: keras.layers.Dense(11, name=name) for name in order}
        for layer in self.parts.values():
            layer.build((None, 11))
        self.built = True
        for part in ("left", "right"):
            values = np.random.default_rng(len(part)).normal(size=(11, 11))
            self.parts[part].kernel.assign(values)
        self.compile(keras.optimizers.Adam(0.1), kt.SequenceCrossentropy())

    def call(self, ids):
        x = keras.ops.one_hot(ids, 11)
        return self.parts["left"](keras.ops.relu(self.parts["right"](x)))

    def get_config(self):
        raise NotImplementedError


@pytest.mark.full
def test_variables_are_matched_by_their_paths(tmp_path):
    whole, resumed = Twins("left", "right"), Twins("right", "left")
    fit(whole, tmp_path / "whole", epochs=2)
    fit(Twins("left", "right"), tmp_path / "run", epochs=1)
    fit(resumed, tmp_path / "run", epochs=2)
    for part in ("left", "right"):
        one, other = whole.parts[part], resumed.parts[part]
        np.testing.assert_allclose(one.kernel.numpy(), other.kernel.numpy(), rtol=1e-5, atol=1e-7)
    arrays, _ = read_checkpoint(tmp_path / "run" / "checkpoint-00002-00000000.npz")
    assert {"weights/left/kernel", "weights/right/kernel"} <= arrays.keys()


def test_automatic_numbers_of_layers_do_not_matter(tmp_path):
    def made():
        ids = keras.Input((5,), dtype="int32")
        x = keras.layers.Dense(11)(keras.layers.Embedding(11, 7)(ids))
        model = keras.Model(ids, keras.layers.Dense(11)(keras.layers.Dense(11)(x)))
        model.compile("adam", kt.SequenceCrossentropy())
        return model

    keras.backend.clear_session()
    fit(made(), tmp_path, epochs=1)
    keras.layers.Dense(3)
    fit(made(), tmp_path, epochs=2)
    arrays, _ = read_checkpoint(tmp_path / "checkpoint-00002-00000000.npz")
    kernels = [name for name in arrays if name.startswith("weights") and "kernel" in name]
    assert sorted(kernels) == [f"weights/{name}/kernel" for name in ("dense", "dense_1", "dense_2")]


# Averages


@pytest.mark.full
def test_pure_bfloat16_is_saved_and_averaged(tmp_path):
    models = [make_translator(keras.optimizers.SGD(0.1), dtype="bfloat16") for _ in range(3)]
    for model, folder, epochs in zip(models, ("whole", "run", "run"), (2, 1, 2), strict=True):
        averaging = kt.CheckpointAveraging(tmp_path / folder / "weights")
        fit(model, tmp_path / folder / "state", averaging, epochs=epochs, x=pairs())
    assert_equal_weights(models[0], models[2])
    average = averaging.average()
    assert {str(array.dtype) for array in average} == {"bfloat16"}
    both = [kt.average_checkpoints([path]) for path in averaging.folder.iterdir()]
    for mean, one, other in zip(average, *both, strict=True):
        expected = (one.astype("float32") + other.astype("float32")) / 2
        np.testing.assert_allclose(mean.astype("float32"), expected, rtol=1e-2)


def test_the_average_is_over_the_last_files_and_keeps_integers(tmp_path):
    for i, value in enumerate((100.0, 2.0, 5.0)):
        arrays = {"weights/0": np.full((2, 3), value, "float32"), "weights/1": np.int64(i)}
        write_checkpoint(tmp_path / f"{i}.npz", arrays | {"optimizer/0": np.zeros(7)}, {})
    weight, count = kt.average_checkpoints(tmp_path, last=2)
    np.testing.assert_array_equal(weight, np.full((2, 3), 3.5, "float32"))
    assert weight.dtype == "float32" and count == 2
    assert kt.average_checkpoints([tmp_path / "0.npz"])[0][0, 0] == 100
    write_checkpoint(tmp_path / "3.npz", {"weights/0": np.zeros(5)}, {})
    for paths, last, message in (
        (tmp_path, None, "other names or shapes"),
        (tmp_path, 5, "from 1 to 4"),
        ([], None, "list or folder is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.average_checkpoints(paths, last)


@pytest.mark.full
def test_averaging_keeps_the_last_epochs_of_the_new_run_on_disk(tmp_path):
    for epochs in (5, 4):
        kept, model = [], make_model()
        averaging = kt.CheckpointAveraging(tmp_path, last=2)
        keep = [stop_at(e, None, lambda: kept.append(model.get_weights())) for e in (2, 3)]  # noqa: B023
        options = {"epochs": epochs, "verbose": 0, "shuffle": False}
        model.fit(dataset(), callbacks=[averaging, *keep], **options)
    assert names(tmp_path) == ["weights-00002.npz", "weights-00003.npz"]
    for one, a, b in zip(averaging.average(), *kept, strict=True):
        np.testing.assert_allclose(one, (a + b) / 2, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "write",
    [
        kt.Run,
        kt.CheckpointAveraging,
        RunFolder,
        HistoryLog,
        lambda path: write_checkpoint(path, {}, {}),
    ],
)
def test_path_that_begins_with_a_tilde_is_refused(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"os\.path\.expanduser"):
        write("~/run")
    assert not list(tmp_path.iterdir())


def test_run_folders_hold_two_tokenizers(tmp_path):
    run, lines = RunFolder(tmp_path), ["one two", "two"]
    one, other = run.tokenizer(lines, 266), run.tokenizer(lines, 267, "target_tokenizer.model")
    assert one.vocab_size != other.vocab_size
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"tokenizer.model", "target_tokenizer.model"}


@pytest.mark.parametrize("machine, writes", [(None, True), (0, True), (1, False), (3, False)])
def test_of_several_machines_only_the_first_writes(machine, writes, tmp_path):
    model = make_model()
    resolver = None if machine is None else types.SimpleNamespace(task_id=machine)
    strategy = types.SimpleNamespace(cluster_resolver=resolver)
    averaging = kt.CheckpointAveraging(tmp_path / "weights")
    averaging.set_model(types.SimpleNamespace(weights=model.weights, distribute_strategy=strategy))
    averaging.on_epoch_end(0)
    assert len(names(tmp_path / "weights")) == writes
