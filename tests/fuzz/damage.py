"""Random damage to bytes: bits, numbers, lengths, parts, and values of a text."""

import re

EXTREMES = [0, 1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1]
TOKENS = ["-1", "0", "1e999", "NaN", "null", "true", '"x"', "[]", "{}", "9" * 40, '"\\ud800"']

LINES = [f"{a} {b}" for a in "abcdefgh" for b in "xyz"]  # text for a tokenizer of 272 pieces


def damaged(data, random, is_text):
    """Returns the bytes with one or two random changes."""
    data = bytearray(data)
    for _ in range(random.integers(1, 3)):
        size = len(data)
        place, other = sorted(random.integers(0, size + 1, 2))
        # Bit flips are frequent, and so are changed values, which keep a text in its format.
        kind = 7 if is_text and random.random() < 0.8 else max(0, random.integers(-3, 8))
        if kind == 0:  # bits
            for at in random.integers(0, max(1, size), random.integers(1, 9)) if size else ():
                data[at] ^= 1 << random.integers(0, 8)
        elif kind == 1:  # a number
            width = int(random.choice([1, 2, 4, 8]))
            value = int(random.choice(len(EXTREMES)))
            number = EXTREMES[value] % 256**width
            data[place : place + width] = number.to_bytes(width, "little")
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : min(other, place + 64)]
        elif kind == 4:
            data[place:place] = random.bytes(random.integers(1, 40))
        elif kind == 5:
            data[place:place] = data[place : min(other, place + 64)]
        elif kind == 6:
            data[place : place + 8] = random.bytes(8)
        else:  # a value of a text
            values = list(
                re.finditer(rb"-?\d+(\.\d+)?|\"[^\"]*\"|true|false|null|(?<=>)[^<]+", data)
            )
            if values:
                value = values[random.integers(0, len(values))]
                data[value.start() : value.end()] = str(random.choice(TOKENS)).encode()
    return bytes(data)
