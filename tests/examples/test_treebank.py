"""Trees: reading, writing in brackets, whole treebanks, made sentences, and the bracket score.

EVALB documents how to count brackets. The expected numbers are counted by hand.
"""

import re

import pytest
from helpers.example_files import articles, write
from support.scores.bracket_score import bracket_score, brackets
from support.sets.treebank import PHRASES, WORDS, made_trees, read_treebank
from support.sets.trees import (
    cleaned,
    from_brackets,
    read_trees,
    tagged_words,
    to_brackets,
)

TEXT = """
( (S (NP-SBJ-1 (NP (NNP Anna)) (, ,) (SBAR (WHNP-2 (-NONE- 0)) (S (NP (-NONE- *T*-2)))))
     (VP (VBZ sleeps) (ADVP|PRT (RB here)) (PP=3 (IN of) (NP (-LRB- -LRB-) (CD 61))))
     (. .)) )
( (X (SYM *)) )
"""
CLEAN = (
    "(S (NP (NP (NNP Anna)) (, ,)) (VP (VBZ sleeps) (ADVP (RB here)) "
    "(PP (IN of) (NP (-LRB- -LRB-) (CD 61)))) (. .))"
)
TREE = cleaned(read_trees(TEXT)[0])


def test_traces_and_functions_are_left_out():
    trees = read_trees(TEXT)
    assert [tree.label for tree in trees] == ["TOP", "TOP"]
    assert [str(cleaned(tree)) for tree in trees] == [CLEAN, "(X (SYM *))"]
    assert cleaned(read_trees("( (S (NP (-NONE- *)) (VP (-NONE- *))) )")[0]) is None
    several = read_trees("( (NP (NN a)) (NP (NN b)) )")[0]
    assert str(cleaned(several)) == "(TOP (NP (NN a)) (NP (NN b)))"


@pytest.mark.parametrize(
    "options, line, first",
    [
        (
            {},
            "(S (NP (NP XX )NP XX )NP (VP XX (ADVP XX )ADVP (PP XX (NP XX XX )NP )PP )VP XX )S",
            ("XX", "XX"),
        ),
        (
            {"tags": True},
            "(S (NP (NP NNP )NP , )NP (VP VBZ (ADVP RB )ADVP (PP IN (NP -LRB- CD )NP )PP )VP . )S",
            ("NNP", "NNP"),
        ),
        (
            {"tags": True, "numbers": True},
            "(S (NP (NP 1 NNP )NP 2 , )NP (VP 3 VBZ (ADVP 4 RB )ADVP (PP 5 IN (NP 6 -LRB- 7 CD )NP"
            " )PP )VP 8 . )S",
            None,
        ),
    ],
)
def test_a_tree_becomes_brackets_and_comes_back(options, line, first):
    assert to_brackets(TREE, **options) == line
    assert from_brackets(line, tagged_words(TREE)) == TREE
    assert from_brackets(re.sub(r"\)[A-Z]+", ")", line), tagged_words(TREE)) == TREE  # no labels
    words = tagged_words(from_brackets(line))
    assert len(words) == 8 and first in (None, words[0])


def test_articles_of_a_treebank_are_in_one_set_each(tmp_path):
    packed = articles(199, 1, 150, 151, 170, 171)
    path = write(tmp_path, {"wsj.zip": packed}) / "wsj.zip"
    tree = "(S (NP (NN w{})) (VP (VB x)))"
    sets = [[tree.format(number) for number in part] for part in ((1, 150), (151, 170), (171, 199))]
    assert [[*map(str, side)] for side in read_treebank(path)] == sets
    assert [[*map(str, side)] for side in read_treebank(path, limit=1)] == [x[:1] for x in sets]


def test_made_sentences_use_the_whole_grammar_and_differ():
    used = {symbol for choices in PHRASES.values() for line in choices for symbol in line.split()}
    assert used | {"TOP"} == PHRASES.keys() | WORDS.keys()
    sets = made_trees()
    assert [len(side) for side in sets] == [2000, 200, 200]
    sentences = {tuple(tagged_words(tree)) for side in sets for tree in side}
    assert len(sentences) == 2400 and max(map(len, sentences)) < 40
    assert {last for *_, (_, last) in sentences} <= {*".?"}
    assert made_trees(limit=3).test == sets.test[:3]
    found = {*re.findall(r"\(([^ ()]+)", " ".join(map(str, sets.train)))}
    assert found == {label.split("-")[0] for label in (PHRASES | WORDS).keys() - {"TOP"}}


GOLD, SHORT = read_trees(
    "(TOP (S (NP (NNP Anna)) (, ,) "
    "(VP (VBZ sits) (PRT (RP down)) (PP (IN in) (NP (NNP Rome)))) (. .)))\n(S (NN a))"
)


def test_punctuation_does_not_change_brackets():
    inside, quoted = read_trees(
        "(S (NP (NNP Anna) (, ,)) "
        "(VP (VBZ sits) (ADVP (RP down)) (PP (IN in) (NP (NNP Rome))) (. .)))"
        "(S (NP (`` ``)) (NN a) (PRN (: --) (. .)))"
    )
    spans = ("S", 0, 5), ("NP", 0, 1), ("VP", 1, 5), ("ADVP", 2, 3), ("PP", 3, 5), ("NP", 4, 5)
    # PRT and ADVP are equal.
    assert brackets(inside) == brackets(GOLD) == dict.fromkeys(spans, 1)
    assert brackets(quoted) == {("S", 0, 1): 1}
    # A line of brackets has no tags, so the tags of the sentence count.
    made = from_brackets("(S (NP XX ) XX (VP XX (PRT XX ) (PP XX (NP XX ) ) ) XX )")
    assert bracket_score([GOLD], [made])["f1"] == 1


TWICE, ONCE = read_trees("(S (NP (NP (NN a))) (VB b))\n(S (NP (NN a)) (VB b))")
# Right: S and the first NP. Wrong: VP ends too early. Missed: VP, PRT, PP, NP.
EARLY = from_brackets("(S (NP XX ) XX (VP XX XX XX ) XX XX )", tagged_words(GOLD))


@pytest.mark.parametrize(
    "gold, made, expected",
    [
        ([GOLD], [EARLY], {"precision": 2 / 3, "recall": 2 / 6, "complete": 0, "trees": 1}),
        ([TWICE], [ONCE], {"precision": 1, "recall": 2 / 3, "complete": 0}),
        ([ONCE], [TWICE], {"precision": 2 / 3, "recall": 1}),
        # Sums are over brackets, not sentences.
        (
            [GOLD, SHORT],
            [GOLD, from_brackets("(X XX )")],
            {"precision": 6 / 7, "recall": 6 / 7, "complete": 1 / 2},
        ),
        # A sentence without a tree has no right bracket.
        ([GOLD, SHORT], [None, SHORT], {"precision": 1, "recall": 1 / 7, "trees": 1 / 2}),
        ([GOLD], [None], dict.fromkeys(("precision", "recall", "f1", "complete", "trees"), 0)),
    ],
)
def test_precision_and_recall(gold, made, expected):
    score = bracket_score(gold, made)
    assert expected.items() <= score.items()
    total = score["precision"] + score["recall"]
    assert score["f1"] * total == pytest.approx(2 * score["precision"] * score["recall"])
