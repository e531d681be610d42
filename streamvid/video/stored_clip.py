"""The result of packing one video or a cut of it: metadata, frame index, and where the bytes of its MP4 are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.ffmpeg_fault import ffmpeg_is_exact
from streamvid.color.tags import Color, clip_color
from streamvid.errors import InputError, StreamvidError, VideoError
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import EncodedSlice, byte_ranges, extract_packets, select_packets
from streamvid.video.read_buffer import coalesce, read_blocks, read_range

AUDIO: Final = "audio is left out: shards hold video alone"
OTHER_TRACKS: Final = "one of several video tracks is packed, the one that FFmpeg takes unless --track names another"
CUT_OFF: Final = "a file is cut off, and packed as far as it is whole: copy it again"
OVERLAPS: Final = (
    "fragments of an MP4 begin before the end of those before, as where files were joined byte by byte: frames up to "
    "there are left out, as players do; join files with ffmpeg -f concat"
)
JOINED: Final = (
    "a file is several that were joined byte by byte: the first is packed, as players show no other; join them by "
    "ffmpeg -f concat"
)
UNNUMBERED: Final = (
    "the packets of a transport stream are not numbered (their continuity_counter is always the same): all frames are "
    "decoded, which shows most places where some were lost, but not all"
)
TIMES_SORTED: Final = (
    "times of frames contradict the order in which decoders output them: the order is kept, and the times are sorted, "
    "or are those of decoding"
)
CHANGED: Final = (
    "it was changed or removed while it was read: add it when it is whole (pack --append, or index --update)"
)
INEXACT: Final = (
    "FFmpeg decodes other samples of this HEVC than NVDEC (docs/decoding.md): train and evaluate with one of them; "
    "what is transcoded has FFmpeg's"
)
UNORDERED: Final = "unordered"
"""A trait: see docs/format.md."""


@dataclass(frozen=True)
class UnwrittenMp4:
    """An MP4 that is not written yet: its header, and the byte ranges of another file that follow it.

    Attributes:
        head: everything before the packets.
        offset, size: int64 [ranges], where they lie in the other file, in bytes.
        signature: the other file's, when the ranges were read: `file_signature`.
    """

    head: bytes
    offset: Int64
    size: Int64
    signature: tuple[int, int]

    @property
    def mp4_bytes(self) -> int:
        """Size of the MP4."""
        return len(self.head) + int(self.size.sum())


def file_signature(descriptor: int) -> tuple[int, int]:
    """Size in bytes and time of last modification in ns of an open file: two that differ tell that it was changed."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class StoredClip:
    """One clip, ready to be put into a shard. The columns are those of docs/format.md.

    Attributes:
        mp4: a local file with the clip's bytes, one video track, moov first; or the file that `unwritten` refers to.
        index: its packets.
        codec, profile, pix_fmt, color_space, color_range, traits: as docs/format.md names them.
        width, height: decoded frames, in pixels, before rotation.
        rotation: degrees clockwise that stand the frames upright, plus 360 if they are mirrored, left to right, before
            they are turned: one of `streamvid.mp4.boxes.ROTATIONS`.
        time_base: seconds per tick, as (numerator, denominator).
        duration: ticks from the first visible frame to the end of the last.
        stsd: the sample description box, whole.
        sha256: of the clip's MP4, lower-case hex; "" if it was not computed yet.
        source_remarks: what packing tells of the source: what of it is not packed (`AUDIO`, `OTHER_TRACKS`, `CUT_OFF`,
            `OVERLAPS`, `JOINED`), and `UNNUMBERED`, `TIMES_SORTED`.
        unwritten: the clip's MP4, if no file holds it yet; the index has positions in it. None: `mp4` holds it.
    """

    mp4: Path
    index: FrameIndex
    codec: str
    profile: str
    pix_fmt: str
    color_space: str
    color_range: str
    traits: str
    width: int
    height: int
    rotation: int
    time_base: tuple[int, int]
    duration: int
    stsd: bytes
    sha256: str = ""
    source_remarks: tuple[str, ...] = ()
    unwritten: UnwrittenMp4 | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What packing tells of the clip: `source_remarks`, `INEXACT`."""
        exact = True
        with suppress(ValueError):  # all parameter sets are in band
            exact = self.codec != "hevc" or ffmpeg_is_exact("hevc", parameter_sets("hevc", self.stsd).annex_b)
        return self.source_remarks if exact else (*self.source_remarks, INEXACT)

    @property
    def mp4_bytes(self) -> int:
        """Size of the clip's MP4."""
        return self.mp4.stat().st_size if self.unwritten is None else self.unwritten.mp4_bytes

    def has_trait(self, name: str) -> bool:
        """Whether the clip has one of the traits of docs/format.md."""
        return name in self.traits.split(",")

    def is_changed(self) -> bool:
        """Whether the file that an unwritten MP4 refers to has been changed or removed since it was read."""
        if self.unwritten is None:
            return False
        try:
            status = self.mp4.stat()
        except OSError as error:
            return isinstance(error, FileNotFoundError)  # other errors are those of `read_mp4`
        return (status.st_size, status.st_mtime_ns) != self.unwritten.signature

    def read_mp4(self) -> Iterator[memoryview | bytes]:
        """The bytes of the clip's MP4 in chunks, each valid until the next is asked for.

        Raises:
            VideoError: the file that has the bytes was changed or removed in the meantime.
            InputError: it cannot be read.
        """
        try:
            with self.mp4.open("rb", buffering=0) as file:
                offset, size = np.zeros(1, dtype=np.int64), np.array([self.mp4_bytes])
                if self.unwritten is not None:
                    if file_signature(file.fileno()) != self.unwritten.signature:
                        raise EOFError
                    yield self.unwritten.head
                    offset, size = self.unwritten.offset, self.unwritten.size
                for block in read_blocks(file, *coalesce(offset, size)):
                    yield from block.runs
                if self.unwritten is not None and file_signature(file.fileno()) != self.unwritten.signature:
                    raise EOFError
        except (EOFError, OSError) as error:
            raise self._unreadable(error) from error

    @property
    def color(self) -> Color:
        """What decoded samples mean."""
        return clip_color(
            codec=self.codec,
            stsd=self.stsd,
            color_space=self.color_space,
            color_range=self.color_range,
            width=self.width,
            height=self.height,
        )

    def slice(self, frames: Int64) -> EncodedSlice:
        """Some frames of the clip, by their numbers (int64 [wanted], ascending), as a loader reads them.

        Raises:
            VideoError, InputError: as by `read_mp4`.
        """
        packets = select_packets(self.index, frames)
        inside = packets
        if self.unwritten is not None:  # where they lie in the other file
            begins = len(self.unwritten.head) + np.cumsum(self.unwritten.size) - self.unwritten.size
            source = np.searchsorted(begins, packets.offsets, side="right") - 1
            inside = replace(packets, offsets=self.unwritten.offset[source] + packets.offsets - begins[source])
        spans = byte_ranges(inside)
        try:
            with self.mp4.open("rb", buffering=0) as file:
                blocks = [read_range(file, start, end) for start, end in spans.tolist()]
        except (EOFError, OSError) as error:
            raise self._unreadable(error) from error
        return EncodedSlice(
            name=self.mp4.stem,
            codec=self.codec,
            stsd=self.stsd,
            width=self.width,
            height=self.height,
            color=self.color,
            data=extract_packets(inside, spans, blocks),
            sizes=packets.sizes,
            display_order=packets.display_order,
            frames=packets.frames,
            starts=packets.starts,
            in_order=not self.has_trait(UNORDERED),
        )

    def _unreadable(self, error: EOFError | OSError) -> StreamvidError:
        if isinstance(error, EOFError | FileNotFoundError):
            return VideoError(CHANGED)
        return InputError(f"{self.mp4} can no longer be read: {error.strerror}; run the command again")

    def as_file(self, target: Path) -> StoredClip:
        """The same clip with its MP4 in a file; it is written to `target` if no file holds it yet."""
        if self.unwritten is None:
            return self
        with target.open("wb") as file:
            for chunk in self.read_mp4():
                file.write(chunk)
        return replace(self, mp4=target, unwritten=None)
