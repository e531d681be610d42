"""dataset.json: the shards of a dataset, and their totals. docs/format.md specifies it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from streamvid.dataset.tables import TableEntry, parse_tables, usable
from streamvid.errors import DatasetError

FORMAT: Final = "streamvid"
VERSION: Final = 2
FILE_NAME: Final = "dataset.json"
UNFINISHED_FILE: Final = "unfinished.txt"
"""Exists at a destination from the beginning of packing until dataset.json is written, so that the next pack can clean
up."""
SHARD_FOLDER: Final = "shards"
SHARD_EXTENSIONS: Final = ("tar", "idx", "packets", "parquet")
"""A shard's files, in the order in which they are written."""
_READ_BY_RANGE: Final = ("tar", "packets", "parquet")
_ETAG: Final = re.compile(r"[!#-~]{1,200}")
"""A strong ETag without its quotes. It is sent in a header, so only characters that RFC 9110 allows are accepted."""
_LEFT_OUT: Final[Mapping[str, object]] = {
    "revision": 0, "oldest": 0, "change": None, "roots": [], "forgotten": None, "overlays": [], "tables": [],
}  # fmt: skip
"""Fields that dataset.json lacks while they have these values."""
_OF_THE_TAR: Final = ("bytes", "sha256", "idx_sha256")
REVISIONS_FOLDER: Final = "revisions"
MAX_BYTES: Final = 128 << 20
"""A larger dataset.json is refused: some 200,000 shards would fit."""
MAX_CLIPS: Final = (1 << 31) - 1
"""Rows are numbered with 32 bits."""
_TOKENS: Final = 1_000_000
_BYTES_PER_TOKEN: Final = 32
"""Fewest bytes per JSON token in a dataset.json with many shards, each of which has three checksums."""


@dataclass(frozen=True)
class ShardEntry:
    """One shard as dataset.json names it.

    Attributes:
        name: eight digits; the files are ``shards/<name>.tar``, ``.idx``, ``.packets`` and ``.parquet``.
        clips, frames: number of clips and of visible frames.
        bytes: size of the tar; 0 if the shard has none, because its clips are in place.
        sha256, idx_sha256: SHA-256 of tar and idx in lower-case hexadecimal; "" if the shard has no tar.
        packets_bytes: size of the .packets file.
        packets_sha256, parquet_sha256: SHA-256 of these two files.
        origin: the `identity` of the shard that this one replaced, with the same rows; "" if it replaced none.
        etags: by extension, the ETags, without quotes, that the files which are read by range had when the dataset was
            written to S3. A copy of the dataset may have others.
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
    origin: str = ""
    etags: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def has_tar(self) -> bool:
        """Whether the shard has a tar with its clips; if not, they are in place."""
        return bool(self.sha256)

    @property
    def identity(self) -> str:
        """SHA-256 of the tar, or of the Parquet file if there is no tar. A shard that is rewritten with the same rows
        keeps its identity, so that states of runs stay valid."""
        return self.origin or self.sha256 or self.parquet_sha256

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of the shard's files by extension, in the order of `SHARD_EXTENSIONS`."""
        sums = (self.sha256, self.idx_sha256, self.packets_sha256, self.parquet_sha256)
        return {extension: checksum for extension, checksum in zip(SHARD_EXTENSIONS, sums, strict=True) if checksum}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the shard's files by extension, if dataset.json has them."""
        return {**({"tar": self.bytes} if self.has_tar else {}), "packets": self.packets_bytes}

    def to_json(self) -> dict[str, object]:
        """The object in dataset.json."""
        left_out = {
            *(() if self.has_tar else _OF_THE_TAR),
            *(name for name in ("origin", "etags") if not getattr(self, name)),
        }
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def with_etags(self, marks: Mapping[str, str]) -> ShardEntry:
        """A copy of this entry with its files' ETags from a listing of the shard folder, by file name."""
        quoted = {extension: marks.get(f"{self.name}.{extension}", "") for extension in _READ_BY_RANGE}
        strong = {extension: mark[1:-1] for extension, mark in quoted.items() if mark[:1] == mark[-1:] == '"'}
        return replace(self, etags={extension: etag for extension, etag in strong.items() if _ETAG.fullmatch(etag)})

    def file(self, extension: str) -> str:
        """Path of one of the shard's files relative to the dataset."""
        return f"{SHARD_FOLDER}/{self.name}.{extension}"


@dataclass(frozen=True)
class Forgotten:
    """The entry in dataset.json of the table of forgotten clips: a Parquet file beside dataset.json, its SHA-256, and
    its number of rows."""

    file: str
    sha256: str
    clips: int


@dataclass(frozen=True)
class Overlay:
    """The entry in dataset.json of a table of columns that were added or replaced: a Parquet file beside dataset.json.

    Attributes:
        file, sha256, bytes: the file's name, SHA-256 and size.
        rows: number of its rows, which are for the first clips of the dataset, in order.
        columns: its current columns, with their Parquet types; its other columns are superseded.
    """

    file: str
    sha256: str
    bytes: int
    rows: int
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, object]:
        """The object in dataset.json."""
        return {**asdict(self), "columns": dict(self.columns)}


@dataclass(frozen=True)
class Change:
    """The change that made a revision: the command, the time (ISO 8601, UTC), and the number of clips that it
    changed."""

    command: str
    time: str
    clips: int


@dataclass(frozen=True)
class Manifest:
    """The content of dataset.json.

    Attributes:
        name: name of the dataset.
        seconds: sum of the clips' durations.
        classes: names of the class numbers.
        shards: the shards, in the order of the rows.
        revision: number of changes so far.
        roots: folders and URLs of clips in place.
        forgotten: the table of forgotten clips.
        overlays: tables of columns that were added or replaced; no two have a column of the same name.
        oldest: number of the first revision that can still be read.
        change: the change that made this revision; None if it was made by packing or appending.
    """

    name: str
    seconds: float
    classes: tuple[str, ...] | None
    shards: tuple[ShardEntry, ...]
    revision: int = 0
    roots: tuple[str, ...] = ()
    forgotten: Forgotten | None = None
    overlays: tuple[Overlay, ...] = ()
    oldest: int = 0
    change: Change | None = None
    tables: tuple[TableEntry, ...] = ()

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
            "revision": self.revision,
            "oldest": self.oldest,
            "change": self.change and asdict(self.change),
            "name": self.name,
            "clips": self.clips,
            "frames": self.frames,
            "bytes": self.tar_bytes,
            "seconds": self.seconds,
            "classes": None if self.classes is None else list(self.classes),
            "roots": list(self.roots),
            "forgotten": self.forgotten and asdict(self.forgotten),
            "overlays": [overlay.to_json() for overlay in self.overlays],
            # Without tables of shards that were replaced since then.
            "tables": [asdict(table) for table, _ in usable(self.tables, self.shards)],
            "shards": [shard.to_json() for shard in self.shards],
        }
        document = {name: value for name, value in document.items() if value or name not in _LEFT_OUT}
        return (json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> Manifest:
        """Parse and validate dataset.json, which may be hostile.

        Args:
            data: the file.
            path: the name of the file in errors.

        Raises:
            DatasetError: the data are no dataset.json, or one of another version, or a field is not as specified.
        """
        # An empty list takes three bytes of JSON and sixty of memory.
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
        document = {**_LEFT_OUT, **document}
        try:
            manifest = cls(
                name=_checked(document, "name", str),
                seconds=_seconds(document.get("seconds")),
                classes=None if document.get("classes") is None else _texts(document["classes"], "classes"),
                shards=tuple(_shard(entry) for entry in _checked(document, "shards", list)),
                revision=_count(document, "revision"),
                roots=_texts(document["roots"], "roots"),
                forgotten=None if document["forgotten"] is None else _forgotten(document["forgotten"]),
                overlays=tuple(map(_overlay, _checked(document, "overlays", list))),
                oldest=_count(document, "oldest"),
                change=None if document["change"] is None else _change(document["change"]),
                tables=parse_tables(document["tables"]),
            )
            totals = {"clips": manifest.clips, "frames": manifest.frames, "bytes": manifest.tar_bytes}
            for field, total in totals.items():
                if _count(document, field) != total:
                    raise ValueError(f"{field!r} is {document[field]}, its shards add up to {total}")
            manifest._check()
        except ValueError as error:
            raise DatasetError(f"{path} is damaged: {error}; copy it again or pack the dataset again") from error
        return manifest

    def _check(self) -> None:
        """Raises ValueError if its parts contradict each other, or a text cannot be encoded."""
        if self.clips > MAX_CLIPS:
            raise ValueError(f"its shards hold {self.clips} clips, where {MAX_CLIPS} are the most")
        if len({shard.name for shard in self.shards}) != len(self.shards):
            raise ValueError("it names a shard twice")
        columns = [name for overlay in self.overlays for name, _ in overlay.columns]
        if len(set(columns)) != len(columns):
            raise ValueError("two overlays have a column of one name")
        if any(overlay.rows > self.clips for overlay in self.overlays):
            raise ValueError("an overlay has more rows than there are clips")
        for text in (self.name, *self.roots, *(self.classes or ()), *columns):
            text.encode()  # JSON may contain lone surrogates, which cannot be encoded


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
    return Forgotten(_table(entry, "forgotten"), _sum(entry, "sha256"), _count(entry, "clips"))


def _overlay(entry: object) -> Overlay:
    if not isinstance(entry, dict) or not isinstance(entry.get("columns"), dict):
        raise ValueError("an overlay is not an object, or has no columns")
    columns = tuple(entry["columns"].items())
    if not all(isinstance(kind, str) for _, kind in columns):
        raise ValueError("a column of an overlay has no type")
    file, rows = _table(entry, "overlays"), _count(entry, "rows")
    return Overlay(file, _sum(entry, "sha256"), _count(entry, "bytes"), rows, columns)


def _change(entry: object) -> Change:
    if not isinstance(entry, dict):
        raise ValueError("'change' is not an object")
    return Change(_checked(entry, "command", str), _checked(entry, "time", str), _count(entry, "clips"))


def _table(entry: dict[str, Any], field: str) -> str:
    file: str = _checked(entry, "file", str)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}\.parquet", file):
        raise ValueError(f"{field!r} names the file {file[:100]!r}, which is no Parquet file beside dataset.json")
    return file


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
    origin, etags = _sum(entry, "origin") if "origin" in entry else "", _etags(entry.get("etags", {}))
    size, tar, idx = 0, "", ""  # of clips that lie elsewhere
    if "sha256" in entry:
        size, tar, idx = _count(entry, "bytes"), _sum(entry, "sha256"), _sum(entry, "idx_sha256")
    return ShardEntry(name, clips, frames, size, tar, idx, packets_bytes, packets, parquet, origin, etags)


def _etags(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("'etags' is not an object")
    found = {name: value[name] for name in _READ_BY_RANGE if name in value}
    if not all(isinstance(etag, str) and _ETAG.fullmatch(etag) for etag in found.values()):
        raise ValueError("'etags' has a value that is no ETag")
    return found
