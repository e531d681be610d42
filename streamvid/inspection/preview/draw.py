"""Draws the strips of clips of a dataset, as a loader with the same sampling, transform and seed shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import ClipError, StreamvidError
from streamvid.fetch.encoded_batch import encoded_batch, read_slices
from streamvid.fetch.plan_samples import SamplePlan, make_sample, plan_samples
from streamvid.inspection.preview.pictures import Strip, frame_of, make_picture, scale_of, shown_positions
from streamvid.loader.sample_renderer import SampleRenderer
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import Step
from streamvid.plan.sample_id import row_of
from streamvid.sampling.base import Selection
from streamvid.storage.explain import StorageUnavailable
from streamvid.transform.spec import by_view
from streamvid.video.packet_selection import EncodedSlice

_TOGETHER: Final = 16
"""Clips that are read side by side."""
_UNREACHABLE: Final = 3
"""Clips whose storage may be unreachable before all of it is taken to be."""


@dataclass(frozen=True)
class _Read:
    """A sample with the frame positions that are shown, and how many it has."""

    plan: SamplePlan
    positions: int
    encoded: EncodedSlice


def draw_strips(samples: SampleSet, ids: Sequence[int]) -> Iterator[Strip]:
    """The strips of some samples, in that order, of each one for each view; of a bad clip one that says why. A child
    process decodes, so that a clip may crash FFmpeg.

    Args:
        samples: the clips, with sampling and transform.
        ids: which samples; see `streamvid.plan.sample_id`.

    Raises:
        StorageUnavailable: the first clip cannot be read, or several.
    """
    renderer = SampleRenderer(samples.clip_transform(), isolate=True)
    drawn = unreachable = 0
    for first in range(0, len(ids), _TOGETHER):
        some = ids[first : first + _TOGETHER]
        try:
            read: list[_Read | None] = list(_read(samples, some))
        except (StreamvidError, ValueError):  # a sampler's ValueError is of a clip, too
            read = [None] * len(some)
        for item, one in zip(some, read, strict=True):
            row = row_of(item)
            try:
                strips = _draw(samples, renderer, one or _read(samples, [item])[0])
                drawn += 1
            except (StreamvidError, ValueError) as error:
                unreachable += isinstance(error, StorageUnavailable)
                if isinstance(error, StorageUnavailable) and (not drawn or unreachable > _UNREACHABLE):
                    raise
                strips = [Strip(samples.dataset.key(row), bad=_cause(samples.dataset, row, error), row=row)]
            yield from strips


def _read(samples: SampleSet, ids: Sequence[int]) -> list[_Read]:
    """Plan samples in epoch 0, and read the packets of the frames that are shown."""
    dataset, spec, count = samples.dataset, samples.spec, len(ids)
    step = Step(np.array(ids, dtype=np.int64), np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool))
    plans, positions = [], []
    for plan in plan_samples(dataset, step, spec):
        whole = plan.selection
        shown = shown_positions(len(whole.frames))
        if len(shown) < len(whole.frames):
            part = Selection(whole.frames[shown], whole.mask[shown], whole.seconds[shown])
            index = dataset.index(plan.clip)
            plan = make_sample(dataset, spec, index, plan.clip, plan.epoch, plan.valid, part, plan.random)
        plans.append(plan)
        positions.append(len(whole.frames))
    slices = read_slices(dataset, plans, dataset.reader, dataset.shard_path, checksum=spec.checksum)
    return [_Read(*one) for one in zip(plans, positions, slices, strict=True)]


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
    """Why a clip cannot be shown, without its key, which is beside it."""
    if isinstance(error, ClipError) and error.key:
        return error.reason
    return str(error).replace(f"clip {dataset.key(row)!r}", "the clip").replace(f"clip {dataset.key(row)}", "the clip")
