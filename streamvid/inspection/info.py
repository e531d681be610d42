"""What is in a dataset, in numbers: totals, and how its clips are made."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.table import Table

from streamvid.store.dataset import Dataset

_SHOWN: Final = 8
"""Different values of a property that are listed; the rest is summed up."""


@dataclass(frozen=True)
class Spread:
    """Least, middle and greatest of a property over all clips; zeros if there are no clips."""

    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class Info:
    """A dataset in numbers.

    Attributes:
        name, path: what it is called, and where it is.
        clips, frames, shards: counts; frames are visible ones.
        seconds: of video.
        bytes: of all tars.
        labelled: clips with a label.
        classes: how many classes they have, named or not.
        codecs, formats, sizes: how many clips have each codec, pixel format, and "width x height", commonest first.
        rotated: clips whose frames must be turned to stand upright.
        fps: frames per second of each clip, on average.
        duration: seconds of each clip.
        gop: packets per random access point of each clip, on average.
    """

    name: str
    path: str
    clips: int
    frames: int
    shards: int
    seconds: float
    bytes: int
    labelled: int
    classes: int
    codecs: tuple[tuple[str, int], ...]
    formats: tuple[tuple[str, int], ...]
    sizes: tuple[tuple[str, int], ...]
    rotated: int
    fps: Spread
    duration: Spread
    gop: Spread


def describe(path: str | os.PathLike[str]) -> Info:
    """Sum a dataset up. Raises DatasetError if it cannot be opened."""
    dataset = Dataset.open(path)
    clips = dataset.clips
    seconds = clips.seconds
    timed = seconds > 0
    labels = clips.label[clips.label >= 0]
    sizes = [f"{width} x {height}" for width, height in zip(clips.width, clips.height, strict=True)]
    return Info(
        name=dataset.manifest.name,
        path=dataset.path,
        clips=len(dataset),
        frames=dataset.manifest.frames,
        shards=len(dataset.shards),
        seconds=dataset.manifest.seconds,
        bytes=dataset.manifest.tar_bytes,
        labelled=len(labels),
        classes=len(dataset.classes) if dataset.classes is not None else len(np.unique(labels)),
        codecs=_counted(list(clips.codec)),
        formats=_counted(list(clips.pix_fmt)),
        sizes=_counted(sizes),
        rotated=int(np.count_nonzero(clips.rotation)),
        fps=_spread(clips.frames[timed] / seconds[timed]),
        duration=_spread(seconds),
        gop=_spread(clips.packets / np.maximum(clips.random_access, 1)),
    )


def render(info: Info) -> Group:
    """The same as something that rich prints."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "dataset": f"{info.name} ({info.path})",
        "clips": f"{info.clips:,} in {counted(info.shards, 'shard')}",
        "frames": f"{info.frames:,}",
        "duration": in_time(info.seconds),
        "size": in_bytes(info.bytes),
        "labels": f"{counted(info.labelled, 'clip')}, {counted(info.classes, 'class', 'classes')}"
        if info.labelled
        else "none",
        "codecs": _listed(info.codecs),
        "pixel formats": _listed(info.formats),
        "frame sizes": _listed(info.sizes) + (f"; {info.rotated:,} rotated" if info.rotated else ""),
        "frames per second": _in_words(info.fps),
        "seconds per clip": _in_words(info.duration),
        "packets per random access": _in_words(info.gop),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return Group(table)


def counted(count: int, thing: str, things: str = "") -> str:
    """A number of things for people: ``1 clip``, ``2,000 clips``."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def in_bytes(count: int) -> str:
    """A number of bytes for people: ``1.5 GB``."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def in_time(seconds: float) -> str:
    """Seconds for people: ``1 h 02 min 05 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min {rest:02} s" if hours else f"{minutes} min {rest:02} s"


def _counted(values: list[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


def _spread(values: npt.NDArray[np.float64]) -> Spread:
    if len(values) == 0:
        return Spread(0.0, 0.0, 0.0)
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))


def _listed(counts: tuple[tuple[str, int], ...]) -> str:
    shown = [f"{name} ({count:,})" for name, count in counts[:_SHOWN]]
    rest = sum(count for _, count in counts[_SHOWN:])
    return ", ".join([*shown, f"{len(counts) - _SHOWN} others ({rest:,})"] if rest else shown)


def _in_words(spread: Spread) -> str:
    return f"{spread.least:.4g} to {spread.greatest:.4g}, median {spread.median:.4g}"
