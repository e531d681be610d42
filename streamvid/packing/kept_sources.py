"""The sources with which a pack began, kept at its destination until it ends.

Videos may come into a folder, change or go while it is packed. A pack that was killed goes on with the sources with
which it began, so that its finished shards count: new videos can be added when it has ended, and one that has changed
is rejected like one that changes while a pack runs. The file is Parquet, as the reading of that is bounded.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.errors import InputError
from streamvid.packing.journal import PROGRESS_FOLDER, SOURCES_FILE, Record, read_if_there
from streamvid.packing.partition import Group, GroupCursor
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.url import is_local, join, local_path, redact, unsigned
from streamvid.text import format_count

log = logging.getLogger(__name__)

_FIELDS: Final = {
    "name": str,
    "key": str,
    "label": int | str | None,
    "size": int,
    "mark": str,
    "part": tuple | None,
    "file_bytes": int,
    "problem": str,
}
"""The fields of a source that are kept, besides its path, and their types."""
_ROWS: Final = 1 << 16
"""Sources per row group, to bound the memory that writing takes."""
_MOST_BYTES: Final = 8 << 30
"""Most bytes of memory that the sources' JSON may take: that of some twenty million."""


def resume_sources(
    kept: Sequence[SourceVideo], found: Sequence[SourceVideo]
) -> tuple[list[SourceVideo], frozenset[str]]:
    """The sources of `read_kept_sources`, with the places, rows and cuts that they have now.

    Args:
        found: the sources that the pack would have if it began now.

    Returns:
        The sources in order, and the names of those that have changed since, or are gone.
    """
    now, resumed, stale = {source.name: source for source in found}, [], []
    for source in kept:
        same = now.pop(source.name, None)
        if same is None or _version(same) != _version(source):
            stale.append(source.name)
        resumed.append(source if same is None else replace(same, **_kept(source)))
    if now or stale:
        log.warning(
            "the pack goes on with the %s with which it began: %d that came since are left out, and %d have changed or "
            "are gone; when it has ended, add what it lacks (pack --append, index --update)",
            format_count(len(resumed), "video"), len(now), len(stale),
        )  # fmt: skip
    return resumed, frozenset(stale)


def _kept(source: SourceVideo) -> dict[str, Any]:
    return {name: getattr(source, name) for name in _FIELDS}


def _version(source: SourceVideo) -> tuple[object, ...]:
    return source.part, source.file_bytes or source.size, source.mark, source.problem


def inputs_digest(inputs: Iterable[str]) -> str:
    """SHA-256 of the absolute paths of a pack's inputs, and of their URLs without signatures: 16 hexadecimal digits."""
    paths = [os.path.abspath(local_path(path)) if is_local(path) else unsigned(path) for path in inputs]
    return hashlib.sha256(json.dumps(paths).encode()).hexdigest()[:16]


def keep_sources(destination: str, inputs: str, sources: Sequence[SourceVideo], classes: Sequence[str] | None) -> None:
    """Write the sources of a pack that begins.

    Args:
        destination: its destination, which it has claimed.
        inputs: their `inputs_digest`.
        sources: with class numbers as labels.
        classes: the names of the classes, if they have any.
    """
    schema = pa.schema({"source": pa.string()})
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for start in range(0, len(sources), _ROWS):
            texts = [_text(source, classes) for source in sources[start : start + _ROWS]]
            writer.write_table(pa.table({"source": texts}, schema))
    filesystem.write_bytes(_path(destination, inputs), buffer.getvalue())


def _path(destination: str, inputs: str) -> str:
    return join(destination, PROGRESS_FOLDER, SOURCES_FILE.format(inputs))


def _text(source: SourceVideo, classes: Sequence[str] | None) -> str:
    """The kept fields of a source as JSON, which also takes names that are not UTF-8; without the secrets of URLs."""
    label = source.label if classes is None or not isinstance(source.label, int) else classes[source.label]
    path = source.path if is_local(source.path) or redact(source.path) == source.path else ""
    return json.dumps({**_kept(source), "label": label, "path": path})


def read_kept_sources(destination: str, inputs: str) -> list[SourceVideo] | None:
    """The sources with which the unfinished pack at a destination began, in order, without their rows and cuts; labels
    are names of classes, or numbers. None if it had other inputs, or if there is no such file, or it is damaged."""
    data = read_if_there(_path(destination, inputs))
    try:
        return [*map(_parse, read_parquet(data or b"", least=_MOST_BYTES)["source"].to_pylist())]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _parse(text: str) -> SourceVideo:
    fields: dict[str, Any] = json.loads(text)
    part = fields["part"]
    if part is not None:
        first, size = part
        fields["part"] = int(first), int(size)
    if not all(isinstance(fields[name], kind) for name, kind in _FIELDS.items()):
        raise TypeError("a field of another type")
    return SourceVideo(str(fields["path"]), **{name: fields[name] for name in _FIELDS})


def check_packed(
    group: Group,
    records: Sequence[Record],
    cursor: GroupCursor | None,
    sources: Sequence[SourceVideo],
    stale: Collection[str],
) -> None:
    """Check that no video that has changed, or is gone, has clips in a group's finished shards.

    Args:
        group: a group of `sources`.
        records, cursor: its finished shards, as `streamvid.packing.journal.finished_records` returns them.
        stale: names of the videos that have changed or are gone.

    Raises:
        InputError: one has.
    """
    stop = group.stop if cursor is None else cursor.source + (cursor.clip > 0)
    rejected = {video.source for record in records for video in record.rejected}
    for source in sources[group.start : stop]:
        if source.name in stale and source.name not in rejected:
            raise InputError(
                f"{source.name} has changed, or is gone, since the pack that was broken off packed it: put it back as "
                "it was, or start anew (--overwrite)"
            )
