"""Clips of noise through the transform's graph, without a dataset or a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from streamvid.fetch.plan_samples import EncodedBatch
from streamvid.transform.cpu_crop_resize import CropResizedFrames, CropResizeSink, Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.dali_renderer import DecodedBatch, TorchBatches
from streamvid.transform.params import Fields, inputs
from streamvid.transform.spec import DRAWS, Transform, Views

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


def fields(transform: Transform | Views, batch: Sequence[Clip]) -> Fields:
    """What the graph takes for those clips."""
    return inputs(
        transform,
        heights=np.array([one.frames.shape[1] for one in batch]),
        widths=np.array([one.frames.shape[2] for one in batch]),
        rotations=np.array([one.rotation for one in batch]),
        gather=np.array([one.gather for one in batch]),
        random=np.stack([one.random for one in batch]),
    )


def torch_batches(
    transform: Transform | Views,
    *batches: Sequence[Clip],
    has_blanks: bool | None = None,
    device_id: int | None = None,
    placed: bool | None = None,
) -> list[dict[str, Any]]:
    """What comes out of DALI's graph for each batch, on the CPU. There frames are placed as far as can be, as the CPU's
    decoder hands them on, unless `placed` says no."""
    if placed is None:
        placed = device_id is None and fits_crop_resize(transform)
    every = [one for batch in batches for one in batch]
    runner = TorchBatches(
        transform,
        device_id=device_id,
        max_batch=max(len(batch) for batch in batches),
        threads=2,
        placed=placed,
        rotates=any(one.rotation for one in every),
        has_blanks=any(-1 in one.gather for one in every) if has_blanks is None else has_blanks,
    )
    return [
        {name: value.cpu().clone() for name, value in batch.items()}
        for batch in runner.over(iter([_decoded(transform, batch, device_id, placed) for batch in batches]))
    ]


def video(transform: Transform, batch: Sequence[Clip], **options: Any) -> Array:
    """The frames of one batch."""
    (made,) = torch_batches(transform, batch, **options)
    return made["video"].numpy()  # type: ignore[no-any-return]


def encoded_batch(transform: Transform | Views, batch: Sequence[Clip]) -> EncodedBatch:
    """A batch of those clips, without anything to decode."""
    slots = len(batch[0].gather)
    return EncodedBatch(
        slices=[],
        inputs=fields(transform, batch),
        clips=np.arange(len(batch)),
        labels=np.zeros(len(batch), dtype=np.int64),
        valid=np.ones(len(batch), dtype=bool),
        mask=np.ones((len(batch), slots), dtype=bool),
        seconds=np.zeros((len(batch), slots)),
        bytes_read=0,
    )


def _decoded(transform: Transform | Views, batch: Sequence[Clip], device_id: int | None, placed: bool) -> DecodedBatch:
    encoded = encoded_batch(transform, batch)
    frames = [np.ascontiguousarray(one.frames) for one in batch]
    if device_id is not None:
        return DecodedBatch(encoded, [torch.from_numpy(one).to(f"cuda:{device_id}") for one in frames])
    return DecodedBatch(encoded, _placed(transform, frames, encoded.inputs) if placed else frames)


def _placed(transform: Transform | Views, clips: Sequence[Array], inputs: Fields) -> list[list[Array]]:
    """As the CPU's decoder hands frames on."""
    placed = []
    for views, frames in zip(crop_boxes(transform, inputs, [one.shape[1:3] for one in clips]), clips, strict=True):
        pictures = CropResizedFrames(views, height=frames.shape[1], width=frames.shape[2], scratch=Scratch())
        canvas = CropResizeSink(pictures, [view.size for view in views], len(frames))
        for row, frame in enumerate(frames):
            canvas.write(row, [frame[..., channel] for channel in range(3)])
        placed.append(canvas.frames)
    return placed
