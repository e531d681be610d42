"""Fixtures for all tests."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from streamvid.loader import quarantine
from streamvid.storage import retry
from streamvid.workers import Workers
from tests.support.clips import ENCODED

# `ci` is what every change is tested with; `nightly` looks longer for a counterexample. A test that needs more examples
# than others multiplies `settings.default.max_examples`. No deadline: how fast a machine is proves nothing. In `ci` the
# examples are the same in every run: what fails is what was changed.
for profile, examples in (("ci", 60), ("nightly", 600)):
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        derandomize=profile == "ci",
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Several workers of pytest-xdist, each with a thread for every core, spin instead of working. Read by PyTorch's import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# SVT-AV1 writes its settings to stderr otherwise; it reads this when the encoder starts.
os.environ.setdefault("SVT_LOG", "1")

_explain = np.testing.assert_array_equal


def _equal(actual: Any, desired: Any, *more: Any, **options: Any) -> None:
    """NumPy's looks for what differs before it knows that something does, which took a third of the time that tests of
    frames take."""
    if options.get("strict") or not np.array_equal(actual, desired):
        _explain(actual, desired, *more, **options)


np.testing.assert_array_equal = _equal

# Workers of a DataLoader that a fork server starts: PyTorch is imported once, not by each.
multiprocessing.set_forkserver_preload(["torch", "streamvid.loader.clip_dataset"])

# A shell that runs the tests in the background has them ignore Ctrl-C, and so all programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.s3_server", "tests.support.faulty_s3", "tests.support.forked_python"]
if importlib.util.find_spec("xdist"):  # not on every machine with a GPU
    pytest_plugins.append("tests.support.scheduler")


_number = itertools.count()


@pytest.fixture(autouse=True)
def quarantine_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test makes the same clips, and would find those of others and of earlier runs in the working folder."""
    folder = tmp_path_factory.getbasetemp() / f"quarantine-{next(_number)}"
    monkeypatch.setattr(quarantine, "FOLDER", str(folder))


@pytest.fixture(autouse=True)
def logging_of_its_own() -> None:
    """The command line sets levels: called in a test's or a fixture's own process, it does so for all later tests."""
    for name in ("streamvid", "streamvid.progress", "libav", "PyNvVideoCodec"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What an earlier run has cached, perhaps of another version, is neither used nor in the way; temporary files of
    processes that a test kills go with those of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # the paths of its sockets must be short
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        base = tmp_path_factory.getbasetemp()
        encoded = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "clips"
        encoded.mkdir(exist_ok=True)
        patch.setenv(ENCODED, str(encoded))
        yield


@pytest.fixture(scope="session", autouse=True)
def inline_workers() -> Iterator[None]:
    """`pack`, `verify` and `repair` start no worker processes, where a test is of their results."""
    from tests.support.packed import packing_inline

    with packing_inline():
        yield


@pytest.fixture
def worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how `pack`, `verify` and `repair` use their worker processes: they start them, as for users."""
    from tests.support.packed import USERS_OF_WORKERS

    for user in USERS_OF_WORKERS:
        monkeypatch.setattr(user, "Workers", Workers)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of this process are made again after hundredths of a second: what comes of them counts."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A copy of the module's dataset that a test may change."""
    return Path(shutil.copytree(packed, tmp_path / "ds"))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user and a working folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)  # bad clips are noted there


@pytest.fixture(scope="module")
def no_threads_of_other_modules() -> None:
    """For tests that look for threads: datasets that others left in cycles keep theirs until they are collected, and a
    while longer."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("streamvid"):
            thread.join(10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collections, which are a third of the time, and find next to nothing. Later ones leave out what
    is there by then: the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A failed test's traceback keeps its loaders, whose threads and files the tests behind it would find."""
    report = yield
    if call.excinfo is not None and not item.config.getoption("usepdb"):
        traceback.clear_frames(call.excinfo.tb)
        for frame, _ in traceback.walk_tb(call.excinfo.tb):
            frame.f_locals  # noqa: B018 - a copy that Python keeps, and brings up to date here
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out tests marked `full`")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: left out by --quick")
    config.addinivalue_line("markers", "processes: clips are tried in processes, as in a run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
