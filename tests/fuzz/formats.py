"""Random documents of every format, through models that copy, shout and reverse.

    python tests/fuzz/formats.py --count 10000 --seed 5

Each document is read before and after its translation: Markdown with GitHub's rules, HTML with
Python's parser, catalogues with polib, subtitles and plain text line by line. A copy must be equal
but for white space, a shout equal but for case, and a reversal must have the same structure and
code. HTML has more checks in `documents.py`.
"""

import collections
import html
import random
import re
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import documents
import polib
from helpers.document_models import copy, reverse, shout
from markdown_it import MarkdownIt
from mdit_py_plugins.gfm import gfm_plugin

from keras_transformer.export.documents import DocumentTranslator, translate_file

SENTENCES = {
    "en": ("A red car stops here.", "Who is there?", "Dr. Smith paid 5 dollars!", "go on", "No"),
    "zh": ("我喜欢苹果。", "你好吗？", "今天很冷！", "他在北京工作", "好"),
    "ja": ("これは本です。", "元気ですか？", "東京へ行く", "はい！", "ラーメンが好き。"),
    "th": ("ฉันกินข้าว", "คุณสบายดีไหม", "วันนี้อากาศดี", "ไปไหน", "ใช่"),
    "he": ("שלום לך.", "מה שלומך?", "אני כאן!", "לא", "כן, היום."),
}
CODE = (
    "{{ user.name }}",
    "{% if a < b %}",
    "{name}",
    "%(count)s",
    "https://a.example/b?c=d",
    "#{x}",
    "me@mail.example",
    "{{< ref a >}}",
    "<?= x ?>",
    "[[Page]]",
    "{n, plural, one {# cat} other {# cats}}",
)
INLINE = ("*{}*", "**{}**", "[{}](/a/b)", "~~{}~~", "<b>{}</b>", '<a href="x">{}</a>')
KEPT = (
    "`a_b`",
    "<kbd>Ctrl</kbd>",
    "$a_1 * b_2$",
    "[^1]",
    '<span translate="no">Ab</span>',
    "<!-- c -->",
)


class Builder:
    """Draws parts of documents in one language."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.language = self.draw.choice(list(SENTENCES))
        self.space = "" if self.language in ("zh", "ja") else " "

    def text(self, code=CODE, most=4):
        """Returns sentences and code."""
        parts = []
        for _ in range(self.draw.randint(1, most)):
            part = self.draw.choice(SENTENCES[self.language])
            if code and self.draw.random() < 0.3:
                part = f"{part} {self.draw.choice(code)}"
            parts.append(part)
        return " ".join(parts) if self.draw.random() < 0.3 else self.space.join(parts)

    def rich(self, wraps=INLINE, kept=KEPT):
        """Returns text with inline markup."""
        parts = []
        for _ in range(self.draw.randint(1, 4)):
            kind = self.draw.random()
            if kind < 0.3:
                parts.append(self.draw.choice(wraps).format(self.text(most=2)))
            elif kind < 0.45:
                parts.append(self.draw.choice(kept))
            else:
                parts.append(self.text(most=2))
        return " ".join(parts)

    def markdown(self):
        blocks = []
        for _ in range(self.draw.randint(1, 5)):
            rich = self.rich()
            blocks.append(
                self.draw.choice(
                    (
                        rich,
                        f"# {rich}",
                        f"- {rich}\n- {self.rich()}",
                        f"1. {rich}\n\n   {self.rich()}",
                        f"> {rich}",
                        f"> [!NOTE]\n> {rich}",
                        f"| a | b |\n| --- | --- |\n| {self.text((), 1)} | `c` |",
                        f"```\n{rich}\n```",
                        "$$\nx_1 = \\frac{a}{b}\n$$",
                        f"- [ ] a {rich}\n- [x] {self.text(())}",
                        f'<p align="center">{self.text(())}</p>',
                        "{% note %}\n" + self.text(()) + "\n{% endnote %}",
                        f"{self.text(())}\n{self.rich()}",
                    )
                )
            )
        return "\n\n".join([*blocks, "[^1]: https://a.example", ""])

    def catalogue(self):
        found = polib.POFile()
        found.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
        for number in range(self.draw.randint(1, 5)):
            forms = self.draw.sample(("%s", "%d", "%.2f", "{}", "%%"), self.draw.randint(0, 2))
            text = f"{number} {self.rich(INLINE[4:], KEPT[1:2])} {' a '.join(forms)}"
            flags = self.draw.choice((["c-format"], ["python-format"], []))
            found.append(polib.POEntry(msgid=text, msgstr="", flags=flags))
        return str(found)

    def subtitles(self):
        cues = []
        for number in range(1, self.draw.randint(2, 5)):
            lines = [self.text((), 2) for _ in range(self.draw.randint(1, 3))]
            if self.draw.random() < 0.4:
                lines = [f"- {line}" for line in lines]
            if self.draw.random() < 0.3:
                lines[0] = f"<i>{lines[0]}</i>"
            times = f"00:00:{number:02},000 --> 00:00:{number + 1:02},000"
            cues.append("\n".join([str(number), times, *lines]))
        return "\n\n".join([*cues, ""])

    def plain(self):
        return "\n".join(self.text() for _ in range(self.draw.randint(1, 4))) + "\n"

    def page(self):
        tags = ("<p>{}</p>", "<li>{}</li>", '<div class="a">{}</div>', "<h1>{}</h1>", "{}<br>")
        rows = (self.draw.choice(tags).format(self.rich(INLINE[4:], KEPT[1:])) for _ in range(3))
        return "\n".join(rows).replace("`a_b`", "").replace("[^1]", "")


KINDS = {
    "markdown": ("markdown", Builder.markdown),
    "catalogue": ("po", Builder.catalogue),
    "subtitles": ("srt", Builder.subtitles),
    "text": ("txt", Builder.plain),
    "html": ("html", Builder.page),
}
GITHUB = MarkdownIt("commonmark")
gfm_plugin(GITHUB, dollarmath=True)


def rendered(kind, text):
    """Returns what readers see, and the structure around it."""
    if kind == "markdown":
        return GITHUB.render(text)
    if kind == "catalogue":
        return "\n".join(entry.msgstr or entry.msgid for entry in polib.pofile(f"\n{text}"))
    return text


def squeezed(text):
    text = " ".join(html.unescape(text).split())
    return re.sub(r"(?<=[\u3000-\u9fff\uff00-\uffef]) | (?=[\u3000-\u9fff])", "", text)


def equal(model, shown):
    """Returns the part of a rendered document that a model does not change."""
    return squeezed(shown) if model is copy else squeezed(shown).casefold()


def structure(kind, text):
    """Returns the tags, the code and the lines that a reversal must keep."""
    shown = rendered(kind, text)
    tags = collections.Counter(re.findall(r"</?[a-zA-Z][^<>]*>", shown))
    code = collections.Counter({one: html.unescape(shown).count(one) for one in CODE[:-1]})
    blocks = [tag for tag in re.findall(r"</?(?:p|li|h1|div|td|th|tr|br|pre)\b", shown)]
    lines = text.count("\n") if kind == "text" else len(re.findall("-->", text))
    return tags, code, blocks, lines


def conversions_fit(text):
    """Returns whether every translated message takes the arguments of its source."""
    for entry in polib.pofile(f"\n{text}"):
        for form in (r"%(?:(\d+)\$)?((?:\.2)?[sdf])", r"\{(\d+)?(\})"):
            source, target = (
                re.findall(form, message.replace("%%", ""))
                for message in (entry.msgid, entry.msgstr)
            )
            if not entry.msgstr or source == target or any(number for number, _ in source):
                continue  # empty, in order, or with the author's numbers
            numbered = sorted((int(number), kind) for number, kind in target if number)
            if [kind for _, kind in numbered] != [kind for _, kind in source]:
                return False
    return True


def translated(model, language, kind, text):
    """Returns the translation of a file, and the number of sentences that stayed."""
    suffix = KINDS[kind][0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{suffix}"
        path.write_bytes(text.encode())
        translator = DocumentTranslator(model, language)
        translate_file(translator, path, path, kind)
        return path.read_bytes().decode(), translator.untranslated


def problem(kind, builder, text):
    """Returns the problem with the translations of a document, or `None`."""
    before = rendered(kind, text)
    for model in (copy, shout, reverse):
        after, stayed = translated(model, builder.language, kind, text)
        shown = rendered(kind, after)
        name = model.__name__
        if model is reverse:
            if structure(kind, after) != structure(kind, text):
                return f"{name}: the structure differs\n{after}"
        elif stayed:
            return f"{name}: {stayed} units stayed\n{after}"
        elif equal(model, before) != equal(model, shown):
            return f"{name}: the text differs\n{after}"
        if kind == "catalogue" and not conversions_fit(after):
            return f"{name}: the conversions differ\n{after}"
    return None


def failures(count, seed):
    """Yields the seed of each document that fails, and the reason."""
    for number in range(seed, seed + count):
        kind = list(KINDS)[number % len(KINDS)]
        builder = Builder(number)
        text = KINDS[kind][1](builder)
        if reason := problem(kind, builder, text):
            yield number, f"{kind}, {reason}\n--- of\n{text}"


if __name__ == "__main__":
    raise SystemExit(documents.main(__doc__, failures))
