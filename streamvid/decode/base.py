"""The interfaces of decoders: between reading packets and rendering tensors.

A decoder knows neither datasets nor transforms. It takes `EncodedSlice`s and returns their wanted frames as arrays; the
decoder on the CPU can also write each frame into a `FrameSink` as soon as it is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat, Targets

if TYPE_CHECKING:
    import torch

Frames: TypeAlias = "UInt8 | torch.Tensor"
"""Frames of one clip, RGB, uint8 [frames, height, width, 3]: a NumPy array, or a tensor on the GPU."""

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True)
class GpuFrames:
    """Frames of one slice in a GPU's memory, RGB, uint8 [height, width, 3] each. Not a tensor for each: making one
    releases the GIL, which may take milliseconds to get back.

    Attributes:
        memory: uint8 [bytes]; it may have frames of other slices, too.
        starts: int64 [frames], the index in it of each frame's first byte.
        height, width: of a frame, in pixels.
    """

    memory: torch.Tensor
    starts: Int64
    height: int
    width: int

    @staticmethod
    def of(frames: torch.Tensor) -> GpuFrames:
        """From a tensor, uint8 [frames, height, width, 3]."""
        count, height, width, _ = frames.shape
        starts = np.arange(count, dtype=np.int64) * (3 * height * width)
        return GpuFrames(frames.reshape(-1), starts, height, width)

    def tensor(self) -> torch.Tensor:
        """uint8 [frames, height, width, 3]; shares the memory if it is one frame."""
        import torch

        shape = self.height, self.width, 3
        frames = [self.memory[start : start + math.prod(shape)].view(shape) for start in self.starts.tolist()]
        return torch.stack(frames) if len(frames) > 1 else frames[0][None]


@dataclass(frozen=True)
class Pending(Generic[Result]):
    """Work in progress.

    Attributes:
        result: waits for the work, and returns its result or raises its error. To be called once.
        done: whether `result` returns without waiting; True also if that is unknown.
    """

    result: Callable[[], Result]
    done: Callable[[], bool] = lambda: True


PendingFrames: TypeAlias = Pending[Sequence[Frames]]
"""The frames of each slice of a batch, in order; `result` raises VideoError if a slice does not decode to its
frames."""


class FrameSink(Protocol):
    """Takes the frames of one slice from the CPU's decoder, each as soon as it is decoded."""

    def write(self, row: int, picture: Picture) -> None:
        """Take one frame. Frames come in any order, from any thread, each once.

        Args:
            row: the frame's index in `EncodedSlice.frames`.
            picture: the frame; valid until this returns.
        """

    def targets(self, form: PlaneFormat) -> Targets | None:
        """The targets to which C may write frames of a plane format, instead of calling `write`; None if there are
        none."""
        return None
