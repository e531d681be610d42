"""`streamvid ls`, `extract` and `diff`: the clips of a dataset one by one."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from streamvid.cli.output import FAILED, Commands, add_command, call, common, console, open_dataset, print_some
from streamvid.errors import InputError
from streamvid.text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    columns = "key, mp4_size (bytes), seconds, frames, fps, width, height, codec, and class or label"
    chosen = common("dataset where keys roots revision")
    add_command(commands, "ls", _ls, "list the clips of a dataset", chosen | {
        "--columns NAME,…": f"default: {columns}",
        "--limit N": "at most N clips",
        "--json": "a JSON object per line",
    }, description="List the clips of a dataset, a line each, with tabs between the columns.")  # fmt: skip
    what = "write clips as MP4 files, with their metadata as JSON beside them"
    add_command(commands, "extract", _extract, what, chosen | {
        "folder FOLDER": "folder for KEY.mp4 and KEY.json; end a new one with / to extract all clips",
        "key KEY": "key of a clip; default: all clips",
        "--overwrite": "replace existing files",
        "--workers N": "clips read at the same time; default 8",
    }, {"key": {"nargs": "*", "default": ()}})  # fmt: skip
    add_command(commands, "diff", _diff, "compare two datasets by key; exit code 1 if they differ", {
        "first DATASET": "folder or URL",
        "second OTHER": "folder or URL; default: the same dataset, in another revision",
        "--revision N...": "revision of the first dataset, then of the second; default: the newest",
        **common("json roots"),
    }, {"second": {"nargs": "?"}})  # fmt: skip


def _ls(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.listing import list_clips

    columns = None if arguments.columns is None else [name.strip() for name in arguments.columns.split(",")]
    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    tables = call(list_clips, arguments, dataset=dataset, columns=columns)
    number = -1
    for number, table in enumerate(tables):
        if not number and not arguments.json and sys.stdout.isatty():
            print("\t".join(map(printable, table.column_names)))
        print("\n".join(_json_lines(table) if arguments.json else _tab_lines(table)), flush=True)
    if number < 0:
        _warn_of_none(arguments, "listed")
    return 0


def _warn_of_none(arguments: argparse.Namespace, done: str) -> None:
    chosen = arguments.where is not None or arguments.keys is not None
    log.warning(
        "no clip is %s: %s",
        done,
        "widen --where or --keys" if chosen else "the dataset has none, or all are forgotten",
    )


def _json_lines(table: pa.Table) -> list[str]:
    from streamvid.packing.typed_columns import dump_json, json_value

    return [dump_json(json_value(row)) for row in table.to_pylist()]


def _tab_lines(table: pa.Table) -> list[str]:
    """A line for each row. Control characters, tabs and line ends in texts are replaced."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = []
    for column in table.columns:
        if pa.types.is_nested(column.type):
            from streamvid.packing.typed_columns import dump_json, json_value

            texts: Any = pa.chunked_array([pa.array([dump_json(json_value(value)) for value in column.to_pylist()])])
        else:
            texts = pc.round(column, 6) if pa.types.is_floating(column.type) else column
        cells.append(pc.fill_null(pc.cast(texts, pa.large_string()), ""))
    lines = pc.binary_join_element_wise(*map(_printable, cells), pa.scalar("\t", pa.large_string()))
    return [str(line) for line in lines.to_pylist()]


def _printable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    odd = pc.match_substring_regex(texts, r"[^\x20-\x7e]")
    if not pc.any(odd).as_py():
        return texts
    return pa.chunked_array([pa.array([printable(str(text)) for text in texts.to_pylist()], pa.large_string())])


def _extract(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.extract import extract

    if arguments.key and arguments.keys is not None:
        raise InputError("keys are given one by one, or in a file: leave out --keys, or KEY")
    if any("/" in key for key in arguments.key):
        raise InputError("a key has no slash: the folder comes before keys, as in streamvid extract DATASET FOLDER KEY")
    chosen = arguments.key or arguments.keys is not None or arguments.where is not None
    if not chosen and _KEY.fullmatch(arguments.folder) and not os.path.isdir(arguments.folder):
        raise InputError(
            f"{arguments.folder} may be a key or a new folder: write FOLDER {arguments.folder} for one clip, or "
            f"{arguments.folder}/ to make this folder for all clips"
        )
    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    report = call(extract, arguments, dataset=dataset, keys=arguments.key or arguments.keys)
    if not (report.clips or report.there or report.bad):
        _warn_of_none(arguments, "extracted")
        return 0
    out = console()
    out.print(
        f"extracted {format_count(report.clips, 'clip')}, {format_bytes(report.bytes)}, to "
        f"{printable(report.folder)} in {format_duration(report.elapsed)}"
    )
    if report.there:
        out.print(f"{format_count(report.there, 'clip')} had been extracted before")
    if report.bad:
        out.print(f"{format_count(len(report.bad), 'clip')} cannot be read:")
        print_some([f"{key}: {reason}" for key, reason in report.bad], "  ")
    return FAILED if report.bad else 0


def _diff(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.difference import diff

    given: list[int | None] = arguments.revision
    if len(given) > 2 or (arguments.second is None and not given):
        raise InputError("two things are compared: give another dataset, or one or two revisions of one (--revision)")
    first, second = [*given, None, None][:2]
    found = diff(
        open_dataset(arguments.first, arguments, first),
        open_dataset(arguments.first if arguments.second is None else arguments.second, arguments, second),
    )
    if arguments.json:
        print(json.dumps(vars(found) | {"changed": dict(found.changed)}, indent=1, ensure_ascii=False))
        return FAILED if found else 0
    by_column = Counter(name for _, names in found.changed for name in names)
    changed = ", ".join(f"{printable(name)}: {count:,}" for name, count in by_column.items())
    print(
        f"{len(found.added):,} added, {len(found.removed):,} removed, {len(found.changed):,} changed"
        f"{f' ({changed})' if changed else ''}, {found.same:,} the same"
    )
    if found.unknown:
        print(f"the videos of {format_count(len(found.unknown), 'clip')} have no checksums to be compared by")
    for sign, keys in (("-", found.removed), ("+", found.added)):
        for key in keys:
            print(f"{sign} {key}")
    for key, names in found.changed:
        print(f"~ {key}: {', '.join(map(printable, names))}")
    return FAILED if found else 0
