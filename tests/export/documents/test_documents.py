"""Plain text, Markdown, subtitles, catalogues, and the alignment of a real translator."""

import pathlib
import time

import pytest
from helpers import artefacts, exports
from helpers.document_models import copy, recording, shout
from markdown_it import MarkdownIt

import keras_transformer as kt
from keras_transformer.export.artefact.results import Details, Translation
from keras_transformer.export.documents import (
    AlignedText,
    DocumentTranslator,
    split_sentences,
    translate_file,
)
from keras_transformer.export.documents.__main__ import main
from keras_transformer.export.documents.translation import aligned_text
from keras_transformer.export.runtime import Translator

DOCUMENTS = DocumentTranslator(shout)
MARKDOWN = """# A *title*

Some **bold words** and `code x`, [a link](http://a.example "t") with
a second line.

```python
keep = "this"
```

> - item one
> - item ![alt](b.png) two <http://c.example>

| a | b `c` |
| --- | --- |
| one two | x\\*y |

[ref]: http://d.example
"""
TRANSLATED = """# A *TITLE*

SOME **BOLD WORDS** AND `code x`, [A LINK](http://a.example "t") WITH A SECOND LINE.

```python
keep = "this"
```

> - ITEM ONE
> - ITEM ![ALT](b.png) TWO <http://c.example>

| A | B `c` |
| --- | --- |
| ONE TWO | X\\*Y |

[ref]: http://d.example
"""


@pytest.mark.parametrize(
    "text, expected",
    [
        ("  Dr. Smith paid.  Who? \n I did ", ["Dr. Smith paid.", "Who?", "I did"]),
        # a space that is not ASCII stays in its sentence
        *((f"Who? Our plan A{c}.", ["Who?", f"Our plan A{c}."]) for c in "\x85\u00a0\u2003\u202f"),
    ],
)
def test_sentences_cover_the_text(text, expected):
    assert [text[start:stop] for start, stop in split_sentences(text)] == expected


def test_a_long_run_of_spaces_takes_little_time():
    start = time.process_time()  # excludes other processes
    assert DOCUMENTS.text(f"a{' ' * 100_000}b{' ' * 100_000}") == f"A B{' ' * 100_000}"
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "kind, text, expected",
    [
        (
            "text",
            "\n  One. Two {x}!\n\n\tthree  \r\n12\n",
            "\n  ONE. TWO {x}!\n\n\tTHREE  \r\n12\n",
        ),
        ("text", "three \t", "THREE \t"),
        ("text", "one\rtwo \r\rthree", "ONE\rTWO \r\rTHREE"),
        ("text", "is %ld %lu %zu %lld %hhd %Lf so", "IS %ld %lu %zu %lld %hhd %Lf SO"),
        ("text", "is %{count} #{name} ${total} {0} so", "IS %{count} #{name} ${total} {0} SO"),
        ("text", "is %(size)sMB %1$sPX %-5.2f so", "IS %(size)sMB %1$sPX %-5.2f SO"),
        ("text", "is https://a.example/?b=1&c_d=2 so", "IS https://a.example/?b=1&c_d=2 SO"),
        ("text", "%dx%d px", "%dX%d PX"),
        # words beside percent signs
        (
            "text",
            "100% free 50% off 10% all 5% a day, 100%ig",
            "100% FREE 50% OFF 10% ALL 5% A DAY, 100%IG",
        ),
        ("markdown", MARKDOWN, TRANSLATED),
        # the cells of a table are found in their order
        (
            "markdown",
            "| option | meaning |\n| --- | --- |\n| `name` | name |\n| http://a.b/file | file |\n",
            "| OPTION | MEANING |\n| --- | --- |\n| `name` | NAME |\n| http://a.b/file | FILE |\n",
        ),
        # beyond CommonMark
        ("markdown", "---\ntitle: a b\n---\n# a b\n", "---\ntitle: a b\n---\n# A B\n"),
        ("markdown", "---\n\na b\n\n---\n", "---\n\nA B\n\n---\n"),
        ("markdown", "- [x] a [y]\n- [ ] b\n", "- [x] A \\[Y\\]\n- [ ] B\n"),
        ("markdown", "a[^n] b\n\n[^n]: c d\n", "A[^n] B\n\n[^n]: C D\n"),
        (
            "markdown",
            "a {{ b_c }} http://d.e/f_g h_i",
            "A {{ b_c }} http://d.e/f_g H\\_I",
        ),
        ("markdown", "- one\n\ttwo three\n", "- ONE TWO THREE\n"),
        ("markdown", "a\0b c\n", "A\ufffdB C\n"),
    ],
)
def test_lines_markup_and_code_stay(kind, text, expected):
    assert DOCUMENTS.document(text, kind) == expected


def test_all_sentences_are_translated_in_one_call():
    calls = []
    texts = DocumentTranslator(recording(calls, shout)).texts(["One. Two.", "", "three"])
    assert texts == ["ONE. TWO.", "", "THREE"]
    assert calls == [["One.", "Two.", "three"]]


@pytest.mark.parametrize(
    "text",
    [
        "Use `` `a` `` here",
        "<http://x.example/a%20b> there",
        "[a](<foo(bar>) b",
        "[a](/u 'say \"hi\"') b",
        "![a](/x\\)y) b",
        "A \\&copy; b &amp;amp; c",
        "line\r\rtwo\r\rthree\r\r",
        "[a](<>) b",
        "a `<br>` b",
        "1986\\. A great year",
        "1\\) a\n\n\\- a\n\n\\+ a\n\n\\# a\n\n\\~~~ a",
        "a b  \n\\# c",
        "# a \\#",
        "a b  \n\\---",
        "a b\\\n\\===",
        "## 1. A b\n\n1. A\n- # b",
        "a\\![b](/x) c",
        "| a \\| b | c |\n|---|---|\n| `a\\|b` c | d |",
        "Use **`pip`** to install **`a`**. See *{x}* (_**<http://a.b>**_) and ![a](/b).",
        "a [![b](/c)](/d) e",
    ],
)
def test_markdown_keeps_its_meaning(text):
    render = MarkdownIt("commonmark").enable("table").render
    assert render(DocumentTranslator(copy).markdown(text)) == render(text)


def test_an_emphasis_without_words_leaves_no_asterisks():
    forget = DocumentTranslator(lambda sentences: [AlignedText("x y", ()) for _ in sentences])
    assert forget.markdown("**a *b*** [c](d) _e_") == "x y[](d)"


def test_a_hard_break_of_markdown_divides_words():
    calls = []
    found = DocumentTranslator(recording(calls, shout)).markdown("one  \ntwo\\\n*three*<br>four")
    assert found == "ONE  \nTWO  \n*THREE* <br> FOUR" and calls == [["one two three four"]]
    reverse = DocumentTranslator(lambda _: [AlignedText("two one", ((1, 0), (0, 1)))])
    assert reverse.markdown("one  \ntwo\n\n***\n") == "two one\n\n***\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "WEBVTT\n\nintro\n00:01.000 --> 00:02.000 line:0\nTom &amp; <v Bob>Jo\n1984\n\n"
            "NOTE a b\n\n2\n00:03.000 --> 00:04.000\n\n100:00:05.000 --> 100:00:06.000\n"
            "one<00:00:05.500><c> two</c>\n",
            "WEBVTT\n\nintro\n00:01.000 --> 00:02.000 line:0\nTOM &amp;\n<v Bob>JO 1984\n\n"
            "NOTE a b\n\n2\n00:03.000 --> 00:04.000\n\n100:00:05.000 --> 100:00:06.000\n"
            "ONE<00:00:05.500> <c>TWO</c>\n",
        ),
        (
            "1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>Hello</i> {name} there\r\n\r\n2\r\n"
            "00:00:03,000 --> 00:00:04,000\r\n{\\an8}a --> b\r\n12\r\n",
            "1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>HELLO</i> {name} THERE\r\n\r\n2\r\n"
            "00:00:03,000 --> 00:00:04,000\r\n{\\an8}A -->\r\nB 12\r\n",
        ),
        ("\ufeffWEBVTT - only a title\n", "WEBVTT - only a title\n"),
        ("", ""),
        (
            "1\n00:00:01,000 --> 00:00:02,500\nI went to\nthe shop.\n\n"
            "2\n00:00:03,000 --> 00:00:04,000\nReally?\n\n",
            "1\n00:00:01,000 --> 00:00:02,500\nI WENT TO\nTHE SHOP.\n\n"
            "2\n00:00:03,000 --> 00:00:04,000\nREALLY?\n\n",
        ),
    ],
)
def test_all_between_the_texts_of_subtitles_stays(tmp_path, text, expected):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    translate_file(DOCUMENTS, path, path, "subtitles")
    assert path.read_bytes().decode() == expected


HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'


@pytest.mark.parametrize(
    "text, written, fuzzy",
    [
        (
            'msgid "Hi %(name)s!\\n"\nmsgstr ""\n\nmsgid "done"\nmsgstr "fertig"\n\n'
            'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            ['msgstr "HI %(name)s!\\n"', 'msgstr "fertig"', 'msgstr[1] "%d FILES"'],
            2,
        ),
        (  # what people wrote
            '#, fuzzy\nmsgid "a man"\nmsgstr "ein mann (draft)"\n\n'
            'msgid "%d dog"\nmsgid_plural "%d dogs"\nmsgstr[0] "ein hund"\nmsgstr[1] ""\n',
            ['msgstr "ein mann (draft)"', 'msgstr[0] "ein hund"', 'msgstr[1] "%d DOGS"'],
            2,
        ),
        # an only form is the plural
        ('msgid "a file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n', ['msgstr[0] "%d FILES"'], 1),
    ],
)
def test_a_catalogue_gets_its_missing_messages(tmp_path, text, written, fuzzy):
    path = tmp_path / "a.po"
    path.write_text(HEAD + text)
    translate_file(DOCUMENTS, path, path)
    found = path.read_text()
    assert [line for line in written if line not in found] == []
    assert found.count("fuzzy") == fuzzy


def test_a_message_that_is_not_translated_stays_empty(tmp_path):
    path = tmp_path / "a.po"
    path.write_text(
        'msgid "Fine. A bad one."\nmsgstr ""\n\n'
        'msgid "a bad one"\nmsgid_plural "bad ones"\nmsgstr[0] "x"\nmsgstr[1] ""\n'
    )
    documents = DocumentTranslator(Runner())
    translate_file(documents, path, path)
    text = path.read_text()
    assert text.count('msgstr ""') == 2 and 'msgstr[1] ""' in text and "fuzzy" not in text
    assert documents.untranslated == 3


@pytest.mark.parametrize(
    "name, content, kind, message",
    [
        ("a.srt", b"hello\n", None, "no subtitle was found"),
        ("a.srt", b'{"a": 1}', None, "no subtitle was found"),
        ("a.vtt", b"hello\n", None, "no subtitle was found"),
        ("a.vtt", b'{"a": 1}', None, "no subtitle was found"),
        ("a.doc", b"hello\n", None, "suffix '.doc'"),
        ("a.txt", b"\xff", None, "not in UTF-8"),
        ("a.txt", b"hello\n", "pdf", "'pdf' is not known"),
    ],
)
def test_a_file_of_no_known_format_is_refused(tmp_path, name, content, kind, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        translate_file(DOCUMENTS, path, path, kind)
    assert path.read_bytes() == content


class Runner:
    """A `Translator` without alignments that fails on "bad" sentences."""

    def n_best(self, sentences):
        return [
            Translation(error="too long") if "bad" in one else Translation((one.upper(),), (0.0,))
            for one in sentences
        ]


def test_words_align_by_position_without_alignments():
    found = DocumentTranslator(Runner()).html("One <b>red</b> car. A bad <i>one</i>.")
    assert found == "ONE <b>RED</b> CAR. A bad <i>one</i>."


@pytest.mark.full
def test_a_translator_aligns_its_words(tmp_path):
    folder = exports.artefact(exports.DETAILED)
    translator = Translator(folder)
    sentence = "a man 's hat"
    (details, *_) = translator.n_best([sentence])[0].details
    words = list(details.words)
    found = DocumentTranslator(translator).html("<p>a <b>man</b> 's hat</p>")
    owned = [target for source, target in details.alignment if source == 1]
    assert found.count("<b>") == found.count("</b>") == 1
    inside = found.partition("<b>")[2].partition("</b>")[0].split()
    assert not owned or set(inside) & {words[target] for target in owned}
    assert found.replace("<b>", "").replace("</b>", "") == f"<p>{' '.join(words)}</p>"

    (tmp_path / "a.txt").write_text(f"{sentence}\n")
    assert main([str(folder), str(tmp_path / "a.txt"), "-o", str(tmp_path / "b.txt")]) == 0
    assert (tmp_path / "b.txt").read_text() == " ".join(words) + "\n"


@pytest.mark.full
def test_a_glossary_applies_to_sentences_across_tags(tmp_path):
    search = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])
    translator = Translator(exports.artefact(search), threads=1)
    (tmp_path / "words.tsv").write_text("the dog\tein mann\n", encoding="utf-8")
    documents = DocumentTranslator(translator, glossary=tmp_path / "words.tsv", max_length=9)
    found = documents.html("<p>the <b>dog</b> runs. two words</p>")
    plain = found.replace("<b>", "").replace("</b>", "")
    assert found.count("<b>") == found.count("</b>") == 1
    sentences = ["the dog runs.", "two words"]
    given = {"terms": [["ein mann"], []], "max_length": 9}
    assert plain == f"<p>{' '.join(translator.translate(sentences, **given))}</p>"
    assert "ein mann" in plain and "ein mann" in documents.markdown("# the *dog*\n")
    with pytest.raises(TypeError, match="glossary: options need a Translator, but function"):
        DocumentTranslator(shout, glossary={"the dog": "ein mann"})

    (tmp_path / "a.txt").write_text("the Dog  runs\n")
    command = [
        str(exports.artefact(search)),
        str(tmp_path / "a.txt"),
        "-o",
        str(tmp_path / "b.txt"),
    ]
    assert main([*command, "--glossary", str(tmp_path / "words.tsv")]) == 0
    assert "ein mann" in (tmp_path / "b.txt").read_text()


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main([str(tmp_path), "a.txt", "-o", "b.txt"]) == 1
    assert "artefact.json" in capsys.readouterr().err


def test_a_word_of_the_model_may_hold_a_no_break_space():
    details = Details(words=("Bonjour\u00a0!", "monde"), alignment=((0, 0), (1, 1)))
    result = Translation(("Bonjour\u00a0! monde",), (0.0,), None, (details,))
    found = aligned_text("Hello world", result)
    assert found == ("Bonjour\u00a0! monde", ((0, 0), (0, 1), (1, 2)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("page.html -o .", "page.html would become page.html, which is a document"),
        ("x/page.html y/page.html -o out", "which is the translation of x/page.html"),
    ],
)
def test_the_command_replaces_no_document_and_no_translation(
    folder, arguments, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for path in map(pathlib.Path, ("page.html", "x/page.html", "y/page.html", "out/page.txt")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("<p>a man</p>")
    assert main([str(folder), *arguments.split()]) == 1
    assert message in capsys.readouterr().err
    assert {path.read_text() for path in pathlib.Path().rglob("page.*")} == {"<p>a man</p>"}
    assert not pathlib.Path("out/page.html").exists()


def test_the_command_says_if_sentences_are_not_translated(tmp_path, capsys):
    tokenizer = artefacts.tokenizer()
    model = artefacts.model(tokenizer.vocab_size, score=[[float("nan"), 0.0]])
    artefact = artefacts.write(tmp_path / "model", tokenizer, model_bytes=model)
    (tmp_path / "a.txt").write_text("a man\nthe dog\n")
    assert main([str(artefact), str(tmp_path / "a.txt"), "-o", str(tmp_path / "b.txt")]) == 1
    assert "2 sentences are not translated" in capsys.readouterr().err
    assert (tmp_path / "b.txt").read_text() == "a man\nthe dog\n"
