"""The single checks that `verify` consists of. Each yields what is wrong, in words; none raises for damage."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pyarrow as pa

from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.schema import BLOCK, EXTENSIONS, FIELD_PREFIX, KINDS, idx_text
from streamvid.errors import InputError
from streamvid.mp4.sample_entry import sample_description
from streamvid.packing.typed_columns import typed_columns
from streamvid.video.frame_index import HIDDEN, FrameIndex

Wrong = tuple[str, int | None]
"""What is wrong, and with which row, if with one."""

Read = Callable[[int, int], bytes]
"""Gives the bytes of the tar from a position on, so many; fewer at its end."""

_USTAR_MAGIC = b"ustar\x0000"


def check_idx(data: bytes, clips: ClipTable) -> Iterator[Wrong]:
    """DALI's index against the parquet's rows."""
    rows = [
        {"key": clips.key[i]}
        | {f"{kind}_{what}": int(getattr(clips, f"{kind}_{what}")[i]) for kind in KINDS for what in ("offset", "size")}
        for i in range(len(clips))
    ]
    there = data.decode("utf-8", "replace").splitlines()
    wanted = idx_text(rows).splitlines()
    if there[:1] != wanted[:1] or len(there) != len(wanted):
        yield (
            f"the idx has {len(there) - 1} lines and begins {there[0] if there else ''!r}, instead of {wanted[0]!r}",
            None,
        )
    for row, (line, right) in enumerate(zip(there[1:], wanted[1:], strict=False)):
        if line != right:
            yield "its line in the idx does not agree with the parquet", row


def check_tar(path: Path, clips: ClipTable) -> Iterator[Wrong]:
    """The tar's headers against the parquet's rows: names, order, places, sizes, and that all are plain USTAR."""
    wanted = [
        (
            f"{clips.key[i]}.{extension}",
            int(getattr(clips, f"{kind}_offset")[i]),
            int(getattr(clips, f"{kind}_size")[i]),
        )
        for i in range(len(clips))
        for extension, kind in zip(EXTENSIONS, KINDS, strict=True)
    ]
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
            yield f"the tar has {_member(*found)} where {_member(*right)} should be", number // 3


def _member(name: str, offset: int, size: int) -> str:
    return f"{name[:100]!r} (at {offset}, {size} bytes)"


def check_fields(table: pa.Table, clips: ClipTable) -> Iterator[Wrong]:
    """The typed columns that came with the clips against the same in JSON.

    Args:
        table: the shard's scalar columns.
        clips: the same as rows.
    """
    names = [name for name in table.column_names if name.startswith(FIELD_PREFIX)]
    if not names:
        return
    columns = pa.schema([(name.removeprefix(FIELD_PREFIX), table.schema.field(name).type) for name in names])
    try:
        wanted = typed_columns(clips.meta, columns, clips.key)
    except (InputError, ValueError, TypeError, AttributeError, RecursionError) as error:
        yield f"the meta of its clips does not fit the columns of the parquet ({error})", None
        return
    for name in names:
        if not table[name].equals(wanted[name]):
            pairs = zip(table[name], wanted[name], strict=True)
            row = next((row for row, (found, right) in enumerate(pairs) if not found.equals(right)), 0)
            yield f"its {name!r} in the parquet does not agree with its meta there", row


def check_headers(read: Read, clips: ClipTable, row: int) -> Iterator[str]:
    """The tar's headers of one clip's files against its row, as `check_tar` does for all."""
    for extension, kind in zip(EXTENSIONS, KINDS, strict=True):
        offset, size = (int(getattr(clips, f"{kind}_{what}")[row]) for what in ("offset", "size"))
        name = f"{clips.key[row]}.{extension}"
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
    read: Read, clips: ClipTable, row: int, index: FrameIndex | None, *, decode: bool, threads: int
) -> Iterator[str]:
    """One clip's three files against its row; `index` is the one in the parquet, if that can be read."""
    files: dict[str, bytes] = {}
    for kind in KINDS:
        size = int(getattr(clips, f"{kind}_size")[row])
        files[kind] = read(int(getattr(clips, f"{kind}_offset")[row]), size)
        if len(files[kind]) != size:
            yield f"its {kind} lies beyond the end of the tar"
            return
    yield from _check_json(files["json"], clips, row)
    if index is not None:
        yield from _check_npy(files["npy"], index)
    if hashlib.sha256(files["mp4"]).hexdigest() != clips.sha256[row]:
        yield "the SHA-256 of its mp4 is not the one in the parquet"
        return  # whatever else is wrong with it follows from that
    try:
        if sample_description(files["mp4"]) != clips.stsds[clips.stsd_id[row]]:
            yield "the sample description in its mp4 is not the one in the parquet"
        if index is not None:
            yield from _check_packets(files["mp4"], clips, row, index, decode=decode, threads=threads)
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


def _check_npy(data: bytes, index: FrameIndex) -> Iterator[str]:
    if data != index.to_npy():
        yield "its frames.npy does not agree with the parquet"


def _check_packets(
    data: bytes, clips: ClipTable, row: int, index: FrameIndex, *, decode: bool, threads: int
) -> Iterator[str]:
    """What FFmpeg finds in the mp4 against the index; the edit list is ignored, as the index contains its effect."""
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
    if decode:
        yield from check_frames(data, index, shift, threads)


def check_frames(data: bytes, index: FrameIndex, shift: int, threads: int) -> Iterator[str]:
    """Every visible packet must decode to one frame with its pts, in their order; hidden ones may decode to one or not.

    Args:
        data: a clip's mp4.
        index: its frame index.
        shift: what its pts are larger by than those of the index.
        threads: for FFmpeg.

    Returns:
        what is wrong.
    """
    with closing(av.open(io.BytesIO(data), "r", format="mp4", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = threads
        times = [None if frame.pts is None else frame.pts - shift for frame in container.decode(stream)]
    decoded = Counter(times)
    visible = Counter(index.frame_pts.tolist())
    missing = visible - decoded
    beyond = decoded - visible - Counter(index.pts[(index.flags & HIDDEN) != 0].tolist())
    if missing:
        yield f"{missing.total()} of its {visible.total()} frames do not decode, the first at pts {min(missing)}"
    if beyond:
        yield f"it decodes to {beyond.total()} frames that are not in the index"
    known = [time for time in times if time is not None]
    if known != sorted(known):
        yield "its frames come out of a decoder in another order than the index says: pack it again"
