"""Worker processes by themselves: streams of items, and time that does not count. `tests/packing` has more of them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamvid.errors import StreamvidError, VideoError
from streamvid.workers import WorkerCrashError, WorkerProcess, Workers, WorkerStuckError
from tests.support import hostile


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    one = WorkerProcess()
    one.handshake()
    yield one
    one.kill()
    one.end()


def test_items_come_one_by_one(process: WorkerProcess) -> None:
    for count in (0, 1, 2, 5):
        assert list(process.stream(hostile.count_to, count, limit_s=60)) == list(range(count))
    assert process.call(hostile.double, 4) == 8
    with pytest.raises(TypeError, match="stream"):
        process.call(hostile.count_to, 1)


@pytest.mark.parametrize("items", [0, 1, 3])
def test_an_error_after_some_items_leaves_a_process_of_use(process: WorkerProcess, items: int) -> None:
    running = process.stream(hostile.count_and_refuse, items, limit_s=60)
    assert [next(running) for _ in range(items)] == list(range(items))
    with pytest.raises(VideoError, match="enough"):
        next(running)
    assert process.call(hostile.where) == process.pid


def test_a_message_larger_than_a_pipe_does_not_keep_a_stopped_process(process: WorkerProcess) -> None:
    """The caller cannot even write it to the end."""
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(WorkerStuckError, match="more than 1 s"):
        process.call(len, bytes(1 << 24), limit_s=1.0)
    assert not Path(f"/proc/{process.pid}").exists()


def test_an_error_of_the_function_is_not_taken_for_a_crash(process: WorkerProcess) -> None:
    with pytest.raises(FileNotFoundError):
        process.call(os.stat, "/nowhere")
    assert process.call(hostile.where) == process.pid
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerCrashError, match="SIGKILL"):
        process.call(hostile.where)


@pytest.mark.parametrize(("signum", "from_outside"), [(signal.SIGKILL, True), (signal.SIGSEGV, False)])
def test_a_crash_says_whether_it_came_from_outside(signum: int, from_outside: bool, process: WorkerProcess) -> None:
    with pytest.raises(WorkerCrashError) as caught:
        process.call(hostile.die_by, signum)
    assert caught.value.from_outside == from_outside


def test_time_without_a_core_does_not_count() -> None:
    """It shares a core with a process that gets nine tenths of it, and needs three times its limit by the clock."""
    core = min(os.sched_getaffinity(0))
    script = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        with Workers(1) as workers:
            assert workers.submit(hostile.where).result(timeout=200)  # imports, which takes a second on slow cores
            assert workers.submit(hostile.compute, 0.3, core, limit_s=1.0).result(timeout=200)
    finally:
        busy.kill()
        busy.communicate()


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that meets a bad clip starts such a process, and went on without that directory until then."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    process = WorkerProcess()
    try:
        process.handshake()
        assert process.call(hostile.double, 4) == 8
    finally:
        process.kill()
        process.end()


@pytest.mark.parametrize("deaths", [2, 100])
def test_a_process_that_is_killed_as_it_starts_is_replaced(deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel kills the newest where memory runs out."""
    handshake, started = WorkerProcess.handshake, list[int]()

    def dying(self: WorkerProcess) -> None:
        started.append(self.pid)
        if len(started) <= deaths:
            self.kill()
        handshake(self)

    monkeypatch.setattr(WorkerProcess, "handshake", dying)
    with Workers(1) as workers:
        future = workers.submit(hostile.double, 4)
        if deaths == 2:
            assert future.result(60) == 8
        else:
            with pytest.raises(StreamvidError, match=r"could not be started \(SIGKILL\).* fewer num_threads"):
                future.result(60)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_a_process_that_may_start_no_thread_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message was of memory, below a traceback for each attempt."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "def start(self):\n"
        '    raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = start\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with Workers(1) as workers, pytest.raises(StreamvidError, match=r"^no further thread .*`ulimit -u`"):
        workers.submit(hostile.double, 4).result(60)


def test_no_further_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fork)
    with Workers(1) as workers, pytest.raises(StreamvidError, match=r"^no further thread .*`ulimit -u`"):
        workers.submit(hostile.double, 4).result(60)


def test_a_worker_has_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS starts one for each core: thousands, where a worker runs on each."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # see tests/conftest.py
    process = WorkerProcess()
    process.handshake()
    process.call(np.zeros, 1)
    assert len(os.listdir(f"/proc/{process.pid}/task")) == 2
    process.kill()
    process.end()


def test_a_folder_is_not_removed_while_the_parent_lives(tmp_path: Path) -> None:
    """A process whose pipes are closed, as after an answer that cannot be read, cannot tell whether its parent is gone,
    and the other processes may still write there."""
    idle, busy = (WorkerProcess(work=str(tmp_path / "work")) for _ in range(2))
    (tmp_path / "work").mkdir()
    try:
        for process in (idle, busy):
            process.handshake()
        busy._send((hostile.sleep, (0.1,)))
        for process in (idle, busy):
            for pipe in (process._popen.stdin, process._popen.stdout):
                assert pipe is not None
                pipe.close()
        for process in (idle, busy):
            with pytest.raises(subprocess.TimeoutExpired):
                process._popen.wait(timeout=1.5)
        assert (tmp_path / "work").is_dir()
    finally:
        for process in (idle, busy):
            process.kill()
            process.end()


def test_workers_see_no_gpu(process: WorkerProcess) -> None:
    """They have no use for one, and decoders of images would start CUDA on it, each in every process."""
    assert process.call(os.getenv, "CUDA_VISIBLE_DEVICES") == ""
    assert process.call(os.getenv, "PATH") == os.environ["PATH"]
