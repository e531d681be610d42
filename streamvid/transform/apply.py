"""Applies a transform to one clip or image without a loader, by the same code and with the same random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamvid.arrays import UInt8
from streamvid.checks import MAX_COUNT, integer, position
from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat
from streamvid.color.tags import RGB
from streamvid.decode.base import FrameSink, GpuFrames
from streamvid.decode.nvdec import missing_packages
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.plan.rng import AUGMENT, draws
from streamvid.transform.cpu_batch_writer import CpuBatchWriter, fits_batch_writer
from streamvid.transform.cpu_frame_renderer import RenderedFrames
from streamvid.transform.crop_boxes import Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.dali_graph import build_graph, input_names
from streamvid.transform.dali_pipeline import GraphOutputs
from streamvid.transform.gpu_pictures import GpuPictures, fits_one_pass, fits_surfaces
from streamvid.transform.output_size import output_sizes
from streamvid.transform.params import ClipTransform, batch_params
from streamvid.transform.spec import ONLY_VIEW, Transform, Views, by_view
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch


def apply_transform(
    transform: Transform | Views, frames: Any, *, seed: int = 0, epoch: int = 0, clip: int = 0
) -> torch.Tensor | dict[str, torch.Tensor]:
    """See `Transform.apply`."""
    if any(view.dali is not None for view in by_view(transform).values()):
        raise InputError("Transform(dali) is a part of a graph, which a loader builds: apply the transform without it")
    pixels, one_image = _checked(frames)
    on_gpu = not isinstance(pixels, np.ndarray)
    seed = integer(seed, "seed", least=0, most=None)
    epoch, clip = (position(number, name, MAX_COUNT) for number, name in ((epoch, "epoch"), (clip, "clip")))
    batch = _batch(pixels.shape, draws(seed, epoch, clip, transform.num_random, purpose=AUGMENT))
    output_sizes(transform, batch.heights, batch.widths, lambda _: "the frames")
    made = _apply(transform, pixels, batch, on_gpu=on_gpu)
    views = {name: made[name][0] for name in by_view(transform)}
    if one_image:
        views = {name: made.select(by_view(transform)[name].layout.index("T"), 0) for name, made in views.items()}
    return views if isinstance(transform, Views) else views[ONLY_VIEW]


def _apply(transform: Transform | Views, pixels: Any, batch: EncodedBatch, *, on_gpu: bool) -> dict[str, torch.Tensor]:
    """Transform decoded frames as `streamvid.transform.render` does."""
    import torch

    params = batch_params(transform, batch)
    crop_resized = fits_surfaces(transform) and not missing_packages() if on_gpu else fits_crop_resize(transform)
    inputs: Sequence[Any] = [pixels]
    if crop_resized and on_gpu:
        stream, final = torch.cuda.current_stream(pixels.device), fits_one_pass(transform)
        pictures = GpuPictures(transform, batch, params, stream=stream, scratch=Scratch(), final=final)
        pictures.put_rgb({0: GpuFrames.of(pixels)})
        if final:
            return pictures.tensors
        inputs = [frames for (frames,) in pictures.frames]
        stream.synchronize()  # DALI works on a stream of its own
    elif crop_resized and fits_batch_writer(transform):
        writer = CpuBatchWriter(transform, batch, Scratch())
        _write(writer.sinks[0], pixels)
        return writer.tensors
    elif crop_resized:
        (boxes,) = crop_boxes(transform, params, batch.heights, batch.widths)
        sink = RenderedFrames(list(by_view(transform).values()), boxes, batch.slices[0], Scratch())
        _write(sink, pixels)
        inputs = sink.frames
    from nvidia.dali.experimental import dynamic

    outputs = GraphOutputs(ClipTransform(transform, rotates=False, has_black_frames=False), on_gpu=on_gpu)
    tensors = [dynamic.as_tensor(array, layout="FHWC") for array in inputs]
    own = {name: params[name][0] for name in input_names(outputs.spec, crop_resized=crop_resized)}
    made = build_graph(outputs.spec, tensors, own, crop_resized=crop_resized)
    views = {name: output.torch()[None] for name, output in zip(outputs.views, made, strict=True)}
    columns = {name: torch.tensor(column, device="cpu") for name, column in batch.columns().items()}
    return outputs.finish({**views, **columns}, batch)


def _write(sink: FrameSink, pixels: UInt8) -> None:
    _, height, width, _ = pixels.shape
    form = PlaneFormat(height, width, (1, 1), 8, is_rgb=True)
    for row, frame in enumerate(pixels):
        red, green, blue = (np.ascontiguousarray(frame[..., channel]) for channel in range(3))
        sink.write(row, Picture((green, blue, red), form, "gbrp"))


def _checked(frames: Any) -> tuple[Any, bool]:
    """The frames [F, H, W, 3], a NumPy array or a tensor on a GPU, and whether one image was given."""
    import torch

    if isinstance(frames, torch.Tensor) and not frames.is_cuda:
        frames = frames.numpy()
    given = frames if isinstance(frames, torch.Tensor) else np.asarray(frames)
    if given.ndim not in (3, 4) or given.shape[-1] != 3 or 0 in given.shape or str(given.dtype)[-5:] != "uint8":
        what = f"{given.dtype} {list(given.shape)}"
        raise InputError(f"a transform is applied to uint8 [F, H, W, 3] or [H, W, 3], RGB as decoded; this is {what}")
    whole = given[None] if given.ndim == 3 else given
    return (whole.contiguous() if isinstance(whole, torch.Tensor) else np.ascontiguousarray(whole)), given.ndim == 3


def _batch(shape: Sequence[int], random: Any) -> EncodedBatch:
    """A batch of one clip whose frames are given."""
    count, height, width, _ = shape
    zero, numbers = np.zeros(1, dtype=np.int64), np.arange(count, dtype=np.int64)
    sizes = np.array([[height], [width]], dtype=np.int64)
    decoded = EncodedSlice("", "", b"", width, height, RGB, np.zeros(0, np.uint8), zero, numbers, numbers)
    return EncodedBatch(
        slices=[decoded],
        clips=zero,
        epochs=zero,
        labels=zero,
        valid=np.ones(1, dtype=np.bool_),
        mask=np.ones((1, count), dtype=np.bool_),
        seconds=np.zeros((1, count)),
        heights=sizes[0],
        widths=sizes[1],
        rotations=zero,
        gather=numbers[None],
        random=random[None],
        bytes_read=0,
        absent=zero - 1,
    )
