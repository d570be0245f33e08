"""Patterns: every output matches, and the table of tokens equals Python's `re`."""

import functools
import itertools
import json
import random
import re
import sys

import keras
import numpy as np
import pytest
from helpers import exports
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.search.pattern import DEAD, END_ID, START
from keras_transformer.text.json_tokenizer import JsonTokenizer

jsonschema = pytest.importorskip("jsonschema")
LINES = ['yes no 0123456789 the red house {a: b, [c]} 3.14 -17 "big"', "aa ab aab abab é ñandú"]
SCHEMAS = {
    "flat": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
    "optional": {"type": "object", "properties": {"on": {"type": "boolean"}}},
    "nested": {
        "type": "object",
        "properties": {
            "from": {"type": "object", "properties": {"city": {"enum": ["Ulm", "Ü"]}}},
            "price": {"type": "number"},
        },
        "required": ["from", "price"],
    },
    "array": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
    "choice": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}]},
    "unicode": {
        "type": "object",
        "properties": {"größe": {"enum": ["naïve \U0001f600", "日本"]}, "日": {"type": "string"}},
        "required": ["größe"],
    },
    "escapes": {"enum": ['say "hi"', "a\\d", "new\nline", "tab\t", "/", {"k": ['"']}, ""]},
    "escaped key": {"type": "object", "properties": {'k"\\é': {"const": 1}}, "required": ['k"\\é']},
    "middle optional": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
        "required": ["a", "c"],
    },
    "deep array": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "minItems": 1,
    },
    "reference": {
        "type": "array",
        "items": {"$ref": "#/$defs/one"},
        "$defs": {"one": {"prefixItems": [{"type": "number"}, {"type": "boolean"}]}},
    },
    "string pattern": {"type": "string", "pattern": "^[a-z ]{2,5}$"},
    "day": {"type": "string", "format": "date"},
    "no keys": {"type": "object", "additionalProperties": {"type": "integer"}},
}
PATTERNS = {
    **{name: {"json_schema": schema} for name, schema in SCHEMAS.items()},
    "date": {"regex": "[12][0-9]{3}-[01][0-9]-[0-3][0-9]"},
    "words": {"regex": "[a-z]+( [a-z]+){1,2}[.!]"},
    "repeat": {"regex": "(ab|aab)+"},
    "number": {"regex": r"-?[0-9]+(\.[0-9]+)?|yes"},
    "choices": {"choices": ["yes", "no", "the red house"]},
    "maybe empty": {"regex": "(ab)?"},
    "letters": {"regex": "[à-ÿ]{2,3}|日本|.?"},
    "odd choices": {"choices": ["a.b", "[c]", "ñandú \U0001f600", " spaced"]},
}
SEARCHES = {
    "greedy": kt.GreedySearch,
    "beam": lambda **kw: kt.BeamSearch(4, **kw),
    "sampling": lambda **kw: kt.Sampling(num_samples=3, **kw),
}


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.train(LINES, vocab_size=307, hard_vocab_limit=False)


@pytest.fixture(scope="module")
def model(tokenizer):
    return exports.tiny(vocab_size=tokenizer.vocab_size, num_layers=1)


def check(pattern, given, texts):
    for text in texts:
        assert re.fullmatch(pattern.regex, text), text
        if "json_schema" in given:
            jsonschema.validate(json.loads(text), given["json_schema"])
            assert given["json_schema"].get("format") != "date" or text.isascii()


TOKENIZERS = {
    "bytes": {"vocab_size": 307},
    "characters": {"vocab_size": 400, "model_type": "char"},
    "symbols": {"vocab_size": 330, "symbols": [" ", '":["', '","', '[["', '"k\\"']},
    "folded spaces": {"vocab_size": 330, "normalization": "nmt_nfkc"},
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", PATTERNS)
def test_random_paths_of_the_automaton_write_texts_of_the_pattern(name, kind):
    tokenizer = kt.Tokenizer.train(LINES, hard_vocab_limit=False, **TOKENIZERS[kind])
    if kind == "folded spaces" and name in ("escapes", "unicode", "odd choices", "letters"):
        pytest.skip("this tokenizer changes their characters")
    given = PATTERNS[name]
    pattern = kt.Pattern(**given, tokenizer=tokenizer)
    classes, after, missing = pattern.automaton
    draw, members = random.Random(3), [[] for _ in range(after.shape[1])]
    for id, number in enumerate(classes):
        members[number].append(id)
    texts = set()
    for _ in range(60):
        room, state, ids = pattern.least_length + draw.choice((0, 1, 3, 10, 30)), START, []
        while fits := np.flatnonzero(1 + missing[after[state]] <= room - len(ids)).tolist():
            number = draw.choice(fits)
            if number == classes[END_ID]:
                break
            ids.append(draw.choice(members[number]))
            state = after[state, number]
        assert missing[state] == 0
        texts.add(tokenizer.decode(ids))
    check(pattern, given, texts)


QUICK = [("nested", "greedy"), ("repeat", "beam"), ("odd choices", "sampling")]
PAIRS = list(itertools.product(PATTERNS, SEARCHES))
# At night all pairs; before, each pattern with one search.
AT_NIGHT = [pair for n, pair in enumerate(PAIRS) if (n + n // 3) % 3 and pair not in QUICK]


@pytest.mark.full("repeat-beam", "odd choices-sampling")
@pytest.mark.parametrize("name, search", quick(PAIRS, *QUICK, nightly=AT_NIGHT))
def test_every_output_matches_and_closes_in_time(name, search, model, tokenizer):
    given = PATTERNS[name]
    pattern = kt.Pattern(**given, tokenizer=tokenizer)
    run = SEARCHES[search](constraints=[pattern])
    # At the least length there is one step for each token. A sentence's own limit counts.
    limits = max(1, pattern.least_length) + np.array([0, 1, 2, 5, 19])
    result = run(model, exports.source(vocab_size=tokenizer.vocab_size), max_length=limits)
    found = result.ids.numpy()[result.scores.numpy() > -np.inf]
    texts = tokenizer.decode(found)
    assert len(texts) >= 5 * run.width - (run.width if search == "beam" else 0) * 2
    check(pattern, given, texts)


def accepts(pattern, ids):
    """Returns whether a text of these tokens may end."""
    classes, after, missing = pattern.automaton
    state = functools.reduce(lambda state, id: after[state, classes[id]], ids, START)
    assert (after[state, classes[END_ID]] != DEAD) == (missing[state] == 0)
    return missing[state] == 0


@pytest.mark.parametrize("name", ["date", "words", "repeat", "number", "odd choices", "nested"])
def test_the_automaton_accepts_the_texts_that_the_expression_accepts(name, tokenizer):
    pattern, draw = kt.Pattern(**PATTERNS[name], tokenizer=tokenizer), random.Random(3)
    alphabet = sorted(set("".join(LINES)) | set(pattern.regex))
    texts = ["2021-10-30", "red house!", "abaabab", "a.b", " spaced", "-3.14", "3", "yes"]
    texts += ['{"from":{},"price":-3.5}']
    for text in texts * 20:  # one change
        place = draw.randrange(len(text))
        texts.append(text[:place] + draw.choice(alphabet) + text[place + draw.randrange(2) :])
    accepted = 0
    for text in texts:
        ids = tokenizer.encode(text, sample=True, alpha=0.1, seed=draw.randrange(99))
        matches = re.fullmatch(pattern.regex, text, re.ASCII) and tokenizer.decode(ids) == text
        assert accepts(pattern, ids) == bool(matches), text
        accepted += bool(matches)
    assert accepted


def test_the_least_length_is_the_shortest_segmentation(tokenizer):
    for choice in ("yes", "the red house", "ñandú", "0123456789!"):
        pattern = kt.Pattern(choices=[choice], tokenizer=tokenizer)
        texts = [text for text in tokenizer.piece_bytes if text]
        goal = f" {choice}".encode()
        # The first space is a part of a piece, a piece, or missing.
        assert pattern.least_length == min(fewest_from(goal, start, texts) for start in (0, 1))


def fewest_from(goal, start, texts):
    """Returns the smallest number of pieces that write goal[start:]."""
    fewest = {start: 0}
    for end in range(start + 1, len(goal) + 1):
        fewest[end] = 1 + min(
            (
                fewest[end - len(text)]
                for text in texts
                if end - len(text) in fewest and goal[start:end].endswith(text)
            ),
            default=99,
        )
    return fewest[len(goal)]


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
def test_pieces_of_spaces_at_the_start_write_as_the_tokenizer_decodes(normalization):
    letters = kt.Tokenizer.train(
        ["a b ab"], 9, model_type="char", byte_fallback=False, normalization=normalization
    )
    space, a = (letters.pieces.index(piece) for piece in "\u2581a")
    for expression in ("a", "a a", *([" a", "  a"] if normalization == "identity" else [])):
        pattern = kt.Pattern(regex=expression, tokenizer=letters)
        for ids in ([a], [space, a], [space, space, a], [space] * 3 + [a], [a, space, a], [space]):
            assert accepts(pattern, ids) == (letters.decode(ids) == expression), ids


def test_a_prompt_is_no_part_of_the_text_and_a_prefix_is(model, tokenizer):
    pattern = kt.Pattern(regex="the (red|no) [a-z]+", tokenizer=tokenizer)
    search = kt.BeamSearch(3, constraints=[pattern])
    writer = exports.tiny("generate", vocab_size=tokenizer.vocab_size, num_layers=1)
    check(pattern, {}, kt.generate(search, writer, tokenizer, ["yes no", "3.14"], max_length=20))
    fits, leaves = (tokenizer.encode(text) for text in ("the red", "the blue"))
    width = max(map(len, (fits, leaves)))
    prefix = np.array([row + [0] * (width - len(row)) for row in (fits, leaves)], "int32")
    source = exports.source(2, vocab_size=tokenizer.vocab_size)
    result = search(model, source, max_length=20, target_prefix=prefix)
    check(pattern, {}, tokenizer.decode(result.ids.numpy()[0]))
    assert tokenizer.decode(result.ids.numpy()[0, 0]).startswith("the red")
    assert np.isneginf(result.scores.numpy()[1]).all() and not result.ids.numpy()[1].any()


THREE = {"regex": "[a-z]{3}( [a-z]{3}){2}"}
YES = {"choices": ["yes", "no"]}
RULES = [kt.NoRepeatNgrams(2), kt.RepetitionPenalty(1.3)]


@pytest.mark.quick("too long, greedy")
@pytest.mark.parametrize(
    "make, given, exists",
    [
        (lambda rule: kt.BeamSearch(12, constraints=[kt.Terms(), rule]), THREE, True),
        (lambda rule: kt.BeamSearch(2, constraints=[kt.Terms(), rule]), YES, False),
        (lambda rule: kt.BeamSearch(3, constraints=[rule, *RULES]), THREE, True),
        (lambda rule: kt.BeamSearch(3, constraints=[*RULES, rule]), THREE, True),
        (lambda rule: kt.BeamSearch(4, min_length=9, constraints=[rule]), YES, False),
        (lambda rule: kt.GreedySearch(min_length=9, constraints=[rule]), YES, False),
    ],
    ids=["terms", "terms that do not fit", "before", "after", "too long", "too long, greedy"],
)
def test_other_rules_and_several_models_go_with_a_pattern(make, given, exists, model, tokenizer):
    pattern, size = kt.Pattern(**given, tokenizer=tokenizer), tokenizer.vocab_size
    search = make(pattern)
    terms = "terms" in search.call_defaults
    options = {"terms": np.array([[tokenizer.encode("red")]] * 3, "int32")} if terms else {}
    together = kt.Ensemble([model, exports.tiny(vocab_size=size, num_layers=1, norm_first=True)])
    found = search(together, exports.source(3, vocab_size=size), max_length=20, **options)
    assert (found.scores[:, 0].numpy() > -np.inf).tolist() == [exists] * 3
    best = tokenizer.decode(found.ids.numpy()[:, 0]) if exists else []
    check(pattern, {}, best)
    assert exists or not found.ids.numpy().any()
    assert all(" red" in f" {text}" or not terms for text in best)


def test_a_byte_level_tokenizer_tells_its_bytes():
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    own.train_from_iterator(LINES, trainer)
    tokenizer = JsonTokenizer(own.to_str())
    for text in (*LINES, " ñ\n\t\x00 \U0001f600"):
        ids = tokenizer.encode(text)
        assert b"".join(tokenizer.piece_bytes[id] for id in ids).decode() == text
    assert tokenizer.piece_bytes[:4] == [b""] * 4
    model = exports.tiny(vocab_size=tokenizer.vocab_size, num_layers=1)
    pattern = kt.Pattern(choices=[" é 3", "big"], tokenizer=tokenizer)
    ids = kt.BeamSearch(2, constraints=[pattern])(model, exports.source()).ids.numpy()
    assert set(tokenizer.decode(ids.reshape(-1, ids.shape[-1]))) == {" é 3", "big"}
    data = json.loads(own.to_str())
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(TypeError, match="decoder WordPiece"):
        kt.Pattern(regex="a", tokenizer=JsonTokenizer(json.dumps(data)))


LETTERS = kt.Tokenizer.train(["abc"], 9, model_type="char", byte_fallback=False)


@pytest.mark.parametrize(
    "given, error, message",
    [
        (
            {"regex": "[0-9]+", "tokenizer": LETTERS},
            ValueError,
            r"no pieces that write .*\[0-9\]",
        ),
        (
            {"choices": ["abc", "xyz"], "tokenizer": LETTERS},
            ValueError,
            "cannot write the choice 'xyz'",
        ),
        ({"regex": "a", "tokenizer": None}, TypeError, "the target's tokenizer, not NoneType"),
        ({}, ValueError, "Pass one of regex, json_schema, choices; got none"),
        ({"regex": "a", "choices": ["b"]}, ValueError, "got regex, choices"),
        ({"regex": "a(?!b)"}, ValueError, "look-around"),
        ({"regex": "("}, ValueError, "is no regular expression"),
        ({"json_schema": "{"}, ValueError, "json_schema cannot be used"),
        ({"json_schema": {"type": "thing"}}, ValueError, "json_schema cannot be used.*thing"),
        ({"json_schema": "[1]"}, ValueError, "json_schema cannot be used"),
        ({"json_schema": {"type": "integer", "minimum": 3}}, ValueError, "follow minimum beside"),
        (
            {"json_schema": {"type": "array", "items": {"anyOf": [{"multipleOf": 2}]}}},
            ValueError,
            "cannot follow multipleOf",
        ),
        ({"json_schema": {"properties": {"a": {"not": {}}}}}, ValueError, "cannot follow not"),
        (
            {"json_schema": {"type": "string", "pattern": "a+", "maxLength": 3}},
            ValueError,
            "cannot follow maxLength beside pattern",
        ),
        ({"json_schema": {"type": "string", "pattern": ".+"}}, ValueError, "a quotation mark"),
        ({"json_schema": {"type": "string", "format": "time"}}, ValueError, "format must be one"),
        ({"json_schema": {"properties": {}, "required": ["b"]}}, ValueError, r"names \['b'\]"),
        ({"regex": "^a$"}, ValueError, "leave out"),
        ({"choices": "yes"}, ValueError, "list of texts"),
        ({"choices": []}, ValueError, "list of texts"),
        ({"choices": ["a", ""]}, ValueError, "list of texts"),
    ],
)
def test_a_wrong_pattern_is_refused(given, error, message, tokenizer):
    with pytest.raises(error, match=message):
        kt.Pattern(**{"tokenizer": tokenizer, **given})


def test_a_pattern_of_another_tokenizer_is_refused(model, tokenizer):
    search = kt.GreedySearch(constraints=[kt.Pattern(regex="a", tokenizer=LETTERS)])
    with pytest.raises(ValueError, match=rf"{tokenizer.vocab_size} ids.*pattern has 8"):
        search(model, exports.source())


def test_a_missing_package_is_named(monkeypatch, tokenizer):
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(ImportError, match="pip install outlines-core"):
        kt.Pattern(regex="a", tokenizer=tokenizer)


def test_too_little_room_is_refused_before_the_search(model, tokenizer, tmp_path):
    long = kt.GreedySearch(constraints=[kt.Pattern(regex="[0-9]{60}", tokenizer=tokenizer)])
    least = long.least_length
    assert least > 50
    short = exports.tiny(vocab_size=tokenizer.vocab_size, positions=kt.LearnedPositionEncoding(30))
    write = functools.partial(export.export_onnx, model, tmp_path / "x", tokenizer, long)
    run = functools.partial(long, model, exports.source())
    for call, limit, message in (
        *(
            (each, limit, f"has {least} tokens")
            for each in (run, write)
            for limit in (None, least - 1)
        ),
        (run, [least, least - 1, least, least, least], f"has {least} tokens.*at least {least}"),
        (functools.partial(long, short, exports.source()), least, "room for 30"),
    ):
        with pytest.raises(ValueError, match=message):
            call(max_length=limit)
    assert not list(tmp_path.iterdir())
    assert run(max_length=least).ids.numpy().all()


@pytest.mark.full
@pytest.mark.usefixtures("forked_proofs")
@pytest.mark.parametrize("route", quick(["loop", "steps", "litert"], "loop"))
def test_a_file_follows_the_pattern(route, model, tokenizer, tmp_path):
    pattern = kt.Pattern(json_schema=SCHEMAS["flat"], tokenizer=tokenizer)
    search, limit = kt.BeamSearch(3, constraints=[pattern]), pattern.least_length + 9
    options = {"max_length": limit, "verbose": False}
    if route == "litert":
        pytest.importorskip("ai_edge_litert")
        export.export_litert(model, tmp_path / "x", tokenizer, search, **options)
    else:
        export.export_onnx(model, tmp_path / "x", tokenizer, search, layout=route, **options)
    lines = ["the red house", "yes", "3.14 -17 aab"]
    translator = Translator(tmp_path / "x")
    found = translator.translate(lines)
    assert found == kt.translate(search, model, tokenizer, lines, max_length=limit)
    check(pattern, {"json_schema": SCHEMAS["flat"]}, found)
    shortest = translator.translate(lines, max_length=pattern.least_length)
    check(pattern, {"json_schema": SCHEMAS["flat"]}, shortest)
    with pytest.raises(ValueError, match=f"max_length must be at least {pattern.least_length}"):
        translator.translate(lines, max_length=pattern.least_length - 1)


def test_the_configuration_is_the_pattern_without_the_tokenizer(tokenizer):
    config = keras.saving.serialize_keras_object(kt.Pattern(regex="(ab)+", tokenizer=tokenizer))
    assert config["config"] == {"regex": "(ab)+"}
    with pytest.raises(TypeError, match="'Pattern'"):
        keras.saving.deserialize_keras_object(config)
