"""Clips of noise through the transform's graph, without a dataset or a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat
from streamvid.color.tags import RGB
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.mp4.boxes import MIRRORED
from streamvid.transform.cpu_frame_renderer import RenderedFrames
from streamvid.transform.crop_boxes import Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.dali_pipeline import DaliPipeline, DecodedBatch
from streamvid.transform.draw import DRAWS
from streamvid.transform.params import ClipTransform, Params, batch_params
from streamvid.transform.spec import Transform, Views, by_view

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Clip:
    """A clip as it comes from the decoder, and what it is to become."""

    frames: Array
    gather: list[int]
    random: Array
    rotation: int = 0


def draws(seed: int, views: int = 1) -> Array:
    """Random numbers of a clip, as a plan might give them."""
    return np.random.default_rng([7, seed]).random(DRAWS * views)


def clip(
    height: int, width: int, *, decoded: int = 3, gather: list[int] | None = None, seed: int = 0, rotation: int = 0
) -> Clip:
    """Noise."""
    frames = np.random.default_rng([seed, height, width]).integers(0, 256, (decoded, height, width, 3), dtype=np.uint8)
    return Clip(frames, list(range(decoded)) if gather is None else gather, draws(seed), rotation)


def upright(frames: Array, rotation: int) -> Array:
    """Frames [frames, height, width, …] as they are to be seen."""
    return np.rot90(frames[:, :, ::-1] if rotation >= MIRRORED else frames, k=-rotation // 90, axes=(1, 2))


def params(transform: Transform | Views, batch: Sequence[Clip]) -> Params:
    """The parameters of those clips."""
    return batch_params(transform, encoded_batch(batch))


def torch_batches(
    transform: Transform | Views,
    *batches: Sequence[Clip],
    has_black_frames: bool | None = None,
    device_id: int | None = None,
    crop_resized: bool | None = None,
) -> list[dict[str, Any]]:
    """What comes out of DALI's pipeline for each batch. On the CPU, frames are cropped and resized before it where that
    is possible, unless `crop_resized` says no."""
    if crop_resized is None:
        crop_resized = device_id is None and fits_crop_resize(transform)
    every = [one for batch in batches for one in batch]
    if has_black_frames is None:
        has_black_frames = any(-1 in one.gather for one in every)
    runner = DaliPipeline(
        ClipTransform(
            transform,
            any(one.rotation % MIRRORED for one in every),
            has_black_frames,
            any(one.rotation >= MIRRORED for one in every),
        ),
        device_id=device_id,
        max_batch=max(len(batch) for batch in batches),
        threads=2,
        crop_resized=crop_resized,
    )
    decoded = (_decoded(transform, batch, device_id, crop_resized) for batch in batches)
    return [{name: value.cpu().clone() for name, value in made.items()} for _, made in runner.run(decoded)]


def video(transform: Transform, batch: Sequence[Clip], **options: Any) -> Array:
    """The frames of one batch."""
    (made,) = torch_batches(transform, batch, **options)
    return made["video"].numpy()  # type: ignore[no-any-return]


def encoded_batch(batch: Sequence[Clip]) -> EncodedBatch:
    """A batch of those clips, without anything to decode."""
    count, length = len(batch), len(batch[0].gather)
    return EncodedBatch(
        slices=[],
        clips=np.arange(count),
        epochs=np.zeros(count, dtype=np.int64),
        labels=np.zeros(count, dtype=np.int64),
        valid=np.ones(count, dtype=bool),
        mask=np.ones((count, length), dtype=bool),
        seconds=np.zeros((count, length)),
        heights=np.array([one.frames.shape[1] for one in batch]),
        widths=np.array([one.frames.shape[2] for one in batch]),
        rotations=np.array([one.rotation for one in batch]),
        gather=np.array([one.gather for one in batch]),
        random=np.stack([one.random for one in batch]),
        bytes_read=0,
        absent=np.full(count, -1),
    )


def _decoded(
    transform: Transform | Views, batch: Sequence[Clip], device_id: int | None, crop_resized: bool
) -> DecodedBatch:
    encoded = encoded_batch(batch)
    params = batch_params(transform, encoded)
    clips = [np.ascontiguousarray(one.frames) for one in batch]
    if crop_resized:
        return DecodedBatch(encoded, params, _crop_resized(transform, clips, encoded, params))
    if device_id is not None:
        return DecodedBatch(encoded, params, [[torch.from_numpy(one).to(f"cuda:{device_id}") for one in clips]])
    return DecodedBatch(encoded, params, [clips])


def _crop_resized(
    transform: Transform | Views, clips: Sequence[Array], encoded: EncodedBatch, params: Params
) -> list[list[Array]]:
    """Per view the frames of each clip, as the CPU's decoder writes them."""
    sinks = []
    boxes = crop_boxes(transform, params, encoded.heights, encoded.widths)
    for views, frames in zip(boxes, clips, strict=True):
        count, height, width, _ = frames.shape
        decoded: Any = SimpleNamespace(color=RGB, height=height, width=width, frames=range(count))
        sink = RenderedFrames(list(by_view(transform).values()), views, decoded, Scratch())
        for row, frame in enumerate(frames):
            sink.write(row, rgb_picture(frame))
        sinks.append(sink)
    return [list(view) for view in zip(*(sink.frames for sink in sinks), strict=True)]


def rgb_picture(frame: Array) -> Picture:
    """An RGB frame, uint8 [height, width, 3], as a decoder of planar RGB gives it."""
    height, width, _ = frame.shape
    red, green, blue = (np.ascontiguousarray(frame[..., channel]) for channel in range(3))
    return Picture((green, blue, red), PlaneFormat(height, width, (1, 1), 8, is_rgb=True), "gbrp")
