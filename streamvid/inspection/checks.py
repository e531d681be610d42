"""The checks of `verify`. Each yields the problems that it finds, in words; none raises for a damaged file. Every
packet of a clip in place is read as a loader reads it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.bitstream.packets import packets_in
from streamvid.checksum import crc32c, file_sha256
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.frame_indexes import parse_index
from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.roots import Bounds
from streamvid.dataset.schema import BLOCK, EXTENSIONS, FIELD_PREFIX, idx_text
from streamvid.dataset.shard_files import ShardFiles
from streamvid.decode.damage import find_damage
from streamvid.errors import ClipError, DatasetError
from streamvid.fetch.encoded_batch import encoded_slice, read_packets
from streamvid.host import BROKEN_ERRNOS
from streamvid.mp4.sample_entry import sample_description
from streamvid.packing.typed_columns import dump_json, json_value
from streamvid.storage.regular_file import MAX_BYTES, NotAFileError, read_file
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import encode_index
from streamvid.video.packet_selection import EncodedSlice, byte_ranges, extract_packets, select_packets

Finding = tuple[str, int | None]
"""A problem, and the row of the clip that has it, if one has."""

Read = Callable[[int, int], bytes]
"""Reads bytes of the tar: (offset, size) → bytes, fewer at the end of the tar."""

_USTAR_MAGIC = b"ustar\x0000"
_ROWS_AT_ONCE: Final = 1024


def sampled(manifest: Manifest, share: float, seed: int) -> list[tuple[int, ...]]:
    """A random sample of all clips, of the given share, rounded up: for each shard the clips' numbers in it, ascending.
    A function of the seed."""
    count = math.ceil(manifest.clips * share)
    return by_shard(
        manifest, np.sort(np.random.default_rng(seed).choice(manifest.clips, count, replace=False, shuffle=False))
    )


def by_shard(manifest: Manifest, chosen: Int64) -> list[tuple[int, ...]]:
    """Ascending row numbers of a dataset → for each shard the clips' numbers in it."""
    ends = np.cumsum([entry.clips for entry in manifest.shards])
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1])) if len(ends) else []
    return [
        tuple((part - (end - entry.clips)).tolist())
        for part, end, entry in zip(parts, ends, manifest.shards, strict=True)
    ]


def or_unreadable(
    check: Callable[[int], tuple[list[str], FrameIndex | None]], row: int
) -> tuple[list[str], FrameIndex | None]:
    """The result of the check of a clip, or the problem that the disk cannot read it."""
    try:
        return check(row)
    except OSError as error:
        return [_unreadable(error)], None


def check_sha256(file: Path, checksum: str) -> str:
    """What is wrong with the content of a file; "" if nothing is."""
    try:
        return "" if file_sha256(file) == checksum else "its SHA-256 is not the one in dataset.json"
    except OSError as error:
        return _unreadable(error)


def _unreadable(error: OSError) -> str:
    """The problem that a disk has with a file, or a file that is sparse; any other error is raised."""
    if error.errno not in BROKEN_ERRNOS and not isinstance(error, NotAFileError):
        raise error
    return f"it cannot be read ({error.strerror}): check the disk"


def check_idx(file: Path, clips: ClipTable) -> Iterator[Finding]:
    """Compare DALI's index with the rows of the Parquet file. None of one that cannot be read, which `check_sha256`
    tells."""
    try:
        there = read_file(file, MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError as error:
        _unreadable(error)
        return
    present = np.flatnonzero(clips.mp4_size).tolist()
    columns = [f"{kind}_{what}" for kind in EXTENSIONS for what in ("offset", "size")]
    rows = [{"key": clips.key[i]} | {name: int(getattr(clips, name)[i]) for name in columns} for i in present]
    wanted = idx_text(rows).splitlines()
    if there[:1] != wanted[:1] or len(there) != len(wanted):
        yield (
            f"the idx has {len(there) - 1} lines and begins {there[0] if there else ''!r}, instead of {wanted[0]!r}",
            None,
        )
    for row, (line, right) in enumerate(zip(there[1:], wanted[1:], strict=False)):
        if line != right:
            yield "its line in the idx does not agree with the parquet", present[row]


def check_tar(path: Path, clips: ClipTable) -> Iterator[Finding]:
    """Compare the headers of the tar with the rows of the Parquet file: names, order, offsets, sizes, plain USTAR."""
    present = np.flatnonzero(clips.mp4_size).tolist()
    wanted = [(f"{clips.key[i]}.{name}", *place) for i in present for name, place in _places(clips, i).items()]
    there: list[tuple[str, int, int]] = []
    with path.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    there.append((member.name, member.offset_data, member.size))
                    if not member.isreg() or member.offset_data != member.offset + BLOCK:
                        yield f"{member.name[:100]!r} in the tar is not a plain USTAR file", None
                    if len(there) > len(wanted):
                        break
        except (tarfile.TarError, OSError, ValueError) as error:
            yield f"the tar cannot be read to its end ({error})", None
        for at, header in ((there[0][1] - BLOCK, "first"), (there[-1][1] - BLOCK, "last")) if there else ():
            file.seek(at + 257)
            if file.read(8) != _USTAR_MAGIC:
                yield f"the {header} header of the tar is not USTAR", None
    if len(there) != len(wanted):
        count = f"more than {len(wanted)}" if len(there) > len(wanted) else str(len(there))
        yield f"the tar holds {count} files instead of {len(wanted)}", None
    for number, (found, right) in enumerate(zip(there, wanted, strict=False)):
        if found != right:
            yield f"the tar has {_member(*found)} where {_member(*right)} should be", present[number // len(EXTENSIONS)]


def _places(clips: ClipTable, row: int) -> dict[str, tuple[int, int]]:
    """Offset and size in the tar for each file of a clip, by extension."""
    return {
        kind: (int(getattr(clips, f"{kind}_offset")[row]), int(getattr(clips, f"{kind}_size")[row]))
        for kind in EXTENSIONS
    }


def _member(name: str, offset: int, size: int) -> str:
    return f"{name[:100]!r} (at {offset}, {size} bytes)"


def check_fields(table: pa.Table, clips: ClipTable) -> Iterator[Finding]:
    """Compare the typed metadata columns with the JSON in the column `meta`.

    Args:
        clips: the same rows as a ClipTable.
    """
    typed = table.select([name for name in table.column_names if name.startswith(FIELD_PREFIX)])
    if not typed.num_columns:
        return
    dates = {field.name for field in typed.schema if pa.types.is_temporal(field.type)}
    damaged: set[str] = set()  # columns that have been reported already
    batches = typed.to_batches(max_chunksize=_ROWS_AT_ONCE)
    for row, stored in enumerate(stored for batch in batches for stored in batch.to_pylist()):
        try:
            meta = {FIELD_PREFIX + name: value for name, value in json.loads(clips.meta[row]).items()}
            # An empty date of a CSV file is null in its column, and "" in the JSON.
            meta |= {name: None for name in dates if meta.get(name) == ""}
            names = (stored | meta).keys() - damaged
            wrong = sorted(name for name in names if not _agrees(stored.get(name), meta.get(name)))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            yield f"its meta does not fit the columns of the parquet ({error})", row
            return
        damaged.update(wrong)
        for name in wrong:
            yield f"its {name!r} in the parquet does not agree with its meta there", row


def _agrees(stored: Any, value: Any) -> bool:
    """Whether a value of a Parquet column, as a Python object, equals the value in the JSON."""
    if stored is None or value is None:
        return stored is value
    if isinstance(stored, list):
        return len(value) == len(stored) and all(map(_agrees, stored, value))
    if hasattr(stored, "isoformat"):
        return bool(type(stored).fromisoformat(value) == stored)
    if isinstance(stored, str) and not isinstance(value, str):
        return stored == dump_json(value)
    if isinstance(stored, float) and not math.isfinite(stored):
        return bool(value == json_value(stored))
    if isinstance(stored, float) and type(value) is int:
        value = float(value)  # a column that has whole numbers in one list, and fractions in another
    return isinstance(stored, bool) == isinstance(value, bool) and bool(stored == value)


def check_packets_file(clips: ClipTable, size: int) -> list[int]:
    """The rows whose frame index does not begin where the previous one ends, and the last row if its index does not end
    with the file."""
    ends = np.cumsum(clips.index_size, dtype=np.int64)
    rows = np.flatnonzero(clips.index_offset != ends - clips.index_size).tolist()
    return rows or ([len(clips) - 1] if len(clips) and ends[-1] != size else [])


def check_index(stored: bytes, clips: ClipTable, row: int) -> tuple[FrameIndex | None, list[str]]:
    """A clip's frame index, None if it is damaged; and the problems with it, in words."""
    try:
        index = parse_index(np.frombuffer(stored, dtype=np.uint8), clips, row)
    except ValueError as error:
        return None, [f"its frame index is damaged: {error}"]
    return index, [] if encode_index(index).data == stored else [
        "its frame index is not divided into blocks as it should"
    ]


def check_headers(read: Read, clips: ClipTable, row: int) -> Iterator[str]:
    """Compare the tar headers of one clip's files with its row, as `check_tar` does for all clips."""
    for kind, (offset, size) in _places(clips, row).items():
        name = f"{clips.key[row]}.{kind}"
        header = read(offset - BLOCK, BLOCK)
        if header[257:265] != _USTAR_MAGIC:
            yield f"no USTAR header is in the tar before its {kind}"
            continue
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            yield f"the header of its {kind} in the tar cannot be read ({error})"
            continue
        if (member.name, member.size) != (name, size) or not member.isreg():
            right = _member(name, offset, size)
            yield f"the tar has {_member(member.name, offset, member.size)} where {right} should be"


def check_clip(
    read: Read, clips: ClipTable, row: int, index: FrameIndex | None, *, sha256: str, decode: bool
) -> Iterator[str]:
    """Compare one clip's files with its row; `index` is its frame index, None if damaged, and `sha256` that of the mp4
    in the Parquet file."""
    files: dict[str, bytes] = {}
    for kind, (offset, size) in _places(clips, row).items():
        files[kind] = read(offset, size)
        if len(files[kind]) != size:
            yield f"its {kind} lies beyond the end of the tar"
            return
    yield from _check_json(files["json"], clips, row)
    if hashlib.sha256(files["mp4"]).hexdigest() != sha256:
        yield "the SHA-256 of its mp4 is not the one in the parquet"
        return  # all other problems would follow from that
    try:
        if sample_description(files["mp4"]) != clips.stsds[clips.stsd_id[row]]:
            yield "the sample description in its mp4 is not the one in the parquet"
        if index is not None:
            yield from _check_packets(files["mp4"], clips, row, index, decode=decode)
    except (av.error.FFmpegError, ValueError) as error:
        yield f"its mp4 cannot be read ({error})"


def _check_json(data: bytes, clips: ClipTable, row: int) -> Iterator[str]:
    label = int(clips.label[row])
    try:
        wanted = json.loads(clips.meta[row]) | {"key": clips.key[row], "source": clips.source[row]}
        if label >= 0:
            wanted["label"] = label
        if json.loads(data) != wanted:
            yield "its json does not agree with the parquet"
    except (ValueError, TypeError, RecursionError) as error:
        yield f"its json cannot be read ({error})"


def _check_packets(data: bytes, clips: ClipTable, row: int, index: FrameIndex, *, decode: bool) -> Iterator[str]:
    """Compare the packets that FFmpeg's demuxer finds with the index. FFmpeg ignores the edit list, which the index has
    already applied."""
    with closing(av.open(io.BytesIO(data), "r", format="mp4", options={"ignore_editlist": "1"})) as container:
        if len(container.streams) != 1 or not container.streams.video:
            yield f"its mp4 has {len(container.streams)} tracks instead of one video track"
            return
        stream = container.streams.video[0]
        base = stream.time_base
        if base is None or (base.numerator, base.denominator) != (clips.time_base_num[row], clips.time_base_den[row]):
            yield f"its mp4 has the time base {base}, not that of the parquet"
            return
        rows = [(p.pts, p.pos, p.size) for p in container.demux(stream) if p.size]
        if len(rows) != len(index) or any(pts is None for pts, _, _ in rows):
            yield f"its mp4 holds {len(rows)} packets with times, its index {len(index)}"
            return
        pts, offset, size = np.array(rows, dtype=np.int64).T
        shift = int(pts[0] - index.pts[0])
        same = (pts - shift == index.pts) & (offset == index.offset) & (size == index.size)
        if not same.all():
            yield f"packet {int(np.argmin(same))} of its mp4 is not where, or when, the index says"
            return
    view = memoryview(data)
    for number, (start, length, known) in enumerate(zip(offset, size, index.crc32c.tolist(), strict=True)):
        if known < 0 or crc32c(view[start : start + length]) != known:
            yield f"packet {number} of its mp4 has not the CRC-32C of the index"
            return
    if decode:
        damage = find_damage(index, np.arange(len(index.visible)), partial(_encode, data, clips, row, index))
        if damage is not None:
            yield str(damage)


def _encode(data: bytes, clips: ClipTable, row: int, index: FrameIndex, frames: Int64) -> EncodedSlice:
    """Some frames of a clip as a loader reads them; `data` is its mp4."""
    packets = select_packets(index, frames)
    spans = byte_ranges(packets)
    mp4 = np.frombuffer(data, dtype=np.uint8)
    return encoded_slice(clips, row, packets, extract_packets(packets, spans, [mp4[a:b] for a, b in spans.tolist()]))


def source_of_shard(
    path: str, entry: ShardEntry, clips: ClipTable, roots: tuple[str, ...], bounds: Bounds
) -> ClipSource:
    """The clips of one shard, as a loader reads them.

    Args:
        roots: the dataset's roots, resolved.
        bounds: folders and hosts in which files must lie.
    """
    files = ShardFiles(path, entry, None, roots, bounds)
    return ClipSource(path, clips, Columns(clips, None, meta=MetaColumns), None, [files], Retry(COMMAND_SECONDS))


def check_place(source: ClipSource, row: int, index: FrameIndex, *, decode: bool) -> tuple[list[str], FrameIndex]:
    """Read every packet of a clip with all checks of a loader, and decode every frame if `decode`.

    Returns:
        the problems, and the index with the checksums of the packets that were read.
    """
    frames = np.arange(len(index.visible))
    crcs = index.crc32c.copy()

    def encode(frames: Int64) -> EncodedSlice:
        packets = select_packets(index, frames)
        read = read_packets(source, row, packets)
        if (packets.crc32c < 0).any():
            crcs[packets.numbers] = [*map(crc32c, packets_in(read.data, packets.sizes))]
        return read

    try:
        encode(frames)
        damage = find_damage(index, frames, encode) if decode else None
    except ClipError as error:
        return [error.reason], index
    except (DatasetError, av.error.FFmpegError, ValueError) as error:
        return [f"it cannot be read ({error})"], index
    return [] if damage is None else [str(damage)], replace(index, crc32c=crcs)
