"""Statistics of a dataset: totals, labels, codecs, sizes, durations, and which clips a GPU decodes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Float64, Int64, unique_rows
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import Change
from streamvid.plan.bucket_key import bucket_keys

Counts = tuple[tuple[str, int], ...]
"""The values of a property with their numbers of clips, most frequent first."""

_BARS: Final = 8
"""Bars of a histogram with bars of equal width."""
_WIDE: Final = 20
"""If the greatest value is more than this many times the least, the edges are 1, 2, 5, 10 … instead."""


_TINY: Final = 1e-290
"""From here on, powers of ten next to a value may not be numbers."""


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of a property over all clips; zeros without clips."""

    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class Histogram:
    """Numbers of clips between edges: ``counts[i]`` in [``edges[i]``, ``edges[i + 1]``), the last including its end."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class GpuNote:
    """Clips that a GPU decodes slowly or not at all.

    Attributes:
        what: the clips in words, such as a codec and a size.
        why: the reason.
        clips: number of clips.
    """

    what: str
    why: str
    clips: int


@dataclass(frozen=True)
class Gpu:
    """Which clips a GPU decodes slowly or not at all, from their metadata alone.

    Attributes:
        on_cpu: clips that CPU cores decode in a GPU run, or that it refuses with fallback="error".
        slow: clips for each of which a decoder is opened, as their display height differs from the coded height.
    """

    on_cpu: tuple[GpuNote, ...]
    slow: tuple[GpuNote, ...]


@dataclass(frozen=True)
class Info:
    """Statistics of a dataset.

    Attributes:
        name, path: from dataset.json; path or URL.
        revision: number of the revision.
        change: the change that made it; None if it was made by packing or appending.
        forgotten: number of forgotten clips.
        clips, frames, shards: totals; frames are displayed ones.
        seconds: total duration.
        bytes: of all tars.
        labelled: number of clips with a label.
        classes: number of classes, named or not.
        labels: clips per class name, or class number if classes have no names.
        codecs, formats, sizes: clips per codec, pixel format, and "width x height".
        rotated: number of clips with a display rotation.
        decoder_configurations: number of different combinations of size, codec, pixel format and parameter sets.
        fps: mean frames per second of each clip.
        duration: duration of each clip in seconds.
        durations: histogram of the durations.
        gop: mean packets per random access point of each clip.
        hidden: share of non-displayed packets, from 0 to 1.
        columns: names and types of the metadata columns.
        gpu: clips that a GPU decodes slowly or not at all.
    """

    name: str
    path: str
    revision: int
    change: Change | None
    forgotten: int
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
    decoder_configurations: int
    fps: Spread
    duration: Spread
    durations: Histogram
    gop: Spread
    hidden: float
    columns: tuple[tuple[str, str], ...]
    gpu: Gpu


def describe(dataset: Dataset | str | os.PathLike[str]) -> Info:
    """Compute the statistics of a dataset. Raises DatasetError if it cannot be opened."""
    if not isinstance(dataset, Dataset):
        dataset = Dataset.open(dataset)
    clips, meta = dataset.clips, dataset.meta
    seconds = clips.seconds
    timed = seconds > 0
    labels, per_label = np.unique(clips.label[clips.label >= 0], return_counts=True)
    names = dataset.classes
    packets = int(clips.packets.sum(dtype=np.int64))
    return Info(
        name=dataset.manifest.name,
        path=dataset.path,
        revision=dataset.manifest.revision,
        change=dataset.manifest.change,
        forgotten=len(dataset.forgotten),
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
        codecs=_value_counts(clips.codec),
        formats=_value_counts(clips.pix_fmt),
        sizes=frame_sizes(clips),
        rotated=int(np.count_nonzero(clips.rotation)),
        decoder_configurations=int(bucket_keys(clips).max()) + 1,
        fps=_spread(clips.frames[timed] / seconds[timed]),
        duration=_spread(seconds),
        durations=histogram(seconds),
        gop=_spread(clips.packets / np.maximum(clips.random_access, 1)),
        hidden=1 - dataset.manifest.frames / packets if packets else 0.0,
        columns=tuple((name, meta.parquet_types.get(name) or str(meta.arrays[name].type)) for name in meta.names),
        gpu=_gpu(dataset),
    )


def histogram(values: Float64) -> Histogram:
    """A histogram of finite values, of which there is at least one, with bars of equal width, or with edges 1, 2, 5, 10
    … if there are none below 0 and they differ by more than `_WIDE` times."""
    least, greatest = float(values.min()), float(values.max())
    if least == greatest or not math.isfinite(greatest - least):
        return Histogram((least, greatest), (len(values),))
    if least >= 0 and _WIDE * least < greatest and _TINY < greatest < 1 / _TINY:
        # One bar for all values below a thousandth of the greatest, so that values near 0 do not make dozens.
        lowest = max(least, greatest / 1000)
        steps = (m * 10.0**e for e in range(math.floor(math.log10(lowest)), math.ceil(math.log10(greatest)) + 1)
                 for m in (1, 2, 5))  # fmt: skip
        inner = [step for step in steps if lowest < step < greatest]
        edges = np.array([least, *inner, greatest])
    else:
        edges = np.linspace(least, greatest, _BARS + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))


def _value_counts(column: Categories) -> Counts:
    counts = np.bincount(column.codes, minlength=len(column.names))
    return _sorted((name, count) for name, count in zip(column.names, counts.tolist(), strict=True) if count)


def frame_sizes(clips: ClipTable, rows: Int64 | None = None) -> Counts:
    """Numbers of clips, of all or some rows, by width and height before rotation."""
    chosen = slice(None) if rows is None else rows
    width, height = clips.width[chosen], clips.height[chosen]
    first, which = unique_rows(width, height)
    counts = np.bincount(which).tolist()
    return _sorted((f"{width[n]} x {height[n]}", count) for n, count in zip(first, counts, strict=True))


def _sorted(counts: Iterable[tuple[str, int]]) -> Counts:
    return tuple(sorted(counts, key=lambda item: (-item[1], item[0])))


def _spread(values: Float64) -> Spread:
    if len(values) == 0:
        return Spread(0.0, 0.0, 0.0)
    return Spread(float(values.min()), float(np.median(values)), float(values.max()))


def _gpu(dataset: Dataset) -> Gpu:
    from streamvid.decode.dali_cache_guard import misses_cache
    from streamvid.loader.preflight import cpu_decoded_clips

    clips = dataset.clips
    on_cpu = [GpuNote(what, why, len(rows)) for what, why, rows in cpu_decoded_clips(dataset)]
    slow = []
    first, which = unique_rows(clips.codec.codes, clips.width, clips.height)
    for row, count in zip(first.tolist(), np.bincount(which).tolist(), strict=True):
        codec, width, height = clips.codec[row], int(clips.width[row]), int(clips.height[row])
        if misses_cache(codec, width, height):
            slow.append(GpuNote(f"{codec} {width} x {height}", "coded in another height: a decoder per stream", count))
    return Gpu(_by_clips(on_cpu), _by_clips(slow))


def _by_clips(notes: Sequence[GpuNote]) -> tuple[GpuNote, ...]:
    return tuple(sorted(notes, key=lambda note: (-note.clips, note.what)))
