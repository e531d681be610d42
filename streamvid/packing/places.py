"""The files of clips in place: videos found below the user's paths, the roots of a dataset, and the links and URLs that
are not followed without permission."""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from streamvid.dataset.manifest import SHARD_FOLDER
from streamvid.errors import InputError
from streamvid.packing.options import Cut
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.url import DOT_SEGMENTS, is_local, is_within, local_path, redact, split_query, unsigned


@dataclass(frozen=True)
class Found:
    """A video found below a root folder.

    Attributes:
        path: local path or URL; ends in '/' for a folder of images.
        parts: components of its absolute path, and then of its name within the file at `path` if it is a part of it.
        depth: number of components that belong to the root.
        label: label from a list; None: none.
        rows: numbers of its rows in lists.
        part: offset and size in bytes, if it is a part of the file at `path`.
        mark: version mark of the file; "" if it was not requested.
        cuts: its clips, if they are known.
        name: the name from which its key is made; "": from its path.
        problem: why it cannot be used; "" if no problem is known.
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
    """The components of the absolute path, equal for all spellings of a path, and for a URL whenever it is signed. They
    become names, which are stored and shown, so secrets of a URL are left out."""
    if is_local(path):
        # File names on disk may not be UTF-8, but text in JSON and Parquet must be.
        shown = os.path.abspath(local_path(path)).encode("utf-8", "backslashreplace").decode()
        return tuple(shown.split("/")[1:])
    protocol, _, rest = redact(unsigned(path)).partition("://")
    return (protocol, *[part for part in rest.split("/") if part])


def count_extensions(files: Sequence[str], before: str = ": ") -> str:
    """The number of files by extension, most frequent first, after the text `before`; "" without files."""
    extensions = (posixpath.splitext(split_query(path)[0])[1][:_LONGEST].lower() for path in files)
    counted = Counter(extension or "without one" for extension in extensions)
    counts = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{count:,} {extension}" for extension, count in counts[:_EXTENSIONS_SHOWN]]
    if len(counts) > len(words):
        words.append(f"{sum(count for _, count in counts[len(words) :]):,} others")
    return before + ", ".join(words) if words else ""


_EXTENSIONS_SHOWN: Final = 5
_LONGEST: Final = 20
"""Characters of an extension that are shown: a member of a tar may have a million."""
_PLAIN: Final = re.compile(r"[^/\x00-\x1f:]+(/[^/\x00-\x1f:]+)*")
_NAMES: Final = re.compile(r"[^/\x00-\x1f]+(/[^/\x00-\x1f]+)*/?")


@dataclass(frozen=True)
class Places:
    """The folders and URLs of files that are indexed in place.

    Attributes:
        given: the user's inputs.
        told: further roots to which links and lists may lead.
        cameras: cameras of LeRobot datasets; empty: all.
        destination: the dataset's destination, whose own shards are not indexed.
    """

    given: tuple[str, ...]
    told: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    destination: str = ""

    def is_own(self, video: Found) -> bool:
        """Whether a file is one of the dataset's own shards, if the destination lies within the inputs."""
        own = (*path_parts(self.destination), SHARD_FOLDER) if self.destination else ("",)
        return video.parts[: len(own)] == own

    @cached_property
    def _folders(self) -> frozenset[str]:
        """The real paths of the local ones among them."""
        return frozenset(os.path.realpath(local_path(place)) for place in (*self.given, *self.told) if is_local(place))

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the URLs among them, to which redirects may lead."""
        urls = (urlsplit(place).hostname for place in (*self.given, *self.told) if not is_local(place))
        return tuple(dict.fromkeys(host for host in urls if host))

    def check(self, video: Found) -> Found:
        """The video, with a `problem` if it leads outside of the given places, or has an impossible name."""
        problem = video.problem or self._problem(video)
        return replace(video, problem=problem) if problem else video

    def _problem(self, video: Found) -> str:
        root, file = place_of(video)
        path = f"{root}/{file}"
        lost = path != path.encode("utf-8", "replace").decode() or root.endswith("/")  # of two slashes, one
        if lost or not _NAMES.fullmatch(file) or re.search(DOT_SEGMENTS, file):
            return "its name cannot be stored: rename it"
        if is_local(path):
            real = os.path.realpath(path)
            above = {real, *map(str, PurePosixPath(real).parents)}
            if not is_within(real, os.path.realpath(root)) and above.isdisjoint(self._folders):
                return f"it is a link to {real}: name the folder there with --roots if it is meant"
            return ""
        if redact(path) != path:
            return "its URL holds a password or a signature, which no dataset stores: give one without"
        host = urlsplit(path).hostname or ""
        if path.startswith(("http:", "https:")) and host not in self.hosts and is_private(host):
            return f"its host {host} has a private address: name it with --roots if it is meant"
        return ""


def place_of(video: Found) -> tuple[str, str]:
    """The root of a video, a folder or URL, and the path of its file below the root."""
    local = is_local(video.path)
    path = os.path.abspath(local_path(video.path)) if local else video.path
    least = 1 if local else 2  # a URL's protocol and host
    below = max(1, len(path_parts(video.path)) - max(video.depth, least))
    root, *names = path.rsplit("/", below)
    return root, "/".join(names)


def source_of(video: Found, name: str, key: str, places: Places | None) -> SourceVideo:
    """A video as a source of this name and key; for `index` with its root, file and hosts."""
    root, file = ("", "") if places is None else place_of(video)
    return SourceVideo(
        video.path,
        name,
        key,
        video.label,
        video.rows,
        video.cuts,
        mark=video.mark,
        part=video.part,
        root=root,
        file=file,
        hosts=() if places is None else places.hosts,
        problem=video.problem,
    )


def check_destination(paths: Iterable[str], destination: str) -> None:
    """Raise InputError if a remote dataset would name local files."""
    local = None if is_local(destination) else next(filter(is_local, paths), None)
    if local is not None:
        raise InputError(
            f"the dataset {redact(destination)} cannot name local files such as {local}: index them into a local "
            "folder, or pack them"
        )


@cache
def is_private(host: str) -> bool:
    """Whether a host has an address that is not public: private, loopback, link-local or reserved."""
    try:
        found = {str(address[4][0]).partition("%")[0] for address in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # reading the file will fail as well
    return any(not ipaddress.ip_address(address).is_global for address in found)


def root_name(root: str, destination: str) -> str:
    """The name of a root in dataset.json: relative if it is the dataset's folder or below it, so that both can be moved
    together."""
    base = os.path.abspath(local_path(destination)) if is_local(destination) else destination.rstrip("/")
    if root == base:
        return ""
    below = root.removeprefix(base + "/")
    return below if below != root and _PLAIN.fullmatch(below) else root
