"""`isolate=True`: the same batches from child processes, which may crash or hang, and leave nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.utils.data

import streamvid as sv
from streamvid.decode import cpu
from streamvid.decode.deadline import Pace
from streamvid.transform import render
from tests.decode.test_isolated import STARTED
from tests.support.bad_clips import make_dataset, samples
from tests.support.batches import same
from tests.support.clock import soon
from tests.support.processes import alive, bytes_written, command_line, processes_below
from tests.support.stuck import Hangs, HangsOnce, woken

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")

CODECS = [("h264", "mp4"), ("hevc", "mp4"), ("vp9", "mkv"), ("mjpeg", "avi")] * 3
TRANSFORMS = {
    "as they are": sv.Transform(),
    "by the batch writer": sv.Transform(
        random_resized_crop=(0.3, 1), crop=(64, 96), horizontal_flip=0.5, dtype="float16"
    ),
    "by DALI": sv.Transform(resize=(64, 64), brightness=0.4, dtype="float32"),
    "views": {
        "small": sv.Transform(resize=(32, 48)),
        "large": sv.Transform(random_resized_crop=(0.3, 1), crop=(96, 96)),
    },
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("isolate"), CODECS)


def make(dataset: Path, **options: object) -> sv.StreamLoader:
    given = {"batch_size": 3, "sampling": sv.Window(4), "device": "cpu", "num_threads": 2, "on_error": "raise"}
    return sv.StreamLoader(dataset, **{**given, **options})  # type: ignore[arg-type]


def epochs(loader: sv.StreamLoader, got: list[sv.Batch]) -> None:
    """Take batches for ever."""
    while True:
        got.extend(loader)


def decoders() -> list[int]:
    """Our child processes that decode."""
    return [pid for pid in processes_below(os.getpid()) if b"streamvid.workers" in command_line(pid)]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_same_batches_come_out(dataset: Path, name: str) -> None:
    with make(dataset, transform=TRANSFORMS[name]) as loader:
        expected = list(loader)
    with make(dataset, transform=TRANSFORMS[name], isolate=True) as loader:
        for one, two in zip(loader, expected, strict=True):
            assert same(one, two)
        assert 1 <= len(decoders()) <= 2
    assert not decoders()


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_isolate_must_be_a_bool(dataset: Path, wrong: object) -> None:
    for refused in (
        lambda: make(dataset, isolate=wrong),
        lambda: sv.ClipDataset(dataset, isolate=wrong),  # type: ignore[arg-type]
        lambda: sv.GpuDataLoader(sv.ClipDataset(dataset, sampling=sv.Window(4)), batch_size=2, isolate=wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises(sv.InputError, match="isolate must be True or False"):
            refused()
    with pytest.raises(sv.InputError, match="engine='dali' decodes in its own threads"):
        make(dataset, isolate=True, engine="dali")


@contextmanager
def signalled(signum: int, *, times: int = 1_000_000) -> Iterator[list[int]]:
    """Sends a signal to children that decode, so many times at most; one that has nothing to do may be hit, too."""
    hit: list[int] = []
    over = threading.Event()

    def hunt() -> None:
        while len(hit) < times and not over.wait(0.005):
            for pid in decoders():
                if bytes_written(pid) > STARTED:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signum)
                        hit.append(pid)
                        break

    hunting = threading.Thread(target=hunt)
    hunting.start()
    try:
        yield hit
    finally:
        over.set()
        hunting.join()
    assert hit


def test_a_crash_ends_the_run_with_a_state_that_goes_on(dataset: Path) -> None:
    whole = list(make(dataset))
    loader = make(dataset, isolate=True)
    got: list[sv.Batch] = []
    with signalled(signal.SIGSEGV) as hit, pytest.raises(sv.VideoError, match=r"clip \d\d crashes FFmpeg \(SIGSEGV\)"):
        epochs(loader, got)
    state = loader.state_dict()
    loader.close()
    assert not any(map(alive, hit))
    assert not decoders()
    done = len(got) % len(whole)
    with make(dataset, isolate=True) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed)
    if len(got) < len(whole):  # the crash came in the first epoch
        assert len(rest) == len(whole) - done
        assert all(map(same, rest, whole[done:]))


def test_a_crash_of_a_good_clip_costs_nothing(dataset: Path, tmp_path: Path) -> None:
    """It is tried once more by itself: what crashed was not the clip's fault."""
    whole = samples(make(dataset, sampling=sv.All()))
    with make(dataset, sampling=sv.All(), isolate=True, on_error="skip", quarantine=tmp_path / "q") as loader:
        with signalled(signal.SIGSEGV, times=1):
            got = samples(loader)
        assert loader.stats().bad_clips == 0
    assert got.keys() == whole.keys()
    assert all(same(got[place], whole[place]) for place in whole)


def test_a_hang_ends_the_run(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "Pace", functools.partial(Pace, least_s=1.0))
    loader = make(dataset, isolate=True)
    with signalled(signal.SIGSTOP) as hit, pytest.raises(sv.VideoError, match=r"clip \d\d gets FFmpeg stuck"):
        epochs(loader, [])
    loader.close()
    assert not any(map(alive, hit))


def test_without_it_a_stuck_thread_is_named_and_ends_the_run(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "Pace", functools.partial(Pace, least_s=1.0))
    monkeypatch.setattr(render, "InThreadDecoder", Hangs)
    monkeypatch.setattr(Hangs, "clip", "07")
    loader = make(dataset, shuffle=False)
    got: list[sv.Batch] = []
    with woken():
        with caplog.at_level(logging.ERROR), pytest.raises(sv.VideoError, match="clip 07 gets FFmpeg stuck"):
            got.extend(loader)
        assert "clip 07 gets FFmpeg stuck" in caplog.text
        state = loader.state_dict()
        loader.close()
    monkeypatch.setattr(Hangs, "clip", "")
    with make(dataset, shuffle=False) as resumed:
        resumed.load_state_dict(state)
        assert sum(len(batch["clip"]) for batch in resumed) == len(CODECS) - 6


def test_without_it_a_stuck_thread_costs_no_batch_where_bad_clips_are_skipped(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The clip is tried once more in a process that can be killed; here that is FFmpeg itself, and the clip is good."""
    whole = samples(make(dataset))
    monkeypatch.setattr(cpu, "Pace", functools.partial(Pace, least_s=1.0))
    monkeypatch.setattr(render, "InThreadDecoder", HangsOnce)
    monkeypatch.setattr(Hangs, "clip", "07")
    with woken(), make(dataset, on_error="skip", quarantine=tmp_path / "q") as loader:
        got = samples(loader)
    assert got.keys() == whole.keys()
    assert all(same(got[place], whole[place]) for place in whole)


@pytest.mark.parametrize(("how", "workers"), [("fork", 2), ("forkserver", 1)])
def test_in_the_workers_of_a_dataloader(dataset: Path, how: str, workers: int) -> None:
    plain = sv.ClipDataset(dataset, sampling=sv.Window(4), transform=sv.Transform(resize=(32, 32)))
    isolated = sv.ClipDataset(dataset, sampling=sv.Window(4), transform=sv.Transform(resize=(32, 32)), isolate=True)
    assert same(isolated[3], plain[3])  # the workers are forked from a process that has one
    (own,) = decoders()
    loader = torch.utils.data.DataLoader(
        isolated, batch_size=3, num_workers=workers, multiprocessing_context=multiprocessing.get_context(how)
    )
    for batch, expected in zip(loader, torch.utils.data.DataLoader(plain, batch_size=3), strict=True):
        assert same(batch, expected)
    assert soon(lambda: decoders() == [own]), "processes of workers that have ended"
    assert same(isolated[4], plain[4])
    del loader, isolated
    gc.collect()
    assert soon(lambda: not decoders()), "the process of a dataset that is gone"


def test_behind_workers_that_read(dataset: Path) -> None:
    clips = sv.ClipDataset(dataset, sampling=sv.Window(4), transform=sv.Transform(resize=(32, 32)))
    with sv.GpuDataLoader(clips, batch_size=3, num_workers=2, device="cpu") as loader:
        expected = list(loader)
    with sv.GpuDataLoader(clips, batch_size=3, num_workers=2, device="cpu", num_threads=2, isolate=True) as loader:
        assert all(map(same, loader, expected))
        assert decoders()
    assert not decoders()


_KILLED = """
import os, sys
import streamvid as sv
loader = sv.StreamLoader(sys.argv[1], batch_size=3, sampling=sv.Window(4), device="cpu", num_threads=2, isolate=True)
while True:
    for batch in loader:
        print(os.getpid(), flush=True)
"""


@pytest.mark.parametrize("how", ["kill", "end"])
def test_nothing_stays_when_the_process_ends(dataset: Path, how: str, forked_python: Path) -> None:
    """No process, and no shared memory, as it has no name: killed, or at the end of a script that closes nothing."""
    code = _KILLED if how == "kill" else _KILLED.replace("print(os.getpid(), flush=True)", "sys.exit('batch')")
    with subprocess.Popen(
        [forked_python, "-c", code, str(dataset)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        children: list[int] = []
        if how == "kill":
            children = processes_below(int(script.stdout.readline()))
            assert children
            for child in children:
                maps = Path(f"/proc/{child}/maps").read_text()
                assert "memfd:streamvid-frames (deleted)" in maps
                assert "/dev/shm" not in maps
            script.kill()
        _, errors = script.communicate(timeout=120)
    assert script.returncode == (-signal.SIGKILL if how == "kill" else 1), errors
    if how == "end":
        assert errors == "batch\n"
    assert soon(lambda: not any(map(alive, children))), "processes outlive their parent"
