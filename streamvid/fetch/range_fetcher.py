"""Byte ranges of shards → bytes, by DALI's WebDataset reader over an index written for just these ranges.

A read pipeline is CPU-only and cheap to build (about a millisecond), so one is made for every chunk of the plan and
thrown away: no state of a reader outlives a chunk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import DatasetError

TAR_BLOCK: Final = 512
"""DALI accepts only offsets that are a multiple of this."""


@dataclass(frozen=True)
class ByteRange:
    """UInt8 [start, end) of a local file."""

    path: str
    start: int
    end: int


def read(ranges: Sequence[ByteRange]) -> list[UInt8]:
    """Read ranges of shards, each file from front to back.

    Args:
        ranges: in any order, from any number of files.

    Returns:
        The bytes of each range, uint8, in the order asked for.

    Raises:
        DatasetError: a file is missing or shorter than a range needs.
    """
    if not ranges:
        return []
    by_file: dict[str, list[int]] = {}
    for number in sorted(range(len(ranges)), key=lambda n: (ranges[n].path, ranges[n].start)):
        by_file.setdefault(ranges[number].path, []).append(number)
    order = [number for numbers in by_file.values() for number in numbers]
    with tempfile.TemporaryDirectory(prefix="streamvid-index-") as folder:
        indexes = [
            _write_index(Path(folder) / f"{n}.idx", [ranges[i] for i in numbers])
            for n, numbers in enumerate(by_file.values())
        ]
        blocks = _run(list(by_file), indexes, len(ranges))
    result: list[UInt8] = [np.empty(0, dtype=np.uint8)] * len(ranges)
    for number, block in zip(order, blocks, strict=True):
        wanted = ranges[number]
        result[number] = block[wanted.start % TAR_BLOCK :]
        if len(result[number]) != wanted.end - wanted.start:
            raise DatasetError(
                f"{wanted.path} gave {len(result[number])} bytes where {wanted.end - wanted.start} were asked for"
            )
    return result


def _write_index(path: Path, ranges: Sequence[ByteRange]) -> str:
    """An index in DALI's format v1.2 with one component, named `b`, per range."""
    lines = [f"v1.2 {len(ranges)}"]
    for one in ranges:
        start = one.start // TAR_BLOCK * TAR_BLOCK
        lines.append(f"b {start} {one.end - start} range")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _run(paths: list[str], indexes: list[str], count: int) -> list[UInt8]:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def reader() -> object:
        # Without mmap: a shard that shrinks while it is read raises instead of killing the process with SIGBUS.
        return fn.readers.webdataset(
            paths=paths,
            index_paths=indexes,
            ext=["b"],
            dont_use_mmap=True,
            missing_component_behavior="error",
            prefetch_queue_depth=1,
        )

    try:
        pipe = reader()
        pipe.build()
        (blocks,) = pipe.run()
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        raise DatasetError(
            f"a shard cannot be read ({reason}): check it with `streamvid verify`, then copy it again"
        ) from error
    return [np.array(blocks.at(i)) for i in range(count)]
