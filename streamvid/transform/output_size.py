"""The height and width that a transform gives clips, computed from the dataset's table before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from streamvid.arrays import Float64, Int64, unique_rows
from streamvid.dataset.clip_table import ClipTable
from streamvid.errors import InputError
from streamvid.host import usable_memory
from streamvid.text import format_count
from streamvid.transform.sharing import largest, pair
from streamvid.transform.spec import Transform, Views, by_view

_MAX_PIXELS: Final = 1 << 26
"""Most pixels of a frame that is enlarged: that takes so long that its decoder would be counted as stuck."""


def resized(transform: Transform, heights: Int64, widths: Int64, short: Int64 | None = None) -> Int64:
    """The size of each clip after resizing and before cropping, for transforms without a random resized crop.

    Args:
        transform: what to do.
        heights, widths: int64 [clips], of upright frames.
        short: int64 [clips], the short sides drawn from `random_short_side`; default: its smallest.

    Returns:
        int64 [clips, 2]: height, width.
    """
    sizes = np.stack([heights, widths], axis=1)
    if transform.random_short_side is not None:
        side = np.array([min(transform.random_short_side)]) if short is None else short
    elif transform.resize is None:
        return sizes
    elif isinstance(transform.resize, tuple):
        return np.broadcast_to(np.array(transform.resize, dtype=np.int64), sizes.shape)
    else:
        side = np.array([transform.resize])
    scaled = np.floor(sizes * side[:, None] / sizes.min(axis=1, keepdims=True) + 0.5).astype(np.int64)
    return np.asarray(np.maximum(scaled, 1), dtype=np.int64)


def short_sides(transform: Transform, random: Float64) -> Int64 | None:
    """int64 [clips]: a random short side for each clip, uniform over those of `random_short_side`."""
    if transform.random_short_side is None:
        return None
    if isinstance(transform.random_short_side, tuple):
        low, high = transform.random_short_side
        return low + np.floor((high - low + 1) * random).astype(np.int64)
    return np.array(transform.random_short_side, dtype=np.int64)[
        np.floor(len(transform.random_short_side) * random).astype(np.int64)
    ]


def output_size(transform: Transform, heights: Int64, widths: Int64, key: Callable[[int], str]) -> tuple[int, int]:
    """The one height and width of the outputs of all clips.

    Args:
        transform: what to do.
        heights, widths: int64 [clips], of upright frames.
        key: the key of a clip by its number, from 0, for the error.

    Raises:
        InputError: a clip is smaller than the crop, or the outputs differ in size, so that they fit no batch.
    """
    if transform.crop is not None and transform.random_resized_crop is not None:
        return pair(transform.crop)
    sizes = resized(transform, heights, widths)
    if transform.crop is not None:
        crop = np.array(pair(transform.crop))
        small = np.flatnonzero((sizes < crop).any(axis=1))
        if len(small):
            first = int(small[0])
            raise InputError(
                f"the crop of {crop[0]}x{crop[1]} (height x width) is larger than the frames of "
                f"{format_count(len(small), 'clip')}, such as {key(first)} with "
                f"{sizes[first, 0]}x{sizes[first, 1]}: give Transform a larger resize or a smaller crop"
            )
        return int(crop[0]), int(crop[1])
    different = np.flatnonzero((sizes != sizes[0]).any(axis=1))
    if len(different):
        other = int(different[0])
        raise InputError(
            f"clips come out in different sizes, such as {key(0)} with {sizes[0, 0]}x{sizes[0, 1]} and "
            f"{key(other)} with {sizes[other, 0]}x{sizes[other, 1]} (height x width): "
            "give Transform a crop, or a resize of (height, width)"
        )
    return int(sizes[0, 0]), int(sizes[0, 1])


def output_sizes(
    transform: Transform | Views, heights: Int64, widths: Int64, key: Callable[[int], str]
) -> dict[str, tuple[int, int]]:
    """Height and width by view; arguments and errors as in `output_size`."""
    sizes = {}
    for view, spec in by_view(transform).items():
        try:
            sizes[view] = height, width = output_size(spec, heights, widths, key)
            if height * width > max(_MAX_PIXELS, int((heights * widths).max(initial=0))):
                raise InputError(
                    f"frames of {height}x{width} (height x width) are larger than 8192x8192 and than those of all "
                    f"clips, such as {key(0)}: give Transform a smaller resize or crop"
                )
        except InputError as error:
            raise InputError(f"in the view {view!r}, {error}" if isinstance(transform, Views) else str(error)) from None
    if isinstance(transform, Views) and "crop" in transform.share:
        _check_shared_crop(transform, heights, widths, key)
    return sizes


def _check_shared_crop(views: Views, heights: Int64, widths: Int64, key: Callable[[int], str]) -> None:
    """Raise InputError unless the part of the frame that each view resizes and crops is as large as that of the largest
    view, to within one of its pixels. A view without a resize shows the part of the largest view."""
    sides, leader = np.stack([heights, widths], axis=1), largest(views.transforms)

    def scale(view: str, random: float) -> Float64:
        spec = views.transforms[view]
        return sides / resized(spec, heights, widths, short_sides(spec, np.full(len(sides), random)))

    def part(view: str, random: float) -> Float64:
        return scale(view, random) * pair(views.transforms[view].crop or 0)

    for view, spec in views.transforms.items():
        if view == leader or (spec.resize is None and spec.random_short_side is None):
            continue
        for random in (0.0, 0.5, 0.999):
            apart = (abs(part(view, random) - part(leader, random)) >= scale(view, random)).any(axis=1)
            for n in np.flatnonzero(apart)[:1].tolist():
                (high, wide), (height, width) = (part(name, random)[n].tolist() for name in (leader, view))
                raise InputError(
                    f"views that share 'crop' must show as much of a frame: of {key(n)}, {leader!r} has "
                    f"{high:.0f}x{wide:.0f} pixels (height x width), and {view!r} {height:.0f}x{width:.0f}: give "
                    f"{view!r} a resize in proportion, or none"
                )


def upright_sizes(clips: ClipTable, rows: Int64) -> tuple[Int64, Int64]:
    """int64 [rows] each: the heights and widths of clips' upright frames."""
    swapped = (clips.rotation[rows] % 180) != 0
    heights, widths = (column[rows].astype(np.int64) for column in (clips.height, clips.width))
    return np.where(swapped, widths, heights), np.where(swapped, heights, widths)


def check_output_sizes(transform: Transform | Views, clips: ClipTable, rows: Int64, *, one_size: bool = True) -> None:
    """Raise InputError unless the transform fits all these clips, and their outputs have one size, so that they fit a
    batch.

    Args:
        transform: the transform of the frames, or several as views.
        clips: the dataset's rows.
        rows: int64 [clips], the rows to check.
        one_size: whether the outputs must have one size. False for graphs, in which the user's operators may resize
            them.
    """

    def check(rows: Int64) -> None:
        output_sizes(transform, *upright_sizes(clips, rows), lambda number: clips.key[int(rows[number])])

    first, _ = unique_rows(clips.width[rows], clips.height[rows], clips.rotation[rows])
    if not one_size:
        for n in first:
            check(rows[[n]])
        return
    try:
        check(rows[first])
    except InputError:
        check(rows)  # its message counts all clips, and names the first


def check_batch_memory(transform: Transform | Views, clips: ClipTable, rows: Int64, frames: int) -> None:
    """Raise InputError if the tensors of one batch need more memory than the process may use: the kernel would kill the
    process without a message, while a GPU's allocator raises an error.

    Args:
        transform: the transform, with one output size for all clips; it is computed from the first.
        clips: the dataset's rows.
        rows: int64 [clips], the rows that are used; at least one.
        frames: number of frames in a batch.
    """
    import torch

    sizes = upright_sizes(clips, rows[:1])
    plane = 0  # bytes of a channel of a frame in all views
    for view in by_view(transform).values():
        height, width = output_size(view, *sizes, lambda _: clips.key[int(rows[0])])
        plane += getattr(torch, view.dtype).itemsize * height * width
    needed, has = 3 * frames * plane, usable_memory()
    if needed > has:
        raise InputError(
            f"a batch of {frames} frames takes {needed / 1e9:,.1f} GB, and this process may use {has / 1e9:,.1f} GB: "
            "give a smaller batch_size, fewer frames, or a smaller crop or resize"
        )
