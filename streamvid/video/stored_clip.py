"""What one video becomes: the value that packing a file yields and a shard is written from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.errors import InputError
from streamvid.video.frame_index import FrameIndex
from streamvid.video.read_buffer import coalesce, read_pieces

UNORDERED: Final = "unordered"
"""A trait: see docs/format.md."""


@dataclass(frozen=True)
class UnwrittenMp4:
    """An MP4 that nobody has written yet: a header, and stretches of another file that follow it.

    Attributes:
        head: everything before the packets.
        offset, size: int64 [stretches], where they lie in the other file, in bytes.
        mark: the other file's size and time of change (`file_mark`), by which it is known to be what it was.
    """

    head: bytes
    offset: Int64
    size: Int64
    mark: tuple[int, int]

    @property
    def mp4_bytes(self) -> int:
        """Size of the MP4."""
        return len(self.head) + int(self.size.sum())


def file_signature(descriptor: int) -> tuple[int, int]:
    """Size of an open file, and when it was last written, in ns."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class StoredClip:
    """One clip, ready to be put into a shard. The columns are those of docs/format.md.

    Attributes:
        mp4: a local file with the clip's bytes, one video track, moov first; or the file that `parts` are of.
        index: its packets.
        codec, profile, pix_fmt, color_space, color_range, traits: as docs/format.md names them.
        width, height: decoded frames, in pixels, before rotation.
        rotation: degrees clockwise that stand the frames upright: 0, 90, 180 or 270.
        time_base: seconds per tick, as (numerator, denominator).
        duration: ticks from the first visible frame to the end of the last.
        stsd: the sample description box, whole.
        sha256: of the bytes of `mp4`, lower-case hex; "" if nobody has summed them up yet.
        parts: the clip's bytes, if no file has them yet; the index holds places in what they make up. None: `mp4` has.
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
    parts: UnwrittenMp4 | None = None

    @property
    def mp4_bytes(self) -> int:
        """Size of the clip's MP4."""
        return self.mp4.stat().st_size if self.parts is None else self.parts.mp4_bytes

    def pieces(self) -> Iterator[memoryview | bytes]:
        """The clip's MP4, in pieces that are valid until the next is asked for.

        Raises:
            InputError: the file that has the bytes was changed in the meantime, or cannot be read.
        """
        try:
            with self.mp4.open("rb", buffering=0) as file:
                offset, size = np.zeros(1, dtype=np.int64), np.array([self.mp4_bytes])
                if self.parts is not None:
                    if file_signature(file.fileno()) != self.parts.mark:
                        raise EOFError
                    yield self.parts.head
                    offset, size = self.parts.offset, self.parts.size
                for piece in read_pieces(file, *coalesce(offset, size)):
                    yield from piece.runs
        except EOFError as error:
            raise InputError(f"{self.mp4} was changed while it was packed: run the command again") from error
        except OSError as error:
            raise InputError(f"{self.mp4} can no longer be read: {error.strerror}; run the command again") from error

    def as_file(self, target: Path) -> StoredClip:
        """The same clip, with its MP4 in a file: written to `target` if it is not in one."""
        if self.parts is None:
            return self
        with target.open("wb") as file:
            for piece in self.pieces():
                file.write(piece)
        return replace(self, mp4=target, parts=None)
