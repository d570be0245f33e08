"""Trees: reading, writing in brackets, whole treebanks, made sentences, and the bracket score.

EVALB documents how to count brackets. The expected numbers are counted by hand.
"""

import re
import zipfile

import pytest
from support.scores.bracket_score import bracket_score, brackets
from support.sets.treebank import PHRASES, WORDS, made_trees, read_treebank
from support.sets.trees import (
    Tree,
    cleaned,
    from_brackets,
    is_word,
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
TREE = cleaned(read_trees(TEXT)[0])


def test_traces_and_functions_are_left_out():
    trees = read_trees(TEXT)
    assert [tree.label for tree in trees] == ["TOP", "TOP"]
    assert [str(cleaned(tree)) for tree in trees] == [CLEAN, "(X (SYM *))"]
    assert cleaned(read_trees("( (S (NP (-NONE- *)) (VP (-NONE- *))) )")[0]) is None
    several = read_trees("( (NP (NN a)) (NP (NN b)) )")[0]
    assert str(cleaned(several)) == "(TOP (NP (NN a)) (NP (NN b)))"
    assert str(Tree("NP", (Tree("NN", ("dog",)),))) == "(NP (NN dog))"


def test_words_and_tags_in_order():
    words, tags = zip(*tagged_words(TREE), strict=True)
    assert " ".join(words) == "Anna , sleeps here of -LRB- 61 ."
    assert " ".join(tags) == "NNP , VBZ RB IN -LRB- CD ."


def test_phrases_are_the_trees_inside():
    (tree,) = read_trees("(S (NP (DT a) (NN b)) (VP (VB c) (PP (IN d) (NP (NN e)))) (. .))")
    labels = [phrase.label for phrase in phrases(tree)]
    assert labels == ["NP", "VP", "PP", "NP"]  # neither words nor the tree itself
    longest = phrases(tree, least=3)
    assert [tagged_words(phrase) for phrase in longest] == [tagged_words(tree)[2:5]]
    assert phrases(Tree("NN", ("b",))) == []


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
def test_a_line_that_is_not_a_tree_is_refused(line):
    with pytest.raises(ValueError):
        from_brackets(line)


@pytest.mark.parametrize(
    "text, told",
    [
        ("(S (NP a) b)", "one word, or brackets"),
        ("(S a b)", "one word, or brackets"),
        ("(S ())", "one word, or brackets"),
        ("(S (NP a)", "1 brackets are not closed, S first"),
        ("(S a) b", "'b' is outside"),
    ],
)
def test_an_error_in_a_treebank_is_reported(text, told):
    with pytest.raises(ValueError, match=told):
        read_trees(text)


def write(path, numbers):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("treebank/README", "(no tree")
        for number in numbers:
            tree = f"( (S (NP-SBJ (NN w{number})) (VP (VB x))) )\n( (S (-NONE- *)) )"
            packed.writestr(f"treebank/wsj_{number:04}.mrg", tree)
    return path


def test_articles_of_a_treebank_are_in_one_set_each(tmp_path):
    path = write(tmp_path / "wsj.zip", [199, 1, 150, 151, 170, 171])
    sets = read_treebank(path)
    words = [[tagged_words(tree)[0][0] for tree in side] for side in sets]
    assert words == [["w1", "w150"], ["w151", "w170"], ["w171", "w199"]]
    assert str(sets.train[0]) == "(S (NP (NN w1)) (VP (VB x)))"
    assert [len(side) for side in read_treebank(path, limit=1)] == [1, 1, 1]
    with pytest.raises(ValueError, match="has 2, 0, 0 trees in wsj_0001-0150"):
        read_treebank(write(path, [1, 2]))
    path.write_text("(S (NN a))")
    with pytest.raises(ValueError, match="is not a zip file"):
        read_treebank(path)


def labels(tree):
    yield tree.label
    for child in () if is_word(tree) else tree.children:
        yield from labels(child)


def test_made_sentences_use_the_whole_grammar_and_differ():
    used = {symbol for choices in PHRASES.values() for line in choices for symbol in line.split()}
    assert used | {"TOP"} == PHRASES.keys() | WORDS.keys()
    sets = made_trees()
    assert [len(side) for side in sets] == [2000, 200, 200]
    sentences = [tuple(tagged_words(tree)) for side in sets for tree in side]
    assert len(set(sentences)) == 2400
    for *_, (_, last) in sentences:
        assert last in ".?"
    assert max(map(len, sentences)) < 40
    assert made_trees(limit=3).test == sets.test[:3]
    found = {label for tree in sets.train for label in labels(tree)}
    assert found == {label.split("-")[0] for label in (PHRASES | WORDS).keys() - {"TOP"}}


GOLD, SHORT = read_trees(
    "(TOP (S (NP (NNP Anna)) (, ,) "
    "(VP (VBZ sits) (PRT (RP down)) (PP (IN in) (NP (NNP Rome)))) (. .)))\n(S (NN a))"
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


def test_punctuation_does_not_change_brackets():
    inside, quoted = read_trees(
        "(S (NP (NNP Anna) (, ,)) "
        "(VP (VBZ sits) (ADVP (RP down)) (PP (IN in) (NP (NNP Rome))) (. .)))"
        "(S (NP (`` ``)) (NN a) (PRN (: --) (. .)))"
    )
    assert brackets(inside) == brackets(GOLD)
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
    assert {name: score[name] for name in expected} == expected
    total = score["precision"] + score["recall"]
    assert score["f1"] * total == pytest.approx(2 * score["precision"] * score["recall"])


def test_trees_of_other_sentences_are_refused():
    with pytest.raises(ValueError, match="1 words are in brackets, but there are 2"):
        from_brackets("(S XX )", [("a", "DT"), ("b", "NN")])
    with pytest.raises(ValueError, match="sentence 0 has 7 words, but its tree has 1"):
        bracket_score([GOLD], [SHORT])
    with pytest.raises(ValueError, match="1 sentences and 0 trees"):
        bracket_score([GOLD], [])
