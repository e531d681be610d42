"""The loader: plan → read → slice → decode → transform → PyTorch batches, each stage ahead of the next."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.errors import InputError
from streamvid.store import storage
from streamvid.store.access import ShardAccess
from streamvid.store.cache import ShardCache
from streamvid.store.dataset import Dataset
from streamvid.stream import samples
from streamvid.stream.background import Background
from streamvid.stream.batches import DecodedBatch, TorchBatches
from streamvid.stream.decode import CpuDecoder, Decoder, GpuDecoder
from streamvid.stream.devicecheck import check_decodable
from streamvid.stream.items import rows_of
from streamvid.stream.plan import LastBatch, Plan
from streamvid.stream.samples import EncodedBatch, Recipe
from streamvid.stream.sampling import PADS, All, Pad, Sampling
from streamvid.stream.transform import Transform, output_size
from streamvid.stream.world import find_device, find_world
from streamvid.video.index import Int64

log = logging.getLogger(__name__)

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_STEPS_AHEAD: Final = 64
"""How many steps ahead shards of a remote dataset are fetched, as far as the cache has room."""


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
    - `key`: a list of str.

    Args:
        dataset: a `Dataset`, a folder, or a URL such as s3://bucket/name.
        batch_size: clips per batch and rank.
        sampling: which frames: `Window`, `Uniform`, `Frames` or `All`.
        pad: what short clips show behind their end: "edge", "constant" (black), "reflect_101", "reflect_1001";
            "none" skips them.
        transform: what is done to the frames; default: nothing, uint8 FHWC.
        shuffle: another order of all clips every epoch.
        seed: of order, places and augmentation.
        last_batch: "partial", "drop" or "fill": see `streamvid.stream.plan.Plan`.
        device: "cuda", "cuda:1", "cpu"; default: this rank's GPU if there is one.
        rank, world_size: default: from torch.distributed, else from RANK and WORLD_SIZE, else one rank.
        threads: CPU threads that decode and transform; default: the cores that this process may use.
        cache_dir: where shards of a remote dataset are kept; shared by the ranks of a node.
        cache_bytes: the most that they may take.

    Raises:
        InputError: an option that cannot be, by itself or with this dataset.
        DatasetError: a dataset that is missing or damaged.
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        batch_size: int,
        sampling: Sampling,
        pad: Pad = "edge",
        transform: Transform | None = None,
        shuffle: bool = True,
        seed: int = 0,
        last_batch: LastBatch = "partial",
        device: str | int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 64 << 30,
    ) -> None:
        if pad not in PADS:
            raise InputError(f"pad must be one of {', '.join(PADS)}; it is {pad!r}")
        if isinstance(sampling, type) or not hasattr(sampling, "lay_out"):
            raise InputError(f"sampling must be Window(…), Uniform(…), Frames(…) or All(), it is {sampling!r}")
        if transform is not None and not isinstance(transform, Transform):
            raise InputError(f"transform must be a Transform, it is {transform!r}")
        if not isinstance(dataset, Dataset | str | os.PathLike):
            raise InputError(f"dataset must be a path, a URL or a Dataset, it is {dataset!r}")
        if not isinstance(shuffle, bool):
            raise InputError(f"shuffle must be True or False, it is {shuffle!r}")
        for name, number in (("threads", threads), ("cache_bytes", cache_bytes)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise InputError(f"{name} must be a whole number of at least 1, it is {number!r}")
        world = find_world(rank, world_size)
        # Before anything is opened: these need no dataset to be wrong.
        Plan(np.empty(0, dtype=np.int64), batch_size, world.rank, world.size, seed, shuffle, last_batch)
        self._device_id = find_device(device)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._cache: ShardCache | None = None
        path = dataset.path if isinstance(dataset, Dataset) else os.fspath(dataset)
        if not storage.is_local(path):
            folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
            self._cache = ShardCache(folder, limit_bytes=cache_bytes)
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(path, cache=self._cache)
        self._access = ShardAccess(self.dataset, cache=self._cache, limit_bytes=cache_bytes)
        self._recipe = Recipe(sampling, pad, transform or Transform(layout="FHWC", dtype="uint8"), seed)

        rows = self._usable_clips()
        self._check_sizes(rows)
        if self._device_id is not None:
            check_decodable(self.dataset, rows, device_id=self._device_id, access=self._access)
        self._plan = Plan(rows, batch_size, world.rank, world.size, seed, shuffle, last_batch)
        if len(self._plan) == 0:
            raise InputError(
                f"{len(rows)} clips do not fill one step of {world.size} ranks x {batch_size} clips, "
                "and last_batch is 'drop': give a smaller batch_size or another last_batch"
            )
        self._epoch = 0
        self._stats = LoaderStats()
        # Those that no iteration uses. Iterations at the same time each have their own.
        self._decoders: list[Decoder] = []
        self._transforms: list[TorchBatches] = []

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._plan)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration will be."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that epoch."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise InputError(f"epoch must be a whole number from 0, it is {epoch!r}")
        self._epoch = epoch

    def stats(self) -> LoaderStats:
        """What has been done so far."""
        return self._stats

    def close(self) -> None:
        """Free threads, device memory and the cache's handles."""
        while self._decoders:
            self._decoders.pop().close()
        self._transforms.clear()
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch = self._epoch
        self._epoch += 1
        return self._run(epoch)

    def _run(self, epoch: int) -> Iterator[dict[str, Any]]:
        decoder = self._decoders.pop() if self._decoders else self._make_decoder()
        transform = self._transforms.pop() if self._transforms else self._make_transform()
        encoded = Background(self._encoded(epoch), depth=2, name="streamvid-read")
        decoded = Background(self._decoded(encoded, decoder), depth=2, name="streamvid-decode")
        whole = False

        def stop() -> None:
            decoded.close()
            encoded.close()

        # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
        atexit.register(stop)
        try:
            batches = transform.over(self._counted(decoded))
            while True:
                started = time.perf_counter()
                batch = next(batches, None)
                self._count(wait_seconds=time.perf_counter() - started)
                if batch is None:
                    whole = True
                    return
                batch["key"] = [self.dataset.key(int(clip)) for clip in batch["clip"].tolist()]
                valid = batch["valid"]
                self._count(batches=1, clips=int(valid.sum()), frames=int(batch["mask"][valid].sum()))
                yield batch
        finally:
            atexit.unregister(stop)
            stop()
            # A decoder that failed may be of no use; batches of an epoch that was left early are still inside the
            # transform's pipeline. The next iteration makes new ones.
            if whole and not self._decoders:
                self._decoders.append(decoder)
                self._transforms.append(transform)
            else:
                decoder.close()

    def _counted(self, decoded: Iterator[DecodedBatch]) -> Iterator[DecodedBatch]:
        for batch in decoded:
            self._count(bytes_read=batch.encoded.bytes_read)
            yield batch

    def _count(self, **more: float) -> None:
        now = self._stats
        self._stats = LoaderStats(**{name: getattr(now, name) + more.get(name, 0) for name in now.__dataclass_fields__})

    def _encoded(self, epoch: int) -> Iterator[EncodedBatch]:
        """The read stage: chunks of steps, small at first so that the first batch comes soon."""
        order = self._plan.order(epoch)
        steps = len(self._plan)
        most = max(1, _CHUNK_CLIPS // self._plan.batch_size)
        start, chunk = 0, 1
        while start < steps:
            numbers = range(start, min(start + chunk, steps))
            self._access.prefetch(self._shards_from(order, numbers.stop))
            chosen = [samples.choose(self.dataset, self._plan.step(order, n), self._recipe, epoch) for n in numbers]
            yield from samples.encode(self.dataset, chosen, self._recipe, self._access)
            start, chunk = numbers.stop, min(2 * chunk, most)

    def _shards_from(self, order: Int64, step: int) -> Iterator[int]:
        """The shards that the steps from `step` on will read, as far ahead as is worth fetching."""
        for number in range(step, min(step + _STEPS_AHEAD, len(self._plan))):
            yield from self.dataset.clips.shard[rows_of(self._plan.step(order, number).items)].tolist()

    def _decoded(self, encoded: Iterator[EncodedBatch], decoder: Decoder) -> Iterator[DecodedBatch]:
        for batch in encoded:
            yield DecodedBatch(batch, decoder.decode(batch.slices))

    def _make_decoder(self) -> Decoder:
        size = self._plan.batch_size
        if self._device_id is None:
            return CpuDecoder(threads=self._threads, max_batch=size)
        return GpuDecoder(device_id=self._device_id, threads=self._threads, max_batch=size)

    def _make_transform(self) -> TorchBatches:
        return TorchBatches(
            self._recipe.transform,
            device_id=self._device_id,
            max_batch=self._plan.batch_size,
            threads=self._threads,
            rotates=bool(self.dataset.clips.rotation[self._plan.clips].any()),
            has_blanks=self._recipe.pad in ("constant", "none"),
        )

    def _usable_clips(self) -> Int64:
        """The rows that take part: all, but for short ones where padding is off."""
        rows = np.arange(len(self.dataset), dtype=np.int64)
        if self._recipe.pad == "none":
            short = short_clips(self.dataset, self._recipe.sampling)
            rows = rows[~short]
            if short.any():
                log.warning(
                    "%d of %d clips are too short for %s and are skipped",
                    short.sum(),
                    len(short),
                    self._recipe.sampling,
                )
        self.skipped = len(self.dataset) - len(rows)
        if len(rows) == 0:
            raise InputError(
                f"all {len(self.dataset)} clips are too short for {self._recipe.sampling}: "
                "pad them, or sample fewer frames"
                if len(self.dataset)
                else "the dataset holds no clips"
            )
        return rows

    def _check_sizes(self, rows: Int64) -> None:
        clips = self.dataset.clips
        lying = (clips.rotation[rows] % 180) != 0
        heights = np.where(lying, clips.width[rows], clips.height[rows]).astype(np.int64)
        widths = np.where(lying, clips.height[rows], clips.width[rows]).astype(np.int64)
        output_size(self._recipe.transform, heights, widths, _Names(clips.key, rows))


class _Names(Sequence[str]):
    """Keys of some rows, looked up when asked for."""

    def __init__(self, keys: Sequence[str], rows: Int64) -> None:
        self._keys, self._rows = keys, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: Any) -> Any:
        return self._keys[int(self._rows[i])]


def short_clips(dataset: Dataset, sampling: Sampling) -> Any:
    """bool [clips]: which clips of the dataset need padding under that sampling."""
    from fractions import Fraction

    clips = dataset.clips
    short = np.zeros(len(dataset), dtype=bool)
    if isinstance(sampling, All):
        return short
    bases, which = np.unique(np.stack([clips.time_base_num, clips.time_base_den]), axis=1, return_inverse=True)
    for number, (num, den) in enumerate(bases.T.tolist()):
        rows = np.flatnonzero(which.ravel() == number)
        short[rows] = sampling.is_short(clips.frames[rows].astype(np.int64), clips.duration[rows], Fraction(num, den))
    return short


def default_cache_dir() -> Path:
    """`streamvid` in the user's cache folder, by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "streamvid"
