"""Faults to plant in the product, to see that the simulation finds them. Each changes a few lines of its behaviour."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import ClipError, StreamvidError
from streamvid.fetch import encoded_batch
from streamvid.loader import quarantine
from streamvid.loader.quarantine import Quarantine
from streamvid.loader.run_position import RunPosition
from streamvid.plan import epoch_plan
from streamvid.plan.checkpoint import Cursor, RunSchedule
from streamvid.plan.epoch import Epoch, Step
from streamvid.plan.epoch_plan import Plan, Position, TopologyRun
from streamvid.plan.permutation import NodePart
from streamvid.plan.sample_id import rows_of
from streamvid.storage import cache_folder, retry, shard_cache
from streamvid.storage.cache_folder import CacheFolder
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from tools.simulate.kernel import Failure

_advanced, _remaining, _to_save, _state, _step = (
    Position.advanced, Plan._remaining, RunPosition.to_save, Cursor.state, Epoch.step,
)  # fmt: skip
_without, _add = Step.without, Quarantine.add
_download, _each, _read, _init = (
    ShardCache._download, Retry.each, RemoteRanges._read_once, ShardCache.__init__,
)  # fmt: skip


def _history_off_by_one(self: Position, topology: Any) -> Position:
    """The first step after a resize is not counted."""
    after = _advanced(self, topology)
    if len(after.history) > len(self.history) and self.history:
        return replace(after, history=(*after.history[:-1], TopologyRun(topology, 0)))
    return after


def _state_ahead(self: RunPosition[Any]) -> Any:
    """A state is one step ahead of the loop, as if it were of what was read."""
    return self._now.advanced() if self._now is not None else _to_save(self)


def _state_in_except(self: RunPosition[Any]) -> Any:
    """A state that is saved while an exception is handled begins the next epoch."""
    self._left = None
    return _to_save(self)


def _state_of_rank(self: Cursor) -> dict[str, Any]:
    """A state depends on who saves it."""
    return {**_state(self), "rank": self.schedule.plan.world.rank}


def _uneven_rest(self: Epoch, number: int) -> Step:
    """A rank's part of an incomplete step is one sample too short."""
    step = _step(self, number)
    if len(step.sample_ids) < self.topology.batch and len(step.sample_ids) > 1:
        return Step(step.sample_ids[1:], step.passes[1:], step.valid[1:])
    return step


def _claim_without_lock(part: Any) -> Any:
    """Whoever comes holds the part, too."""
    library: Any = cache_folder.os  # type: ignore[attr-defined]
    return open(library.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)


def _publish_early(self: ShardCache, url: str, file: Any, size: int, mark: str, retry: Retry) -> None:
    """A part gets its name before its content is there."""
    part = os.readlink(f"/proc/self/fd/{file.fileno()}")
    with contextlib.suppress(FileExistsError):
        shard_cache.os.link(part, part.partition(".")[0])  # type: ignore[attr-defined]
    _download(self, url, file, size, mark, retry)


def _swallow(self: RemoteRanges, some: Sequence[Any], *rest: Any) -> list[Any]:
    """A range that cannot be read is empty."""
    return [b"" if isinstance(one, StorageUnavailable) else one for one in _read(self, some, *rest)]


def _give_up(self: Retry, items: Any, attempt: Any) -> Any:
    """A storage is asked once."""
    return _each(replace(self, seconds=0.0), items, attempt)


def _wait_for_ever(self: ShardCache, *args: Any, **options: Any) -> None:
    """Neighbours wait for a stopped process."""
    _init(self, *args, **{**options, "stalled_after": 1e9})


def _left_bucketed(self: Plan, partitions: list[Any], topology: Any, steps: int, upto: int, epoch: int) -> list[Any]:
    """The samples that count as consumed are the first of the order without buckets."""
    return _remaining(self, partitions, replace(topology, bucket_steps=0), steps, upto, epoch)


def _split_overlapping(sample_ids: Any, shards: Any, nodes: int, *, seed: int) -> list[NodePart]:
    """Two nodes share the sample at their boundary, and the last one of all is lost."""
    cuts = [len(sample_ids) * node // nodes for node in range(nodes + 1)]

    def part(here: slice) -> NodePart:
        return NodePart(len(sample_ids[here]), lambda: (sample_ids[here], shards[here]))

    return [part(slice(max(0, a - 1), b - (b == cuts[-1]))) for a, b in pairwise(cuts)]


def _unread(folder: Any, dataset: ClipSource) -> Int64:
    """A resumed run does not read the quarantine."""
    return np.empty(0, dtype=np.int64)


def _shifted(self: Step, absent: Any, pools: Any, seed: int) -> Step:
    """Absent samples leave the order, so that all later ones move."""
    gone = absent.among(rows_of(self.sample_ids), self.number)
    order = np.argsort(gone, kind="stable")
    step = Step(self.sample_ids[order], self.passes[order], self.valid, self.number, self.absent)
    return _without(step, absent, pools, seed)


def _half_of_the_bad(self: Quarantine, error: Any) -> None:
    """A good clip is put into quarantine beside a bad one."""
    _add(self, error)
    other = ClipError("", row=max(0, error.row - 1), key=self._dataset.key(max(0, error.row - 1)), shard=error.shard)
    _add(self, other)


def _same(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


PLANTED: dict[str, tuple[bool, object, str, object]] = {
    # Whether it is looked for in lives that read; where it is planted; what there; by what it is replaced.
    "history off by one": (False, Position, "advanced", _history_off_by_one),
    "a resize does not move the epoch's end": (False, Plan, "resized", lambda self, position: position),
    "a state ahead of the loop": (False, RunPosition, "to_save", _state_ahead),
    "a state in except begins the next epoch": (False, RunPosition, "to_save", _state_in_except),
    "states differ between ranks": (False, Cursor, "state", _state_of_rank),
    "an incomplete step loses samples": (False, Epoch, "step", _uneven_rest),
    "an append joins the epoch under way": (False, RunSchedule, "before_append", lambda self, shards, state: self),
    "bucketed steps are replayed unbucketed": (False, Plan, "_remaining", _left_bucketed),
    "nodes share a sample": (False, epoch_plan, "split_by_node", _split_overlapping),
    "a part is not locked": (True, shard_cache, "claim", _claim_without_lock),
    "a part is published before it is complete": (True, ShardCache, "_download", _publish_early),
    "a file is published before it is on the disk": (True, cache_folder, "_sync", None),
    "packets are not compared with their CRCs": (True, encoded_batch, "damaged_packet", _same(None)),
    "what killed processes leave stays": (True, CacheFolder, "reserved", _same(0)),
    "a stopped process holds up its neighbours": (True, ShardCache, "__init__", _wait_for_ever),
    "an unreadable range is empty": (True, RemoteRanges, "_read_once", _swallow),
    "a storage is asked once": (True, Retry, "each", _give_up),
    "a stopped process loses its patience": (True, retry, "_counted", lambda clock: clock),
    "the quarantine is not read": (True, quarantine, "read_folder", _unread),
    "what is absent shifts the order": (False, Step, "without", _shifted),
    "a good clip is put into quarantine": (True, Quarantine, "add", _half_of_the_bad),
    "a full disk ends the run": (True, ShardCache, "usable", lambda self: contextlib.nullcontext()),
}  # fmt: skip


FIRST = {
    "bucketed steps are replayed unbucketed": 27,
    "a part is not locked": 13,
    "a file is published before it is on the disk": 188,
    "packets are not compared with their CRCs": 54,
    "what killed processes leave stays": 6,
    "a stopped process holds up its neighbours": 110,
    "an unreadable range is empty": 38,
}
"""The seed with which the search for some of them begins, for its time: one that found it."""


@contextlib.contextmanager
def planted(name: str) -> Iterator[bool]:
    """The product with that fault. Gives whether it is to be looked for in lives that read."""
    reads, where, what, other = PLANTED[name]
    if other is None:  # of a module's own copy of the library
        where, what, other = cache_folder.os, "fsync", _same(None)  # type: ignore[attr-defined]
    with mock.patch.object(where, what, other):
        yield reads


def lives_until_found(name: str, live: Callable[[int, bool], object], most: int) -> int | None:
    """In which life, counted from 1, a planted fault is found; None if in none of so many. What neither a life
    nor the product raises, such as AttributeError, is a mistake in the planting, and is raised."""
    with planted(name) as reads:
        for number in range(most):
            try:
                live(FIRST.get(name, 0) + number, reads)
            except (Failure, StreamvidError, OSError):
                return number + 1
    return None
