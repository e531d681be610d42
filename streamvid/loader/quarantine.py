"""Bad clips of a run: the policy for them, their log, and the quarantine folder, from which a resumed run learns them.

Each rank appends to its own file and reads the files of all ranks. So ranks need not communicate, and a run may resume
on any number of ranks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import integer, is_integer, one_of
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.revisions import ended_by
from streamvid.errors import ClipError, DatasetError, InputError
from streamvid.plan.absent import AbsentRows
from streamvid.plan.world import World
from streamvid.storage.regular_file import open_file
from streamvid.storage.url import given_local_path, is_local, local_path, redact
from streamvid.text import format_count

log = logging.getLogger(__name__)

OnError = Literal["skip", "mask", "raise"]
ON_ERROR: Final[tuple[OnError, ...]] = ("skip", "mask", "raise")
FOLDER: Final = "quarantine"
_LEAST: Final = 10
_SHARE: Final = 100
"""By default a rank may find 10 bad clips, or one in a hundred if that is more."""
_SHOWN: Final = 1000
"""Most bad clips that `stats` lists."""
_MOST_BYTES: Final = 64 << 20
_MOST_LINE: Final = 16 << 10
"""Most bytes of a file, and of a line, that are read: other programs may have written there."""


@dataclass(frozen=True)
class ErrorPolicy:
    """What a run does when it finds a bad clip.

    Attributes:
        on_error: "skip", "mask" or "raise"; see `StreamLoader`.
        max_errors: most bad clips that a rank may find; None: 10, or 1 % of its clips if that is more.
        folder: the quarantine folder.
        run: the name of the run in the files: its lines in a rank's file, by all workers, count against `max_errors`.
    """

    on_error: OnError
    max_errors: int | None
    folder: Path
    run: str

    @classmethod
    def of(
        cls, on_error: OnError = "skip", max_errors: int | None = None, quarantine: str | os.PathLike[str] | None = None
    ) -> ErrorPolicy:
        """A policy from the user's options. Raises InputError if an option is invalid."""
        one_of(on_error, ON_ERROR, "on_error")
        if max_errors is not None:
            max_errors = integer(max_errors, "max_errors", least=0)
        try:
            absolute = Path(given_local_path(FOLDER if quarantine is None else quarantine, "quarantine"))
        except InputError:
            if quarantine is not None:
                raise
            absolute = Path(FOLDER)  # the working directory was removed: a warning says so if there is a bad clip
        if quarantine is not None and os.path.isfile(absolute):
            raise InputError(f"quarantine {absolute} is a file: name a folder")
        return cls(on_error, max_errors, absolute, secrets.token_hex(8))

    def but(
        self, on_error: OnError | None, max_errors: int | None, quarantine: str | os.PathLike[str] | None
    ) -> ErrorPolicy:
        """This policy with the given options replaced."""
        other = self.of(self.on_error if on_error is None else on_error, max_errors, quarantine)
        return replace(
            other,
            max_errors=self.max_errors if max_errors is None else other.max_errors,
            folder=self.folder if quarantine is None else other.folder,
        )

    def most(self, clips: int) -> int:
        """Most bad clips that a rank with `clips` clips may find."""
        return max(_LEAST, -(-clips // _SHARE)) if self.max_errors is None else self.max_errors


@dataclass(frozen=True)
class BadClip:
    """A clip that was found bad; fields as in `streamvid.ClipError`."""

    key: str
    row: int
    shard: str
    offset: int | None
    packet: int | None
    reason: str
    suspect: str


class Quarantine:
    """The bad clips of a dataset that this process knows. Thread-safe.

    Args:
        policy: what the run does on finding one.
        dataset: the dataset.
        excluded: int64 [rows], clips that the user excluded, or that are forgotten.
        clips: number of clips that all ranks share.
        world: rank and world size; set again when the loader settles its world.
    """

    def __init__(
        self,
        policy: ErrorPolicy,
        dataset: ClipSource,
        excluded: Int64,
        *,
        clips: int,
        world: World,
    ) -> None:
        self.policy, self._dataset, self._excluded = policy, dataset, excluded
        self._clips, self.world = clips, world
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._shards: Counter[str] = Counter()
        self._bad: list[BadClip] = []

    @property
    def found(self) -> int:
        """Number of bad clips that this process found."""
        return sum(self._shards.values())

    @property
    def bad(self) -> tuple[BadClip, ...]:
        """The first `_SHOWN` of these clips."""
        return tuple(self._bad)

    def absent(self) -> AbsentRows:
        """The rows that are not delivered from now on: excluded clips, and bad clips found by any rank."""
        if self.policy.on_error != "raise":
            with self._lock:
                before = len(self._known)
                self._known |= set(read_folder(self.policy.folder, self._dataset).tolist())
                if len(self._known) > before:
                    log.warning(
                        "%d clips of %s are in quarantine by the files in %s, and are left out",
                        len(self._known), redact(self._dataset.path), self.policy.folder,
                    )  # fmt: skip
        known = np.fromiter(self._known, dtype=np.int64, count=len(self._known))
        return AbsentRows(np.concatenate([self._excluded, known]))

    def add(self, error: ClipError) -> None:
        """Record a bad clip in the log, in `bad`, and in the rank's file; does nothing if it is known.

        Raises:
            DatasetError: more clips are bad than the policy allows; or the dataset was replaced by another, so that the
                clip is not at fault.
        """
        with self._lock:
            if error.row in self._known or error.row in read_folder(self.policy.folder, self._dataset):
                self._known.add(error.row)
                return
            if not self._shards[error.shard]:  # the first bad clip of any shard shows whether the dataset was replaced
                shard = int(self._dataset.clips.shard[error.row])
                if ended := ended_by(self._dataset.shard_files[shard].dataset, self._dataset.shards[shard]):
                    raise DatasetError(ended) from error
            self._known.add(error.row)
            self._shards[error.shard] += 1
            clip = BadClip(error.key, error.row, error.shard, error.offset, error.packet, error.reason, error.suspect)
            if len(self._bad) < _SHOWN:
                self._bad.append(clip)
            rank, most = self.world.rank, self.policy.most(-(-self._clips // self.world.size))
            file = self.policy.folder / f"{rank}.jsonl"
            self._write(file, clip, rank)
            noted = {row for row, run in read_file(file, self._dataset) if run == self.policy.run}
            count = max(self.found, len(noted))
            log.warning(
                "bad clip %d of at most %d on rank %d: %s; probably damaged: the %s (on_error=%r; %s)",
                count, most, rank, error, error.suspect, self.policy.on_error,
                f"noted in {file}" if error.row in noted else "not noted",
            )  # fmt: skip
            if count > most:
                (worst, many), *_ = self._shards.most_common(1)
                raise DatasetError(
                    f"{format_count(count, 'bad clip')} on rank {rank}, more than max_errors={most}; {many} in shard "
                    f"{worst}: check them with `streamvid verify --quarantine {file} {redact(self._dataset.path)}` and "
                    "restore or pack again what is damaged, or give a larger max_errors; a state saved now goes on "
                    "behind them"
                ) from error

    def _write(self, file: Path, clip: BadClip, rank: int) -> None:
        entry = self._dataset.shards[shard := int(self._dataset.clips.shard[clip.row])]
        line = {
            "dataset": redact(self._dataset.path),
            "packets_sha256": entry.packets_sha256,
            "number": clip.row - self._dataset.rows(shard).start,
            **asdict(clip),
            "files": None if entry.has_tar and clip.suspect == "source" else _signature(self._dataset, clip.row),
            # Of a file that is refused for where it lies: all others are as bad whatever may be read.
            "bounds": _bounds(self._dataset, shard) if "roots=" in clip.reason else None,
            "rank": rank,
            "run": self.policy.run,
            "time": _now(),
        }
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _append(file, (json.dumps(line) + "\n").encode("ascii"))
        except OSError as error:
            log.warning(
                "%s cannot be written (%s), a resumed run will meet clip %r again: give quarantine another folder",
                file, error.strerror, clip.key,
            )  # fmt: skip


def _append(file: Path, line: bytes) -> None:
    """Append a line in one write, which does not mix with other processes', and sync it to the disk."""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        # End an unfinished line of a killed process first.
        torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" + line if torn else line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(folder: Path, dataset: ClipSource) -> Int64:
    """int64 [rows], increasing: the clips of a dataset that the files of a quarantine folder name. Invalid lines, and
    lines of other datasets, are ignored."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".jsonl")
    except OSError:
        return np.empty(0, dtype=np.int64)
    return np.array(sorted({row for file in files for row, _ in read_file(file, dataset)}), dtype=np.int64)


def read_file(file: Path, dataset: ClipSource) -> Iterator[tuple[int, str]]:
    """The rows of a dataset that a quarantine file names, each with the name of the run that found the clip bad."""
    shards: dict[str, list[int]] = {}  # a Mix of a dataset with itself has several shards with one checksum
    for number, shard in enumerate(dataset.shards):
        shards.setdefault(shard.packets_sha256, []).append(number)
    for entry in _entries(file):
        yield from ((row, str(entry.get("run"))) for row in _rows(entry, dataset, shards))


def quarantined(manifest: Manifest, given: str | os.PathLike[str]) -> list[tuple[int, ...]]:
    """The clips of a dataset that a quarantine file names.

    Args:
        manifest: the dataset's.
        given: a file, or a quarantine folder with several.

    Returns:
        for each shard the clips' numbers in it, increasing.

    Raises:
        InputError: the file does not exist, or names no clip of the dataset.
    """
    file = Path(given_local_path(given, "quarantine"))
    if not file.exists():
        raise InputError(
            f"there is no {file}: name a run's quarantine, the folder or a file in it, such as quarantine/0.jsonl; it "
            "lies where the run was started, if that found a bad clip"
        )
    named: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(file.glob("*.jsonl")) if file.is_dir() else [file]:
        for line in _entries(path):
            if isinstance(line.get("packets_sha256"), str) and is_integer(line.get("number")):
                named.setdefault(line["packets_sha256"], []).append(line)
    rows = []
    times = Counter(shard.packets_sha256 for shard in manifest.shards)
    for shard in manifest.shards:
        lines = (line for line in named.get(shard.packets_sha256, ()) if _of_shard(line, shard))
        if times[shard.packets_sha256] > 1:  # as of clips that were encoded alike
            lines = (line for line in lines if line.get("shard") == shard.name)
        rows.append(tuple(sorted({line["number"] for line in lines if 0 <= line["number"] < shard.clips})))
    if not any(rows):
        raise InputError(
            f"{file} names no clip of this dataset: name the quarantine of a run over it, the folder or a file in it; "
            "clips that were repaired since do not count"
        )
    return rows


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a quarantine file that are JSON objects, unchecked."""
    for line in _lines(file):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def _of_shard(entry: Mapping[str, Any], shard: ShardEntry) -> bool:
    """Whether a line with the shard's checksum is about that shard. If a shard was rewritten to repair a clip from the
    same video, its indexes and so its checksum are the same as before: then the name decides."""
    return not shard.origin or entry.get("shard") == shard.name


def _rows(entry: dict[str, Any], dataset: ClipSource, shards: dict[str, list[int]]) -> Iterator[int]:
    """The rows of the clip that a line names, found by the checksum of its shard's indexes, its number there, and its
    key."""
    sha256, number, key = (entry.get(name) for name in ("packets_sha256", "number", "key"))
    if not (isinstance(sha256, str) and is_integer(number) and isinstance(key, str)):
        return
    for shard in shards.get(sha256, ()):
        if not _of_shard(entry, dataset.shards[shard]):
            continue
        rows = dataset.rows(shard)
        if 0 <= number < rows.stop - rows.start:
            # In a concatenated dataset, a key that two parts have is prefixed by the part's name.
            ours = dataset.key(row := rows.start + number)
            same = bool({ours, ours.partition("/")[2]} & {key, key.partition("/")[2] or key})
            # Files that have changed since then were restored or are other copies, so their clips may be good. So may
            # clips in place that lie where this run may read (`roots=`) and the earlier one might not.
            if (
                same
                and entry.get("files") in (None, _signature(dataset, row))
                and entry.get("bounds") in (None, _bounds(dataset, shard))
            ):
                yield row


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _signature(dataset: ClipSource, row: int) -> list[int] | None:
    """Sizes in bytes and modification times in ns of the local files with a clip and its frame index, -1 of a file that
    is missing or that this user may not read; None if they are remote."""

    def size_and_time(path: str) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if os.access(path, os.R_OK):
                return status.st_size, status.st_mtime_ns
        return -1, -1

    paths = (dataset.location(row), dataset.shard_path(int(dataset.clips.shard[row]), "packets"))
    return [value for path in paths if is_local(path) for value in size_and_time(local_path(path))] or None


def _bounds(dataset: ClipSource, shard: int) -> str:
    """A digest of where a shard's clips outside of its tar may lie, as `roots=` decides."""
    bounds = dataset.shard_files[shard].bounds
    allowed = [sorted(bounds.folders), sorted(bounds.hosts)]
    return hashlib.sha256(json.dumps(allowed).encode()).hexdigest()[:16]


def _lines(file: Path) -> list[bytes]:
    """The complete lines of a file, except lines that are too long."""
    try:
        with open(open_file(file), "rb") as opened:
            content = opened.read(_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):  # it could not be written either
        return []
    except OSError as error:
        log.warning("%s cannot be read (%s): bad clips that it names will be found again", file, error.strerror)
        return []
    return [line for line in content.split(b"\n")[:-1] if len(line) <= _MOST_LINE]
