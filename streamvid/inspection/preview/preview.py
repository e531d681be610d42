"""`streamvid preview`: a dataset as one HTML file. Its strips show clips as in batches of a loader with the same
sampling, transform and seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import integer
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import delivered
from streamvid.errors import ClipError, DatasetError, StreamvidError, VideoError
from streamvid.fetch.encoded_batch import encoded_batch, read_slices
from streamvid.fetch.plan_samples import Chosen, SamplePlan, chosen, make_samples, plan_samples
from streamvid.inspection.preview.charts import dataset_charts, svg
from streamvid.inspection.preview.page import (
    asset,
    check_target,
    escaped,
    lines_html,
    page,
    strip_html,
    write_page,
)
from streamvid.inspection.preview.pictures import Strip, frame_of, make_picture, scale_of, shown_positions
from streamvid.inspection.preview.table import make_table
from streamvid.loader.sample_renderer import SampleRenderer
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import Step
from streamvid.plan.inputs import Subset
from streamvid.plan.sample_id import row_of, rows_of, sample_of
from streamvid.progress import Progress
from streamvid.sampling.base import FrameSampler, Selection
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.retry import COMMAND_SECONDS
from streamvid.storage.url import given_path, redact
from streamvid.text import format_bytes, format_count, format_duration
from streamvid.transform.output_size import check_output_sizes
from streamvid.transform.spec import Transform, Views, by_view
from streamvid.video.index_blocks import AnyIndex
from streamvid.video.packet_selection import EncodedSlice

STRIP_BYTES: Final = 24 << 20
"""Bytes of the strips' pictures: from there on no more clips are drawn."""
_NAMED: Final = 20
"""Bad clips at most that are named above the strips."""


@dataclass(frozen=True)
class PreviewReport:
    """The result of `preview`.

    Attributes:
        bytes: size of the file.
        clips: number of selected clips.
        strips: number of clips with a strip.
        bad: number of bad clips among them.
        full: whether there are fewer strips than requested, because the page would be too large.
    """

    bytes: int
    clips: int
    strips: int
    bad: int
    full: bool


def preview(
    dataset: Dataset | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    sampling: FrameSampler,
    transform: Transform | Views | Mapping[str, Transform] | None = None,
    where: str | None = None,
    keys: str | None = None,
    clips: int = 48,
    seed: int = 0,
    progress: bool = False,
) -> PreviewReport:
    """Write a page that shows a dataset: strips of some clips, histograms of all, and a table to filter.

    Args:
        dataset: an open dataset, a folder or a URL.
        out: the file or URL to write; an earlier page of streamvid is replaced.
        sampling, transform: applied to the clips with strips, in epoch 0; each view of several has its own strip.
        where, keys: which clips, as in `streamvid.Subset`; default: all.
        clips: number of clips with strips, drawn at random.
        seed: seed of that draw, and of sampling and transform.
        progress: whether to show a progress bar.

    Raises:
        InputError: an option is invalid, no clip fits, a crop is larger than frames, or another file is at `out`.
        DatasetError: the dataset is missing or damaged, or its storage does not answer; or the page cannot be written.
    """
    integer(clips, "clips", least=0)
    integer(seed, "seed", least=0, most=None)
    check_target(out := given_path(out, "out"))
    if not isinstance(dataset, Dataset):
        dataset = Dataset.open(dataset, retry_for=COMMAND_SECONDS)
    samples = SampleSet.open(
        Subset(dataset, where=where, keys=keys), sampling=sampling, transform=transform, columns=(), seed=seed
    )
    check_output_sizes(samples.transform, dataset.clips, samples.pools.rows(), one_size=False)
    rows = delivered(dataset, where=where, keys=keys)
    random = np.random.default_rng(seed)
    strips, full = _strips(samples, clips, random, progress=progress)
    table = make_table(dataset, rows, [strip.row for strip in strips], random)
    shown_rows = [strip.row for strip in strips]
    strips = [
        replace(strip, facts=(*_facts(dataset, strip.row), *strip.facts), fields=own, more_fields=others)
        for strip, (own, others) in zip(strips, table.beside(shown_rows), strict=True)
    ]
    bad = [strip.title for strip in strips if strip.bad]
    count = len(set(shown_rows))
    shown = f"{count:,} of {format_count(len(rows), 'clip')}, drawn at random with seed {seed}: {sampling!r}"
    notes = [shown if transform is None else f"{shown}, {transform!r}"]
    if full:
        notes.append("More clips would make this page too large.")
    if bad:
        keys = ", ".join(bad[:_NAMED]) + (" …" if len(bad) > _NAMED else "")
        notes.append(f"{format_count(len(bad), 'clip')} of these {'is' if len(bad) == 1 else 'are'} bad: {keys}")
    body = Template(asset("preview.html")).substitute(
        name=escaped(dataset.manifest.name),
        about=lines_html(_about(dataset, rows, where)),
        charts="\n".join(map(svg, dataset_charts(dataset, None if len(rows) == len(dataset) else rows))),
        notes=lines_html(notes),
        strips="\n".join(f'<article class="clip">{strip_html(strip)}</article>' for strip in strips),
        table=lines_html(table.notes),
    )
    data = table.to_json(shown_rows)
    size = write_page(out, page(f"{dataset.manifest.name}: streamvid preview", body, data))
    return PreviewReport(size, len(rows), count, len(bad), full)


def _strips(samples: SampleSet, count: int, random: np.random.Generator, *, progress: bool) -> tuple[list[Strip], bool]:
    """Strips of `count` clips, in the order of rows, and whether the page is full."""
    (pool,) = samples.pools.pools
    rows = rows_of(pool.sample_ids)
    there = samples.pools.rows()
    there = there[~np.isin(there, samples.pools.excluded)]
    chosen = random.choice(there, min(count, len(there)), replace=False)
    first, end = np.searchsorted(rows, chosen), np.searchsorted(rows, chosen, side="right")
    ids = pool.sample_ids[first + (random.random(len(chosen)) * (end - first)).astype(np.int64)].tolist()
    strips: list[Strip] = []
    size = 0
    with Progress("drawing", len(ids), enabled=progress) as bar:
        facts = {
            row_of(item): (f"sample {sample_of(item) + 1} of {several}",) if several > 1 else ()
            for item, several in zip(ids, (end - first).tolist(), strict=True)
        }
        for strip in draw_strips(samples, ids):
            if not strips or strip.row != strips[-1].row:
                if size * 4 // 3 > STRIP_BYTES:  # base64 has 4 letters for 3 bytes
                    break
                bar.advance()
            strips.append(replace(strip, facts=(*strip.facts, *facts[strip.row])))
            size += sum(len(picture.jpeg) for picture in strip.pictures)
    return sorted(strips, key=lambda strip: strip.row), len({strip.row for strip in strips}) < len(ids)


def _about(dataset: Dataset, rows: Int64, where: str | None) -> list[str]:
    seconds = format_duration(float(dataset.clips.seconds[rows].sum()))
    size = format_bytes(int(dataset.clips.mp4_size[rows].sum()))
    revision = f", revision {dataset.manifest.revision}" if dataset.manifest.revision else ""
    lines = [redact(dataset.path) + revision, f"{format_count(len(rows), 'clip')}, {seconds}, {size}"]
    if where is not None:
        lines.append(f"of {len(dataset):,} those with {where}")
    return lines


def _facts(dataset: Dataset, row: int) -> tuple[str, ...]:
    """Short facts about a clip."""
    clips, label = dataset.clips, int(dataset.clips.label[row])
    width, height = int(clips.width[row]), int(clips.height[row])
    if clips.rotation[row] % 180:
        width, height = height, width
    seconds = float(clips.seconds[row])
    classes = dataset.classes or ()
    facts = [classes[label] if label < len(classes) else f"label {label}"] if label >= 0 else []
    facts += [f"{seconds:.2f} s", f"{width} x {height}"]
    facts += [f"{clips.frames[row] / seconds:.4g} fps"] if seconds > 0 else []
    return (*facts, clips.codec[row], format_bytes(int(clips.mp4_size[row])))


_TOGETHER: Final = 16
"""Clips that are read side by side."""
_UNREACHABLE: Final = 3
"""Clips whose storage may be unreachable before all of it is taken to be."""


@dataclass(frozen=True)
class _Read:
    """A sample, the frame positions that are shown, and the number of all."""

    plan: SamplePlan
    positions: int
    encoded: EncodedSlice


def draw_strips(samples: SampleSet, ids: Sequence[int]) -> Iterator[Strip]:
    """The strips of samples, in order, one for each view; a bad clip has one with the reason. A child process decodes,
    because a clip may crash FFmpeg.

    Args:
        samples: the clips, with sampling and transform.
        ids: the sample ids; see `streamvid.plan.sample_id`.

    Raises:
        StorageUnavailable: the storage did not answer for the first clip, or for several.
        StreamvidError: the transform fails.
    """
    renderer = SampleRenderer(samples.clip_transform(), isolate=True)
    drawn = unreachable = 0
    for first in range(0, len(ids), _TOGETHER):
        some = ids[first : first + _TOGETHER]
        try:
            read: list[_Read | None] = list(_read(samples, some))
        except (StreamvidError, ValueError):
            read = [None] * len(some)
        for item, ready in zip(some, read, strict=True):
            row = row_of(item)
            try:
                strips = _draw(samples, renderer, ready or _read_alone(samples, item))
                drawn += 1
            except (DatasetError, VideoError) as error:
                unreachable += isinstance(error, StorageUnavailable)
                if isinstance(error, StorageUnavailable) and (not drawn or unreachable > _UNREACHABLE):
                    raise
                strips = [Strip(samples.dataset.key(row), bad=_cause(samples.dataset, row, error), row=row)]
            yield from strips


def _read_alone(samples: SampleSet, item: int) -> _Read:
    """`_read` of one sample. A ValueError of the sampler is about the clip, and becomes a VideoError; one that the
    transform raises later is not."""
    try:
        return _read(samples, [item])[0]
    except ValueError as error:
        raise VideoError(str(error)) from error


def _read(samples: SampleSet, ids: Sequence[int]) -> list[_Read]:
    """Plan samples in epoch 0, and read the packets of the frames that are shown."""
    dataset, spec, count = samples.dataset, samples.spec, len(ids)
    step = Step(np.array(ids, dtype=np.int64), np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool))
    whole = [plan.selection for plan in plan_samples(dataset, step, spec)]
    positions = [len(sample.frames) for sample in whole]

    def choose(n: int, index: AnyIndex) -> Chosen:
        shown = shown_positions(positions[n])
        return chosen(Selection(whole[n].frames[shown], whole[n].mask[shown], whole[n].seconds[shown]), index)

    plans = make_samples(dataset, spec, step, dataset.use_indexes(list(map(row_of, ids)), choose))
    slices = read_slices(dataset, plans, dataset.reader, dataset.shard_path, checksum=spec.checksum)
    return [_Read(*values) for values in zip(plans, positions, slices, strict=True)]


def _draw(samples: SampleSet, renderer: SampleRenderer, read: _Read) -> list[Strip]:
    """A sample's strips, one for each view."""
    tensors = renderer.render(encoded_batch(samples.dataset, [read.plan], [read.encoded]))
    selection, row, views = read.plan.selection, read.plan.clip, by_view(samples.transform)
    strips = []
    for name, transform in views.items():
        scale = scale_of(transform)
        pictures = tuple(
            make_picture(scale.rgb(frame_of(tensors[name], transform.layout, n)), seconds, real=real)
            for n, (seconds, real) in enumerate(zip(selection.seconds.tolist(), selection.mask.tolist(), strict=True))
        )
        facts = (name,) if len(views) > 1 else ()
        strips.append(Strip(samples.dataset.key(row), pictures, read.positions, facts, row=row))
    return strips


def _cause(dataset: ClipSource, row: int, error: Exception) -> str:
    """Why a clip cannot be shown, without its key, which the strip has as its title."""
    if isinstance(error, ClipError) and error.key:
        return error.reason
    return str(error).replace(f"clip {dataset.key(row)!r}", "the clip").replace(f"clip {dataset.key(row)}", "the clip")
