"""dataset.json: which shards make up a dataset, and what they add up to. docs/format.md specifies it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from streamvid.errors import DatasetError

FORMAT: Final = "streamvid"
VERSION: Final = 2
FILE_NAME: Final = "dataset.json"
UNFINISHED_FILE: Final = "unfinished.txt"
"""Exists in a destination while packing has begun and dataset.json is not written: the next pack may clean up."""
SHARD_FOLDER: Final = "shards"
SHARD_EXTENSIONS: Final = ("tar", "idx", "packets", "parquet")
"""A shard's files, in the order in which they are written."""
_OF_THE_TAR: Final = ("bytes", "sha256", "idx_sha256")
MAX_BYTES: Final = 128 << 20
"""A larger dataset.json is refused: some 250,000 shards would fit."""
MAX_CLIPS: Final = (1 << 31) - 1
"""Rows are numbered with 32 bits."""
_TOKENS: Final = 1_000_000
_BYTES_PER_TOKEN: Final = 32
"""What a value takes in a dataset.json with many shards, at least: each of them has three checksums."""


@dataclass(frozen=True)
class ShardEntry:
    """One shard as dataset.json names it.

    Attributes:
        name: eight digits; the files are ``shards/<name>.tar``, ``.idx``, ``.packets`` and ``.parquet``.
        clips, frames: how many clips and visible frames it holds.
        bytes: size of the tar; 0 if the shard has none, as its clips lie in files outside of shards.
        sha256, idx_sha256: SHA-256 of tar and idx in lower-case hexadecimal; "" if the shard has no tar.
        packets_bytes: size of the .packets file.
        packets_sha256, parquet_sha256: SHA-256 of the other two files.
    """

    name: str
    clips: int
    frames: int
    bytes: int
    sha256: str
    idx_sha256: str
    packets_bytes: int
    packets_sha256: str
    parquet_sha256: str

    @property
    def has_tar(self) -> bool:
        """Whether it holds its clips itself."""
        return bool(self.sha256)

    @property
    def identity(self) -> str:
        """SHA-256 of what its clips are: of the tar, or of the rows that name the files."""
        return self.sha256 or self.parquet_sha256

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of its files by extension, in the order of `SHARD_EXTENSIONS`."""
        sums = (self.sha256, self.idx_sha256, self.packets_sha256, self.parquet_sha256)
        return {extension: one for extension, one in zip(SHARD_EXTENSIONS, sums, strict=True) if one}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of its files by extension, as far as dataset.json has them."""
        return {**({"tar": self.bytes} if self.has_tar else {}), "packets": self.packets_bytes}

    def to_json(self) -> dict[str, str | int]:
        """Its object in dataset.json."""
        return {field: value for field, value in asdict(self).items() if self.has_tar or field not in _OF_THE_TAR}

    def file(self, extension: str) -> str:
        """Path of one of its files relative to the dataset."""
        return f"{SHARD_FOLDER}/{self.name}.{extension}"


@dataclass(frozen=True)
class Forgotten:
    """The table of clips that are never delivered, as dataset.json names it: a Parquet file beside it, its SHA-256, and
    the number of its rows."""

    file: str
    sha256: str
    clips: int


@dataclass(frozen=True)
class Manifest:
    """The content of dataset.json. `seconds` is the sum of the clips' durations; `classes` names label numbers;
    `revision` counts how often the dataset has been added to; `roots` are where clips outside of shards lie."""

    name: str
    seconds: float
    classes: tuple[str, ...] | None
    shards: tuple[ShardEntry, ...]
    revision: int = 0
    roots: tuple[str, ...] = ()
    forgotten: Forgotten | None = None

    @property
    def clips(self) -> int:
        """Clips in all shards."""
        return sum(shard.clips for shard in self.shards)

    @property
    def frames(self) -> int:
        """Visible frames in all shards."""
        return sum(shard.frames for shard in self.shards)

    @property
    def tar_bytes(self) -> int:
        """Bytes of all tars."""
        return sum(shard.bytes for shard in self.shards)

    def to_json(self) -> bytes:
        """dataset.json, the same bytes for the same content."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            # Left out where nothing was ever appended.
            **({"revision": self.revision} if self.revision else {}),
            "name": self.name,
            "clips": self.clips,
            "frames": self.frames,
            "bytes": self.tar_bytes,
            "seconds": self.seconds,
            "classes": None if self.classes is None else list(self.classes),
            **({"roots": list(self.roots)} if self.roots else {}),
            **({"forgotten": asdict(self.forgotten)} if self.forgotten else {}),
            "shards": [shard.to_json() for shard in self.shards],
        }
        return (json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> Manifest:
        """Parse and validate dataset.json, whoever wrote it.

        Args:
            data: the file.
            path: the name of the file in errors.

        Raises:
            DatasetError: not a dataset.json, one of another version, or one whose fields are not as specified.
        """
        # A list takes three bytes here and sixty in memory.
        if sum(map(data.count, b"[{,")) > _TOKENS + len(data) // _BYTES_PER_TOKEN:
            raise DatasetError(f"{path} does not describe a streamvid dataset: it has too many values for its size")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path} is not JSON ({error}): copy it again or pack the dataset again") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DatasetError(f"{path} does not describe a streamvid dataset: check the path")
        version = document.get("version")
        if version != VERSION or isinstance(version, bool):
            if isinstance(version, int) and version > VERSION:
                raise DatasetError(
                    f"{path}: this is a version {version} dataset, and this streamvid reads version {VERSION}: "
                    "update streamvid"
                )
            shown = repr(version)[:40]
            raise DatasetError(f"{path} has the version {shown}, which this streamvid does not read: pack it again")
        try:
            manifest = cls(
                name=_checked(document, "name", str),
                seconds=_seconds(document.get("seconds")),
                classes=_classes(document.get("classes")),
                shards=tuple(_shard(entry) for entry in _checked(document, "shards", list)),
                revision=_count(document, "revision") if "revision" in document else 0,
                roots=_texts(document.get("roots", []), "roots"),
                forgotten=_forgotten(document["forgotten"]) if "forgotten" in document else None,
            )
            totals = {"clips": manifest.clips, "frames": manifest.frames, "bytes": manifest.tar_bytes}
            for field, total in totals.items():
                if _count(document, field) != total:
                    raise ValueError(f"{field!r} is {document[field]}, its shards add up to {total}")
            if manifest.clips > MAX_CLIPS:
                raise ValueError(f"its shards hold {manifest.clips} clips, where {MAX_CLIPS} are the most")
            names = [shard.name for shard in manifest.shards]
            if len(set(names)) != len(names):
                raise ValueError("it names a shard twice")
            for text in (manifest.name, *manifest.roots, *(manifest.classes or ())):
                text.encode()  # JSON may hold halves of UTF-16 pairs, which no output takes
        except ValueError as error:
            raise DatasetError(f"{path} is damaged: {error}; copy it again or pack the dataset again") from error
        return manifest


def _checked(document: dict[str, Any], field: str, kind: type) -> Any:
    value = document.get(field)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{field!r} is missing or has the wrong type")
    return value


def _count(document: dict[str, Any], field: str) -> int:
    value = _checked(document, field, int)
    if not 0 <= value < 1 << 62:
        raise ValueError(f"{field!r} is {str(value)[:100]}")
    return int(value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_SECONDS:
        raise ValueError(f"'seconds' is {str(value)[:100]}")
    return float(value)


_MAX_SECONDS: Final = 1e18


def _classes(value: object) -> tuple[str, ...] | None:
    return None if value is None else _texts(value, "classes")


def _texts(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{field!r} is not a list of texts")
    return tuple(value)


def _sum(entry: dict[str, Any], field: str) -> str:
    checksum: str = _checked(entry, field, str)
    if not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise ValueError(f"{field!r} is not 64 hexadecimal digits")
    return checksum


def _forgotten(entry: object) -> Forgotten:
    if not isinstance(entry, dict):
        raise ValueError("'forgotten' is not an object")
    file = _checked(entry, "file", str)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}\.parquet", file):
        raise ValueError(f"'forgotten' names the file {file[:100]!r}, which is no Parquet file beside dataset.json")
    return Forgotten(file, _sum(entry, "sha256"), _count(entry, "clips"))


def _shard(entry: object) -> ShardEntry:
    if not isinstance(entry, dict):
        raise ValueError("a shard's entry is not an object")
    name = _checked(entry, "name", str)
    # It becomes part of a path: nothing but digits, or "../../etc/passwd" would be a shard.
    if not re.fullmatch(r"[0-9]{8}", name):
        raise ValueError(f"the shard name {name[:40]!r} is not eight digits")
    try:
        return _parsed_entry(name, entry)
    except ValueError as error:
        raise ValueError(f"shard {name}: {error}") from error


def _parsed_entry(name: str, entry: dict[str, Any]) -> ShardEntry:
    clips, frames, packets_bytes = (_count(entry, field) for field in ("clips", "frames", "packets_bytes"))
    packets, parquet = _sum(entry, "packets_sha256"), _sum(entry, "parquet_sha256")
    if "sha256" not in entry:  # its clips lie elsewhere
        return ShardEntry(name, clips, frames, 0, "", "", packets_bytes, packets, parquet)
    tar, idx = _sum(entry, "sha256"), _sum(entry, "idx_sha256")
    return ShardEntry(name, clips, frames, _count(entry, "bytes"), tar, idx, packets_bytes, packets, parquet)
