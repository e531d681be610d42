"""How large every source is, and what tells its content from another: asked for before anything is read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from streamvid.errors import InputError
from streamvid.storage import filesystem
from streamvid.storage.filesystem import Details
from streamvid.storage.url import local_path

T = TypeVar("T")

_THREADS: Final = 32
_LISTED_FROM: Final = 100
"""Videos in one remote folder from which on listing it takes less time than asking for each."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A source before it is read.

    Attributes:
        size: bytes; 0 where it is missing or nobody tells.
        mark: changes whenever the content does: a time of writing, or an object's etag.
    """

    size: int
    mark: str


MISSING: Final = Fingerprint(0, "missing")


def fingerprints_of(paths: Sequence[str]) -> list[Fingerprint]:
    """A stamp for each source, in the same order. Folders, which hold image sequences, are taken with their files.

    Args:
        paths: local paths or URLs. Remote folders are listed where many sources lie in them.

    Raises:
        StreamvidError: a storage does not answer, or refuses.
    """
    stamps: list[Fingerprint | None] = [None] * len(paths)
    folders: dict[str, list[int]] = defaultdict(list)
    for i, path in enumerate(paths):
        if filesystem.is_local(path):
            stamps[i] = _local(local_path(path))
        else:
            folders[path.rstrip("/").rpartition("/")[0]].append(i)
    single: list[int] = []
    listed: list[str] = []
    for folder, inside in folders.items():
        if len(inside) < _LISTED_FROM:
            single += inside
        else:
            listed.append(folder)
    for folder, found in zip(listed, _in_threads(filesystem.list_details, listed), strict=True):
        for i in folders[folder]:
            details = found.get(paths[i].rstrip("/").rpartition("/")[2])
            if details is None or details.is_folder:
                single.append(i)  # a name that the listing spells otherwise, or a folder: ask for it alone
            else:
                stamps[i] = Fingerprint(details.size, details.mark)
    for i, one in zip(single, _in_threads(_remote, [paths[i] for i in single]), strict=True):
        stamps[i] = one
    return [MISSING if one is None else one for one in stamps]


def _in_threads(function: Callable[[str], T], paths: Sequence[str]) -> Iterable[T]:
    if not paths:
        return []
    first = function(paths[0])  # alone: see `storage` on threads that make their first remote call
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as threads:
        return [first, *threads.map(function, paths[1:])]


def _local(path: str) -> Fingerprint:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                files = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
            return _together([(name, Fingerprint(one.st_size, str(one.st_mtime_ns))) for name, one in files])
        return Fingerprint(found.st_size, str(found.st_mtime_ns))
    except OSError:
        return MISSING  # packing will find out too, and say why
    except ValueError as error:
        raise InputError(f"{path!r} cannot be the path of a video: {error}") from error


def _remote(path: str) -> Fingerprint:
    details = filesystem.details(path)
    if details is None:
        return MISSING
    if details.is_folder:
        files: dict[str, Details] = filesystem.list_details(path)
        return _together([(name, Fingerprint(files[name].size, files[name].mark)) for name in sorted(files)])
    return Fingerprint(details.size, details.mark)


def _together(files: Sequence[tuple[str, Fingerprint]]) -> Fingerprint:
    content = hashlib.sha256(repr([(name, one.size, one.mark) for name, one in files]).encode("utf-8", "replace"))
    return Fingerprint(sum(one.size for _, one in files), content.hexdigest())
