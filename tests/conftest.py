"""Settings that all tests share: backend, threads, seeds, tiers, data sets.

`python -m pytest` runs the quick tests, `--full` also the slow ones, and `--nightly` all of them:
trainings, long fuzzing and tables of engines, too. A file named on the command line runs as with
`--full`.

Environment variables:
    KERAS_BACKEND: Keras' backend. Defaults to tensorflow.
    KERAS_TRANSFORMER_DATA: folder of the data sets. The fixture `data_set` skips a test if its data
        set is missing.
    KT_TEST_OPTIMIZE: if set, TensorFlow optimizes graphs and uses four threads, as in users'
        programs. Otherwise tests skip the optimization, which costs more time than it saves.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import os
import pathlib
import signal
import sys
import time

# Set before any framework is imported. One thread is fastest at these sizes.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "4" if "KT_TEST_OPTIMIZE" in os.environ else "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
from helpers import processes, shared  # noqa: E402

DATA_VARIABLE = "KERAS_TRANSFORMER_DATA"
DATA_SET_SKIP = "data set "
SHORT = pathlib.Path(__file__).parent / "data"  # many short files
GROWTH = 2**29  # bytes after which old objects are searched for garbage, too
collected = 0  # bytes of memory after that search
COROUTINE_SECONDS = 120  # of a test; others have the timeout of pyproject.toml
TIERS = ("quick", "full", "nightly")
CASES = pytest.StashKey[tuple[int, int]]()  # number of selected cases, and of all cases

# Every run draws the same examples, so that a failure can be repeated. The option
# `--hypothesis-profile=search` draws new ones.
for name, examples, derandomize in (
    ("quick", 20, True),
    ("full", 50, True),
    ("nightly", 150, True),
    ("search", 1000, False),
):
    hypothesis.settings.register_profile(
        name, max_examples=examples, derandomize=derandomize, deadline=None
    )

# A shell that runs tests in the background ignores SIGINT, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="only the quick tests of named files")
    parser.addoption("--full", action="store_true", help="run the slow tests, too")
    parser.addoption("--nightly", action="store_true", help="run all tests, also trainings")


def pytest_configure(config):
    gc.set_threshold(100_000, 50, 100)  # collecting graphs' objects took a seventh of the time
    # In pytest-xdist's workers, too: their options are those of the command line.
    paths = (pathlib.Path(argument.partition("::")[0]) for argument in config.args)
    names_a_file = not config.option.quick and any(path.is_file() for path in paths)
    config.option.full |= config.option.nightly or names_a_file
    if not config.getoption("--hypothesis-profile"):
        tiers = (name for name in ("nightly", "full") if getattr(config.option, name))
        hypothesis.settings.load_profile(next(tiers, "quick"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Returns three workers per two cores if memory allows, because tests wait for processes.

    22 minutes became 17. A worker grows to 5 GB. Without that room, pytest-xdist decides.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    cores = len(os.sched_getaffinity(0))
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    workers = min(3 * cores // 2, int(gibibytes / 6))
    return workers if workers > cores else None


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_make_parametrize_id(config, val, argname):
    # Bytes of a packed file hold the time, so the workers would collect tests of different names.
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config, items):
    """Drops tests of the longer tiers. Files with slow tests run first, short files last."""
    found = len(items)
    check_named_cases(config, items)
    for tier in ("full", "nightly"):
        if not getattr(config.option, tier):
            left_out = {item for item in items if is_of(tier, item)}
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=list(left_out))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.is_relative_to(SHORT)))
    config.stash[CASES] = len(items), found
    if hasattr(config, "workeroutput"):
        config.workeroutput["cases"] = config.stash[CASES]
    for item in items:
        if inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.obj = limited(item.obj)


def is_of(tier, item):
    """Returns whether a test belongs to a longer tier: all its cases, or those that are named."""
    case = case_of(item)
    if tier == "full" and any(case not in mark.args for mark in item.iter_markers("quick")):
        return True
    return any(not mark.args or case in mark.args for mark in item.iter_markers(tier))


def case_of(item):
    return item.callspec.id if hasattr(item, "callspec") else ""


def check_named_cases(config, items):
    """Refuses markers that name a case that is not there, such as `full("a case")`."""
    if any("::" in argument for argument in config.args):
        return  # some cases of a test only
    cases, named = {}, {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases.setdefault(test, set()).add(case_of(item))
        marks = (mark.args for mark in item.iter_markers() if mark.name in TIERS)
        named.setdefault(test, set()).update(*marks)
    for test, names in named.items():
        if missing := names - cases[test]:
            raise pytest.UsageError(f"{test} has no case {sorted(missing)}, but a mark names it.")


def limited(test):
    """Returns a coroutine function with a limit. A signal may leave its event loop in a wait."""

    @functools.wraps(test)
    async def run(**arguments):
        async with asyncio.timeout(COROUTINE_SECONDS):
            await test(**arguments)

    return run


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Copies the counts of a worker. All workers collect the same tests."""
    if cases := getattr(node, "workeroutput", {}).get("cases"):
        node.config.stash[CASES] = cases


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory):
    """Sets the folder where `helpers.shared` keeps files for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    shared.folder = folder / "shared"


@pytest.fixture(scope="module", autouse=True)
def garbage_of_one_file():
    """Excludes objects of imports and earlier files from garbage collections. Keras starts many."""
    collect_garbage()


@pytest.fixture(autouse=True)
def garbage_of_one_test():
    """Excludes graphs and models of a long test from later garbage collections."""
    start = time.perf_counter()
    yield
    if time.perf_counter() - start > 1:
        collect_garbage()


def collect_garbage():
    """Collects garbage, and excludes the rest from later collections until memory has grown."""
    global collected
    if has_grown := memory() > collected + GROWTH:
        forget_gradients()
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if has_grown:
        with contextlib.suppress(OSError, AttributeError):  # not on Linux, or without glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        collected = memory()


def forget_gradients():
    """Removes custom gradients from TensorFlow's registry, which keeps their graphs for ever."""
    if ops := sys.modules.get("tensorflow.python.framework.ops"):
        entries = ops.gradient_registry._registry
        for name in [name for name in entries if name.startswith("CustomGradient")]:
            del entries[name]


def memory():
    """Returns the resident memory of this process in bytes; 0 where it is unknown."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seeds the fixtures that the test is the first to use."""
    seed()


@pytest.fixture(autouse=True)
def seeded():
    """Seeds each test, so that it draws the same numbers alone or with others."""
    seed()


def seed():
    keras = sys.modules.get("keras")
    if keras is None:  # no collected file imports it
        return
    keras.utils.set_random_seed(20170612)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(20170612)
    if keras.backend.backend() == "tensorflow" and "KT_TEST_OPTIMIZE" not in os.environ:
        processes.skip_graph_optimizers()


@pytest.fixture
def eager():
    """Runs TensorFlow's functions without tracing, which takes longer than a few small steps."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def data_set():
    """A function that returns the path of a data set, or skips if it is missing."""

    def find(name):
        folder = os.environ.get(DATA_VARIABLE)
        if not folder:
            pytest.skip(f"{DATA_SET_SKIP}{name!r}: set {DATA_VARIABLE} to the folder that holds it")
        path = pathlib.Path(folder) / name
        if not path.exists():
            pytest.skip(f"{DATA_SET_SKIP}{name!r}: not found in {folder}")
        return path

    return find


@pytest.fixture(scope="module")
def forked_proofs():
    """Proves SavedModels in processes that need not import TensorFlow first."""
    with processes.forked_proofs():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """Reports missing data sets and the number of selected cases."""
    result = yield
    missing = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(DATA_SET_SKIP) or DATA_VARIABLE in reason:
            missing.setdefault(reason, []).append(report.nodeid)
    terminalreporter.section("missing data sets")
    for reason, tests in sorted(missing.items()):
        terminalreporter.write_line(f"{reason} ({len(tests)} skipped, first {tests[0]})")
    if not missing:
        terminalreporter.write_line("none")
    ran, found = config.stash.get(CASES, (0, 0))
    hint = "" if ran == found else "; `--full` runs more, `--nightly` all"
    terminalreporter.write_line(f"{ran:,} of {found:,} cases were selected{hint}")
    return result
