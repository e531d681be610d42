"""`ClipDataset`: a packed dataset for PyTorch's own DataLoader, any Sampler, and single frames by hand."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch
import torch.utils.data

from streamvid.arrays import Int64
from streamvid.checks import boolean, check, integer, listed, suggest_keywords
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.members import read_columns
from streamvid.dataset.picked import Pick
from streamvid.errors import InputError, VideoError
from streamvid.fetch.encoded_batch import EncodedBatch, encoded_batch, read_slices
from streamvid.fetch.plan_samples import Checksum, SamplePlan, pad_to_longest
from streamvid.host import limits_named
from streamvid.loader.batch import column_values, mask_absent
from streamvid.loader.clip_items import At, Item, ResolvedItem, choose, resolve
from streamvid.loader.item_errors import ItemErrors
from streamvid.loader.quarantine import ErrorPolicy, OnError, Quarantine
from streamvid.loader.reopened import Reopened, seen_by_forks
from streamvid.loader.rescue import BAD_CLIP, Member, Rescuer
from streamvid.loader.sample_renderer import SampleRenderer
from streamvid.loader.sample_set import SampleSet
from streamvid.loader.shm_transfer import check_sockets
from streamvid.plan.checkpoint import clips_digest, digest
from streamvid.plan.inputs import DatasetLike, Pools, Subset, open_source
from streamvid.plan.permutation import Pool
from streamvid.plan.sample_id import rows_of
from streamvid.sampling.base import FrameSampler
from streamvid.sampling.spread import All
from streamvid.storage.retry import Retry
from streamvid.transform.output_size import check_output_sizes
from streamvid.transform.params import ClipTransform
from streamvid.transform.spec import Transform, Views
from streamvid.video.packet_selection import EncodedSlice

_MOST_EPOCHS: Final = 1 << 62


class ClipDataset(Reopened, torch.utils.data.Dataset[dict[str, Any]]):
    """A packed dataset, map-style: `ds[7]`, `ds["key"]`, `ds[At("key", frames=[0, 5])]`, or `ds.get`.

    An item is a dict with the names, dtypes and values of one clip in a StreamLoader's batch, without the batch
    dimension; `torch.utils.data.default_collate` makes a batch of several. Only the clip's frame index and the packets
    of the wanted frames are read. Frames are decoded in the calling thread; `GpuDataLoader` decodes in the main process
    instead, on a GPU if there is one.

    Picklable, and usable in workers by any start method. A pickle is small, because the rows are opened again where it
    is used.

    Args:
        dataset: a folder, a URL, a `Dataset`, or a `Subset` of one without weights.
        sampling: which frames `ds[i]` and `ds["key"]` show; without it, each item must name its frames. With
            `pad="none"`, clips that are too short have no samples.
        transform: as in `StreamLoader`.
        columns: metadata columns in samples.
        seed: seed of random frames and augmentation, which also depend on the epoch and on the sample.
        isolate: decode in a child process, one per process that uses the dataset; see `StreamLoader`.
        checksum: how read bytes are checked: "crc32c": each packet; "sha256": the whole clip, which is then read as a
            whole; None: not at all.
        on_error, max_errors, quarantine: for bad clips, as in `StreamLoader`. Another item of the dataset, drawn by
            seed, epoch and item, stands in, with `valid` False. `get` and `ds[At(…)]` return the requested frames or
            raise; in batches (a DataLoader whose sampler yields `At`) another item stands in for them, too.
        retry_for: seconds for which requests are repeated while a storage does not answer; an open `Dataset` has its
            own.
        roots: folders and URLs outside of the dataset that may be read (docs/in_place.md); an open `Dataset` has its
            own.
        revision: a revision of the dataset (docs/revisions.md); default: the newest, or that of an open `Dataset`.

    Attributes:
        dataset: the packed dataset.

    Raises:
        InputError: an option is invalid, by itself or for this dataset.
        DatasetError: the dataset is missing or damaged.
    """

    @suggest_keywords
    def __init__(
        self,
        dataset: Subset | DatasetLike,
        *,
        sampling: FrameSampler | None = None,
        transform: Transform | Views | Mapping[str, Transform] | None = None,
        columns: Sequence[str | Pick] = (),
        seed: int = 0,
        isolate: bool = False,
        checksum: Checksum | None = "crc32c",
        retry_for: float | Retry = 600.0,
        on_error: OnError = "skip",
        max_errors: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        roots: Sequence[str | os.PathLike[str]] = (),
        revision: int | None = None,
    ) -> None:
        boolean(isolate, "isolate")
        policy = ErrorPolicy.of(on_error, max_errors, quarantine)
        self._can_sample = sampling is not None
        subset = dataset if isinstance(dataset, Subset) else Subset(dataset)
        if subset.weights is not None:
            raise InputError("a map-style dataset has no weights: give them to torch's WeightedRandomSampler")
        open_dataset = partial(Dataset.open, retry_for=Retry.of(retry_for), roots=roots, revision=revision)
        samples = SampleSet.open(
            subset,
            sampling=All() if sampling is None else sampling,
            transform=transform,
            columns=columns,
            seed=seed,
            checksum=checksum,
            open_dataset=open_dataset,
        ).at_revision(revision)
        self._spec, self._transform, self._columns = samples.spec, samples.transform, samples.columns
        assert isinstance(samples.dataset, Dataset), "a Subset is of one dataset"
        self.dataset, self._skipped = samples.dataset, samples.pools.short
        self._subset = replace(subset, dataset=self.dataset.path)
        self._errors = ItemErrors(policy, samples.pools.excluded, samples.spec.seed)
        # None if every clip gives one sample. A tensor, which PyTorch moves to shared memory where workers are spawned.
        ids = samples.pools.pools[0].sample_ids
        whole = np.array_equal(ids, np.arange(len(samples.dataset)))
        self._sample_ids = None if whole else torch.from_numpy(np.ascontiguousarray(ids))
        # The epoch, and the argument of the last `set_epoch`.
        self._epoch = seen_by_forks([0, -1])
        self._clip_transform = samples.clip_transform()
        self._renderer = SampleRenderer(self._clip_transform, isolate=isolate)

    def __copy__(self) -> ClipDataset:
        """A copy that shares the open dataset and the epoch."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, dataset=self.dataset)
        return other

    def __len__(self) -> int:
        """Number of samples: one per clip, or as many as the sampling takes of it."""
        return len(self.dataset) if self._sample_ids is None else len(self._sample_ids)

    def __repr__(self) -> str:
        sampling = repr(self._spec.sampling) if self._can_sample else None
        return f"ClipDataset({self.dataset!r}, samples={len(self)}, sampling={sampling}, transform={self._transform!r})"

    def __contains__(self, item: object) -> bool:
        """Whether `ds[item]` is a sample."""
        try:
            resolve(self.dataset, self._sample_ids, item, can_sample=True)
        except (LookupError, InputError):
            return False
        return True

    @limits_named()
    def __getitem__(self, item: Item) -> dict[str, Any]:
        """A sample.

        Args:
            item: a sample's number from 0, negative numbers count from the end; a key (the clip's first sample); or
                `At`.

        Raises:
            KeyError, IndexError: there is no such clip, sample or frame.
            DatasetError, VideoError: the clip is damaged; the message names it.
        """
        return self._make(self._resolve([item]))[0] if isinstance(item, At) else self.__getitems__([item])[0]

    @limits_named()
    def __getitems__(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Several samples, read concurrently; DataLoader's workers call this for a batch."""
        wanted = self._resolve(items)
        try:
            return self._make([self._place(item) for item in wanted])
        except BAD_CLIP:
            if self.policy.on_error == "raise":
                raise
        return [self._make_or_replace(item) for item in wanted]

    def _make(self, wanted: Sequence[ResolvedItem]) -> list[dict[str, Any]]:
        samples = self._choose(wanted)
        made = []
        for sample, encoded in zip(samples, self._read(samples), strict=True):
            batch = encoded_batch(self.dataset, [sample], [encoded])
            check_output_sizes(self._transform, self.dataset.clips, batch.clips)
            made.append(self._sample(batch))
        return made

    def _make_or_replace(self, wanted: ResolvedItem) -> dict[str, Any]:
        try:
            return self._make([self._place(wanted)])[0]
        except BAD_CLIP as error:
            cause: Exception = error.with_traceback(None)
        rescuer = self.rescuer(lambda _: [wanted], threads=1)
        if not isinstance(cause, VideoError):
            try:
                return self._sample(rescuer(0, cause, decode=False))
            except VideoError as error:
                cause = error.with_traceback(None)
        return self._sample(rescuer(0, cause))

    @suggest_keywords
    def get(
        self, clip: str | int, *, frames: Iterable[int] | None = None, seconds: Iterable[float] | None = None
    ) -> dict[str, Any]:
        """Frames of a clip by number or time: see `At`. Errors as from `ds[…]`.

        Args:
            clip: its key, or its row number.
            frames: frame numbers, counted from 0, in any order and with repeats.
            seconds: times in seconds from the first frame; for each, the frame on screen then.
        """
        return self[At(clip, frames, seconds)]

    def encoded(self, item: Item) -> EncodedSlice:
        """The packets of an item's frames, not decoded.

        `to_mp4()` of the result is a small MP4, and `frames` are the numbers of the wanted frames in that MP4,
        increasing and unique: the arguments of DALI's `fn.decoders.video(encoded, frames=…)`.
        """
        return self._read(self._choose(self._resolve([item])))[0]

    def encode(self, items: Sequence[Item]) -> EncodedBatch:
        """A batch of items, read but not decoded, padded to the longest of them.

        Raises:
            InputError: no items, or samples of several sizes, which do not fit into a batch. Others as in `ds[…]`.
        """
        wanted = [self._place(item) for item in self._resolve(listed(items, "items", "clips"))]
        check(len(wanted) > 0, items, "items", "at least one clip")
        samples = pad_to_longest(self._choose(wanted), self._spec.sampling.pad)
        rows = np.array([sample.clip for sample in samples], dtype=np.int64)
        check_output_sizes(self._transform, self.dataset.clips, rows)
        return encoded_batch(self.dataset, samples, self._read(samples))

    @property
    def policy(self) -> ErrorPolicy:
        """The policy for bad clips."""
        return self._errors.policy

    def in_epoch(self, epoch: int) -> ClipDataset:
        """A copy of this dataset with a fixed epoch, which `set_epoch` of this one does not change."""
        other = copy.copy(self)
        other._epoch = torch.tensor([epoch, -1], device="cpu")
        return other

    def with_policy(self, policy: ErrorPolicy) -> ClipDataset:
        """This dataset with another policy; the epoch is shared."""
        other = copy.copy(self)
        other._errors = ItemErrors(policy, self._errors.excluded, self._spec.seed)
        return other

    def quarantine(self, *, anew: bool = False) -> Quarantine:
        """The bad clips that this process knows; `anew` reads the quarantine files of other processes again."""
        if anew:
            self._errors.begin()
        return self._errors.known(self.dataset, self.epoch)[0]

    def rescuer(self, items: Callable[[int], Sequence[Item | ResolvedItem]], *, threads: int) -> Rescuer:
        """A rescuer for batches of items that cannot be read or decoded.

        Args:
            items: a function from a batch's number to its items.
            threads: most processes that test clips at the same time.
        """
        quarantine, absent = self._errors.known(self.dataset, self.epoch)

        def members(number: int) -> list[Member]:
            found = []
            for item in self._resolve(items(number)):
                placed = self._place(item, number)
                sample = (placed.number, self.epoch)
                read = partial(self._read_one, placed)
                found.append(Member(placed.row, sample, read, placed.absent < 0, placed.absent))
            return found

        pad = self._spec.sampling.pad
        return Rescuer(self.dataset, quarantine, absent, members, pad=pad, threads=threads)

    def _resolve(self, items: Sequence[Item | ResolvedItem]) -> list[ResolvedItem]:
        """The clips and samples of items; errors as from `ds[…]`."""
        check_sockets()  # in a worker, before it makes a batch that would be lost
        return [
            item
            if isinstance(item, ResolvedItem)
            else resolve(self.dataset, self._sample_ids, item, can_sample=self._can_sample)
            for item in items
        ]

    def _place(self, wanted: ResolvedItem, step: int = 0) -> ResolvedItem:
        """The item, or, if its clip is absent, the item that stands in for it."""
        return self._errors.place(self.dataset, wanted, self.epoch, self._ids, self._transform, step)

    def _choose(self, wanted: Sequence[ResolvedItem]) -> list[SamplePlan]:
        """Choose the frames of clips; errors as from `ds[…]`."""
        return choose(self.dataset, wanted, self._spec, self.epoch)

    def _read_one(self, wanted: ResolvedItem) -> tuple[SamplePlan, EncodedSlice]:
        samples = self._choose([wanted])
        read_columns(self.dataset, samples[0].members, [samples[0].clip])
        return samples[0], self._read(samples)[0]

    def _ids(self) -> Int64:
        """int64 [samples], see `streamvid.plan.sample_id`."""
        if self._sample_ids is None:
            return np.arange(len(self.dataset), dtype=np.int64)
        return np.asarray(self._sample_ids.numpy())

    def _read(self, samples: Sequence[SamplePlan]) -> list[EncodedSlice]:
        """The samples' packets, always by byte range, without a shard cache."""
        return read_slices(
            self.dataset, samples, self.dataset.reader, self.dataset.shard_path, checksum=self._spec.checksum
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the samples: their number, hashes of the clips and of the sampling (the same as in
        states of a StreamLoader), and the seed. States of other samples are refused by it."""
        checksums = [entry.identity for entry in self.dataset.shards]
        return {
            "samples": len(self),
            "dataset": clips_digest(checksums, [self._ids()]),
            "sampling": digest(self._spec.sampling),
            "seed": self._spec.seed,
        }

    def sample_set(self) -> SampleSet:
        """The samples, for a loader that streams them.

        Raises:
            InputError: the dataset has no sampling.
        """
        if not self._can_sample:
            raise InputError("give the ClipDataset a sampling, such as sampling=Window(frames=16, fps=8)")
        ids = self._ids()
        pools = Pools((Pool(ids, self.dataset.clips.shard[rows_of(ids)]),), self._skipped, self._errors.excluded)
        source = replace(open_source(self.dataset, Dataset.open), subsets=(self._subset,))
        return SampleSet(source, pools, self._spec, self._transform, self._columns, self.policy)

    @property
    def clip_transform(self) -> ClipTransform:
        """The transform for this dataset's clips."""
        return self._clip_transform

    @property
    def columns(self) -> tuple[str | Pick, ...]:
        """The metadata columns in samples."""
        return self._columns

    @property
    def rows(self) -> Int64:
        """int64 [clips]: rows of the clips that have samples, rising."""
        return np.unique(rows_of(self._ids()))

    @property
    def epoch(self) -> int:
        """The epoch for which random numbers are drawn."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Draw other random numbers from now on, in running workers, too. Call it before each epoch."""
        self._epoch[:] = integer(epoch, "epoch", least=0, most=_MOST_EPOCHS)

    def state_dict(self) -> dict[str, int]:
        """The epoch, on which samples depend besides their item. torchdata's StatefulDataLoader saves it for the
        dataset in each worker."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the epoch from a state, unless `set_epoch` has set a later one: StatefulDataLoader loads states only
        when the loop begins, and a state from the end of an epoch must not undo the `set_epoch` of the next.

        Raises:
            InputError: the value is no state of a ClipDataset.
        """
        if not isinstance(state, Mapping) or set(state) != {"epoch"}:  # states of loaders have an epoch, too
            raise InputError("this is not the state of a ClipDataset: give what its state_dict() returned")
        named = int(self._epoch[1])
        self._epoch[0] = max(integer(state["epoch"], "epoch", least=0, most=_MOST_EPOCHS), named)

    def _sample(self, batch: EncodedBatch) -> dict[str, Any]:
        """The dict of one sample."""
        row = int(batch.clips[0])
        tensors = self._renderer.render(batch)
        if self.policy.on_error == "mask" and batch.absent[0] >= 0:
            (row,) = mask_absent({name: frames[None] for name, frames in tensors.items()}, batch.absent, self.dataset)
        sample: dict[str, Any] = dict(tensors)
        sample["key"] = self.dataset.key(int(row))
        for name, values in column_values(self.dataset, self._columns, np.array([row]), batch):
            array = isinstance(values, np.ndarray) or isinstance(values[0], np.ndarray)
            sample[name] = torch.as_tensor(values[0], device="cpu") if array else values[0]
        return sample
