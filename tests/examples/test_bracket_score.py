"""Brackets are counted as EVALB documents it. Numbers here are counted by hand."""

import pytest
from support.scores.bracket_score import bracket_score, brackets
from support.sets.trees import from_brackets, read_trees, tagged_words


def tree(text):
    return read_trees(text)[0]


GOLD = tree(
    "(TOP (S (NP (NNP Anna)) (, ,) "
    "(VP (VBZ sits) (PRT (RP down)) (PP (IN in) (NP (NNP Rome)))) (. .)))"
)


def test_the_brackets_of_a_tree():
    assert brackets(GOLD) == {
        ("S", 0, 5): 1,
        ("NP", 0, 1): 1,
        ("VP", 1, 5): 1,
        ("ADVP", 2, 3): 1,  # PRT and ADVP are equal
        ("PP", 3, 5): 1,
        ("NP", 4, 5): 1,
    }


def test_punctuation_moves_nothing():
    inside = tree(
        "(S (NP (NNP Anna) (, ,)) "
        "(VP (VBZ sits) (ADVP (RP down)) (PP (IN in) (NP (NNP Rome))) (. .)))"
    )
    assert brackets(inside) == brackets(GOLD)
    assert brackets(tree("(S (NP (`` ``)) (NN a) (PRN (: --) (. .)))")) == {("S", 0, 1): 1}


def test_a_bracket_that_comes_twice_must_be_found_twice():
    twice, once = tree("(S (NP (NP (NN a))) (VB b))"), tree("(S (NP (NN a)) (VB b))")
    assert brackets(twice)["NP", 0, 1] == 2
    score = bracket_score([twice], [once])
    assert (score["precision"], score["recall"], score["complete"]) == (1, 2 / 3, 0)
    score = bracket_score([once], [twice])
    assert (score["precision"], score["recall"]) == (2 / 3, 1)


def test_precision_and_recall():
    # Right: S and the first NP. Wrong: VP ends too early. Missed: VP, PRT, PP, NP.
    made = from_brackets("(S (NP XX ) XX (VP XX XX XX ) XX XX )", tagged_words(GOLD))
    score = bracket_score([GOLD], [made])
    assert (score["precision"], score["recall"]) == (2 / 3, 2 / 6)
    assert score["f1"] == pytest.approx(2 * 2 / (3 + 6))
    assert (score["complete"], score["trees"]) == (0, 1)


def test_sums_are_over_brackets_not_sentences():
    short = tree("(S (NN a))")
    made = from_brackets("(X XX )")
    score = bracket_score([GOLD, short], [GOLD, made])
    assert (score["precision"], score["recall"], score["complete"]) == (6 / 7, 6 / 7, 1 / 2)


def test_a_sentence_without_tree_has_found_nothing():
    score = bracket_score([GOLD, tree("(S (NN a))")], [None, tree("(S (NN a))")])
    assert (score["precision"], score["recall"], score["trees"]) == (1, 1 / 7, 1 / 2)
    nothing = bracket_score([GOLD], [None])
    assert nothing == dict.fromkeys(("precision", "recall", "f1", "complete", "trees"), 0)


def test_punctuation_is_what_the_sentence_says():
    # The words of a line of brackets have no tags of their own.
    made = from_brackets("(S (NP XX ) XX (VP XX (PRT XX ) (PP XX (NP XX ) ) ) XX )")
    assert bracket_score([GOLD], [made])["f1"] == 1


def test_what_does_not_fit_is_told():
    with pytest.raises(ValueError, match="sentence 0 has 7 words, but its tree 1"):
        bracket_score([GOLD], [tree("(S (NN a))")])
    with pytest.raises(ValueError, match="1 sentences and 0 trees"):
        bracket_score([GOLD], [])
