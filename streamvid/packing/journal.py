"""The journal of a pack: a record at the destination for every finished shard, from which a killed pack resumes.

A shard's files appear in this order: tar, idx, packets, parquet, record. The shards of a group are written
one after the other, and each record holds the position at which the next shard begins. All content follows from the
job, so two processes that pack the same group write identical files.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from streamvid.dataset.manifest import FILE_NAME, SHARD_FOLDER, UNFINISHED_FILE, ShardEntry
from streamvid.errors import DatasetError, InputError
from streamvid.packing.fingerprints import differing_parts
from streamvid.packing.partition import Group, GroupCursor
from streamvid.storage import filesystem
from streamvid.storage.client import asked
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.filesystem import Details
from streamvid.storage.retry import Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.upload import Upload
from streamvid.storage.url import join, redact

PROGRESS_FOLDER: Final = "progress"
SOURCES_FILE: Final = "sources-{}.parquet"
"""In the same folder, with 16 hexadecimal digits: see `streamvid.packing.kept_sources`."""
UPLOAD: Final = ".upload"
"""Ends the names of files with the id of an upload, behind the name of the shard's file."""
_RECORD_FILE: Final = re.compile(r"[0-9]{8}\.json")
_ATTEMPTS: Final = 5
_UNFINISHED_TEXT: Final = (
    "streamvid pack has not finished here. The same command again goes on where it was.\nfingerprint: {}\n"
)
_FINGERPRINT: Final = re.compile(rb"^fingerprint: ([0-9a-f-]{16,200})$", re.MULTILINE)


class FinishedElsewhereError(Exception):
    """Another process has finished the same pack: there is nothing left to do."""


@dataclass(frozen=True)
class Rejected:
    """A rejected video, and the reason."""

    source: str
    reason: str


@dataclass(frozen=True)
class Notice:
    """A remark about packed videos, such as that their audio was left out.

    Attributes:
        text: the remark.
        videos: number of videos that it is about.
        first: name of the first video.
    """

    text: str
    videos: int
    first: str


def merged(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """Merge notices with equal texts, in the order of first occurrence."""
    found: dict[str, Notice] = {}
    for notice in notices:
        before = found.get(notice.text)
        found[notice.text] = notice if before is None else replace(before, videos=before.videos + notice.videos)
    return tuple(found.values())


@dataclass(frozen=True)
class Record:
    """The record of a finished shard.

    Attributes:
        number: number of the shard.
        entry: the shard's entry for dataset.json; None for the end of a group without a clip.
        seconds: total duration of its clips.
        rejected: the videos rejected since the group's previous record.
        next: (source, clip) with which the group's next shard begins; None after its last.
        notices: remarks about the videos whose first clip is in the shard.
    """

    number: int
    entry: ShardEntry | None
    seconds: float
    rejected: tuple[Rejected, ...]
    next: tuple[int, int] | None
    notices: tuple[Notice, ...] = ()


def totals(records: Iterable[Record]) -> tuple[int, int, int]:
    """Number of clips, bytes of tar, and number of rejected videos of some shards."""
    clips = size = rejected = 0
    for record in records:
        rejected += len(record.rejected)
        if record.entry is not None:
            clips += record.entry.clips
            size += record.entry.bytes
    return clips, size, rejected


def unfinished_text(fingerprint: str) -> bytes:
    """The content of unfinished.txt, by which all processes of a pack recognise that it is theirs."""
    return _UNFINISHED_TEXT.format(fingerprint).encode()


def read_claim(destination: str) -> str | None:
    """The fingerprint in unfinished.txt; "" if the file has none; None if there is no such file."""
    data = read_if_there(join(destination, UNFINISHED_FILE))
    if data is None:
        return None
    found = _FINGERPRINT.search(data[:1000])
    return found[1].decode() if found else ""


def read_if_there(path: str) -> bytes | None:
    """Read a file that other processes may write or remove at any moment; None if it does not exist.

    Raises:
        StreamvidError: it cannot be read.
    """
    for attempt in itertools.count(1):
        try:
            return filesystem.read_bytes(path)
        except StorageUnavailable:
            raise
        except (DatasetError, FileNotFoundError):
            if not filesystem.exists(path):
                return None
            if attempt == _ATTEMPTS:  # it exists and was not just being written, so it cannot be read
                raise
    raise AssertionError


class Journal:
    """The records of one pack at its destination.

    Args:
        destination: a folder or an object-store prefix.
        retry: for how long requests are repeated while the storage does not answer.
    """

    def __init__(self, destination: str, fingerprint: str, *, retry: Retry | None = None) -> None:
        self._destination = destination
        self._fingerprint = fingerprint
        self._retry = retry or Retry(0.0)

    def check(self) -> None:
        """Check that the destination still belongs to this pack. Called before each shard is written.

        Raises:
            FinishedElsewhereError: another process has finished this pack.
            InputError: another pack has taken over the destination.
        """
        holder = asked(self._destination, lambda: read_claim(self._destination), self._retry)
        if holder == self._fingerprint:
            return
        shown = redact(self._destination)
        if holder is None:
            if filesystem.exists(join(self._destination, FILE_NAME)):
                raise FinishedElsewhereError
            raise InputError(f"{shown}/{UNFINISHED_FILE} has been removed while we packed: pack again")
        other = differing_parts(holder, self._fingerprint)
        raise InputError(f"another pack to {shown} has taken the place of this one, with other {other}")

    def write(self, record: Record) -> None:
        """Write the record of a finished shard."""
        document = {"fingerprint": self._fingerprint, **asdict(record)}
        data = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        asked(self._destination, lambda: filesystem.write_bytes(self._path(record.number), data), self._retry)

    def upload(self, number: int, kind: str) -> Upload:
        """Begin or continue the multipart upload of a shard's file; a killed pack leaves it to the next one."""
        name = f"{number:08d}.{kind}"
        path = join(self._destination, PROGRESS_FOLDER, name + UPLOAD)
        url = join(self._destination, SHARD_FOLDER, name)
        return Upload(url, retry=self._retry, kept=_UploadFile(self, path, self._fingerprint, self._retry))

    def read(self) -> dict[int, Record]:
        """All records of this pack by shard number, without those of incomplete shards."""
        folder = join(self._destination, PROGRESS_FOLDER)
        names = [name for name in filesystem.list_details(folder) if _RECORD_FILE.fullmatch(name)]
        if not names:
            return {}
        shards = filesystem.list_details(join(self._destination, SHARD_FOLDER))

        def read(name: str) -> Record | None:
            return self._read(int(name[:8]), lambda file: shards.get(file.rpartition("/")[2]))

        return {record.number: record for record in map_in_threads(read, names) if record is not None}

    def read_group(self, group: Group, cursor: GroupCursor) -> tuple[list[Record], GroupCursor | None]:
        """The records of a group from a cursor on, and the cursor at which packing resumes; None if the group is
        finished."""
        found: dict[int, Record] = {}
        for number in range(group.first + cursor.part, group.first + group.names):
            record = self._read(number, lambda file: filesystem.details(join(self._destination, file)))
            if record is None:
                break
            found[number] = record
        return finished_records(group, found, cursor)

    def _read(self, number: int, details: Callable[[str], Details | None]) -> Record | None:
        """The record of a shard, if `details` of the shard's files show that it is complete."""
        data = read_if_there(self._path(number))
        record = None if data is None else _parse(data, number, self._fingerprint)
        if record is None or record.entry is None:
            return record
        return record if is_complete(record.entry, details) else None

    def _path(self, number: int) -> str:
        return join(self._destination, PROGRESS_FOLDER, f"{number:08d}.json")


@dataclass(frozen=True)
class _UploadFile:
    """A file in `progress/` with the id of an upload. Only uploads with such a file can be continued or aborted."""

    journal: Journal
    path: str
    fingerprint: str
    retry: Retry

    def read(self) -> str:
        data = asked(self.path, lambda: read_if_there(self.path), self.retry)
        return upload_id(data or b"", self.fingerprint)

    def write(self, upload_id: str) -> None:
        self.journal.check()
        data = json.dumps({"fingerprint": self.fingerprint, "upload_id": upload_id}).encode()
        asked(self.path, lambda: filesystem.write_bytes(self.path, data), self.retry)


def upload_id(data: bytes, fingerprint: str = "") -> str:
    """The upload id in the content of such a file; "" if there is none, or if it is of another pack than
    `fingerprint`."""
    try:
        document = json.loads(data)
        known = document["fingerprint"] == fingerprint or not fingerprint
        return str(document["upload_id"]) if known else ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def is_complete(entry: ShardEntry, details: Callable[[str], Details | None]) -> bool:
    """Whether all files of a shard exist, in the sizes of its entry, according to `details`."""
    there = {extension: details(entry.file(extension)) for extension in entry.checksums}
    return all(
        status is not None and status.size == entry.sizes.get(name, status.size) for name, status in there.items()
    )


def finished_records(
    group: Group, records: Mapping[int, Record], cursor: GroupCursor | None = None
) -> tuple[list[Record], GroupCursor | None]:
    """The consecutive records of a group, and the cursor at which packing resumes after them; None if the group is
    finished.

    Args:
        records: records by shard number.
        cursor: the cursor of the first record; default: the group's start.
    """
    found: list[Record] = []
    cursor = cursor or GroupCursor(group.start, 0, 0)
    for number in range(group.first + cursor.part, group.first + group.names):
        record = records.get(number)
        if record is None:
            break
        if record.next is not None and not (cursor.source, cursor.clip) < record.next < (group.stop, 0):
            break
        found.append(record)
        if record.next is None:
            return found, None
        cursor = GroupCursor(*record.next, cursor.part + 1)
    return found, cursor


def _parse(data: bytes, number: int, fingerprint: str) -> Record | None:
    """A record of this pack; None for any other file content."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["fingerprint"] != fingerprint or document["number"] != number:
            return None
        entry = document["entry"]
        if entry is not None and entry["name"] != f"{number:08d}":
            return None
        following = document["next"]
        return Record(
            number,
            None if entry is None else ShardEntry(**entry),
            float(document["seconds"]),
            tuple(Rejected(**fields) for fields in document["rejected"]),
            None if following is None else (int(following[0]), int(following[1])),
            tuple(Notice(**fields) for fields in document["notices"]),
        )
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return None
