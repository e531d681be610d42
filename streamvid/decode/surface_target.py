"""The destinations of a batch's frames on the GPU, and the parameters of their conversion to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamvid.arrays import Int64
from streamvid.color.render import PlaneFormat
from streamvid.color.surfaces import Kernel, Window, clip_params
from streamvid.color.tags import ColorOption
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch


class Writes(NamedTuple):
    """The pictures that are made of the surfaces of a slice for one view.

    Attributes:
        kernel: the kernel that makes them.
        size: height and width in pixels.
        params: device address of the slice's parameters; before `make_targets`, their index.
        pixels: int64 [frames, pictures], device addresses of the pictures' first pixels; 0 if a frame is in fewer
            pictures than others.
    """

    kernel: Kernel
    size: tuple[int, int]
    params: int
    pixels: Int64


@dataclass(frozen=True, eq=False)
class SurfaceTarget:
    """The pictures that are made of a slice's frames.

    Attributes:
        writes: for each view, its pictures.
        window: the part of each surface that the kernels read.
        memory: the tensors with pixels and parameters; must not be freed while a kernel may use them.
        ready: CUDA event after which `memory` may be used.
    """

    writes: Sequence[Writes]
    window: Window
    memory: tuple[torch.Tensor, ...]
    ready: torch.cuda.Event


def make_targets(
    stream: torch.cuda.Stream,
    writes: Sequence[Sequence[Writes]],
    windows: Sequence[Window],
    params: Sequence[Int64],
    memory: Sequence[torch.Tensor],
) -> list[SurfaceTarget]:
    """The targets of a batch's slices. All parameters go to the GPU in one copy on the stream.

    Args:
        stream: the current CUDA stream, on which `memory` was allocated.
        writes: for each slice and view, its pictures, with indices into `params`.
        windows: for each slice, the part of its surfaces that the kernels read.
        params: from `streamvid.color.surfaces.clip_params`.
        memory: the tensors with the pixels.
    """
    import torch

    table = torch.from_numpy(np.stack(params)).to(stream.device) if params else torch.empty(0)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record(stream)
    first, each, kept = table.data_ptr(), table[:1].nbytes, (*memory, table)
    return [
        SurfaceTarget([write._replace(params=first + each * write.params) for write in made], part, kept, ready)
        for made, part in zip(writes, windows, strict=True)
    ]


def full_size(
    slices: Sequence[EncodedSlice], forms: Sequence[PlaneFormat], color: ColorOption, stream: torch.cuda.Stream
) -> tuple[list[torch.Tensor], list[SurfaceTarget]]:
    """Memory for RGB at full size, and the targets that write it.

    Args:
        slices: of a batch.
        forms: the planes of each slice's surfaces.
        color: the transform's option.
        stream: the current CUDA stream.

    Returns:
        for each slice a uint8 tensor [frames, height, width, 3] on the GPU, and its target.
    """
    import torch

    shapes = [(len(encoded.frames), form.height, form.width, 3) for encoded, form in zip(slices, forms, strict=True)]
    sizes = [*map(prod, shapes)]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=stream.device)
    starts = [flat.data_ptr() + at for at in accumulate(sizes, initial=0)]
    # Each call of PyTorch releases the GIL, which may take milliseconds to get back.
    if len(set(shapes)) == 1:
        frames = list(flat.view(len(shapes), *shapes[0]).unbind())
    else:
        frames = [part.view(shape) for part, shape in zip(flat.split_with_sizes(sizes), shapes, strict=True)]
    writes, windows, params = [], [], []
    for number, (encoded, form, first) in enumerate(zip(slices, forms, starts, strict=False)):
        meaning, size = encoded.color.chosen(color), (form.height, form.width)
        strides = (1, 3 * form.width, 3)
        params.append(clip_params(form, meaning, start=(0, 0), end=size, size=size, strides=strides))
        full_range = meaning.as_dali and meaning.full_range
        kernel = Kernel("uint8", form.bits > 8, as_dali=meaning.as_dali, full_range=full_range)
        windows.append(Window(0, form.height, 0, form.width))
        pixels = first + 3 * prod(size) * np.arange(len(encoded.frames))[:, None]
        writes.append([Writes(kernel, size, number, pixels)])
    return frames, make_targets(stream, writes, windows, params, [flat])
