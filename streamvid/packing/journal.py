"""What a pack has done so far, kept at the destination itself: a small record for every shard that is there.

A shard is committed in this order: tar, idx, parquet, then its record. Whoever packs a group writes its shards one
after the other, so its records are a chain that tells where the group goes on. Everything that is written follows
from the job alone: two processes that pack the same group write the same bytes over each other's.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from streamvid.dataset.manifest import FILE_NAME, SHARD_EXTENSIONS, SHARD_FOLDER, UNFINISHED_FILE, ShardEntry
from streamvid.errors import DatasetError, InputError
from streamvid.packing.job import Place, differences
from streamvid.packing.partition import Group
from streamvid.storage import filesystem

PROGRESS_FOLDER: Final = "progress"
_RECORD_FILE: Final = re.compile(r"[0-9]{8}\.json")
_THREADS: Final = 32
_ATTEMPTS: Final = 5
_UNFINISHED_TEXT: Final = (
    "streamvid pack has not finished here. The same command again goes on where it was.\nfingerprint: {}\n"
)
_FINGERPRINT: Final = re.compile(rb"^fingerprint: ([0-9a-f-]{16,200})$", re.MULTILINE)


class FinishedElsewhereError(Exception):
    """Another process has finished the same pack."""


@dataclass(frozen=True)
class Rejected:
    """A video that was left out, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class Record:
    """What is known once a shard is there.

    Attributes:
        number: the shard's.
        entry: what dataset.json will say of it; None if a group ends without a clip.
        seconds: duration of its clips.
        rejected: the videos left out since the group's last record.
        next: the number of the source, and of its clip, that the group's next shard begins with; None at its end.
    """

    number: int
    entry: ShardEntry | None
    seconds: float
    rejected: tuple[Rejected, ...]
    next: tuple[int, int] | None


def unfinished_text(fingerprint: str) -> bytes:
    """unfinished.txt of a pack: always the same, so that whoever belongs to the pack knows it."""
    return _UNFINISHED_TEXT.format(fingerprint).encode()


def claimed(destination: str) -> str | None:
    """The fingerprint of the pack that unfinished.txt tells of; "" if it tells of none; None without that file."""
    data = read_if_there(filesystem.join(destination, UNFINISHED_FILE))
    if data is None:
        return None
    found = _FINGERPRINT.search(data[:1000])
    return found[1].decode() if found else ""


def read_if_there(path: str) -> bytes | None:
    """A file that other processes may write or remove at any moment; None if there is none.

    Raises:
        StreamvidError: it cannot be read.
    """
    for attempt in itertools.count(1):
        try:
            return filesystem.read_bytes(path)
        except filesystem.StorageUnavailable:
            raise
        except (DatasetError, FileNotFoundError):
            if not filesystem.exists(path):
                return None
            if attempt == _ATTEMPTS:  # it has not just come: it cannot be read
                raise
    raise AssertionError


class Journal:
    """The records of one pack at its destination.

    Args:
        destination: a folder or an object-store prefix.
        fingerprint: the job's.
    """

    def __init__(self, destination: str, fingerprint: str) -> None:
        self._destination = destination
        self._fingerprint = fingerprint

    def check(self) -> None:
        """Make sure that the destination is still this pack's: asked for before each shard is put there.

        Raises:
            FinishedElsewhereError: another process has finished this pack.
            InputError: another pack has taken its place.
        """
        holder = claimed(self._destination)
        if holder == self._fingerprint:
            return
        shown = filesystem.redact(self._destination)
        if holder is None:
            if filesystem.exists(filesystem.join(self._destination, FILE_NAME)):
                raise FinishedElsewhereError
            raise InputError(f"{shown}/{UNFINISHED_FILE} has been removed while we packed: pack again")
        other = differences(holder, self._fingerprint)
        raise InputError(f"another pack to {shown} has taken the place of this one, with other {other}")

    def write(self, record: Record) -> None:
        """Note that a shard is there."""
        document = {"fingerprint": self._fingerprint, **asdict(record)}
        data = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        filesystem.write_bytes(self._path(record.number), data)

    def read(self) -> dict[int, Record]:
        """All records of this pack whose shards are there, by number. Records of other packs are passed over."""
        folder = filesystem.join(self._destination, PROGRESS_FOLDER)
        names = [name for name in filesystem.list_details(folder) if _RECORD_FILE.fullmatch(name)]
        if not names:
            return {}
        shards = filesystem.list_details(filesystem.join(self._destination, SHARD_FOLDER))

        def is_there(entry: ShardEntry) -> bool:
            files = [shards.get(f"{entry.name}.{extension}") for extension in SHARD_EXTENSIONS]
            return files[0] is not None and files[0].size == entry.bytes and None not in files

        def one(name: str) -> Record | None:
            data = read_if_there(filesystem.join(folder, name))
            return None if data is None else _parse(data, int(name[:8]), self._fingerprint)

        with ThreadPoolExecutor(min(_THREADS, len(names))) as threads:
            records = [one(names[0]), *threads.map(one, names[1:])]
        return {r.number: r for r in records if r is not None and (r.entry is None or is_there(r.entry))}

    def read_on(self, group: Group, place: Place) -> tuple[list[Record], Place | None]:
        """The records of one group from a place on, and where it goes on after them; None if it is done."""
        found: dict[int, Record] = {}
        for number in range(group.first + place.part, group.first + group.names):
            data = read_if_there(self._path(number))
            if data is None:
                break
            record = _parse(data, number, self._fingerprint)
            if record is None or (record.entry is not None and not self._is_there(record.entry)):
                break
            found[number] = record
        return chain(group, found, place)

    def _is_there(self, entry: ShardEntry) -> bool:
        files = [filesystem.details(filesystem.join(self._destination, entry.file(kind))) for kind in SHARD_EXTENSIONS]
        return files[0] is not None and files[0].size == entry.bytes and None not in files

    def _path(self, number: int) -> str:
        return filesystem.join(self._destination, PROGRESS_FOLDER, f"{number:08d}.json")


def chain(group: Group, records: Mapping[int, Record], place: Place | None = None) -> tuple[list[Record], Place | None]:
    """The records of a group, as far as they follow one another, and where it goes on; None if it is done.

    Args:
        group: which.
        records: by number.
        place: where to begin; the group's start by default.
    """
    found: list[Record] = []
    place = place or Place(group.start, 0, 0)
    for number in range(group.first + place.part, group.first + group.names):
        record = records.get(number)
        if record is None or (record.next is not None and not _follows(place, record.next, group)):
            break
        found.append(record)
        if record.next is None:
            return found, None
        place = Place(*record.next, place.part + 1)
    return found, place


def _follows(place: Place, where: tuple[int, int], group: Group) -> bool:
    return (place.source, place.clip) < where and where[0] < group.stop


def _parse(data: bytes, number: int, fingerprint: str) -> Record | None:
    """A record of this pack, or None for anything else that may lie there."""
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
            tuple(Rejected(**one) for one in document["rejected"]),
            None if following is None else (int(following[0]), int(following[1])),
        )
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
