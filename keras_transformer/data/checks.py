"""Checks of text that users pass."""


def checked_strings(lines, name):
    """The list of `lines`, an argument called `name`.

    Raises:
        TypeError: `lines` is one string, or holds something that is not a string.
        ValueError: a string holds half a surrogate pair, which has no UTF-8 form.
    """
    if isinstance(lines, (str, bytes)):
        raise TypeError(
            f"`{name}` must be an iterable of strings, got one {type(lines).__name__}. Pass a list "
            "of sentences; `keras_transformer.read_lines(path)` reads them from a file."
        )
    lines = list(lines)
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise TypeError(
                f"`{name}` must hold strings, got {type(line).__name__} as item {number}. "
                "Decode bytes with `.decode('utf-8')`."
            )
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"item {number} of `{name}` holds half a surrogate pair at character "
                f"{error.start}, which has no UTF-8 form. Read files with "
                "`keras_transformer.read_lines`, which decodes strictly."
            ) from error
    return lines
