"""Code, formulas and marks in a text stay, in every format and whatever a model writes."""

import re
import time

import pytest
from helpers.document_models import copy, reverse, shout

from keras_transformer.export.documents import DocumentTranslator, split_sentences
from keras_transformer.export.documents.code_kinds import INLINE, MARK, MARKUP
from keras_transformer.export.documents.guard import Guard, pieces, placeholders

SHOUT = DocumentTranslator(shout)

TEMPLATES = [
    "{% if booking.service != nil %}",
    "{%- for item in items | sort: 'name' -%}",
    "{% a < b and b > c %}",
    "{{ user.first_name | default: 'you' }}",
    "{{{ raw_html }}}",
    "{{< ref about.md >}}",
    "{{% notice %}}",
    "{# a comment of jinja #}",
    "<% if user.admin? %>",
    "<%= link_to 'x', y > z %>",
    "<?php if ($a > 1) echo 'hi'; ?>",
    "<?= $name ?>",
    "${user.name}",
    "#{count}",
    "%{total}",
    "@{user}",
    "[[Some Page|a name]]",
    "{user_name}",
    "{ count }",
    "%count%",
    ":wave:",
]


@pytest.mark.parametrize("code", TEMPLATES)
@pytest.mark.parametrize("model", [shout, reverse])
def test_templates_stay_in_every_format(code, model):
    documents = DocumentTranslator(model)
    text = f"Reservation {code} of two is open."
    for found in (
        documents.text(text),
        documents.html(f"<p>{text}</p>"),
        documents.markdown(f"{text}\n"),
        documents.markdown(f"- a *b* {text}\n"),
    ):
        assert code in found and "two" not in found.replace(code, "") or model is reverse
        assert found.count(code) == 1


@pytest.mark.parametrize("code", ["{{ url }}", "{% url 'a' %}", "${url}", "{url}", "<%= url %>"])
def test_templates_stay_in_links_and_tags(code):
    assert SHOUT.markdown(f"See [the page]({code}) now.\n") == f"SEE [THE PAGE]({code}) NOW.\n"
    page = f'<p>See <a href="{code}">the page</a> now.</p>'
    assert SHOUT.html(page) == f'<p>SEE <a href="{code}">THE PAGE</a> NOW.</p>'


def test_a_document_may_hold_the_characters_of_marks():
    text = "a \ue0000\ue001 b {{ x }} \ue001\ue000"
    assert Guard(text).restore(Guard(text).text) == text
    assert SHOUT.text(text) == text.upper().replace("X", "x")


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "You have {count, plural, one {# new message} other {# new messages}} today.",
            "YOU HAVE {count, plural, one {# NEW MESSAGE} other {# NEW MESSAGES}} TODAY.",
        ),
        (
            "{gender, select, male {He} female {She} other {They}} left.",
            "{gender, select, male {HE} female {SHE} other {THEY}} LEFT.",
        ),
        (
            "{n, selectordinal, one {#st} two {#nd} other {#th}} place",
            "{n, selectordinal, one {#ST} two {#ND} other {#TH}} PLACE",
        ),
        ("Paid {total, number, currency} now", "PAID {total, number, currency} NOW"),
        ("On {day, date, short}.", "ON {day, date, short}."),
        ("At {hour, time}.", "AT {hour, time}."),
        ("{count,plural,=0{no one}other{# people}}", "{count,plural,=0{NO ONE}other{# PEOPLE}}"),
        (
            "{n, plural, offset:1 =1 {you} other {you and # more}} like this",
            "{n, plural, offset:1 =1 {YOU} other {YOU AND # MORE}} LIKE THIS",
        ),
        (
            "{a, select, x {{n, plural, one {one cat} other {cats}}} other {no {b}}}!",
            "{a, select, x {{n, plural, one {ONE CAT} other {CATS}}} other {NO {b}}}!",
        ),
        ("{n, plural, other {}} left", "{n, plural, other {}} LEFT"),
        ("{n, plural, one {a} other {b} is open", "{N, PLURAL, ONE {a} OTHER {b} IS OPEN"),
        ("a {Hello world} b", "A {HELLO WORLD} B"),
    ],
)
def test_messages_of_icu_keep_their_code(text, expected):
    assert SHOUT.text(text) == expected
    assert SHOUT.html(f"<p>{text}</p>") == f"<p>{expected}</p>"
    assert DocumentTranslator(copy).text(text) == text


@pytest.mark.parametrize(
    "formula",
    [
        "$a_1 * b_2$",
        "$x < y$",
        "$\\alpha$",
        "$$x_1 = \\frac{a}{b}$$",
        "$`a_b`$",
        "$f(x) = x^2$",
        "\\\\(x_1 * y\\\\)",
        "\\\\[ a_b \\\\]",
        "$\\{a, b\\}$",
        "$a$",
    ],
)
def test_formulas_of_markdown_stay(formula):
    assert SHOUT.markdown(f"Let {formula} hold *here*.\n") == f"LET {formula} HOLD *HERE*.\n"
    assert SHOUT.markdown(f"# Let {formula}\n\n- a {formula} b\n").count(formula) == 2
    assert formula in DocumentTranslator(reverse).markdown(f"Let {formula} hold.\n")


def test_blocks_of_formulas_stay_and_prices_are_no_formulas():
    block = "$$\nx_1 = \\frac{a_1}{b_2}\n$$\n"
    assert SHOUT.markdown(f"a b\n\n{block}\nc d\n") == f"A B\n\n{block}\nC D\n"
    assert SHOUT.markdown("It costs $5 or $6 now.\n") == "IT COSTS $5 OR $6 NOW.\n"
    for formula in ("\\(x_1\\)", "\\[ a = b \\]", "$$a_b$$", "$\\beta_1$"):
        assert SHOUT.html(f"<p>Let {formula} hold</p>") == f"<p>LET {formula} HOLD</p>"
        assert SHOUT.text(f"Let {formula} hold") == f"LET {formula} HOLD"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("> [!NOTE]\n> Useful things.\n", "> [!NOTE]\n> USEFUL THINGS.\n"),
        ("> [!WARNING]\n> Be *careful* here\n> now.\n", "> [!WARNING]\n> BE *CAREFUL* HERE NOW.\n"),
        ("> [!tip]- A title\n> Some text\n", "> [!tip]- A TITLE\n> SOME TEXT\n"),
        ("[TOC]\n\na b\n", "[TOC]\n\nA B\n"),
        ("[[_TOC_]]\n", "[[_TOC_]]\n"),
        ("- [ ] a b\n- [x] c d\n- [-] e f\n", "- [ ] A B\n- [x] C D\n- [-] E F\n"),
        (
            "A claim.[^1]\n\n[^1]: https://a.example/x\n",
            "A CLAIM.[^1]\n\n[^1]: https://a.example/x\n",
        ),
        ("A claim[^note] here.\n\n[^note]: Ibid.\n", "A CLAIM[^note] HERE.\n\n[^note]: IBID.\n"),
        ("A[^1] b\n\n[^1]: Two words.\n", "A[^1] B\n\n[^1]: TWO WORDS.\n"),
        ("see [@doe2020, p. 3] now\n", "SEE [@doe2020, p. 3] NOW\n"),
        ("## A title {#a-title .big}\n", "## A TITLE {#a-title .big}\n"),
        ("a *b*{.red} c\n{: .note }\n", "A *B*{.red} C\n{: .note }\n"),
        ("Term\n: Its meaning\n", "TERM\n: ITS MEANING\n"),
        ("*[HTML]: a language of marks\n", "*[HTML]: A LANGUAGE OF MARKS\n"),
        ('!!! note "A title"\n    Some text\n', '!!! note "A TITLE"\n    SOME TEXT\n'),
        ("!!! warning\n    Some text\n", "!!! warning\n    SOME TEXT\n"),
        ("??? tip\n    Some text\n", "??? tip\n    SOME TEXT\n"),
        (":::tip Read this\n\nSome text\n\n:::\n", ":::tip READ THIS\n\nSOME TEXT\n\n:::\n"),
        ("::: info\nSome text\n:::\n", "::: info\nSOME TEXT\n:::\n"),
        (
            ":::{note} A title\n:class: big\nSome text\n:::\n",
            ":::{note} A TITLE\n:class: big\nSOME TEXT\n:::\n",
        ),
        (":::{figure} a/b.png\nSome text\n:::\n", ":::{figure} a/b.png\nSOME TEXT\n:::\n"),
        ("{% note %}\nSome text\n{% endnote %}\n", "{% note %}\nSOME TEXT\n{% endnote %}\n"),
        ("import Tabs from '@theme/Tabs'\n\na b\n", "import Tabs from '@theme/Tabs'\n\nA B\n"),
        ('--8<-- "a.md"\n', '--8<-- "a.md"\n'),
        ("+++\ntitle = 'a'\n+++\na b\n", "+++\ntitle = 'a'\n+++\nA B\n"),
        ("a ~~b c~~ d\n", "A ~~B C~~ D\n"),
        ("See {ref}`a-b` and {doc}`x/y` now\n", "SEE {ref}`a-b` AND {doc}`x/y` NOW\n"),
        ("![A picture](a.png) b\n", "![A PICTURE](a.png) B\n"),
    ],
)
def test_marks_of_the_dialects_stay(text, expected):
    assert SHOUT.markdown(text) == expected
    assert DocumentTranslator(copy).markdown(expected) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Press <kbd>Ctrl</kbd> now.\n", "PRESS <kbd>Ctrl</kbd> NOW.\n"),
        ("Run <code>ls -l</code> now.\n", "RUN <code>ls -l</code> NOW.\n"),
        (
            'Ask <span translate="no">Brand *Name*</span> now.\n',
            'ASK <span translate="no">Brand *Name*</span> NOW.\n',
        ),
        (
            'Ask <b class="x notranslate">Brand</b> now.\n',
            'ASK <b class="x notranslate">Brand</b> NOW.\n',
        ),
        ("Ask <b>some *one*</b> now.\n", "ASK <b>SOME *ONE*</b> NOW.\n"),
        ("a <sub>b</sub> <br> c\n", "A <sub>B</sub> <br> C\n"),
        ("a <!-- b --> c\n", "A <!-- b --> C\n"),
        ('a <img src="x.png" alt="some dog"> c\n', 'A <img src="x.png" alt="SOME DOG"> C\n'),
        ('<p align="center">Some text</p>\n', '<p align="center">SOME TEXT</p>\n'),
        (
            "<details>\n<summary>Click me</summary>\n\nSome text\n\n</details>\n",
            "<details>\n<summary>CLICK ME</summary>\n\nSOME TEXT\n\n</details>\n",
        ),
        ("<div>\n<code>keep me</code> a b\n</div>\n", "<div>\n<code>keep me</code> A B\n</div>\n"),
        (
            "| a | <kbd>x</kbd> b |\n| --- | --- |\n| c | d |\n",
            "| A | <kbd>x</kbd> B |\n| --- | --- |\n| C | D |\n",
        ),
        ("<script>\nlet a = 1;\n</script>\n\na b\n", "<script>\nlet a = 1;\n</script>\n\nA B\n"),
    ],
)
def test_html_inside_markdown_follows_the_rules_of_html(text, expected):
    assert SHOUT.markdown(text) == expected


def test_long_runs_of_quotation_marks_are_divided_in_linear_time():
    for text in ("\u00aba. " * 100_000, '"a. ' * 100_000, "(a. " * 100_000, "a\u300c" * 200_000):
        start = time.process_time()
        spans = split_sentences(text)
        assert time.process_time() - start < 5
        assert re.sub(r"\s", "", "".join(text[a:b] for a, b in spans)) == text.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        ":warning: This is dangerous",
        "@ann I agree with you",
        "import the data from the server",
        "export all of it = done",
        "?> _Words_ of an alert",
        '=== "UNIX"\n\n    Open a terminal',
        "status:: two words\nother:: three words",
        "A note.^[It is *here* now.] End",
        "See [some words]{.big} here",
        "[![One](a.png)](b)\n[![Two](c.png)](d)",
        '<Tabs>\n  <Tab label="a">\n\n  Some words\n\n  </Tab>\n</Tabs>',
        'Press <button @click="go()">the button</button> now',
    ],
)
def test_lines_that_look_like_code_are_translated(text):
    stays = re.compile(r"@ann|:\w+:|\w+::|\{\.big\}|\w+\.png|\(b\)|\(d\)|</?\w+[^<>]*>|===|\n")
    found = SHOUT.markdown(text + "\n")
    assert stays.findall(found) == [*stays.findall(text), "\n"] or "label=" in text or "png" in text
    left = stays.sub("", found)
    assert left == left.upper()


@pytest.mark.parametrize(
    "text",
    [
        "Hi {% if a %}my friend{% else %}you all{% endif %} there",
        "Hi {{#if a}}my friend{{/if}} there",
        "Hi *|IF:A|*my friend*|END:IF|* there",
        "Hi [b]my friend[/b] there",
        "Hi <% if a %>my friend<% end %> there",
        "Hi {#if a > 1}my friend{/if} there",
    ],
)
def test_blocks_of_templates_keep_their_order(text):
    code = re.compile(r"\{[%{#/].*?\}+|\*\|.*?\|\*|\[.*?\]|<%.*?%>")
    for model in (copy, shout, reverse):
        assert code.findall(DocumentTranslator(model).text(text)) == code.findall(text)


def test_code_without_an_end_takes_linear_time():
    for text in ("{% comment %} a ", "{{< highlight >}} a ", "@if (a ", "{{-- ", "Some {a} text. "):
        start = time.process_time()
        DocumentTranslator(copy).text(text * 5_000)
        assert time.process_time() - start < 5


@pytest.mark.parametrize("kind", MARKUP + INLINE, ids=lambda kind: kind.name)
def test_each_kind_of_code_has_an_example_that_stays(kind):
    if not kind.example:  # such code needs what stands around it
        return
    assert re.fullmatch(kind.pattern, kind.example, re.M)
    guard = Guard(kind.example)
    if kind in MARKUP:
        assert re.fullmatch(MARK, guard.text)
        assert guard.restore(f"so {guard.text} is") == f"so {kind.example} is"
    else:
        (piece,) = pieces(kind.example, placeholders())
        assert piece.is_code and piece.text == kind.example


def test_names_of_kinds_are_unique():
    names = [kind.name for kind in MARKUP + INLINE]
    assert len(names) == len(set(names))
