"""Chunks of an epoch that are read side by side: in what order they ask a storage, how much they hold, and what a
request that stalls holds up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import streamvid as sv
from streamvid.fetch import epoch_reader
from streamvid.fetch.encoded_batch import plan_parts
from streamvid.fetch.epoch_reader import _Chunks, _ComputingTurn
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch import Step
from streamvid.storage import link
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.turn import Turn
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import pack_recipes
from tools.clips import Recipe


def chunks(steps: int, longest: int = 8, mp4_bytes: int = 1000, done: int = 0) -> _Chunks:
    """Of an epoch of steps of one clip each."""
    epoch: Any = SimpleNamespace(done=done, steps=steps, step=lambda n: SimpleNamespace(sample_ids=np.array([0])))
    return _Chunks(epoch, np.array([mp4_bytes]), longest)


def enter(made: _Chunks, number: int, size: int) -> None:
    """Let a chunk in, and the next one after it."""
    made.enter(number, size)
    made.queued(number)


def test_chunks_grow_from_a_single_step_to_the_longest() -> None:
    made = chunks(30, done=2, longest=4)
    cut = []
    for number in range(13):
        cut.append(made.cut(number))
        enter(made, number, 10)
    assert [len(one) for one in cut] == [1, 1, 2, 3, 4, 4, 4, 4, 4, 1, 0, 0, 0]
    assert [step for one in cut for step in one] == list(range(2, 30))


def test_a_loop_that_takes_two_thirds_of_what_comes_waits_for_no_chunk() -> None:
    """A chunk is there as soon as all of it is; the loop begins with the first one."""
    made, read, taken = chunks(200), 0.0, 0.0
    for number in range(30):
        cut = made.cut(number)
        enter(made, number, 10)
        read += len(cut)  # a second for each step
        assert number == 0 or read <= taken
        taken = max(taken, read) + len(cut) / 0.66


def test_their_bytes_are_bounded_before_and_after_it_is_known_what_part_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoch_reader, "_AHEAD_BYTES", 8000)
    made = chunks(100, mp4_bytes=500)  # a share of 1,000 bytes
    assert [len(made.cut(number)) for number in range(8)] == [1, 1, 2, 2, 2, 2, 2, 2]
    for number in range(8):
        enter(made, number, 100)  # a fifth of 500
    assert [len(made.cut(number)) for number in range(8, 11)] == [8, 8, 8]
    big = chunks(100, mp4_bytes=10**6)  # more than all of it
    for number in range(8):
        assert len(big.cut(number)) == 1


def test_packets_are_read_in_the_order_of_chunks_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever chunk knows its ranges first. A chunk that failed is passed over."""
    monkeypatch.setattr(epoch_reader, "_AHEAD_BYTES", 100)
    made, entered, inside = chunks(100), list[int](), threading.Semaphore(0)
    for number in range(4):
        made.cut(number)

    def enter_noted(number: int, size: int) -> None:
        made.enter(number, size)
        entered.append(number)
        inside.release()
        made.queued(number)

    with ThreadPoolExecutor(6) as pool:
        for number, size in ((3, 60), (1, 60), (0, 60)):
            pool.submit(enter_noted, number, size)
        assert inside.acquire(timeout=120)
        pool.submit(enter_noted, 2, 0)
        made.leave(0)
        assert inside.acquire(timeout=120)
        assert inside.acquire(timeout=120)
        assert entered == [0, 1, 2]  # 60 + 60 are more than 100
        made.leave(1)
        made.leave(2)
        assert inside.acquire(timeout=120)
    assert entered == [0, 1, 2, 3]
    made.enter(3, 60)  # read once more: it is in


def test_few_clips_at_a_time_have_their_frame_indexes_read() -> None:
    """As many as four of the longest chunks have: the first ones are short."""
    made = chunks(100, longest=2)
    assert sum(len(made.cut(number)) for number in range(5)) == 8
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(made.cut, 5)
        made.enter(0, 10)
        assert len(next_one.result(120)) == 2
        another = pool.submit(made.cut, 6)
        made.close()
        with pytest.raises(CancelledError):
            another.result(120)


CLIPS, BATCH = 120, 2


class NotedTurn(Turn):
    """Notes whether it waits or computes, and where it lets others have the interpreter lock."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.noted = False, list[str]()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.waits = True
        yield
        self.waits = False

    def pause(self) -> None:
        assert not self.waits
        self.noted.append("clip")

    def admit(self, size: int) -> None:
        assert size
        self.noted.append("packets")


def test_who_computes_lets_others_go_on_after_each_clip_and_while_it_waits(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = NotedTurn()
    read = RemoteRanges.read

    def noting(self: RemoteRanges, *args: Any, **options: Any) -> list[bytes]:
        assert turn.waits
        turn.noted.append("read")
        return read(self, *args, **options)

    with faulty_s3() as s3:
        dataset = sv.Dataset.open(s3.add_folder(packed, "bucket/set"))
        monkeypatch.setattr(RemoteRanges, "read", noting)
        ids = np.arange(3)
        step = Step(ids, np.zeros_like(ids), np.ones(3, dtype=bool))
        access = ShardAccess(dataset, cache=None, limit_bytes=1 << 30, by_range=True)
        (read_part,) = plan_parts(dataset, [[step]], SampleSpec(sv.Window(2), 0, 0), access, threading.Event(), turn)
        read_part(turn)
    assert turn.noted == ["read", *["clip"] * 3, "packets", "read", *["clip"] * 3]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n:03}.mp4": Recipe(frames=8, gop=4, seed=n % 3, width=64, height=64) for n in range(CLIPS)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("ahead"))


def test_a_stalled_request_is_asked_again_and_holds_up_nobody_behind_it(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first range of packets stalls for good: it comes by a second request, and meanwhile others are read, and
    their frame indexes by fewer requests than there are clips."""
    monkeypatch.setattr(link, "_UNKNOWN_LATE", 5.0)  # sooner than a request is given up
    monkeypatch.setattr(epoch_reader, "_CHUNK_CLIPS", 8)
    with faulty_s3() as s3:
        s3.add_folder(packed, "bucket/set")
        stalled: list[str] = []

        def fault(method: str, key: str, before: int) -> str | None:
            if method == "GET" and key.endswith(".tar") and not stalled:
                stalled.append(key)
                return "stall"
            return None

        s3.fault = fault
        with sv.StreamLoader(
            "s3://bucket/set", batch_size=BATCH, sampling=sv.Window(2), device="cpu", num_threads=1, fetch="ranges",
            cache_dir=tmp_path,
        ) as loader:  # fmt: skip
            read = [key for batch in loader for key in batch["key"]]
            hedged = loader.dataset.reader.remote.link.hedged
        assert sorted(read) == sorted(sv.Dataset.open(packed).clips.key)
        assert stalled
        assert 1 <= hedged <= max(2, 0.02 * len(s3.requests))
        indexes = [key for method, key, _ in s3.requests if method == "GET" and key.endswith(".packets")]
        assert len(indexes) < CLIPS / 8


def test_a_step_waits_for_its_own_packets_alone(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for those of later steps that were planned with it, or while the thread that planned it had no core."""
    monkeypatch.setattr(epoch_reader, "_PART_CLIPS", BATCH)
    last, free = 16, threading.Event()  # of a chunk of more than one step
    fetch = RangeReader.fetch_joined
    planned: list[list[range]] = []
    plan_parts = epoch_reader.plan_parts

    def gated(self: RangeReader, joined: Any, versions: Any) -> Any:
        assert self.turn.number < last or free.wait(200)
        return fetch(self, joined, versions)

    def noted(dataset: Any, parts: Any, *args: Any) -> Any:
        planned.append([[step.number for step in part] for part in parts])
        return plan_parts(dataset, parts, *args)

    class Executor(ThreadPoolExecutor):
        """Later chunks have a second to get ahead of the one that step `last` is in."""

        def submit(self, function: Any, /, *args: Any, **options: Any) -> Any:
            if any(args[2:] == (parts[0][0],) and [last] in parts for parts in planned):
                threading.Event().wait(1)
            return super().submit(function, *args, **options)

    monkeypatch.setattr(epoch_reader, "ThreadPoolExecutor", Executor)
    monkeypatch.setattr(RangeReader, "fetch_joined", gated)
    monkeypatch.setattr(epoch_reader, "plan_parts", noted)
    with faulty_s3() as s3:
        s3.add_folder(packed, "bucket/set")
        with sv.StreamLoader(
            "s3://bucket/set", batch_size=BATCH, sampling=sv.Window(2), device="cpu", num_threads=1, fetch="ranges",
            cache_dir=tmp_path,
        ) as loader:  # fmt: skip
            batches = iter(loader)
            read = [next(batches)["key"] for _ in range(last)]
            chunk = next(parts for parts in planned if [last] in parts)
            assert chunk[-1] == [last], chunk
            assert len(chunk) > 1
            free.set()
            read += [batch["key"] for batch in batches]
        assert sorted(key for keys in read for key in keys) == sorted(sv.Dataset.open(packed).clips.key)


def test_what_is_computed_for_later_steps_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_reader, "_COMPUTING", 0.0)
    made, order = chunks(100), list[str]()
    asked = threading.Event()

    def read_first() -> None:
        asked.wait(120)
        with _ComputingTurn(made, 0, 1):
            order.append("step 1")

    other = threading.Thread(target=read_first)
    other.start()
    with _ComputingTurn(made, 1, 5) as turn:
        asked.set()
        while not made.computing._queue:
            threading.Event().wait(0.001)
        turn.pause()
        order.append("step 5")
    other.join(120)
    assert order == ["step 1", "step 5"]


def test_chunks_are_planned_in_order_before_earlier_packets_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first chunks, and no longer than until they are admitted."""
    monkeypatch.setattr(epoch_reader, "_CHUNKS_AHEAD", 4)
    monkeypatch.setattr(epoch_reader, "_LEAD", 2)
    made, cut = chunks(100, longest=2), list[range]()
    for number in range(8):
        cut.append(made.cut(number))
        made._planning.clear()
    assert [one.start for one in cut] == [0, 1, 2, 4, 6, 8, 10, 12]
    assert [made.urgency(number) for number in range(8)] == [0, 1, 2, 4, 4, 4, 6, 8]
    with _ComputingTurn(made, 0, 4, 6) as turn:
        assert turn.number == 4
        turn.admit(10)
        assert turn.number == 6
