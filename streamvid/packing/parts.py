"""The part of a split for each clip, and the order of shuffled clips. Both are functions of texts and a seed,
independent of the clips' order, shards and revision.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checks import fraction
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.selection import select_rows
from streamvid.dataset.string_column import UInt64
from streamvid.errors import InputError

Shares = Mapping[str, float | str | Fraction]
"""The share of the clips that each part gets, by name; as a text it is taken as it is written."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_LEAST: Final = Fraction(1, 10**9)
_MOST: Final = 1000
"""Parts of a split: a column of more values was hardly meant."""


def digests(texts: Iterable[str], seed: int) -> UInt64:
    """uint64 [texts]: the first 8 bytes, little-endian, of a BLAKE2b digest of each text and the seed."""
    start = hashlib.blake2b(f"{seed}\n".encode(), digest_size=8)
    found = []
    for text in texts:
        digest = start.copy()
        digest.update(text.encode())
        found.append(digest.digest())
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


def order_of(dataset: ClipSource, rows: Int64, seed: int) -> Int64:
    """int64 [rows]: these rows in a shuffled order, which depends only on keys and seed."""
    keys = dataset.columns.get("key").take(pa.array(rows))
    return np.lexsort((pc.rank(keys).to_numpy(), digests(keys.to_pylist(), seed))).astype(np.int64)


def parts_by_share(dataset: ClipSource, rows: Int64, shares: Shares, *, seed: int, group: str) -> dict[str, Int64]:
    """The rows of each part, by shares.

    Args:
        rows: int64 [clips], the rows to split.
        seed: another seed gives other parts.
        group: a column; clips with the same value are in the same part, and clips without a value are divided by their
            keys.

    Raises:
        InputError: shares are invalid, there is no such column, or a part would be empty.
    """
    exact = {_checked_name(name): _share(name, share) for name, share in shares.items()}
    if not exact or sum(exact.values()) > 1:
        raise InputError(f"the shares of a split are above 0 and together at most 1; they are {dict(shares)!r}"[:300])
    texts = _texts(dataset, rows, group, "grouped")
    drawn = digests(texts.dictionary.to_pylist(), seed)
    draws = np.zeros(len(rows), dtype=np.uint64)
    there = np.asarray(texts.is_valid())
    draws[there] = drawn[pc.fill_null(texts.indices, 0).to_numpy()[there]] if len(drawn) else 0
    alone = dataset.columns.get("key").take(pa.array(rows[~there]))
    draws[~there] = digests(alone.to_pylist(), seed)
    parts, done = {}, Fraction(0)
    for name, share in exact.items():
        first, done = _limit(done), done + share
        inside = (draws >= np.uint64(first)) & (draws <= np.uint64(_limit(done) - 1))
        parts[name] = rows[inside]
    return _checked(parts)


def parts_by_keys(
    dataset: ClipSource, rows: Int64, keys: Mapping[str, Sequence[str] | str | os.PathLike[str]]
) -> dict[str, Int64]:
    """The rows of each part, by lists of keys or files of them.

    Raises:
        InputError: a key is that of no clip or of a forgotten one, or is in two parts; a file cannot be read; a part is
            empty.
    """
    parts: dict[str, Int64] = {}
    taken = np.full(len(dataset), -1, dtype=np.int64)
    for number, (name, given) in enumerate(keys.items()):
        chosen = select_rows(dataset, keys=given)
        gone = np.setdiff1d(chosen, rows)
        if len(gone):
            raise InputError(f"clip {dataset.key(int(gone[0]))!r} is forgotten: leave its key out of {name!r}")
        twice = chosen[taken[chosen] >= 0]
        if len(twice):
            other = list(keys)[taken[twice[0]]]
            raise InputError(
                f"the clip {dataset.key(int(twice[0]))!r} is in the parts {other!r} and {name!r}: leave it in one"
            )
        taken[chosen] = number
        parts[_checked_name(name)] = chosen
    return _checked(parts)


def parts_by_column(dataset: ClipSource, rows: Int64, column: str) -> dict[str, Int64]:
    """The rows of each part, one for each value of a column, in the order of the values, which name the parts.
    Characters that a name cannot have become ``_``, and digits of the value's SHA-256 are appended.

    Raises:
        InputError: there is no such column, or it has lists, no values or too many values.
    """
    texts = _texts(dataset, rows, column, "split")
    if len(texts.dictionary) > _MOST:
        raise InputError(
            f"the column {column!r} has {len(texts.dictionary):,} values: a split has {_MOST} parts at most"
        )
    codes = pc.fill_null(texts.indices, -1).to_numpy()
    named = sorted((_name_of(text), code) for code, text in enumerate(texts.dictionary.to_pylist()))
    return _checked({name: rows[codes == code] for name, code in named})


def _texts(dataset: ClipSource, rows: Int64, column: str, done: str) -> Any:
    """A column's values at these rows, as texts in a dictionary."""
    values = dataset.columns.get(column).take(pa.array(rows))
    if pa.types.is_nested(values.type):
        raise InputError(f"clips cannot be {done} by {column!r}, a column of lists: take one of texts or numbers")
    return pc.cast(values, pa.large_string()).dictionary_encode()


def _limit(share: Fraction) -> int:
    return int(share * (1 << 64))


def _share(name: str, share: object) -> Fraction:
    try:
        exact = fraction(str(share))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if not _LEAST <= exact <= 1:
        raise InputError(f"the share of {name!r} must be a number from 1e-9 to 1; it is {share!r}"[:300])
    return exact


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"a part is named by letters, digits, '_', '-' and '.', not by {name!r}: it becomes a folder"[:300]
        )
    return name


def _name_of(text: str) -> str:
    if _NAME.fullmatch(text):
        return text
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:60].lstrip("-") or "_"
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _checked(parts: dict[str, Int64]) -> dict[str, Int64]:
    if not parts:
        raise InputError("the split has no parts: no clip has a value there")
    for name, rows in parts.items():
        if not len(rows):
            raise InputError(f"no clip would be in the part {name!r}: give it a larger share, another seed, or keys")
    return parts
