"""Callbacks for BLEU, throughput and non-finite losses; and `translate`."""

import types

import keras
import numpy as np
import pytest
from helpers.resuming import LINES, Letters, dataset, make_model

import keras_transformer as kt
from keras_transformer.export.compare import _scorer
from keras_transformer.training import callbacks

SOURCES = ["abcde", "b", "dcbab", "bcdab", "ccabd"]
REFERENCES = [line[::-1] for line in SOURCES]


class Capitals(Letters):
    """A tokenizer of the target that writes capital letters."""

    def decode(self, rows):
        return [line.upper() for line in super().decode(rows)]


class Upside:
    """A search that reverses each sentence and records the shapes of its batches."""

    def __init__(self):
        self.shapes = []

    def __call__(self, model, source_ids):
        self.shapes.append(source_ids.shape)
        ids = np.zeros((len(source_ids), 1, source_ids.shape[1]), "int32")
        for row, source in enumerate(source_ids):
            letters = source[source > 3]
            ids[row, 0, : len(letters) + 1] = [*letters[::-1], 3]
        return types.SimpleNamespace(ids=ids)


def bleu(**arguments):
    return kt.BleuCallback(Upside(), Letters(), SOURCES, REFERENCES, tokenize="char", **arguments)


def fit(*used, verbose=0, epochs=1):
    options = {"verbose": verbose, "epochs": epochs, "shuffle": False}
    return make_model().fit(dataset(), callbacks=[*used], **options)


def test_bleu_is_logged_and_stops_training_early(capsys):
    callback = bleu(tokens_per_batch=12)
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=1)
    history = fit(callback, stop, epochs=5).history
    # All translations are right after the first epoch, so the second one is no better.
    np.testing.assert_allclose(history["val_bleu"], [100, 100])
    assert callback.translations == REFERENCES
    assert (callback.best_epoch, round(callback.best, 6)) == (1, 100)
    # Two sentences of five letters and an end token are 12 tokens.
    assert callback.search.shapes[:3] == [(2, 6), (2, 6), (1, 2)]
    text = capsys.readouterr().out
    assert "tok:char" in text and "epoch 1: BLEU" in text and "epoch 0" not in text


def test_tensorboard_writes_the_logs_of_our_callbacks(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    fit(bleu(), kt.Throughput(tokens_per_batch=13), board)
    for folder, name in (("train", b"epoch_tokens_per_second"), ("validation", b"epoch_bleu")):
        # Keras writes names that begin with `val_` to the second folder, without this prefix.
        assert name in b"".join(path.read_bytes() for path in (tmp_path / folder).iterdir())


def test_bleu_follows_start_and_every_and_runs_after_the_last_epoch():
    callback = bleu(start=1, every=2)
    callback.set_model(None)
    callback.set_params({"epochs": 5})
    scores = []
    for epoch in range(5):
        logs, before = {}, len(callback.search.shapes)
        callback.on_epoch_end(epoch, logs)
        scores.append((len(callback.search.shapes) > before, round(logs.get("val_bleu", -1))))
    assert scores == [(False, -1), (True, 100), (False, -1), (True, 100), (True, 100)]


@pytest.mark.parametrize(
    "references, told",
    [
        (["elf", "zwölf dreizehn"], "tok:char"),  # BLEU of words is 0 for any translation
        (["我有三十五只猫。", "你 有 一只狗"], "tok:char"),
        (["Ein Mann fährt Rad.", "elf"], "tok:13a"),
        (["Ja, gern.", "elf"], "tok:13a"),  # four with the marks
    ],
)
def test_bleu_of_right_translations_is_100_in_every_script(references, told):
    scorer = kt.BleuCallback(Upside(), Letters(), references, references)._scorer
    assert scorer.corpus_score(references, [references]).score == pytest.approx(100)
    assert told in str(scorer.get_signature())
    names = {"tok:char": "BLEU of characters", "tok:13a": "BLEU"}
    scores = _scorer(references)(references, [0, 1])
    assert scores == pytest.approx({names[told]: 100, "chrF": 100})


def test_bleu_decodes_with_the_tokenizer_of_the_target():
    callback = bleu(target_tokenizer=Capitals())
    callback.set_model(None)
    callback.on_epoch_end(0)
    assert callback.translations == [line.upper() for line in REFERENCES]


@pytest.mark.filterwarnings("ignore:.*val_bleu")  # Keras warns where the value is missing
def test_keras_callbacks_skip_epochs_without_bleu(tmp_path):
    best, watched = tmp_path / "best.keras", {"monitor": "val_bleu", "mode": "max"}
    history = fit(
        bleu(every=3),
        keras.callbacks.EarlyStopping(**watched, patience=2),
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, **watched),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        epochs=20,
    )
    # Translations after epochs 0, 3 and 6: the first is perfect, and two are not better.
    assert history.epoch == list(range(7)) and best.exists()
    np.testing.assert_allclose(history.history["val_bleu"], [100] * 3)
    rows = [row.split(",") for row in (tmp_path / "log.csv").read_text().splitlines()]
    column = rows[0].index("val_bleu")
    assert [row[column] == "NA" for row in rows[1:]] == [e % 3 > 0 for e in range(7)]


def test_lines_are_translated_in_their_order_in_batches_of_similar_length():
    search = Upside()
    lines = ["abc", "abcdabcdabcd", "ab", "", "abcdab"]
    # Lines of 13 and 7 tokens are longer than a batch of 6 tokens.
    assert kt.translate(search, None, Letters(), lines, 6) == [line[::-1] for line in lines]
    assert search.shapes == [(1, 13), (1, 7), (1, 4), (1, 3)]  # the blank line is not searched
    assert kt.translate(search, None, Letters(), []) == []
    with pytest.raises(TypeError, match=r"a list of strings, \[text\], not the string 'abc'"):
        kt.translate(search, None, Letters(), "abc")
    with pytest.raises(ValueError, match="tokens_per_batch must be at least 1, but it is 0"):
        kt.translate(search, None, Letters(), ["abc"], 0)


def test_throughput_is_tokens_per_second(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    throughput = kt.Throughput(tokens_per_batch=30)
    optimizer = types.SimpleNamespace(iterations=np.array(7))
    throughput.set_model(types.SimpleNamespace(optimizer=optimizer, steps_per_execution=1))
    throughput.set_params({"steps": 5, "epochs": 3})
    logs = {}

    def train(batches, skipped=0):
        for batch in batches:
            clock.now += 2.0
            optimizer.iterations += batch >= skipped
            throughput.on_train_batch_end(batch, logs)

    throughput.on_train_begin()
    throughput.on_epoch_begin(1)
    train(range(3), skipped=1)  # a resumed run skips the first batch
    # Two updates in six seconds; two batches and an epoch of five are left.
    assert logs == pytest.approx({"tokens_per_second": 10, "minutes_left": 7 * 3 / 60})
    train(range(3, 5))
    clock.now += 3.0  # validation
    throughput.on_epoch_end(1, logs)
    assert logs["tokens_per_second"] == pytest.approx(4 * 30 / 10)
    throughput.on_epoch_begin(2)
    train([0])
    # Four batches of two seconds and the validation of the last epoch.
    assert logs["minutes_left"] == pytest.approx((4 * 2 + 3) / 60)


def test_throughput_counts_tokens_and_is_in_the_progress_bar(capsys):
    texts = kt.classification_batches(LINES, [0] * len(LINES), Letters(), 12)
    for data in (dataset(), texts):
        tokens = [np.count_nonzero(x) for x, _ in data]
        assert kt.Throughput(data).tokens_per_batch == np.mean(tokens)
    fit(kt.Throughput(dataset()), verbose=1)
    assert "tokens_per_second" in capsys.readouterr().out


def test_a_loss_that_is_not_a_number_ends_training():
    model = make_model()
    model.layers[1].embeddings.assign(np.full((11, 7), np.nan))
    with pytest.raises(ValueError, match="The loss is nan in epoch 1, batch 1"):
        model.fit(dataset(), verbose=0, shuffle=False, callbacks=[kt.StopOnNonFinite()])
