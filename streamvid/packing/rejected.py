"""rejected.parquet: the videos that could not be packed, and why."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.packing.destination import REJECTED_FILE
from streamvid.packing.journal import Rejected
from streamvid.storage import filesystem
from streamvid.storage.arrow_buffers import arrow_reader
from streamvid.storage.url import join


def rejected_parquet(rejected: Sequence[Rejected]) -> bytes | None:
    """The content of rejected.parquet; None if no video was rejected."""
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
    """The rows of rejected.parquet; none if it is missing or unreadable, as it only informs."""
    path = join(destination, REJECTED_FILE)
    if not filesystem.exists(path):
        return []
    try:
        table = pq.read_table(arrow_reader(filesystem.read_bytes(path)), columns=["source", "reason"])
    except (pa.ArrowException, OSError, ValueError):
        return []
    return [Rejected(str(row["source"]), str(row["reason"])) for row in table.to_pylist()]
