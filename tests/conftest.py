"""Settings that every test shares: backend, threads, seeds, data sets, a report of missing data.

`KERAS_BACKEND` chooses the backend (default tensorflow). `KERAS_TRANSFORMER_DATA` names the folder
of data sets; tests that need one ask for it by the `data_set` fixture and are skipped where it is
missing.
"""

import gc
import os

# Before any framework is imported: one thread is fastest at these sizes, and the log is readable.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pathlib  # noqa: E402

import pytest  # noqa: E402
from support import processes  # noqa: E402

DATA_VARIABLE = "KERAS_TRANSFORMER_DATA"
DATA_SET_SKIP = "data set "
SHORT = pathlib.Path(__file__).parent / "data"  # many files, each of little time


def pytest_configure(config):
    gc.set_threshold(100_000, 50, 100)  # graphs are many small objects: a seventh of the time
    config.addinivalue_line(
        "markers", "numeric: compares numbers with a reference; runs on every Keras backend"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Three workers for two cores, since tests wait for processes, where memory has room for them.

    22 minutes became 17. A worker grows to 5 GB; without that room it is as pytest-xdist decides.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    cores = len(os.sched_getaffinity(0))
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    workers = min(3 * cores // 2, int(gibibytes / 6))
    return workers if workers > cores else None


def pytest_collection_modifyitems(items):
    """Files with slow tests first, many short files last: then all workers end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.is_relative_to(SHORT)))


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, alone or in company."""
    try:
        import keras
    except ImportError:  # the tests of the framework-free parts run without it
        return
    keras.utils.set_random_seed(20170612)
    if keras.backend.backend() == "tensorflow":
        processes.skip_graph_optimizers()


@pytest.fixture(scope="session")
def data_set():
    """A function from a data set's name to its folder or file; skips where it is missing."""

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
    """SavedModels are proven in processes that need not import TensorFlow first."""
    with processes.forked_proofs():
        yield


def pytest_terminal_summary(terminalreporter):
    """Say which data sets were skipped for want of files, and by how many tests."""
    missing = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(DATA_SET_SKIP) or DATA_VARIABLE in reason:
            missing.setdefault(reason, []).append(report.nodeid)
    terminalreporter.section("data sets skipped for want of files")
    for reason, tests in sorted(missing.items()):
        terminalreporter.write_line(f"{reason} ({len(tests)} skipped, first {tests[0]})")
    if not missing:
        terminalreporter.write_line("none")
