"""The guard of documents: code in a text, which a translation may not change.

Two kinds of code differ in the time at which they are found:

- Templates, formulas and links of a wiki may hold characters of HTML and Markdown. `Guard` replaces
  them by marks before a document is parsed.
- Conversions, names in braces and addresses are found in the text between the markup, by `pieces`.

A plural or a choice of ICU MessageFormat is code with texts in it, and these are translated.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# A number between two characters that no script uses. A third follows the number if the order of
# the code counts: the start, the middle and the end of a block.
_OPEN, _CLOSE, _ORDERED = "\ue000", "\ue001", "\ue002"
MARK = f"{_OPEN}\\d+{_ORDERED}?{_CLOSE}"
# A mark of code that begins with "<", and so would begin a block in Markdown.
TAG_MARK = re.compile(f"{_OPEN}0\\d")
# An expression in parentheses.
_ARGUMENTS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\)){0,300}\)"
# Templates (Jinja, Django, Liquid, Twig, Hugo, Handlebars, Mako, ERB, EJS, PHP; blocks of Blade,
# Angular and Svelte; expressions of JSX in attributes, and its comments; merge tags), names of
# shells and scripts, tags in square brackets, links of a wiki, commands and formulas of TeX,
# settings of a component, and the characters of marks.
_CODE = re.compile(
    r"\{%-?\s*(?P<block>comment|highlight|verbatim|codeblock|javascript|stylesheet|schema)\b[^\n]{0,500}?%\}"
    r"(?:[^{]|\{(?!%-?\s*(?:end)?(?P=block))){0,5000}\{%-?\s*end(?P=block)\s*-?%\}"
    r"|\{\{[<%]\s*(?P<code>highlight|mermaid|katex|math)\b[^\n]{0,500}?[>%]\}\}"
    r"(?:[^{]|\{(?!\{[<%]\s*/?\s*(?P=code))){0,5000}\{\{[<%]\s*/\s*(?P=code)\s*[>%]\}\}|\\\$"
    r"|\{\{!?--(?:(?!--\}\})[\s\S]){0,2000}--\}\}|\{!!(?:(?!!!\})[^\n]){0,500}!!\}"
    r"|\{/\*(?:(?!\*/\})[\s\S]){0,2000}\*/\}"
    r"|\{(?:[#:/](?:if|each|await|key|snippet|else|then|catch)|@(?:html|const|render|debug|attach))\b"
    r"(?:[^{}\n]|\{[^{}\n]*\}){0,500}\}|(?<=[\w\]]=)\{(?!\{)(?:[^{}\n]|\{[^{}\n]*\}){0,500}\}"
    rf"|(?<![\w@{{/.])@[a-z]\w*{_ARGUMENTS}"
    r"|(?:\}[ \t]*)?(?<![\w@{/.])@(?:(?:else[ ]?if|if|foreach|for|forelse|while|switch|case|defer)"
    rf"[ \t]*{_ARGUMENTS}|else|empty|default|end[a-z]+|loading|placeholder)(?!\w)"
    r"(?:[ \t]*\{(?=\s*$))?"
    r"|^[ \t]*%[ \t]+(?:if|elif|else|for|while|end\w*)\b[^\n]*$"
    r"|\*\|[A-Z][^|\n]{0,200}\|\*|\[%[^\[\]\n]{1,200}%\]"
    r"|\[/?[a-z][\w-]*(?:=[^\[\]\n]{1,200}|(?:\s+[\w-]+=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\[\]]+))+\s*/?)\](?![(\[])"
    r"|\[/[a-z][\w-]*\](?![(\[:])|\[(?P<tag>[a-z][\w-]*)\](?=(?:(?!\[/?(?P=tag)\b)[\s\S]){0,2000}\[/(?P=tag)\])"
    r"|\\begin\{(?P<env>\w+\*?)\}(?:(?!\\end\{)[\s\S]|\\end\{(?!(?P=env)\})){0,5000}\\end\{(?P=env)\}"
    r"|(?<!\\)\\[a-zA-Z]+(?:\[[^\]\n]{0,99}\])?(?:\{[^{}\n]{0,200}\})+|^\\[a-z]+[ \t]*$"
    r"|^[ \t]*:{2,}[\w-]+(?:\{[^{}\n]*\})?\n---\n(?:(?!---)[^\n]*\n){0,50}---$"
    r"|\{\\(?:display|text)style\b(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*\})*\}){0,500}\}"
    r"|\{\{\{[^{}`\n]{0,500}\}\}\}"
    r"|\{\{(?!\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,)(?:[^{}`\n]|\{[^{}`\n]*\}|(?<=[\s(,+?:])`[^`\n]*`(?=[\s),+:.])){0,500}\}\}"
    r"|\{%[^`\n]{0,500}?%\}|\{#(?=\s)[^`\n]{0,500}?#\}"
    r"|<%(?:(?!%>)[\s\S]){0,5000}%>|<\?(?:php|=)(?:(?!\?>)[\s\S]){0,5000}\?>"
    r"|[$#%@]\{[^{}`\n]{0,200}\}|\[\[[^\[\]\n]{1,200}\]\]"
    r"|\\{1,2}\((?:(?!\\{1,2}\)).){1,500}\\{1,2}\)"
    r"|\\{1,2}\[(?:(?!\\{1,2}\]).){0,500}?(?:[\^_=]|\\[a-zA-Z])(?:(?!\\{1,2}\]).){0,500}\\{1,2}\]"
    rf"|[{_OPEN}{_CLOSE}{_ORDERED}]",
    re.M,
)
# Code that starts, divides or ends a block.
_BLOCK = re.compile(
    r"\{%[-+]?\s*(?:end|if|el|for|unless|case|when|with|block|trans|plural|raw|call|filter|capture)"
    r"|\{\{[~<%]?\s*(?:[#/^]|(?:else|end|if|range|with)\b)|<%(?!-?[=#])|<\?php|\{[#:/]\w"
    r"|\}?\s*@(?:if|el|end|for|while|switch|case|empty|error|auth|guest|can)|\*\|(?:IF|EL|END)"
)
# A plural or a choice; then names and expressions in braces, forms of ICU without texts,
# conversions of printf, variables between percent signs, formulas between dollars, addresses, short
# names of emoji, mentions, hashtags, and the names of commits.
_PLACEHOLDER = (
    r"(?P<choice>\{\s*\w{1,99}\s*,\s*(?:plural|select|selectordinal)\s*,)"
    rf"|(?P<ordered>{_OPEN}\d+{_ORDERED}{_CLOSE})|{MARK}"
    r"|[$%#]?\{[^\s{}]{0,200}\}"
    r"|\{\s*[$@]?[\w.-]{1,99}\s*(?:,\s*(?:number|date|time|duration|ordinal|spellout|list)"
    r"\s*(?:,[^{}\n]{0,200})?)?\}"
    r"|\{\s*(?!\{)[\w$.()\[\]'\"]{1,99}\s+(?:[+*/%?<>]|[=!]==?|&&|\|\||-(?=\s\d))\s[^{}\n]{1,200}\}"
    r"|(?<![\w%])%%(?=\S)[^%\n]{1,200}(?<=\S)%%(?!\w)"
    r"|%%|%(?P<known>\d{1,3}\$|\(\w{1,99}\))?[-+#0']?(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?"
    r"(?:hh?|ll?|[Lqjzt])?[a-zA-Z@](?(known)|(?=x%|\W|$))"
    r"|(?<!\w)%[A-Za-z_]\w{0,99}%(?!\w)"
    r"|\$\$[^$\n]{1,500}\$\$|\$(?![\s$])(?=[^$\n]{0,500}[\\^_{])[^$\n]{1,500}(?<!\s)\$(?!\w)"
    r"|(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}]"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?<![\w:]):[a-z][a-z0-9_+-]{0,50}:(?![\w:])"
    r"|(?<![\w@/.])@[A-Za-z]\w{0,99}(?:[.:/-]\w{1,99}){0,9}(?:@[\w-]{1,63}(?:\.[\w-]{1,63})+)?"
    r"|#{2,3}\w{1,99}#{2,3}|(?<![\w#&/])#(?:[A-Za-z0-9_]+[/-])*[A-Za-z0-9_]+"
    r"|\b(?=[a-f]*\d)(?=\d*[a-f])[a-f\d]{7,64}\b"
)
# Conversions of printf and braces without a number or a name: their order says what they show.
_FORM = r"[-+#0']?(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[a-zA-Z@]"
UNNUMBERED = re.compile(rf"%%|%(?P<percent>{_FORM})(?=x%|\W|$)|\{{(?P<brace>(?::[^{{}}]*)?)\}}")
# The start of a branch of a choice, and the end of the choice.
_BRANCH = re.compile(r"\s*(?:offset:\d+\s*)?(?:=\d+|\w+)\s*\{")
_END = re.compile(r"\s*\}")
_BRACE = re.compile(r"[{}]")
LONGEST_CHOICE = 5_000  # characters
# The settings at the start of a page.
FRONT_MATTER = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\S).*?^(?:\1|\.{3})[ \t]*(?:\r?\n|\Z)", re.S | re.M
)


class Piece(NamedTuple):
    """A piece of a text.

    Attributes:
        text: str.
        is_code: bool.
        branches: for a plural or a choice, its code and the texts of its branches in turn; it
            begins and ends with code. Otherwise empty.
        is_ordered: bool, whether the code belongs to a block, so that its order counts.
    """

    text: str
    is_code: bool
    branches: Sequence[str] = ()
    is_ordered: bool = False


class Guard:
    """Replaces the code of a document by marks, and puts it back.

    Args:
        text: str, the document.

    Attributes:
        text: str, the document with marks.

    Example:

    >>> guard = Guard("{% if a < b %}Hello{% endif %}")
    >>> guard.restore(guard.text.upper())
    '{% if a < b %}HELLO{% endif %}'
    """

    def __init__(self, text: str) -> None:
        self._code: list[str] = []
        self._closed = set(re.findall(r"\[/([a-z][\w-]*)\]", text))
        self.text: str = _CODE.sub(self._mark, text)

    def restore(self, text: str) -> str:
        """Returns a text with the code of its marks."""
        return re.sub(MARK, lambda mark: self._code[int(re.search(r"\d+", mark[0])[0])], text)

    def _mark(self, match: re.Match[str]) -> str:
        self._code.append(match[0])
        zero = "0" * match[0].startswith("<")  # see `TAG_MARK`
        name = re.match(r"\[/?([a-z][\w-]*)", match[0])
        is_ordered = name[1] in self._closed if name else _BLOCK.match(match[0])
        ordered = _ORDERED if is_ordered else ""
        return f"{_OPEN}{zero}{len(self._code) - 1}{ordered}{_CLOSE}"


def unmarked(text: str) -> str:
    """Returns the output of a model without the characters of marks."""
    return re.sub(f"[{_OPEN}{_CLOSE}{_ORDERED}]", "", text)


def placeholders(more: str = "") -> re.Pattern[str]:
    """Returns the pattern of code for `pieces`. `more` is the pattern of further code."""
    return re.compile(f"{more}|{_PLACEHOLDER}" if more else _PLACEHOLDER)


def pieces(text: str, pattern: re.Pattern[str]) -> Iterator[Piece]:
    """Divides a text at its code.

    >>> [piece.text for piece in pieces("Dear {name}!", placeholders())]
    ['Dear ', '{name}', '!']
    """
    end = place = 0
    while match := pattern.search(text, place):
        branches, stop, place = (), match.end(), match.end()
        if match["choice"]:
            branches, stop = _branches(text, match)
            if not branches:
                continue
        if text[end : match.start()]:
            yield Piece(text[end : match.start()], False)
        yield Piece(text[match.start() : stop], True, branches, bool(match["ordered"]))
        end = place = stop
    if text[end:]:
        yield Piece(text[end:], False)


def _branches(text: str, header: re.Match[str]) -> tuple[Sequence[str], int]:
    """Returns the parts of a choice and its end; no parts if its braces do not match."""
    found, begin, place = [], header.start(), header.end()
    while branch := _BRANCH.match(text, place):
        depth, stop = 1, None
        for brace in _BRACE.finditer(text, branch.end(), begin + LONGEST_CHOICE):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                stop = brace.start()
                break
        if stop is None:
            return (), place
        found += [text[begin : branch.end()], text[branch.end() : stop]]
        begin, place = stop, stop + 1
    end = _END.match(text, place)
    return ([*found, text[begin : end.end()]], end.end()) if end and found else ((), place)
