"""Items of a PyTorch Sampler → samples: which clip, which of its frames, and with which random numbers."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamvid.checks import is_integer, listed, suggesting
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import InputError
from streamvid.fetch.plan_samples import Chosen, SamplePlan, SampleSpec, chosen, clip_times, make_samples
from streamvid.plan.epoch import Step
from streamvid.plan.rng import draws
from streamvid.plan.sample_id import row_of, sample_of
from streamvid.sampling.base import ClipTimes, Selection, select
from streamvid.sampling.explicit import WITHIN, whole_ticks
from streamvid.video.index_blocks import AnyIndex

if TYPE_CHECKING:
    import torch


@suggesting
@dataclass(frozen=True)
class At:
    """Some frames of a clip: an item that a Sampler may yield, and a `ClipDataset` takes, instead of a number.

    Attributes:
        clip: a key, or a row number of the dataset (the `clip` of a batch); negative ones count from the end.
        frames: frame numbers, counted from 0, in any order and with repeats.
        seconds: instead of `frames`, times in seconds from the clip's first frame; for each, the frame on screen then.

    Raises:
        InputError: not exactly one of `frames` and `seconds` is given, or a value is no number.
    """

    clip: str | int
    frames: Iterable[int] | None = None
    seconds: Iterable[float] | None = None

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.seconds is None):
            raise InputError("At takes frames or seconds, one of the two: At('key', frames=[0, 5])")
        for name in ("frames", "seconds"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(getattr(self, name), name))


Item = int | str | At
"""An item of a dataset: a sample's number, a clip's key, or frames of a clip."""


@dataclass(frozen=True)
class ResolvedItem:
    """An item whose clip and sample have been looked up.

    Attributes:
        row: the clip.
        number: its sample id (`streamvid.plan.sample_id`), on which its random numbers depend; if the item names
            frames, a hash of these takes the place of the sample's number.
        at: the frames, if the item names them.
        absent: row of the absent clip in whose place it stands, -1 for none.
    """

    row: int
    number: int
    at: At | None
    absent: int = -1


def resolve(dataset: ClipSource, items: torch.Tensor | None, item: object, *, can_sample: bool) -> ResolvedItem:
    """Look up the clip and sample that an item names.

    Args:
        items: int64 [samples], the sample ids of the dataset; None if each clip has one sample.
        item: see `Item`.
        can_sample: whether the dataset has a sampling, so that an item need not name its frames.

    Raises:
        KeyError, IndexError: there is no such clip or sample.
        InputError: the value is no item, or needs a sampling.
    """
    if isinstance(item, At):
        row = _row(dataset, item.clip)
        # Different frames of the same clip are augmented differently.
        which = zlib.crc32(repr((item.frames, item.seconds)).encode())
        return ResolvedItem(row, row | (which & 0x7FFFFFFF) << 32, item)
    if isinstance(item, str):
        wanted = ResolvedItem(row := _row(dataset, item), row, None)
    else:
        number = _index(item, "an item")
        count = len(dataset) if items is None else len(items)
        if not -count <= number < count:
            raise IndexError(f"there is no item {number}: the dataset has {count}, numbered from 0")
        number = number % count if items is None else int(items[number])
        wanted = ResolvedItem(row_of(number), number, None)
    if not can_sample:
        raise InputError("without a sampling, frames must be given: ds.get(key, frames=[…]), At(key, frames=[…])")
    return wanted


def choose(dataset: ClipSource, wanted: Sequence[ResolvedItem], spec: SampleSpec, epoch: int) -> list[SamplePlan]:
    """Choose the frames of items, and find their packets. Frame indexes are read concurrently.

    Raises:
        DatasetError: an index is damaged.
        IndexError: a clip does not have the frames that its item names.
        InputError: a clip is too short, and padding is off.
    """

    def select_frames(n: int, index: AnyIndex) -> Chosen:
        item = wanted[n]
        times = clip_times(dataset, item.row, index)
        return chosen(
            _given(times, item.at) if item.at is not None else _sampled(times, item.number, spec, epoch), index
        )

    found = dataset.use_indexes([item.row for item in wanted], select_frames)
    absent = np.array([item.absent for item in wanted], dtype=np.int64)
    numbers = np.array([item.number for item in wanted], dtype=np.int64)
    step = Step(numbers, np.full(len(wanted), epoch), absent < 0, absent=absent)
    return make_samples(dataset, spec, step, found)


def _row(dataset: ClipSource, clip: object) -> int:
    if isinstance(clip, str):
        try:
            row = dataset.row(clip)
        except InputError as error:
            raise KeyError(str(error)) from None
    else:
        row = _index(clip, "a clip")
        if not -len(dataset) <= row < len(dataset):
            raise IndexError(f"there is no clip {row}: the dataset has {len(dataset)}, numbered from 0")
        row %= len(dataset)
    if row in dataset.forgotten:
        raise KeyError(f"clip {dataset.key(row)!r} is forgotten: the dataset does not deliver it any more")
    return row


def _index(value: Any, what: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} is a number, a key or At(key, frames=[…]); this is {value!r}"[:300]) from None


def _numbers(values: Any, name: str) -> tuple[Any, ...]:
    """Frame numbers or times as a tuple of Python numbers."""
    found = listed(values, name, "numbers")
    if not found:
        raise InputError(f"{name} is empty: give at least one")
    kind, real = ("whole numbers", ()) if name == "frames" else ("numbers of seconds", (float, np.floating))
    for value in found:
        if not (is_integer(value) or (isinstance(value, real) and not np.isnan(value))):
            raise InputError(f"{name} must be {kind}, one of them is {value!r}"[:300])
    return tuple(int(value) if name == "frames" else float(value) for value in found)


def _given(clip: ClipTimes, at: At) -> Selection:
    """The frames that an item names itself."""
    count = clip.frames
    if at.frames is not None:
        wrong = [number for number in at.frames if not 0 <= number < count]
        if wrong:
            raise IndexError(f"clip {clip.key!r} has {count} frames, counted from 0; asked for frame {wrong[0]}")
        frames = np.array(tuple(at.frames), dtype=np.int64)
    else:
        assert at.seconds is not None
        seconds = np.array(tuple(at.seconds), dtype=np.float64)
        end_tick = clip.duration
        if not (seconds / float(clip.tick) <= end_tick - WITHIN).all():  # a clip of one frame may have no duration
            end_tick = max(end_tick, int(clip.times(np.array([clip.frames - 1]))[0]) + 1)
        bad = (seconds < 0) | (seconds / float(clip.tick) > end_tick - WITHIN)
        if bad.any():
            end = float(end_tick * clip.tick)
            raise IndexError(
                f"clip {clip.key!r} is {end:g} s long; asked for {float(seconds[np.argmax(bad)]):g} s, "
                "and an instant must lie before the end"
            )
        frames = clip.frames_at(whole_ticks(seconds, clip.tick))
    shown_at = np.asarray(clip.times(frames) * float(clip.tick), dtype=np.float64)
    return Selection(frames, np.ones(len(frames), dtype=bool), shown_at)


def _sampled(clip: ClipTimes, item: int, spec: SampleSpec, epoch: int) -> Selection:
    random = draws(spec.seed, epoch, item, spec.sampling.num_random)
    return select(spec.sampling, clip, random, number=sample_of(item))
