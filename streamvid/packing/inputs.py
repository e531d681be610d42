"""What `pack` is given, turned into one ordered list of videos with names and keys. Nothing is opened but lists."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from natsort import natsort_keygen

from streamvid.errors import DatasetError, InputError
from streamvid.packing.images import find_sequence
from streamvid.packing.lists import is_list, other_columns, raw_labels, read_table, video_column
from streamvid.packing.options import Cut
from streamvid.storage import filesystem
from streamvid.storage.url import local_path

VIDEO_EXTENSIONS: Final = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".m2ts", ".mts", ".mpg", ".mpeg", ".3gp",
)  # fmt: skip
"""What a folder is searched for. Files named one by one may have any extension."""

KEY_MAX: Final = 80
_HASH_DIGITS: Final = (0, 8, 16, 32)
"""Hexadecimal digits of the name's SHA-256 behind a key: none if it needs none, more only if eight still collide."""


@dataclass(frozen=True)
class SourceVideo:
    """One video to pack.

    Attributes:
        path: what to open: a local path or a URL that fsspec knows.
        name: its path below the folder that was given, with '/'. Unique.
        key: what it is called in the dataset: [A-Za-z0-9_-]{1,80}, unique even where case is ignored.
        label: as it was given, a class number or a class's name; None if it has none.
        meta: a JSON object with the other columns that came with it.
        cuts: the clips that are cut out of it, in order, where a list says so.
    """

    path: str
    name: str
    key: str
    label: int | str | None = None
    meta: str = "{}"
    cuts: tuple[Cut, ...] | None = None


@dataclass(frozen=True)
class _Found:
    """A video found below `root`: `parts` is its whole path, of which the first `depth` components are the root's."""

    path: str
    parts: tuple[str, ...]
    depth: int
    label: int | str | None = None
    meta: str = "{}"


def find_sources(inputs: Sequence[str]) -> list[SourceVideo]:
    """The videos that the inputs stand for, in natural order of their names (`clip2` before `clip10`).

    Args:
        inputs: files, folders (searched to the bottom), globs, or lists (.csv, .jsonl, .parquet with a column `path`
            or `video`; relative paths count from the list's folder), local or on an object store. A video that is
            given more than once counts once.

    Raises:
        InputError: an input does not exist, holds no video, or is a list that cannot be used.
    """
    if not inputs:
        raise InputError("nothing to pack: name files, folders, globs or lists of videos")
    found: dict[tuple[str, ...], _Found] = {}
    for given in inputs:
        try:
            videos = _find(given)
        except filesystem.StorageUnavailable:
            raise
        except DatasetError as error:
            raise InputError(str(error)) from error
        for video in videos:
            known = found.setdefault(video.parts, video)
            if is_list(given) and (known.label, known.meta) != (video.label, video.meta):
                raise InputError(
                    f"{filesystem.redact(video.path)} is listed more than once with different columns: keep one row"
                )
    chosen = list(found.values())
    names = _names(chosen)
    natural = natsort_keygen()
    # Natural order holds "a1" and "a01" for equal; the plain name breaks the tie whatever order they came in.
    order = sorted(range(len(chosen)), key=lambda i: (natural(names[i]), names[i]))
    keys = make_keys([names[i] for i in order])
    return [
        SourceVideo(chosen[i].path, names[i], key, chosen[i].label, chosen[i].meta)
        for i, key in zip(order, keys, strict=True)
    ]


def make_keys(names: Sequence[str]) -> list[str]:
    """A key for each name, in the same order.

    The name without its extension, if it is a valid key as it is; else with '_' for what is not allowed, cut to size,
    and '-' and eight digits of the name's SHA-256. Names that would share a key (case ignored) all get the digits, so
    a key depends on other names only where they collide.

    Args:
        names: distinct relative paths.
    """
    levels = [0 if _valid(_stem(name)) else 1 for name in names]
    keys: list[str] = []
    for _ in range(len(names) + len(_HASH_DIGITS)):
        keys = [_key(name, level) for name, level in zip(names, levels, strict=True)]
        clashing = _sharing([key.casefold() for key in keys])
        if not clashing:
            return keys
        for i in clashing:
            levels[i] = min(levels[i] + 1, len(_HASH_DIGITS) - 1)
    raise ValueError("names are not distinct")


def longer_keys(name: str) -> list[str]:
    """The keys that a name may have where the key that it would have is taken, the shortest first."""
    return [_key(name, level) for level in range(1, len(_HASH_DIGITS))]


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]


def _valid(stem: str) -> bool:
    return len(stem) <= KEY_MAX and re.fullmatch(r"[A-Za-z0-9_-]+", stem) is not None


def _key(name: str, level: int) -> str:
    if level == 0:
        return _stem(name)
    digits = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[: _HASH_DIGITS[level]]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", _stem(name)) or "_"
    return f"{readable[: KEY_MAX - 1 - len(digits)]}-{digits}"


def _sharing(values: Sequence[str]) -> list[int]:
    """Positions of the values that are there more than once."""
    counts = Counter(values)
    return [i for i, value in enumerate(values) if counts[value] > 1]


def _names(videos: list[_Found]) -> list[str]:
    """Paths below the roots; where two roots hold the same one, with as much of the roots as tells them apart."""
    depths = [video.depth for video in videos]
    while True:
        names = ["/".join(video.parts[depth:]) for video, depth in zip(videos, depths, strict=True)]
        clashing = [i for i in _sharing(names) if depths[i] > 0]
        if not clashing:
            return names
        for i in clashing:
            depths[i] -= 1


def _find(given: str) -> list[_Found]:
    shown = filesystem.redact(given)
    local = filesystem.is_local(given)
    if local:
        given = local_path(given)
    if local and os.path.isdir(given):
        return _below(given, _walk(given), shown)
    if local and os.path.isfile(given):
        return _listed(given) if is_list(given) else [_single(given)]
    if glob.has_magic(given):
        return _globbed(given, shown)
    if local:
        raise InputError(f"no such file or folder: {shown}")
    if is_list(given):
        return _listed(given)
    files = filesystem.list_files(given, recursive=True)
    if [_parts(file) for file in files] == [_parts(given)]:
        return [_single(given)]
    return _below(given, files, shown)


def _single(path: str) -> _Found:
    parts = _parts(path)
    return _Found(path, parts, len(parts) - 1)


def _walk(folder: str) -> list[str]:
    """Files below a folder, links followed, each folder once even where links make a circle."""
    files: list[str] = []
    seen: set[tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise InputError(f"cannot search {error.filename}: {error.strerror}; make it readable or leave it out")

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        stat = os.stat(parent)
        if (stat.st_dev, stat.st_ino) in seen:
            folders.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        folders.sort()  # which way into a folder linked twice is taken must not depend on the file system
        files += [os.path.join(parent, name) for name in names]
    return files


def _below(folder: str, files: Sequence[str], shown: str) -> list[_Found]:
    root = _parts(folder)
    found = [_Found(path, _parts(path), len(root)) for path in files if _is_video(path)]
    found += _sequences(files, root, {video.parts[:-1] for video in found})
    # Hidden files are no videos: a Mac leaves a "._clip.mp4" beside each clip.mp4 that it copies.
    found = [video for video in found if not any(part.startswith(".") for part in video.parts[len(root) :])]
    if not found:
        raise InputError(
            f"no videos in {shown}: looked for files that end in {', '.join(VIDEO_EXTENSIONS)}, "
            "and for folders of nothing but numbered images"
        )
    return found


def _sequences(files: Iterable[str], root: tuple[str, ...], taken: Container[tuple[str, ...]]) -> list[_Found]:
    """The folders of images among the files' folders, but for those that hold videos. Their paths end in '/'."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in files:
        parent, _, name = path.rpartition("/")
        folders[parent].append(name)
    found = []
    for parent, names in folders.items():
        parts = _parts(parent + "/")
        if parts not in taken and find_sequence(names):
            # The folder that was given may be one itself; its name is then its last component, as a file's would be.
            found.append(_Found(parent + "/", parts, min(len(root), len(parts) - 1)))
    return found


def _is_video(path: str) -> bool:
    return path.lower().endswith(VIDEO_EXTENSIONS)


def _globbed(pattern: str, shown: str) -> list[_Found]:
    if filesystem.is_local(pattern):
        matches = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    else:
        matches = filesystem.glob(pattern)
    matches = [path for path in matches if _is_video(path)]
    if not matches:
        raise InputError(f"no videos match {shown}: looked for files that end in {', '.join(VIDEO_EXTENSIONS)}")
    plain = []
    for part in _parts(pattern)[:-1]:
        if glob.has_magic(part):
            break
        plain.append(part)
    return [_Found(path, _parts(path), len(plain)) for path in matches]


def _listed(path: str) -> list[_Found]:
    shown = filesystem.redact(path)
    table = read_table(path)
    column, cells = video_column(table, ("path", "video"), shown)
    if not cells:
        raise InputError(f"{shown} lists no videos: add rows to it")
    folder = posixpath.dirname(path)
    videos = [posixpath.join(folder, cell) if filesystem.is_local(cell) else cell for cell in cells]
    # A folder of images; a remote one is known by the '/' at its end.
    videos = [v.rstrip("/") + "/" if filesystem.is_local(v) and os.path.isdir(local_path(v)) else v for v in videos]
    parts = [_parts(video) for video in videos]
    above = _parts(folder)
    root = len(above)
    if any(p[:root] != above for p in parts):
        # Not all below the list's folder: names count from the lowest folder that holds them all.
        levels = zip(*(p[:-1] for p in parts), strict=False)
        root = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    labels = raw_labels(table, shown) if "label" in table.schema.names else [None] * len(cells)
    meta = other_columns(table, (column, "label"), shown)
    return [_Found(video, p, root, label, m) for video, p, label, m in zip(videos, parts, labels, meta, strict=True)]


def _parts(path: str) -> tuple[str, ...]:
    """The whole path in components, the same for the same file however it was written."""
    if filesystem.is_local(path):
        # Names need not be UTF-8 on disk, but must be in JSON and Parquet.
        shown = os.path.abspath(local_path(path)).encode("utf-8", "backslashreplace").decode()
        return tuple(shown.split("/")[1:])
    protocol, _, rest = path.partition("://")
    return (protocol, *[part for part in rest.split("/") if part])
