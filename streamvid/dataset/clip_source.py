"""What the stream side needs of clips, be they of one dataset or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamvid.dataset.clip_table import ClipTable, ShardIndex
from streamvid.dataset.columns import Columns
from streamvid.dataset.manifest import ShardEntry
from streamvid.video.frame_index import FrameIndex


class ClipSource(Protocol):
    """Clips by row number, and the shards that hold them: `Dataset` and `ConcatDataset`."""

    @property
    def path(self) -> str:
        """Where it is, for messages; of several datasets all paths, with ``+`` between."""

    @property
    def is_local(self) -> bool:
        """Whether every shard is a local file."""

    @property
    def clips(self) -> ClipTable:
        """All clips' rows."""

    @property
    def columns(self) -> Columns:
        """The clips' columns, for filters and batches."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the class numbers, if the labels were given as text."""

    @property
    def shards(self) -> Sequence[ShardEntry]:
        """The shards, in the order of `ClipTable.shard`."""

    def __len__(self) -> int:
        """How many clips there are."""

    def key(self, i: int) -> str:
        """The key of clip *i*: no other clip has it."""

    def shard(self, s: int) -> ShardEntry:
        """What dataset.json says about shard *s*."""

    def shard_path(self, s: int, extension: str = "tar") -> str:
        """Where shard *s* lies: a local path or a URL."""

    def rows(self, s: int) -> slice:
        """The rows of shard *s*, in the order of its tar."""

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*. Raises DatasetError if its shard's parquet is gone or damaged."""

    def shard_index(self, s: int) -> ShardIndex:
        """The frame indexes of all clips of shard *s*."""
