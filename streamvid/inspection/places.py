"""Checks of clips that lie outside of shards: their files, and every packet in them, as a loader reads them."""

from __future__ import annotations

from dataclasses import replace

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.checksum import crc32c
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
        roots: the dataset's, resolved.
        bounds: out of which files must not lead.
    """
    files = ShardFiles(path, entry, None, roots, bounds)
    return ClipSource(path, clips, Columns(clips, None, meta=MetaColumns), None, [files], Retry(COMMAND_SECONDS))


def check_place(source: ClipSource, row: int, index: FrameIndex, *, decode: bool) -> tuple[list[str], FrameIndex]:
    """Read every packet of a clip, with all that a loader checks, and decode every frame if asked for.

    Returns:
        what is wrong, and the index with the checksums of the packets that were read.
    """
    frames = np.arange(len(index.visible))
    crcs = index.crc32c.copy()

    def encode(frames: Int64) -> EncodedSlice:
        packets = select_packets(index, frames)
        chosen = Selection(frames, np.ones(len(frames), dtype=bool), np.zeros(len(frames)))
        sample = SamplePlan(row, 0, True, chosen, np.empty(0), packets, byte_ranges(packets))
        read = read_slices(source, [sample], source.reader, source.shard_path)[0]
        if (packets.crc32c < 0).any():
            ends = np.cumsum(packets.sizes)
            parts = (read.data[a:b] for a, b in zip((ends - packets.sizes).tolist(), ends.tolist(), strict=True))
            crcs[packets.numbers] = [*map(crc32c, parts)]
        return read

    try:
        encode(frames)
        damage = find_damage(index, frames, encode) if decode else None
    except ClipError as error:
        return [error.reason], index
    except (DatasetError, av.error.FFmpegError, ValueError) as error:
        return [f"it cannot be read ({error})"], index
    return [] if damage is None else [str(damage)], replace(index, crc32c=crcs)
