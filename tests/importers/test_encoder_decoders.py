"""BART, mBART and PEGASUS as users have them: tokenizers, one file, folders that are refused.

`test_origins` compares their outputs and searches with `transformers`, and trains them.
"""

import functools
import json

import numpy as np
import pytest
import sentencepiece
import tokenizers
from helpers import published, texts
from helpers.bergamot_model import vocabulary
from helpers.origins import Origin, altered, case, summarizer
from helpers.published import torch, transformers
from helpers.tiers import quick
from tokenizers import decoders, models, pre_tokenizers, trainers

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bart, mbart, pegasus, pieces
from keras_transformer.importers.__main__ import main
from keras_transformer.padding import pad_rows

LANGUAGES = {"source": "en_XX", "target": "de_DE"}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


# Ids of SentencePiece models.
USUAL = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
T5S = {"pad_id": 0, "eos_id": 1, "unk_id": 2}


def trained(**options):
    """Trains a SentencePiece model."""
    return vocabulary(texts.CORPUS * 20, 90, **options)


def byte_pairs(folder):
    """Writes a tokenizer of the form of BART's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL, "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts.CORPUS * 20, trainer)
    made.save(str(folder / "tokenizer.json"))
    return transformers.BartTokenizer.from_pretrained(folder)


def one_spm(name, file, **options):
    """Returns a function that writes a SentencePiece model and makes a tokenizer."""

    def write(folder):
        (folder / file).write_bytes(trained(**options))
        return getattr(transformers, name).from_pretrained(folder)

    return write


def syllables(folder):
    """Writes BARTpho's files: a model, and the pieces of it that its vocabulary has."""
    model = trained(**USUAL)
    (folder / mbart.MODEL).write_bytes(model)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    known = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()) if i % 13]
    (folder / "dict.txt").write_text("\n".join(f"{p} 1" for p in known) + "\n", "utf-8")
    return transformers.BartphoTokenizer(
        str(folder / mbart.MODEL), str(folder / "dict.txt"), mask_token="<mask>"
    )


# Importer, classes, tokenizer, the ids that differ, options.
FAMILIES = {
    "bart": (bart, "Bart", byte_pairs, {}, {}),
    "mbart": (mbart, "MBart", one_spm("MBart50Tokenizer", mbart.MODEL, **USUAL), {}, LANGUAGES),
    "bartpho": (mbart, "MBart", syllables, {}, {}),
    "pegasus": (
        pegasus,
        "Pegasus",
        one_spm("PegasusTokenizer", "spiece.model", **T5S),
        {
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
            "unk_token_id": 105,
            "bos_token_id": None,
        },
        {},
    ),
}


def writing(name, **sizes):
    """Makes a model that ends few texts at once, and writes no tokens without text."""
    model = summarizer(name, **sizes)
    model.final_logits_bias.zero_()  # else languages, which have no text, are written first
    model.final_logits_bias[0, model.config.eos_token_id] -= 4.0
    if name == "Pegasus":
        model.final_logits_bias[0, 2:105] -= 20.0
    return model


class Family:
    """A random model of `transformers` with a tokenizer, its folder and our model."""

    def __init__(self, name, folder):
        self.importer, kind, write, ids, self.options = FAMILIES[name]
        self.folder, self.theirs = folder, write(folder)
        sizes = {"max_position_embeddings": 99, **ids, "vocab_size": len(self.theirs)}
        self.origin = Origin(case(writing, self.importer, name=kind, **sizes), folder)
        self.ours, tokenizer = self.importer.load(folder, **self.options)
        both = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, tokenizer)
        (self.source, self.target), (self.order,) = both, self.origin.orders


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    return functools.cache(lambda name: Family(name, tmp_path_factory.mktemp(name)))


@pytest.mark.full("pegasus", "bartpho", "mbart")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokenizer_equals_theirs_on_odd_lines(families, name):
    family, lines = families(name), texts.odd_lines()
    compared = 0
    for line, ids in zip(lines, family.source.encode(lines), strict=True):
        theirs = family.theirs(line)["input_ids"]
        if name == "bartpho" and 3 in theirs:  # ours are shorter known pieces
            continue
        compared += 1
        assert family.order[[*ids, 3]].tolist() == theirs, line
        assert 3 in ids or family.source.decode(ids) == family.theirs.decode(
            theirs, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    assert compared > (100 if name == "bartpho" else 999)


def test_the_pieces_of_trocr_are_those_of_xlm_roberta(tmp_path):
    model = trained(**USUAL)
    (tmp_path / mbart.MODEL).write_bytes(model)
    theirs = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    names = [*mbart.SPECIAL, *[*pieces.piece_ids(model)][3:], "<mask>"]
    ours = tokenizers.Tokenizer.from_str(json.dumps(pieces.unigram(model, names, strip=True)))
    for line in texts.odd_lines():
        assert ours.encode(line).ids == theirs(line, add_special_tokens=False)["input_ids"], line


@pytest.mark.parametrize("name", FAMILIES)
def test_targets_are_those_of_their_training(families, name):
    family = families(name)
    batches = kt.translation_batches(
        ["a man"], ["ein mann"], family.source, target_tokenizer=family.target
    )
    ((inputs, labels),) = batches
    if family.options:
        family.theirs.src_lang, family.theirs.tgt_lang = LANGUAGES.values()
    theirs = family.theirs(["a man"], text_target=["ein mann"], return_tensors="np")
    assert family.order[np.asarray(labels)[0]].tolist() == theirs["labels"][0].tolist()
    source = np.asarray(inputs["source_ids"])
    assert family.order[source[0]].tolist() == theirs["input_ids"][0].tolist()


@pytest.mark.full
@pytest.mark.parametrize("name", quick(FAMILIES, "mbart"))
@pytest.mark.filterwarnings("ignore:The model writes nothing")
def test_one_command_writes_one_file(families, name, tmp_path):
    family = families(name)
    options = [f"--{side}={language}" for side, language in family.options.items()]
    command = [family.importer.FAMILY.name, str(family.folder), str(tmp_path / "out"), *options]
    command += ["--export", "onnx", "--beam-width", "3", "--quiet"]
    assert main(command) == 0
    translator = Translator(tmp_path / "out")
    found = translator.translate(texts.LINES, max_length=12)
    first = [family.theirs.convert_tokens_to_ids(LANGUAGES["target"])] if family.options else []
    given = {"forced_bos_token_id": first[0]} if first else {}
    order, expected = family.order, []
    for line in texts.LINES:
        ids = torch.from_numpy(family.order[[*family.source.encode(line), 3]])[None]
        never = [[int(id)] for id in {*order[[0, 1, 2]]} - {order[3]}]
        with torch.no_grad():
            ids = family.origin.model.generate(
                ids,
                num_beams=3,
                max_new_tokens=12 + len(first),
                length_penalty=0.0,
                early_stopping=False,
                bad_words_ids=never,
                **given,
            )
        (row,) = published.tokens(order, ids[:, 1 + len(first) :], end=3)
        expected.append(family.target.decode(row))
    assert found == expected and len({*found}) > 1


@pytest.mark.full
def test_the_steps_of_a_search_start_with_the_language(families, tmp_path):
    family, search = families("mbart"), kt.BeamSearch(3)
    export.export_onnx(
        family.ours,
        tmp_path / "out",
        family.source,
        search,
        target_tokenizer=family.target,
        layout="steps",
        verbose=False,
    )
    rows = [[*family.source.encode(line), 3] for line in texts.LINES]
    found = Translator(tmp_path / "out").translate(texts.LINES, max_length=7)
    ids = search(family.ours, pad_rows(rows), 7).ids.numpy()[:, 0]
    assert family.target.decode(ids) == found
    again = kt.Transformer.from_config(family.ours.get_config())
    language = family.theirs.convert_tokens_to_ids("de_DE")
    assert again.target_start[0] == 2 and family.order[again.target_start[1]] == language


# Bad input


CONFIG = "config.json"


@pytest.mark.parametrize(
    "name, file, change, options, message",
    [
        ("bart", CONFIG, {"unk_token_id": 7}, {}, "numbers '<unk>' as 3, but config.json"),
        ("pegasus", CONFIG, {"pad_token_id": 2}, {}, "numbers '<pad>' as 0, but config"),
        ("mbart", CONFIG, {}, {}, "source=None is no language of .* en_XX"),
        ("mbart", CONFIG, {}, {**LANGUAGES, "target": "de"}, "target='de' is no language"),
        (
            "mbart",
            "tokenizer_config.json",
            {"tokenizer_class": "MBartTokenizer"},
            LANGUAGES,
            "whose sources end with </s> and their language",
        ),
        (
            "bart",
            "generation_config.json",
            {"forced_bos_token_id": 999},
            {},
            "forced_bos_token_id is 999, but the vocabulary has",
        ),
        ("bart", CONFIG, {"model_type": "mbart"}, {}, "holds a model of mbart"),
        ("bart", CONFIG, {"normalize_before": True}, {}, "normalize_before=True"),
        (
            "pegasus",
            "spiece.model",
            lambda _: trained(model_type="bpe", **T5S),
            {},
            "must be of the kind 'unigram'",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    families, name, file, change, options, message, tmp_path
):
    family = families(name)
    with pytest.raises(ValueError, match=message):
        family.importer.load(altered(family.folder, tmp_path, {file: change}), **options)


@pytest.mark.parametrize("start", [(5,), ()])
def test_targets_start_with_the_begin_token(start):
    with pytest.raises(ValueError, match="target_start must start with the begin id 2"):
        kt.Transformer(23, 1, 8, 2, 11, target_start=start)
