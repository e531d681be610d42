"""Lists of cuts: which clips to cut out of which videos, and what comes with them."""

from __future__ import annotations

import math
import posixpath
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamvid.errors import InputError
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.labels import Finder
from streamvid.packing.lists import TEXT_COLUMNS, meta_columns, other_columns, raw_labels, read_table, video_column
from streamvid.packing.options import Cut, FixedLength, PackOptions, Scenes, Unit
from streamvid.packing.scenes import need_scenedetect
from streamvid.storage import filesystem

COLUMNS: Final = pa.schema(
    [("start", pa.float64()), ("end", pa.float64()), ("start_frame", pa.int64()), ("end_frame", pa.int64())]
)
"""What a clip's metadata say of where it was cut out; a list of cuts has the first two or the last two."""
_PAIRS: Final[tuple[tuple[Unit, str, str], ...]] = (("seconds", "start", "end"), ("frames", "start_frame", "end_frame"))
_CLOCK: Final = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d*)?)")


def attach_cuts(sources: Sequence[SourceVideo], path: str) -> tuple[list[SourceVideo], int]:
    """Give the sources the cuts of a list, and leave out those without one.

    Args:
        sources: what is packed.
        path: a .csv, .jsonl or .parquet with a column `path` (or `video`, or `key`) that names videos as
            `streamvid.packing.labels.attach_labels` takes them, and columns `start` and `end` in seconds (or as
            h:m:s) from the first frame, or `start_frame` and `end_frame`, counted from 0. The end is not part of the
            clip; where it is empty, it is that of the video. A column `label` labels the clips; all others are stored
            with them.

    Returns:
        The sources that have cuts, in the order given, and how many have none.

    Raises:
        InputError: the list cannot be read or has no such columns, or a row names no video or more than one, or is no
            cut: its start is missing, negative, or not before its end.
    """
    shown = filesystem.redact(path)
    table = read_table(path)
    column, cells = video_column(table, TEXT_COLUMNS, shown)
    if not cells:
        raise InputError(f"{shown} lists no cuts: add rows to it")
    unit, start_column, end_column = _columns(table, shown)
    starts = _numbers(table[start_column], start_column, unit, shown)
    ends = _numbers(table[end_column], end_column, unit, shown)
    labels = raw_labels(table, shown) if "label" in table.schema.names else [None] * len(cells)
    metas = other_columns(table, (column, start_column, end_column, "label", "key"), shown)
    find = Finder(sources, posixpath.dirname(path))
    cuts: dict[int, list[Cut]] = defaultdict(list)
    strangers: list[str] = []
    for row, (cell, start, end) in enumerate(zip(cells, starts, ends, strict=True)):
        where = f"row {row + 1} of {shown}"
        if start is None:
            raise InputError(f"{where} has nothing in the column {start_column!r}: fill it in or drop the row")
        if end is not None and end <= start:
            raise InputError(f"{where} cuts from {start:g} to {end:g} ({unit}): the end must come after the start")
        matches = find.by_key(cell) if column == "key" else find.by_path(cell)
        if len(matches) > 1:
            names = " and ".join(sources[i].name for i in matches[:2])
            raise InputError(f"{cell[:200]!r} in {shown} may be {names}: write the path below the packed folder")
        if matches:
            cuts[matches[0]].append(Cut(start, end, unit, labels[row], metas[row]))
        else:
            strangers.append(cell)
    if strangers:
        others = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise InputError(
            f"{shown} cuts {strangers[0][:200]!r}{others}, not among the {len(sources)} videos: "
            "correct the paths or drop the rows"
        )
    found = [replace(source, cuts=tuple(sorted(cuts[i], key=_place))) for i, source in enumerate(sources) if i in cuts]
    return found, len(sources) - len(found)


def _place(cut: Cut) -> tuple[float, float]:
    return cut.start, math.inf if cut.end is None else cut.end


def check_cutting(treatment: PackOptions, *, listed: bool) -> None:
    """Make sure that videos can be cut as they are to be.

    Args:
        treatment: of the videos.
        listed: there is a list of cuts.

    Raises:
        InputError: two ways of cutting at once, a length or shortest scene that makes no sense, or PySceneDetect is
            wanted and not installed.
    """
    rule = treatment.cutting
    if rule is not None and listed:
        raise InputError("videos are cut by a list or by a rule: leave out --cuts, or --clip and --scenes")
    if rule is None and not listed and treatment.exact:
        raise InputError("exact cuts without cuts: give --clip, --scenes or --cuts, or leave out --exact-cuts")
    if isinstance(rule, FixedLength):
        if not (math.isfinite(rule.length) and rule.length > 0):
            raise InputError(f"clips of {rule.length:g} {rule.unit}: give a positive length")
        if rule.unit == "frames" and rule.length != int(rule.length):
            raise InputError(f"clips of {rule.length:g} frames: give a whole number of them")
    if isinstance(rule, Scenes):
        if not (math.isfinite(rule.shortest) and rule.shortest >= 0):
            raise InputError(f"a shortest scene of {rule.shortest:g} s: give 0 or more")
        need_scenedetect()


def cut_columns(lists: Sequence[str], cuts: str | None) -> pa.Schema:
    """The columns of metadata of a pack that cuts videos, with their types.

    Args:
        lists: all other lists that columns come from.
        cuts: the list of cuts, if there is one.

    Raises:
        InputError: another list has a column that says where a clip was cut out.
    """
    for taken in meta_columns(lists).names:
        if taken in COLUMNS.names:
            raise InputError(f"a list has a column {taken!r}, which says where a clip was cut out: rename it")
    return meta_columns([*lists, *([] if cuts is None else [cuts])], own=COLUMNS)


def _columns(table: pa.Table, shown: str) -> tuple[Unit, str, str]:
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


def _numbers(column: pa.ChunkedArray, name: str, unit: Unit, shown: str) -> list[float | None]:
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
    """A number, or a time of day as a number of seconds; NaN if it is neither, None if there is nothing."""
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return None  # pandas writes NaN where there is nothing
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
