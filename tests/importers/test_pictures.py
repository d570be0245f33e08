"""Models that read pictures: ViT, DeiT and TrOCR, against `transformers`, and in one file.

Shapes: B pictures, H and W pixels.
"""

import functools
import json

import numpy as np
import pytest
from helpers import published, texts
from helpers.origins import altered
from helpers.published import torch, transformers
from importers.test_encoder_decoders import byte_pairs

import keras_transformer as kt
from keras_transformer.export import Classification
from keras_transformer.export.runtime import Predictor, open_runner
from keras_transformer.importers import deit, trocr, vit
from keras_transformer.importers.__main__ import main
from keras_transformer.padding import pad_rows

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
    "id2label": {0: "cat", 1: "dog", 2: "fox"},
}
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.2, 0.3, 0.5]
PIXELS = {"image_mean": MEAN, "image_std": DEVIATION, "rescale_factor": 1 / 255, "size": 12}
KINDS = {
    "vit": (vit, "ViT", "ForImageClassification"),
    "deit": (deit, "DeiT", "ForImageClassification"),
    "deit, distilled": (deit, "DeiT", "ForImageClassificationWithTeacher"),
}


def pictures(count=5):
    return np.random.default_rng(3).uniform(0, 255, (count, 12, 12, 3)).astype("float32")


def normal(pixels):
    """Returns `pixel_values` of `transformers`."""
    values = (pixels / 255 - MEAN) / DEVIATION
    return torch.from_numpy(values.transpose(0, 3, 1, 2).astype("float32"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns a function from a kind to its model of `transformers` and the folder."""

    @functools.cache
    def write(name):
        folder, (_, family, kind) = tmp_path_factory.mktemp("pictures"), KINDS[name]
        config = getattr(transformers, f"{family}Config")(**SIZES)
        model = published.drawn(getattr(transformers, family + kind)(config))
        model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS), "utf-8")
        return model, folder

    return write


@pytest.mark.full("deit", "deit, distilled")
@pytest.mark.parametrize("name", KINDS)
def test_classes_equal_transformers(name, written):
    (model, folder), (importer, family, _) = written(name), KINDS[name]
    ours, tokenizer = importer.load_task(folder)
    with torch.no_grad():
        expected = model(normal(pictures())).logits
        vectors = getattr(model, family.lower())(normal(pictures())).last_hidden_state
    assert tokenizer is None
    assert importer.read_head(folder) == Classification(["cat", "dog", "fox"])
    assert published.relative(ours(pictures()), expected) <= 1e-5
    assert published.relative(importer.load_model(folder)(pictures()), vectors) <= 1e-5


@pytest.mark.full
def test_one_command_writes_a_classifier(written, tmp_path, capsys):
    model, folder = written("deit, distilled")
    command = ["deit", str(folder), str(tmp_path / "out")]
    assert main([*command, "--export", "onnx"]) == 0
    assert "a grey picture gives" in capsys.readouterr().err
    found = Predictor(tmp_path / "out").predict(pictures())
    with torch.no_grad():
        expected = model(normal(pictures())).logits.softmax(dim=1).numpy()
    assert [one.label for one in found] == [("cat", "dog", "fox")[i] for i in expected.argmax(1)]
    np.testing.assert_allclose([one.probability for one in found], expected.max(1), rtol=1e-4)
    assert main([*command[:2], str(tmp_path / "keras")]) == 0
    assert {path.name for path in (tmp_path / "keras").iterdir()} == {"model.keras", "head.json"}


@pytest.mark.full
@pytest.mark.parametrize("rank", [None, 2])
def test_a_classifier_learns(rank, written, tmp_path):
    model, _ = vit.load_task(written("vit")[1], dropout=0.0)
    labels = np.array([0, 1, 2, 1, 0])
    published.check_learning(model, tmp_path, pictures(), labels, rank=rank, pad_id=-1)


# Shapes of decoders; the encoder's vectors have 16 channels.
DECODERS = {
    "small": {"d_model": 12, "cross_attention_hidden_size": 16, "scale_embedding": True},
    "sinusoids": {"d_model": 16, "use_learned_position_embeddings": False},
}


class Reader:
    """A random TrOCR, its folder, and our model and tokenizer."""

    def __init__(self, name, folder):
        tokenizer = byte_pairs(folder)
        source = transformers.DeiTConfig(**SIZES)
        target = transformers.TrOCRConfig(
            vocab_size=len(tokenizer),
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=20,
            max_position_embeddings=29,
            activation_function="relu",
            tie_word_embeddings=name != "small",
            **DECODERS[name],
        )
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            source, target, tie_word_embeddings=name != "small"
        )
        self.model = published.drawn(transformers.VisionEncoderDecoderModel(config))
        self.model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS), "utf-8")
        self.folder, (self.ours, self.tokenizer) = folder, trocr.load(folder)
        (self.order,) = trocr.row_orders(folder)

    def generate(self, pixels, beams):
        never = [[int(id)] for id in {*self.order[[0, 2]]} - {self.order[3]}]
        with torch.no_grad():
            ids = self.model.generate(
                normal(pixels),
                decoder_start_token_id=2,
                eos_token_id=2,
                pad_token_id=1,
                num_beams=beams,
                max_new_tokens=9,
                bad_words_ids=never,
                **({"length_penalty": 0.0, "early_stopping": False} if beams > 1 else {}),
            )
        return published.tokens(self.order, ids[:, 1:], end=3)


@pytest.fixture(scope="module", params=DECODERS)
def reader(request, tmp_path_factory):
    return Reader(request.param, tmp_path_factory.mktemp("trocr"))


@pytest.mark.full
def test_reading_equals_transformers(reader):
    pixels, target = pictures(), published.ids(reader.ours.vocab_size, rows=5, end=False)
    target[:, 0] = 2
    with torch.no_grad():
        expected = reader.model(
            normal(pixels), decoder_input_ids=published.theirs(reader.order, target)
        ).logits.numpy()
    found = np.asarray(reader.ours({"pixels": pixels, "target_ids": target}))
    rows = [row for row in range(len(reader.order)) if row != 2]
    expected = expected[target > 0][:, reader.order[rows]]
    assert published.relative(found[target > 0][:, rows], expected) <= 1e-5
    for beams, search in ((1, kt.GreedySearch()), (3, kt.BeamSearch(3, length_penalty=0.0))):
        ids = published.found(search(reader.ours, {"pixels": pixels}, 9).ids)
        assert ids == reader.generate(pixels, beams) and len({*map(tuple, ids)}) > 1


@pytest.mark.full
def test_one_command_writes_a_reader(reader, tmp_path):
    out = tmp_path / "out"
    command = ["trocr", str(reader.folder), str(out), "--export", "onnx", "--beam-width", "3"]
    assert main([*command, "--max-length", "9", "--quiet"]) == 0
    results = open_runner(out).results([{"pixels": picture} for picture in pictures()])
    ids = kt.BeamSearch(3)(reader.ours, {"pixels": pictures()}, 9).ids[:, 0]
    assert [one.text for one in results] == reader.tokenizer.decode(np.asarray(ids))


@pytest.mark.full
@pytest.mark.parametrize("rank", [None, 2])
def test_a_reader_learns(reader, rank, tmp_path):
    model = trocr.load_model(reader.folder, dropout=0.0)
    rows = [[2, *reader.tokenizer.encode(line)[:8]] for line in texts.LINES]
    target = pad_rows(rows)
    labels = np.concatenate([target[:, 1:], np.full((5, 1), 3)], axis=1)
    inputs = {"pixels": pictures(), "target_ids": target}
    published.check_learning(model, tmp_path, inputs, labels, rank=rank)


# Bad input


def without_embedding_norm(content):
    read = json.loads(content)
    read["decoder"]["layernorm_embedding"] = False
    return json.dumps(read).encode()


TENSORS, CONFIG, PIXELS_FILE = "model.safetensors", "config.json", "preprocessor_config.json"
CLASSES = "cls_classifier.weight"
DISTILLED = "deit, distilled"


@pytest.mark.parametrize(
    "name, importer, file, change, message",
    [
        ("vit", vit, PIXELS_FILE, {"image_std": [1.0]}, "image_mean and image_std, 3 numbers"),
        ("vit", vit, PIXELS_FILE, {"image_mean": None}, "must have image_mean and image_std"),
        ("vit", vit, TENSORS, {"classifier.weight": None}, ": classifier.weight is missing"),
        (
            "vit",
            vit,
            TENSORS,
            {"vit.embeddings.cls_token": None},
            ": embeddings.cls_token is missing",
        ),
        ("vit", vit, TENSORS, {"other": np.zeros(3)}, "1 tensors .*: other is left over"),
        (DISTILLED, deit, TENSORS, {CLASSES: None}, f"1 tensors .*: {CLASSES} is missing"),
        (
            DISTILLED,
            deit,
            TENSORS,
            {"deit.embeddings.cls_token": None},
            "1 tensors .*: embeddings.cls_token is missing",
        ),
        ("vit", deit, CONFIG, {}, r"holds a model of vit, but this importer reads deit\."),
        (None, vit, CONFIG, {}, r"holds a model of trocr, but this importer reads vit\."),
        (
            None,
            trocr,
            CONFIG,
            {"encoder": {"model_type": "donut-swin"}},
            "an encoder of vit or deit, but the encoder is 'donut",
        ),
        (
            None,
            trocr,
            CONFIG,
            without_embedding_norm,
            "layernorm_embedding=False, but our model supports",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    name, importer, file, change, message, written, reader, tmp_path
):
    folder = written(name)[1] if name else reader.folder
    load = importer.load if importer is trocr else importer.load_task
    with pytest.raises(ValueError, match=message):
        load(altered(folder, tmp_path, {file: change}))
