"""What is in a dataset, in numbers: totals, how its clips are made, and what a GPU makes of them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamvid.arrays import Float64
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.dataset import Dataset

Counts = tuple[tuple[str, int], ...]
"""Different values and how many clips have each, commonest first."""

_BARS: Final = 8
_WIDE: Final = 20
"""Where the greatest duration is this many times the least, bars are of 1-2-5 steps rather than of equal width."""


@dataclass(frozen=True)
class Spread:
    """Least, middle and greatest of a property over all clips; zeros if there are no clips."""

    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class Histogram:
    """How many clips lie between edges: ``counts[i]`` from ``edges[i]`` on and below ``edges[i + 1]``, the last one
    with its upper edge."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class GpuNote:
    """Clips that a GPU does not decode as fast as others, or not at all.

    Attributes:
        what: which clips.
        why: what is the matter with them.
        clips: how many.
    """

    what: str
    why: str
    clips: int


@dataclass(frozen=True)
class Gpu:
    """What is known, without trying, about decoding the clips on a GPU.

    Attributes:
        refused: a run on a GPU stops before it starts because of these.
        on_cpu: decoded on the CPU, as no GPU decoder knows their codec.
        slow: a decoder is opened anew for every stream: the height is not the one that it is coded in.
    """

    refused: tuple[GpuNote, ...]
    on_cpu: tuple[GpuNote, ...]
    slow: tuple[GpuNote, ...]


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
        labels: the classes' names, or numbers where they have none, and their clips.
        codecs, formats, sizes: how many clips have each codec, pixel format, and "width x height".
        rotated: clips whose frames must be turned to stand upright.
        kinds: how many different kinds of streams there are: size, codec, pixel format and parameter sets.
        fps: frames per second of each clip, on average.
        duration: seconds of each clip.
        durations: the same as a histogram.
        gop: packets per random access point of each clip, on average.
        hidden: share of packets that are never shown, from 0 to 1.
        columns: names and types of the columns that came with the clips.
        gpu: what a GPU makes of them.
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
    labels: Counts
    codecs: Counts
    formats: Counts
    sizes: Counts
    rotated: int
    kinds: int
    fps: Spread
    duration: Spread
    durations: Histogram
    gop: Spread
    hidden: float
    columns: tuple[tuple[str, str], ...]
    gpu: Gpu


def describe(dataset: Dataset | str | os.PathLike[str]) -> Info:
    """Sum a dataset up. Raises DatasetError if it cannot be opened."""
    if not isinstance(dataset, Dataset):
        dataset = Dataset.open(dataset)
    clips = dataset.clips
    seconds = clips.seconds
    timed = seconds > 0
    labels, per_label = np.unique(clips.label[clips.label >= 0], return_counts=True)
    names = dataset.classes
    packets = int(clips.packets.sum(dtype=np.int64))
    return Info(
        name=dataset.manifest.name,
        path=dataset.path,
        clips=len(dataset),
        frames=dataset.manifest.frames,
        shards=len(dataset.shards),
        seconds=dataset.manifest.seconds,
        bytes=dataset.manifest.tar_bytes,
        labelled=int(per_label.sum()),
        classes=len(names) if names is not None else len(labels),
        labels=_sorted(
            (names[label] if names is not None and label < len(names) else str(label), count)
            for label, count in zip(labels.tolist(), per_label.tolist(), strict=True)
        ),
        codecs=_counted(clips.codec),
        formats=_counted(clips.pix_fmt),
        sizes=_sizes(clips),
        rotated=int(np.count_nonzero(clips.rotation)),
        kinds=_kinds(clips),
        fps=_spread(clips.frames[timed] / seconds[timed]),
        duration=_spread(seconds),
        durations=histogram(seconds),
        gop=_spread(clips.packets / np.maximum(clips.random_access, 1)),
        hidden=1 - dataset.manifest.frames / packets if packets else 0.0,
        columns=_columns(dataset),
        gpu=_gpu(dataset),
    )


def histogram(values: Float64) -> Histogram:
    """Values in a handful of bars: of equal width, or of steps 1, 2, 5, 10 … where they are far apart."""
    if len(values) == 0:
        return Histogram((), ())
    least, greatest = float(values.min()), float(values.max())
    if least == greatest:
        return Histogram((least, greatest), (len(values),))
    if greatest > _WIDE * least:
        # Few values near 0 must not make dozens of bars: what lies below a thousandth of the greatest is one bar.
        lowest = max(least, greatest / 1000)
        steps = (m * 10.0**e for e in range(math.floor(math.log10(lowest)), math.ceil(math.log10(greatest)) + 1)
                 for m in (1, 2, 5))  # fmt: skip
        inner = [step for step in steps if lowest < step < greatest]
        edges = np.array([least, *inner, greatest])
    else:
        edges = np.linspace(least, greatest, _BARS + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))


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


def _counted(column: Categories) -> Counts:
    counts = np.bincount(column.codes, minlength=len(column.names))
    return _sorted((name, count) for name, count in zip(column.names, counts.tolist(), strict=True) if count)


def _sizes(clips: ClipTable) -> Counts:
    both, counts = np.unique(clips.width.astype(np.int64) << 32 | clips.height, return_counts=True)
    pairs = zip(both.tolist(), counts.tolist(), strict=True)
    return _sorted((f"{both >> 32} x {both & 0xFFFFFFFF}", count) for both, count in pairs)


def _kinds(clips: ClipTable) -> int:
    from streamvid.plan.bucket_key import bucket_keys

    return int(bucket_keys(clips).max()) + 1 if len(clips) else 0


def _sorted(counts: Any) -> Counts:
    return tuple(sorted(counts, key=lambda item: (-item[1], item[0])))


def _spread(values: Float64) -> Spread:
    if len(values) == 0:
        return Spread(0.0, 0.0, 0.0)
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))


def _columns(dataset: Dataset) -> tuple[tuple[str, str], ...]:
    """Names and types of the metadata columns."""
    meta = dataset.meta
    return tuple((name, meta.parquet_types.get(name) or str(meta.arrays[name].type)) for name in meta.names)


def _gpu(dataset: Dataset) -> Gpu:
    from streamvid.decode.dali_cache_guard import misses_cache
    from streamvid.loader.preflight import cpu_decoded_clips, unsupported_clips

    clips = dataset.clips
    refused = [GpuNote(what, why, len(rows)) for what, why, rows in unsupported_clips(dataset)]
    on_cpu = [GpuNote(codec, why, count) for codec, why, count in cpu_decoded_clips(dataset)]
    slow = []
    streams = clips.codec.codes.astype(np.int64) << 40 | clips.width.astype(np.int64) << 20 | clips.height
    for stream, count in zip(*(part.tolist() for part in np.unique(streams, return_counts=True)), strict=True):
        codec, width, height = clips.codec.names[stream >> 40], stream >> 20 & 0xFFFFF, stream & 0xFFFFF
        if misses_cache(codec, width, height):
            slow.append(GpuNote(f"{codec} {width} x {height}", "coded in another height: a decoder per stream", count))
    return Gpu(_by_clips(refused), _by_clips(on_cpu), _by_clips(slow))


def _by_clips(notes: Sequence[GpuNote]) -> tuple[GpuNote, ...]:
    return tuple(sorted(notes, key=lambda note: (-note.clips, note.what)))
