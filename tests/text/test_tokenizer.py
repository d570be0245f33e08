"""Tokenizer: round trips, sampling, clear errors."""

import contextlib
import copy
import itertools
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sentencepiece
from helpers.texts import CORPUS, LINES, ODD, any_text
from hypothesis import given
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.text.tokenizer import FEW, Tokenizer


def test_special_ids_are_as_documented_and_pieces_are_sorted_by_id(tokenizer):
    assert (PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID) == (0, 1, 2, 3)
    pieces = tokenizer.pieces
    assert pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(pieces) == tokenizer.vocab_size
    spelled = "".join(pieces[i] for i in tokenizer.encode("a red hat"))
    assert spelled.replace("\u2581", " ").strip() == "a red hat"
    assert tokenizer.word_starts.tolist() == [piece[0] == "\u2581" for piece in pieces]


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 10 * FEW])
def test_lines_have_the_same_ids_alone_and_in_a_list(tokenizer, count):
    lines = list(itertools.islice(itertools.cycle([*LINES, *ODD]), count))
    assert tokenizer.encode(lines) == [tokenizer.encode(line) for line in lines]
    assert len(tokenizer.encode(lines)) == count


def test_lines_with_the_trainers_own_character_count():
    tokenizer = Tokenizer.train(["a red hat", "\u2585 zebra"], 400, hard_vocab_limit=False)
    assert any("z" in piece for piece in tokenizer.pieces[260:])


def test_short_lines_are_enough_for_training():
    tokenizer = Tokenizer.train(["ja", "no", "\u65e5\u672c"], 300, hard_vocab_limit=False)
    assert tokenizer.decode(tokenizer.encode("noja")) == "noja"


def test_decode_restores_text_exactly(tokenizer):
    for line in ("a man 's hat , red .", *LINES, *ODD):
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == line
        assert line in LINES or not {PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID} & set(ids)
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a b"  # the one exception


@given(line=any_text)
def test_decode_restores_any_text_and_its_samples(tokenizer, line):
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.decode(tokenizer.encode(line, sample=True, seed=3)) == line


def test_a_line_of_ten_thousand_tokens_trains_and_is_restored():
    line = " ".join(f"{i}" for i in range(5003))
    tokenizer = Tokenizer.train([line, "a"], 300, byte_fallback=False, hard_vocab_limit=False)
    # SentencePiece's default limit of 4,192 bytes would skip the line and its characters.
    assert len(tokenizer.encode(line)) >= 10_000
    assert UNKNOWN_ID not in tokenizer.encode(line)
    assert tokenizer.decode(tokenizer.encode(line)) == line


def test_decode_stops_at_the_end_token_and_skips_special_ids(tokenizer):
    ids, rest = tokenizer.encode(["a red hat", "ein hund"])
    row = [BEGIN_ID, PAD_ID, *ids, END_ID, *rest, PAD_ID]
    for one, expected in (
        (row, "a red hat"),
        (np.array(row, np.int32), "a red hat"),
        (np.array([row, row[::-1]]), ["a red hat", tokenizer.decode(rest[::-1])]),
        ([ids, []], ["a red hat", ""]),
        ([END_ID, *ids], ""),
        ([], ""),
        (np.zeros(0, int), ""),
        (np.zeros((0, 5), int), []),
    ):
        assert tokenizer.decode(one) == expected


def test_sampling_varies_and_a_seed_repeats_it(tokenizer):
    draws = [tokenizer.encode(LINES, sample=True, seed=seed) for seed in (5, 5, 7)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] != tokenizer.encode(LINES)
    unseeded = [tokenizer.encode(LINES, sample=True) for _ in range(3)]
    assert unseeded[0] != unseeded[1] != unseeded[2]


def test_a_seed_gives_the_same_sample_in_every_thread(tokenizer):
    def draw(seed):
        return tokenizer.encode(LINES, sample=True, seed=seed)

    here = [draw(seed) for seed in range(7)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):  # threads whose generators have been used before
            assert list(pool.map(draw, range(7))) == here


def test_another_process_without_frameworks_gives_the_same_ids_and_samples(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "shared.model")
    code = (
        "import sys\n"
        "for name in ('tensorflow', 'tensorflow_text', 'keras', 'google.protobuf'):\n"
        "    sys.modules[name] = None\n"
        "from keras_transformer.text.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.load(sys.argv[1])\n"
        "print(tokenizer.encode('a man'))\n"
        "del sys.modules['google.protobuf']  # samples need it\n"
        "print(tokenizer.encode(sys.argv[2:] * 7, sample=True, seed=11))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "shared.model"), *LINES]
    done = subprocess.run(command, capture_output=True, text=True)
    draws = tokenizer.encode(LINES * 7, sample=True, seed=11)
    assert done.stdout == f"{tokenizer.encode('a man')}\n{draws}\n", done.stderr


def test_a_sample_depends_only_on_the_seed_the_index_of_the_line_and_its_text(tokenizer):
    draws = tokenizer.encode(LINES, sample=True, seed=11)
    others = tokenizer.encode([LINES[3], *LINES[1:3]], sample=True, seed=11)
    assert others[1:] == draws[1:3]
    assert tokenizer.encode(LINES[0], sample=True, seed=11) == draws[0]
    again = tokenizer.encode([LINES[0]] * 7, sample=True, seed=11)
    assert len(set(map(tuple, again))) > 1  # one line is sampled anew at each index


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_samples_are_distributed_as_in_sentencepiece(tokenizer, alpha):
    lines = ["two men , 日 10"] * 3001
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    reference = processor.encode(lines, enable_sampling=True, alpha=alpha, nbest_size=-1)
    drawn = tokenizer.encode(lines, sample=True, alpha=alpha, seed=5)
    counts = [np.bincount(np.concatenate(rows), minlength=307) for rows in (drawn, reference)]
    # Both are samples, SentencePiece's without a seed: their variances add up.
    assert np.all(np.abs(counts[0] - counts[1]) < 5 * np.sqrt(counts[0] + counts[1] + 1))


def test_without_dropped_merges_a_sample_is_the_best_segmentation():
    tokenizer = Tokenizer.train(CORPUS, 307, model_type="bpe")
    lines = [*LINES, *ODD]
    assert tokenizer.encode(lines, sample=True, alpha=0.0) == tokenizer.encode(lines)
    (ids,) = tokenizer.encode(["two hat"], sample=True, alpha=1.0)
    assert [tokenizer.pieces[i] for i in ids] == list("\u2581two\u2581hat")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_user_defined_pieces_stay_whole_and_unknown_characters_are_one_id(kind):
    tokenizer = Tokenizer.train(
        CORPUS, 71, model_type=kind, byte_fallback=False, symbols=["<x>", "o h"]
    )
    line = "two hat<x>hat 日本"
    for seed in range(5):
        ids = tokenizer.encode(line, sample=True, seed=seed)
        assert tokenizer.decode(ids) == "two hat<x>hat  \u2047 "
        whole = {"<x>", "o\u2581h"} <= {tokenizer.pieces[i] for i in ids}
        assert whole or kind == "unigram"  # there it is likely, not certain
    best = tokenizer.encode(line, sample=True, alpha=0.0 if kind == "bpe" else 1e3)
    assert best == tokenizer.encode(line)


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
def test_symbols_are_one_piece_wherever_they_occur(model_type):
    symbols = [" ", ',"a hat":["', "red"]
    tokenizer = Tokenizer.train(
        CORPUS, 307, model_type=model_type, symbols=symbols, hard_vocab_limit=False
    )
    text = 'a reduced hat,"a hat":["a  red 帽"'
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    pieces = [tokenizer.pieces[id] for id in ids]
    assert pieces.count("red") == 2 and pieces.count("\u2581") == 6
    texts = [tokenizer.piece_bytes[id] for id in ids]
    assert b"".join(texts).decode() == " " + text
    spaced = {piece for piece in tokenizer.pieces if "\u2581" in piece}
    assert spaced == {"\u2581", ',"a\u2581hat":["'} and spaced <= {*pieces}


def test_saved_pickled_and_copied_tokenizers_are_equal(tokenizer, tmp_path):
    path = tmp_path / "shared.model"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["shared.model"]
    loaded = Tokenizer.load(str(path))
    assert loaded.encode(LINES) == tokenizer.encode(LINES)
    for other in (loaded, pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other == tokenizer and hash(other) == hash(tokenizer)
        assert other.model == path.read_bytes()
    assert tokenizer != Tokenizer.train(CORPUS, 311)
    assert repr(tokenizer).startswith("<Tokenizer vocab_size=307,")


TEXTS = {
    "sentences": CORPUS,
    "one line": ["a cat sat on the mat"],
    "without spaces": ["kitaplar", "kitap", "ev"],
    "many characters": ["".join(map(chr, range(0x4E00, 0x4F00)))],
    "the same line": ["the cat sat on the mat"] * 500,
    "different words": [" ".join(f"{n:x}" for n in range(40 * i, 40 * i + 40)) for i in range(99)],
}


def test_training_twice_gives_the_same_model():
    assert Tokenizer.train(CORPUS, 311) == Tokenizer.train(iter(CORPUS), 311)


def test_a_normalisation_folds_case_width_and_spaces():
    tokenizer = Tokenizer.train([*CORPUS, "A B"], 307, normalization="nmt_nfkc_cf")
    assert tokenizer.decode(tokenizer.encode("  Ａ   Man ")) == "a man"


def test_without_byte_fallback_unseen_characters_are_unknown():
    tokenizer = Tokenizer.train(CORPUS, 67, byte_fallback=False)
    assert tokenizer.vocab_size == 67
    assert UNKNOWN_ID in tokenizer.encode("日")
    assert tokenizer.decode([UNKNOWN_ID]) == " ⁇ "


@pytest.mark.parametrize("vocab_size", [5, 9001])
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_a_size_that_does_not_fit_names_a_sensible_one(name, byte_fallback, model_type, vocab_size):
    lines, advice = TEXTS[name], r"(too large|alone need).* Pass vocab_size=(\d+)"
    options = {"model_type": model_type, "byte_fallback": byte_fallback}
    for _ in range(2):  # repeated text may have fewer pieces than the rule names
        with pytest.raises(ValueError, match=advice) as error:
            Tokenizer.train(lines, vocab_size, **options)
        vocab_size = int(re.search(advice, str(error.value))[2])
        with contextlib.suppress(ValueError):
            found = Tokenizer.train(lines, vocab_size, **options)
            break
    single = 4 + 256 * byte_fallback + len(set("".join([" ", *lines])))
    assert found.vocab_size == vocab_size <= single + sum(map(len, lines)) // 2000


def test_an_id_for_each_word():
    line = "(S (NP XX XX ) (VP XX ) )"
    tokenizer = Tokenizer.train([line], 100, model_type="word", hard_vocab_limit=False)
    assert tokenizer.vocab_size == 4 + len(set(line.split()))
    ids = tokenizer.encode(line)
    assert len(ids) == len(line.split()) and tokenizer.decode(ids) == line
    ids = tokenizer.encode("(S (PP XX )")
    assert ids[1] == UNKNOWN_ID and tokenizer.decode(ids) == "(S \u2047  XX )"


SPECIAL = r"other than the special tokens <pad>, <unk>, <s>, </s>, got {}. Leave it out"


@pytest.mark.parametrize("model_type", ["unigram", "bpe", "char"])
@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (["a", ""], SPECIAL.format("''")),
        (["<s>"], SPECIAL.format("'<s>'")),
        (["a", "b", "a"], "symbols has 'a' twice"),
        ([" ", "\u2581"], "twice"),
        (["<0x41>"], "symbols has '<0x41>' twice, or it is the piece of a byte"),
    ],
)
def test_symbols_that_no_model_can_have(symbols, message, model_type):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(CORPUS, 307, model_type=model_type, symbols=symbols)


COVERED = {"symbols": ["a", "b", " "]}


@pytest.mark.parametrize(
    ("lines", "options", "error", "message"),
    [
        (["ab ba"], COVERED, ValueError, "The symbols cover the whole text"),
        (["ab ba"], {"model_type": "char", **COVERED}, ValueError, "The symbols cover the whole"),
        (["a man", "a dog"], {"model_type": "word"}, ValueError, "7 .* hard_vocab_limit=False"),
        (CORPUS, {"vocab_size": -7}, ValueError, "could not train with vocab_size=-7"),
        (CORPUS, {"model_type": "x"}, ValueError, "model_type must be one of .* got 'x'"),
        (CORPUS, {"normalization": "x"}, ValueError, "normalization must be one of .* got 'x'"),
        (CORPUS, {"symbols": "ab"}, TypeError, "`symbols` must be an iterable"),
        ([], {}, ValueError, "none of the 0 lines holds text"),
        ([""], {}, ValueError, "none of the 1 lines holds text"),
        ([" ", "\t"], {}, ValueError, "none of the 2 lines holds text"),
        ("a man", {}, TypeError, "got one str"),
        (["a", b"b"], {}, TypeError, "got bytes as item 1"),
    ],
)
def test_training_refuses_other_texts_and_options(lines, options, error, message):
    with pytest.raises(error, match=message):
        Tokenizer.train(lines, **{"vocab_size": 300, **options})


@pytest.mark.parametrize(
    ("method", "argument", "options", "error", "message"),
    [
        ("encode", [5], {}, TypeError, "got int as item 0"),
        ("encode", ["a", "bc\ud800"], {}, ValueError, "item 1 .* holds half a .* character 2"),
        ("encode", "a", {"sample": True, "alpha": -0.1}, ValueError, "at least 0, got -0.1"),
        ("decode", [5, 307], {}, ValueError, "id 307 is not within this vocabulary of 307 ids"),
        ("decode", [[5, -1]], {}, ValueError, "id -1 "),
    ],
)
def test_texts_and_ids_of_no_tokenizer_are_refused(
    tokenizer, method, argument, options, error, message
):
    with pytest.raises(error, match=message):
        getattr(tokenizer, method)(argument, **options)


def test_a_model_of_characters_has_no_samples():
    characters = Tokenizer.train(CORPUS, 307, model_type="char")
    with pytest.raises(ValueError, match='neither "unigram" nor "bpe". Leave out `sample`'):
        characters.encode("a", sample=True)


@pytest.mark.parametrize(
    ("cls", "content", "message"),
    [
        (Tokenizer, b"", "these 0 bytes are not"),
        (Tokenizer, b"no model at all", "these 15 bytes are not"),
        (JsonTokenizer, b'{"\xff', ""),
    ],
)
def test_files_that_are_not_models_are_refused(cls, content, message, tmp_path):
    if cls is JsonTokenizer:
        pytest.importorskip("tokenizers")
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=f"bad cannot be read as a tokenizer: .*{message}"):
        cls.load(tmp_path / "bad")


def test_other_models_are_refused(tokenizer):
    with pytest.raises(TypeError, match="got str"):
        Tokenizer("shared.model")
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.trainer_spec.pad_piece, proto.trainer_spec.bos_piece = "<s>", "<pad>"
    with pytest.raises(ValueError, match=r"= \(0, 1, 2, 3\), got \(2, 1, 0, 3\)"):
        Tokenizer(proto.SerializeToString())
