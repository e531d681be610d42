"""Cut lists: which clips to cut out of which videos, with their labels and other columns."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.checks import is_real
from streamvid.errors import InputError
from streamvid.packing.frame_spans import need_scenedetect
from streamvid.packing.labels import match_videos
from streamvid.packing.lists import TEXT_COLUMNS, raw_labels, read_list, video_column
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import Cut, CutUnit, FixedLength, PackOptions, Scenes
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.url import redact

COLUMNS: Final = pa.schema(
    [("start", pa.float64()), ("end", pa.float64()), ("start_frame", pa.int64()), ("end_frame", pa.int64())]
)
"""Metadata columns with the place of a clip in its video. A cut list has the first two or the last two."""
_PAIRS: Final[tuple[tuple[CutUnit, str, str], ...]] = (
    ("seconds", "start", "end"),
    ("frames", "start_frame", "end_frame"),
)
_CLOCK: Final = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d*)?)")


def attach_cuts(sources: Sequence[SourceVideo], path: str, lists: MetadataLists) -> tuple[list[SourceVideo], int]:
    """Add the cuts of a list to the sources, and drop the sources without any.

    Args:
        path: a .csv, .jsonl or .parquet with a column `path` (or `video`, or `key`) that names videos as
            `streamvid.packing.labels.attach_labels` takes them, and columns `start` and `end` in seconds (or as
            h:m:s) after the first frame, or `start_frame` and `end_frame`, numbered from 0. The end is exclusive; an
            empty one is the end of the video. A column `label` labels the clips; all others become metadata.

    Returns:
        The sources that have cuts, in the order given, and how many have none.

    Raises:
        InputError: the list cannot be read or lacks these columns, or a row matches no video or several, or its start
            is missing, negative, or not before its end.
    """
    shown = redact(path)
    parsed = read_list(path)
    table = parsed.table
    column, cells = video_column(table, TEXT_COLUMNS, shown)
    if not cells:
        raise InputError(f"{shown} lists no cuts: add rows to it")
    unit, start_column, end_column = _columns(table, shown)
    starts = _numbers(table[start_column], start_column, unit, shown)
    ends = _numbers(table[end_column], end_column, unit, shown)
    labels = raw_labels(table, shown) if "label" in table.schema.names else [None] * len(cells)
    matches = match_videos(sources, column, cells, path)
    first_row = lists.add(parsed, (column, start_column, end_column, "label", "key"), shown)
    cuts: dict[int, list[Cut]] = defaultdict(list)
    for row, (video, start, end) in enumerate(zip(matches.tolist(), starts, ends, strict=True)):
        where = f"row {row + 1} of {shown}"
        if start is None:
            raise InputError(f"{where} has nothing in the column {start_column!r}: fill it in or drop the row")
        if end is not None and end <= start:
            raise InputError(f"{where} cuts from {start:g} to {end:g} ({unit}): the end must come after the start")
        if video >= 0:
            cuts[video].append(Cut(start, end, unit, labels[row], (first_row + row,)))
    unmatched = np.flatnonzero(matches < 0)
    if len(unmatched):
        others = f" and {len(unmatched) - 1} more" if len(unmatched) > 1 else ""
        raise InputError(
            f"{shown} cuts {cells[unmatched[0]][:200]!r}{others}, not among the {len(sources)} videos: "
            "correct the paths or drop the rows"
        )
    for own in cuts.values():
        own.sort(key=lambda cut: (cut.start, math.inf if cut.end is None else cut.end))
    found = [replace(source, cuts=tuple(cuts[i])) for i, source in enumerate(sources) if i in cuts]
    return found, len(sources) - len(found)


def check_cutting(options: PackOptions, *, listed: bool) -> None:
    """Check the options that cut videos.

    Raises:
        InputError: two ways of cutting at once, a length that is not positive, or scenes without PySceneDetect.
    """
    rule = options.cutting
    if rule is not None and listed:
        raise InputError("videos are cut by a list or by a rule: leave out --cuts, or --clip and --scenes")
    if rule is None and not listed and options.exact_cuts:
        raise InputError("exact cuts without cuts: give --clip, --scenes or --cuts, or leave out --exact-cuts")
    if isinstance(rule, FixedLength):
        if not (is_real(rule.length) and rule.length > 0):
            raise InputError(f"clips of {rule.length} {rule.unit}: give a positive number")
        if rule.unit == "frames" and rule.length != int(rule.length):
            raise InputError(f"clips of {float(rule.length):g} frames: give a whole number of them")
    if isinstance(rule, Scenes):
        if not (is_real(rule.min_length) and rule.min_length >= 0):
            raise InputError(f"a shortest scene of {rule.min_length} s: give 0 or more")
        need_scenedetect()


def _columns(table: pa.Table, shown: str) -> tuple[CutUnit, str, str]:
    names = table.schema.names
    there = [pair for pair in _PAIRS if pair[1] in names or pair[2] in names]
    if len(there) > 1:
        raise InputError(f"{shown} has cuts both in seconds and in frames: drop 'start' and 'end', or the others")
    if not there or not (there[0][1] in names and there[0][2] in names):
        raise InputError(
            f"{shown} has no columns 'start' and 'end' (seconds), nor 'start_frame' and 'end_frame', but "
            f"{', '.join(names)}: name them so"
        )
    return there[0]


def _numbers(column: pa.ChunkedArray, name: str, unit: CutUnit, shown: str) -> list[float | None]:
    values: list[float | None] = []
    for row, cell in enumerate(column.to_pylist()):
        value = _number(cell)
        if value is not None and not (
            math.isfinite(value) and value >= 0 and (unit == "seconds" or value == int(value))
        ):
            wanted = "seconds from 0, such as 12.5, or h:m:s" if unit == "seconds" else "a frame number, 0 or more"
            raise InputError(f"row {row + 1} of {shown} has {str(cell)[:50]!r} in the column {name!r}: write {wanted}")
        values.append(int(value) if value is not None and unit == "frames" else value)
    return values


def _number(cell: Any) -> float | None:
    """A number, or h:m:s in seconds; None if the cell is empty, NaN if it is something else."""
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return None  # pandas writes NaN into empty cells
    if isinstance(cell, str):
        found = _CLOCK.fullmatch(cell.strip())
        if found is None:
            return math.nan
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds
    try:
        return math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan
