"""What `pack` did: for its caller, for rejected.parquet and for pack-report.json."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.packing.destination import REJECTED_FILE
from streamvid.packing.job import plain
from streamvid.packing.journal import Rejected
from streamvid.packing.labels import Join
from streamvid.storage import filesystem
from streamvid.storage.arrow_buffers import arrow_reader

_REASONS: Final = 50
"""Reasons that pack-report.json counts one by one, the most frequent first."""


@dataclass(frozen=True)
class PackReport:
    """What `pack` did.

    Attributes:
        destination: where the dataset is.
        manifest: what dataset.json says.
        rejected: the videos left out, in the order of the sources.
        unlabelled: videos without a label, if any had one; else 0.
        elapsed: seconds it took.
        videos: that were to be packed, without those skipped.
        skipped: videos that are in the dataset that was appended to already.
        clips, bytes: added to the dataset, bytes of tar.
        resumed: clips of these that an earlier run of the same pack had left.
        was_there: the same pack had been finished before, and nothing was done.
        joins: how the rows of each list of labels or metadata met the videos.
    """

    destination: str
    manifest: Manifest
    rejected: tuple[Rejected, ...]
    unlabelled: int
    elapsed: float
    videos: int = 0
    skipped: int = 0
    clips: int = 0
    bytes: int = 0
    resumed: int = 0
    was_there: bool = False
    joins: tuple[Join, ...] = ()


def report_document(
    added: Sequence[ShardEntry],
    rejected: Sequence[Rejected],
    *,
    videos: int,
    skipped: int,
    unlabelled: int,
    seconds: float,
    revision: int,
    options: Mapping[str, object],
    versions: Mapping[str, str],
    joins: Sequence[Join] = (),
) -> dict[str, Any]:
    """What pack-report.json says of a pack besides its fingerprint. No times: the same pack gives the same report."""
    reasons = Counter(one.reason for one in rejected).most_common()
    return {
        "revision": revision,
        "videos": videos,
        "skipped": skipped,
        "unlabelled": unlabelled,
        "clips": sum(entry.clips for entry in added),
        "frames": sum(entry.frames for entry in added),
        "seconds": seconds,
        "shards": len(added),
        "bytes": sum(entry.bytes for entry in added),
        "rejected": len(rejected),
        "reasons": [{"reason": reason, "videos": count} for reason, count in reasons[:_REASONS]],
        "other_reasons": sum(count for _, count in reasons[_REASONS:]),
        # Without the folder: the same list elsewhere makes the same dataset.
        "lists": [
            {
                "name": join.path.rpartition("/")[2],
                "rows": join.rows,
                "videos": join.joined,
                "missing": join.missing,
                "surplus": join.surplus,
            }
            for join in joins
        ],
        "options": plain(options),
        "versions": dict(versions),
    }


def rejected_parquet(rejected: Sequence[Rejected]) -> bytes | None:
    """rejected.parquet; None if there is nothing to tell."""
    if not rejected:
        return None
    table = pa.table(
        {"source": [r.source for r in rejected], "reason": [r.reason for r in rejected]},
        schema=pa.schema([("source", pa.string()), ("reason", pa.string())]),
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def read_rejected(destination: str) -> list[Rejected]:
    """The rows of rejected.parquet; none if there is none, or nothing that can be read."""
    path = filesystem.join(destination, REJECTED_FILE)
    if not filesystem.exists(path):
        return []
    try:
        table = pq.read_table(arrow_reader(filesystem.read_bytes(path)), columns=["source", "reason"])
    except (pa.ArrowException, OSError, ValueError):
        return []
    return [Rejected(str(row["source"]), str(row["reason"])) for row in table.to_pylist()]
