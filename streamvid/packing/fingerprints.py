"""Fingerprints: of every source, without reading it, and of a whole pack. Equal fingerprints mean equal bytes."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from fractions import Fraction
from functools import partial
from typing import Final

import pyarrow as pa

from streamvid.errors import DatasetError, InputError
from streamvid.packing.metadata import Metadata
from streamvid.packing.options import Cut
from streamvid.packing.source_file import MISSING, folder_details, local_details
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import filesystem
from streamvid.storage.client import asked, has_ranges
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.filesystem import Details
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import is_local, local_path

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_LIST_FROM: Final = 100
"""Videos in one folder of a bucket from which on one listing is faster than a request for each. Most web servers list
no folder, and none gives versions."""
_LISTED_SECONDS: Final = 2.0
"""For which a web server is asked again that does not answer, about a video that is indexed in place. It is rejected
then, as in a list from the web whose servers are gone."""
_PARTS: Final = (
    "videos",
    "options",
    "versions of streamvid or its libraries",
    "version of the dataset that is added to",
)
"""The inputs of the four digests of a pack's fingerprint, for messages."""


NO_MARK: Final = "!"


def source_details(paths: Sequence[str], hosts: Collection[str] | None = None) -> list[Details]:
    """Size and version of each source, in the same order; those of an image folder cover all its files.

    Args:
        paths: local paths or URLs. A bucket's folder with many of the sources is listed once.
        hosts: as in `streamvid.storage.filesystem.details`. With it, a file of unknown size or version has a mark that
            begins with `NO_MARK`, followed by the reason; and so has a file that a web server refuses.

    Raises:
        StreamvidError: a storage does not answer, or denies access.
    """
    several = dict.fromkeys(paths)  # parts of one file have its path
    found = {path: local_source(path) for path in several if is_local(path)}
    folders: dict[str, dict[str, str]] = defaultdict(dict)
    for path in (path for path in several if path not in found):
        folder, _, name = path.rstrip("/").rpartition("/")
        folders[folder][name] = path
    listed = [folder for folder, inside in folders.items() if len(inside) >= _LIST_FROM and has_ranges(folder)]
    for folder, files in zip(listed, map_in_threads(_listing, listed), strict=True):
        inside = folders[folder]
        found |= {inside[name]: file for name, file in files.items() if name in inside and not file.is_folder}
    # A folder, or a name that the listing spells differently, needs a request of its own.
    single = [path for path in several if path not in found]
    found |= zip(single, map_in_threads(partial(_remote, hosts), single), strict=True)
    return [found[path] for path in paths]


def local_source(path: str) -> Details:
    """As `streamvid.packing.source_file.local_details`, and again while a mounted storage does not answer."""
    return asked(path, lambda: local_details(local_path(path)), Retry(COMMAND_SECONDS))


def _listing(folder: str) -> dict[str, Details]:
    """The files in a folder of a bucket; none if it may not be listed, as its files may be read all the same."""
    try:
        return filesystem.list_details(folder)
    except AccessRefused:
        return {}


def _remote(hosts: Collection[str] | None, path: str) -> Details:
    in_bucket, retry = has_ranges(path), None
    if not in_bucket:  # of a list, many files may be refused
        retry = Retry(COMMAND_SECONDS) if hosts is None else Retry(_LISTED_SECONDS, retry_refused=False)
    try:
        details = filesystem.details(path, retry=retry, hosts=hosts)
    except (DatasetError, InputError) as error:
        # A web server that refuses a file is one of many in a list; a bucket that does is the whole input. What does
        # not answer may answer the next time, and a pack that is then resumed must be the same.
        ends = in_bucket and (hosts is None or isinstance(error, InputError))
        if ends or (isinstance(error, StorageUnavailable) and (in_bucket or hosts is None)):
            raise
        return Details(0, NO_MARK + str(error).rstrip("."), False)
    if details is None:
        return MISSING
    if details.is_folder:
        files = filesystem.list_details(path)
        return folder_details([(name, files[name].size, files[name].mark) for name in sorted(files)])
    return details


def versions() -> dict[str, str]:
    """Versions of the libraries that a dataset's bytes depend on: PyAV, FFmpeg, pyarrow …"""
    import av
    import numpy as np

    import streamvid

    ffmpeg = {name: ".".join(map(str, number)) for name, number in sorted(av.library_versions.items())}
    return {
        "streamvid": streamvid.__version__,
        "av": av.__version__,
        **ffmpeg,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
    }


def sources_digest(sources: Iterable[SourceVideo], metadata: Metadata) -> str:
    """SHA-256 of the sources of a pack, in hexadecimal.

    Args:
        sources: the sources in order, with class numbers as labels. Their paths do not count: moved videos are the same
            videos.
        metadata: the rows of the sources and their cuts.
    """
    content = hashlib.sha256()
    for source in sources:
        content.update(json.dumps({**_described(source, metadata), "path": ""}).encode())
    return content.hexdigest()


def fingerprint(content: str, *, settings: Mapping[str, object], versions: Mapping[str, str], base: str) -> str:
    """The fingerprint of a pack: hexadecimal SHA-256 digests of sources, options, versions and base, joined by '-'.

    Args:
        content: the digest of the sources.
        settings: all other settings that the bytes depend on.
        versions: versions of the libraries, see `versions`.
        base: SHA-256 of the dataset.json of the dataset that is appended to; "" for a new dataset.
    """
    others = [hashlib.sha256(json.dumps(to_json(part)).encode()).hexdigest() for part in (settings, versions, base)]
    return "-".join([content, *(digest[:16] for digest in others)])


def _described(value: SourceVideo | Cut, metadata: Metadata) -> dict[str, Json]:
    """The fields of a source or cut, with its metadata in place of the numbers of its rows."""
    fields: dict[str, Json] = {}
    for name, part in vars(value).items():
        if name == "rows":
            fields["meta"] = metadata.json(part)
        elif name == "cuts" and part is not None:
            fields["cuts"] = [_described(cut, metadata) for cut in part]
        else:
            fields[name] = to_json(part)
    return fields


def differing_parts(first: str, second: str) -> str:
    """The parts in which two fingerprints of packs differ, in words.

    "inputs or options" if one of them is not a fingerprint.
    """
    ours, theirs = first.split("-"), second.split("-")
    if len(ours) != len(_PARTS) or len(theirs) != len(_PARTS):
        return "inputs or options"
    return " and ".join(name for name, a, b in zip(_PARTS, ours, theirs, strict=True) if a != b) or "nothing"


def to_json(value: object) -> Json:
    """A value as JSON, equal for equal values; dataclasses become objects.

    Raises:
        TypeError: values of this type have no form that is the same in every process.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, pa.Schema):
        return [[field.name, str(field.type)] for field in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(part) for name, part in vars(value).items()}
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    raise TypeError(f"a {type(value).__name__} has no fingerprint")
