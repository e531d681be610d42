"""A video to pack. In a module of its own, so that worker processes start without `streamvid.packing.inputs`."""

from __future__ import annotations

from dataclasses import dataclass

from streamvid.packing.options import Cut
from streamvid.storage.url import has_extension
from streamvid.video.containers import IMAGE_EXTENSIONS


@dataclass(frozen=True)
class SourceVideo:
    """One video to pack.

    Attributes:
        path: local path, or URL that fsspec knows; ends in '/' for a folder of images.
        name: path below the input folder, with '/'. Unique.
        key: name in the dataset: ``[A-Za-z0-9_-]{1,80}``, unique also if case is ignored.
        label: class name or number; None for no label.
        rows: numbers of its rows in lists, which have its metadata; see `streamvid.packing.metadata`.
        cuts: its rows in the cut list, in order; None without a cut list.
        size: bytes; 0 if unknown.
        mark: mark of the file's version, see `streamvid.storage.filesystem.Details`.
        part: offset and size in bytes, if the video is a part of the file at `path`; else None.
        file_bytes: size in bytes of the file at `path`, if the video is a part of it.
        root, file: for a video in place, the names of the file at `path` in the dataset: a root, and the path below it.
        hosts: for a video in place, the hosts to which its URL may redirect, besides its own.
        problem: why it cannot be used, if that is known before it is read; else "".
        needed: whether the job fails, instead of rejecting the video, if it cannot be used.
    """

    path: str
    name: str
    key: str
    label: int | str | None = None
    rows: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] | None = None
    size: int = 0
    mark: str = ""
    part: tuple[int, int] | None = None
    file_bytes: int = 0
    root: str = ""
    file: str = ""
    hosts: tuple[str, ...] = ()
    problem: str = ""
    needed: bool = False

    @property
    def is_named_as_image(self) -> bool:
        """Whether it has the extension of an image."""
        return has_extension(self.name if self.part else self.path, IMAGE_EXTENSIONS)

    @property
    def videos(self) -> int:
        """Number of videos that it counts as."""
        return 1
