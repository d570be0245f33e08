r"""The kinds of code in a text, which a translation may not change: one row each.

Add a row for another template language or message format. `MARKUP` may hold characters of HTML and
Markdown, so `guard.Guard` replaces it before a document is parsed. `INLINE` is found in the text
between the markup, by `guard.pieces`. Earlier rows come first where several match.
"""

import re
from typing import NamedTuple

# A number between two characters that no script uses. A third follows the number if the order of
# the code counts: the start, the middle and the end of a block.
OPEN, CLOSE, ORDERED = "\ue000", "\ue001", "\ue002"
MARK = f"{OPEN}\\d+{ORDERED}?{CLOSE}"
# An expression in parentheses.
_ARGUMENTS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\)){0,300}\)"


class Kind(NamedTuple):
    """One kind of code.

    Attributes:
        name: str.
        example: str, a text that is this code and nothing else.
        pattern: str, a regular expression with the flag `re.M`.
    """

    name: str
    example: str
    pattern: str


MARKUP = (
    Kind(
        "blocks of Liquid and Jinja whose content is code",
        "{% highlight python %}print(1){% endhighlight %}",
        r"\{%-?\s*(?P<block>comment|highlight|verbatim|codeblock|javascript|stylesheet|schema)\b[^\n]{0,500}?%\}"
        r"(?:[^{]|\{(?!%-?\s*(?:end)?(?P=block))){0,5000}\{%-?\s*end(?P=block)\s*-?%\}",
    ),
    Kind(
        "shortcodes of Hugo whose content is code",
        "{{< mermaid >}}graph TD{{< /mermaid >}}",
        r"\{\{[<%]\s*(?P<code>highlight|mermaid|katex|math)\b[^\n]{0,500}?[>%]\}\}"
        r"(?:[^{]|\{(?!\{[<%]\s*/?\s*(?P=code))){0,5000}\{\{[<%]\s*/\s*(?P=code)\s*[>%]\}\}",
    ),
    Kind("an escaped dollar", r"\$", r"\\\$"),
    Kind(
        "comments of Handlebars", "{{!-- note --}}", r"\{\{!?--(?:(?!--\}\})[\s\S]){0,2000}--\}\}"
    ),
    Kind("raw output of Blade", "{!! $html !!}", r"\{!!(?:(?!!!\})[^\n]){0,500}!!\}"),
    Kind("comments of JSX", "{/* note */}", r"\{/\*(?:(?!\*/\})[\s\S]){0,2000}\*/\}"),
    Kind(
        "blocks of Svelte",
        "{#if user.name}",
        r"\{(?:[#:/](?:if|each|await|key|snippet|else|then|catch)|@(?:html|const|render|debug|attach))\b"
        r"(?:[^{}\n]|\{[^{}\n]*\}){0,500}\}",
    ),
    Kind(
        "expressions of JSX in attributes",
        "",  # only after a name and "="
        r"(?<=[\w\]]=)\{(?!\{)(?:[^{}\n]|\{[^{}\n]*\}){0,500}\}",
    ),
    Kind(
        "directives of Blade with arguments",
        "@include('menu')",
        rf"(?<![\w@{{/.])@[a-z]\w*{_ARGUMENTS}",
    ),
    Kind(
        "blocks of Blade and Angular",
        "@if (user) {",
        r"(?:\}[ \t]*)?(?<![\w@{/.])@"
        r"(?:(?:else[ ]?if|if|foreach|for|forelse|while|switch|case|defer)"
        rf"[ \t]*{_ARGUMENTS}|else|empty|default|end[a-z]+|loading|placeholder)(?!\w)"
        r"(?:[ \t]*\{(?=\s*$))?",
    ),
    Kind(
        "lines of Mako", "% if user:", r"^[ \t]*%[ \t]+(?:if|elif|else|for|while|end\w*)\b[^\n]*$"
    ),
    Kind("merge tags", "*|FNAME|*", r"\*\|[A-Z][^|\n]{0,200}\|\*"),
    Kind("tags of Template Toolkit", "[% name %]", r"\[%[^\[\]\n]{1,200}%\]"),
    Kind(
        "shortcodes and BBCode with arguments",
        '[gallery ids="1,2"]',
        r"\[/?[a-z][\w-]*(?:=[^\[\]\n]{1,200}|(?:\s+[\w-]+=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\[\]]+))+\s*/?)\](?![(\[])",
    ),
    Kind("the end of a shortcode", "[/caption]", r"\[/[a-z][\w-]*\](?![(\[:])"),
    Kind(
        "the start of a shortcode that ends",
        "",  # only before its end
        r"\[(?P<tag>[a-z][\w-]*)\](?=(?:(?!\[/?(?P=tag)\b)[\s\S]){0,2000}\[/(?P=tag)\])",
    ),
    Kind(
        "environments of TeX",
        r"\begin{align}a &= b\end{align}",
        r"\\begin\{(?P<env>\w+\*?)\}(?:(?!\\end\{)[\s\S]|\\end\{(?!(?P=env)\})){0,5000}\\end\{(?P=env)\}",
    ),
    Kind(
        "commands of TeX",
        r"\ref{fig:one}",
        r"(?<!\\)\\[a-zA-Z]+(?:\[[^\]\n]{0,99}\])?(?:\{[^{}\n]{0,200}\})+",
    ),
    Kind("a command of TeX in a line", r"\newpage", r"^\\[a-z]+[ \t]*$"),
    Kind(
        "settings of a component of Nuxt",
        "::card\n---\nicon: star\n---",
        r"^[ \t]*:{2,}[\w-]+(?:\{[^{}\n]*\})?\n---\n(?:(?!---)[^\n]*\n){0,50}---$",
    ),
    Kind(
        "formulas of MediaWiki",
        r"{\displaystyle x^2}",
        r"\{\\(?:display|text)style\b(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*\})*\}){0,500}\}",
    ),
    Kind("raw output of Handlebars", "{{{html}}}", r"\{\{\{[^{}`\n]{0,500}\}\}\}"),
    Kind(
        "expressions in two braces",
        "{{ user.name | upper }}",
        r"\{\{(?!\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,)"
        r"(?:[^{}`\n]|\{[^{}`\n]*\}|(?<=[\s(,+?:])`[^`\n]*`(?=[\s),+:.])){0,500}\}\}",
    ),
    Kind("tags of Jinja, Liquid and Twig", "{% include 'menu' %}", r"\{%[^`\n]{0,500}?%\}"),
    Kind("comments of Jinja", "{# note #}", r"\{#(?=\s)[^`\n]{0,500}?#\}"),
    Kind("ERB and EJS", "<%= name %>", r"<%(?:(?!%>)[\s\S]){0,5000}%>"),
    Kind("PHP", "<?php echo 1 ?>", r"<\?(?:php|=)(?:(?!\?>)[\s\S]){0,5000}\?>"),
    Kind("names of shells, Ruby and scripts", "${HOME}", r"[$#%@]\{[^{}`\n]{0,200}\}"),
    Kind("links of a wiki", "[[Main page]]", r"\[\[[^\[\]\n]{1,200}\]\]"),
    Kind("formulas of TeX in a line", r"\(x^2\)", r"\\{1,2}\((?:(?!\\{1,2}\)).){1,500}\\{1,2}\)"),
    Kind(
        "formulas of TeX",
        r"\[x^2\]",
        r"\\{1,2}\[(?:(?!\\{1,2}\]).){0,500}?(?:[\^_=]|\\[a-zA-Z])(?:(?!\\{1,2}\]).){0,500}\\{1,2}\]",
    ),
    Kind("the characters of marks", OPEN, rf"[{OPEN}{CLOSE}{ORDERED}]"),
)
# Code of `MARKUP` that starts, divides or ends a block.
BLOCK = re.compile(
    r"\{%[-+]?\s*(?:end|if|el|for|unless|case|when|with|block|trans|plural|raw|call|filter|capture)"
    r"|\{\{[~<%]?\s*(?:[#/^]|(?:else|end|if|range|with)\b)|<%(?!-?[=#])|<\?php|\{[#:/]\w"
    r"|\}?\s*@(?:if|el|end|for|while|switch|case|empty|error|auth|guest|can)|\*\|(?:IF|EL|END)"
)

# The form of a conversion of printf.
_FORM = r"[-+#0']?(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[a-zA-Z@]"
INLINE = (
    Kind(
        "the start of a plural or a choice of ICU MessageFormat",
        "",  # its end is found by its braces
        r"(?P<choice>\{\s*\w{1,99}\s*,\s*(?:plural|select|selectordinal)\s*,)",
    ),
    Kind("code of a block", f"{OPEN}7{ORDERED}{CLOSE}", rf"(?P<ordered>{OPEN}\d+{ORDERED}{CLOSE})"),
    Kind("other code of `MARKUP`", f"{OPEN}7{CLOSE}", MARK),
    Kind("names in braces", "{name}", r"[$%#]?\{[^\s{}]{0,200}\}"),
    Kind(
        "arguments of ICU MessageFormat",
        "{price, number, currency}",
        r"\{\s*[$@]?[\w.-]{1,99}\s*(?:,\s*(?:number|date|time|duration|ordinal|spellout|list)"
        r"\s*(?:,[^{}\n]{0,200})?)?\}",
    ),
    Kind(
        "expressions in braces",
        "{count + 1}",
        r"\{\s*(?!\{)[\w$.()\[\]'\"]{1,99}\s+(?:[+*/%?<>]|[=!]==?|&&|\|\||-(?=\s\d))\s[^{}\n]{1,200}\}",
    ),
    Kind(
        "variables between two percent signs",
        "%%user name%%",
        r"(?<![\w%])%%(?=\S)[^%\n]{1,200}(?<=\S)%%(?!\w)",
    ),
    Kind("an escaped percent sign", "%%", "%%"),
    Kind(
        "conversions of printf",
        "%2$s",
        r"%(?P<known>\d{1,3}\$|\(\w{1,99}\))?" + _FORM + r"(?(known)|(?=x%|\W|$))",
    ),
    Kind("variables between percent signs", "%USER_NAME%", r"(?<!\w)%[A-Za-z_]\w{0,99}%(?!\w)"),
    Kind("formulas between two dollars", "$$x^2$$", r"\$\$[^$\n]{1,500}\$\$"),
    Kind(
        "formulas between dollars",
        "$x^2$",
        r"\$(?![\s$])(?=[^$\n]{0,500}[\\^_{])[^$\n]{1,500}(?<!\s)\$(?!\w)",
    ),
    Kind(
        "addresses of pages",
        "https://example.org/a_b",
        r"(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}]",
    ),
    Kind(
        "addresses of mail",
        "anna@example.org",
        r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    ),
    Kind("short names of emoji", ":smile:", r"(?<![\w:]):[a-z][a-z0-9_+-]{0,50}:(?![\w:])"),
    Kind(
        "mentions and names of packages",
        "@scope/package",
        r"(?<![\w@/.])@[A-Za-z]\w{0,99}(?:[.:/-]\w{1,99}){0,9}(?:@[\w-]{1,63}(?:\.[\w-]{1,63})+)?",
    ),
    Kind("names between number signs", "##NAME##", r"#{2,3}\w{1,99}#{2,3}"),
    Kind("hashtags", "#topic", r"(?<![\w#&/])#(?:[A-Za-z0-9_]+[/-])*[A-Za-z0-9_]+"),
    Kind("the names of commits", "2f40364", r"\b(?=[a-f]*\d)(?=\d*[a-f])[a-f\d]{7,64}\b"),
)
# Conversions of printf and braces without a number or a name: their order says what they show.
UNNUMBERED = re.compile(rf"%%|%(?P<percent>{_FORM})(?=x%|\W|$)|\{{(?P<brace>(?::[^{{}}]*)?)\}}")


def any_of(kinds: tuple[Kind, ...]) -> str:
    """Returns the pattern of several kinds."""
    return "|".join(kind.pattern for kind in kinds)
