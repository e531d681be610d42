"""What decides the bytes of a dataset, in one value, and its fingerprint: equal fingerprints mean equal datasets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import pyarrow as pa

from streamvid.packing.fingerprints import Fingerprint
from streamvid.packing.inputs import KEY_MAX, SourceVideo
from streamvid.packing.options import PackOptions
from streamvid.packing.partition import Group

_PARTS = ("videos", "options", "versions of streamvid or its libraries", "version of the dataset that is added to")
"""What the parts of a fingerprint are of."""


@dataclass(frozen=True)
class Job:
    """What holds for every group of a pack. A small value that travels to other machines.

    Attributes:
        fingerprint: of all that decides the dataset's bytes.
        shard_size: bytes of tar that a shard does not pass, unless a single clip is larger.
        treatment: what is done to every video.
        columns: the typed columns of metadata of every shard.
        versions: see `versions`; a machine with others must not take part.
    """

    fingerprint: str
    shard_size: int
    treatment: PackOptions
    columns: pa.Schema
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Place:
    """Where packing a group goes on.

    Attributes:
        source: number of the source.
        clip: how many of its clips are in shards already.
        part: number of the next shard within the group.
    """

    source: int
    clip: int
    part: int


@dataclass(frozen=True)
class Work:
    """A group that is still to be packed, or what is left of it.

    Attributes:
        group: which.
        place: where it goes on.
        sources: its sources from `place.source` on; labels are class numbers.
        sizes: bytes of each, 0 where nobody tells.
    """

    group: Group
    place: Place
    sources: tuple[SourceVideo, ...]
    sizes: tuple[int, ...]


def clip_key(source_key: str, suffix: str) -> str:
    """The key of a clip: that of its source with the clip's suffix, shortened where it would be too long."""
    if len(source_key) + len(suffix) <= KEY_MAX:
        return source_key + suffix
    digits = hashlib.sha256(source_key.encode()).hexdigest()[:8]
    return f"{source_key[: KEY_MAX - 9 - len(suffix)]}-{digits}{suffix}"


def versions() -> dict[str, str]:
    """The versions of all libraries that have a hand in a dataset's bytes."""
    import av
    import numpy as np
    import webdataset

    import streamvid

    ffmpeg = {name: ".".join(map(str, number)) for name, number in sorted(av.library_versions.items())}
    return {
        "streamvid": streamvid.__version__,
        "av": av.__version__,
        **ffmpeg,
        "webdataset": webdataset.__version__,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
    }


def fingerprint(
    sources: Iterable[SourceVideo],
    stamps: Iterable[Fingerprint],
    *,
    options: Mapping[str, object],
    versions: Mapping[str, str],
    base: str,
) -> str:
    """SHA-256 digests, in hexadecimal with '-' between: of the sources, the options, the versions, and the base.

    Args:
        sources: in order, labels as class numbers. Their paths do not count: moved videos are the same videos.
        stamps: of the sources.
        options: everything else that decides bytes.
        versions: of the libraries.
        base: what is appended to; "" for a new dataset.
    """
    content = hashlib.sha256()
    for source, stamp in zip(sources, stamps, strict=True):
        row = {**plain(source), "path": "", "size": stamp.size, "mark": stamp.mark}
        content.update(json.dumps(row).encode())
    others = [hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest() for value in (options, versions, base)]
    return "-".join([content.hexdigest(), *(digest[:16] for digest in others)])


def differences(first: str, second: str) -> str:
    """In what two fingerprints differ, in words; "inputs or options" if one of them is none."""
    ours, theirs = first.split("-"), second.split("-")
    if len(ours) != len(_PARTS) or len(theirs) != len(_PARTS):
        return "inputs or options"
    return " and ".join(name for name, a, b in zip(_PARTS, ours, theirs, strict=True) if a != b) or "nothing"


def plain(value: object) -> Any:
    """A value as JSON can hold it, the same for equal values: dataclasses by their fields, sets sorted.

    Raises:
        TypeError: it is none that means the same everywhere.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return [type(value).__name__, value.name]
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, pa.Schema):
        return [[field.name, str(field.type)] for field in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(plain(inner)) for inner in value)
    raise TypeError(f"a {type(value).__name__} has no fingerprint")
