"""Random access to the clips of a dataset: packets by byte range."""

from __future__ import annotations

from collections.abc import Sequence

from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.fetch.encoded_batch import read_slices
from streamvid.fetch.plan_samples import SamplePlan
from streamvid.storage.retry import Retry
from streamvid.video.packet_selection import EncodedSlice


class ClipReader:
    """Reads single clips by byte range, where `ShardAccess` fetches whole shards. Thread-safe and fork-safe.

    Pickled it holds the path of a `Dataset` rather than its rows, and opens it again where it is unpickled. The rows of
    a large dataset are then mapped from the user's cache folder (`streamvid.dataset.table_cache`), and shared by all
    processes of the machine.

    Attributes:
        dataset: whose clips are read.
    """

    def __init__(self, dataset: ClipSource) -> None:
        self.dataset = dataset

    def __getstate__(self) -> tuple[str | ClipSource, Retry]:
        return self.dataset.path if isinstance(self.dataset, Dataset) else self.dataset, self.dataset.reader.retry

    def __setstate__(self, state: tuple[str | ClipSource, Retry]) -> None:
        dataset, retry = state
        opened = Dataset.open(dataset, retry_for=retry) if isinstance(dataset, str) else dataset
        self.__init__(opened)  # type: ignore[misc]

    def read_slices(self, samples: Sequence[SamplePlan]) -> list[EncodedSlice]:
        """The packets of samples; see `streamvid.fetch.encoded_batch.read_slices`."""
        return read_slices(self.dataset, samples, self.dataset.reader, self.dataset.shard_path)
