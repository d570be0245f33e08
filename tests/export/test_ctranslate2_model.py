"""Export to CTranslate2: its engine returns the same scores and translations.

CTranslate2 is an independent C++ implementation, so these tests also verify our models and
searches. The benchmarks that compare the engines rely on this equality.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from helpers import exports, origins, published
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export import ExportError, ctranslate2_model, export_ctranslate2
from keras_transformer.importers import marian
from keras_transformer.layers.blocks import gelu_sigmoid
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, PAD_ID

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2, the other engine, is missing")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import subjects  # noqa: E402

V, D, H, F, N = 23, 22, 2, 19, 2
SOURCES = [[5, 7, 11, 13, 3], [17, 19, 3], [22, 4, 4, 9, 6, 8, 3]]
TARGETS = [[4, 21, 3], [14, 16, 18, 20, 22, 3], [6, 3]]
LARGEST = "two depths, norm of embeddings, own output"
VARIANTS = {
    "post-norm": {},
    "pre-norm, biases": {"norm_first": True, "use_bias": True},
    "learned positions, two vocabularies": {
        "positions": kt.LearnedPositionEncoding(13),
        "target_vocab_size": 29,
        "activation": "gelu",
    },
    LARGEST: {
        "num_layers": (1, 3),
        "embedding_norm": True,
        "output_bias": True,
        "tie_output": False,
        "epsilon": 1e-3,
        "activation": gelu_sigmoid,
    },
    "another base, bfloat16": {
        "positions": kt.SinusoidalPositionEncoding(base=100.0),
        "dtype": "mixed_bfloat16",
    },
}


def random_model(**options):
    return exports.tiny("translate", V, **{"d_model": D, "d_ff": F, **options})


def translator(model, folder):
    words = export_ctranslate2(model, folder, verbose=False)
    return words, ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


def named(words, rows):
    return [[words[i] for i in row] for row in rows]


@pytest.mark.full
@pytest.mark.parametrize("name", quick(VARIANTS, LARGEST))
def test_both_engines_score_targets_alike(name, tmp_path):
    model = random_model(**VARIANTS[name])
    words, engine = translator(model, tmp_path / "out")
    # The engine appends the end token to both.
    sources, targets = (named(words, [row[:-1] for row in rows]) for rows in (SOURCES, TARGETS))
    found = engine.score_batch(sources, targets)
    model = ctranslate2_model.as_float32(model)
    inputs = {
        "source_ids": pad_rows(SOURCES),
        "target_ids": pad_rows([[BEGIN_ID, *ids[:-1]] for ids in TARGETS]),
    }
    never = np.isin(np.arange(model.output_shape[-1]), [0, 2]) * -1e9  # like the export's bias
    log_probs = tf.nn.log_softmax(model(inputs) + never).numpy()  # (B, T, V)
    for row, ids, scores in zip(log_probs, TARGETS, found, strict=True):
        np.testing.assert_allclose(row[range(len(ids)), ids], scores.log_probs, atol=1e-4)


def translated(engine, pieces, width, length=12, **options):
    """Returns results of the engine, without early stopping and with the end token."""
    return engine.translate_batch(
        pieces,
        beam_size=width,
        num_hypotheses=width,
        max_decoding_length=length,
        min_decoding_length=0,
        return_end_token=True,
        return_scores=True,
        **options,
    )


@pytest.mark.full
def test_both_engines_find_the_same_translations(tmp_path):
    model = random_model()
    weights = {weight.path: weight for weight in model.weights}
    # Logits near -50 for the two ids that our searches never write, as in a trained model.
    norm = weights[f"decoder_block_{N - 1}/feed_forward_norm/beta"]
    norm.assign(norm + 5 * np.eye(D)[0])
    table = weights["token_embedding/embeddings"]
    forbidden = np.isin(np.arange(V), [PAD_ID, BEGIN_ID])[:, None]
    table.assign(np.where(forbidden, -10 * np.eye(D)[0], table))
    words, engine = translator(model, tmp_path / "out")
    width, alpha, length = 3, 0.7, 11
    ours = kt.BeamSearch(width, alpha)(model, pad_rows(SOURCES), max_length=length)
    pieces = named(words, [row[:-1] for row in SOURCES])
    found = translated(engine, pieces, width, length, length_penalty=alpha)
    for ids, scores, theirs in zip(ours.ids.numpy(), ours.scores.numpy(), found, strict=True):
        hypotheses = [[words.index(word) for word in h] for h in theirs.hypotheses]
        hypotheses, their_scores = subjects.ranked(hypotheses, theirs.scores, alpha)
        assert ids[0][ids[0] > 0].tolist() == hypotheses[0]
        np.testing.assert_allclose(scores[0], their_scores[0], atol=1e-4)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """An imported Marian model of `transformers` that writes different texts."""
    folder, model = tmp_path_factory.mktemp("marian"), origins.marian_model()
    model.final_logits_bias[0, model.config.pad_token_id] = -100.0  # as in a trained model
    model.save_pretrained(folder)
    return marian.load_model(folder)


@pytest.mark.full
@pytest.mark.parametrize("beam", quick([1, 4], 4))
def test_an_imported_model_writes_the_same_tokens(imported, beam, tmp_path):
    words, engine = translator(imported, tmp_path / "out")
    source = published.ids(imported.vocab_size, rows=97)
    search = kt.GreedySearch() if beam == 1 else kt.BeamSearch(beam, length_penalty=0.0)
    ours = published.found(search(imported, source, 12).ids)
    pieces = named(words, [row[row > 3] for row in source])
    found = translated(engine, pieces, beam, length_penalty=0)
    assert [[words.index(word) for word in one.hypotheses[0]] for one in found] == ours
    assert len(set(map(tuple, ours))) > 5


@pytest.mark.full
def test_the_engine_reads_and_writes_pieces_of_the_tokenizer(tmp_path):
    tokenizer = exports.tokenizer()
    model = kt.Transformer(tokenizer.vocab_size + 2, 1, d_model=16, num_heads=2, d_ff=24)
    export_ctranslate2(model, tmp_path / "out", tokenizer, precision="int8", verbose=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer.model",
    ]
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / "out" / "tokenizer.model"))
    engine = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    found = translated(engine, [pieces.encode("a man", out_type=str)], 1, 7)
    source = pad_rows([[*tokenizer.encode("a man"), 3]])
    # int8 may differ after the first token
    first = kt.GreedySearch()(model, source, 7).ids.numpy()[0, 0, 0]
    assert first == 3 or pieces.piece_to_id(found[0].hypotheses[0][0]) == first
    again = export_ctranslate2(model, tmp_path / "out", tokenizer, verbose=False)  # replaced
    assert json.loads((tmp_path / "out" / "shared_vocabulary.json").read_text("utf-8")) == again


def test_the_vocabulary_lists_the_pieces_in_the_order_of_ids():
    tokenizer, size = exports.tokenizer(), exports.VOCAB
    words = ctranslate2_model.vocabulary(size + 2, tokenizer)
    assert words[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert words[size:] == [f"<id {size}>", f"<id {size + 1}>"]
    assert len(set(words)) == size + 2
    pieces = [words[i] for i in tokenizer.encode("a man")]
    assert "".join(pieces).replace("\u2581", " ").strip() == "a man"


@pytest.mark.full
def test_updates_of_lora_are_written(tmp_path):
    model, merged = random_model(), random_model()
    model.enable_lora(rank=2)
    for weight in model.weights:
        if weight.path.endswith("lora_kernel_b"):
            weight.assign(np.random.default_rng(5).normal(0, 0.3, weight.shape))
    model.save_weights(tmp_path / "merged.weights.h5")
    merged.load_weights(tmp_path / "merged.weights.h5")
    for name, one in (("lora", model), ("merged", merged)):
        export_ctranslate2(one, tmp_path / name, precision="int8", verbose=False)
    files = [(tmp_path / name / "model.bin").read_bytes() for name in ("lora", "merged")]
    assert files[0] == files[1]


# Bad input


def own_encoder():
    frames = keras.Input((None, 5), name="frames")
    return keras.Model(frames, keras.layers.Dense(D)(frames), name="listener")


REFUSED = [
    ({"positions": "rotary", "key_dim": 4}, {}, "RotaryPositionEncoding.*key_dim=4"),
    ({"activation": "softplus"}, {}, "activation='softplus', known are"),
    ({"key_dim": 7}, {}, "key_dim=7"),
    ({"recurrent_decoder": True}, {}, "recurrent_decoder=True"),
    ({"encoder": own_encoder}, {}, "encoder='listener'"),
    ({}, {"precision": "int4"}, "precision must be one of .* 'int4'"),
    ({}, {"max_length": 1}, r"max_length must be at least 2 and finite, got 1"),
    (
        {"positions": lambda: kt.LearnedPositionEncoding(13)},
        {"max_length": 14},
        "must be at least 2 and at most 13",
    ),
    ({}, {"max_length": 2.5}, "max_length must be an integer, got 2.5"),
    ({}, {"tokenizer": "pieces"}, "tokenizer must be a Tokenizer"),
    ({}, {"tokenizer": exports.tokenizer}, f"has {exports.VOCAB} ids, but the model reads {V}"),
    ({}, {"tolerance": -1.0}, "Parity of the scores"),
]


@pytest.mark.quick(
    "sizes4-options4-encoder='listener'",
    "sizes0-options0-RotaryPositionEncoding.*key_dim=4",
    "sizes6-options6-max_length must be at least 2 and finite, got 1",
)
@pytest.mark.parametrize(("sizes", "options", "message"), REFUSED)
def test_unsupported_models_and_arguments_are_refused(sizes, options, message, tmp_path):
    sizes, options = (
        {name: value() if callable(value) else value for name, value in given.items()}
        for given in (sizes, options)
    )
    with pytest.raises((ValueError, TypeError, ExportError), match=message):
        export_ctranslate2(random_model(**sizes), tmp_path / "out", verbose=False, **options)
    assert not any(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning")
def test_a_model_quantized_by_keras_is_refused(tmp_path):
    model = random_model()
    model.quantize("int8")
    with pytest.raises(ValueError, match="weights that model.quantize rounded"):
        export_ctranslate2(model, tmp_path / "out", verbose=False)


def test_errors_name_the_wrong_model_folder_or_package(tmp_path, monkeypatch):
    encoder = kt.TransformerEncoder(V, 1, D, H, F)
    with pytest.raises(TypeError, match="must be a Transformer, but TransformerEncoder"):
        export_ctranslate2(encoder, tmp_path / "out")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ExportError, match="does not say .*keras-transformer-onnx"):
        export_ctranslate2(random_model(), tmp_path, verbose=False)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, ctranslate2_model.__name__)
    with pytest.raises(ImportError, match=r"keras-transformer-onnx\[train,export\]"):
        _ = export.export_ctranslate2
