"""Consolidated tables: the rows of many shards in one Parquet file, so that a remote dataset opens with few requests.

The shards' own Parquet files stay what is true. A table that is not of them any more, or not what dataset.json says, is
not used, and a warning says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

TABLE_FOLDER: Final = "tables"
_SUMS: Final = re.compile(r"[0-9a-f]{128}", re.ASCII)


class Shard(Protocol):
    """What a table's entry is about: see `streamvid.dataset.manifest.ShardEntry`."""

    @property
    def name(self) -> str: ...

    @property
    def parquet_sha256(self) -> str: ...

    @property
    def has_tar(self) -> bool: ...


@dataclass(frozen=True)
class TableEntry:
    """A table as dataset.json names it: ``tables/<sha256>.parquet``.

    Attributes:
        first: name of its first shard.
        shards: how many shards it is of, consecutive in dataset.json.
        sha256: of the file.
        of: `digest` of the shards.
    """

    first: str
    shards: int
    sha256: str
    of: str

    @property
    def file(self) -> str:
        """Path of the file relative to the dataset."""
        return f"{TABLE_FOLDER}/{self.sha256}.parquet"


def digest(entries: Iterable[Shard]) -> str:
    """SHA-256 of the SHA-256 of shards' Parquet files, in lower-case hexadecimal with a line feed behind each."""
    return hashlib.sha256("".join(f"{entry.parquet_sha256}\n" for entry in entries).encode()).hexdigest()


def parse_tables(value: object) -> tuple[TableEntry, ...]:
    """`tables` of dataset.json. Raises ValueError for what is none."""
    if not isinstance(value, list):
        raise ValueError("'tables' is not a list")
    return tuple(map(_entry, value))


def _entry(value: Any) -> TableEntry:
    if not isinstance(value, dict):
        raise ValueError("a table is not an object")
    first, sha256, of = (str(value.get(name)) for name in ("first", "sha256", "of"))
    shards = value.get("shards")
    if not _SUMS.fullmatch(sha256 + of) or len(of) != 64:
        raise ValueError("a table has not two checksums")
    if type(shards) is not int or shards < 1:
        raise ValueError("a table does not say how many shards it is of")
    return TableEntry(first, shards, sha256, of)


def usable(tables: Sequence[TableEntry], entries: Sequence[Shard]) -> Iterator[tuple[TableEntry, slice]]:
    """The tables that are of a dataset's shards as they are now, in their order, and none of a shard that another one
    is of; and which shards each is of."""
    at = {entry.name: n for n, entry in enumerate(entries)}
    end = 0
    for start, table in sorted((at[table.first], table) for table in tables if table.first in at):
        some = entries[start : start + table.shards]
        # One schema: with tars or without.
        fits = len(some) == table.shards and digest(some) == table.of
        if start >= end and fits and len({entry.has_tar for entry in some}) == 1:
            end = start + table.shards
            yield table, slice(start, end)
