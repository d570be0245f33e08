"""The benchmarks' bridge to CTranslate2: the same weights give the same scores and translations.

An engine that others wrote, in C++, from our weights by their paths: a second opinion on models and
searches, and the proof that the benchmarks compare like with like.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2, the other engine, is missing")
tf = pytest.importorskip("tensorflow", reason="the searches run on TensorFlow")
import keras  # noqa: E402

if keras.config.backend() != "tensorflow":
    pytest.skip("the searches run on TensorFlow", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import common  # noqa: E402
from ctranslate2_model import save_ctranslate2, vocabulary  # noqa: E402

V, D, H, F, N = 23, 22, 2, 19, 2
SOURCES = [[5, 7, 11, 13, 3], [17, 19, 3], [22, 4, 4, 9, 6, 8, 3]]
TARGETS = [[4, 21, 3], [14, 16, 18, 20, 22, 3], [6, 3]]


def random_model(**options):
    """All weights random, norms and biases included, so that none can be forgotten or swapped."""
    model = kt.Transformer(V, num_layers=N, d_model=D, num_heads=H, d_ff=F, **options)
    generator = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(weight + generator.normal(scale=0.3, size=weight.shape))
    return model


def translator(model, folder):
    tokens = save_ctranslate2(model, folder)
    return tokens, ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "use_bias": True},
        {"positions": "learned", "max_length": 13, "target_vocab_size": 29, "activation": "gelu"},
    ],
    ids=["post-norm", "pre-norm, biases", "learned positions, two vocabularies"],
)
def test_both_engines_score_targets_alike(options, tmp_path):
    model = random_model(**options)
    tokens, engine = translator(model, tmp_path)
    found = engine.score_batch(
        [[tokens[i] for i in ids] for ids in SOURCES],
        [[tokens[i] for i in ids[:-1]] for ids in TARGETS],  # it adds the end mark
    )
    inputs = {
        "source_ids": common.padded(SOURCES),
        "target_ids": common.padded([[kt.special_ids.BEGIN_ID, *ids[:-1]] for ids in TARGETS]),
    }
    log_probs = tf.nn.log_softmax(model(inputs)).numpy()  # (B, T, V)
    for row, ids, scores in zip(log_probs, TARGETS, found, strict=True):
        np.testing.assert_allclose(row[range(len(ids)), ids], scores.log_probs, atol=1e-4)


def forbid_pad_and_begin(model):
    """Logits near -50 for the two ids that our searches never write, as in a trained model."""
    weights = {weight.path: weight for weight in model.weights}
    first = np.eye(D)[0]
    norm = weights[f"decoder_block_{N - 1}/feed_forward_norm/beta"]
    norm.assign(norm + 5 * first)
    table = weights["token_embedding/embeddings"]
    rows = np.isin(np.arange(V), [kt.special_ids.PAD_ID, kt.special_ids.BEGIN_ID])[:, None]
    table.assign(np.where(rows, -10 * first, table))


def test_both_engines_find_the_same_translations(tmp_path):
    model = random_model()
    forbid_pad_and_begin(model)
    tokens, engine = translator(model, tmp_path)
    width, alpha, length = 3, 0.7, 11
    ours = kt.BeamSearch(width, alpha)(model, common.padded(SOURCES), max_length=length)
    found = engine.translate_batch(
        [[tokens[i] for i in ids] for ids in SOURCES],
        beam_size=width,
        num_hypotheses=width,
        length_penalty=alpha,
        max_decoding_length=length,
        min_decoding_length=0,
        return_end_token=True,
        return_scores=True,
    )
    for ids, scores, theirs in zip(ours.ids.numpy(), ours.scores.numpy(), found, strict=True):
        hypotheses = [[tokens.index(token) for token in h] for h in theirs.hypotheses]
        hypotheses, their_scores = common.ranked(hypotheses, theirs.scores, alpha)
        assert ids[0][ids[0] > 0].tolist() == hypotheses[0]
        np.testing.assert_allclose(scores[0], their_scores[0], atol=1e-4)


def test_vocabulary_is_the_tokenizers_in_the_order_of_ids():
    tokenizer = kt.Tokenizer.train(["a man rides a red hat"], 300, hard_vocab_limit=False)
    size = tokenizer.vocab_size
    tokens = vocabulary(size + 2, tokenizer)
    assert tokens[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokens[size:] == [f"<id {size}>", f"<id {size + 1}>"]
    assert len(set(tokens)) == size + 2
    pieces = [tokens[i] for i in tokenizer.encode("a man")]
    assert "".join(pieces).replace("\u2581", " ").strip() == "a man"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "rotary", "key_dim": 4}, "rotary"),
        ({"activation": "tanh"}, "activation"),
        ({"key_dim": 7}, "key_dim=7"),
    ],
)
def test_models_that_ctranslate2_lacks_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_ctranslate2(random_model(**options), tmp_path)


def test_the_tables_of_the_pages_are_those_of_the_committed_figures():
    # A process of its own: a module of the tests bears the name of a benchmark.
    script = Path(__file__).parents[2] / "benchmarks" / "tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
