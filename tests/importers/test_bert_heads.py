"""Heads and sentence vectors of BERT folders: parity with `transformers`, and what is named.

Shapes: B batch, S length, D d_model, C classes.
"""

import json
import warnings

import keras
import numpy as np
import pytest
from helpers import origins, published
from helpers.published import torch, transformers
from helpers.tiers import quick

from keras_transformer.export import (
    Classification,
    FeatureExtraction,
    Heads,
    QuestionAnswering,
    TokenClassification,
)
from keras_transformer.export.__main__ import main as export_main
from keras_transformer.export.command import load_head
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import bert
from keras_transformer.importers.__main__ import main

NAMES = {0: "bad", 1: "so so", 2: "good"}
MULTI = {"id2label": NAMES, "problem_type": "multi_label_classification"}
LEFT_OUT = "which this model leaves out"


def write(folder, kind="BertModel", half=False, keep=lambda name: True, **options):
    """Saves a random model of a class of `transformers`, and a vocabulary."""
    config = transformers.BertConfig(**origins.BERT, **options)
    model = published.drawn(getattr(transformers, kind)(config))
    if half:
        model = model.half()
    state = {name: tensor for name, tensor in model.state_dict().items() if keep(name)}
    model.save_pretrained(folder, state_dict=state)
    pieces = [*bert.SPECIAL, "[MASK]", *(f"piece{id}" for id in range(5, 37))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    return model.float()


def change(path, **changes):
    """Changes keys of a JSON object; `None` removes one."""
    read = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in read.items() if v is not None}), "utf-8")


def rows(seed=5):
    """Returns ids (B, S) and segments of two texts, padded on the right; the orders are equal."""
    ids = np.random.default_rng(seed).integers(5, 37, (5, 11)).astype("int32")
    ids[:, 0], ids[:, 5] = 2, 3
    for row, length in enumerate((11, 9, 7, 10, 8)):
        ids[row, length - 1], ids[row, length:] = 3, 0
    return ids, np.where(ids > 0, 1 + (np.arange(11) > 5), 0).astype("int32")


def theirs(model, ids, segments=None):
    types = None if segments is None else torch.from_numpy(np.maximum(segments - 1, 0)).long()
    with torch.no_grad():
        return model(
            input_ids=torch.from_numpy(ids).long(),
            attention_mask=torch.from_numpy((ids > 0).astype("int64")),
            token_type_ids=types,
        )


def close(found, expected, ids=None):
    """Compares outputs with PyTorch's: of rows, or of all tokens but padding where `ids` are."""
    found, expected = np.asarray(found), expected.numpy()
    if ids is not None and found.shape[1] == ids.shape[1]:
        found, expected = found[ids > 0], expected[ids > 0]
    assert published.relative(found, expected) <= 1e-5


TAGS = {0: "O", 1: "B-X", 2: "I-X"}
ONE_OF_MANY = {name: Classification([f"not {name}", name]) for name in NAMES.values()}
CLASSES, WORDS = "BertForSequenceClassification", "BertForMaskedLM"


@pytest.mark.parametrize(
    "kind, options, head",
    [
        (CLASSES, {"id2label": NAMES}, Classification(NAMES.values())),
        (CLASSES, {}, Classification(["LABEL_0", "LABEL_1"])),
        (CLASSES, {"num_labels": 1}, None),
        (CLASSES, {"id2label": NAMES, "problem_type": "regression"}, None),
        (
            CLASSES,
            {"id2label": NAMES, "hidden_act": "relu", "half": True},
            Classification(NAMES.values()),
        ),
        (CLASSES, MULTI, Heads(**ONE_OF_MANY)),
        ("BertForTokenClassification", {"id2label": TAGS}, TokenClassification(TAGS.values())),
        ("BertForQuestionAnswering", {}, QuestionAnswering()),
        (WORDS, {}, None),
        (WORDS, {"tie_word_embeddings": False}, None),
    ],
)
def test_outputs_of_heads_equal_transformers(kind, options, head, tmp_path):
    model, (ids, segments) = write(tmp_path, kind, **options), rows()
    for given in (None, False):
        ours, tokenizer = bert.load_task(tmp_path, segments=given)
        two = given is None and kind in (CLASSES, "BertForQuestionAnswering")
        found = ours({"source_ids": ids, "segment_ids": segments} if two else ids)
        expected = theirs(model, ids, segments if two else None).to_tuple()
        if "problem_type" in options and isinstance(found, dict):
            assert list(found) == list(NAMES.values())
            found = np.concatenate(list(found.values()), axis=1)
        found = [*found.values()] if isinstance(found, dict) else [found]
        for one, other in zip(found, expected, strict=True):
            close(one, other, ids)
    assert bert.read_head(tmp_path) == head and tokenizer.vocab_size == 37


def test_the_pretrained_heads_are_words_and_a_named_rest(tmp_path):
    model = write(tmp_path, "BertForPreTraining")
    with pytest.warns(UserWarning, match=rf"pooler.dense.*cls.seq_relationship.*{LEFT_OUT}"):
        found, _ = bert.load_task(tmp_path)
    close(found(rows()[0]), theirs(model, rows()[0]).prediction_logits, rows()[0])


@pytest.mark.parametrize(
    "kind, name",
    [
        ("BertModel", "pooler.dense.weight"),
        ("BertForSequenceClassification", "classifier.weight"),
        ("BertForQuestionAnswering", "qa_outputs.bias"),
        ("BertForMaskedLM", "cls.predictions.bias"),
        ("BertForNextSentencePrediction", "cls.seq_relationship.weight"),
    ],
)
def test_the_encoder_alone_warns_of_the_head(kind, name, tmp_path):
    model = write(tmp_path, kind)
    with pytest.warns(UserWarning, match=f"{name}.*{LEFT_OUT}"):
        encoder, _ = bert.load(tmp_path)
    ids, _ = rows()
    inner = getattr(model, "bert", model)
    close(encoder(ids), theirs(inner, ids).last_hidden_state, ids)


def test_a_class_without_a_table_gives_the_encoder_and_names_the_head(tmp_path):
    write(tmp_path, "BertForMultipleChoice")
    with pytest.warns(UserWarning, match=f"classifier.weight.*{LEFT_OUT}"):
        assert bert.load_task(tmp_path)[0].output_shape == (None, None, 16)
    assert bert.read_head(tmp_path) is None


def test_a_pooler_that_the_tags_do_not_use_is_named(tmp_path):
    """Earlier classes of tags saved BERT's pooler."""
    write(tmp_path, "BertForSequenceClassification")
    change(tmp_path / "config.json", architectures=["BertForTokenClassification"])
    with pytest.warns(UserWarning, match=f"pooler.dense.weight.*{LEFT_OUT}"):
        bert.load_task(tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label in config.json must be an object"),
        ({"id2label": ["a", "b"]}, "id2label in config.json must be an object"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, r"classifier.weight has shape \(2, 16\)"),
        ({"architectures": ["BertForQuestionAnswering"]}, "qa_outputs.weight is missing"),
        ({"architectures": "BertModel"}, "architectures .* must be a list"),
        ({"hidden_act": "swiglu"}, "hidden_act is 'swiglu'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(changes, message, tmp_path):
    write(tmp_path, "BertForSequenceClassification")
    change(tmp_path / "config.json", **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the classifier, where the configuration lacks it
        with pytest.raises(ValueError, match=message):
            bert.load_task(tmp_path)


def test_a_tensor_of_no_known_head_is_refused(tmp_path):
    model = write(tmp_path, "BertForSequenceClassification")
    state = {**model.state_dict(), "adapter.weight": torch.zeros(3)}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match="adapter.weight is left over"):
        bert.load_task(tmp_path)


class TestSentences:
    """Folders of Sentence-Transformers."""

    def write(self, folder, modules, pooling=None, **options):
        model = write(folder, keep=lambda name: not name.startswith("pooler"), **options)
        places = [
            "" if name in ("Transformer", "Normalize") else f"{number}_{name}"
            for number, name in enumerate(modules)
        ]
        for name, place in zip(modules, places, strict=True):
            (folder / place).mkdir(exist_ok=True)
            if name == "Pooling":
                (folder / place / "config.json").write_text(json.dumps(pooling), "utf-8")
        types = [
            {"type": f"sentence_transformers.models.{name}", "path": place}
            for name, place in zip(modules, places, strict=True)
        ]
        (folder / "modules.json").write_text(json.dumps(types), "utf-8")
        return model

    def expected(self, model, ids, mode):
        hidden, counts = theirs(model, ids).last_hidden_state, torch.from_numpy(ids > 0)[..., None]
        return {
            "cls": hidden[:, 0],
            "mean": (hidden * counts).sum(dim=1) / counts.sum(dim=1),
            "max": hidden.masked_fill(~counts, -1e9).max(dim=1).values,
        }[mode]

    @pytest.mark.parametrize(
        "pooling, modes",
        [
            ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ["mean"]),
            ({"pooling_mode_cls_token": True, "include_prompt": True}, ["cls"]),
            ({"pooling_mode_max_tokens": True}, ["max"]),
            ({"pooling_mode": "cls"}, ["cls"]),
            ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ],
    )
    @pytest.mark.parametrize("normal", [True, False])
    def test_vectors_are_pooled_as_the_modules_say(self, pooling, modes, normal, tmp_path):
        modules = ["Transformer", "Pooling", *["Normalize"] * normal]
        model, (ids, _) = self.write(tmp_path, modules, pooling), rows()
        expected = torch.cat([self.expected(model, ids, mode) for mode in modes], dim=1)
        if normal:
            expected = torch.nn.functional.normalize(expected)
        close(bert.load_task(tmp_path)[0](ids), expected)
        assert bert.read_head(tmp_path) == FeatureExtraction()

    @pytest.mark.parametrize(
        "activation, function",
        [("torch.nn.modules.activation.Tanh", torch.tanh), ("torch.nn.Identity", lambda x: x)],
    )
    @pytest.mark.parametrize("bias", [True, False])
    def test_a_dense_module_follows_the_pooling(self, activation, function, bias, tmp_path):
        modules = ["Transformer", "Pooling", "Dense", "Normalize"]
        model = self.write(tmp_path, modules, {"pooling_mode_cls_token": True})
        linear, folder = torch.nn.Linear(16, 7, bias=bias), tmp_path / "2_Dense"
        settings = {"in_features": 16, "out_features": 7, "bias": bias}
        settings["activation_function"] = activation
        (folder / "config.json").write_text(json.dumps(settings), "utf-8")
        state = {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}
        torch.save(state, folder / "pytorch_model.bin")
        ids, _ = rows()
        with torch.no_grad():
            expected = function(linear(self.expected(model, ids, "cls")))
        close(bert.load_task(tmp_path)[0](ids), torch.nn.functional.normalize(expected))

    @pytest.mark.parametrize(
        "modules, pooling, message",
        [
            (["Transformer", "Pooling"], {"pooling_mode_lasttoken": True}, "pooling_mode_lasttok"),
            (["Transformer", "Pooling"], {"pooling_mode": "weightedmean"}, "weightedmean"),
            (["Transformer", "Pooling"], {}, r"asks for \[\], but only cls, max, mean"),
            (["Transformer", "Pooling", "LSTM"], {}, r"has the modules .*'LSTM'"),
            (["Transformer", "Normalize"], {}, r"has the modules"),
            (["WordEmbeddings", "Pooling"], {}, r"has the modules .*'WordEmbeddings'"),
        ],
    )
    def test_other_modules_are_refused(self, modules, pooling, message, tmp_path):
        self.write(tmp_path, modules, pooling)
        with pytest.raises(ValueError, match=message):
            bert.load_task(tmp_path)

    def texts(self, folder, pooling=None, length=None, lower=False, **settings):
        """Writes a folder that changes texts."""
        pooling = {"pooling_mode_cls_token": True, **(pooling or {})}
        self.write(folder, ["Transformer", "Pooling"], pooling)
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), "utf-8")
        rows = {"max_seq_length": length, "do_lower_case": lower}
        (folder / "sentence_bert_config.json").write_text(json.dumps(rows), "utf-8")

    PROMPTS = {"query": "piece5 Piece6, ", "passage": ""}

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
        self, settings, prompt, text, ids, tmp_path
    ):
        self.texts(tmp_path, **settings)
        cased = {"do_lower_case": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(cased), "utf-8")
        assert bert.load_task(tmp_path, prompt=prompt)[1].encode(text) == ids

    def test_changes_that_are_left_out_are_named(self, tmp_path):
        self.texts(tmp_path, prompts=self.PROMPTS)
        with pytest.warns(UserWarning, match=r"has prompts: \{'query': 'piece5 Piece6, '\}"):
            bert.load_task(tmp_path)
        with pytest.raises(ValueError, match=r"no prompt 'passage', but \['query'\]"):
            bert.load_task(tmp_path, prompt="passage")
        self.texts(tmp_path, lower=True)
        with pytest.warns(UserWarning, match=r"changes texts .*\{'do_lower_case': True\}"):
            bert.load_sentence_encoder(tmp_path)
        self.texts(tmp_path, {"include_prompt": False}, prompts=self.PROMPTS)
        with pytest.raises(ValueError, match="leaves out the prompt"):
            bert.load_task(tmp_path, prompt="query")

    def test_one_command_puts_the_prompt_in_the_file(self, tmp_path):
        self.texts(tmp_path, length=9, prompts={"query": "piece5 piece6 "})
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', "utf-8")
        command = ["bert", str(tmp_path), str(tmp_path / "out"), "--prompt", "query"]
        assert main([*command, "--export", "onnx", "--quiet"]) == 0
        (found,) = Predictor(tmp_path / "out").predict(["piece7 " * 30])
        vectors, _ = bert.load_task(tmp_path, prompt="query")
        expected = vectors(np.array([[2, 5, 6, *[7] * 5, 3]], "int32"))[0]
        np.testing.assert_allclose(found.vector, expected, atol=1e-5)

    def test_a_prompt_needs_modules(self, tmp_path, capsys):
        write(tmp_path)
        with pytest.raises(ValueError, match="no modules.json, so prompt='query' has no effect"):
            bert.load_task(tmp_path, prompt="query")
        with pytest.raises(SystemExit):
            main(["gpt2", "in", "out", "--prompt", "query"])
        assert "--prompt: gpt2 has no such option" in capsys.readouterr().err


TEXT, PAIR = "piece7 piece9", ("piece7 piece9", "piece11 piece8")
EXPORTS = {
    "classes of a text": ("BertForSequenceClassification", {"id2label": NAMES}, TEXT),
    "classes of two texts": ("BertForSequenceClassification", {"id2label": NAMES}, PAIR),
    "several labels": ("BertForSequenceClassification", MULTI, TEXT),
    "a score": ("BertForSequenceClassification", {"num_labels": 1}, PAIR),
    "tags": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-X"}}, TEXT),
    "an answer": ("BertForQuestionAnswering", {}, PAIR),
    "masked words": ("BertForMaskedLM", {}, "piece7 [MASK]"),
}


def logits(model, texts):
    """Returns the logits (S, C) or (C,) of `transformers` for a text or two."""
    texts = [texts] if isinstance(texts, str) else texts
    ids, types = [2], [0]
    for number, text in enumerate(texts):
        pieces = [4 if piece == "[MASK]" else int(piece[5:]) for piece in text.split()]
        ids += [*pieces, 3]
        types += [number] * (len(pieces) + 1)
    with torch.no_grad():
        found = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
    return [output[0].numpy() for output in found.values()]


def probabilities(numbers):
    return np.exp(numbers) / np.exp(numbers).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", quick(EXPORTS, "classes of two texts"))
def test_the_command_exports_the_head(case, tmp_path, capsys):
    kind, options, text = EXPORTS[case]
    model = write(tmp_path, kind, **options)
    assert main(["bert", str(tmp_path), str(tmp_path / "out"), "--export", "onnx"]) == 0
    assert "'Good morning. " in capsys.readouterr().err
    (found,) = Predictor(tmp_path / "out").predict([text])
    assert found.error is None
    first, *others = logits(model, text)
    if case == "an answer":
        passage = slice(4, 6)
        scores = np.add.outer(*(np.log(probabilities(x))[passage] for x in (first, others[0])))
        assert found.score == pytest.approx(
            np.exp(np.triu(scores, 0)[np.triu_indices(2)].max()), rel=1e-5
        )
    elif case == "tags":
        names = ["O", "B-X"]
        assert list(found.tags) == [names[i] for i in first[1:3].argmax(axis=1)]
    elif case == "several labels":
        expected = 1 / (1 + np.exp(-first))
        for name, probability in zip(NAMES.values(), expected, strict=True):
            result = found.results[name]
            assert (result.label == name) == (probability > 0.5)
            assert result.probability == pytest.approx(max(probability, 1 - probability), rel=1e-4)
    elif case.startswith("classes"):
        expected = dict(zip(NAMES.values(), probabilities(first), strict=True))
        assert dict(zip(found.labels, found.probabilities, strict=True)) == pytest.approx(
            expected, rel=1e-4
        )
    else:
        (array,) = found.arrays.values()
        np.testing.assert_allclose(array, first, atol=1e-4)


def test_the_command_writes_model_and_head(tmp_path):
    write(tmp_path, "BertForSequenceClassification", id2label=NAMES)
    out = tmp_path / "out"
    for _ in range(2):  # the second replaces the first
        assert main(["bert", str(tmp_path), str(out)]) == 0
        names = ["head.json", "model.keras", "tokenizer.model"]
        assert sorted(path.name for path in out.iterdir()) == names
    ids, segments = rows()
    inputs = {"source_ids": ids, "segment_ids": segments}
    saved, expected = keras.saving.load_model(out / "model.keras"), bert.load_task(tmp_path)[0]
    np.testing.assert_array_equal(saved(inputs), expected(inputs))
    assert load_head(out / "head.json") == bert.read_head(tmp_path)


@pytest.mark.full
def test_the_export_command_reads_the_written_head(tmp_path):
    write(tmp_path, "BertForSequenceClassification", id2label=NAMES)
    out = tmp_path / "out"
    assert main(["bert", str(tmp_path), str(out)]) == 0
    command = [str(out / "model.keras"), str(tmp_path / "onnx"), "--quiet"]
    command += ["--tokenizer", str(out / "tokenizer.model"), "--head", str(out / "head.json")]
    assert export_main(command) == 0
    assert {*Predictor(tmp_path / "onnx").predict([TEXT])[0].labels} == {*NAMES.values()}


@pytest.mark.parametrize("content", ["[]", "{}", '{"class_name": "Tagging", "config": {}}', "3 4"])
def test_a_file_without_a_head_is_refused(content, tmp_path):
    (tmp_path / "head.json").write_text(content, "utf-8")
    with pytest.raises(ValueError, match=r"head\.json describes no head: .* Pass a head\.json"):
        load_head(tmp_path / "head.json")


def test_the_command_names_what_it_leaves_out(tmp_path):
    write(tmp_path, "BertForNextSentencePrediction")
    with pytest.warns(UserWarning, match=f"cls.seq_relationship.bias.*{LEFT_OUT}"):
        assert main(["bert", str(tmp_path), str(tmp_path / "out")]) == 0
