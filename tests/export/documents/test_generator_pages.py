"""Pages of well-known generators and frameworks keep their code and structure.

`pages/expected.txt` lists for each page the code that stays byte for byte ("="), and texts that the
model must get ("+"). Code that is a whole line of its page stays a line.
"""

import html
import itertools
import pathlib
import re

import polib
import pytest
from helpers.document_models import Reader, copy, recording, reverse, shout
from markdown_it import MarkdownIt
from mdit_py_plugins.gfm import gfm_plugin

from keras_transformer.export.documents import DocumentTranslator, translate_file

PAGES = pathlib.Path(__file__).with_name("pages")
EXPECTED = {
    name.strip(): lines.splitlines()
    for name, _, lines in (
        block.partition("\n") for block in (PAGES / "expected.txt").read_text("utf-8").split("@@ ")
    )
    if name
}
LANGUAGES = {"chinese.md": "zh", "japanese.html": "ja", "thai.md": "th", "arabic.html": "ar"}
# Texts that a reversal leaves as they are: the order of conversions or of blocks would change.
STAYED = {
    "django_template.html": 1,
    "wordpress_gutenberg.html": 1,
    "handlebars_email.html": 1,
    "discourse_post.md": 1,
    "wordpress.po": 1,
    "odoo.po": 1,
}
READ = ("alt", "title", "placeholder", "label", "aria-label", "content", "caption")
GITHUB = MarkdownIt("commonmark")
gfm_plugin(GITHUB, dollarmath=True)


def shown(path, text):
    """Returns what readers see, with one space for white space."""
    if path.suffix == ".md":
        text = GITHUB.render(text)
    elif path.suffix == ".po":
        texts = []
        for entry in polib.pofile(f"\n{text}"):
            forms = entry.msgstr_plural.items() or [(0, entry.msgstr)]
            texts += [
                form or (entry.msgid_plural if place else entry.msgid) for place, form in forms
            ]
        text = "\n".join(texts)
    return " ".join(re.sub(r"\s*(<[^<>]*>)\s*", r" \1 ", html.unescape(text)).split())


def lines(text):
    return [line.strip() for line in text.splitlines()]


def test_every_page_is_expected():
    assert sorted(EXPECTED) == sorted(
        path.name for path in PAGES.iterdir() if path.name != "expected.txt"
    )


@pytest.mark.parametrize("model", [copy, shout, reverse], ids=lambda model: model.__name__)
@pytest.mark.parametrize("name", EXPECTED)
def test_pages_keep_their_code_and_their_structure(name, model, tmp_path):
    path = PAGES / name
    source = path.read_text("utf-8")
    calls = []
    documents = DocumentTranslator(recording(calls, model), LANGUAGES.get(name, "en"))
    translate_file(documents, path, tmp_path / name)
    found, sentences = (tmp_path / name).read_text("utf-8"), [*itertools.chain(*calls)]
    kept = [line[2:] for line in EXPECTED[name] if line[:1] == "="]
    wanted = [line[2:] for line in EXPECTED[name] if line[:1] == "+"]
    given = [code for code in kept + wanted if any(code in one for one in sentences)]
    problems = [f"not in the page: {code}" for code in kept if code not in source]
    problems += [f"not given to the model: {text}" for text in wanted if text not in given]
    for code in kept:
        if found.count(code) < (1 if path.suffix == ".po" else source.count(code)):
            problems.append(f"lost: {code}")
        if path.suffix == ".md" and lines(found).count(code) < lines(source).count(code):
            problems.append(f"no line: {code}")
        if code in given and re.search(r"[a-zA-Z]\W|\W[a-zA-Z]", code):
            problems.append(f"given to the model: {code}")
    if documents.untranslated > (model is reverse) * STAYED.get(name, 0):
        problems.append(f"{documents.untranslated} units stayed")
    before, after = shown(path, source), shown(path, found)
    if model is shout:
        before, after = before.casefold(), after.casefold()
    if model is not reverse and before != after:
        problems.append("the text differs")
    if path.suffix == ".html":
        structures = [Reader(text, ignored=READ).tags for text in (source, found)]
        if model is reverse:
            structures = [sorted(map(str, one)) for one in structures]
        if structures[0] != structures[1]:
            problems.append("the tags differ")
    assert not problems, "\n".join([*problems, "---", found])
