"""Batches that are made without DALI, against DALI's graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streamvid.color.tags import RGB
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.transform.cpu_batch_writer import BatchMemory, CpuBatchWriter, fits_batch_writer
from streamvid.transform.crop_boxes import Scratch
from streamvid.transform.draw import Draw
from streamvid.transform.spec import Transform, Views, by_view
from streamvid.video.packet_selection import EncodedSlice
from tests.support.views import Clip, clip, encoded_batch, rgb_picture, torch_batches


def finished(transform: Transform | Views, clips: list[Clip]) -> dict[str, Any]:
    """The views, frames given to the sinks in any order."""
    writer = CpuBatchWriter(transform, _with_slices(encoded_batch(clips), clips), Scratch())
    for sink, one in zip(writer.sinks, clips, strict=True):
        for row in np.random.default_rng(0).permutation(len(one.frames)).tolist():
            sink.write(row, rgb_picture(one.frames[row]))
    return writer.tensors


def _with_slices(batch: EncodedBatch, clips: list[Clip]) -> EncodedBatch:
    none = np.zeros(0, dtype=np.int64)
    for one in clips:
        count, height, width, _ = one.frames.shape
        batch.slices.append(
            EncodedSlice("a", "h264", b"", width, height, RGB, none.view(np.uint8), none, none, np.arange(count), True)
        )
    return batch


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("layout", ["CTHW", "TCHW", "THWC"])
@pytest.mark.parametrize("normalise", [True, False])
def test_numbers_are_those_of_dalis_graph(dtype: Any, layout: Any, normalise: bool) -> None:
    options: dict[str, Any] = {"layout": layout, "dtype": dtype, "horizontal_flip": 0.5, "vertical_flip": normalise}
    if normalise and dtype != "uint8":
        options |= {"mean": (0.4, 0.45, 0.5), "std": (0.2, 0.25, 0.3)}
    transform = Transform(resize=50, crop=(40, 44), **options)
    # Repeated frames, black pictures, and a frame that no slot shows.
    batch = [
        clip(60, 81, gather=gather, seed=n) for n, gather in enumerate(([0, 1, 2, 2], [2, 0, -1, -1], [1, 1, 1, 0]))
    ]
    for n, one in enumerate(batch):
        one.random[Draw.FLIP], one.random[Draw.VERTICAL_FLIP] = n % 2, n // 2
    (wanted,) = torch_batches(transform, batch)
    got = finished(transform, batch)["video"]
    assert (got.dtype, got.shape) == (wanted["video"].dtype, wanted["video"].shape)
    if dtype == "uint8":
        np.testing.assert_array_equal(got.numpy(), wanted["video"].numpy())
    else:
        # A float16 has 11 bits.
        limits = {"rtol": 2**-10, "atol": 1e-4} if dtype == "float16" else {"rtol": 2e-6, "atol": 1e-6}
        np.testing.assert_allclose(got.float().numpy(), wanted["video"].float().numpy(), **limits)


def test_wide_pictures_in_float16() -> None:
    """More than 2 ** 15 pixels in a line, and lines that no piece holds a whole number of."""
    for height, width in ((2, 40_000), (300, 211)):
        batch = [clip(height, width, decoded=1)]
        got = finished(Transform(dtype="float16", layout="THWC"), batch)["video"]
        np.testing.assert_allclose(got[0].float().numpy(), batch[0].frames / 255, atol=3e-4)


def test_several_views() -> None:
    views = Views({
        "whole": Transform(layout="THWC", dtype="uint8"),
        "small": Transform(random_resized_crop=(0.1, 0.4), crop=16, horizontal_flip=0.5, dtype="float32"),
    })  # fmt: skip
    batch = [Clip(one.frames, one.gather, np.tile(one.random, 2)) for one in (clip(60, 80, seed=n) for n in range(3))]
    (wanted,) = torch_batches(views, batch)
    got = finished(views, batch)
    assert list(got) == ["whole", "small"]
    np.testing.assert_array_equal(got["whole"].numpy(), wanted["whole"].numpy())
    np.testing.assert_allclose(got["small"].numpy(), wanted["small"].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"rotate": 5}, {"brightness": 0.1}, {"contrast": 0.1}, {"saturation": 0.1}, {"hue": 5}, {"grayscale": 0.1},
        {"blur": 0.1}, {"erase": 0.1}, {"dali": lambda frames: frames}, {"resize": 8, "interpolation": "bicubic"},
    ],
)  # fmt: skip
def test_what_is_left_to_dali(options: dict[str, Any]) -> None:
    assert not fits_batch_writer(Transform(**options))
    assert not fits_batch_writer(Views({"a": Transform(), "b": Transform(**options)}))
    for one in by_view(
        Views({"a": Transform(), "b": Transform(resize=8, crop=8, horizontal_flip=0.5, vertical_flip=0.5)})
    ).values():
        assert fits_batch_writer(one)


def test_memory_is_used_again_when_nobody_refers_to_it_any_more() -> None:
    memory, shape = BatchMemory(), (2, 3, 512, 1024)
    one: Any = memory.empty(shape, np.uint8)
    address = one.ctypes.data
    assert one.shape == shape
    assert one.flags.writeable
    held: Any = torch.from_numpy(one)[1, 2, 5:, 7].unsqueeze(0)
    del one
    other: Any = memory.empty(shape, np.uint8)
    assert other.ctypes.data != address, "a part of it is held"
    other[:] = 7
    held.fill_(9)
    assert (other == 7).all()
    del held
    again: Any = memory.empty((3, 512, 1024), np.float16)
    assert again.ctypes.data == address
    assert not np.shares_memory(again, other)


def test_memory_that_waits_is_bounded_and_of_about_the_size() -> None:
    memory = BatchMemory()
    arrays: Any = [memory.empty((4 << 20,), np.uint8) for _ in range(5)]
    addresses = {one.ctypes.data for one in arrays}
    assert len(addresses) == 5
    del arrays
    waiting = {one.ctypes.data for one in memory._free}  # those given back may be of use to anyone
    assert len(waiting) == 2
    assert waiting <= addresses
    small: Any = memory.empty((1 << 20,), np.uint8)
    assert small.ctypes.data not in waiting, "of a quarter of the size"
    rest: Any = memory.empty((3 << 20,), np.uint8)
    assert rest.ctypes.data in waiting
