"""Packs groups on an existing Ray cluster: a task per group, which writes its shards to the destination.

All state is at the destination, none in Ray: a task that is lost with its node is retried elsewhere, and resumes after
the last finished shard. Tasks and driver need the same paths for the videos and the destination, and the same versions
of the libraries.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from streamvid.errors import InputError, StreamvidError
from streamvid.packing.destination import work_folder
from streamvid.packing.fingerprints import versions
from streamvid.packing.images import is_sequence
from streamvid.packing.job_spec import GroupTask, PackJob
from streamvid.packing.journal import FinishedElsewhereError, Journal, Record, totals
from streamvid.packing.run_local import Advance, pack_groups
from streamvid.storage.client import asked
from streamvid.storage.url import is_local, local_path
from streamvid.text import first_line

_AHEAD: Final = 2
"""Submitted tasks per CPU of the cluster: keeps it busy, and bounds the memory for any number of groups."""
_CONNECT_SECONDS: Final = 10
"""For which an address is tried before Ray gets it, which tries for minutes and is deaf to Ctrl-C meanwhile."""
_RETRIES: Final = 20
"""Retries of a task that lost its node or worker. FFmpeg crashes do not count: FFmpeg runs in worker processes."""


def pack_groups_on_ray(
    job: PackJob, tasks: Iterable[GroupTask], destination: str, *, address: str | None, advance: Advance
) -> Iterator[Record]:
    """Pack groups as `streamvid.packing.run_local.pack_groups` does, in parallel; records come in any order.

    Args:
        tasks: the groups, or the rests of them; iterated lazily.
        destination: folder or object-store prefix for shards and records, the same for every node.
        address: of the cluster; None: that in RAY_ADDRESS, or one on this machine.

    Raises:
        InputError: Ray is not installed, there is no cluster, or a node cannot take part.
        OSError, StreamvidError: a node or the storage fails.
        FinishedElsewhereError: another process has finished this pack.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("packing on Ray needs the package ray: pip install 'streamvid[ray]'") from error
    began = not ray.is_initialized()
    if began:
        _connect(ray, address)
    running: dict[Any, GroupTask] = {}
    try:
        pack_group = ray.remote(num_cpus=1, max_retries=_RETRIES, retry_exceptions=False)(_pack_group)
        shared = ray.put(job)
        if is_local(destination):
            destination = os.path.abspath(local_path(destination))
        todo = iter(tasks)
        while True:
            while len(running) < _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))):
                task = next(todo, None)
                if task is None:
                    break
                running[pack_group.remote(shared, _absolute(task), destination)] = task
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                records = _result(ray, reference)
                yield from records
                advance(len(task.sources), sum(source.size for source in task.sources), *totals(records))
    finally:
        for reference in running:
            ray.cancel(reference)
        if began:
            ray.shutdown()


def _pack_group(job: PackJob, task: GroupTask, destination: str) -> list[Record]:
    """In a Ray worker: pack a group, or the rest of it."""
    here = versions()
    if dict(job.versions) != here:
        other = ", ".join(f"{name} {here.get(name)} for {v}" for name, v in job.versions.items() if here.get(name) != v)
        raise InputError(f"a node of the cluster has other versions ({other}): install the same on all")
    # Records of an earlier attempt of this task; the driver has those before `task.cursor`.
    journal = Journal(destination, job.fingerprint)
    new, cursor = asked(destination, lambda: journal.read_group(task.group, task.cursor), job.retry)
    if cursor is None:
        return new
    rest = replace(task, cursor=cursor, sources=task.sources[cursor.source - task.cursor.source :])
    with work_folder(destination) as folder:
        return [*new, *pack_groups(job, [rest], destination, folder, workers=1, advance=lambda *_: None)]


def _absolute(task: GroupTask) -> GroupTask:
    """The task with absolute paths: Ray workers have other working directories. Those of image folders end in '/'."""
    sources = (
        replace(source, path=local_path(source.path) + "/" * is_sequence(source.path))
        if is_local(source.path)
        else source
        for source in task.sources
    )
    return replace(task, sources=tuple(sources))


def _connect(ray: Any, address: str | None) -> None:
    """Join a cluster; never start one."""
    handler = signal.getsignal(signal.SIGTERM)
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if given := re.fullmatch(r"\[?([^/]+?)\]?:(\d+)", where):
            socket.create_connection((given[1], int(given[2])), _CONNECT_SECONDS).close()
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster can be reached at {where!r} ({first_line(error)}): check --address or RAY_ADDRESS"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # ray.init replaces it


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
        raise StreamvidError(
            f"the Ray cluster lost a task for good ({first_line(error)}): see its logs, then run the same command again"
        ) from error
