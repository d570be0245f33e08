"""Models that read pictures: ViT, DeiT and TrOCR, against `transformers`, and in one file.

Shapes: B pictures, H and W pixels.
"""

import json

import keras
import numpy as np
import pytest
from helpers import published, texts
from helpers.published import torch, transformers
from importers.test_encoder_decoders import byte_pairs
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.export import Classification
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import deit, trocr, vit
from keras_transformer.importers.__main__ import main

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
    "vit": (vit, "ViT", "ForImageClassification", False),
    "deit": (deit, "DeiT", "ForImageClassification", False),
    "deit, distilled": (deit, "DeiT", "ForImageClassificationWithTeacher", True),
}


def pictures(count=5):
    return np.random.default_rng(3).uniform(0, 255, (count, 12, 12, 3)).astype("float32")


def normal(pixels):
    """Returns `pixel_values` of `transformers`."""
    values = (pixels / 255 - MEAN) / DEVIATION
    return torch.from_numpy(values.transpose(0, 3, 1, 2).astype("float32"))


def write(name, folder, **changes):
    _, family, kind, _ = KINDS[name]
    config = getattr(transformers, f"{family}Config")(**SIZES)
    model = published.drawn(getattr(transformers, family + kind)(config))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PIXELS, **changes}), "utf-8")
    return model


@pytest.mark.parametrize("name", KINDS)
def test_classes_equal_transformers(name, tmp_path):
    model, importer = write(name, tmp_path), KINDS[name][0]
    ours, tokenizer = importer.load_task(tmp_path)
    with torch.no_grad():
        expected = model(normal(pictures())).logits.numpy()
        inner = getattr(model, KINDS[name][1].lower())
        vectors = inner(normal(pictures())).last_hidden_state.numpy()
    assert tokenizer is None and importer.read_head(tmp_path) == Classification(
        ["cat", "dog", "fox"]
    )
    assert published.relative(ours(pictures()), expected) <= 1e-5
    assert published.relative(importer.load_model(tmp_path)(pictures()), vectors) <= 1e-5


@pytest.mark.parametrize("name", ["deit, distilled"])
def test_one_command_writes_a_classifier(name, tmp_path, capsys):
    model, importer = write(name, tmp_path / "in"), KINDS[name][0]
    command = [importer.ORIGIN.name, str(tmp_path / "in"), str(tmp_path / "out")]
    assert main([*command, "--export", "onnx"]) == 0
    assert "a grey picture gives" in capsys.readouterr().err
    found = Predictor(tmp_path / "out").predict(pictures())
    with torch.no_grad():
        expected = model(normal(pictures())).logits.softmax(dim=1).numpy()
    assert [one.label for one in found] == [("cat", "dog", "fox")[i] for i in expected.argmax(1)]
    np.testing.assert_allclose([one.probability for one in found], expected.max(1), rtol=1e-4)
    assert main([*command[:2], str(tmp_path / "keras")]) == 0
    assert {path.name for path in (tmp_path / "keras").iterdir()} == {"model.keras", "head.json"}


@pytest.mark.parametrize("rank", [None, 2])
def test_a_classifier_learns(rank, tmp_path):
    write("vit", tmp_path)
    model, _ = vit.load_task(tmp_path, dropout=0.0)
    if rank:
        model.enable_lora(rank)
    model.compile("adam", kt.SequenceCrossentropy(pad_id=-1))
    model.optimizer.learning_rate = 0.01
    losses = model.fit(pictures(), np.array([0, 1, 2, 1, 0]), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.1
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(pictures()), model(pictures()), atol=1e-5)


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


def test_reading_equals_transformers(reader):
    pixels, target = pictures(), published.ids(reader.ours.vocab_size, rows=5, end=False)
    target[:, 0] = 2
    with torch.no_grad():
        expected = reader.model(
            normal(pixels), decoder_input_ids=published.theirs(reader.order, target)
        ).logits.numpy()
    found = np.asarray(reader.ours({"pixels": pixels, "target_ids": target}))
    rows = [row for row in range(len(reader.order)) if row != 2]
    counted = target > 0
    assert (
        published.relative(found[counted][:, rows], expected[counted][:, reader.order[rows]])
        <= 1e-5
    )
    for beams, search in ((1, kt.GreedySearch()), (3, kt.BeamSearch(3, length_penalty=0.0))):
        ids = published.found(search(reader.ours, {"pixels": pixels}, 9).ids)
        assert ids == reader.generate(pixels, beams) and len({*map(tuple, ids)}) > 1


def test_one_command_writes_a_reader(reader, tmp_path):
    out = tmp_path / "out"
    command = ["trocr", str(reader.folder), str(out), "--export", "onnx", "--beam-width", "3"]
    assert main([*command, "--max-length", "9", "--quiet"]) == 0
    from keras_transformer.export.runtime import open_runner

    results = open_runner(out).results([{"pixels": picture} for picture in pictures()])
    search = kt.BeamSearch(3)
    ids = search(reader.ours, {"pixels": pictures()}, 9).ids[:, 0]
    assert [one.text for one in results] == reader.tokenizer.decode(np.asarray(ids))


@pytest.mark.parametrize("rank", [None, 2])
def test_a_reader_learns(reader, rank):
    model = trocr.load_model(reader.folder, dropout=0.0)
    if rank:
        model.enable_lora(rank)
    rows = [[2, *reader.tokenizer.encode(line)[:8]] for line in texts.LINES]
    target = np.array([row + [0] * (9 - len(row)) for row in rows], "int32")
    model.compile("adam", kt.SequenceCrossentropy())
    model.optimizer.learning_rate = 0.01
    labels = np.concatenate([target[:, 1:], np.full((5, 1), 3)], axis=1)
    inputs = {"pixels": pictures(), "target_ids": target}
    losses = model.fit(inputs, labels, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.1


# Bad input


@pytest.mark.parametrize(
    "load, changes, message",
    [
        ("load_task", {"image_std": [1.0]}, "must have image_mean and image_std, 3 numbers"),
        ("load_task", {"image_mean": None}, "must have image_mean and image_std"),
    ],
)
def test_wrong_pixels_are_refused(load, changes, message, tmp_path):
    write("vit", tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        getattr(vit, load)(tmp_path)


@pytest.mark.parametrize("name", ["vit", "deit, distilled"])
def test_every_tensor_is_checked(name, tmp_path):
    write(name, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    importer, kind = KINDS[name][0], "cls_classifier" if name != "vit" else "classifier"
    for lost in (f"{kind}.weight", f"{importer.ORIGIN.name}.embeddings.cls_token"):
        rest = {name: array for name, array in tensors.items() if name != lost}
        save_file(rest, tmp_path / "model.safetensors")
        message = f"1 tensors .*: {lost.removeprefix(importer.ORIGIN.name + '.')} is missing"
        with pytest.raises(ValueError, match=message):
            importer.load_task(tmp_path)
    save_file({**tensors, "other": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="1 tensors .*: other is left over"):
        importer.load_model(tmp_path)


def test_wrong_folders_are_refused(reader, tmp_path):
    write("vit", tmp_path)
    with pytest.raises(ValueError, match=r"holds a model of vit, but this importer reads deit\."):
        deit.load_model(tmp_path)
    with pytest.raises(ValueError, match=r"holds a model of trocr, but this importer reads vit\."):
        vit.load_model(reader.folder)
    path = tmp_path / "config.json"
    read = json.loads((reader.folder / "config.json").read_text("utf-8"))
    path.write_text(json.dumps({**read, "encoder": {"model_type": "donut-swin"}}), "utf-8")
    with pytest.raises(ValueError, match="an encoder of vit or deit, but the encoder is 'donut"):
        trocr.load_model(tmp_path)
    read["decoder"]["layernorm_embedding"] = False
    path.write_text(json.dumps(read), "utf-8")
    with pytest.raises(ValueError, match="layernorm_embedding=False, but our model supports"):
        trocr.load_model(tmp_path)
