"""Opens an artefact with the engine that its manifest names."""

from typing import Any

from keras_transformer.export.artefact.manifest import engine_of
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.artefact.signature import LITERT
from keras_transformer.export.runtime.engine import Session
from keras_transformer.startup import install


def open_session(artefact: Artefact, providers: list[Any] | None = None, **options: Any) -> Session:
    """Opens a session of an `Artefact`.

    The engine is imported here, so that a server needs only the one that it uses.

    Args:
        artefact: Artefact, from `read_artefact`.
        providers, options: as in `Translator`.

    Raises:
        ArtefactError, ProviderError, ValueError: as the engine's own `open_session`.
        ImportError: the engine is not installed; the message has the command.
    """
    litert = engine_of(artefact.manifest) == LITERT
    try:
        if litert:
            from keras_transformer.export.runtime.litert_session import open_session as opener
        else:
            from keras_transformer.export.runtime.session import open_session as opener
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{artefact.folder} needs {error.name}, which is not installed here. Install it with: "
            f"{install('serve-litert' if litert else 'serve')}",
            name=error.name,
        ) from error
    return opener(artefact, providers, **options)
