"""Checks of clips that lie outside of shards: their files, and every packet in them, as a loader reads them."""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.roots import Bounds
from streamvid.dataset.shard_files import ShardFiles
from streamvid.decode.damage import find_damage
from streamvid.errors import ClipError, DatasetError
from streamvid.fetch.encoded_batch import read_slices
from streamvid.fetch.plan_samples import SamplePlan
from streamvid.sampling.base import Selection
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import EncodedSlice, byte_ranges, select_packets


def source_of_shard(
    path: str, entry: ShardEntry, clips: ClipTable, roots: tuple[str, ...], bounds: Bounds
) -> ClipSource:
    """The clips of one shard, as a loader reads them.

    Args:
        path: of the dataset.
        entry: the shard's.
        clips: its rows.
        roots: the dataset's, resolved.
        bounds: out of which files must not lead.
    """
    files = ShardFiles(path, entry, None, roots, bounds)
    return ClipSource(path, clips, Columns(clips, None, meta=MetaColumns), None, [files], Retry(COMMAND_SECONDS))


def check_place(source: ClipSource, row: int, index: FrameIndex, *, decode: bool) -> Iterator[str]:
    """Read every packet of a clip, with all that a loader checks, and decode every frame if asked for."""
    frames = np.arange(len(index.visible))

    def encode(frames: Int64) -> EncodedSlice:
        packets = select_packets(index, frames)
        chosen = Selection(frames, np.ones(len(frames), dtype=bool), np.zeros(len(frames)))
        sample = SamplePlan(row, 0, True, chosen, np.empty(0), packets, byte_ranges(packets))
        return read_slices(source, [sample], source.reader, source.shard_path)[0]

    try:
        encode(frames)
        if decode and (damage := find_damage(index, frames, encode)) is not None:
            yield str(damage)
    except ClipError as error:
        yield error.reason
    except (DatasetError, av.error.FFmpegError, ValueError) as error:
        yield f"it cannot be read ({error})"
