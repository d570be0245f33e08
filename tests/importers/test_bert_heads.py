"""BERT folders: tensors that are named, sentence vectors, heads in one file, and wrong files.

`test_relatives` compares encoders and heads with `transformers`. Shapes: B batch, S length.
"""

import json
import struct

import keras
import numpy as np
import pytest
from helpers import origins, published
from helpers.origins import alter, altered
from helpers.published import torch, transformers
from helpers.tiers import quick

from keras_transformer.export.__main__ import main as export_main
from keras_transformer.export.command import load_head
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import bert
from keras_transformer.importers.__main__ import main

NAMES = {0: "bad", 1: "so so", 2: "good"}
LEFT_OUT = "which this model leaves out"
CLASSES = "BertForSequenceClassification"


def write(folder, kind="BertModel", **options):
    """Saves a random model of a class of `transformers`, and a vocabulary."""
    config = transformers.BertConfig(**origins.BERT, **options)
    plain = {"add_pooling_layer": False} if kind == "BertModel" else {}
    model = published.drawn(getattr(transformers, kind)(config, **plain))
    model.save_pretrained(folder)
    pieces = [*bert.SPECIAL, "[MASK]", *(f"piece{id}" for id in range(5, 37))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    return model


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    write(folder, CLASSES, id2label=NAMES)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Returns a folder and its model of `transformers`."""
    folder = tmp_path_factory.mktemp("encoder")
    return folder, write(folder)


def rows():
    """Returns ids (B, S) of two texts, padded on the right; both orders of ids are equal."""
    ids = np.random.default_rng(5).integers(5, 37, (5, 11)).astype("int32")
    ids[:, 0], ids[:, 5] = 2, 3
    for row, length in enumerate((11, 9, 7, 10, 8)):
        ids[row, length - 1], ids[row, length:] = 3, 0
    return ids


@pytest.mark.parametrize(
    "kind, load, changes, names, size",
    [
        ("BertForPreTraining", "load_task", {}, "pooler.dense.*cls.seq_relationship", 37),
        ("BertForMultipleChoice", "load_task", {}, "classifier.weight", 16),
        (CLASSES, "load", {}, "classifier.weight", 16),
        ("BertForMaskedLM", "load", {}, "cls.predictions.bias", 16),
        # Earlier classes of tags saved BERT's pooler.
        (
            CLASSES,
            "load_task",
            {"architectures": ["BertForTokenClassification"]},
            "pooler.dense.weight",
            2,
        ),
    ],
)
def test_tensors_that_are_left_out_are_named(kind, load, changes, names, size, tmp_path):
    write(tmp_path, kind)
    alter(tmp_path, {"config.json": changes})
    with pytest.warns(UserWarning, match=f"{names}.*{LEFT_OUT}"):
        model, _ = getattr(bert, load)(tmp_path)
    assert model.output_shape == (None, None, size)


def test_earlier_names_are_read(encoder, tmp_path):
    """Early BERT files have other names of norms, and heads of the pretraining."""
    folder, model = encoder
    earlier = {"cls.predictions.bias": torch.zeros(37)}
    for name, tensor in model.state_dict().items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        earlier["bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    altered(folder, tmp_path, {"model.safetensors": None})
    torch.save(earlier, tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning, match=f"cls.predictions.bias, {LEFT_OUT}"):
        found = bert.load_model(tmp_path)(rows())
    np.testing.assert_array_equal(found, bert.load_model(folder)(rows()))


# Sentence-Transformers


def modules(*names):
    """Returns the content of `modules.json`."""
    places = [
        "" if name in ("Transformer", "Normalize") else f"{number}_{name}"
        for number, name in enumerate(names)
    ]
    start = "sentence_transformers.models."
    types = [{"type": start + n, "path": p} for n, p in zip(names, places, strict=True)]
    return json.dumps(types).encode()


def sentences(pooling, *more, **settings):
    """Returns the files of a pooling and further modules, and of settings of the texts."""
    files = {"modules.json": modules("Transformer", "Pooling", *more)}
    rows = {"max_seq_length": settings.pop("length", None)}
    rows["do_lower_case"] = settings.pop("lower", False)
    files["1_Pooling/config.json"] = pooling
    files["config_sentence_transformers.json"] = settings
    return {**files, "sentence_bert_config.json": rows}


def pooled(model, modes):
    """Returns the vectors (B, D) of `rows`, joined for several modes."""
    ids = torch.from_numpy(rows())
    mask = (ids > 0)[..., None]
    with torch.no_grad():
        hidden = model(input_ids=ids.long(), attention_mask=mask[..., 0].long()).last_hidden_state
    found = {
        "cls": hidden[:, 0],
        "mean": (hidden * mask).sum(dim=1) / mask.sum(dim=1),
        "max": hidden.masked_fill(~mask, -1e9).max(dim=1).values,
    }
    return torch.cat([found[mode] for mode in modes], dim=1)


CLS = {"pooling_mode_cls_token": True}


@pytest.mark.quick(
    "False-pooling4-modes4", "False-pooling0-modes0", "False-pooling1-modes1", "False-None-modes5"
)
@pytest.mark.parametrize(
    "pooling, modes",
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ["mean"]),
        ({**CLS, "include_prompt": True}, ["cls"]),
        ({"pooling_mode_max_tokens": True}, ["max"]),
        ({"pooling_mode": "cls"}, ["cls"]),
        ({"pooling_mode_mean_tokens": True, **CLS}, ["cls", "mean"]),
        (None, ["mean"]),  # a folder without modules
    ],
)
@pytest.mark.parametrize("normal", [True, False])
def test_vectors_are_pooled_as_the_modules_say(pooling, modes, normal, encoder, tmp_path):
    folder, model = encoder
    files = {} if pooling is None else sentences(pooling, *["Normalize"] * normal)
    expected = pooled(model, modes)
    if normal or pooling is None:
        expected = torch.nn.functional.normalize(expected)
    found = bert.load_sentence_encoder(altered(folder, tmp_path, files))(rows())
    assert published.relative(found, expected) <= 1e-5


@pytest.mark.parametrize(
    "activation, function",
    [("torch.nn.modules.activation.Tanh", torch.tanh), ("torch.nn.Identity", lambda x: x)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_module_follows_the_pooling(activation, function, bias, encoder, tmp_path):
    folder, model = encoder
    linear = torch.nn.Linear(16, 7, bias=bias)
    settings = {"in_features": 16, "out_features": 7, "bias": bias}
    settings["activation_function"] = activation
    dense = {"2_Dense/config.json": settings}
    altered(folder, tmp_path, {**sentences(CLS, "Dense", "Normalize"), **dense})
    state = {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}
    torch.save(state, tmp_path / "2_Dense" / "pytorch_model.bin")
    with torch.no_grad():
        expected = torch.nn.functional.normalize(function(linear(pooled(model, ["cls"]))))
    assert published.relative(bert.load_task(tmp_path)[0](rows()), expected) <= 1e-5


PROMPTS = {"query": "piece5 Piece6, ", "passage": ""}
CASED = {"tokenizer_config.json": {"do_lower_case": False}}


@pytest.mark.parametrize(
    "settings, prompt, text, ids",
    [
        ({}, None, "Piece7 piece9", [2, 1, 9]),
        ({"lower": True}, None, "Piece7 piece9", [2, 7, 9]),
        ({"length": 4}, None, "piece7 piece9 piece8", [2, 7, 9]),
        ({"prompts": PROMPTS}, "query", "piece7", [2, 5, 1, 1, 7]),
        ({"prompts": PROMPTS, "lower": True}, "query", "Piece7", [2, 5, 6, 1, 7]),
        ({"prompts": PROMPTS, "default_prompt_name": "query"}, None, "piece7", [2, 5, 1, 1, 7]),
    ],
)
def test_the_tokenizer_changes_texts_as_the_folder_says(
    settings, prompt, text, ids, encoder, tmp_path
):
    altered(encoder[0], tmp_path, {**sentences(CLS, **settings), **CASED})
    assert bert.load_task(tmp_path, prompt=prompt)[1].encode(text) == ids


def test_changes_of_texts_that_are_left_out_are_named(encoder, tmp_path):
    altered(encoder[0], tmp_path, sentences(CLS, prompts=PROMPTS))
    with pytest.warns(UserWarning, match=r"has prompts: \{'query': 'piece5 Piece6, '\}"):
        bert.load_task(tmp_path)
    alter(tmp_path, sentences(CLS, lower=True))
    with pytest.warns(UserWarning, match=r"changes texts .*\{.*'do_lower_case': True.*\}"):
        bert.load_sentence_encoder(tmp_path)


@pytest.mark.parametrize(
    "files, prompt, message",
    [
        (sentences(CLS, prompts=PROMPTS), "passage", r"no prompt 'passage', but \['query'\]"),
        (
            sentences({**CLS, "include_prompt": False}, prompts=PROMPTS),
            "query",
            "leaves out the prompt",
        ),
        ({}, "query", "no modules.json, so prompt='query' has no effect"),
    ],
)
def test_prompts_without_effect_are_refused(files, prompt, message, encoder, tmp_path):
    with pytest.raises(ValueError, match=message):
        bert.load_task(altered(encoder[0], tmp_path, files), prompt=prompt)


@pytest.mark.full
def test_one_command_puts_the_prompt_in_the_file(encoder, tmp_path):
    prompts = {"query": "piece5 piece6 "}
    altered(encoder[0], tmp_path, {**sentences(CLS, length=9, prompts=prompts), **CASED})
    command = ["bert", str(tmp_path), str(tmp_path / "out"), "--prompt", "query"]
    assert main([*command, "--export", "onnx", "--quiet"]) == 0
    (found,) = Predictor(tmp_path / "out").predict(["piece7 " * 30])
    vectors, _ = bert.load_task(tmp_path, prompt="query")
    expected = vectors(np.array([[2, 5, 6, *[7] * 5, 3]], "int32"))[0]
    np.testing.assert_allclose(found.vector, expected, atol=1e-5)


# One command


TEXT, PAIR = "piece7 piece9", ("piece7 piece9", "piece11 piece8")
EXPORTS = {  # class of `transformers`, text, its row
    "classes": (CLASSES, TEXT, {"input_ids": [[2, 7, 9, 3]]}),
    "classes of two texts": (
        CLASSES,
        PAIR,
        {"input_ids": [[2, 7, 9, 3, 11, 8, 3]], "token_type_ids": [[0, 0, 0, 0, 1, 1, 1]]},
    ),
    "tags": ("BertForTokenClassification", TEXT, {"input_ids": [[2, 7, 9, 3]]}),
    "words": ("BertForMaskedLM", "piece7 [MASK]", {"input_ids": [[2, 7, 4, 3]]}),
}


@pytest.mark.full
@pytest.mark.parametrize("case", quick(EXPORTS, "classes of two texts"))
def test_the_command_exports_the_head(case, tmp_path, capsys):
    kind, text, row = EXPORTS[case]
    model = write(tmp_path, kind, id2label=NAMES)
    assert main(["bert", str(tmp_path), str(tmp_path / "out"), "--export", "onnx"]) == 0
    assert "'Good morning. " in capsys.readouterr().err
    (found,) = Predictor(tmp_path / "out").predict([text])
    with torch.no_grad():
        logits = model(**{name: torch.tensor(ids) for name, ids in row.items()}).logits[0]
    if case == "tags":
        assert list(found.tags) == [NAMES[int(i)] for i in logits[1:-1].argmax(dim=1)]
    elif case == "words":
        np.testing.assert_allclose(*found.arrays.values(), logits, atol=1e-4)
    else:
        probabilities = dict(zip(found.labels, found.probabilities, strict=True))
        expected = dict(zip(NAMES.values(), logits.softmax(dim=0).tolist(), strict=True))
        assert probabilities == pytest.approx(expected, rel=1e-4)


@pytest.mark.full
def test_the_command_writes_model_and_head(classifier, tmp_path):
    out = tmp_path / "out"
    for _ in range(2):  # the second replaces the first
        assert main(["bert", str(classifier), str(out)]) == 0
        names = ["head.json", "model.keras", "tokenizer.model"]
        assert sorted(path.name for path in out.iterdir()) == names
    inputs = {"source_ids": rows(), "segment_ids": np.where(rows() > 0, 1, 0)}
    saved, expected = keras.saving.load_model(out / "model.keras"), bert.load_task(classifier)[0]
    np.testing.assert_array_equal(saved(inputs), expected(inputs))
    assert load_head(out / "head.json") == bert.read_head(classifier)
    command = [str(out / "model.keras"), str(tmp_path / "onnx"), "--quiet"]
    command += ["--tokenizer", str(out / "tokenizer.model"), "--head", str(out / "head.json")]
    assert export_main(command) == 0
    assert {*Predictor(tmp_path / "onnx").predict([TEXT])[0].labels} == {*NAMES.values()}


# Bad input


@pytest.mark.parametrize("content", ["[]", "{}", '{"class_name": "Tagging", "config": {}}', "3 4"])
def test_a_file_without_a_head_is_refused(content, tmp_path):
    (tmp_path / "head.json").write_text(content, "utf-8")
    with pytest.raises(ValueError, match=r"head\.json describes no head: .* Pass a head\.json"):
        load_head(tmp_path / "head.json")


INDEX = "model.safetensors.index.json"
DEEP = b"[" * 100_000 + b"]" * 100_000


def of_number_type(dtype):
    """Returns a `safetensors` file with a number type that NumPy lacks."""
    entry = {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, 6]}
    header = json.dumps({"table": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(6)


REFUSED = {
    "config.json": [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label in config.json must be an object"),
        ({"id2label": ["a", "b"]}, "id2label in config.json must be an object"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.weight has shape \(3, 16\)"),
        ({"architectures": ["BertForQuestionAnswering"]}, "qa_outputs.weight is missing"),
        ({"architectures": "BertModel"}, "architectures .* must be a list"),
        ({"hidden_act": "swiglu"}, "hidden_act is 'swiglu'"),
        ({"vocab_size": "10"}, "says vocab_size='10', but must say an integer of at least 0"),
        ({"vocab_size": True}, "says vocab_size=True, but must say an integer"),
        ({"hidden_size": -16}, "says hidden_size=-16, but must say an integer"),
        ({"num_attention_heads": 2.5}, "num_attention_heads=2.5, but must say an integer"),
        ({"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\], but must say a string"),
        ({"hidden_dropout_prob": {"a": 1}}, "hidden_dropout_prob={'a': 1}, but must say a number"),
        ({"model_type": ["bert"] * 99}, r"architecture \['bert'.{0,100}, but this importer"),
        (DEEP, "is no JSON file"),
    ],
    "model.safetensors": [
        ({"adapter.weight": np.zeros(3)}, "adapter.weight is left over"),
        (of_number_type("F8_E4M3"), "holds a number type"),
    ],
    "vocab.txt": [
        (b"[PAD]\n[UNK]\n[CLS]\n", r"lacks \['\[SEP\]'\]"),
        (b"\xff\xfe", "vocab.txt is no UTF-8 text"),
    ],
    "modules.json": [
        (modules("Transformer", "Pooling", "LSTM"), "has the modules .*'LSTM'"),
        (modules("Transformer", "Normalize"), "has the modules"),
        (modules("WordEmbeddings", "Pooling"), "has the modules .*'WordEmbeddings'"),
    ],
}
REFUSED_FILES = [
    *(({file: change}, message) for file, rows in REFUSED.items() for change, message in rows),
    *(
        (sentences(pooling), message)
        for pooling, message in (
            ({"pooling_mode_lasttoken": True}, "pooling_mode_lasttok"),
            ({"pooling_mode": "weightedmean"}, "weightedmean"),
            ({}, r"asks for \[\], but only cls, max, mean"),
        )
    ),
    *(
        (
            {"model.safetensors": None, INDEX: content},
            r"model\.safetensors\.index\.json (is|has|must)",
        )
        for content in (
            b"[]",
            b"{}",
            b"3",
            b'{"weight_map": ["a"]}',
            b'{"weight_map": {"a": 5}}',
            DEEP,
        )
    ),
    *(
        (
            {"vocab.txt": None, "tokenizer.json": content},
            r"tokenizer\.json (must|has|is no JSON file)",
        )
        for content in (
            DEEP,
            b"{}",
            b'{"model": []}',
            b'{"model": {"vocab": [["a"]]}}',
            b'{"model": {"vocab": {"a": "5"}}}',
            b'{"model": {"vocab": {"a": 5}}, "added_tokens": ["b"]}',
            b'{"model": {"vocab": {"a": 5}}, "added_tokens": [{"content": "b"}]}',
        )
    ),
]


@pytest.mark.parametrize("files, message", REFUSED_FILES, ids=[text for _, text in REFUSED_FILES])
@pytest.mark.filterwarnings("ignore:.*which this model leaves out")
def test_files_that_do_not_fit_are_refused(files, message, classifier, tmp_path):
    with pytest.raises(ValueError, match=message):
        bert.load_task(altered(classifier, tmp_path, files))
