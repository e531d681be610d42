"""A life of a cluster, from a seed: its nodes, its runs, and what befalls them."""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from streamvid.arrays import Int64
from streamvid.dataset.clip_table import ClipTable
from streamvid.loader import engine, quarantine, rescue, stream_loader
from streamvid.plan.bucket_key import bucket_keys
from streamvid.storage import cache_folder, ranges, shard_cache
from streamvid.storage import retry as retries
from tools.simulate.data import data
from tools.simulate.engines import PacketRenderer, decoded
from tools.simulate.expected import check
from tools.simulate.job import Job
from tools.simulate.kernel import Current, Kernel, Killed, Process
from tools.simulate.machine import Disk, Disks, digest_of, installed
from tools.simulate.store import SimulatedFileSystem, Store

_GIANTS = 500
"""One life in so many is of a thousand ranks."""
_READING = 0.1
"""Lives in which ranks read by way of the cache; in the others they get the plan's steps, and more happens to it."""


def live(seed: int, disks: Disks, say: Callable[[str], None] | None = None, *, reads: bool | None = None) -> int:
    """One life. Returns a digest of its trace, the same for the same seed.

    Args:
        seed: of all that happens.
        disks: what `world` gave.
        say: is told what happens, line by line.
        reads: whether ranks read by way of the cache; default: as the seed says.

    Raises:
        Failure: a promise of the product does not hold. Or whatever the product raises that it should not.
    """
    kernel = Current.kernel = Kernel(seed, say)
    random.seed(seed)  # the jitter of retries
    giant = seed % _GIANTS == 7 and reads is None
    drawn = kernel.random.random() < _READING and not giant
    try:
        if not (drawn if reads is None else reads):
            Job("run", kernel, giant=giant, epochs=kernel.random.randrange(1, 4)).run()
        else:
            with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="streamvid-sim-") as folder:
                Cluster(kernel, disks, Path(folder)).live()
        return kernel.digest
    finally:
        kernel.end()
        disks.by_root.clear()
        SimulatedFileSystem.store = Current.kernel = None


class Cluster:
    """Nodes with a cache each, one or two runs on them, a storage; and faults at random times."""

    def __init__(self, kernel: Kernel, disks: Disks, folder: Path) -> None:
        self.kernel, self.random, self.folder = kernel, kernel.random, folder
        self.store = SimulatedFileSystem.store = Store(kernel)
        clock = retries.time  # type: ignore[attr-defined]
        self.retry = retries.Retry(self.random.choice((150.0, 600.0)), clock.monotonic, clock.sleep)
        self.nodes = self.random.choice((1, 1, 2))
        self.limit = self.random.choice((1 << 20, 1 << 20, 300_000, 110_000))
        """Room for all shards of the dataset with its append, or for six, or two."""
        self.disks = []
        for node in range(self.nodes):
            (folder / str(node)).mkdir()
            disks.by_root[f"{folder}/{node}"] = disk = Disk(folder / str(node))
            self.disks.append(disk)
        self.quiet = self.random.random() < 0.2
        """Nothing goes wrong but what the runs do themselves."""
        self.fetch = self.random.choice(("shards", "shards", "shards", "ranges", "auto"))
        self.on_error = self.random.choice(("skip", "mask"))
        keys = data().remote[1].clips.key
        bad = self.random.sample(range(len(keys)), self.random.choice((0, 0, 1, 4)))
        kernel.bad = frozenset(keys[row] for row in bad)
        self.damaged = False
        self.damage_left = [name for name in SimulatedFileSystem.objects if name.endswith(".tar")]
        self.jobs: list[Job] = []
        self.others: list[Process] = []

    def live(self) -> None:
        kernel = self.kernel
        for number in range(self.random.choice((1, 1, 2))):
            job = Job(
                f"run{number}",
                kernel,
                self._options,
                nodes=self.nodes,
                retry=self.retry,
                epochs=self.random.randrange(1, 3),
            )
            job.longest_wait = 100 + 300 * self.store.latency
            self.jobs.append(job)
            kernel.spawn(job.name, Process(job.name), job.run)
        if not self.quiet:
            for _ in range(self.random.randrange(1, 6)):
                self._plan_fault()
        while not all(job.ended for job in self.jobs):
            kernel.block(5)
        for process in self.others:
            kernel.kill(process)
        kernel.settle(self.others)
        self._check_what_is_left()

    def _options(self, node: int) -> dict[str, Any]:
        return {"cache_dir": self.folder / str(node), "cache_bytes": self.limit, "fetch": self.fetch,
                "quarantine": self.folder / "quarantine", "on_error": self.on_error}  # fmt: skip

    # What befalls it.

    def _plan_fault(self) -> None:
        faults = [
            self._outage, self._flaky, self._kill, self._kill, self._stop, self._stop, self._power, self._power,
            self._damage_file, self._damage_answer, self._damage_answer, self._remove_folder, self._held_part,
            self._full, self._read_only,
        ]  # fmt: skip
        fault = self.random.choice(faults)
        self.kernel.at(self.kernel.now + self.random.uniform(0, 60), fault)

    def _for(self, most: float, end: Callable[[], None]) -> float:
        """A fault that ends after a while."""
        seconds = self.random.uniform(1, most)
        self.kernel.at(self.kernel.now + seconds, end)
        for job in self.jobs:
            job.longest_wait += seconds
        return seconds

    def _outage(self) -> None:
        seconds = self._for(70, lambda: None)
        self.store.down_until = max(self.store.down_until, self.kernel.now + seconds)
        self.store.how = self.random.choice(("503", "reset", "stall"))
        self.kernel.say(f"OUTAGE ({self.store.how}) for {seconds:.0f} s")

    def _flaky(self) -> None:
        self.store.failing = 0.3
        self._for(60, lambda: setattr(self.store, "failing", 0.0))

    def _process(self) -> Process | None:
        alive = [process for job in self.jobs for process in job.processes if not process.dead]
        return self.random.choice(alive) if alive else None

    def _kill(self) -> None:
        if process := self._process():
            self.kernel.kill(process)

    def _stop(self) -> None:
        if process := self._process():
            seconds = self.random.choice((5, 200, 200, 3000))
            self.kernel.stop(process, seconds)
            for job in self.jobs:
                # A stopped rank holds up its own run, and others for a minute for each file that it holds.
                job.longest_wait += seconds if process in job.processes else min(seconds, 6 * 61)

    def _held_part(self) -> None:
        """A process of nobody's was stopped for good while it fetched."""
        disk, holder = self.random.choice(self.disks), Process("stopped")
        entry = self.random.choice(data().remote[0].shards)
        if disk.root.exists() and (file := cache_folder.claim(disk.root / f"{entry.sha256}.{entry.bytes}.part")):
            self.kernel.say(f"HELD {entry.sha256[:8]}")
            holder.files.append(file)
            self.others.append(holder)
            for job in self.jobs:
                job.longest_wait += 61

    def _power(self) -> None:
        node = self.random.randrange(self.nodes)
        self.kernel.say(f"POWER of node {node}")
        for job in self.jobs:
            for process in job.processes:
                if process.node == node:
                    self.kernel.kill(process)
        self.disks[node].lose_power()

    def _full(self) -> None:
        disk = self.random.choice(self.disks)
        disk.capacity = self.random.randrange(200_000)
        self.kernel.say(f"FULL {disk.root.name} above {disk.capacity} bytes")
        self._for(60, lambda: setattr(disk, "capacity", None))

    def _read_only(self) -> None:
        disk = self.random.choice(self.disks)
        disk.read_only = True
        self._for(60, lambda: setattr(disk, "read_only", False))

    def _damage_file(self) -> None:
        """Another program writes into a file of the cache that nobody has open."""
        files = self._published()
        self.random.shuffle(files)
        for file in files:
            with builtins.open(file, "r+b") as opened, contextlib.suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                opened.write(b"?" * (os.path.getsize(file) // 2))
                os.utime(file, (self.kernel.now, self.kernel.now))
                self.damaged = True
                self.kernel.say(f"DAMAGE {os.path.basename(file)[:8]}")
                return
        if not all(job.ended for job in self.jobs):
            self.kernel.at(self.kernel.now + 5, self._damage_file)

    def _damage_answer(self) -> None:
        name = self.damage_left.pop(self.random.randrange(len(self.damage_left)))
        self.store.damage.add(name)

    def _remove_folder(self) -> None:
        """Not while a file in it is about to be opened: that is not covered (docs/reliability.md)."""
        for file in self._published():
            with builtins.open(file, "rb") as opened:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        self.kernel.say("REMOVE")
        shutil.rmtree(self.random.choice(self.disks).root, ignore_errors=True)

    def _published(self) -> list[str]:
        found = [entry.path for disk in self.disks if disk.root.exists() for entry in os.scandir(disk.root)]
        return sorted(path for path in found if len(os.path.basename(path)) == 64)

    # What must hold at the end.

    def _check_what_is_left(self) -> None:
        """All processes are gone: the next to open the cache finds whole files, and clears what is not."""
        for disk in self.disks:
            disk.capacity, disk.read_only = None, False
            with shard_cache.ShardCache(disk.root, limit_bytes=self.limit, retry=self.retry):
                left = sorted(name for name in os.listdir(disk.root) if name.endswith(".part"))
                check(not left, f"left behind: {left}")
        if not self.damaged:
            for path in self._published():
                check(digest_of(path) == os.path.basename(path), f"{path} is damaged")
        if self.quiet and self.limit >= 1 << 20 and self.fetch == "shards" and not self.kernel.bad:
            for (node, name), times in self.store.asked.items():
                check(times == 1 or not name.endswith(".tar"), f"node {node} fetched {name} {times} times")


_keys: dict[tuple[int, int], Any] = {}


def _bucket_keys(clips: ClipTable, rows: Int64) -> Any:
    """The product's, which depend on the selected rows alone, computed once for all ranks."""
    key = len(clips), hash(rows.tobytes())
    if key not in _keys:
        _keys[key] = bucket_keys(clips, rows)
    return _keys[key]


@contextlib.contextmanager
def world() -> Iterator[Disks]:
    """The dataset, and the product's modules on simulated machines, for the simulated runs."""
    data()
    disks, before, hook = Disks(), random.getstate(), sys.unraisablehook

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        if not issubclass(what.exc_type, Killed):
            hook(what)

    level = logging.getLogger("streamvid").level
    with contextlib.ExitStack() as patches:
        patches.enter_context(installed(disks))
        patches.enter_context(mock.patch.object(engine, "make_renderer", PacketRenderer))
        patches.enter_context(mock.patch.object(rescue, "decode_isolated", decoded))
        patches.enter_context(mock.patch.object(quarantine, "_now", return_value="2100"))
        for name, value in (("PART_BYTES", 8192), ("_WINDOW_BYTES", 16384)):
            patches.enter_context(mock.patch.object(ranges, name, value))
        patches.enter_context(mock.patch.object(shard_cache, "_POLL_SECONDS", 2.0))
        patches.enter_context(mock.patch.object(sys, "unraisablehook", unraisable))
        patches.enter_context(mock.patch.object(stream_loader, "bucket_keys", _bucket_keys))
        # The garbage of one life must not be collected, with calls of the system, at any moment of another.
        gc.collect()
        gc.disable()
        logging.getLogger("streamvid").setLevel(logging.CRITICAL)
        try:
            yield disks
        finally:
            logging.getLogger("streamvid").setLevel(level)
            gc.enable()
            random.setstate(before)
