"""Text for the tests of the tokenizer: plain lines, odd lines, any text."""

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
