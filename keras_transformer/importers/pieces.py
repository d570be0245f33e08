"""Tokenizers with our ids, made from the origin's tokenizers.

The importer rewrites a SentencePiece model with its pieces at our ids. It segments text as before,
because pieces, scores and normalization stay and ids play no part in segmentation. The same holds
for the `tokenizer.json` of BERT and GPT-2.

Marian's folders have a vocabulary beside their models, from piece to id. The origin treats a piece
that it lacks as unknown. SentencePiece cannot give two pieces one id, so each of these pieces gets
an id at the end of our vocabulary. Its row is a copy of the unknown token's row (see
`mapping.row_order`).
"""

import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_transformer.importers.checkpoint import check_ids, read_json
from keras_transformer.importers.mapping import our_ids
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Ids, StrPath


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of a folder.

    Attributes:
        make: function from `tables.Table.orders` to the tokenizer, or to the source's and target's.
            Defaults to one that returns `None`: no tokenizer.
        unknown: numbers of copies of the unknown token that the tokenizers of source and target
            need.
        options: arguments of the model that the tokenizers need.
    """

    make: Callable[[list[Ids]], Any] = lambda orders: None
    unknown: Sequence[int] = (0, 0)
    options: Mapping[str, Any] = field(default_factory=dict)


# Our special pieces, at ids 0 to 3.
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
LANGUAGE = re.compile(r">>[^<>\s]+<<|<extra_id_\d+>")  # also T5's sentinels
SPACE = "\u2581"  # how SentencePiece writes a space


def read_spm(path: StrPath) -> bytes:
    """Reads a serialized SentencePiece model. Raises `ValueError` for any other file."""
    model = pathlib.Path(path).read_bytes()
    try:
        _proto(model)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read. {error}") from error
    return model


def piece_ids(model: bytes) -> dict[str, int]:
    """Returns a dict from piece to id of a serialized SentencePiece model."""
    return {piece.piece: number for number, piece in enumerate(_proto(model).pieces)}


def unknown_id(model: bytes) -> int:
    """Returns the id of the unknown piece of a serialized SentencePiece model."""
    proto = _proto(model)
    return [piece.type for piece in proto.pieces].index(proto.SentencePiece.UNKNOWN)


def unknown_pieces(ids: Mapping[str, int], *models: bytes) -> list[str]:
    """Returns pieces that SentencePiece models produce and a vocabulary `{piece: id}` lacks."""
    produced = [piece for model in models for piece in _used_pieces(_proto(model))]
    return [piece for piece in dict.fromkeys(produced) if piece not in ids]


def piece_names(ids: Mapping[str, int], order: Ids, unknown: Sequence[str] = ()) -> list[str]:
    """Returns the piece at each of our V ids.

    Args:
        ids: dict from piece to the origin's id.
        order: the origin's id of each of our rows, see `mapping.row_order`.
        unknown: result of `unknown_pieces`; `order` ends with as many copies.

    Example:

    >>> from keras_transformer.importers.mapping import row_order
    >>> order = row_order(3, pad=None, unknown=1, begin=None, end=0)
    >>> piece_names({"</s>": 0, "<unk>": 1, "a": 2}, order)
    ['<pad>', '<unk>', '<s>', '</s>', 'a']
    """
    piece_of = {number: piece for piece, number in ids.items()}
    known = order[len(SPECIAL_PIECES) : len(order) - len(unknown)].tolist()
    # No piece has a space, so a vocabulary does not hold the name of a missing piece.
    found = [piece_of.get(number, f"<id {number}>") for number in known]
    return [*SPECIAL_PIECES, *found, *unknown]


def renumbered(model: bytes, names: Sequence[str], writes: bool = True) -> Tokenizer:
    """Returns a `Tokenizer` that segments like a SentencePiece model and has our ids.

    A language token of the vocabulary, such as ">>fra<<", is one token at the start of a text or
    after a space. A space must follow it.

    Args:
        model: serialized SentencePiece model.
        names: result of `piece_names`. Contains every piece that the model can produce.
        writes: bool, whether pieces that the model lacks are decoded. A target's vocabulary may
            hold such pieces, from the source's model.

    Raises:
        ValueError: the bytes are not a SentencePiece model, or it has pieces beyond `names`.
    """
    missing = unknown_pieces(dict.fromkeys(names, 0), model)
    if missing:
        raise ValueError(f"The vocabulary lacks {len(missing)} pieces of the model: {missing[:5]}.")
    proto = _proto(model)
    own = {p.piece: p for p in proto.pieces if p.type != proto.SentencePiece.UNKNOWN}
    prefix = SPACE if proto.normalizer_spec.add_dummy_prefix else ""
    pieces = [
        _piece(proto.SentencePiece, number, name, own, prefix, writes)
        for number, name in enumerate(names)
    ]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    spec.ClearField("unk_surface")  # artefacts write the default
    spec.vocab_size = len(pieces)
    return Tokenizer(proto.SerializeToString(deterministic=True))


def of_both_sides(
    models: Sequence[bytes], ids: Sequence[Mapping[str, int]], shared: bool, **options: Any
) -> Vocabulary:
    """Returns the vocabulary of SentencePiece models beside vocabularies.

    It makes one tokenizer if source and target are equal.

    Args:
        models: two serialized SentencePiece models, of source and target.
        ids: two dicts from piece to the origin's id.
        shared: whether the two are one vocabulary, which then holds the pieces of both models.
        **options: as in `Vocabulary`.
    """
    own = [models, models] if shared else [models[:1], models[1:]]
    unknown = [unknown_pieces(known, *side) for known, side in zip(ids, own, strict=True)]

    def make(orders: list[Ids]) -> Tokenizer | tuple[Tokenizer, Tokenizer]:
        both = zip(ids, [orders[0], orders[-1]], unknown, strict=True)
        source, target = (piece_names(*side) for side in both)
        if models[0] == models[1] and source == target:
            return renumbered(models[0], source)
        return renumbered(models[0], source, writes=False), renumbered(models[1], target)

    return Vocabulary(make, [len(side) for side in unknown], options)


def byte_tokenizer(size: int) -> Tokenizer:
    """Returns a tokenizer whose tokens are the bytes of a text, as in ByT5.

    It is a SentencePiece model without pieces, so every character becomes bytes.

    Args:
        size: int, number of ids. Those after the 256 bytes are the sentinels `<extra_id_0>` and so
            on.

    Example:

    >>> byte_tokenizer(384).encode("né")
    [114, 199, 173]
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    kind, spec, rules = proto.SentencePiece, proto.trainer_spec, proto.normalizer_spec
    names = [*SPECIAL_PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [kind.CONTROL] * len(SPECIAL_PIECES) + [kind.BYTE] * 256
    kinds[UNKNOWN_ID] = kind.UNKNOWN
    more = size - len(names)
    names += [f"<extra_id_{number}>" for number in range(more)]
    kinds += [kind.USER_DEFINED] * more
    proto.pieces.extend(
        kind(piece=name, score=0.0, type=one) for name, one in zip(names, kinds, strict=True)
    )
    spec.model_type, spec.byte_fallback, spec.vocab_size = spec.CHAR, True, size
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    rules.name, rules.escape_whitespaces = "identity", False
    rules.add_dummy_prefix = rules.remove_extra_whitespaces = False
    return Tokenizer(proto.SerializeToString(deterministic=True))


def published(model: bytes) -> tuple[list[str | None], bytes]:
    """Converts one of our models to the form in Marian's folders, the inverse of `renumbered`.

    Args:
        model: serialized SentencePiece model of a `Tokenizer`.

    Returns:
        A pair. First, the piece of each id as in a vocabulary, `None` if the model neither reads
        nor writes it. Second, the model without language tokens: these are in the vocabulary only,
        and readers of such folders cut them off first.
    """
    proto, names = _proto(model), []
    silent = (proto.SentencePiece.CONTROL, proto.SentencePiece.UNKNOWN)
    for piece in proto.pieces:
        name = piece.piece.removeprefix(SPACE)
        if LANGUAGE.fullmatch(name):
            piece.piece, piece.type = name, proto.SentencePiece.CONTROL
            names.append(name)
        else:
            names.append(None if piece.type in silent else piece.piece)
    return names, proto.SerializeToString(deterministic=True)


def special_id(ids: Mapping[str, int], piece: str) -> int:
    """Returns the id of a special piece. Raises `ValueError` if the vocabulary lacks it."""
    if piece not in ids:
        raise ValueError(
            f"The vocabulary of {len(ids):,} pieces lacks {piece!r}, which marks the end of a "
            "sentence or unknown text. Check that it is the vocabulary of this model."
        )
    return ids[piece]


def renumbered_json(
    config: dict[str, Any], order: Ids, begin: str | None = None, between: Sequence[str] = ()
) -> JsonTokenizer:
    """Returns a `JsonTokenizer` with our ids.

    Args:
        config: dict, the content of `tokenizer.json`. With "longest", texts have at most so many
            ids.
        order: the origin's id of each of our rows.
        begin: the piece at the start of every text, such as "[CLS]" or a language, or `None`.
        between: pieces before a second text in a row, after the end token of the first.

    Raises:
        ValueError: a piece has an id that is not among the rows.
    """
    ours = our_ids(order)
    added = config.get("added_tokens") or []
    ids = json_ids(config)
    numbered = ids.items()
    beyond = [piece for piece, number in numbered if number not in ours]
    if beyond:
        raise ValueError(
            f"The tokenizer has {len(beyond)} pieces for which the model has no row: {beyond[:5]}."
        )
    template, longest = None, config.get("longest")
    if begin is not None:
        text = {"Sequence": {"id": "A", "type_id": 0}}
        first, *more = ({"SpecialToken": {"id": p, "type_id": 0}} for p in (begin, *between))
        special = {p: {"id": p, "ids": [ours[ids[p]]], "tokens": [p]} for p in (begin, *between)}
        other = {"Sequence": {"id": "B", "type_id": 1}}
        template = {"type": "TemplateProcessing", "single": [first, text]}
        template |= {"pair": [first, text, *more, other], "special_tokens": special}
    changed = {
        **{name: value for name, value in config.items() if name != "longest"},
        # With the added tokens: the library would number tokens that the vocabulary lacks.
        "model": {**config["model"], **_numbered(config["model"], numbered, order, ours)},
        "added_tokens": [{**token, "id": ours[token["id"]]} for token in added],
        "post_processor": template,
        "truncation": longest
        and {"direction": "Right", "max_length": longest, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
    }
    return JsonTokenizer(json.dumps(changed, ensure_ascii=False))


def json_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """Returns a dict from piece to id of a `tokenizer.json`, with the added tokens."""
    vocabulary = config["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model: pairs of piece and score
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    added = config.get("added_tokens") or []
    return {**vocabulary, **{token["content"]: token["id"] for token in added}}


def _numbered(
    model: Mapping[str, Any],
    numbered: Iterable[tuple[str, int]],
    order: Ids,
    ours: Mapping[int, int],
) -> dict[str, Any]:
    """Returns the entries of a model's vocabulary with our ids."""
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, list):
        return {"vocab": {piece: ours[id] for piece, id in numbered}}
    pairs = {id: [piece, 0.0] for piece, id in numbered} | dict(enumerate(vocabulary))
    unused = ([f"<unused {row}>", 0.0] for row in itertools.count())
    found = [  # a token with several roles has one row
        pairs[id] if id in pairs and ours[id] == row else next(unused)
        for row, id in enumerate(order.tolist())
    ]
    return {"vocab": found, "unk_id": UNKNOWN_ID}


def read_tokenizer(path: StrPath) -> dict[str, Any]:
    """Reads a `tokenizer.json`. Raises `ValueError` without a vocabulary of ids."""
    config = read_json(path)
    model, added = config.get("model"), config.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # of a unigram model
        fits = all(isinstance(pair, list) and len(pair) == 2 for pair in vocabulary)
        vocabulary = {str(pair[0]): id for id, pair in enumerate(vocabulary)} if fits else None
    check_ids(path, vocabulary)
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError(f"added_tokens in {path} must be a list of objects. Copy the file again.")
    check_ids(path, {str(token.get("content")): token.get("id") for token in added})
    return config


def word_pieces(folder: StrPath, ids: dict[str, int]) -> dict[str, Any]:
    """Returns a `tokenizer.json` for a BERT folder that has only `vocab.txt`.

    Args:
        folder: str or path-like. Its `tokenizer_config.json` may set `do_lower_case`,
            `strip_accents` and `tokenize_chinese_chars`. The tokens of its `added_tokens_decoder`
            are added, or without it the tokens in `added_tokens.json`.
        ids: dict from piece to the origin's id.

    Raises:
        ValueError: a file is not JSON, or the added tokens have no ids.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = pathlib.Path(folder) / "tokenizer_config.json"
    settings = read_json(path, optional=True)
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer.add_special_tokens([piece for piece in special if piece in ids])
    config = json.loads(tokenizer.to_str())
    added = {token["content"]: token for token in config["added_tokens"]}
    config["added_tokens"] = [*(added | _added_tokens(path, settings)).values()]
    return config


def unigram(model: bytes, names: Sequence[str], strip: bool = False) -> dict[str, Any]:
    """Returns a `tokenizer.json` for a SentencePiece model whose pieces have other ids.

    Args:
        model: serialized SentencePiece model of the kind "unigram".
        names: the piece of each of the origin's ids. Names that are no pieces are special tokens.
        strip: whether spaces at both ends of a text are dropped, as SentencePiece does.

    Raises:
        ValueError: a model of another kind, or names without `<unk>`.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers.pre_tokenizers import Metaspace, WhitespaceSplit
    from tokenizers.pre_tokenizers import Sequence as Steps

    proto = _proto(model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM or "<unk>" not in names:
        raise ValueError(
            "The SentencePiece model must be of the kind 'unigram', and its vocabulary must have "
            "<unk>. Check that both files belong to one model."
        )
    scores = {piece.piece: piece.score for piece in _used_pieces(proto).values()}
    scored = [(name, scores.get(name, 0.0)) for name in names]
    tokenizer = Tokenizer(models.Unigram(scored, names.index("<unk>"), byte_fallback=False))
    characters = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(characters)] if characters else []),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = Metaspace(), decoders.Metaspace()
    if strip:
        tokenizer.pre_tokenizer = Steps([WhitespaceSplit(), Metaspace()])
    special = [name for name in names if name not in scores]
    tokenizer.add_special_tokens([AddedToken(n, lstrip=n == "<mask>") for n in special])
    return json.loads(tokenizer.to_str())


def _added_tokens(path: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tokens beside `vocab.txt`, in the form of `tokenizer.json`, by their text.

    Args:
        path: of `tokenizer_config.json`.
        settings: its content.
    """
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    other = path.with_name("added_tokens.json")
    if "added_tokens_decoder" not in settings and other.exists():
        known = dict.fromkeys(flags, False) | {"normalized": True}
        ids = check_ids(other, read_json(other))
        return {piece: {"id": id, "content": piece, **known} for piece, id in ids.items()}
    added = {}
    try:
        for id, token in settings.get("added_tokens_decoder", {}).items():
            known = {name: token.get(name, False) for name in flags}
            added[token["content"]] = {"id": int(id), "content": token["content"], **known}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"added_tokens_decoder in {path} must be an object from ids to tokens with a content. "
            "Copy the file again."
        ) from error
    return added


def _piece(
    kind: Any, number: int, name: str, own: Mapping[str, Any], prefix: str, writes: bool
) -> Any:
    """Returns the piece at one of our ids."""
    if number == UNKNOWN_ID:
        return kind(piece=name, score=0.0, type=kind.UNKNOWN)
    if number in (PAD_ID, BEGIN_ID, END_ID):
        return kind(piece=name, score=0.0, type=kind.CONTROL)
    piece = own.get(name)
    if piece is not None and piece.type not in (kind.CONTROL, kind.UNUSED):
        return piece
    if LANGUAGE.fullmatch(name):
        return kind(piece=prefix + name, score=0.0, type=kind.USER_DEFINED)
    if piece is not None and name not in SPECIAL_PIECES:
        return piece
    if writes and name not in SPECIAL_PIECES:
        # BPE also merges to unused pieces, in the order of the scores: to this one last.
        return kind(piece=name, score=-1e9, type=kind.UNUSED)
    # Neither read nor written, under a name that no other piece has.
    return kind(piece=f"<{number} {name}>", score=0.0, type=kind.CONTROL)


def _used_pieces(proto: Any) -> dict[str, Any]:
    """Returns the pieces that a model can produce from text, by name."""
    kinds = proto.SentencePiece
    used = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    return {p.piece: p for p in proto.pieces if p.type in used}


def _proto(model: bytes) -> Any:
    """Parses a `ModelProto`."""
    from google.protobuf.message import DecodeError  # comes with TensorFlow
    from sentencepiece import sentencepiece_model_pb2

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    except DecodeError:
        proto = sentencepiece_model_pb2.ModelProto()
    if not proto.pieces:
        raise ValueError(f"These {len(model):,} bytes are no SentencePiece model.")
    return proto
