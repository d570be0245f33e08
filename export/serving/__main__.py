"""The command line of the service: `python -m keras_transformer.export.serving out/onnx`."""

import argparse
import contextlib
import os
import pathlib
import re
import select
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer.export.artefact.messages import flags_of, in_shell
from keras_transformer.export.serving import MissingExtra, ServedArtefact, serve
from keras_transformer.export.serving.limits import Limits

OPTION_TYPES: dict[str, type] = {
    "replicas": int,
    "gpus": float,
    "threads": int,
    "workers": int,
    "batch_tokens": int,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LIMITS = Limits()
# The arguments of the command, as `add_argument` takes them.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "models": {
        "nargs": "+",
        "metavar": "[NAME=]FOLDER[,OPTION=VALUE...]",
        "help": "folder of an artefact, and its name in the service (default: the folder's). A "
        "translator called en-de is a pair of languages for /translate. Options: replicas, gpus "
        "(for each), threads, workers, batch_tokens, provider",
    },
    "--host": {"default": "127.0.0.1", "help": "address to listen at (%(default)s)"},
    "--port": {"type": int, "default": 8080, "help": "port (%(default)s; 0: any)"},
    "--queue": {
        "type": int,
        "default": _LIMITS.waiting_lines,
        "metavar": "LINES",
        "help": "lines of a client that may wait for a model before its requests are refused "
        "(%(default)s)",
    },
    "--deadline": {
        "type": float,
        "default": _LIMITS.deadline_seconds,
        "metavar": "SECONDS",
        "help": "deadline of requests without one (%(default)g)",
    },
    "--drain": {
        "type": float,
        "default": 30.0,
        "metavar": "SECONDS",
        "help": "time for open requests after SIGTERM (%(default)g)",
    },
    "--allow-host": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "additional host name to accept in `Host` and `Origin`, for example your proxy's; "
        "repeatable",
    },
    "--api-keys": {"metavar": "FILE", "help": "file with the keys of clients, one a line"},
    "--trusted-proxies": {
        "type": lambda text: text.split(","),
        "default": [],
        "metavar": "ADDRESS,...",
        "help": "proxies, or networks of them, whose `X-Forwarded-For` names the client",
    },
    "--ssl-certfile": {"metavar": "FILE", "help": "certificate chain in PEM, for HTTPS"},
    "--ssl-keyfile": {"metavar": "FILE", "help": "its private key, if that is a separate file"},
    "--replicas": {
        "type": int,
        "metavar": "N",
        "help": "processes for each model that names no number, started and watched by Ray "
        "(default: this process alone, without Ray)",
    },
    "--ray-address": {"metavar": "ADDRESS", "help": "address of a running Ray cluster"},
    "--quiet": {"action": "store_true", "help": "no line for each request on standard output"},
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.serving",
        description="Serve artefacts over HTTP until SIGTERM, by default at 127.0.0.1.",
        epilog="Exit status: 0 all accepted requests were answered; 1 some were not; "
        "2 wrong arguments, a bad artefact, a port that is taken.",
    )
    for name, options in _ARGUMENTS.items():
        found.add_argument(name, **options)
    return found


def named(text: str, replicas: int | None = None) -> tuple[str, ServedArtefact]:
    """Reads the argument of a model: its name and how it is served.

    Args:
        text: `[NAME=]FOLDER[,OPTION=VALUE...]`.
        replicas: int, if the argument has none.

    Raises:
        ValueError: the argument is wrong.
    """
    place, *options = text.split(",")
    name, equals, folder = place.partition("=")
    if not equals:
        name, folder = pathlib.Path(place).resolve().name, place
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name of a model: pass NAME=FOLDER")
    found: dict[str, Any] = {"replicas": replicas}
    for option in options:
        key, _, value = option.partition("=")
        if key == "provider":
            found["providers"] = [value]
        elif key in OPTION_TYPES:
            try:
                found[key] = OPTION_TYPES[key](value)
            except ValueError as error:
                raise ValueError(f"{key} is a number, not {value!r}.") from error
        else:
            raise ValueError(f"{key!r} is not one of {', '.join([*OPTION_TYPES, 'provider'])}")
    return name, ServedArtefact(folder, **found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    options = parser().parse_args(arguments)

    def listening(port: int) -> None:
        scheme = "https" if options.ssl_certfile else "http"
        say(f"serving {', '.join(models)}: {scheme} {options.host}:{port}")

    try:
        pairs = [named(text, options.replicas) for text in options.models]
        models = dict(pairs)
        if len(models) < len(pairs):
            raise ValueError("two models have one name: pass NAME=FOLDER")
        limits = Limits(waiting_lines=options.queue, deadline_seconds=options.deadline)
        has_log = not options.quiet and sys.stdout is not None
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints, and the log is JSON
            answered = serve(
                models,
                options.host,
                options.port,
                limits=limits,
                log=_Output() if has_log else None,
                drain_seconds=options.drain,
                ray_address=options.ray_address,
                listening=listening,
                allowed_hosts=options.allow_host,
                api_keys=options.api_keys,
                trusted_proxies=options.trusted_proxies,
                ssl_certfile=options.ssl_certfile,
                ssl_keyfile=options.ssl_keyfile,
            )
    except (MissingExtra, ValueError, OSError, RuntimeError) as error:
        others = {"waiting_lines": "--queue", "deadline_seconds": "--deadline"}
        others |= {"drain_seconds": "--drain", "allowed_hosts": "--allow-host"}
        say(f"error: {in_shell(str(error), flags_of(vars(options), **others))}")
        return 2
    if not answered:
        say("some requests were not answered in time")
    return 0 if answered else 1


class _Output:
    """Standard output without a buffer, which Python would flush at exit, however long that takes.

    Writing waits for a reader even if the output is non-blocking.
    """

    def write(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:
                select.select([], [1], [])

    def flush(self) -> None:
        """Does nothing: `write` has written."""


def say(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def run() -> None:
    """Ends the process with the exit status of `main`."""
    os._exit(main())  # Python would wait for a batch that hangs in native code.


if __name__ == "__main__":
    run()
