"""LeRobot datasets, version 3: a video file has many episodes, each of which becomes a clip.

`meta/info.json` has the features, of which those of dtype "video" are cameras, and the pattern of the videos' paths.
`meta/episodes/*/*.parquet` has a row for each episode: its number, length in frames and tasks, and for each camera the
file and the span, `videos/<camera>/chunk_index`, `file_index`, `from_timestamp` and `to_timestamp`
(https://huggingface.co/docs/lerobot/lerobot-dataset-v3).
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamvid.checks import is_integer, is_real
from streamvid.errors import DatasetError, InputError
from streamvid.packing.lists import LIST_EXTENSIONS, ParsedList
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import Cut
from streamvid.packing.places import Found, path_parts
from streamvid.packing.tar_members import TAR_EXTENSIONS
from streamvid.storage import filesystem
from streamvid.storage.client import has_ranges
from streamvid.storage.explain import AccessRefused
from streamvid.storage.parquet import read_parquet
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import has_extension, is_local, join, local_path, redact
from streamvid.text import first_line
from streamvid.video.containers import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS

_INFO: Final = "meta/info.json"
_EPISODES: Final = "meta/episodes"
_NOT_AS_WRITTEN: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)
_FIELD: Final = re.compile(r"\{(video_key|chunk_index|file_index)(?::0?([0-9]{1,2})d)?\}")
"""Of the pattern of paths. Not `str.format`, which would follow whatever an info.json says."""


def is_lerobot(place: str) -> bool:
    """Whether a folder or URL is a LeRobot dataset. The name of a folder may have a dot, as `pusht_v3.0` has."""
    named = (*VIDEO_EXTENSIONS, *IMAGE_EXTENSIONS, *TAR_EXTENSIONS, *LIST_EXTENSIONS)
    if "*" in place or (is_local(place) and not os.path.isdir(local_path(place))):
        return False
    if has_extension(place, named) or (posixpath.splitext(place)[1] and not has_ranges(place)):
        return False  # a web server may send some page for any path below a file
    try:
        return filesystem.exists(join(place, _INFO))
    except AccessRefused:
        if has_ranges(place):
            raise
        return False  # some web servers answer so for what they do not have


def find_episodes(place: str, cameras: Sequence[str], lists: MetadataLists) -> list[Found]:
    """The video files of a LeRobot dataset, with a cut for each episode.

    Args:
        place: folder or URL of the dataset.
        cameras: the cameras whose videos are found; empty: all.
        lists: collects the columns `task`, `episode` and `camera`.

    Raises:
        InputError: the dataset has another version, or no such camera, or cannot be read.
    """
    place = local_path(place) if is_local(place) else place
    shown = redact(place)
    try:
        pattern, rate, there = _read_info(place)
        files = [path for path in filesystem.list_files(join(place, _EPISODES), recursive=True) if ".parquet" in path]
        rows = [row for table in map_in_threads(_read_table, files) for row in table]
    except (DatasetError, OSError, *_NOT_AS_WRITTEN) as error:
        raise InputError(f"cannot read the LeRobot dataset {shown}: {first_line(error)}") from error
    unknown = sorted(set(cameras) - set(there))
    if unknown:
        raise InputError(f"{shown} has no camera {unknown[0]!r}: it has {', '.join(there) or 'none'}")
    chosen = [camera for camera in there if camera in cameras or not cameras]
    clips: list[dict[str, Any]] = []
    cuts: dict[str, list[tuple[Cut, int]]] = defaultdict(list)
    try:
        for row in sorted(rows, key=lambda row: int(row["episode_index"])):
            for camera in chosen:
                at = f"videos/{camera}"
                if row.get(f"{at}/file_index") is None:
                    continue  # an episode without this camera
                numbers = {name: int(row[f"{at}/{name}"]) for name in ("chunk_index", "file_index")}
                path = _FIELD.sub(lambda found: _filled(found, camera, numbers), pattern)  # noqa: B023
                cut = _cut(
                    float(row[f"{at}/from_timestamp"]), float(row[f"{at}/to_timestamp"]), int(row["length"]), rate
                )
                cuts[path].append((cut, len(clips)))
                tasks = row.get("tasks")
                task = "; ".join(map(str, tasks)) if isinstance(tasks, list) else None
                clips.append({"task": task, "episode": int(row["episode_index"]), "camera": camera})
    except _NOT_AS_WRITTEN as error:
        raise InputError(f"the episodes of {shown} are not as LeRobot writes them ({error!r})") from error
    if not cuts:
        raise InputError(f"{shown} has no episodes with videos: record some first")
    types = pa.schema({"task": pa.string(), "episode": pa.int64(), "camera": pa.string()})
    table = pa.Table.from_pylist(clips, types)
    first = lists.add(ParsedList(table, table), (), shown)
    depth = len(path_parts(place))
    found = []
    for path, own in cuts.items():
        whole = join(place, path)
        in_order = sorted(own, key=lambda item: (item[0].start, item[1]))
        spans = tuple(replace(cut, rows=(first + row,)) for cut, row in in_order)
        outside = ".." in path.split("/") or path.startswith("/")
        problem = "its path leads out of the dataset" if outside else ""
        found.append(Found(whole, path_parts(place) + tuple(path.split("/")), depth, cuts=spans, problem=problem))
    return found


def _filled(found: re.Match[str], camera: str, numbers: Mapping[str, int]) -> str:
    return camera if found[1] == "video_key" else str(numbers[found[1]]).zfill(int(found[2] or 0))


def _cut(start: float, end: float, frames: int, rate: float) -> Cut:
    """The cut of an episode. Half a frame is subtracted from its span, so that rounded times of frames fall on the
    right side."""
    half = 0.5 / rate
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ValueError(f"a span from {start} to {end}")
    return Cut(max(start - half, 0.0), max(end - half, 0.0), "seconds", frames=frames)


def _read_info(place: str) -> tuple[str, float, list[str]]:
    """The pattern of video paths, frames per second, and the cameras."""
    info = json.loads(filesystem.read_bytes(join(place, _INFO)))
    version = str(info.get("codebase_version", "none"))
    if not version.startswith("v3"):
        raise ValueError(f"it has the version {version}, and v3 is read: convert it with LeRobot's own tools")
    rate, pattern = info["fps"], info["video_path"]
    if not (is_real(rate) or is_integer(rate)) or not rate > 0 or not isinstance(pattern, str):
        raise ValueError("its fps is no positive number, or its video_path no text")
    cameras = [name for name, feature in info["features"].items() if feature.get("dtype") == "video"]
    return pattern, float(rate), cameras


def _read_table(path: str) -> list[dict[str, Any]]:
    """The rows of a table of episodes, without statistics."""

    def choose(schema: pa.Schema, _: int) -> list[str]:
        return [name for name in schema.names if not name.startswith(("stats/", "data/", "dataset_"))]

    rows: list[dict[str, Any]] = read_parquet(filesystem.read_bytes(path), choose).to_pylist()
    return rows
