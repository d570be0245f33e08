"""mBART in Hugging Face's layout: mBART-50, which translates 52 languages, and BARTpho.

mBART is pre-norm, with a norm after the embeddings and learned positions. `encoder_decoders`
explains the form. The tokenizers of mBART-50 put the language before every text, such as `en_XX`.
Choose both: `load(folder, source="en_XX", target="de_DE")`. The target's language is the first
token of every target, so a search starts with it. BARTpho puts `<s>` there, as BART does.

The sources of the older mBART (`mbart-large-cc25`, `mbart-large-en-ro`) end with `</s>` and the
language. Our sources end with the end token, so `load` refuses their tokenizer; `load_model` loads
their model.

A folder holds `config.json`, `model.safetensors` (or `pytorch_model.bin`), and `tokenizer.json` or
`sentencepiece.bpe.model`; BARTpho of syllables also has `dict.txt`. Its vocabulary lacks pieces of
the SentencePiece model. The origin reads them as unknown, our tokenizer as shorter pieces.
"""

import pathlib
from typing import Any

from keras_transformer.importers import checkpoint, pieces
from keras_transformer.importers.encoder_decoders import EncoderDecoder, read_pieces
from keras_transformer.importers.tables import Loader, ModelLoader, RowOrders

__all__ = ["LANGUAGES", "load", "load_model", "row_orders"]

# In the order of their ids, after all pieces.
LANGUAGES: tuple[str, ...] = tuple(
    (
        "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR "
        "lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN "
        "fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE "
        "sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split()
)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
MODEL = "sentencepiece.bpe.model"


def _vocabulary(folder: pathlib.Path, config: dict[str, Any]) -> pieces.Vocabulary:
    settings = checkpoint.read_json(folder / "tokenizer_config.json", optional=True)
    kind = str(settings.get("tokenizer_class") or config.get("tokenizer_class"))
    if kind.startswith("MBartTokenizer"):
        raise ValueError(
            f"{folder} has an {kind}, whose sources end with </s> and their language. Our sources "
            "end with the end token. Use a model of mBART-50, or `load_model`."
        )
    words = folder / "dict.txt"
    if words.exists():
        known = [line.split()[0] for line in words.read_text("utf-8").splitlines() if line.strip()]
        names = [*SPECIAL, *known, "<mask>"]
        read = read_pieces(folder, config, MODEL, lambda own: names, strip=True)
        return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0], "<s>"))
    read = read_pieces(
        folder, config, MODEL, lambda own: [*SPECIAL, *own[3:], *LANGUAGES, "<mask>"]
    )
    ids = pieces.json_ids(read)
    chosen = [config["options"].pop(side, None) for side in ("source", "target")]
    found = [name for name in LANGUAGES if name in ids]
    for side, language in zip(("source", "target"), chosen, strict=True):
        if language not in found:
            raise ValueError(
                f"{side}={language!r} is no language of {folder}. Choose one for source and one "
                f"for target, of {', '.join(found)}."
            )
    config["forced_bos_token_id"] = ids[chosen[1]]
    return pieces.Vocabulary(
        lambda orders: tuple(pieces.renumbered_json(read, orders[0], each) for each in chosen)
    )


FAMILY = EncoderDecoder(
    "mbart", _vocabulary, unknown=3, norm_first=True, embedding_norm=True, learned=True
)
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
