"""Training and evaluation of a model with two tokenizers."""

import numpy as np
import pytest
from support.run_folder import RunFolder

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.special_ids import BEGIN_ID, END_ID
from keras_transformer.translation import translate

SOURCES = ["one two", "two", "one one two"]
TARGETS = ["eins zwei", "zwei", "eins eins zwei"]


@pytest.fixture(scope="module")
def tokenizers():
    return [
        kt.Tokenizer.train(lines, size, hard_vocab_limit=False)
        for lines, size in ((SOURCES, 300), (TARGETS, 400))
    ]


@pytest.fixture(scope="module")
def model(tokenizers):
    source, target = tokenizers
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 8}
    model = kt.Transformer(source.vocab_size, target_vocab_size=target.vocab_size, **sizes)
    model.compile("sgd", kt.SequenceCrossentropy())
    return model


class Knows:
    """A search that returns the known translation of each source, in target ids."""

    def __init__(self, source, target):
        self.known = dict(
            zip(map(tuple, source.encode(SOURCES)), target.encode(TARGETS), strict=True)
        )

    def __call__(self, model, source_ids):
        rows = [self.known[tuple(row[: list(row).index(END_ID)].tolist())] for row in source_ids]
        ids = np.zeros((len(rows), 1, max(map(len, rows)) + 1), "int32")
        for padded, row in zip(ids, rows, strict=True):
            padded[0, : len(row) + 1] = [*row, END_ID]
        return kt.SearchResult(ids, *[None] * (len(kt.SearchResult._fields) - 1))


def test_each_side_is_encoded_by_its_tokenizer(tokenizers):
    source, target = tokenizers
    data = kt.translation_batches(SOURCES[:1], TARGETS[:1], source, target_tokenizer=target)
    ((inputs, labels),) = data
    ids = target.encode(TARGETS[0])
    assert inputs["source_ids"].numpy().tolist() == [[*source.encode(SOURCES[0]), END_ID]]
    assert inputs["target_ids"].numpy().tolist() == [[BEGIN_ID, *ids]]
    assert labels.numpy().tolist() == [[*ids, END_ID]]
    assert ids != source.encode(TARGETS[0])


def test_each_tokenizer_samples_its_side(tokenizers):
    source, target = tokenizers
    options = {"target_tokenizer": target, "sampling_alpha": 0.1}
    texts = set()
    for inputs, labels in kt.translation_batches(SOURCES, TARGETS, source, **options):
        sides = source.decode(inputs["source_ids"].numpy()), target.decode(labels.numpy())
        texts |= set(zip(*sides, strict=True))
    assert texts == set(zip(SOURCES, TARGETS, strict=True))


def test_a_model_of_two_vocabularies_trains_and_is_scored(tokenizers, model):
    source, target = tokenizers
    train = kt.translation_batches(SOURCES, TARGETS, source, target_tokenizer=target)
    bleu = kt.BleuCallback(
        Knows(*tokenizers), source, SOURCES, TARGETS, tokenize="char", target_tokenizer=target
    )
    history = model.fit(train, epochs=1, shuffle=False, callbacks=[bleu], verbose=0).history
    assert history["val_bleu"] == [pytest.approx(100)]
    assert bleu.translations == TARGETS
    with pytest.raises(ValueError, match="Pass target_tokenizer too"):
        translate(Knows(*tokenizers), model, source, SOURCES)


def test_plots_and_run_folders_take_two_tokenizers(tokenizers, model, tmp_path):
    pytest.importorskip("matplotlib")
    source, target = tokenizers
    options = {"target_tokenizer": target}
    figure = plots.plot_translation(model, source, SOURCES[0], TARGETS[0], **options)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(rows) == len(target.encode(TARGETS[0])) + 1
    run = RunFolder(tmp_path)
    assert (
        run.tokenizer(SOURCES, 266).vocab_size
        != run.tokenizer(TARGETS, 269, "target_tokenizer.model").vocab_size
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "tokenizer.model",
        "target_tokenizer.model",
    }


def test_throughput_counts_the_tokens_of_any_batches(tokenizers):
    data = kt.classification_batches(SOURCES, [0, 1, 0], tokenizers[0])
    tokens = sum(len(ids) + 1 for ids in tokenizers[0].encode(SOURCES))
    assert kt.Throughput(data).tokens_per_batch == tokens
