"""Artefacts by name: the Hugging Face hub, or another server with its interface.

Needs the extra `hub`. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HOME` choose server, key and cache, as for
all programs that use `huggingface_hub`.
"""

import pathlib
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.startup import install
from keras_transformer.types import StrPath


def library() -> Any:
    """Imports `huggingface_hub`.

    Raises:
        ImportError: it is missing.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"Models by name need huggingface_hub. Install it with: {install('hub')}"
        ) from error
    return huggingface_hub


def download(name: StrPath, revision: str | None = None) -> pathlib.Path:
    """Returns the folder of an artefact: a local one, or one of the hub.

    Files that are in the cache already are not loaded again. An interrupted download continues at
    the next call.

    Args:
        name: path of a folder, or "user/name".
        revision: branch, tag or commit. Defaults to `None`: the newest commit.

    Raises:
        ArtefactError: the hub has no such artefact, or cannot be reached.
        ImportError: `huggingface_hub` is missing.
    """
    if pathlib.Path(name).is_dir():
        return pathlib.Path(name)
    hub = library()
    files = [signature.MANIFEST_FILE, *signature.FILES]
    try:
        folder = hub.snapshot_download(str(name), revision=revision, allow_patterns=files)
    except Exception as error:  # of the library, or of its HTTP client
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ArtefactError(
            f"{name} is no folder here, and {hub.constants.ENDPOINT} did not give it: {reason[0]} "
            "Check the name, the connection, and HF_TOKEN for private models."
        ) from error
    return pathlib.Path(folder)
