"""Captions of two items, their pictures, the rules that compare both, and pieces of pictures."""

import numpy as np
import pytest
from helpers import scripts
from support.sets import captioned_scenes as captioned
from support.sets.picture_pieces import Codebook
from support.sets.pictures import made_pictures


@pytest.fixture(scope="module")
def items():
    return captioned.Items(*made_pictures(count=120).train, darkest=0.5)


def test_a_scene_and_its_reverse_have_two_captions():
    labels = "bag", "boot", "coat"
    scene = np.array([[0, 1, 2, 1, 0]])
    pair = captioned.captions(np.concatenate([scene, captioned.reversed_scenes(scene)]), labels)
    assert pair == ["a small boot left of a large bag", "a large bag right of a small boot"]


@pytest.mark.full
def test_a_drawn_picture_is_right_for_its_scene_and_for_no_other(items):
    scenes = np.concatenate(captioned.split_scenes(5))
    pictures = items.draw(scenes, np.random.default_rng(3))
    assert pictures.shape == (400, 44, 44) and pictures.dtype == np.uint8
    assert (np.array([np.count_nonzero(picture) for picture in pictures]) > 40).all()
    frames, classes = items.frames(most=80)

    def classify(found):  # by the most similar item
        squares = np.square(found[:, None].astype(float) - frames).sum(axis=(2, 3))
        return classes[squares.argmin(axis=1)]

    right = captioned.right_parts(pictures, scenes, classify)
    assert right["sizes"].mean() > 0.95 and right["both right"].mean() > 0.5
    assert (right["both right"] == right["items"] & right["sizes"]).all()
    wrong = scenes.copy()
    wrong[:, 0] = 1 - wrong[:, 0]  # the other size
    assert captioned.right_parts(pictures, wrong, classify)["sizes"].mean() < 0.05
    wrong = scenes.copy()
    wrong[:, 2] ^= 1  # the other side
    differ = (scenes[:, :2] != scenes[:, 3:]).any(axis=1)
    found = captioned.right_parts(pictures[differ], wrong[differ], classify)
    assert found["both right"].mean() < 0.2


def test_a_picture_without_two_parts_is_wrong():
    picture = np.zeros((44, 44), np.uint8)
    picture[4:16, 8:20] = 255
    alone = captioned.two_parts(picture, 0)
    picture[24:44, 24:44] = 255
    above, below = captioned.two_parts(picture, 0)
    right, left = captioned.two_parts(picture, 3)
    assert alone is None
    assert [captioned.size_of(part) for part in (above, below, right, left)] == [0, 1, 1, 0]
    assert captioned.framed(above)[4:16, 4:16].all() and captioned.framed(below).all()
    picture[20] = 255
    assert captioned.size_of(captioned.two_parts(picture, 0)[1]) == -1  # 44 pixels wide
    scenes = [[0, 0, 0, 1, 0]] * 2
    pictures = np.stack([picture, np.zeros_like(picture)])
    right = captioned.right_parts(pictures, scenes, lambda frames: np.zeros(len(frames), int))
    assert right["items"].tolist() == [True, False]
    assert not right["both right"].any()


def test_a_picture_is_a_text_of_pieces(items):
    pictures = items.draw(captioned.split_scenes(5)[0], np.random.default_rng(5))
    codebook = Codebook(pictures, 37, seed=1)
    texts = codebook.texts(pictures[:7])
    assert {len(text) for text in texts} == {121} and len(codebook.symbols) == 37
    black = [text.count(codebook.symbols[0]) for text in texts]
    patches = pictures[:7].reshape(7, 11, 4, 11, 4).any(axis=(2, 4))
    assert (black >= (~patches).sum(axis=(1, 2))).all()  # a dark patch may become black, too
    again = codebook.pictures(texts)
    assert again.dtype == np.uint8 and codebook.texts(again) == texts
    differ = np.abs(again.astype(float) - pictures[:7]).mean()
    assert differ < 0.5 * np.abs(pictures[:7].astype(float)).mean()


def test_captions_are_compared_and_written_word_by_word():
    draw = scripts.load("draw")
    known = [[0, 1, 2, 1, 0], [0, 1, 2, 1, 3], [1, 1, 2, 1, 3]]
    asked = [[0, 1, 2, 1, 4], [1, 1, 3, 1, 3]]
    found = draw.nearest(asked, known, np.random.default_rng(1))
    assert found[0] in (0, 1) and found[1] == 2

    # A caption has as many tokens, whatever its words.
    labels, codebook = ("disc", "T-shirt"), "一丁"
    tokenizer = draw.caption_tokenizer(labels, codebook)
    scenes = np.concatenate(captioned.split_scenes(2))
    ids = tokenizer.encode([caption + "丁" for caption in captioned.captions(scenes, labels)])
    assert {len(row) for row in ids} == {draw.WORDS + 1}
    assert {row[-1] for row in ids} == {tokenizer.pieces.index("丁")}
