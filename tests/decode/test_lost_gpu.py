"""A lost GPU ends the process, whatever still works in it. A real one is lost in tests/gpu/test_faults.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamvid
from streamvid.decode import lost_gpu
from streamvid.decode.lost_gpu import GpuWatch, raise_if_lost
from streamvid.errors import GpuLostError, InputError, VideoError

PROGRAM = """
import ctypes, sys, time
from streamvid.decode import lost_gpu

how = sys.argv[1]
broken = []
lost_gpu.lost = lambda device: "CUDA_ERROR_ILLEGAL_ADDRESS, 700" if broken else None
lost_gpu._END_S = 1.0
libc = ctypes.PyDLL(None)  # which keeps Python's lock

class Run:
    def where(self):
        return "in epoch 3 behind batch 7"

def batches():
    yield 0
    broken.append(True)
    if how == "stuck":
        time.sleep(300)
    if how == "lock":
        time.sleep(1)
        libc.sleep(300)
    if how == "terminate":
        # As a thread of DALI does, which has never seen Python.
        cxx = ctypes.CDLL("libstdc++.so.6")
        thread, start = ctypes.c_ulong(), ctypes.cast(cxx._ZSt9terminatev, ctypes.c_void_p)
        ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, start, None)
        time.sleep(300)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

if how == "destructors":
    libc.__cxa_atexit(libc.pause, None, None)
run = Run()
try:
    for batch in lost_gpu.GpuWatch(0, run.where).over(batches()):
        print("batch", batch, flush=True)
        if how == "elsewhere":
            broken.append(True)
            time.sleep(300)
except RuntimeError:
    raise SystemExit("not noticed")
except Exception as error:
    if how == "caught":
        time.sleep(300)
    raise
"""


@pytest.mark.parametrize("how", ["raised", "caught", "stuck", "elsewhere", "lock", "destructors", "terminate"])
def test_the_process_ends_and_says_where(how: str) -> None:
    root = str(Path(streamvid.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout == "batch 0\n"
    assert done.returncode == {"destructors": -14, "terminate": -6}.get(how, 1), done.stderr
    told = "GPU 0 is lost to this process, which ends (CUDA_ERROR_ILLEGAL_ADDRESS, 700); the run stands in epoch 3"
    assert told in done.stderr
    assert done.stderr.count("go on from the last state saved") == 1
    assert ("GpuLostError: GPU 0 is lost" in done.stderr) == (how in ("raised", "destructors"))
    # Where each thread was.
    assert ("Timeout" in done.stderr) == (how not in ("raised", "destructors", "terminate"))


def test_an_error_that_has_another_cause_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    state: list[str | None] = [None]
    begun: list[str] = []
    monkeypatch.setattr(lost_gpu._Ending, "begin", lambda _, device, cause: begun.append(cause))
    monkeypatch.setattr(lost_gpu, "lost", lambda device: state[0])
    error = VideoError("damaged")
    raise_if_lost(0, error)
    raise_if_lost(None, error)
    state[0] = "CUDA_ERROR_ECC_UNCORRECTABLE, 214"
    raise_if_lost(None, error)
    with pytest.raises(GpuLostError, match=r"GPU 2 .*ECC.*214") as raised:
        raise_if_lost(2, error)
    assert raised.value.__cause__ is error
    raise_if_lost(2, raised.value)
    assert len(begun) == 1


class Run:
    def where(self) -> str:
        return "nowhere"


def test_without_a_gpu_nothing_is_watched() -> None:
    batches = iter(())
    assert GpuWatch(None, Run().where).over(batches) is batches


def test_an_iteration_is_closed_with_its_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_gpu, "lost", lambda device: None)
    closed = []

    def batches() -> Iterator[int]:
        try:
            yield 1
            raise InputError("no")
        finally:
            closed.append(True)

    run = Run()
    watch = GpuWatch(0, run.where)
    iteration = watch.over(batches())
    assert next(iteration) == 1
    iteration.close()  # type: ignore[attr-defined]
    assert closed == [True]
    with pytest.raises(InputError):
        list(watch.over(batches()))
    assert closed == [True] * 2
    watch.close()
