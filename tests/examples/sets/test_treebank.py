"""Sets of trees: whole articles apart, and a grammar whose sentences agree."""

import zipfile

import pytest
from support.sets.treebank import PHRASES, WORDS, made_trees, read_treebank
from support.sets.trees import is_word, tagged_words


def write(path, numbers):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("treebank/README", "(no tree")
        for number in numbers:
            tree = f"( (S (NP-SBJ (NN w{number})) (VP (VB x))) )\n( (S (-NONE- *)) )"
            packed.writestr(f"treebank/wsj_{number:04}.mrg", tree)
    return path


def test_articles_are_apart(tmp_path):
    path = write(tmp_path / "wsj.zip", [199, 1, 150, 151, 170, 171])
    sets = read_treebank(path)
    words = [[tagged_words(tree)[0][0] for tree in side] for side in sets]
    assert words == [["w1", "w150"], ["w151", "w170"], ["w171", "w199"]]
    assert str(sets.train[0]) == "(S (NP (NN w1)) (VP (VB x)))"
    assert [len(side) for side in read_treebank(path, limit=1)] == [1, 1, 1]


def test_a_set_without_trees_is_told(tmp_path):
    with pytest.raises(ValueError, match="has 2, 0, 0 trees in wsj_0001-0150"):
        read_treebank(write(tmp_path / "wsj.zip", [1, 2]))


def test_no_zip_file_is_told(tmp_path):
    (tmp_path / "wsj.zip").write_text("(S (NN a))")
    with pytest.raises(ValueError, match="is no zip file"):
        read_treebank(tmp_path / "wsj.zip")


def test_the_grammar_is_complete():
    used = {symbol for choices in PHRASES.values() for line in choices for symbol in line.split()}
    assert used | {"TOP"} == PHRASES.keys() | WORDS.keys()


def test_made_sentences_are_each_another_and_agree():
    sets = made_trees()
    assert [len(side) for side in sets] == [2000, 200, 200]
    sentences = [tagged_words(tree) for side in sets for tree in side]
    assert len({tuple(word for word, _ in sentence) for sentence in sentences}) == 2400
    for tags in ([tag for _, tag in sentence] for sentence in sentences):
        assert tags[-1] in ".?" and max(len(tags), 3) < 40
    assert made_trees(limit=3).test == sets.test[:3]


def test_labels_have_no_endings():
    def labels(tree):
        yield tree.label
        for child in () if is_word(tree) else tree.children:
            yield from labels(child)

    found = {label for tree in made_trees().train for label in labels(tree)}
    assert found == {label.split("-")[0] for label in (PHRASES | WORDS).keys() - {"TOP"}}
