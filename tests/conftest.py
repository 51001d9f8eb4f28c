"""Shared by all tests: which tests are fast, which are skipped, and the kernels compiled before the first test runs."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from datapipe import credentials
from datapipe.machine.memory import without_collection
from tests.support.kernel_table import PARAMETER, declared_name

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

NOT_FAST = ("medium", "needs", "slow", "real", "ray", "browser", "storm", "deploy")
"""Marks of tests that `pytest -m fast` leaves out."""

WHOLE_RUNS = {"finished", "plain", "deduplicated", "lengths", "documents", "grown", "composed"}
"""Fixtures that run a whole mixture first. The tests that use them are `medium`."""

NOT_FAST_FOLDERS = {"annotation", "benchmarks", "cache", "conformance", "deploy", "golden", "mixtures", "real", "storm"}
"""Folders that `pytest -m fast` does not even import."""

_OF_SEEDS = "DATAPIPE_SEED" in os.environ
settings.register_profile("any", max_examples=200 if _OF_SEEDS else 40, deadline=None)  # a busy machine is no fault
settings.register_profile("fast", max_examples=8, deadline=None)
"""Examples of a property, where the test does not give how many: most in the part `seeds` of `.ci/full`, few under `pytest -m
fast`."""


def pytest_configure(config: pytest.Config) -> None:
    """Lets Ctrl-C interrupt the tests and what they start; the background jobs of a shell ignore SIGINT, and inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("fast" if config.option.markexpr == "fast" else "any")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "fast" and collection_path.name in NOT_FAST_FOLDERS else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports the tests without the garbage collector, which afterwards passes over what stays to the end."""
    with without_collection():
        result = yield
    gc.freeze()
    return result


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the first case of every other test `fast`, so that a new test is fast until somebody marks it `medium`."""
    functions = set()
    for item in items:
        if not WHOLE_RUNS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.medium)
        function = item.nodeid.partition("[")[0]
        if function not in functions and {mark.name for mark in item.iter_markers()}.isdisjoint(NOT_FAST):
            functions.add(function)
            item.add_marker(pytest.mark.fast)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compiles the kernels of the kernel table's selected tests, before any test runs.

    Every xdist worker comes here with the same tests; the compilers of all of them share the kernels out by the locks of the
    cache. A test of anything else compiles a missing kernel when it calls it.
    """
    parameters = [item.callspec.params for item in session.items if hasattr(item, "callspec")]
    names = {params[PARAMETER] for params in parameters if PARAMETER in params}
    if not names or session.config.option.collectonly:
        return
    from datapipe.kernels import all_kernels
    from datapipe.kernels.compiling import compile_kernels

    wanted = [kernel.qualified_name for kernel in all_kernels().values() if declared_name(kernel) in names]
    compile_kernels(wanted, 2, lambda name, number, count: None)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes that no one can read by their argument: those of gzip hold the time, and two workers read two."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        missing = [name for name in mark.args if find_spec(name) is None]
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """Leaves files in the page cache: no power is cut in this process, and a flush of a busy disk takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _own_secrets() -> Iterator[None]:
    """Forgets the values of variables that a test made secrets, which would be masked in the messages of later tests."""
    before = dict(credentials._secrets)
    yield
    credentials._secrets.clear()
    credentials._secrets.update(before)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora beside the checkout; tests that need it are marked `real`."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real corpora at {REAL_DATA}")
    return REAL_DATA
