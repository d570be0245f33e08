"""The protocols of the service: one file each, a table of fields and a function for the answer.

- `v2`: the Open Inference Protocol; `completions` and `transcriptions`: OpenAI's;
- `libretranslate`: LibreTranslate's; `lines`: lines in and lines out, as the command line.

A new protocol is a new file with a function `routes(models)`, and its name in `PROTOCOLS`.
`docs/architecture.md` has a complete example.
"""

from types import ModuleType

from keras_transformer.export.serving.protocols import (
    completions,
    libretranslate,
    lines,
    transcriptions,
    v2,
)

PROTOCOLS: tuple[ModuleType, ...] = (completions, libretranslate, lines, transcriptions, v2)
