"""FFmpeg in a child process: the same frames; crashes and hangs cost one clip, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.color.full_size import FullSizeConverter
from streamvid.decode import isolated
from streamvid.decode.cpu import decode_with_pyav, split_at_keyframes
from streamvid.decode.isolated import IsolatedDecoder, decode_isolated
from streamvid.decode.slice_frames import CrashedDecoderError, DamagedClipError, StuckDecoderError, decode_frames
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.workers import WorkerProcess
from tests.support.clips import hard_clips, write
from tests.support.clock import soon
from tests.support.open_files import open_files
from tests.support.processes import alive, bytes_written, processes_below
from tests.support.reference import slice_of, whole
from tools.clips import Recipe

HARD = hard_clips()
STARTED = 100
"""More bytes than a process writes before its first frames."""
LONG = Recipe(width=96, height=64, frames=120, gop=40, b_frames=3)


def stored(recipe: Recipe, folder: Path, numbers: list[int] | None = None) -> EncodedSlice:
    clip = store_clip(write(recipe, folder / f"a.{recipe.container}"), folder)
    return whole(clip) if numbers is None else slice_of(clip, numbers)


@pytest.fixture
def decoder() -> Iterator[IsolatedDecoder]:
    with IsolatedDecoder() as one:
        yield one


def pid_of(decoder: IsolatedDecoder) -> int:
    """The number of the process that decodes."""
    assert decoder._process is not None
    return decoder._process.pid


def frames_of(decoder: IsolatedDecoder, encoded: EncodedSlice, *, limit_s: float = 60) -> np.ndarray:
    """uint8 [frames, height, width, 3], of all segments."""
    out = np.empty((len(encoded.frames), encoded.height, encoded.width, 3), np.uint8)
    rows, convert = [], FullSizeConverter(encoded.color.chosen("bt601"))
    for segment in split_at_keyframes(encoded):
        for row, picture in decoder.frames(encoded, segment, limit_s=limit_s):
            convert(picture, out[row].transpose(2, 0, 1))
            rows.append(row)
    assert sorted(rows) == list(range(len(out)))
    return out


def gone(pid: int) -> bool:
    """Whether a process has ended and was waited for."""
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["h264_pyramid", "hevc_10bit", "vp9_odd", "av1", "mpeg4_avi_b_frames", "mjpeg_avi"])
def test_the_same_frames_come_out(name: str, tmp_path: Path, decoder: IsolatedDecoder) -> None:
    encoded = stored(HARD[name], tmp_path)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))


def test_sizes_may_change_from_slice_to_slice(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    """Frames of which one fills more than all the memory before, and small ones afterwards."""
    small = stored(LONG, tmp_path)
    large = stored(Recipe(width=2560, height=1440, frames=3), tmp_path)
    pids = set()
    for encoded in (small, large, small, replace(small, frames=small.frames[:0]), stored(LONG, tmp_path, [3, 50, 118])):
        np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))
        pids.add(pid_of(decoder))
    assert len(pids) == 1


def test_a_damaged_slice_is_an_error_and_the_process_goes_on(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    encoded = stored(LONG, tmp_path)
    frames_of(decoder, encoded)
    pid = pid_of(decoder)
    data = encoded.data.copy()
    data[len(data) // 2 :] = 0
    with pytest.raises(DamagedClipError, match="clip clip is damaged") as caught:
        frames_of(decoder, replace(encoded, data=data))
    assert type(caught.value) is DamagedClipError
    assert caught.value.clip == "clip"
    assert caught.value.reason
    frames_of(decoder, encoded)
    assert pid_of(decoder) == pid


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_costs_the_slice(tmp_path: Path, decoder: IsolatedDecoder, signum: signal.Signals) -> None:
    encoded = stored(LONG, tmp_path)
    running = decoder.frames(encoded, limit_s=60)
    next(running)
    pid = pid_of(decoder)
    os.kill(pid, signum)
    what = "was not decoded: the process that did so was ended" if signum == signal.SIGKILL else "crashes FFmpeg"
    with pytest.raises(CrashedDecoderError, match=rf"clip clip {what} \({signum.name}\)"):
        list(running)
    assert gone(pid)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))
    assert pid_of(decoder) != pid


def test_a_process_that_dies_with_nothing_to_do_costs_no_slice(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    encoded = stored(LONG, tmp_path)
    frames_of(decoder, encoded)
    pid = pid_of(decoder)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))
    assert pid_of(decoder) != pid


def test_a_process_that_is_killed_as_it_starts_costs_no_slice(
    tmp_path: Path, decoder: IsolatedDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, killed = WorkerProcess.call, list[int]()

    def dying(self: WorkerProcess, *args: Any, **options: Any) -> Any:
        if not killed:
            killed.append(self.pid)
            self.kill()
        return call(self, *args, **options)

    monkeypatch.setattr(WorkerProcess, "call", dying)
    encoded = stored(LONG, tmp_path)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))
    assert gone(*killed)


def test_a_hang_costs_the_slice_and_its_deadline(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    encoded = stored(LONG, tmp_path)
    frames_of(decoder, encoded)
    running = decoder.frames(encoded, limit_s=1.0)
    next(running)
    pid = pid_of(decoder)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StuckDecoderError, match=r"clip clip gets FFmpeg stuck \(.* 1 s\)"):
        list(running)
    assert gone(pid)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))


def test_frames_that_nobody_wants_any_more_leave_no_process(tmp_path: Path, decoder: IsolatedDecoder) -> None:
    encoded = stored(LONG, tmp_path)
    running = decoder.frames(encoded, limit_s=60)
    next(running)
    pid = pid_of(decoder)
    running.close()
    assert gone(pid)
    np.testing.assert_array_equal(frames_of(decoder, encoded), decode_with_pyav(encoded))


def test_slices_are_tried(tmp_path: Path) -> None:
    good = stored(LONG, tmp_path)
    bad = replace(good, name="bad", data=good.data * 0)
    before = open_files()
    assert decode_isolated([]) == []
    none, damaged, also_none = decode_isolated([good, bad, good], processes=2)
    assert [none, also_none] == [None, None]
    assert isinstance(damaged, DamagedClipError)
    assert damaged.clip == "bad"
    assert open_files() <= before


def test_a_slice_that_hangs_is_told_from_those_beside_it(tmp_path: Path) -> None:
    """The process is stopped at some slice; those before and behind it decode."""
    encoded = stored(LONG, tmp_path)
    slices = [replace(encoded, name=str(n)) for n in range(100)]
    stops = threading.Thread(target=_stop_child, args=(set(processes_below(os.getpid())),))
    stops.start()
    found = decode_isolated(slices, deadline=2.0)
    stops.join()
    (stuck,) = (number for number, error in enumerate(found) if error is not None)
    error = found[stuck]
    assert isinstance(error, StuckDecoderError)
    assert error.clip == str(stuck)


def test_a_hang_is_known_long_before_the_deadline_of_a_long_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no further packet. That it goes on is seen by what it reads, whatever frames it gives."""
    encoded = replace(stored(LONG, tmp_path), name="long")
    monkeypatch.setattr(isolated, "_TRIED_S", 1.0)
    stops = threading.Thread(target=_stop_child, args=(set(processes_below(os.getpid())),))
    stops.start()
    found = decode_isolated([encoded] * 100, deadline=100_000.0)
    stops.join()
    (error,) = (error for error in found if error is not None)
    assert isinstance(error, StuckDecoderError)
    memory, reads = os.memfd_create("test"), []
    with monkeypatch.context() as patch, closing(os.fdopen(memory)):
        patch.setattr(isolated.os, "pread", lambda *place: reads.append(place))
        last = stored(LONG, tmp_path, [119])
        assert len(list(decode_frames(last, context=isolated._context(memory)))) == 1
    assert reads == [(memory, 1, 0)] * len(last.sizes)
    assert len(last.sizes) > 10


def _stop_child(others: set[int]) -> None:
    """SIGSTOP a child of this process, but for the others, that has begun to give frames."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for pid in set(processes_below(os.getpid())) - others:
            if bytes_written(pid) > STARTED:
                os.kill(pid, signal.SIGSTOP)
                return
        time.sleep(0.01)


_LEFT_ALONE = """
import os, sys, time
from pathlib import Path
from streamvid.color.full_size import FullSizeConverter
from streamvid.decode.isolated import IsolatedDecoder
from tests.decode.test_isolated import LONG, stored
decoder = IsolatedDecoder()
running = decoder.frames(stored(LONG, Path(sys.argv[1])), limit_s=600)
next(running)
keeps_the_pipes = os.fork()
if keeps_the_pipes:
    print(decoder._process.pid, keeps_the_pipes, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Killed with SIGKILL, and a forked child of it keeps the pipes open."""
    script = subprocess.Popen([sys.executable, "-c", _LEFT_ALONE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    pid, forked = map(int, script.stdout.readline().split())
    try:
        script.kill()
        script.wait()
        assert soon(lambda: not alive(pid)), "the decoding process outlives its parent"
    finally:
        os.kill(forked, signal.SIGKILL)
        script.stdout.close()


def test_no_thread_is_started_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython waits for ever for a thread that gets no memory to begin."""
    slices = [stored(replace(LONG, frames=4, gop=4, seed=n), tmp_path) for n in range(3)]
    monkeypatch.setattr(isolated, "memory_is_short", lambda: True)
    monkeypatch.setattr(isolated, "ThreadPoolExecutor", None)
    assert decode_isolated(slices, processes=2) == [None] * 3
