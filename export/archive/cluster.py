"""Ray: started where it is not up, and its workers over the parts that are missing."""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator

from keras_transformer.export.archive.plan import ArchiveError
from keras_transformer.export.archive.worker import Worker
from keras_transformer.startup import SERVES

# Parts are read and written by the workers; only their names pass through Ray's memory.
OBJECT_STORE_BYTES = 100 * 2**20
# A Ray on this machine alone ends with the job. Its metrics have no reader, and they take a quarter
# of its processor time while the workers answer. Its older autoscaler ends a second late. The third
# setting makes all its processes listen on 127.0.0.1 only.
LOCAL_SETTINGS = {
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
# Ray reads its token from these variables or from this file, which Ray makes readable for everyone.
TOKEN_VARIABLES, TOKEN_FILE = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"), ".ray/auth_token"
# Parts whose lines are sorted by length together, so that their batches hold less padding: most
# parts, and most lines. That is also what a kill costs a worker.
PARTS_TOGETHER, LINES_TOGETHER = 5, 10_000
GO_ON = " What is done stays: mend that, and the same command goes on from there."


@contextlib.contextmanager
def running_ray(address, workers, threads):
    """Ray, as it is up in this process already, or from here to the end of the block."""
    # What Ray tells of its usage goes to its makers: who wants that says so.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # a process that was killed is news
    import ray

    if ray.is_initialized():
        yield
        return
    options = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        _hide_token()
        options["include_dashboard"] = False
        options["object_store_memory"] = OBJECT_STORE_BYTES
        options["num_cpus"] = max(os.cpu_count() or 1, (workers or 1) * threads)
    try:
        with ray_settings(address):
            ray.init(address, **options)
    except Exception as error:  # Ray raises plain ones, too, as after 30 s on a busy machine
        ray.shutdown()
        reason = str(error).partition("\n")[0]
        raise ArchiveError(f"Ray did not start ({address}): {reason}{GO_ON}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _hide_token() -> None:
    """Keeps the file of Ray's token from other users of this machine."""
    if not any(name in os.environ for name in TOKEN_VARIABLES):
        with contextlib.suppress(OSError, RuntimeError):  # no home, or not one of this user
            path = pathlib.Path.home() / TOKEN_FILE
            path.parent.mkdir(exist_ok=True)
            path.touch(0o600)  # Ray fills an empty file
            if not (path.is_symlink() and path.stat().st_size):  # a token that users share
                path.chmod(0o600)


@contextlib.contextmanager
def ray_settings(address: str) -> Iterator[None]:
    """Sets environment variables for Ray where it is imported, and started, in this block."""
    settings = {SERVES: "1"}  # its processes import no framework, even if one is installed
    if address == "local":
        settings |= {name: os.environ.get(name, LOCAL_SETTINGS[name]) for name in LOCAL_SETTINGS}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def answered(parts, arguments, workers, threads, gpus):
    """Yields what `Worker` gives for each of the `groups`, as they are done.

    Raises:
        ArchiveError: a worker could not do its part, or Ray failed.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if workers is None:
        room = ray.cluster_resources()
        workers = int(room.get("CPU", 1) // threads)
        workers = max(1, min(workers, int(room.get("GPU", 0) // gpus)) if gpus else workers)
    workers = min(workers, len(parts))
    rows = [{"parts": [part._asdict() for part in group]} for group in groups(parts, workers)]
    # A block for each group: they go to whom is free first. Each worker has one more at hand, for
    # Ray takes a tenth of a second to see that one is done and to hand out the next.
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        Worker,
        fn_constructor_args=arguments,
        compute=ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        num_cpus=threads,
        num_gpus=gpus,
    )
    for found in _without_traces(done.iter_rows()):
        if found["failure"]:
            raise ArchiveError(f"A worker failed: {found['failure']}{GO_ON}")
        yield found


def groups(parts, workers):
    """Lists of neighbouring parts, each of which a worker answers together.

    They become shorter towards the end, down to one part, so that no worker is left alone with a
    long one.

    Args:
        parts: list of `Part`, all of which are missing.
        workers: int.
    """
    most = min(PARTS_TOGETHER, LINES_TOGETHER // max(part.lines for part in parts))
    found, begin = [], 0
    while begin < len(parts):
        size = max(1, min(most, (len(parts) - begin) // (2 * workers)))
        found.append(parts[begin : begin + size])
        begin += size
    return found


def _without_traces(rows):
    """Yields rows; an error of Ray's own becomes one of a line."""
    import ray

    try:
        yield from rows
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        raise ArchiveError(f"Ray failed: {reason}{GO_ON}") from error
