"""Packs groups on a Ray cluster that is there already: a task per group, each of which writes its shards itself.

Nothing that matters lies in Ray: a task that is lost with its node is run again elsewhere and goes on after the last
shard that it left at the destination. Tasks and driver need to see the videos and the destination under the same
names, and the same versions of the libraries.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from streamvid.errors import InputError, StreamvidError
from streamvid.packing.destination import working
from streamvid.packing.job import Job, Work, versions
from streamvid.packing.journal import FinishedElsewhereError, Journal, Record
from streamvid.packing.run_local import Advance, pack_groups
from streamvid.storage import filesystem
from streamvid.storage.url import local_path

_AHEAD: Final = 2
"""Tasks at the cluster per CPU that it has: enough to keep it busy, few enough for any number of groups."""
_RETRIES: Final = 20
"""How often a task may lose its node or its worker. Videos that crash FFmpeg do not count: they have processes."""


def pack_groups_on_ray(
    job: Job, works: Iterable[Work], destination: str, *, address: str | None, advance: Advance
) -> Iterator[Record]:
    """Pack groups as `streamvid.packing.run_local.pack_groups` does, but many at a time, and records in any order.

    Args:
        job: what to make.
        works: the groups, or what is left of them. Taken from when needed.
        destination: where shards and records go: the same place for every node.
        address: of the cluster; None for that of RAY_ADDRESS, or one that runs on this machine.
        advance: called after each group.

    Raises:
        InputError: Ray is not installed, there is no cluster, or a node cannot take part.
        OSError, StreamvidError: a node or the storage is at fault.
        FinishedElsewhereError: another process has finished this pack.
    """
    ray = _import()
    began = not ray.is_initialized()
    if began:
        _connect(ray, address)
    running: dict[Any, Work] = {}
    try:
        task = ray.remote(num_cpus=1, max_retries=_RETRIES, retry_exceptions=False)(_pack_group)
        shared = ray.put(job)
        place = os.path.abspath(local_path(destination)) if filesystem.is_local(destination) else destination
        todo = iter(works)
        while True:
            while len(running) < _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))):
                work = next(todo, None)
                if work is None:
                    break
                running[task.remote(shared, _absolute(work), place)] = work
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                work = running.pop(reference)
                records = _result(ray, reference)
                yield from records
                clips = sum(record.entry.clips for record in records if record.entry)
                size = sum(record.entry.bytes for record in records if record.entry)
                rejected = sum(len(record.rejected) for record in records)
                advance(len(work.sources), sum(work.sizes), clips, size, rejected)
    finally:
        for reference in running:
            ray.cancel(reference)
        if began:
            ray.shutdown()


def _pack_group(job: Job, work: Work, destination: str) -> list[Record]:
    """In a Ray worker: pack a group, or what is left of it since the driver looked."""
    here = versions()
    if dict(job.versions) != here:
        other = ", ".join(f"{name} {here.get(name)} for {v}" for name, v in job.versions.items() if here.get(name) != v)
        raise InputError(f"a node of the cluster has other versions ({other}): install the same on all")
    # What this task did before it lost its node. Those before are with the driver.
    new, place = Journal(destination, job.fingerprint).read_on(work.group, work.place)
    if place is None:
        return new
    skipped = place.source - work.place.source
    rest = replace(work, place=place, sources=work.sources[skipped:], sizes=work.sizes[skipped:])
    with working(destination) as folder:
        return [*new, *pack_groups(job, [rest], destination, folder, workers=1, advance=lambda *_: None)]


def _absolute(work: Work) -> Work:
    """Tasks run in other folders than we do."""
    sources = (
        replace(source, path=os.path.abspath(local_path(source.path))) if filesystem.is_local(source.path) else source
        for source in work.sources
    )
    return replace(work, sources=tuple(sources))


def _import() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("packing on Ray needs the package ray: pip install 'streamvid[ray]'") from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Join a cluster; never start one."""
    handler = signal.getsignal(signal.SIGTERM)
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"no Ray cluster can be reached at {where!r} ({reason}): check --address") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray puts its own in the place of ours


def _result(ray: Any, reference: Any) -> list[Record]:
    try:
        records: list[Record] = ray.get(reference)
        return records
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, StreamvidError | OSError | FinishedElsewhereError):
            raise cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StreamvidError(
            f"the Ray cluster lost a task for good ({reason}): see its logs, then run the same command again"
        ) from error
