"""`StreamLoader`: plan → read → decode → transform → PyTorch batches, each stage ahead of the next."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import check, integer, one_of, suggest_keywords
from streamvid.dataset.picked import Pick
from streamvid.decode.lost_gpu import GpuWatch
from streamvid.errors import InputError
from streamvid.fetch.fetch_mode import FETCHES, Fetch
from streamvid.fetch.plan_samples import Checksum
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.batch import Batch, LoaderStats, make_batch
from streamvid.loader.batch_loader import BatchLoader
from streamvid.loader.engine import ENGINES, EngineName, make_engine
from streamvid.loader.options import Opener, bucket_steps, check_steps, fetched_as, last_batch_policy, shuffle_order
from streamvid.loader.preflight import FALLBACKS, ClipRoute, Fallback
from streamvid.loader.quarantine import ErrorPolicy, OnError, Quarantine
from streamvid.loader.run_about import BLOCK_SHARDS, run_about
from streamvid.loader.run_position import Delivery, RunPosition
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.agreement import Agreement
from streamvid.plan.bucket_key import bucket_keys
from streamvid.plan.checkpoint import Cursor, RunSchedule
from streamvid.plan.epoch import Epoch, LastBatch
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.inputs import DatasetLike, Mix, Source, Subset
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Shuffle
from streamvid.plan.run_log import RunLog
from streamvid.plan.uses import Uses
from streamvid.plan.world import find_cores, find_device, find_world, warn_if_one_node
from streamvid.sampling.base import FrameSampler
from streamvid.storage.retry import Retry
from streamvid.transform.output_size import check_output_sizes
from streamvid.transform.spec import Transform, Views

if TYPE_CHECKING:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from torch.distributed.device_mesh import DeviceMesh

    from streamvid.loader.clip_dataset import ClipDataset

log = logging.getLogger(__name__)


class StreamLoader(BatchLoader[Cursor]):
    """Streams a dataset into PyTorch batches; every iteration over it is an epoch.

    Each batch is a `streamvid.loader.batch.Batch`: a dict of tensors on the device.

    Args:
        dataset: a folder, a URL such as s3://bucket/name, an open `Dataset`, a `Subset` of one, a `Mix` of several, or
            a `ClipDataset`. A `ClipDataset` has its own sampling, transform, columns, seed and checksum; its
            `on_error`, `max_errors` and `quarantine` apply unless given here.
        batch_size: clips per batch and rank.
        sampling: which frames: `Window`, `TiledWindows`, `Uniform`, `MultiRate`, `Keyframes`, `RandomFrames`, `Frames`,
            `ByClip` or `All`; their `pad` decides what clips show that are too short. docs/sampling.md explains each.
        transform: applied to the frames; default: none, uint8 THWC. A dict of several makes several views of each
            clip: `batch[name]` instead of `batch["video"]`.
        columns: metadata columns in batches: numbers as tensors, text as lists, `Pick`s as one of several values.
        seed: seed of order, random frames and augmentation.
        batch_fn: a function of each finished batch, called in the loop's thread; the loop gets its result.
        shuffle: True or "full": a new random order of all clips every epoch; "block": of shards, and then of the clips
            of 16 shards at a time; False or "none": the dataset's order.
        group_by_size: make batches of clips of the same size, codec and parameter sets, chosen from 64 steps (True) or
            from this many. For GPUs and datasets of many sizes; docs/training.md has the cost in randomness.
        locality: "node": every node has its own shards, the same in every epoch, whose clips its ranks share.
        steps_per_epoch: steps of an epoch; default: as many as a pass over the dataset has.
        last_batch: "partial" (default), "drop" or "fill", or DALI's LastBatchPolicy: see
            `streamvid.plan.epoch_plan.Plan`.
        drop_last: PyTorch's name for last_batch="drop" (True) and "partial" (False); give only one of the two.
        device: "cuda", "cuda:1", "cpu"; default: this rank's GPU if there is one.
        fallback: for clips that the GPU does not decode: "cpu": CPU cores decode them, and a warning says how many and
            how fast; "error": the loader refuses them.
        engine: "default", or "dali": one DALI pipeline reads, decodes and transforms. Clips, frames and order are the
            same; docs/training.md lists what DALI decodes.
        rank, world_size: this process' part of every step; world_size=1 alone: all of it. Default: found at the first
            batch from a `mesh`, torch.distributed, or the launcher's environment variables; see
            `streamvid.plan.world.find_world`.
        mesh: a DeviceMesh: each data-parallel rank gets its own clips, and its tensor, pipeline and context parallel
            ranks get the same clips (`streamvid.plan.mesh`).
        ranks_per_node: for locality; default: from the launcher. With a mesh, the data-parallel ranks on a node.
        num_threads: CPU threads that decode and transform; default: this process' share of the node's cores. With a
            GPU, one thread per NVDEC engine and one more are set aside, and the others assist the engines.
        isolate: the CPU decodes in child processes, one per thread: a video that crashes or hangs FFmpeg then costs
            only its clip. docs/reliability.md has the cost in speed.
        fetch: for a remote dataset: "shards": whole shards, into the cache; "ranges": only the bytes of the wanted
            frames, from the bucket; "auto": the one predicted to be cheaper. `stats()` says which one was chosen.
        cache_dir: folder in which shards of a remote dataset are cached; shared by the ranks of a node.
        cache_bytes: size limit of that cache.
        checksum: how read bytes are checked: "crc32c": each packet; "sha256": the whole clip, which is then read as a
            whole; None: not at all.
        retry_for: seconds for which requests are repeated while a storage does not answer, before its error ends the
            run; docs/reliability.md lists the errors that are retried. An open `Dataset` has its own.
        on_error: for a bad clip: "skip" (default): another clip of this rank stands in, with `valid` False and a
            warning; "mask": frames of zeros, with `valid` and `mask` False and a warning; "raise": its error ends the
            run.
        max_errors: bad clips that this rank may find before it raises; default: 10, or 1 % of its clips if more.
        quarantine: folder in which bad clips are recorded, for resumed runs; default: `quarantine` in the working
            directory. Created at the first bad clip.
        roots: folders and URLs outside of datasets that may be read (docs/in_place.md); an open `Dataset` has its own.
        revision: a revision of the dataset (docs/revisions.md); default: the newest, or that of an open `Dataset`.

    Raises:
        InputError: an option is invalid, by itself or for this dataset. In the loop: this process' rank or world has
            changed since the first batch, or ranks of a process group or mesh stream something else.
        DatasetError: a dataset is missing or damaged.
    """

    _one_size = True  # whether all outputs must have one size, as those of a batch

    @suggest_keywords
    def __init__(
        self,
        dataset: ClipDataset | Subset | Mix | DatasetLike,
        *,
        batch_size: int,
        sampling: FrameSampler | None = None,
        transform: Transform | Views | Mapping[str, Transform] | None = None,
        columns: Sequence[str | Pick] = (),
        seed: int = 0,
        batch_fn: Callable[[Batch], Batch] | None = None,
        shuffle: bool | Shuffle = True,
        group_by_size: bool | int = False,
        locality: Literal["node"] | None = None,
        steps_per_epoch: int | None = None,
        last_batch: LastBatch | LastBatchPolicy | None = None,
        drop_last: bool | None = None,
        device: str | int | None = None,
        fallback: Fallback = "cpu",
        engine: EngineName = "default",
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        ranks_per_node: int | None = None,
        num_threads: int | None = None,
        isolate: bool = False,
        fetch: Fetch = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 64 << 30,
        checksum: Checksum | None = "crc32c",
        retry_for: float | Retry = 600.0,
        on_error: OnError | None = None,
        max_errors: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        roots: Sequence[str | os.PathLike[str]] = (),
        revision: int | None = None,
    ) -> None:
        policy = ErrorPolicy.of().but(on_error, max_errors, quarantine)
        check(batch_fn is None or callable(batch_fn), batch_fn, "batch_fn", "a function of a batch")
        one_of(locality, ("node", None), "locality")
        if locality is not None and mesh is not None and ranks_per_node is None:
            raise InputError(
                "locality='node' with a mesh needs ranks_per_node: the mesh's data-parallel ranks on a node"
            )
        one_of(engine, ENGINES, "engine")
        one_of(fallback, FALLBACKS, "fallback")
        one_of(fetch, FETCHES, "fetch")
        if engine == "dali" and fetch == "ranges":
            raise InputError("engine='dali' reads local files alone: leave out fetch='ranges'")
        batch_size = integer(batch_size, "batch_size")
        num_threads = find_cores() if num_threads is None else integer(num_threads, "num_threads")
        cache_bytes = integer(cache_bytes, "cache_bytes", most=None)
        last, order = last_batch_policy(last_batch, drop_last), shuffle_order(shuffle)
        grouped = bucket_steps(group_by_size)
        self._find_world = partial(find_world, rank, world_size, mesh=mesh, ranks_per_node=ranks_per_node)
        world, device_id = self._find_world(settle=False), find_device(device)
        self._batch_fn, self._batch_size, self._ranks_per_node = batch_fn, batch_size, ranks_per_node
        self._opener = Opener(cache_dir, cache_bytes, Retry.of(retry_for), roots, revision)
        self._samples = samples = self._opener.open(
            dataset, sampling, transform=transform, columns=columns, seed=seed, checksum=checksum
        )
        self.dataset = samples.dataset
        self.skipped = samples.pools.short
        if self.skipped:
            text = "%d of %d clips are too short for %s and are skipped"
            log.warning(text, self.skipped, len(self.dataset), samples.spec.sampling)
        rows = samples.pools.rows()
        check_output_sizes(samples.transform, self.dataset.clips, rows, one_size=self._one_size)
        plan = Plan(
            SampleStream(samples.pools.pools, samples.source.weights, samples.spec.seed, order, BLOCK_SHARDS),
            batch_size,
            world,
            last,
            locality == "node",
            steps_per_epoch,
            bucket_steps=grouped,
            # Computed without bucketing, too, because the state of a run with bucketing may be resumed without it.
            bucket_keys=cache(partial(bucket_keys, self.dataset.clips, rows)),
        )
        check_steps(plan)
        shared = self._opener.cache_for(self.dataset.is_local)
        fetched = fetched_as("shards" if engine == "dali" else fetch, plan, samples, shared, cache_bytes)
        if samples.policy is not None:
            policy = samples.policy.but(on_error, max_errors, quarantine)
        self._quarantine = Quarantine(policy, self.dataset, samples.pools.excluded, clips=len(rows), world=plan.world)
        self._access = ShardAccess(self.dataset, cache=shared, limit_bytes=cache_bytes, by_range=fetched == "ranges")
        self._engine, self._routes = make_engine(
            engine,
            samples,
            rows if not len(self.dataset.forgotten) else np.setdiff1d(rows, self.dataset.forgotten),
            self._quarantine,
            self._access,
            device_id=device_id,
            num_threads=num_threads,
            max_batch=batch_size,
            fallback=fallback,
            isolate=isolate,
        )
        self._schedule = RunSchedule(plan, tuple(samples.source.checksums()), samples.spec.sampling)
        revisions = [part.manifest.revision for part in samples.source.datasets]
        self._log = RunLog(run_about(samples.source, self._schedule), revisions)
        self._device = "cpu" if device_id is None else f"cuda:{device_id}"
        self._stats, self._settled = LoaderStats(fetch=fetched), False
        """Settled: a batch was asked for, so that the world is final."""
        self._position = RunPosition(self._schedule.start(0))
        made = {"the transform": samples.transform, "columns": samples.columns, "batch_fn": batch_fn}
        self._agreement = Agreement(mesh, made)
        self._repeats = 0  # complete epochs; after one, or two with byte ranges, the next is begun early
        self._begun: tuple[Cursor, Epoch] | None = None
        self._watch = GpuWatch(device_id, self._position.where)
        self._restored: Mapping[str, Any] | None = None
        """The loaded state that the position comes from, if any."""

    def __repr__(self) -> str:
        world = self._schedule.plan.world
        return (
            f"StreamLoader({self.dataset!r}, batch_size={self._batch_size}, sampling={self._samples.spec.sampling!r}, "
            f"transform={self._samples.transform!r}, device={self._device!r}, rank={world.rank}, "
            f"world_size={world.size}, steps={len(self)}, epoch={self.epoch})"
        )

    def __len__(self) -> int:
        """Batches in an epoch, the same number on every rank. Before the first batch, for the world known so far."""
        self._meet_world()
        return len(self._schedule.plan)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`. Without effect if it is that already: a resumed epoch goes on."""
        epoch = integer(epoch, "epoch", least=0)
        if epoch == self.epoch:
            self._position.put(self._position.next)
        else:
            self._position.put(self._schedule.start(epoch))
            self._restored = None

    def state_dict(self) -> dict[str, Any]:
        """The position of the run, counting batches that the training loop has received, not prefetched ones.

        Within the loop it is a position in the epoch. An epoch that was left by `break` is over: after the loop, the
        state is the beginning of the next epoch, where the next iteration starts. While an exception that ended the
        loop is handled (`except`, `finally`), it is still the position in the epoch.

        The state is the same on every rank at the same step, JSON-safe, and about 700 bytes long. It includes the
        revisions that were read and the steps so far, for `streamvid ledger`. The methods follow the protocol of
        torchdata's stateful loaders.
        """
        self._meet_world()
        return self._position.to_save().state() | self._log.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume from a state, on any number of ranks and nodes, with any batch size.

        That iteration gives each remaining sample of the epoch once, and with the same ranks and batch size the same
        batches as before. If none remain, it is the next epoch.

        Clips appended to the dataset since the state was saved take part from the next epoch on; but with a `Mix`,
        weights or `steps_per_epoch`, a state is refused then.

        Raises:
            InputError: the value is no state, or that of another dataset, sampling, seed or order.
        """
        cursor = self._schedule.resume(state, self._log.about)
        self._log.load(state, cursor.position)
        self._position.put(cursor, restored=True)
        self._restored = dict(state)

    def planned(self) -> tuple[Source, Int64, RunSchedule]:
        """For `sv.ledger`: the datasets, the excluded rows, and the schedule."""
        return self._samples.source, self._samples.pools.excluded, self._schedule

    def remaining(self) -> tuple[SampleSet, Epoch]:
        """For `sv.dali.pipeline`: the samples, and the rest of the epoch on this rank."""
        self._meet_world(settle=True)
        return self._samples, replace(self._position.next.epoch(), absent=self._quarantine.absent())

    def stats(self) -> LoaderStats:
        """Counts and times so far, and the bad clips found."""
        found = self._quarantine
        return replace(self._stats, **self._access.asked(), bad_clips=found.found, bad=found.bad)

    @property
    def routes(self) -> tuple[ClipRoute, ...]:
        """How many clips each decoder is to decode, and why, as decided before the first batch."""
        return self._routes()

    def close(self) -> None:
        """Free threads, device memory and the cache's handles."""
        self._engine.close()
        self._watch.close()
        self._opener.close()

    def _run(self) -> Generator[Delivery[Batch, Cursor], None, None]:
        self._engine.home.enter()
        self._meet_world(settle=True)
        cursor, schedule = self._position.next, self._schedule
        if not self._position.goes_on:
            self._agreement.check(cursor, self._find_world())
        epoch = self._epoch(cursor)
        part_of = self._samples.source.part_of if len(self._samples.source.subsets) > 1 else None
        masked = self._quarantine.policy.on_error == "mask"
        following = schedule.after(cursor)
        self._access.follow(Uses(epoch, following.epoch, schedule.plan.world, len(self.dataset)))
        expected = partial(self._begin, following) if self._repeats > self._access.by_range else None
        rendered = self._engine.run(epoch, expected)
        try:
            for left in reversed(range(epoch.left)):
                started = time.perf_counter()
                result = next(rendered)
                self._stats = self._stats.plus(result, time.perf_counter() - started)
                self._meet_world(settle=True)
                batch = make_batch(result, self.dataset, self._samples.columns, part_of, masked=masked)
                if self._batch_fn is not None:
                    batch = self._batch_fn(batch)
                    if batch is None:
                        raise InputError(f"batch_fn {self._batch_fn!r} returned None: let it return the batch")
                before, cursor = cursor, cursor.advanced()
                here = before.schedule
                self._log.add(before.position, cursor.position, here.plan.topology, len(here.checksums))
                self._agreement.went_on()
                yield Delivery(batch, cursor, following, last=not left)
            next(rendered, None)
            self._repeats += 1
        except GeneratorExit:
            legs = (leg for leg in self._log.legs if leg.start.epoch + leg.epochs - 1 == cursor.epoch_number)
            taken = sum(leg.steps for leg in legs)
            if left and taken == len(schedule.plan) and len(cursor.position.history) > 1:
                log.warning(
                    "epoch %d, which was begun on other ranks or with another batch size, was left after len(loader) "
                    "batches of %d, as Lightning and Trainer do: give the loader steps_per_epoch, with which it has as "
                    "many", cursor.epoch_number, taken + left,
                )  # fmt: skip
            raise
        finally:
            rendered.close()

    def _begin(self, cursor: Cursor) -> Epoch:
        """Prepare an epoch before the loop asks for it."""
        self._begun = cursor, self._epoch(cursor)
        return self._begun[1]

    def _epoch(self, cursor: Cursor) -> Epoch:
        """The rest of an epoch: the one prepared in advance, unless bad clips were found since then."""
        absent = self._quarantine.absent()
        if self._begun is not None and self._begun[0] is cursor and self._begun[1].absent.knows_same_as(absent):
            return self._begun[1]
        return replace(cursor.epoch(), absent=absent)

    def _meet_world(self, *, settle: bool = False) -> None:
        """Plan for the world that this process is in now, which must not change after the first batch."""
        if self._settled and not settle:
            return
        before = self._schedule.plan
        schedule = self._schedule.in_world(self._find_world(settle=settle))
        if schedule is not self._schedule:
            if self._settled:
                raise InputError(
                    f"the loader's first batch was for {before.world}, but this process is {schedule.plan.world} now: "
                    "take the first batch after init_process_group, or give the loader rank and world_size"
                )
            check_steps(schedule.plan)
            self._schedule, self._quarantine.world = schedule, schedule.plan.world
            self._position.put(schedule.resume(self._restored) if self._restored else schedule.start(self.epoch))
        if settle and not self._settled and self._schedule.plan.local:
            warn_if_one_node(self._schedule.plan.world, self._ranks_per_node)
        self._settled = settle
