"""Consolidated tables: the rows of many shards in two Parquet files, so that a remote dataset opens with few requests,
and without what only clips that are read need: numbers are in one of them, texts in the other.

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
_SUMS: Final = re.compile(r"[0-9a-f]{192}", re.ASCII)


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
    """A table as dataset.json names it.

    Attributes:
        first: name of its first shard.
        shards: how many shards it is of, consecutive in dataset.json.
        sha256: of the file with the columns of numbers, and of strings that many clips share.
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
    """SHA-256 of the SHA-256 of shards' Parquet files, in lower-case hexadecimal with a line feed behind each."""
    return hashlib.sha256("".join(f"{entry.parquet_sha256}\n" for entry in entries).encode()).hexdigest()


def parse_tables(value: object) -> tuple[TableEntry, ...]:
    """`tables` of dataset.json. Raises ValueError for what is none."""
    if not isinstance(value, list):
        raise ValueError("'tables' is not a list")
    # One without texts is of a version that had one file of all columns, and is not used.
    return tuple(_entry(one) for one in value if not isinstance(one, dict) or "texts" in one)


def _entry(value: Any) -> TableEntry:
    if not isinstance(value, dict):
        raise ValueError("a table is not an object")
    first, sha256, texts, of = (str(value.get(name)) for name in ("first", "sha256", "texts", "of"))
    shards = value.get("shards")
    if not _SUMS.fullmatch(sha256 + texts + of) or not len(sha256) == len(of) == 64:
        raise ValueError("a table has not three checksums")
    if type(shards) is not int or shards < 1:
        raise ValueError("a table does not say how many shards it is of")
    return TableEntry(first, shards, sha256, texts, of)


def usable(tables: Sequence[TableEntry], entries: Sequence[Shard]) -> Iterator[tuple[TableEntry, slice]]:
    """The consolidated tables that match a dataset's current shards, in their order and without overlaps, each with the
    slice of its shards."""
    at = {entry.name: n for n, entry in enumerate(entries)}
    end = 0
    for start, table in sorted((at[table.first], table) for table in tables if table.first in at):
        some = entries[start : start + table.shards]
        # All with tars or all without, as their schemas differ.
        fits = len(some) == table.shards and digest(some) == table.of
        if start >= end and fits and len({entry.has_tar for entry in some}) == 1:
            end = start + table.shards
            yield table, slice(start, end)
