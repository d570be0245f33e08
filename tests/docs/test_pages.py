"""The names, paths and numbers on the pages are correct."""

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import export, importers, special_ids, training
from keras_transformer.export import archive, documents, runtime, serving

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(name):
    return (DOCS / name).read_text("utf-8")


# The reference


def public_names():
    """Yields every public name of the project, as the reference writes it."""
    for module in (kt, training, importers, export, documents, runtime, archive, serving):
        names = (name for name in module.__all__ if name not in ("training", "importers"))
        yield from (f"{module.__name__}.{name}" for name in names)
    yield from (f"{kt.search.__name__}.{x}" for x in kt.search.__all__ if x not in kt.__all__)
    yield "keras_transformer.plots"  # all of its members


def test_the_reference_has_every_public_name_once_and_no_other():
    directive = r"^\.\. auto(?:class|function|module):: (\S+)$"
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    documented = sorted(re.findall(directive, pages, re.MULTILINE))
    assert documented == sorted(public_names()) and len(documented) > 40


# Paths


@pytest.mark.parametrize("page", ["architecture.md", "library.md", "contributing.md"])
def test_paths_of_a_page_exist(page):
    found = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.toml)`", read(page))
    paths = [path for path in found if "." not in path.split("/")[0] or path.endswith(".toml")]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


def test_folders_of_the_picture_exist():
    paths = re.findall(r'class="path"[^>]*>([^<]+)<', read("architecture.svg"))
    folders = [word for path in paths for word in path.split() if word.endswith("/")]
    assert len(folders) >= 7
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_the_first_page_shows_how_to_install_what_its_example_imports():
    pattern = r"\{include\} \.\./README\.md\n:start-after: (.*)\n:end-before: (.*)\n"
    start, end = re.search(pattern, read("index.md")).groups()
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = readme.partition(start)[2].partition(end)[0]
    installed = re.findall(r"pip install ([^`\n]+)", shown)
    assert installed == ["'.[serve]'", "'.[train,export]' num2words"]
    assert "git clone" in shown and "from num2words import" in shown


def test_imports_of_a_page_write_models_and_exports_to_different_folders():
    """An import replaces an earlier result of the same kind only."""
    for page in DOCS.glob("guides/*.md"):
        command = r"keras_transformer\.importers \w+ \S+ (\S+)( --export)?"
        found = re.findall(command, page.read_text("utf-8"))
        models, exports = ({out for out, to in found if bool(to) == kind} for kind in (False, True))
        assert not models & exports, page.name


def test_ci_builds_the_documentation_with_warnings_as_errors():
    assert "sphinx-build -W --keep-going" in read("contributing.md")
    assert re.search(r"sphinx-build -W --keep-going .*docs ", (ROOT / ".ci/run").read_text("utf-8"))


# The weight contract


def fact(subject):
    """Returns the right side of a row of "What else a mapping needs"."""
    (row,) = re.findall(rf"^\| {re.escape(subject)} \| (.+) \|$", read("weights.md"), re.MULTILINE)
    return row


def small(cls=kt.Transformer, **options):
    return cls(23, num_layers=1, d_model=16, num_heads=2, d_ff=8, **options)


def paths(model):
    return {weight.path for weight in model.weights}


def test_biases_of_attention_are_as_the_contract_says():
    says = r"models and blocks: (yes|no); `MultiHeadAttention` alone: (yes|no);"
    blocks, alone = (yes == "yes" for yes in re.match(says, fact("biases of attention")).groups())
    x = np.zeros((1, 3, 16), "float32")
    block, attention = kt.EncoderBlock(2, 8), kt.MultiHeadAttention(2, 8)
    block(x), attention(x, x)
    models = [small(cls) for cls in (kt.Transformer, kt.TransformerEncoder, kt.CausalTransformer)]
    for layer, expected in [(attention, alone), (block, blocks), *((m, blocks) for m in models)]:
        assert any("query/bias" in path for path in paths(layer)) == expected, layer.name
    assert any("query/bias" in path for path in paths(small(use_bias=True)))


def test_feed_forward_networks_and_last_norms_are_as_the_contract_says():
    assert fact("biases of the feed-forward network").startswith("yes;")
    model = small()
    assert "encoder_block_0/feed_forward/hidden/bias" in paths(model)
    assert f"`{model.get_config()['activation']}`" in fact("activation of the feed-forward network")
    assert fact("norm at the end of a stack").startswith("with `norm_first` only")
    for norm_first in (False, True):
        names = paths(small(norm_first=norm_first))
        assert any(path.startswith("encoder_norm") for path in names) == norm_first


def test_epsilon_is_as_the_contract_says():
    epsilon = float(re.search(r"epsilon (\S+)", fact("layer norm"))[1])
    norms = [
        layer.epsilon
        for cls in (kt.Transformer, kt.TransformerEncoder, kt.CausalTransformer)
        for layer in small(cls, norm_first=True)._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    assert norms == [epsilon] * ((3 + 4) + 3 + 3)


def test_the_scale_of_embeddings_is_as_the_contract_says():
    scale = float(re.search(r"√D = (\S+) for D = 64", fact("embedding"))[1])
    embedding = kt.TokenEmbedding(11, 64)
    vectors = np.asarray(embedding(np.array([[5]])))[0, 0]
    np.testing.assert_allclose(vectors, scale * np.asarray(embedding.embeddings)[5], rtol=1e-6)


def test_sinusoids_and_the_first_position_are_as_the_contract_says():
    first = int(re.match(r"\d+", fact("first position"))[0])
    assert "interleaved" in fact("sinusoidal positions")
    encoding = np.asarray(kt.SinusoidalPositionEncoding()(np.zeros((1, 2, 6), "float32")))[0]
    positions, channels = np.arange(2) + first, np.arange(0, 6, 2)
    angles = positions[:, None] / 10000 ** (channels / 6)
    np.testing.assert_allclose(encoding[:, 0::2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(encoding[:, 1::2], np.cos(angles), atol=1e-6)


def test_rotary_pairs_are_as_the_contract_says():
    assert "2i and 2i + 1" in fact("rotary positions")
    x = np.zeros((1, 1, 2, 8), "float32")
    x[..., 4] = 1.0  # its partner is channel 5
    turned = np.asarray(kt.RotaryPositionEncoding()(x))[0, 0, 1]
    assert set(np.flatnonzero(turned)) == {4, 5}


def test_special_ids_are_as_the_contract_says():
    numbers = [int(number) for number in re.findall(r"\d", fact("special ids"))]
    names = ("PAD_ID", "UNKNOWN_ID", "BEGIN_ID", "END_ID")
    assert numbers == [getattr(special_ids, name) for name in names]
    assert f"id {special_ids.PAD_ID} is padding" in fact("masks")


def test_special_tokens_and_the_shift_of_labels_are_as_the_contract_says():
    assert fact("source") == "tokens, then the end token; no begin token"
    tokenizer = kt.Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    inputs, labels = next(iter(kt.translation_batches(["a cat"], ["eine Katze"], tokenizer)))
    source, target = tokenizer.encode(["a cat", "eine Katze"])
    assert inputs["source_ids"].numpy()[0].tolist() == [*source, special_ids.END_ID]
    assert inputs["target_ids"].numpy()[0].tolist() == [special_ids.BEGIN_ID, *target]
    assert labels.numpy()[0].tolist() == [*target, special_ids.END_ID]
