"""Puts the frames of a batch into its tensors on the GPU: one kernel writes each picture from NVDEC's surface.

Frames of clips that the CPU decodes are cropped and resized on the CPU, and copied to the GPU together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.color import surfaces
from streamvid.color.render import PlaneFormat
from streamvid.color.surfaces import (
    MOST_PICTURES,
    Kernel,
    Window,
    clip_params,
    color_change,
    has_long_lines,
    source_window,
)
from streamvid.color.tags import RGB, Color
from streamvid.decode.base import GpuFrames
from streamvid.decode.surface_target import SurfaceTarget, Writes, make_targets
from streamvid.transform.cpu_frame_renderer import RenderedFrames, as_written
from streamvid.transform.crop_boxes import CropBox, Scratch, as_decoded, crop_boxes, fits_crop_resize
from streamvid.transform.params import Params
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    import torch

    from streamvid.fetch.encoded_batch import EncodedBatch

_COLOURS: Final = ("brightness", "contrast", "saturation", "hue")


def fits_surfaces(transform: Transform | Views) -> bool:
    """Whether the kernel can crop, resize and convert for all views in the transform's order."""
    return fits_crop_resize(transform) and not any(view.converts_first for view in by_view(transform).values())


def fits_one_pass(transform: Transform | Views) -> bool:
    """Whether the kernel can do the whole transform."""
    return fits_surfaces(transform) and not any(view.needs_graph for view in by_view(transform).values())


class GpuPictures:
    """The memory of a batch on the GPU, into which decoders put frames (`streamvid.decode.gpu.PictureSink`).

    Args:
        transform: a transform that `fits_surfaces`.
        batch: the batch.
        params: the transform's parameters for its clips.
        stream: the current CUDA stream, on which memory is allocated.
        scratch: scratch memory on the CPU.
        final: True: make the model's tensors, for a transform that `fits_one_pass`. False: make cropped and resized
            frames for DALI.

    Attributes:
        tensors: if `final`, by view [batch, …] in its layout and dtype.
        frames: if not `final`, for each view and clip uint8 [frames, height, width, 3].
    """

    def __init__(
        self,
        transform: Transform | Views,
        batch: EncodedBatch,
        params: Params,
        *,
        stream: torch.cuda.Stream,
        scratch: Scratch,
        final: bool,
    ) -> None:
        self._batch, self._stream, self._scratch = batch, stream, scratch
        self._boxes = crop_boxes(transform, params, batch.heights, batch.widths)
        self._sinks: dict[int, RenderedFrames] = {}
        self._views = [
            _View(name, spec, batch, params, [boxes[number] for boxes in self._boxes], stream, final=final)
            for number, (name, spec) in enumerate(by_view(transform).items())
        ]
        self.tensors = {view.name: view.tensor for view in self._views}
        self.frames = [view.frames for view in self._views]

    def targets(self, numbers: Sequence[int], forms: Sequence[PlaneFormat]) -> list[SurfaceTarget]:
        """The targets of clips that decode sessions decode.

        Args:
            numbers: the clips' numbers in the batch.
            forms: the planes of their surfaces.
        """
        params: list[Int64] = []
        writes: list[list[Writes]] = []
        windows: list[Window] = []
        for clip, form in zip(numbers, forms, strict=True):
            encoded = self._batch.slices[clip]
            made, seen = [], []
            for view in self._views:
                part = view.part(clip, form)
                row, first, each, size = view.params(clip, form, encoded.color, part)
                made.append(Writes(view.kernel(form, part), size, len(params), view.pixels(clip, first, each)))
                params.append(row)
                seen.append(source_window(form, start=part.start, end=part.end, size=part.size))
            writes.append(made)
            windows.append(reduce(Window.joined, seen))
        return make_targets(self._stream, writes, windows, params, [view.tensor for view in self._views])

    def sinks(self, numbers: Sequence[int]) -> list[RenderedFrames]:
        """Frame sinks for clips that the CPU decodes, by their numbers in the batch."""
        for clip in numbers:
            transforms = [view.transform for view in self._views]
            self._sinks[clip] = RenderedFrames(transforms, self._boxes[clip], self._batch.slices[clip], self._scratch)
        return [self._sinks[clip] for clip in numbers]

    def upload(self) -> None:
        """Copy the frames in the sinks to the GPU and put them into the tensors; returns when that is done."""
        import torch

        made = [(view, clip, frames) for clip, sink in self._sinks.items()
                for view, frames in zip(self._views, sink.frames, strict=True)]  # fmt: skip
        if not made:
            return
        pinned = torch.empty(sum(frames.size for *_, frames in made), dtype=torch.uint8, device="cpu", pin_memory=True)
        np.concatenate([frames.reshape(-1) for *_, frames in made], out=pinned.numpy())
        sent = pinned.to(self._stream.device, non_blocking=True)
        parts = torch.split(sent, [frames.size for *_, frames in made])
        for (view, clip, frames), part in zip(made, parts, strict=True):
            view.put(clip, part.view(frames.shape))
        self._stream.synchronize()

    def put_rgb(self, made: Mapping[int, GpuFrames]) -> None:
        """Crop and resize frames that DALI has decoded, and put them into the tensors.

        Args:
            made: by the clip's number in the batch. May be freed when the work queued on the stream is done.
        """
        for view in self._views:
            view.put_rgb(made)


class _View:
    """One view of the batch."""

    def __init__(
        self,
        name: str,
        transform: Transform,
        batch: EncodedBatch,
        params: Params,
        boxes: Sequence[CropBox],
        stream: torch.cuda.Stream,
        *,
        final: bool,
    ) -> None:
        import torch

        self.name, self.transform, self._batch, self._boxes, self._final = name, transform, batch, boxes, final
        self.dtype, self.recolours = transform.dtype if final else "uint8", final and transform.recolours
        self._mean_std = ([0.0] * 3, [1.0] * 3)  # in levels
        if self.dtype != "uint8":
            mean, std = transform.mean_std
            self._mean_std = ([255 * value for value in mean], [255 * value for value in std])
        self._params = {
            parameter: params.get(f"{name}.{parameter}") for parameter in ("mirror", "upside_down", *_COLOURS)
        }
        self.frames: list[torch.Tensor] = []
        if final:
            lengths = {"T": batch.gather.shape[1], "C": 3, "H": boxes[0].size[0], "W": boxes[0].size[1]}
            axes = [lengths[axis] for axis in transform.layout]
            self.tensor = torch.empty((len(boxes), *axes), dtype=getattr(torch, transform.dtype), device=stream.device)
            order = [transform.layout.index(axis) for axis in "TCHW"]
            self._whole = self.tensor.permute(0, *(1 + axis for axis in order))
            self._blacken()
        else:
            shapes = [(len(encoded.frames), *box.size, 3) for encoded, box in zip(batch.slices, boxes, strict=True)]
            self.tensor = torch.empty(sum(map(prod, shapes)), dtype=torch.uint8, device=stream.device)
            parts = torch.split(self.tensor, [prod(shape) for shape in shapes])
            self.frames = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def positions(self, clip: int) -> list[list[int]]:
        """For each decoded frame of a clip, the indices of the pictures that show it."""
        count = len(self._batch.slices[clip].frames)
        if not self._final:
            return [[row] for row in range(count)]
        found: list[list[int]] = [[] for _ in range(count)]
        for position, row in enumerate(self._batch.gather[clip].tolist()):
            if row >= 0:
                found[row].append(position)
        return found

    def pixels(self, clip: int, first: int, each: int) -> Int64:
        """The addresses of the pictures of a clip's frames, as in `Writes`.

        Args:
            clip: its number in the batch.
            first: address of its first picture.
            each: bytes from a picture to the next.
        """
        count = len(self._batch.slices[clip].frames)
        if not self._final or self._batch.gather[clip].tolist() == [*range(count)]:  # as usual
            return np.array([first + each * at for at in range(count)], dtype=np.int64)[:, np.newaxis]
        positions = self.positions(clip)
        most = max(map(len, positions), default=0)
        addresses = [[first + each * at for at in some] + [0] * (most - len(some)) for some in positions]
        return np.array(addresses, dtype=np.int64).reshape(len(positions), most)

    def part(self, clip: int, form: PlaneFormat) -> CropBox:
        """The part of a clip's frames that the view shows, before rotation."""
        return as_decoded(self._boxes[clip], form.height, form.width)

    def params(
        self, clip: int, form: PlaneFormat, color: Color, part: CropBox
    ) -> tuple[Int64, int, int, tuple[int, int]]:
        """For the kernel: the clip's parameters, the address of its first picture, the bytes from a picture to the
        next, and the size in which pictures are written, before rotation."""
        # Without a tensor for the clip: making one releases the GIL, which may take milliseconds to get back.
        size, box = self.tensor.element_size(), self._boxes[clip]
        address, shape, steps = self._layout(clip)
        layout = _layout_as_decoded(shape, steps[1:], self._flips(clip), turns=box.turns, mirrored=box.mirrored)
        mean, std = self._mean_std
        made = clip_params(
            form,
            color.chosen(self.transform.color),
            start=part.start,
            end=part.end,
            size=layout.size,
            strides=layout.strides,
            mean=mean,
            std=std,
            change=self._change(clip),
        )
        return made, address + size * layout.first, size * steps[0], layout.size

    def kernel(self, form: PlaneFormat, part: CropBox) -> Kernel:
        """The kernel for surfaces of which the view shows this part."""
        long_lines = has_long_lines(start=part.start, end=part.end, size=part.size)
        return Kernel(self.dtype, form.bits > 8, recolours=self.recolours, long_lines=long_lines)

    def put(self, clip: int, levels: torch.Tensor) -> None:
        """Put frames of a clip that the CPU has cropped and resized, uint8 [frames, height, width, 3], into the
        tensors, finished as the kernel would."""
        import torch

        if not self._final:
            self.frames[clip].copy_(levels)
            return
        made = levels.permute(0, 3, 1, 2).float()
        second = self._change(clip)
        if second is not None:
            factors = torch.tensor(second, dtype=torch.float32, device=levels.device)
            made = torch.einsum("ck,fkhw->fchw", factors[:, :3], made) + factors[:, 3, None, None]
            made = (made.clamp_(0, 255) + 0.5).floor_()
        mean, std = (torch.tensor(values, device=levels.device)[:, None, None] for values in self._mean_std)
        made = (made - mean) * (1 / std) if self.dtype != "uint8" else made
        made = made.flip([2 + axis for axis, flipped in enumerate(self._flips(clip)) if flipped])
        for row, positions in enumerate(self.positions(clip)):
            for position in positions:
                self._pictures(clip)[position].copy_(made[row])

    def put_rgb(self, made: Mapping[int, GpuFrames]) -> None:
        """See `GpuPictures.put_rgb`."""
        import torch

        rows: list[tuple[int, int, int, int, int]] = []
        params: list[Int64] = []
        largest = (0, 0)
        for clip, frames in made.items():
            form = PlaneFormat(frames.height, frames.width, (1, 1), 8)
            row, first, each, size = self.params(clip, form, RGB, self.part(clip, form))
            memory = frames.memory.data_ptr()
            for start, positions in zip(frames.starts.tolist(), self.positions(clip), strict=True):
                rows += [(memory + start, 3 * frames.width, 0, first + each * at, len(params)) for at in positions]
            params.append(row)
            largest = max(largest[0], size[0]), max(largest[1], size[1])
        if not rows:
            return
        device = self.tensor.device
        of_clips, table = torch.from_numpy(np.stack(params)).to(device), torch.tensor(rows, device="cpu")
        table[:, 4] = of_clips.data_ptr() + of_clips[:1].nbytes * table[:, 4]
        kernel = Kernel(self.dtype, wide=False, recolours=self.recolours, rgb=True)
        for some in torch.split(table.to(device), MOST_PICTURES):
            surfaces.launch(kernel, some, len(some), largest)

    def _layout(self, clip: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The address of a clip's pictures, their shape (channels, height, width), and their strides (picture, channel,
        line, pixel) in elements."""
        if self._final:
            steps, shape = self._whole.stride(), self._whole.shape[2:]
            return self.tensor.data_ptr() + clip * steps[0] * self.tensor.element_size(), shape, steps[1:]
        frames = self.frames[clip]
        _, height, width, _ = frames.shape
        return frames.data_ptr(), (3, height, width), (3 * height * width, 1, 3 * width, 3)

    def _pictures(self, clip: int) -> torch.Tensor:
        """The pictures of a clip, [frames, 3, height, width]."""
        return self._whole[clip] if self._final else self.frames[clip].permute(0, 3, 1, 2)

    def _flips(self, clip: int) -> tuple[bool, bool]:
        """Whether a picture's rows and columns are flipped by the clip's parameters."""
        rows, columns = (self._params[name] for name in ("upside_down", "mirror"))
        return (
            self._final and rows is not None and bool(rows[clip]),
            self._final and columns is not None and bool(columns[clip]),
        )

    def _change(self, clip: int) -> Float64 | None:
        if not self.recolours:
            return None
        return color_change(**{name: float(self._params[name][clip]) for name in _COLOURS})  # type: ignore[index]

    def _blacken(self) -> None:
        """Make the pictures black that have no frame."""
        import torch

        black = np.argwhere(self._batch.gather < 0).tolist()
        if not black:
            return
        mean, std = self._mean_std
        values = [-value / spread for value, spread in zip(mean, std, strict=True)]
        level = torch.tensor(values, device=self.tensor.device)[:, None, None]
        for clip, position in black:
            picture = self._pictures(clip)[position]
            picture.copy_(level.expand_as(picture))


class _PictureLayout(NamedTuple):
    """Where and how a picture is written as it is decoded, before rotation and flipping.

    Attributes:
        first: the index of its first pixel.
        size: height and width.
        strides: of its channels, lines and pixels.
    """

    first: int
    size: tuple[int, int]
    strides: tuple[int, int, int]


@lru_cache(maxsize=1024)
def _layout_as_decoded(
    shape: tuple[int, ...], steps: tuple[int, ...], flips: tuple[bool, bool], *, turns: int, mirrored: bool
) -> _PictureLayout:
    """The layout of an upright picture [3, height, width] with these strides, all in elements."""
    # A dummy array, never accessed, whose views have the layout.
    whole = np.lib.stride_tricks.as_strided(np.empty(0, dtype=np.uint8), shape, steps)
    rows, columns = (slice(None, None, -1 if flip else 1) for flip in flips)
    out = as_written(whole[:, rows, columns], turns=turns, mirrored=mirrored)
    first: int = out.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    height, width = out.shape[1:]
    channel, line, pixel = out.strides
    return _PictureLayout(first, (height, width), (channel, line, pixel))
