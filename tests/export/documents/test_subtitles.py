"""Subtitles: speakers keep their lines, tags stay, and no text gets more lines."""

import pytest
from helpers.document_models import reverse, shout

from keras_transformer.export.documents import DocumentTranslator, translate_file
from keras_transformer.export.documents.subtitles import wrapped

TIMES = "1\n00:00:01,000 --> 00:00:02,000\n"


def translated(tmp_path, text, model=shout, head=TIMES, suffix=".srt"):
    path = tmp_path / f"a{suffix}"
    path.write_text(f"{head}{text}\n\n", "utf-8")
    translate_file(DocumentTranslator(model), path, path)
    return path.read_text("utf-8").removeprefix(head).removesuffix("\n\n")


@pytest.mark.parametrize(
    "text",
    [
        "- Where are you now?\n- At home.",
        "- Everything okay?\n- Yes, I just wanted to hear from you.",
        "-Stop!\n-No way.",
        "- One speaker alone",
        "\u2013 Really?\n\u2013 Yes.",
        "\u2014Really?\n\u2014Yes.",
        "Before that.\n- And then?",
        "- A longer line of the first\nspeaker.\n- Short.",
        "- <i>Hello there?</i>\n- Yes.",
        "<i>- Hello?</i>\n<i>- Yes.</i>",
        "{\\an8}- Hello?\n- Yes.",
        "- 12\n- Yes.",
    ],
)
def test_each_speaker_keeps_a_line(tmp_path, text):
    wanted = text.upper().replace("<I>", "<i>").replace("</I>", "</i>").replace("\\AN8", "\\an8")
    found = translated(tmp_path, text)
    assert found.split() == wanted.split()
    dashes = [[line.find("-") for line in one.split("\n")] for one in (found, wanted)]
    assert dashes[0] == dashes[1]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<i>one two</i>", "<i>two one</i>"),
        ("one <b>two three</b>", "<b>three two</b> one"),
        ("{\\an8}one two", "{\\an8}two one"),
        ('<font color="#fff">one two</font>', '<font color="#fff">two one</font>'),
        ("<i>one two", "<i>two one"),
        ("one two</i>", "two one</i>"),
        ("one & two", "two & one"),
        ("a < b", "b < a"),
    ],
)
def test_tags_of_subrip_stay(tmp_path, text, expected):
    assert translated(tmp_path, text, reverse) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<v Bob>one two", "<v Bob>TWO ONE"),
        ("<v Bob>one two</v>", "<v Bob>TWO ONE</v>"),
        ("Tom &amp; Jo", "JO &amp; TOM"),
        ("<c.red>one</c> two", "TWO <c.red>ONE</c>"),
    ],
)
def test_tags_of_webvtt_stay(tmp_path, text, expected):
    def model(sentences):
        return [one._replace(text=one.text.upper()) for one in reverse(sentences)]

    head = "WEBVTT\n\n00:01.000 --> 00:02.000\n"
    assert translated(tmp_path, text, model, head, ".vtt") == expected


@pytest.mark.parametrize(
    "text, count, lines",
    [
        ("one two three four", 2, ["one two", "three four"]),
        ("<i>one two</i> three four", 2, ["<i>one two</i>", "three four"]),
        ("我喜欢苹果和香蕉", 2, ["我喜欢苹", "果和香蕉"]),
        ("word", 3, ["word"]),
        ("a longword", 2, ["a", "longword"]),
        ("", 2, [""]),
    ],
)
def test_lines_are_wrapped_by_their_visible_length(text, count, lines):
    assert wrapped(text, count) == lines
