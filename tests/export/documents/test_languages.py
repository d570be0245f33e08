"""Languages without spaces, prefixes of a target language, and the places of tags in them."""

import numpy as np
import pytest
from helpers.document_models import copy, recording, reverse

import keras_transformer as kt
from keras_transformer.export.artefact.results import Details, Translation
from keras_transformer.export.documents import AlignedText, DocumentTranslator
from keras_transformer.export.documents.subtitles import subtitles
from keras_transformer.export.documents.translation import aligned_text

ENGLISH = {
    "你好吗？": "How are you?",
    "我很好。": "I am fine.",
    "谢谢！": "Thank you!",
    "これは本です。": "This is a book.",
    "終わり！": "The end!",
}
CHINESE = {english: chinese for chinese, english in ENGLISH.items()}


def known(table):
    """A model that knows some sentences; each word is aligned with the first one."""

    def translate(sentences):
        texts = [table[sentence] for sentence in sentences]
        return [AlignedText(one, tuple((0, i) for i in range(len(one.split())))) for one in texts]

    return translate


TO_ENGLISH = DocumentTranslator(known(ENGLISH), "zh")
TO_CHINESE = DocumentTranslator(known(CHINESE))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("你好吗？我很好。", "How are you? I am fine."),
        ("你好吗？我很好。谢谢！", "How are you? I am fine. Thank you!"),
        ("これは本です。終わり！", "This is a book. The end!"),
        ("你好吗？ 我很好。", "How are you? I am fine."),
        ("你好吗？\n我很好。", "How are you?\nI am fine."),
        ("{x}你好吗？我很好。", "{x}How are you? I am fine."),
        ("<p>你好吗？<b>我很好。</b></p>", "<p>How are you? <b>I am fine.</b></p>"),
        ("- 你好吗？我很好。\n", "- How are you? I am fine.\n"),
    ],
)
def test_a_space_comes_between_sentences(text, expected):
    kind = {"<": "html", "-": "markdown"}.get(text[0], "text")
    assert TO_ENGLISH.document(text, kind) == expected


def test_a_space_comes_between_sentences_of_subtitles():
    text = "1\n00:00:01,000 --> 00:00:02,000\n你好吗？我很好。\n\n"
    assert "How are you? I am fine." in subtitles(TO_ENGLISH, text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("How are you? I am fine.", "你好吗？我很好。"),
        ("How are you?  I am fine. Thank you!", "你好吗？我很好。谢谢！"),
        ("I am fine. 123", "我很好。123"),
        ("I am fine.\nThank you!", "我很好。\n谢谢！"),
    ],
)
def test_no_space_comes_between_chinese_sentences(text, expected):
    assert TO_CHINESE.text(text) == expected


@pytest.mark.parametrize(
    "text", ["你好吗？我很好。", "你好吗？ 我很好。", "A b. C d.", "กขค งจฉ", "Call me.Please do."]
)
def test_a_copy_keeps_the_space_between_sentences(text):
    for language in ("zh", "en", "th"):
        assert DocumentTranslator(copy, language).text(text) == text


@pytest.mark.parametrize(
    "page, expected",
    [
        ('<p>你好吗？<a href="x">我很好。</a>谢谢！</p>', "I am fine."),
        ('<p>你好吗？我很好。<a href="x">谢谢！</a></p>', "Thank you!"),
        ('<p><a href="x">你好吗？</a>我很好。</p>', "How are you?"),
        ('<p>你好吗？<a href="x">我很好。谢谢！</a></p>', "I am fine. Thank you!"),
    ],
)
def test_a_link_stays_around_its_sentence(page, expected):
    assert f'<a href="x">{expected}</a>' in TO_ENGLISH.html(page)


def test_sentences_without_space_between_them_do_not_shift_words():
    documents = DocumentTranslator(reverse)
    found = documents.html("<p>Call me.Please <b>do it</b> right now.</p>")
    assert "<b>it do</b>" in found
    found = documents.html("<p>One two.Three <i>four</i> five.Six <b>seven</b> eight.</p>")
    assert "<i>four</i>" in found and "<b>seven</b>" in found


@pytest.mark.parametrize(
    "page, model, expected",
    [
        # One word of the source is aligned with all words of the translation, and the reverse.
        (
            '<p>我<b>喜欢</b><a href="x">苹果</a>。</p>',
            ("I like apples .", ((0, 0), (0, 1), (0, 2), (0, 3))),
            '<p>I <b>like</b> <a href="x">apples</a> .</p>',
        ),
        (
            '<p>I <b>like</b> <a href="x">apples</a>.</p>',
            ("我喜欢苹果。", ((0, 0), (1, 0), (2, 0))),
            '<p>我<b>喜欢</b><a href="x">苹果。</a></p>',
        ),
        (
            "<p><i>我喜欢</i>苹果</p>",
            ("I like apples", ((0, 0), (0, 1), (0, 2))),
            "<p><i>I like</i> apples</p>",
        ),
        (
            "<p>ฉัน<b>กินข้าว</b></p>",
            ("I eat rice", ((0, 0), (0, 1), (0, 2))),
            "<p>I <b>eat rice</b></p>",
        ),
        ("<p>苹果<b>好</b></p>", ("りんごはいい", ((0, 0),)), "<p>りんごは<b>いい</b></p>"),
    ],
)
def test_elements_share_the_words_of_a_script_without_spaces(page, model, expected):
    documents = DocumentTranslator(lambda _: [AlignedText(*model)], "zh")
    assert documents.html(page) == expected


def test_pieces_align_scripts_without_spaces():
    details = Details(
        pieces=("▁I", "▁like", "▁apples", "</s>"),
        words=("I", "like", "apples"),
        alignment=((0, 0), (0, 1), (0, 2)),
        source_pieces=("▁", "苹果", "我", "喜欢", "</s>"),
        weights=np.eye(5)[[2, 3, 1, 4]],
    )
    result = Translation(("I like apples",), (0.0,), None, (details,))
    found = aligned_text("苹果我喜欢", result)
    assert found.text == "I like apples" and found.alignment == ((0, 2), (1, 0), (2, 1))
    documents = DocumentTranslator(lambda _: [found], "zh")
    assert documents.html("<b>苹果</b>我喜欢") == "I like <b>apples</b>"


@pytest.mark.parametrize(
    "before, expected",
    [
        ("one <b>two</b> three", "w0 <b>w1</b> w2"),
        ("<b>one</b> <i>two</i> three", "<b>w0 w1</b> <i>w2</i>"),
        ("<b>one two three</b> <i>four</i>", "<b>w0 w1</b> <i>w2</i>"),
    ],
)
def test_elements_with_text_keep_a_word(before, expected):
    """All words of the translation are aligned with the first word of the source."""

    def first(sentences):
        return [AlignedText("w0 w1 w2", ((0, 0), (0, 1), (0, 2))) for _ in sentences]

    assert DocumentTranslator(first).html(before) == expected


@pytest.mark.parametrize(
    "text, kind",
    [
        (">>fra<< Hello there. How are you?", "text"),
        (">>fra<< Hello there. How are you?\n>>fra<< I am fine. So!", "text"),
        ("<p>&gt;&gt;fra&lt;&lt; Hello there. How are you?</p>", "html"),
        (">>fra<<  Hello there. How are you?", "text"),
        ("- \\>>fra<< Hello there. How are you?", "markdown"),
    ],
)
def test_a_token_of_the_target_language_comes_before_each_sentence(text, kind):
    calls = []
    DocumentTranslator(recording(calls)).document(text, kind)
    assert len(calls[0]) > 1 and all(one.startswith(">>fra<< ") for one in calls[0])


def test_a_prefix_comes_before_each_sentence_and_has_no_place_in_the_alignment():
    calls = []
    documents = DocumentTranslator(recording(calls), source_prefix=">>deu<<")
    documents.html("<p>One two. Three <b>four</b></p>")
    documents.texts(["Five. Six."])
    assert calls == [
        [">>deu<< One two.", ">>deu<< Three four"],
        [">>deu<< Five.", ">>deu<< Six."],
    ]
    turned = DocumentTranslator(
        lambda _: [AlignedText("four three", ((2, 0), (1, 1)))], source_prefix=">>deu<<"
    )
    assert turned.html("three <b>four</b>") == "<b>four</b> three"


@pytest.mark.parametrize(
    "line, terms",
    [
        ("我喜欢苹果吗", ["apple"]),
        ("私はラーメンが好き", ["ramen"]),
        ("ฉันกินข้าว", ["rice"]),
        ("苹果", ["apple"]),
        ("苹果，苹果", ["apple"]),
        ("苹果汁很好", ["apple juice"]),
        ("苹 果", ["apple"]),
        ("ラーメンと苹果", ["ramen", "apple"]),
        ("ข้าวและ苹果", ["rice", "apple"]),
        ("ข้า", []),
        ("果苹", []),
        ("an 苹果 a day", ["apple"]),
    ],
)
def test_a_glossary_applies_in_scripts_without_spaces(line, terms):
    entries = {"苹果": "apple", "ラーメン": "ramen", "ข้าว": "rice", "苹果汁": "apple juice"}
    assert kt.Glossary(entries).terms(line) == terms


def test_a_glossary_annotates_a_line_without_spaces():
    assert kt.Glossary({"苹果": "apple"}).annotated("我喜欢苹果吗") == "我喜欢苹果 ⟦apple⟧吗"
