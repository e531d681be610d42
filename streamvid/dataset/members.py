"""Other members of the WebDataset samples of indexed tars: their bytes on demand, and `.npy` members as arrays.

An index of such tars has a column `members`: JSON with the name (everything after the first dot), offset and size in
the tar, and for arrays dtype and shape. docs/format.md specifies it.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from numpy.lib import format as npy

from streamvid.checks import is_integer
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import DatasetError, InputError
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_reader import RangeReader

MEMBERS: Final = "members"
"""The column's name."""
HEADER_BYTES: Final = 4096
"""Bytes in which the header of a .npy file ends; it has some 128."""
_MAX_BYTES: Final = 1 << 30
_KINDS: Final = "biufc"

AnyArray = npt.NDArray[Any]
Values = AnyArray | list[AnyArray | bytes | None]


@dataclass(frozen=True)
class MemberColumn:
    """A member that batches have as a column.

    Attributes:
        name: name of the member.
        kind: dtype and shape, as in the column `members`, if the member is an array with the same ones in all clips;
            otherwise "".
    """

    name: str
    kind: str = ""


def members_of(source: ClipSource, row: int) -> dict[str, tuple[int, int]]:
    """Offset and size in the tar of the other members of a clip's sample, by name; empty for a packed clip. Raises
    DatasetError if the dataset is damaged."""
    text = source.columns.get(MEMBERS)[row].as_py() if _is_indexed(source) else None
    if source.version(row) is None or text is None:
        return {}
    try:
        found = {str(name): (value[0], value[1]) for name, value in json.loads(text).items()}
        if not all(is_integer(item) for value in found.values() for item in value):
            raise ValueError("an offset or size is no whole number")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(f"clip {source.key(row)!r}: its column {MEMBERS!r} is damaged ({error})") from error
    return found


def read_members(
    source: ClipSource, names: Sequence[str], rows: Sequence[int], reader: RangeReader | None = None
) -> dict[str, list[bytes | None]]:
    """Read members of clips together, by default with the dataset's own reader: their bytes, None if a clip has no such
    member.

    Raises:
        ClipError: the tar has changed since it was indexed, or cannot be read.
        DatasetError: as in `members_of`, or the storage fails.
    """
    found: dict[str, list[bytes | None]] = {name: [None] * len(rows) for name in names}
    wanted, places, versions, paths = [], [], {}, {}
    for at, row in enumerate(rows):
        there, version = members_of(source, int(row)), source.version(row)
        for name in names:
            if name not in there or version is None:
                continue
            start, size = there[name]
            if not (start >= 0 and 0 <= size <= min(_MAX_BYTES, version.size - start)):
                raise DatasetError(f"clip {source.key(row)!r}: its member {name!r} does not lie within its tar")
            path = source.location(row)
            versions[path], paths[path] = version, row
            wanted.append(ByteRange(path, start, start + size))
            places.append((name, at))
    try:
        blocks = (reader or source.reader).read(wanted, versions)
    except DatasetError as error:
        source.raise_file_error(error, paths)
    for (name, at), block in zip(places, blocks, strict=True):
        found[name][at] = block.tobytes()
    return found


def read_columns(
    source: ClipSource, columns: Sequence[MemberColumn], rows: Sequence[int], reader: RangeReader | None = None
) -> dict[str, Values]:
    """Read members of the clips of a batch. The value of a `.npy` member is an array [batch, …] if dtype and shape are
    equal in the whole dataset, otherwise a list of arrays; of other members, a list of bytes. Lists have None if a clip
    has no such member. Otherwise as `read_members`."""
    made: dict[str, Values] = {}
    if not columns:
        return made
    read = read_members(source, [column.name for column in columns], rows, reader)
    for column in columns:
        values: list[Any] = read[column.name]
        if column.name.lower().endswith("npy"):
            values = [None if value is None else parse_npy(value) for value in values]
        for row, array in zip(rows if column.kind else (), values, strict=False):
            if array is None or _kind(array.dtype, array.shape) != column.kind:
                what = f"its member {column.name!r} is not the array that was indexed"
                raise source.clip_error(int(row), what, suspect="source")
        made[column.name] = np.stack(values) if column.kind else values
    return made


def npy_header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool, int] | None:
    """Parse the first bytes of a .npy file: dtype, shape, whether the order is Fortran's, and the offset of the values.

    Returns None for arrays of objects, because they would be unpickled, and for everything that is no array of numbers
    (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
    """
    stream = io.BytesIO(head[:HEADER_BYTES])
    try:
        major, _ = npy.read_magic(stream)
        if major not in (1, 2):
            return None
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, EOFError, OverflowError):
        return None
    usual = dtype.kind in _KINDS and dtype.itemsize <= 16 and dtype.str[1:] not in ("f16", "f12")
    return (dtype, shape, fortran, stream.tell()) if usual and all(side >= 0 for side in shape) else None


def parse_npy(data: bytes) -> AnyArray | None:
    """The array of a .npy file, in native byte order; None if it is no array of numbers."""
    header = npy_header(data)
    if header is None:
        return None
    dtype, shape, fortran, start = header
    count = math.prod(shape)
    if len(data) - start < count * dtype.itemsize:
        return None
    flat = np.frombuffer(data, dtype, count, start).astype(dtype.newbyteorder("="))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def describe_members(found: Mapping[str, tuple[int, int, bytes]]) -> str:
    """The JSON text of the column `members`, from offset, size and first bytes of each member, by name."""
    entries: dict[str, list[object]] = {}
    for name, (offset, size, head) in sorted(found.items()):
        entries[name] = [offset, size]
        if name.lower().endswith("npy") and (header := npy_header(head)) is not None:
            dtype, shape, _, start = header
            if size >= start + math.prod(shape) * dtype.itemsize:
                entries[name] += [dtype.str[1:], list(shape)]
    return json.dumps(entries, separators=(",", ":"))


def _kind(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return json.dumps([dtype.str[1:], list(shape)], separators=(",", ":"))[1:-1]


def find_member(source: ClipSource, name: str) -> MemberColumn | None:
    """The member that an entry of the option `columns=` names; None if that names a column of the dataset.

    Raises:
        InputError: there is neither a column nor a member of the name.
    """
    try:
        source.columns.get(name)
    except InputError:
        key = json.dumps(name)
        column = source.columns.get(MEMBERS) if _is_indexed(source) else None
        if column is None or not pc.any(pc.match_substring(column, f"{key}:[")).as_py():
            raise
        if not name.lower().endswith("npy"):
            return MemberColumn(name)
        pattern = rf'{re.escape(key)}:\[[0-9]+,[0-9]+,(?P<kind>"[^"]*",\[[0-9,]*\])\]'
        found = pc.struct_field(pc.extract_regex(column, pattern), "kind")
        kinds = pc.unique(found)
        return MemberColumn(name, kinds[0].as_py() if found.null_count == 0 and len(kinds) == 1 else "")
    return None


def _is_indexed(source: ClipSource) -> bool:
    return source.clips.files is not None and MEMBERS in source.columns.meta.names
