"""Starts Ray for a service or an archive job, or connects to a running cluster."""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from keras_transformer.startup import SERVES

OBJECT_STORE_BYTES = 100 * 2**20  # only small objects pass through it
# Settings of a Ray on this machine alone. Its metrics are unused and take a quarter of its
# processor time while workers compute. The older autoscaler ends a second late. With the third
# setting all processes listen on 127.0.0.1 only.
LOCAL_SETTINGS = {
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
# Ray reads its token from these variables or from this file, which it makes readable for everyone.
TOKEN_VARIABLES, TOKEN_FILE = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"), ".ray/auth_token"


class RayError(RuntimeError):
    """Ray did not start, or no cluster answers at the address."""


@contextlib.contextmanager
def running_ray(address: str = "local", **options: Any) -> Iterator[ModuleType]:
    """Runs Ray within the block.

    If Ray is initialized in this process already, the block uses it and leaves it running.

    Args:
        address: cluster address for `ray.init`, or "local" for a new Ray on this machine, which
            ends with the block.
        options: arguments of `ray.init` for a new Ray on this machine.

    Yields:
        The module `ray`.

    Raises:
        RayError: Ray did not start.
        ModuleNotFoundError: Ray is not installed.
    """
    # Ray sends usage statistics to its makers by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # a killed process is not an error
    with ray_settings(address):
        import ray

        is_up = ray.is_initialized()
        if not is_up:
            _start(ray, address, options)
    try:
        yield ray
    finally:
        if not is_up:
            ray.shutdown()


def _start(ray: ModuleType, address: str, options: dict[str, Any]) -> None:
    if address == "local":
        _hide_token()
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    else:
        options = {}
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except Exception as error:  # Ray also raises plain exceptions, as after 30 s
        ray.shutdown()
        reason = str(error).partition("\n")[0]
        raise RayError(f"Ray did not start ({address}): {reason}") from error


def _hide_token() -> None:
    """Makes the file of Ray's token unreadable for other users."""
    if not any(name in os.environ for name in TOKEN_VARIABLES):
        with contextlib.suppress(OSError, RuntimeError):  # no home folder, or another user's
            path = pathlib.Path.home() / TOKEN_FILE
            path.parent.mkdir(exist_ok=True)
            path.touch(0o600)  # Ray fills an empty file
            if not (path.is_symlink() and path.stat().st_size):  # a token that users share
                path.chmod(0o600)


@contextlib.contextmanager
def ray_settings(address: str) -> Iterator[None]:
    """Sets environment variables for importing and starting Ray in this block."""
    settings = {SERVES: "1"}  # its processes import no framework, even if one is installed
    if address == "local":
        settings |= {name: os.environ.get(name, LOCAL_SETTINGS[name]) for name in LOCAL_SETTINGS}
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)
