"""HTML: the tags are kept, whatever the model writes."""

import html

import pytest
from helpers.document_models import Reader, copy, recording, reverse, shout
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.export.documents import AlignedText, DocumentTranslator
from keras_transformer.export.documents.html import DEEPEST


def forget(sentences):
    """A model that writes one other word, aligned with nothing."""
    return [AlignedText("<&>", ()) for _ in sentences]


def wander(sentences):
    """A model with scattered alignments, and with some words that have none."""
    found = []
    for sentence in sentences:
        count = len(sentence.split())
        pairs = tuple((5 * i % count, i) for i in range(2 * count) if i % 3)
        found.append(AlignedText(" ".join(f"w{i}" for i in range(2 * count)), pairs))
    return found


def spaced(text):
    return " ".join(text.split())


WORDS = st.lists(
    st.sampled_from(["Red", "cars", "go.", "Who?", "a", "&lt;b&gt;", "5", "\n ", "(so)", "é!"]),
    min_size=1,
    max_size=5,
).map(" ".join)
PLACEHOLDERS = st.sampled_from(
    ["{{name}}", "%1$s", "%d", "#{n}", "{0}", "https://a.example/b?c=d#e", "me@mail.example"]
)
EMPTY = st.sampled_from(
    ['<img src="a.png" alt="">', "<code>x &lt; y</code>", '<b translate="no">As is</b>']
)


def elements(inside):
    inline = st.sampled_from(["b", "i", 'a href="#x"', "span class='y'"])
    wrapped = st.tuples(inline, inside).map(lambda p: f"<{p[0]}>{p[1]}</{p[0].split()[0]}>")
    return st.lists(wrapped | WORDS | PLACEHOLDERS | EMPTY, min_size=1, max_size=4).map(
        lambda parts: " ".join(parts)
    )


INLINE = st.recursive(WORDS, elements, max_leaves=12)
BLOCKS = st.lists(
    INLINE.map(lambda x: f"<p>{x}</p>")
    | INLINE.map(lambda x: f"<ul>\n  <li>{x}</li><li>{x}<br>{x}</li></ul>")
    | st.sampled_from(["<!-- c -->", "<script>if (a < b) c();</script>", "<hr>", "\n\n"]),
    min_size=1,
    max_size=4,
).map("\n".join)


@given(BLOCKS, st.sampled_from([copy, reverse, forget, wander]))
def test_tags_come_back_well_nested(document, model):
    before, after = Reader(document), Reader(DocumentTranslator(model).html(document))
    assert after.nested and not after.open
    assert sorted(map(str, after.tags)) == sorted(map(str, before.tags))


@given(BLOCKS)
def test_a_copy_has_the_same_tags_and_text(document):
    before, after = Reader(document), Reader(DocumentTranslator(copy).html(document))
    assert after.tags == before.tags
    assert spaced(after.text) == spaced(before.text)


@given(st.lists(WORDS | PLACEHOLDERS, min_size=1).map(" ".join))
def test_placeholders_come_back(text):
    document = f"<p>{text}</p>"
    for model in (reverse, forget, wander):
        found = DocumentTranslator(model).html(document)
        for piece in text.split():
            if any(mark in piece for mark in "{}%@/"):
                assert found.count(piece) >= text.split().count(piece), found


@pytest.mark.parametrize(
    "document",
    [
        "<p>see <b>{x}.</b> ok</p>",
        "<p>a <code>x</code>b, <code>c</code> d<code>e</code></p>",
        "<p>a <code>x</code><kbd>y</kbd> b</p>",
        "<p>a <code>x</code><kbd>y</kbd>b</p>",
        "<p>a <u><code>x</code></u>b</p>",
        "<p>see {x}{y}. And {x}.</p>",
        "<p>a <img><b></b><i><u></u></i>b</p>",
        "<p>a <b><code>x</code></b> b <u><img><i>{x}</i></u>, c</p>",
        "<p>{{ a && b }} c &amp; https://a.example/?b=1&c=2 d</p>",
        "<p><b><u>$5</u></b>/<i>month</i> <b>中</b><i>文字</i></p>",
    ],
)
def test_adjacent_words_tags_and_placeholders_stay_together(document):
    assert DocumentTranslator(copy).html(document) == document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("<p>a <b>b c</b> d</p>", "<p>d <b>c b</b> a</p>"),
        ("a <i>b <b>c</b></i> d.", "d. <i><b>c</b> b</i> a"),
        ('see {x} <a href="#">b</a>', '<a href="#">b</a> see {x}'),
        ("<p>a <b>b<p>c</b> d", "<p><b>b a<p>d c</b>"),
        # A tag without partner encloses all after it, or before it, in the element around it.
        ("<u>a <b>b <i>c</b> d</i> e</u>", "<u>e d <b><i>c b</b> a</i></u>"),
        ("<u>a b <b>c d <i>e</b> f</i> g</u>", "<u>g f <b><i>e d c</b> b a</i></u>"),
        ("<b>a <u>b <i>c</u> d</b> e</i> f g", "g f e <b>d <u><i>c b</u> a</b></i>"),
        ("<p>no&nbsp;<b>x</b> AT&amp;T</p>", "<p>AT&amp;T <b>x</b> no</p>"),
        ("x < y &amp; z", "z &amp; y &lt; x"),
        ("5 < 6 &quot;", "5 < 6 &quot;"),
        ("", ""),
        ("<b></b>", "<b></b>"),
        ("<p>One two. Three four!</p>", "<p>two. One four! Three</p>"),
        ("<!DOCTYPE html>\na b", "<!DOCTYPE html>\nb a"),
    ],
)
def test_words_move_with_their_tags(document, expected):
    assert DocumentTranslator(reverse).html(document) == expected


@pytest.mark.parametrize("depth, is_one_unit", [(DEEPEST, True), (DEEPEST + 1, False)])
def test_an_element_that_is_too_deep_ends_units(depth, is_one_unit):
    start, end = "<b>" * depth, "</b>" * depth
    found = DocumentTranslator(reverse).html(f"u v {start}a b{end} x y")
    one, several = f"y x {start}b a{end} v u", f"v u {start}b a{end} y x"
    assert found == (one if is_one_unit else several)


@pytest.mark.parametrize(
    ("kept", "rest", "turned"),
    [
        ("<ul><li translate=no>x y", "<li>a b</ul><p>c d", "<li>b a</ul><p>d c"),
        ("<p TRANSLATE=No>a b", "<p>c d", "<p>d c"),
        ("<ul><li translate=no>x<ul><li>y z</ul>", "<li>a b</ul>c d", "<li>b a</ul>d c"),
        ("<div translate=no><div>a b</div>c d</div>", "e f", "f e"),
        ("<table><tr><td translate=no>x y", "<th>a b<tr><td>c d", "<th>b a<tr><td>d c"),
        ("<table><tr translate=no><td>x y<td>z", "<tr><td>a b", "<tr><td>b a"),
        ("<dl><dt translate=no>x y", "<dd>a b</dl>c d", "<dd>b a</dl>d c"),
        ("<ul><li translate=no>x<p>y z", "<li>a b</ul>", "<li>b a</ul>"),
        ("<p translate=no>x y", "<div>a b</div>c d", "<div>b a</div>d c"),
        ("<p translate=no>x y", "<hr>a b", "<hr>b a"),
        ("<div translate=no><p>a b<b>c d</div>", "e f", "f e"),
    ],
)
def test_an_element_that_stays_ends_where_browsers_end_it(kept, rest, turned):
    assert DocumentTranslator(reverse).html(kept + rest) == kept + turned


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<script>x="<!--"</script>', ""),
        ("<style><!-- a{} </style>", ""),
        ('<p title="<!--">', ""),
        ("", "<!-- c <p>d e</p>"),
        ("<!-- c --><p>", "<p title='d <p>e f</p>"),
        ("<p>", "<script>d e"),
        ("<!-- ' --><p>", "</p"),
    ],
)
def test_only_open_markup_ends_the_translation(before, after):
    found = DocumentTranslator(reverse).html(f"{before}a b{after}")
    assert found == f"{before}b a{after}"


@pytest.mark.parametrize("text", ["a &# b", "a &#x; b", "a & b", "a &lt b", "a &", "a <", "a <& b"])
def test_character_references_are_text(text):
    found = DocumentTranslator(copy).html(f"<p>{text}</p><p>c {text}")
    assert html.unescape(found) == html.unescape(f"<p>{text}</p><p>c {text}")
    assert found.count("<p>") == 2


def test_long_open_markup_takes_little_time():
    rest = "<!--" * 100_000 + "<a b='" * 100_000
    assert DocumentTranslator(copy).html(f"a b{rest}") == f"a b{rest}"


def test_attributes_comments_and_scripts_stay():
    document = (
        "<!DOCTYPE html>\n<html lang=en><head><script>a < b</script><style>b {}</style></head>"
        "<body ID='x' disabled><!-- hi --><p data-text=\"Hi there\">12</p></body></html>\n"
    )
    assert DocumentTranslator(forget).html(document) == document


def test_punctuation_stays_outside():
    found = DocumentTranslator(copy).html("A (<b>red</b>) car, <i>really</i>.")
    assert found == "A (<b>red</b>) car, <i>really</i>."


@pytest.mark.parametrize(
    "document",
    [
        '<p>A B <img src="a.png" alt="C D"></p>',
        '<img alt="A B">',
        "<a title='A B' href='a'>C</a>",
        '<input placeholder="A B">',
        '<button aria-label="A B">C</button>',
        '<input type="submit" value="A B">',
        '<option label="A B">C</option>',
        '<meta name="description" content="A B">',
        '<meta content="A B" property="og:title">',
        '<p title="A &quot;B&quot; &amp; C">D</p>',
        '<track label="A B">',
        "<p title='IT&#39;S A'>B</p>",
    ],
)
def test_attributes_that_people_read_are_translated(document):
    lower = document
    for word in ("A B", "C D", "&quot;B&quot;", "IT&#39;S A", ">C<", ">D<", ">B<", '"A', "& C"):
        lower = lower.replace(word, word.lower())
    assert DocumentTranslator(shout).html(lower.replace("&amp; C", "&amp; c")) == document


@pytest.mark.parametrize(
    "document",
    [
        '<input value="a b">',
        '<meta name="viewport" content="a b">',
        '<meta charset="utf-8">',
        '<a href="a b" class="c d">1</a>',
        '<code title="a b">c</code>',
        '<p translate="no" title="a b">c</p>',
        '<img alt="">',
        '<img alt="12">',
    ],
)
def test_other_attributes_stay(document):
    assert DocumentTranslator(shout).html(document) == document


@pytest.mark.parametrize(
    "kept",
    [
        '<span class="notranslate">Brand name</span>',
        '<span class="a notranslate b">Brand <b>name</b></span>',
        '<span translate="no">Brand name</span>',
        '<p class="notranslate">Brand name</p>',
        "<div class='notranslate'><p>Brand</p> name</div>",
        '<a href="x" class="notranslate">Brand</a>',
        "<kbd>Ctrl c</kbd>",
        "<svg><title>Brand</title></svg>",
        "<my-code translate=no>Brand</my-code>",
        '<td class="notranslate">Brand</td>',
    ],
)
def test_elements_that_say_so_stay(kept):
    found = DocumentTranslator(shout).html(f"<p>ask {kept} now</p>")
    assert kept in found and "ASK" in found and "NOW" in found


@pytest.mark.parametrize(
    "document, expected",
    [
        ("<p>one <b>two three</p>", "<p><b>three two one</p>"),
        ("<p>one two</b> three</p>", "<p>three two one</b></p>"),
        ("<p>one <b>two <i>three</b> four</p>", "<p>four <b><i>three two</b> one</p>"),
        ("<i>one <b>two</i> three", "three <i><b>two one</i>"),
        ("one <x-icon></x-icon> two", "two one <x-icon></x-icon>"),
        ("one <x-link>two three</x-link> four", "four <x-link>three two</x-link> one"),
    ],
)
def test_tags_without_partner_do_not_end_a_sentence(document, expected):
    calls = []
    found = DocumentTranslator(recording(calls, reverse)).html(document)
    assert len(calls[0]) == 1 and found == expected


def test_the_language_of_a_page_becomes_the_target():
    documents = DocumentTranslator(shout, "en", target_language="de")
    page = '<html lang="en-US"><p lang="fr">a</p><p xml:lang="en">b</p></html>'
    assert documents.html(page) == '<html lang="de"><p lang="fr">A</p><p xml:lang="de">B</p></html>'
    assert DocumentTranslator(shout).html(page) == page.replace(">a<", ">A<").replace(">b<", ">B<")
