"""What is found where a user points: videos by the components of their paths."""

from __future__ import annotations

import os
from dataclasses import dataclass

from streamvid.packing.options import Cut
from streamvid.storage.url import is_local, local_path


@dataclass(frozen=True)
class Found:
    """A video found below a root folder.

    Attributes:
        path: local path or URL; ends in '/' for a folder of images.
        parts: components of its absolute path, and of its name in the file at `path` if it is a part of that.
        depth: how many of them are those of the root.
        label: of the video, as a list has it.
        rows: numbers of its rows in lists.
        part: offset and size in bytes, if it is a part of the file at `path`.
        mark: of the file's version when it was looked at; "" if it was not.
        cuts: the clips in it, if they are known.
        name: that its key is made of; "": that of its path.
        problem: why it cannot be used; "" if nothing is known to be wrong.
    """

    path: str
    parts: tuple[str, ...]
    depth: int
    label: int | str | None = None
    rows: tuple[int, ...] = ()
    part: tuple[int, int] | None = None
    mark: str = ""
    cuts: tuple[Cut, ...] | None = None
    name: str = ""
    problem: str = ""


def path_parts(path: str) -> tuple[str, ...]:
    """The components of the absolute path: equal for all spellings of a path."""
    if is_local(path):
        # File names on disk may not be UTF-8; text in JSON and Parquet is.
        shown = os.path.abspath(local_path(path)).encode("utf-8", "backslashreplace").decode()
        return tuple(shown.split("/")[1:])
    protocol, _, rest = path.partition("://")
    return (protocol, *[part for part in rest.split("/") if part])
