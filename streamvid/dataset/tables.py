"""Consolidated tables: the rows of many shards in two Parquet files, one of numbers and one of texts, so that a remote
dataset opens with few requests, and without reading texts that only a few clips need.

The shards' own Parquet files are authoritative. A table that does not match them any more, or not its entry in
dataset.json, is ignored with a warning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

TABLE_FOLDER: Final = "tables"
_SUMS: Final = re.compile(r"[0-9a-f]{192}", re.ASCII)


class Shard(Protocol):
    """The part of `streamvid.dataset.manifest.ShardEntry` that this module needs."""

    @property
    def name(self) -> str: ...

    @property
    def parquet_sha256(self) -> str: ...

    @property
    def has_tar(self) -> bool: ...


@dataclass(frozen=True)
class TableEntry:
    """The entry of a consolidated table in dataset.json.

    Attributes:
        first: name of its first shard.
        shards: number of its shards, consecutive in dataset.json.
        sha256: SHA-256 of the file with the columns of numbers, and of strings that many clips share.
        texts: SHA-256 of the file with all other columns.
        of: `digest` of the shards.
    """

    first: str
    shards: int
    sha256: str
    texts: str
    of: str

    @property
    def files(self) -> tuple[str, str]:
        """Paths of the files relative to the dataset."""
        return file_of(self.sha256), file_of(self.texts)


def file_of(sha256: str) -> str:
    """Path of a file of a table, relative to the dataset."""
    return f"{TABLE_FOLDER}/{sha256}.parquet"


def digest(entries: Iterable[Shard]) -> str:
    """SHA-256 over the SHA-256 of shards' Parquet files, in lower-case hexadecimal, each followed by a line feed."""
    return hashlib.sha256("".join(f"{entry.parquet_sha256}\n" for entry in entries).encode()).hexdigest()


def parse_tables(value: object) -> tuple[TableEntry, ...]:
    """Parse `tables` of dataset.json. Raises ValueError if it is invalid."""
    if not isinstance(value, list):
        raise ValueError("'tables' is not a list")
    return tuple(map(_entry, value))


def _entry(value: Any) -> TableEntry:
    if not isinstance(value, dict):
        raise ValueError("a table is not an object")
    first, sha256, texts, of = (str(value.get(name)) for name in ("first", "sha256", "texts", "of"))
    shards = value.get("shards")
    if not _SUMS.fullmatch(sha256 + texts + of) or not len(sha256) == len(of) == 64:
        raise ValueError("a table does not have three checksums")
    if type(shards) is not int or shards < 1:
        raise ValueError("a table does not give its number of shards")
    return TableEntry(first, shards, sha256, texts, of)


def usable(tables: Sequence[TableEntry], entries: Sequence[Shard]) -> Iterator[tuple[TableEntry, slice]]:
    """The consolidated tables that match a dataset's current shards, in their order and without overlaps, each with the
    slice of its shards."""
    at = {entry.name: n for n, entry in enumerate(entries)}
    end = 0
    for table in sorted((table for table in tables if table.first in at), key=lambda table: at[table.first]):
        start = at[table.first]
        some = entries[start : start + table.shards]
        # Shards with and without tars have different schemas.
        fits = len(some) == table.shards and digest(some) == table.of
        if start >= end and fits and len({entry.has_tar for entry in some}) == 1:
            end = start + table.shards
            yield table, slice(start, end)
