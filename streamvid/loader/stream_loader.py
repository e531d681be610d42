"""The loader: plan → read → slice → decode → transform → PyTorch batches, each stage ahead of the next."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import integer
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import BATCH_COLUMNS
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.engine import EngineName, make_engine
from streamvid.plan.bucket_key import bucket_keys
from streamvid.plan.checkpoint import Cursor, RunSchedule
from streamvid.plan.epoch_plan import LastBatch, Plan
from streamvid.plan.inputs import Mix, Subset, make_pools, open_source
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import SHUFFLES, Shuffle
from streamvid.plan.world import find_cores, find_device, find_world
from streamvid.sampling.base import FrameSampler, check_sampler
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import is_local
from streamvid.transform.output_size import output_sizes
from streamvid.transform.render import RenderedBatch
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

log = logging.getLogger(__name__)

_BLOCK_SHARDS: Final = 16
"""Shards whose clips are shuffled together with shuffle="block"."""
_GROUP_STEPS: Final = 64
"""Steps with group_by_size=True: of 30 kinds, a batch then holds 1.5 on average at most."""


@dataclass(frozen=True)
class LoaderStats:
    """What this rank has done so far, over all epochs.

    Attributes:
        batches, clips: handed out; clips counts valid ones alone.
        frames: slots of those clips that show real frames.
        bytes_read: from the shards.
        wait_seconds: time that the training loop spent waiting for batches.
    """

    batches: int = 0
    clips: int = 0
    frames: int = 0
    bytes_read: int = 0
    wait_seconds: float = 0.0


class StreamLoader:
    """Streams a dataset into PyTorch batches; every iteration over it is an epoch.

    A batch is a dict of tensors on the device:

    - `video`: the batch, then the transform's layout and dtype.
    - `mask`: bool [batch, frames], True for real frames, False for padding.
    - `pts`: float64 [batch, frames], seconds from the clip's first frame; -1 for a constant picture.
    - `label`: int64 [batch], -1 for none.
    - `clip`: int64 [batch], row numbers of the dataset.
    - `valid`: bool [batch], False for clips that are only there to fill the batch.
    - `epoch`: int64 [batch], in which pass over its dataset each clip comes.
    - `dataset`: int64 [batch], from which part, if it is a `Mix`.
    - `key`: a list of str; and the `columns` asked for.

    Args:
        dataset: a folder, a URL such as s3://bucket/name, an open `Dataset`, a `Subset` of one, or a `Mix` of several.
        batch_size: clips per batch and rank.
        sampling: which frames: `Window`, `Windows`, `Uniform`, `MultiRate`, `Keyframes`, `RandomFrames`, `Frames`,
            `ByClip` or `All`; their `pad` says what clips that are too short show. docs/sampling.md explains each.
        transform: what is done to the frames; default: nothing, uint8 THWC. Several by name make several views of
            each clip: `batch[name]` instead of `batch["video"]`.
        batch_fn: your own function of a finished batch: the loop gets what it returns. It runs in the loop's thread.
        columns: metadata to put into batches: numbers as tensors, text as lists.
        shuffle: another order every epoch: of all clips (True or "full"), or of shards, and then of the clips of 16
            shards at a time ("block"); or the dataset's own order (False or "none").
        group_by_size: put clips of the same size, codec and parameter sets into the same batches, as far as they come
            close to each other in the order: True, among 64 steps at a time; a number, among so many. For GPUs and
            datasets of many sizes; docs/training.md says what it costs in randomness.
        locality: "node": every node has shards of its own, the same in every epoch, and its ranks share them.
        steps_per_epoch: an epoch is so many steps; default: a pass over the dataset.
        seed: of order, places and augmentation.
        last_batch: "partial", "drop" or "fill", or DALI's LastBatchPolicy: see `streamvid.plan.epoch_plan.Plan`.
        device: "cuda", "cuda:1", "cpu"; default: this rank's GPU if there is one.
        engine: "default", or "dali": one DALI pipeline reads, decodes and transforms. The same clips, frames and
            order; docs/training.md says which clips it decodes.
        rank, world_size: default: from torch.distributed, else from RANK and WORLD_SIZE, else one rank.
        ranks_per_node: for locality; default: LOCAL_WORLD_SIZE, as torchrun sets it.
        num_threads: CPU threads that decode and transform; default: the cores that this process may use, shared with
            the other ranks of its node. With a GPU, those beyond one for each NVDEC engine and one more decode beside
            it.
        cache_dir: where shards of a remote dataset are kept; shared by the ranks of a node.
        cache_bytes: the most that they may take.

    Raises:
        InputError: an option that cannot be, by itself or with this dataset.
        DatasetError: a dataset that is missing or damaged.
    """

    def __init__(
        self,
        dataset: Subset | Mix | Dataset | str | os.PathLike[str],
        *,
        batch_size: int,
        sampling: FrameSampler,
        transform: Transform | Views | Mapping[str, Transform] | None = None,
        batch_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        columns: Sequence[str] = (),
        shuffle: bool | Shuffle = True,
        group_by_size: bool | int = False,
        locality: Literal["node"] | None = None,
        steps_per_epoch: int | None = None,
        seed: int = 0,
        last_batch: LastBatch | LastBatchPolicy = "partial",
        device: str | int | None = None,
        engine: EngineName = "default",
        rank: int | None = None,
        world_size: int | None = None,
        ranks_per_node: int | None = None,
        num_threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 64 << 30,
    ) -> None:
        # Options first: these need no dataset to be wrong.
        check_sampler(sampling)
        if isinstance(transform, Mapping):
            transform = Views(transform)
        if transform is not None and not isinstance(transform, Transform | Views):
            raise InputError(f"transform must be a Transform, or a dict of them by name, it is {transform!r}")
        if batch_fn is not None and not callable(batch_fn):
            raise InputError(f"batch_fn must be a function of a batch, it is {batch_fn!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError(f"seed must be a whole number, it is {seed!r}")
        if locality not in (None, "node"):
            raise InputError(f"locality must be 'node' or None, it is {locality!r}")
        for name, number in (("num_threads", num_threads), ("cache_bytes", cache_bytes), ("batch_size", batch_size)):
            if number is not None:
                integer(number, name, most=None)
        if not isinstance(last_batch, str) and hasattr(last_batch, "name"):
            last_batch = last_batch.name.lower()  # DALI's LastBatchPolicy
        order, group = _shuffle(shuffle), _group(group_by_size)
        world = find_world(rank, world_size, ranks_per_node=ranks_per_node)
        self._device_id = find_device(device)
        self._cache: ShardCache | None = None
        self._cache_options = (Path(cache_dir) if cache_dir is not None else user_cache_dir(), cache_bytes)
        source = open_source(dataset, self._open)
        self.dataset: ClipSource = source.dataset
        self._source = source

        found = make_pools(source, sampling)
        self.skipped = found.short
        if found.short:
            log.warning("%d of %d clips are too short for %s and are skipped", found.short, len(self.dataset), sampling)
        rows = found.rows()
        self._transform = transform or Transform(layout="THWC", dtype="uint8")
        self._recipe = SampleSpec(sampling, seed, self._transform.num_random)
        self._check_sizes(rows)
        self._columns = self._check_columns(columns)
        stream = SampleStream(found.pools, source.weights, seed, order, _BLOCK_SHARDS)
        # A state in which clips were grouped is gone on with by a loader that groups none, too.
        keys = cache(partial(bucket_keys, self.dataset.clips, rows))
        self._plan = Plan(
            stream,
            batch_size,
            world,
            last_batch,
            locality == "node",
            steps_per_epoch,
            bucket_steps=group,
            bucket_keys=keys,
        )
        if len(self._plan) == 0:
            raise InputError(
                f"{self._plan.size} clips do not fill one step of {world.size} ranks x {batch_size} clips, "
                "and last_batch is 'drop': give a smaller batch_size or another last_batch"
            )
        access = ShardAccess(self.dataset, cache=self._ensure_cache(), limit_bytes=cache_bytes)
        self._engine = make_engine(
            engine,
            self.dataset,
            rows,
            access,
            self._recipe,
            self._transform,
            device_id=self._device_id,
            num_threads=num_threads or find_cores(),
            max_batch=batch_size,
        )
        self._schedule = RunSchedule(self._plan, tuple(source.checksums()), sampling)
        self._batch_fn = batch_fn
        self._stats = LoaderStats()
        self._next = self._schedule.start(0)
        self._now: Cursor | None = None
        """Where the last iteration that was begun stands; None before it, and when it has ended."""

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._plan)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration will be, or go on with."""
        return self._next.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that epoch. If it is already, it stays where it is: a resumed epoch goes on."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise InputError(f"epoch must be a whole number from 0, it is {epoch!r}")
        if epoch != self.epoch:
            self._next = self._schedule.start(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: what the training loop has been handed, on all ranks, not what was prefetched.

        The same on every rank at the same step; JSON-safe, under 1 KiB. It follows the protocol of torchdata's
        stateful loaders.
        """
        return (self._now or self._next).state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state, on any number of ranks and nodes, in any batches, grouped or not.

        It hands out what is left of the epoch, each item once; with the ranks and batch size of before the same
        batches. If nothing is left, it is the next epoch.

        A dataset that was appended to since goes on with what is left of the epoch as it was, and what was added joins
        with the next epoch: not with a `Mix`, weights or `steps_per_epoch`.

        Raises:
            InputError: the state belongs to another dataset, sampling, seed or order, or is none.
        """
        self._next, self._now = self._schedule.resume(state), None

    def stats(self) -> LoaderStats:
        """What has been done so far."""
        return self._stats

    def close(self) -> None:
        """Free threads, device memory and the cache's handles."""
        self._engine.close()
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        cursor = self._next
        self._next, self._now = self._schedule.after(cursor), cursor
        return self._run(cursor)

    def _run(self, cursor: Cursor) -> Iterator[dict[str, Any]]:
        rendered = self._engine.run(cursor.epoch())
        try:
            while True:
                started = time.perf_counter()
                one = next(rendered, None)
                self._count(wait_seconds=time.perf_counter() - started)
                if one is None:
                    break
                before, cursor = cursor, cursor.advanced()
                if self._now is before:  # not if another iteration has begun since
                    self._now = cursor
                batch = self._batch(one)
                valid = one.encoded.valid  # not the tensors: reading those would wait for the GPU
                self._count(
                    batches=1,
                    clips=int(valid.sum()),
                    frames=int(one.encoded.mask[valid].sum()),
                    bytes_read=one.encoded.bytes_read,
                )
                yield batch if self._batch_fn is None else self._batch_fn(batch)
            if self._now is cursor:
                self._now = None
        finally:
            rendered.close()

    def _batch(self, one: RenderedBatch) -> dict[str, Any]:
        """The tensors, and what else is known of their clips."""
        import torch

        batch: dict[str, Any] = dict(one.tensors)
        rows, device = one.encoded.clips, one.tensors["clip"].device
        batch["key"] = [self.dataset.key(row) for row in rows.tolist()]
        if len(self._source.subsets) > 1:
            batch["dataset"] = torch.from_numpy(self._source.part_of(rows)).to(device)
        if self._columns:
            for name in self._columns:
                values = self.dataset.columns.batch(name, rows)
                batch[name] = torch.from_numpy(values).to(device) if isinstance(values, np.ndarray) else values
        return batch

    def _count(self, **more: float) -> None:
        now = self._stats
        self._stats = LoaderStats(**{name: getattr(now, name) + more.get(name, 0) for name in now.__dataclass_fields__})

    def _open(self, path: str) -> Dataset:
        if not is_local(path):
            folder, limit = self._cache_options
            self._cache = self._cache or ShardCache(folder, limit_bytes=limit)
        return Dataset.open(path, cache=self._cache)

    def _ensure_cache(self) -> ShardCache | None:
        """The cache, if any part of the dataset is remote, whoever opened it."""
        if not self.dataset.is_local and self._cache is None:
            folder, limit = self._cache_options
            self._cache = ShardCache(folder, limit_bytes=limit)
        return self._cache

    def _check_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        if isinstance(columns, str):
            raise InputError(f"columns must be a list of names, it is {columns!r}")
        taken = {*BATCH_COLUMNS, "video", "key", "dataset", *by_view(self._transform)}
        for name in columns:
            if name in taken:
                raise InputError(f"batches have {name!r} already: leave it out of columns")
            self.dataset.columns.get(name)
        return tuple(columns)

    def _check_sizes(self, rows: Int64) -> None:
        clips = self.dataset.clips
        lying = (clips.rotation[rows] % 180) != 0
        heights = np.where(lying, clips.width[rows], clips.height[rows]).astype(np.int64)
        widths = np.where(lying, clips.height[rows], clips.width[rows]).astype(np.int64)
        output_sizes(self._transform, heights, widths, _Names(clips.key, rows))


class _Names(Sequence[str]):
    """Keys of some rows, looked up when asked for."""

    def __init__(self, keys: Sequence[str], rows: Int64) -> None:
        self._keys, self._rows = keys, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: Any) -> Any:
        return self._keys[int(self._rows[i])]


def _group(steps: bool | int) -> int:
    """How many steps are grouped together; 0: none are."""
    if isinstance(steps, bool):
        return _GROUP_STEPS if steps else 0
    integer(steps, "group_by_size")
    return steps


def _shuffle(shuffle: bool | Shuffle) -> Shuffle:
    if isinstance(shuffle, bool):
        return "full" if shuffle else "none"
    if shuffle not in SHUFFLES:
        raise InputError(f"shuffle must be True, False, {', '.join(map(repr, SHUFFLES))}; it is {shuffle!r}")
    return shuffle
