"""The samples of a loader: clips of datasets, with their sampling, transform and metadata columns. All loaders have
one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from streamvid.arrays import Int64
from streamvid.checks import check, is_integer, listed, one_of
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.members import find_member
from streamvid.dataset.picked import Pick
from streamvid.errors import InputError
from streamvid.fetch.plan_samples import CHECKSUMS, Checksum, SampleSpec
from streamvid.loader.quarantine import ErrorPolicy
from streamvid.mp4.boxes import MIRRORED
from streamvid.plan.inputs import DatasetLike, Mix, Pools, Source, Subset, make_pools, open_source
from streamvid.sampling.base import FrameSampler, check_sampler
from streamvid.sampling.padding import has_black_frames
from streamvid.storage.url import redact
from streamvid.transform.params import ClipTransform
from streamvid.transform.spec import ONLY_VIEW, TAKEN, Transform, Views, by_view

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampleSet:
    """Clips, and how samples are made of them.

    Attributes:
        source: the opened datasets.
        pools: the sample ids of each dataset.
        spec: how samples are drawn from clips.
        transform: applied to their frames.
        columns: metadata columns in batches, by name or as `Pick`.
        policy: the policy of a `ClipDataset` for bad clips; None for other sources.
    """

    source: Source
    pools: Pools
    spec: SampleSpec
    transform: Transform | Views
    columns: tuple[str | Pick, ...]
    policy: ErrorPolicy | None = None

    @classmethod
    def open(
        cls,
        dataset: Subset | Mix | DatasetLike,
        *,
        sampling: FrameSampler,
        transform: Transform | Views | Mapping[str, Transform] | None,
        columns: Sequence[str | Pick],
        seed: int,
        checksum: Checksum | None = "crc32c",
        open_dataset: Callable[[str], Dataset] = Dataset.open,
    ) -> SampleSet:
        """Check the options, open the datasets, and find the samples.

        Args:
            dataset: a folder, a URL, an open `Dataset`, a `Subset` of one, or a `Mix` of several.
            transform: applied to the frames; a dict of several makes several views; None: none, uint8 THWC.
            seed: seed of order, random frames and augmentation.
            checksum: how read bytes are checked, as in `StreamLoader`.
            open_dataset: opens a path or URL.

        Raises:
            InputError: an option is invalid, by itself or for this dataset.
            DatasetError: a dataset is missing or damaged.
        """
        # Options are checked before a dataset is opened, which may take long.
        check_sampler(sampling)
        if isinstance(transform, Mapping):
            transform = Views(transform)
        what = "a Transform, or a dict of them by name"
        check(isinstance(transform, Transform | Views | None), transform, "transform", what)
        given = () if columns is None else tuple(listed(columns, "columns", "names"))
        check(all(isinstance(column, str | Pick) for column in given), columns, "columns", "a list of names")
        picks = [column for column in given if isinstance(column, Pick)]
        names = [column.column if isinstance(column, Pick) else column for column in given]
        check(is_integer(seed), seed, "seed", "a whole number")
        one_of(checksum, (*CHECKSUMS, None), "checksum")
        transform = transform or Transform(layout="THWC", dtype="uint8")
        source = open_source(dataset, open_dataset)
        taken = {*TAKEN, ONLY_VIEW, *by_view(transform)}
        for name in names:
            if name in taken:
                raise InputError(f"batches have {name!r} already: leave it out of columns")
        for part in source.datasets:
            log.info("Revision %d of %s is read.", part.manifest.revision, redact(part.path))
        for pick in picks:
            pick.check(source.dataset.columns)
        plain = (column for column in given if not isinstance(column, Pick))
        members = tuple(member for name in plain if (member := find_member(source.dataset, name)) is not None)
        # After the transform's random numbers, which are then the same with and without picks.
        spec = SampleSpec(sampling, int(seed), transform.num_random + len(picks), checksum, members)
        return cls(source, make_pools(source, sampling), spec, transform, given)

    def at_revision(self, revision: int | None) -> SampleSet:
        """These samples. Raises InputError if a revision is given, and the dataset had been opened at another one."""
        there = self.source.datasets[0].manifest.revision
        if revision not in (None, there):
            raise InputError(f"revision={revision}, but the dataset is open at revision {there}: give its path instead")
        return self

    @property
    def dataset(self) -> ClipSource:
        """The datasets as one."""
        return self.source.dataset

    def clip_transform(self, rows: Int64 | None = None) -> ClipTransform:
        """The transform for these clips, by default for all.

        Args:
            rows: int64 [clips].
        """
        clips = self.dataset.clips
        rotation = clips.rotation if rows is None else clips.rotation[rows]
        return ClipTransform(
            self.transform,
            rotates=bool((rotation % MIRRORED).any()),
            has_black_frames=has_black_frames(self.spec.sampling.pad),
            mirrors=bool((rotation >= MIRRORED).any()),
        )
