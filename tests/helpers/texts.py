"""Text for the tests of the tokenizer: plain lines, odd lines, any text."""

import random

from hypothesis import strategies as st

LINES = [
    "a man 's hat , red .",
    "two young men are outside near many bushes .",
    "ein mann mit rotem hut und ein hund .",
    "zwei junge männer sind im freien in der nähe vieler büsche .",
    "1000 000 10000 0000 100",
]
# Enough repetition for a vocabulary of several hundred pieces.
CORPUS = LINES + [f"{a} {b}" for a in " ".join(LINES).split() for b in ("hat", "hut", "10", a)]
# As in real files: other scripts, emoji joined by U+200D, combining marks, control characters,
# runs of spaces, and text that looks like our special tokens.
ODD = [
    "",
    " ",
    "  a  b ",
    "\t a\n",
    "a\x00b",
    "\x00",
    "مرحبا بالعالم שלום",
    "😀 👨‍👩‍👧 🇩🇪",
    "e\u0301 é ﬁ ① Ａ",
    "\ufeffa",
    "a\u2028b\u0085c\r",
    "⁇ a",
    " ⁇ ",
    "<s> </s> <unk> <pad> <0x41>",
    "日本語",
]
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))


def odd_lines(count=1000, seed=7):
    """Returns lines of words, odd strings and random characters."""
    draw, lines = random.Random(seed), [*ODD, *LINES]
    letters = "abcdeäöüß ÄÉ  .,!?'-012\u00a0\u3000ﬁ①ｶé日本你😀\u0301\u200d\t<>/▁▁"
    words = " ".join(CORPUS).split()
    while len(lines) < count:
        parts = [draw.choice(words) for _ in range(draw.randint(0, 6))]
        parts += ["".join(draw.choice(letters) for _ in range(draw.randint(0, 12)))]
        draw.shuffle(parts)
        lines.append(draw.choice([" ", "  ", ""]).join(parts))
    return lines
