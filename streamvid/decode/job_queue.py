"""The job queue of the NVDEC engines and of the CPU cores that assist them: which worker takes which job next.

A worker takes a job whenever it is free, so a slow worker does not delay the others, and engines go from one batch to
the next without a pause. Opening a decode session costs as much as decoding some dozens of packets, so an engine
prefers jobs that its open sessions can decode.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import accumulate
from time import monotonic
from typing import Final

from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.decode.decode_job import GopJob, lacks_memory
from streamvid.decode.session_key import SessionKey
from streamvid.errors import VideoError
from streamvid.video.packet_selection import EncodedSlice

log = logging.getLogger(__name__)

SESSION_OPEN_PACKETS: Final = 64
"""Packets decoded in the time that opening a session takes: 45 ms, against 0.7 ms for a packet of 720p H.264 (H200)."""
CPU_BACKLOG: Final = 3
"""A CPU core takes jobs only while the queue holds at least `CPU_BACKLOG` × engines × the packets of those jobs, so
that a batch does not end up waiting for a core. The measured time ratio of core to engine, usually 1 to 2.5, takes the
place of `CPU_BACKLOG` if it is higher."""
_AGAIN: Final = 1000
"""After this many engine jobs of a configuration without a core's, cores try it again, whatever ratio was measured."""
CPU_MIN_PIXELS: Final = 20_000_000
"""Packets × pixels per frame of the jobs that a core takes at once, at least (a dozen frames of 1080p, two dozen of
720p). With less, the cost per job in Python outweighs the decoding, and holds the GIL against the engines."""
CPU_MIN_FRAME_PIXELS: Final = 1_500_000
"""Smaller frames are left to the engines, for the same reason. On an H100 with 16 cores, cores made HEVC of 720p 4 to
9 % slower, H.264 of 720p 7 % faster and the loop behind it slower; 1080p gains 6 to 16 %."""
ENOUGH: Final = 2
"""With this many decoded batches waiting for the loop, cores leave all jobs to the engines: the engines keep up, and
frames from a core have to be copied to the GPU."""
_TOGETHER: Final = 48
"""Most packets of the jobs that an engine takes at once, if there is more than one: each call takes Python some tenths
of a millisecond, in which no other engine can be given jobs."""
_OPEN_DELAY: Final = 0.05
"""Seconds for which an engine leaves jobs to engines that have a matching session, before it opens a session itself."""


class DecodeQueue:
    """Jobs by batch and decoder configuration.

    Args:
        engines: number of NVDEC engines that take from it, besides CPU cores.
    """

    def __init__(self, *, engines: int) -> None:
        self._engines = engines
        lock = threading.RLock()
        # Cores and spare threads wait apart: waking them for jobs that they may not take costs the engines the GIL.
        self._changed, self._for_cores, self._for_spares = (threading.Condition(lock) for _ in range(3))
        # Per batch and configuration, longest job first, so that the last ones taken are short: longest processing
        # time first (Graham 1969).
        self._batches: deque[dict[SessionKey, deque[GopJob]]] = deque()
        self._retries: deque[GopJob] = deque()
        self._packets = 0
        self._waiting = 0
        self._closed = False
        # By configuration: engines with an open session, and packets put so far.
        self._holders: Counter[SessionKey] = Counter()
        self._seen: Counter[SessionKey] = Counter()
        # By configuration: the time ratio of core to engine, and the engines' jobs since a core last took one.
        self._slower: dict[SessionKey, float] = {}
        self._since: Counter[SessionKey] = Counter()
        # Clips by name and sample description: those of other datasets may have the same names.
        self._refused: set[tuple[str, bytes]] = set()

    def put(self, jobs: Sequence[GopJob]) -> None:
        """Add the jobs of a batch."""
        by_key: dict[SessionKey, list[GopJob]] = {}
        for job in jobs:
            by_key.setdefault(job.key, []).append(job)
        with self._changed:
            for key, same in by_key.items():
                self._seen[key] += sum(len(job.packets) for job in same)
            self._packets += sum(len(job.packets) for job in jobs)
            if by_key:
                self._batches.append(
                    {k: deque(sorted(v, key=lambda job: -len(job.packets))) for k, v in by_key.items()}
                )
            self._wake()
            self._wake_cores()

    def retry(self, job: GopJob, error: VideoError, *, begun: bool = True) -> None:
        """Return a failed job: an engine decodes it a second time, alone in its decoder. If that fails, or the queue
        has no engines or is closed, its batch fails with `error`, and in the first case the clip is refused. A job that
        was not begun is decoded as if it had not been taken."""
        with self._changed:
            able = self._engines and not self._closed and not job.group.abandoned
            if able and (job.retry_of is None or not begun):
                self._retries.append(replace(job, retry_of=error) if begun else job)
                self._wake()
                return
        if able:
            self.refuse(job, str(error))
        job.group.fail(error)

    def refuse(self, job: GopJob, reason: str) -> None:
        """Remember that engines cannot decode a job's clip, or get stuck in it: each further attempt would cost all
        sessions of an engine, and a batch that has to be made again. Not where FFmpeg's samples are wrong, nor if the
        GPU lacks memory."""
        has_right_samples = job.key.exact or job.key.codec not in NAL_SYNTAX
        if not self.refuses(job.encoded) and has_right_samples and not lacks_memory(reason):
            self._refused.add((job.encoded.name, job.encoded.stsd))
            log.warning("cores decode clip %s from now on: %s", job.encoded.name, reason)

    def refuses(self, encoded: EncodedSlice) -> bool:
        """Whether `refuse` was called for a clip."""
        return (encoded.name, encoded.stsd) in self._refused

    def take(
        self, *, current: SessionKey | None, opened: Container[SessionKey], wait_s: float | None, spare: bool = False
    ) -> GopJob | None:
        """The next job for an engine. Retries come first, then the oldest batch; within a batch a job for the current
        session, then one for another open session, then one that is worth opening a session for.

        Args:
            current: configuration of the session in use.
            opened: configurations of all the engine's open sessions. If the job's is not among them, it counts as
                opened from now until `session_closed`.
            wait_s: seconds to wait for a job; None: no limit.
            spare: only while spare threads help.

        Returns:
            the job; None if there is none after `wait_s`, or if the queue is closed and empty.
        """
        overdue, until = False, None if wait_s is None else monotonic() + wait_s
        with self._changed:
            while True:
                job, may_take = None, not spare or self._closed or self._spares_help()
                if may_take and self._retries:
                    job = self._retries.popleft()
                elif may_take:
                    job = self._choose(current, opened, open_anyway=overdue or self._closed)
                if job is not None:
                    if job.key not in opened:
                        self._holders[job.key] += 1
                    self._since[job.key] += 1
                    return job
                left = math.inf if until is None else until - monotonic()
                if left <= 0 or (self._closed and not self._batches):
                    return None
                # Engines with sessions for the queued jobs may stay busy: after the delay, open a session here.
                changed = self._for_spares if spare else self._changed
                wait = min(left, _OPEN_DELAY if self._batches and may_take else math.inf)
                overdue = not changed.wait(None if wait == math.inf else wait) and wait >= _OPEN_DELAY

    def take_more(self, job: GopJob) -> list[GopJob]:
        """More jobs for the decoder call that decodes `job`, of the same batch and configuration. All of these have at
        most one engine's share of the queued packets, so that a batch does not end up waiting for one engine (guided
        self-scheduling: Polychronopoulos and Kuck 1987)."""
        with self._changed:
            found: list[GopJob] = []
            packets, key = len(job.packets), job.key
            batch = next((jobs for jobs in self._batches if key in jobs and jobs[key][0].group is job.group), {})
            while not job.exclusive and key in batch and not batch[key][0].exclusive:
                packets += len(batch[key][0].packets)
                if packets > _TOGETHER or self._packets < self._engines * packets:
                    break
                found.append(self._pop(batch, key))
            self._since[key] += len(found)
            return found

    def waiting(self, change: int) -> None:
        """Add `change` to the number of decoded batches that wait for the loop."""
        with self._changed:
            self._waiting += change
            if change < 0:
                self._wake_cores()

    def core_took(self, key: SessionKey, slower: float) -> None:
        """Record that a core took `slower` times as long as an engine for a job of this configuration."""
        with self._changed:
            self._slower[key] = (self._slower.get(key, slower) + slower) / 2

    def take_for_cpu(self) -> list[GopJob]:
        """The next jobs for a CPU core: of one batch and configuration, and worth at least `CPU_MIN_PIXELS`. They are
        from the newest batch, because a core may take longer than the engines need for the rest of an older one.

        Blocks until `CPU_BACKLOG` and `ENOUGH` allow a job. Empty if the queue is closed and they allow none.
        """
        with self._changed:
            while not (jobs := self._choose_for_cpu()) and not self._closed:
                self._for_cores.wait()
            return jobs

    def seen(self) -> list[SessionKey]:
        """All configurations put so far."""
        with self._changed:
            return list(self._seen)

    def session_closed(self, key: SessionKey) -> None:
        """Record that an engine closed its session of this configuration."""
        with self._changed:
            self._holders[key] = max(0, self._holders[key] - 1)
            self._wake()

    def close(self) -> None:
        """Accept no more batches; queued jobs are still decoded."""
        with self._changed:
            self._closed = True
            self._wake()
            self._for_cores.notify_all()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._closed or self._spares_help():
            self._for_spares.notify_all()

    def _wake_cores(self) -> None:
        """Wake the CPU cores that wait for jobs, unless there is none for them: each would take the GIL for nothing."""
        suited = self._waiting < ENOUGH and any(_suits_cores(key) for batch in self._batches for key in batch)
        if suited or not self._engines:
            self._for_cores.notify_all()

    def _spares_help(self) -> bool:
        """Whether sessions have to be drained between queued jobs."""
        return any(len(batch) > 1 or any(jobs[0].needs_drain for jobs in batch.values()) for batch in self._batches)

    def _choose_for_cpu(self) -> list[GopJob]:
        """The jobs that a core takes; none if it should leave what there is to engines."""
        if self._waiting >= ENOUGH and self._engines:
            return []
        ahead = self._packets
        for batch in reversed(self._batches):
            # The configuration with most pixels left takes longest.
            for key in sorted(batch, key=lambda key: -len(batch[key]) * key.width * key.height):
                jobs = batch[key]
                # The shortest ones: engines take the longest.
                count = _worthwhile(jobs) or (0 if self._engines else 1)
                packets = sum(len(jobs[-n].packets) for n in range(1, count + 1))
                slower = self._slower.get(key, 0.0) if self._since[key] < _AGAIN else 0.0
                if count and ahead >= max(CPU_BACKLOG, slower) * self._engines * packets:
                    self._since[key] = 0
                    return [self._pop(batch, key, -1) for _ in range(count)]
            ahead -= sum(len(job.packets) for jobs in batch.values() for job in jobs)
        return []

    def _choose(self, current: SessionKey | None, opened: Container[SessionKey], *, open_anyway: bool) -> GopJob | None:
        """The job to take; None if engines that have sessions should take what is left, unless `open_anyway`."""
        for batch in self._batches:
            if current in batch:
                return self._pop(batch, current)
            # The configuration with most jobs left takes longest.
            keys = sorted(batch, key=lambda key: -len(batch[key]))
            for key in keys:
                if key in opened:
                    return self._pop(batch, key)
            for key in keys:
                holders = self._holders[key]
                if open_anyway or not holders or self._seen[key] >= SESSION_OPEN_PACKETS * (holders + 1):
                    return self._pop(batch, key)
        return None

    def _pop(self, batch: dict[SessionKey, deque[GopJob]], key: SessionKey, position: int = 0) -> GopJob:
        job = batch[key][position]
        del batch[key][position]
        if not batch[key]:
            del batch[key]
        # `take` ends when no batch is left.
        if not batch:
            self._batches.remove(batch)
        self._packets -= len(job.packets)
        return job


def _worthwhile(jobs: Sequence[GopJob]) -> int:
    """How many jobs from the end make up `CPU_MIN_PIXELS`; 0 if all together do not."""
    pixels = jobs[0].key.width * jobs[0].key.height
    if not _suits_cores(jobs[0].key):
        return 0
    work = accumulate(len(job.packets) * pixels for job in reversed(jobs))
    return next((count for count, total in enumerate(work, 1) if total >= CPU_MIN_PIXELS), 0)


def _suits_cores(key: SessionKey) -> bool:
    return key.width * key.height >= CPU_MIN_FRAME_PIXELS and key.exact
