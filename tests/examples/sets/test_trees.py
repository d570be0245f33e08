"""Trees: what is read is what was written, and a wrong bracket is told."""

import re

import pytest
from support.sets.trees import (
    Tree,
    cleaned,
    from_brackets,
    phrases,
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


def test_traces_and_functions_are_left_out():
    trees = read_trees(TEXT)
    assert [tree.label for tree in trees] == ["TOP", "TOP"]
    assert str(cleaned(trees[0])) == CLEAN
    assert str(cleaned(trees[1])) == "(X (SYM *))"


def test_a_tree_of_traces_is_nothing():
    assert cleaned(read_trees("( (S (NP (-NONE- *)) (VP (-NONE- *))) )")[0]) is None


def test_several_trees_under_top_stay_together():
    tree = read_trees("( (NP (NN a)) (NP (NN b)) )")[0]
    assert str(cleaned(tree)) == "(TOP (NP (NN a)) (NP (NN b)))"


def test_words_and_tags_in_order():
    found = tagged_words(cleaned(read_trees(TEXT)[0]))
    assert found == [
        ("Anna", "NNP"), (",", ","), ("sleeps", "VBZ"), ("here", "RB"), ("of", "IN"),
        ("-LRB-", "-LRB-"), ("61", "CD"), (".", "."),
    ]  # fmt: skip


def test_phrases_are_the_trees_inside():
    (tree,) = read_trees("(S (NP (DT a) (NN b)) (VP (VB c) (PP (IN d) (NP (NN e)))) (. .))")
    labels = [phrase.label for phrase in phrases(tree)]
    assert labels == ["NP", "VP", "PP", "NP"]  # no word, and not the tree itself
    longest = phrases(tree, least=3)
    assert [tagged_words(phrase) for phrase in longest] == [tagged_words(tree)[2:5]]
    assert phrases(Tree("NN", ("b",))) == []


def test_brackets_and_back():
    tree = cleaned(read_trees(TEXT)[0])
    line = to_brackets(tree)
    assert (
        line == "(S (NP (NP XX )NP XX )NP (VP XX (ADVP XX )ADVP (PP XX (NP XX XX )NP )PP )VP XX )S"
    )
    assert from_brackets(line, tagged_words(tree)) == tree
    assert tagged_words(from_brackets(line)) == [("XX", "XX")] * 8


def test_closing_brackets_may_be_without_labels():
    tree = cleaned(read_trees(TEXT)[0])
    line = re.sub(r"\)\w+", ")", to_brackets(tree))
    assert line.endswith(" ) ) ) XX )") and from_brackets(line, tagged_words(tree)) == tree


def test_tags_in_place_of_xx_and_back():
    tree = cleaned(read_trees(TEXT)[0])
    line = to_brackets(tree, tags=True)
    assert line == (
        "(S (NP (NP NNP )NP , )NP (VP VBZ (ADVP RB )ADVP (PP IN (NP -LRB- CD )NP )PP )VP . )S"
    )
    assert from_brackets(line, tagged_words(tree)) == tree
    assert tagged_words(from_brackets(line))[:2] == [("NNP", "NNP"), (",", ",")]


def test_numbers_of_words_and_back():
    tree = cleaned(read_trees(TEXT)[0])
    line = to_brackets(tree, tags=True, numbers=True)
    assert line.startswith("(S (NP (NP 1 NNP )NP 2 , )NP (VP 3 VBZ") and line.endswith("8 . )S")
    assert from_brackets(line, tagged_words(tree)) == tree
    assert len(tagged_words(from_brackets(line))) == 8


@pytest.mark.parametrize(
    "line",
    [
        "(S (NP XX )",  # not closed
        "(S (NP XX )S XX )NP",  # closed by other labels
        "(S XX ) )",  # closed twice
        "(S (NP ) XX )",  # without word
        "(S XX ) (S XX )",  # two trees
        "XX (S XX )",  # a word outside
        "",
    ],
)
def test_what_is_no_tree_is_refused(line):
    with pytest.raises(ValueError):
        from_brackets(line)


def test_another_number_of_words_is_refused():
    with pytest.raises(ValueError, match="1 words are in brackets, but there are 2"):
        from_brackets("(S XX )", [("a", "DT"), ("b", "NN")])


@pytest.mark.parametrize(
    "text, told",
    [
        ("(S (NP a) b)", "one word, or brackets"),
        ("(S a b)", "one word, or brackets"),
        ("(S ())", "one word, or brackets"),
        ("(S (NP a)", "1 brackets are not closed, S first"),
        ("(S a) b", "'b' stands outside"),
    ],
)
def test_a_wrong_treebank_is_told(text, told):
    with pytest.raises(ValueError, match=told):
        read_trees(text)


def test_a_tree_is_written_as_a_treebank_writes_it():
    assert str(Tree("NP", (Tree("NN", ("dog",)),))) == "(NP (NN dog))"
