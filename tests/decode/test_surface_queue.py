"""The event of a launch, with a GPU that does everything late: the stand-ins of other tests do it at once."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.arrays import Bool, Int64
from streamvid.color import surfaces
from streamvid.color.surfaces import Kernel, Window
from streamvid.decode import surface_queue
from streamvid.decode.surface_queue import FirstLaunches, SurfaceQueue
from streamvid.decode.surface_target import SurfaceTarget, Writes

KERNELS = [Kernel("uint8", wide=False), Kernel("uint8", wide=True)]


class Late:
    """A CUDA stream that does what is queued when it is waited for, or on a whim when it is asked."""

    device, cuda_stream = torch.device("cpu"), 0

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self._done, self._random = 0, random.Random(1)

    def work(self, end: int) -> None:
        while self._done < end:
            self.queued[self._done]()
            self._done += 1

    def is_done(self, end: int) -> bool:
        self.work(min(end, self._done + self._random.randrange(3)))
        return self._done >= end

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...

    def copy(self, destination: int, source: int, size: int) -> None:
        self.queued.append(lambda: ctypes.memmove(destination, source, size))

    def launch(self, kernel: Kernel, table: torch.Tensor, count: int, *_: object) -> None:
        """Queue a kernel whose surfaces and pictures are one number."""

        def write() -> None:
            rows: list[list[int]] = table[:count].tolist()
            for surface, _, _, picture, _ in rows:
                to = ctypes.c_int64.from_address(picture)
                assert not to.value, "it is written twice"
                to.value = ctypes.c_int64.from_address(surface).value

        self.queued.append(write)


class Event:
    def record(self, stream: Late) -> None:
        self._stream, self._end = stream, len(stream.queued)

    def synchronize(self) -> None:
        self._stream.work(self._end)

    def query(self) -> bool:
        return self._stream.is_done(self._end)


def target(shown: Sequence[Int64]) -> tuple[SurfaceTarget, list[Int64]]:
    """A target, and the pictures of its views; `shown` says for each view in how many pictures each frame is."""
    nothing: Any = None
    writes, views = [], []
    for number, counts in enumerate(shown):
        views.append(memory := np.zeros((len(counts), counts.max()), dtype=np.int64))
        at = memory.ctypes.data + 8 * np.arange(memory.size).reshape(memory.shape)
        writes.append(Writes(KERNELS[number], (1, 1), 0, np.where(among(counts), at, 0)))
    return SurfaceTarget(writes, Window(0, 1, 0, 1), (), nothing), views


def among(counts: Int64) -> Bool:
    """bool [frames, pictures]: which pictures of frames there are."""
    return np.arange(counts.max()) < counts[:, None]


def test_pictures_are_written_by_the_event_and_of_their_own_surfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, empty, rng = Late(), torch.empty, np.random.default_rng(1)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **more: empty(*size, **more))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = SimpleNamespace(to_device=stream.copy, wait=stream.wait_event, reached=Event.query)
    monkeypatch.setattr(surface_queue, "CudaCalls", lambda _: calls)
    monkeypatch.setattr(surfaces, "launch", stream.launch)
    given: Any = stream
    queue, under_way = SurfaceQueue(given, FirstLaunches()), []
    for _ in range(200):
        batch = []
        for frames in rng.choice([1, 30, 200], rng.integers(4)).tolist():
            shown = [rng.integers(0, most + 1, frames) for most in rng.integers(0, 4, rng.integers(1, 3))]
            goal, views = target(shown)
            held = rng.integers(1, 1 << 60, frames)
            for rows in np.array_split(rng.permutation(frames).astype(np.int32), 2):
                found = held.ctypes.data + 8 * rows.astype(np.int64)
                queue.add(goal, rows, np.stack([found, found, found], axis=1))
            batch.append((held, views, [np.where(among(counts), held[:, None], 0) for counts in shown]))
        under_way.append((queue.launch(), batch))
        while len(under_way) > rng.choice([0, 3, 40]):
            event, batch = under_way.pop(0)
            event.synchronize()
            for held, views, expected in batch:
                for view, pictures in zip(views, expected, strict=True):
                    np.testing.assert_array_equal(view, pictures)
                held[:] = -1
    assert len(stream.queued) > 500
