"""The interfaces of decoders: between reading packets and rendering tensors.

A decoder knows neither datasets nor transforms. It takes `EncodedSlice`s and returns their wanted frames as arrays; the
decoder on the CPU can also write each frame into a `FrameSink` as soon as it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from streamvid.arrays import UInt8
from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat, Targets

if TYPE_CHECKING:
    import torch

Frames: TypeAlias = "UInt8 | torch.Tensor"
"""Frames of one clip, RGB, uint8 [frames, height, width, 3]: a NumPy array, or a tensor on the GPU."""

Result = TypeVar("Result", covariant=True)


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
