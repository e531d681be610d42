"""The exceptions raised for bad input; any other exception is a defect of streamvid.

StreamvidError
├── InputError (also a ValueError): an option, path, list or label
├── DatasetError: a dataset
│   └── ClipError: one clip of it
├── VideoError: a video or clip
└── GpuLostError: no input, but the GPU: it failed so that its process has to be started again
"""

from __future__ import annotations

from typing import Final, Literal

Suspect = Literal["source", "shard", "cache", "index"]
"""What is probably wrong: the video that was packed, the shard, its copy in the cache, or the clip's frame index."""

_REMEDIES: Final[dict[str, str]] = {
    "source": "leave the clip out, or pack its video again (streamvid index --update, if it is in place)",
    "shard": "restore the shard (streamvid verify checks all), and go on from the last checkpoint",
    "cache": "remove the copy in the cache folder, and go on from the last checkpoint",
    "index": "restore the shard's .packets file (streamvid verify checks all), and go on from the last checkpoint",
}


class StreamvidError(Exception):
    """Base of all errors raised for bad input; its text is one sentence that names what is wrong and what to do.

    Attributes:
        path: the file that could not be read, without secrets; None if the error is not about a file.
    """

    def __init__(self, *args: object, path: str | None = None) -> None:
        super().__init__(*args)
        self.path = path


class InputError(StreamvidError, ValueError):
    """An option, path, list or label that cannot be used as given."""


class DatasetError(StreamvidError):
    """A dataset that is missing, damaged, or of a version this library does not read."""


class ClipError(DatasetError):
    """A clip that cannot be delivered: its bytes or its frame index are not what was stored, or do not decode.

    Attributes:
        row: its row number, -1 if unknown.
        key: its key.
        shard: the shard's name; for a clip in place, its file.
        offset: byte of that file where the damage begins, None if unknown.
        packet: number of the damaged packet in decode order, None if unknown.
        reason: what is wrong, without the place and without a remedy.
        suspect: what is probably damaged.
    """

    def __init__(
        self,
        reason: str,
        *,
        row: int = -1,
        key: str = "",
        shard: str = "",
        offset: int | None = None,
        packet: int | None = None,
        suspect: Suspect = "shard",
    ) -> None:
        at = ("" if packet is None else f", packet {packet}") + ("" if offset is None else f", byte {offset}")
        # pickle and PyTorch's DataLoader call the constructor with the finished message alone, without a key.
        super().__init__(f"clip {key!r} (shard {shard}{at}): {reason}; {_REMEDIES[suspect]}" if key else reason)
        self.row, self.key, self.shard = row, key, shard
        self.offset, self.packet = offset, packet
        self.reason: str = reason
        self.suspect: Suspect = suspect


class VideoError(StreamvidError):
    """A video or clip that cannot be read, stored or decoded."""


class GpuLostError(StreamvidError):
    """A GPU that this process cannot use any more: the process has to end, and to be started again."""
