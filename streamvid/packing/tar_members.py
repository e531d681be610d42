"""WebDataset shards of other origin: each video or image in a tar is a source, and the other members of its sample are
its columns.

The members of a sample have the same name up to the first dot, as in webdataset, anywhere in the tar. Only headers and
small members of a tar are read, by ranges, no videos.
"""

from __future__ import annotations

import json
import logging
import re
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from streamvid.dataset.members import HEADER_BYTES, MEMBERS, describe_members
from streamvid.errors import DatasetError
from streamvid.packing.fingerprints import local_source
from streamvid.packing.lists import RESERVED_COLUMNS, ParsedList
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.places import Found, count_extensions
from streamvid.packing.source_file import MISSING, why_missing
from streamvid.packing.typed_columns import column_of_values, utf8_json
from streamvid.storage import filesystem
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.filesystem import Details
from streamvid.storage.ranged_file import RangedFile
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import has_extension, is_local
from streamvid.text import first_line, format_count
from streamvid.video.containers import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS, other_content

log = logging.getLogger(__name__)

COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
TAR_EXTENSIONS: Final = (".tar", *COMPRESSED)
_SAMPLE: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
"""A member's sample and its extension, as webdataset splits names; hidden files are no members."""
_COLUMNS: Final = ("txt", "json", "cls")
_BLOCK_BYTES: Final = 8 << 10
"""Bytes of a tar that are read at once: the header of a sample's video, and the small members around it."""
_MAX_BYTES: Final = 1 << 20
"""The largest member that becomes a column, and the longest header."""
_MOST_ZEROS: Final = 16 << 20
_MOST_COLUMNS: Final = 1000
_MOST_NESTED: Final = 64


@dataclass
class _Video:
    """A video of a tar, the columns of its sample, and the reason if it cannot be read."""

    name: str
    part: tuple[int, int] | None = None
    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


class _TarFile(RangedFile):
    """A tar file object that refuses large reads, because sizes in headers are untrusted; headers and columns are
    small."""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_BYTES + tarfile.BLOCKSIZE:
            raise ValueError(f"a header of {size} bytes")
        return super().read(size) or b""


@dataclass(frozen=True)
class _Tar:
    """The videos of a tar, its version mark, and the largest file of each sample that gives no clip."""

    videos: list[_Video]
    mark: str = ""
    left_out: list[str] = field(default_factory=list)


def find_in_tars(
    tars: Sequence[Found],
    lists: MetadataLists,
    hosts: tuple[str, ...] = (),
    *,
    images: bool = False,
    members: bool = True,
) -> list[Found]:
    """The videos in tars, with the other members of their samples as metadata; and for a tar that cannot be read, the
    reason.

    Args:
        hosts: hosts to which URLs may redirect.
        images: whether images of samples without a video are sources, too. In a tar without videos they always are.

    Raises:
        DatasetError: the storage does not answer.
    """
    read = map_in_threads(partial(_read, hosts, images), [tar.path for tar in tars])
    videos = [video for tar in read for video in tar.videos]
    left_out = [name for tar in read for name in tar.left_out]
    if left_out:
        log.warning(
            "%s in tars %s nothing that becomes a clip, and %s left out%s%s",
            format_count(len(left_out), "sample"),
            *(("hold", "are") if len(left_out) > 1 else ("holds", "is")),
            count_extensions(left_out),
            "; give --images to pack images, too" * any(has_extension(name, IMAGE_EXTENSIONS) for name in left_out),
        )
    for video in videos if not members else ():
        video.values.pop(MEMBERS, None)
    labels = _take_labels(videos)
    for video in videos:
        video.values = {f"json_{name}" if name in lists.own else name: value for name, value in video.values.items()}
    _fold(videos)
    columns = dict.fromkeys(name for video in videos for name in video.values)
    table = pa.table({name: column_of_values([video.values.get(name) for video in videos]) for name in columns})
    if not columns:  # a table without columns has no rows
        table = pa.table({"": pa.nulls(len(videos))})
    first = lists.add(ParsedList(table, table), ("",), "the members of the tars")
    owners = ((tar, content.mark) for tar, content in zip(tars, read, strict=True) for _ in content.videos)
    found = []
    for row, ((tar, mark), video, label) in enumerate(zip(owners, videos, labels, strict=True), first):
        inside = _name_parts(video.name)
        found.append(
            replace(
                tar,
                parts=tar.parts + inside,
                label=tar.label if label is None else label,
                rows=(*tar.rows, row),
                part=video.part,
                mark=mark,
                name="/".join(inside),
                problem=video.problem,
            )
        )
    return found


def _name_parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _fold(videos: Sequence[_Video]) -> None:
    """If there are more names than columns allowed, put their values together into one column, ``json``."""
    names = dict.fromkeys(name for video in videos for name in video.values)
    if len(names) <= _MOST_COLUMNS:
        return
    kept = {*list(names)[:_MOST_COLUMNS], MEMBERS} - {"json"}
    for video in videos:
        rest = {name: video.values.pop(name) for name in [*video.values] if name not in kept}
        if rest:
            video.values["json"] = rest


def _is_nested(value: Any, most: int) -> bool:
    """Whether a JSON value has more than `most` levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (most == 0 or any(_is_nested(item, most - 1) for item in inner))


def _take_labels(videos: Sequence[_Video]) -> list[int | str | None]:
    """Remove the `.cls` members from the values, and return them as labels: numbers if all are numbers, otherwise
    text."""
    texts: list[str | None] = [video.values.pop("cls", None) for video in videos]
    whole = all(text is None or re.fullmatch("[0-9]{1,9}", text) for text in texts)
    return [int(text) if whole and text is not None else text for text in texts]


def _read(hosts: tuple[str, ...], images: bool, path: str) -> _Tar:
    """The videos of a tar."""
    if has_extension(path, COMPRESSED):
        return _Tar([_Video("", problem="it is compressed, so that nothing in it can be read by itself: unpack it")])
    try:
        if is_local(path):
            details: Details | None = local_source(path)
        else:
            details = filesystem.details(path, retry=Retry(COMMAND_SECONDS), hosts=hosts)
        if details is None or details == MISSING:
            return _Tar([_Video("", problem=why_missing(path))])
        file = _TarFile(
            ByteRange(path, 0, details.size),
            FileVersion(details.size, details.mark, () if is_local(path) else hosts),
            block=_BLOCK_BYTES,
        )
        return _read_members(file, details, images)
    except StorageUnavailable:
        raise
    except DatasetError as error:
        return _Tar([_Video("", problem=str(error))])


def _read_members(file: RangedFile, details: Details, images: bool) -> _Tar:
    members, problems = _members(file, details.size)
    samples: dict[str, dict[str, tarfile.TarInfo]] = defaultdict(dict)
    for name, member in members.items():
        sample, extension = _split(name)
        samples[sample][extension] = member
    found = _Tar([], details.mark)
    images = images or not any(_is_video(extension) for own in samples.values() for extension in own)
    for own in samples.values():
        sources = _of_sample(own, images)
        for extension in sources:
            member = own[extension]
            problem = _problem(member, details.size)
            values = {} if problem else _values(file, own, extension, sources)
            part = None if problem else (member.offset_data, member.size)
            found.videos.append(_Video(member.name, part, values, problem))
        if not sources:
            found.left_out.append(max(own.values(), key=lambda member: member.size).name)
    if not found.videos:
        problems = problems or [f"it holds no videos and no images{count_extensions(found.left_out, '; found ')}"]
        found.left_out.clear()
    if problems:
        found.videos.append(_Video("", problem="; ".join(problems)))
    return found


def _members(file: RangedFile, size: int) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    """The members of a tar by name, and what is wrong with it.

    Behind its end may be another tar: `cat a.tar b.tar` makes such files, and `tarfile`, as webdataset, ends at the
    first end without a word, at a damaged header, too.
    """
    members: dict[str, tarfile.TarInfo] = {}
    again: list[str] = []
    problems = [] if size else ["it is empty, a file of 0 bytes: copy it again"]
    end = 0
    try:
        while end < size:
            file.seek(end)
            with tarfile.open(fileobj=file, mode="r:", errors="backslashreplace") as tar:
                for member in tar:
                    if member.size < 0:  # the next header would be an earlier one, forever
                        raise ValueError(f"a member of {member.size} bytes")
                    name = "/".join(_name_parts(member.name))
                    if not _SAMPLE.fullmatch(name) or member.isdir():
                        continue
                    if name in members:
                        again.append(name)
                    members[name] = member  # of several of one name the last, as whoever unpacks it gets
            if tar.offset >= size:
                problems.append(
                    "it ends without the zeros that end a tar: it may be cut off, or is still being written"
                )
            end = _behind_zeros(file, tar.offset, size)
            if end == tar.offset < size:
                raise ValueError(f"at byte {end} is no header of a file in it")
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        kind = ""
        if not members:
            file.seek(0)
            kind = other_content(file.read(_BLOCK_BYTES))
        problems = [kind or f"it cannot be read as a tar{' to its end' * bool(members)} ({first_line(error)})"]
    if again:
        what = format_count(len(again), "file has the name of one", "files have the names of others")
        problems.append(f"{what} before, {again[0]!r}: the last of a name is taken, the others are left out")
    return members, problems


def _behind_zeros(file: RangedFile, start: int, size: int) -> int:
    """Where the zeros end that begin at a byte of a tar, a multiple of 512 bytes behind it.

    Raises:
        ValueError: there are too many to look behind them.
    """
    at, step = start, tarfile.BLOCKSIZE  # steps that grow: most tars end within the block that was read last
    while at < size:
        if at - start > _MOST_ZEROS:
            raise ValueError(f"behind byte {start} are more than {_MOST_ZEROS} zeros")
        file.seek(at)
        block = file.read(min(step, size - at))
        if filled := block.lstrip(b"\0"):
            return at + (len(block) - len(filled)) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        at, step = at + step, min(2 * step, _MAX_BYTES)
    return size


def _of_sample(own: dict[str, tarfile.TarInfo], images: bool) -> list[str]:
    """The sources of a sample, by extension: its videos, or, if it has none and they are wanted, its images.

    An image with a longer extension, such as the mask `a.seg.png` beside `a.jpg`, is a source only if all images have
    one."""
    videos = [extension for extension in own if _is_video(extension)]
    if not videos and images:
        videos = [extension for extension in own if f".{extension}".lower().endswith(IMAGE_EXTENSIONS)]
        videos = [extension for extension in videos if "." not in extension] or videos
    return videos


def _split(name: str) -> tuple[str, str]:
    found = _SAMPLE.fullmatch(name)
    assert found is not None
    return found[1], found[2]


def _problem(member: tarfile.TarInfo, size: int) -> str:
    if member.issparse():
        return "it is sparse in the tar, and not there in one piece"
    if member.issym() or member.islnk():
        return "it is a link in the tar, and not a file: name the one that it links to"
    if not member.isreg():
        return "it is a pipe or a device in the tar, and not a file"
    if not 0 < member.size <= size - member.offset_data:
        return "the tar ends before it does" if member.size > 0 else "it is empty"
    return ""


def _values(file: RangedFile, sample: dict[str, tarfile.TarInfo], video: str, sources: Sequence[str]) -> dict[str, Any]:
    """The columns of a video, from the other members of its sample; for `a.1.mp4`, `a.1.json` has precedence."""
    prefix = video.rpartition(".")[0]
    others = {name.rpartition(".")[0] for name in sources} - {"", prefix}
    values: dict[str, Any] = {}
    members: dict[str, tuple[int, int, bytes]] = {}
    for extension, member in sorted(sample.items(), key=lambda item: item[0].rpartition(".")[0] == prefix):
        before, _, kind = extension.rpartition(".")
        kind, before = kind.lower(), "" if before == prefix else before
        if extension in sources or before in others or not member.isreg() or member.issparse():
            continue
        name = f"{before}.{kind}" if before else kind
        head = b""
        if kind == "npy":
            file.seek(member.offset_data)
            head = file.read(min(member.size, HEADER_BYTES))
        members[name] = member.offset_data, member.size, head
        if kind in _COLUMNS and member.size <= _MAX_BYTES:
            file.seek(member.offset_data)
            for name, value in _parse(file.read(member.size), kind).items():
                values[f"{before}_{name}" if before else name] = value
    if members:
        values[MEMBERS] = describe_members(members)
    return values


def _is_video(extension: str) -> bool:
    return f".{extension}".lower().endswith(VIDEO_EXTENSIONS)


def _parse(data: bytes, kind: str) -> dict[str, Any]:
    """The columns of a member; none if its content contradicts its extension."""
    text = data.decode("utf-8", "backslashreplace")
    if kind == "cls":
        return {"cls": text.strip()} if text.strip() else {}
    if kind == "txt":
        return {"txt": text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if _is_nested(value, _MOST_NESTED):
        return {}
    value = utf8_json(value)
    if not isinstance(value, dict):
        return {"json": value}
    taken = (*RESERVED_COLUMNS, *_COLUMNS, "npy", MEMBERS)
    return {f"json_{name}" if name in taken or not name else name: item for name, item in value.items()}
