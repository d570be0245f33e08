"""Random models of `transformers` for `families.py`: families, small and with their form.

Sizes are those of a small model, and weights are larger than a new model's, so that answers differ.
"""

import json
import shutil
from typing import NamedTuple

VOCABULARY = 2003
BLOCKS = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
BLOCKS |= {"intermediate_size": 1024, "max_position_embeddings": 67, "num_labels": 3}
DISTILLED = {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024}
SIDES = {"d_model": 256, "forced_eos_token_id": None, "scale_embedding": True}
for side in ("encoder", "decoder"):
    SIDES |= {f"{side}_layers": 3, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 1024}
PICTURE = {**BLOCKS, "image_size": 64, "patch_size": 8}
READER = {"d_model": 192, "cross_attention_hidden_size": 256, "decoder_layers": 3}
READER |= {"decoder_attention_heads": 4, "decoder_ffn_dim": 768, "tie_word_embeddings": False}
NAMES = ("<s>", "<pad>", "</s>", "<unk>")
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PEGASUS = {"pad_token_id": 0, "eos_token_id": 1, "unk_token_id": 2, "decoder_start_token_id": 0}
T5 = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MODERN = {"intermediate_size": 512, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}
MODERN |= {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
# Tokens of SMILES after Schwaller et al. 2021: atoms, bonds, brackets, numbers of rings.
SMILES = r"\[[^\]]+\]|Br|Cl|%\d\d|."
LANGUAGES = {"source": "en_XX", "target": "de_DE"}
ESM = {"mask_token_id": 4, "pad_token_id": 1, "token_dropout": True}
ESM |= {"position_embedding_type": "rotary"}
BYTES = {"vocab_size": 384, "num_decoder_layers": 1, "tokenizer_class": "ByT5Tokenizer"}
HEARD = {"hidden_size": 256, "intermediate_size": 1024, "pad_token_id": 2}
for side in ("encoder", "decoder"):
    HEARD |= {f"{side}_num_hidden_layers": 3, f"{side}_num_attention_heads": 8}


class Case(NamedTuple):
    """A family: the importer, the class of `transformers`, its sizes and its special pieces.

    `options` are of the importer, `files` the names and texts of further files.
    """

    origin: str
    kind: str
    sizes: dict
    pieces: tuple = NAMES
    options: dict = {}
    files: dict = {}

    @property
    def hears(self):
        return self.origin == "moonshine"

    @property
    def sees(self):
        return self.origin in ("vit", "deit", "trocr")

    @property
    def writes(self):
        return self.origin in ("bart", "mbart", "moonshine", "pegasus", "t5", "mt5", "trocr")


GENERATES = "ForConditionalGeneration"
CASES = {
    "BERT, classes": Case("bert", "BertForSequenceClassification", BLOCKS, BERT),
    "DistilBERT, words": Case("distilbert", "DistilBertForMaskedLM", DISTILLED, BERT),
    "ALBERT, tags": Case(
        "albert",
        "AlbertForTokenClassification",
        {**BLOCKS, "embedding_size": 64},
        ("<pad>", "<unk>", "[CLS]", "[SEP]"),
    ),
    "RoBERTa, answers": Case("roberta", "RobertaForQuestionAnswering", BLOCKS | {"num_labels": 2}),
    "XLM-R, classes": Case("xlm-roberta", "XLMRobertaForSequenceClassification", BLOCKS),
    "ModernBERT, tags": Case(
        "modernbert", "ModernBertForTokenClassification", BLOCKS | MODERN, BERT
    ),
    "BART": Case("bart", f"Bart{GENERATES}", {**SIDES, "scale_embedding": False}),
    "mBART-50": Case(
        "mbart",
        f"MBart{GENERATES}",
        {**SIDES, "decoder_start_token_id": 2},
        (*NAMES, "en_XX", "de_DE"),
        LANGUAGES,
    ),
    "BARTpho": Case(
        "mbart",
        f"MBart{GENERATES}",
        {**SIDES, "decoder_start_token_id": 2},
        files={"dict.txt": "w4 1\n"},
    ),
    "PEGASUS": Case(
        "pegasus", f"Pegasus{GENERATES}", SIDES | PEGASUS, ("<pad>", "</s>", "<unk>", "<s>")
    ),
    "T5": Case("t5", f"T5{GENERATES}", T5, ("<pad>", "</s>", "<unk>")),
    "T5 1.1": Case("t5", f"T5{GENERATES}", T5 | GATED, ("<pad>", "</s>", "<unk>")),
    "ByT5": Case("t5", f"T5{GENERATES}", T5 | GATED | BYTES, ("<pad>", "</s>", "<unk>")),
    "ESM-2, words": Case(
        "esm", "EsmForMaskedLM", BLOCKS | ESM, ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")
    ),
    "Moonshine": Case("moonshine", f"Moonshine{GENERATES}", HEARD, ("<unk>", "<s>", "</s>")),
    "ViT": Case("vit", "ViTForImageClassification", PICTURE),
    "DeiT, distilled": Case("deit", "DeiTForImageClassificationWithTeacher", PICTURE),
    "TrOCR": Case("trocr", "VisionEncoderDecoderModel", READER),
}


def write(case, folder):
    """Writes a random model of `transformers`, a tokenizer and a normalization."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(3)
    kind = getattr(transformers, case.kind)
    text = {"vocab_size": VOCABULARY} if not case.sees else {}
    if case.origin == "trocr":
        config = kind.config_class.from_encoder_decoder_configs(
            transformers.DeiTConfig(**PICTURE),
            transformers.TrOCRConfig(vocab_size=VOCABULARY, **case.sizes),
            tie_word_embeddings=False,
        )
    else:
        config = kind.config_class(**{**text, **case.sizes})
    model = kind(config)
    with torch.no_grad():  # other than a new model's, whose outputs are almost equal
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape) if weight.ndim < 2 else 0
            weight *= 1.5 if weight.ndim == 2 else 1
        model.tie_weights()
    model.save_pretrained(folder)
    names = [*case.pieces, *(f"w{i}" for i in range(len(case.pieces), VOCABULARY))]
    unknown = next(name for name in case.pieces if "unk" in name.lower())
    words = tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unknown)
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(case.pieces))
    made.save(str(folder / "tokenizer.json"))
    for name, text in case.files.items():
        (folder / name).write_text(text, "utf-8")
    pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels), "utf-8")


def module_of(case):
    """Returns the importer of a case."""
    from keras_transformer import importers

    return getattr(importers, case.origin.replace("-", "_"))


def with_tokenizer(folder, out):
    """Copies rxnmapper's ALBERT to `out` with a `tokenizer.json`; returns `out`.

    The folder lists its pieces in `vocab.txt`. Two of them get the names of other ALBERTs.
    """
    import tokenizers

    shutil.copytree(folder, out, dirs_exist_ok=True)
    (out / "vocab.txt").unlink()
    names = {"[PAD]": "<pad>", "[UNK]": "<unk>"}
    lines = (folder / "vocab.txt").read_text("utf-8").split()
    ids = {names.get(piece, piece): id for id, piece in enumerate(lines)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(SMILES), "isolated")
    made.add_special_tokens(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    ends = [(piece, ids[piece]) for piece in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    made.save(str(out / "tokenizer.json"))
    return out
