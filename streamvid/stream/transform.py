"""Frames → the model's tensor: one DALI graph on either device, and one random draw for all frames of a clip.

Every random number comes in from the plan, so that a clip looks the same in an epoch wherever and whenever it is
decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from streamvid.errors import InputError

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Layout = Literal["FHWC", "FCHW", "CFHW"]
DType = Literal["uint8", "float16", "float32"]
LAYOUTS: Final[tuple[Layout, ...]] = ("FHWC", "FCHW", "CFHW")
DTYPES: Final[tuple[DType, ...]] = ("uint8", "float16", "float32")
_MAX_SIDE: Final = 16384


@dataclass(frozen=True)
class Transform:
    """What is done to a clip's frames, in this order: stand upright, resize, crop, flip, normalise, lay out.

    Attributes:
        resize: the short side in pixels, or (height, width) exactly.
        crop: a square of that many pixels, or (height, width), cut from the resized frames.
        random_crop: at a random place; False: from the centre.
        flip: mirror left and right every other clip, at random.
        mean, std: per channel R, G, B, in units of the full range: (value / 255 - mean) / std. For float dtypes alone.
        layout: of one clip: F frames, H height, W width, C channels.
        dtype: "uint8" (0 to 255), or a float type (0 to 1 before mean and std).
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    random_crop: bool = True
    flip: bool = False
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    layout: Layout = "CFHW"
    dtype: DType = "float32"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            value = getattr(self, name)
            if value is None:
                continue
            sides = value if isinstance(value, tuple) else (value,)
            if len(sides) not in (1, 2) or any(not _is_side(side) for side in sides):
                raise InputError(
                    f"Transform({name}) must be a number of pixels or (height, width), each from 1 to {_MAX_SIDE}; "
                    f"it is {value!r}"
                )
        if self.layout not in LAYOUTS:
            raise InputError(f"Transform(layout) must be one of {', '.join(LAYOUTS)}; it is {self.layout!r}")
        if self.dtype not in DTYPES:
            raise InputError(f"Transform(dtype) must be one of {', '.join(DTYPES)}; it is {self.dtype!r}")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is None:
                continue
            if self.dtype == "uint8":
                raise InputError(f"Transform({name}) needs a float dtype: give dtype='float16' or 'float32'")
            if not _are_channels(value) or (name == "std" and any(v == 0 for v in value)):
                raise InputError(
                    f"Transform({name}) must be three numbers{', none of them 0' if name == 'std' else ''}; "
                    f"it is {value!r}"
                )
            object.__setattr__(self, name, tuple(float(v) for v in value))

    @property
    def draws(self) -> int:
        """Random numbers per clip: crop x, crop y, flip."""
        return 3

    def for_evaluation(self) -> Transform:
        """The same without chance: the centre crop, and no flip."""
        return replace(self, random_crop=False, flip=False)


def _is_side(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(1 <= value <= _MAX_SIDE)


def _are_channels(value: object) -> bool:
    """Whether it is three finite numbers."""
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return numbers.shape == (3,) and bool(np.isfinite(numbers).all())


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def resized(transform: Transform, heights: Int64, widths: Int64) -> Int64:
    """Sizes after resizing.

    Args:
        transform: what to do.
        heights, widths: int64 [clips], of upright frames.

    Returns:
        int64 [clips, 2]: height, width.
    """
    sizes = np.stack([heights, widths], axis=1)
    if transform.resize is None:
        return sizes
    if isinstance(transform.resize, tuple):
        return np.broadcast_to(np.array(transform.resize, dtype=np.int64), sizes.shape)
    short = sizes.min(axis=1, keepdims=True)
    scaled = np.floor(sizes * transform.resize / short + 0.5).astype(np.int64)
    return np.asarray(np.maximum(scaled, 1), dtype=np.int64)


def output_size(transform: Transform, heights: Int64, widths: Int64, names: Sequence[str]) -> tuple[int, int]:
    """Height and width of every clip that comes out.

    Args:
        transform: what to do.
        heights, widths: int64 [clips], of upright frames.
        names: the clips' keys, for the error.

    Raises:
        InputError: a clip is smaller than the crop, or clips come out in different sizes, so that they fit no batch.
    """
    sizes = resized(transform, heights, widths)
    if transform.crop is not None:
        crop = np.array(_pair(transform.crop))
        small = np.flatnonzero((sizes < crop).any(axis=1))
        if len(small):
            first = int(small[0])
            raise InputError(
                f"the crop of {crop[0]}x{crop[1]} (height x width) is larger than the frames of {len(small)} clips, "
                f"such as {names[first]} with "
                f"{sizes[first, 0]}x{sizes[first, 1]}: give Transform a larger resize or a smaller crop"
            )
        return int(crop[0]), int(crop[1])
    different = np.flatnonzero((sizes != sizes[0]).any(axis=1))
    if len(different):
        other = int(different[0])
        raise InputError(
            f"clips come out in different sizes, such as {names[0]} with {sizes[0, 0]}x{sizes[0, 1]} and "
            f"{names[other]} with {sizes[other, 0]}x{sizes[other, 1]} (height x width): "
            "give Transform a crop, or a resize of (height, width)"
        )
    return int(sizes[0, 0]), int(sizes[0, 1])


@dataclass(frozen=True)
class Inputs:
    """What the graph takes per clip, beside the frames.

    Attributes:
        gather: int32 [slots], which decoded frame each slot shows.
        shown: uint8 [slots, 1, 1, 1], 1, or 0 for a slot that shows a black picture instead.
        angle: float32 [], degrees counterclockwise to stand the frames upright.
        size: float32 [2], height and width of what comes out.
        start, end: float32 [2], the part of the upright frame that is resized to it: y and x, in its pixels.
        mirror: int32 [], 1 to flip.
    """

    gather: npt.NDArray[np.int32]
    shown: npt.NDArray[np.uint8]
    angle: npt.NDArray[np.float32]
    size: npt.NDArray[np.float32]
    start: npt.NDArray[np.float32]
    end: npt.NDArray[np.float32]
    mirror: npt.NDArray[np.int32]


def needed(transform: Transform, *, rotates: bool, has_blanks: bool) -> tuple[str, ...]:
    """Names of the fields of `Inputs` that the graph has a use for; arguments as for `graph`."""
    uses = {
        "gather": True,
        "shown": has_blanks,
        "angle": rotates,
        "size": transform.resize is not None or transform.crop is not None,
        "start": transform.crop is not None,
        "end": transform.resize is not None and transform.crop is not None,
        "mirror": transform.flip,
    }
    return tuple(name for name, used in uses.items() if used)


def inputs(transform: Transform, *, height: int, width: int, rotation: int, gather: Int64, random: Floats) -> Inputs:
    """The graph's inputs for one clip.

    Args:
        transform: what to do.
        height, width: of decoded frames, before rotation.
        rotation: degrees clockwise that stand them upright: 0, 90, 180 or 270.
        gather: int64 [slots], which decoded frame each slot shows; -1 for a black picture.
        random: float64 [transform.draws], uniform in [0, 1).
    """
    upright = np.array((width, height) if rotation % 180 else (height, width), dtype=np.int64)
    size = resized(transform, upright[:1], upright[1:])[0]
    corner, crop = np.zeros(2), size
    if transform.crop is not None:
        crop = np.array(_pair(transform.crop))
        place = random[1::-1] if transform.random_crop else np.array([0.5, 0.5])
        # Every place is as likely as any other: there is one more than pixels to spare.
        corner = np.floor((size - crop + 1) * place)
    return Inputs(
        gather=np.maximum(gather, 0).astype(np.int32),
        shown=(gather >= 0).astype(np.uint8).reshape(-1, 1, 1, 1),
        angle=np.array(-rotation % 360, dtype=np.float32),
        size=crop.astype(np.float32),
        start=(corner * upright / size).astype(np.float32),
        end=((corner + crop) * upright / size).astype(np.float32),
        mirror=np.array(int(transform.flip and random[2] < 0.5), dtype=np.int32),
    )


def graph(
    transform: Transform, frames: DataNode, given: Mapping[str, DataNode], *, rotates: bool, has_blanks: bool
) -> DataNode:
    """The transform as DALI operators, inside a pipeline definition, on the device where the frames are.

    Args:
        transform: what to do.
        frames: uint8 [decoded, height, width, 3], layout FHWC.
        given: the fields of `Inputs` that are `needed`, as nodes of the graph.
        rotates: some clips are to be turned; without, the graph has no operator for it.
        has_blanks: some slots may show a black picture; likewise.
    """
    from nvidia.dali import fn, types

    if rotates:
        frames = fn.rotate(frames, angle=given["angle"], interp_type=types.INTERP_NN, keep_size=False)
    if transform.resize is not None and transform.crop is not None:
        # Only the pixels that the crop keeps are made.
        frames = fn.resize(
            frames, size=given["size"], roi_start=given["start"], roi_end=given["end"], interp_type=types.INTERP_LINEAR
        )
    elif transform.resize is not None:
        frames = fn.resize(frames, size=given["size"], interp_type=types.INTERP_LINEAR)
    elif transform.crop is not None:
        frames = fn.slice(
            frames, given["start"], given["size"], axes=[1, 2], normalized_anchor=False, normalized_shape=False
        )
    # Each decoded frame went through the above once, however many slots show it.
    frames = fn.sequence_rearrange(frames, new_order=given["gather"])
    if has_blanks:
        frames = fn.reinterpret(
            frames * (given["shown"].gpu() if frames.device == "gpu" else given["shown"]), layout="FHWC"
        )
    if transform.dtype == "uint8":
        out = fn.flip(frames, horizontal=given["mirror"]) if transform.flip else frames
        if transform.layout != "FHWC":
            out = fn.transpose(out, perm=[0, 3, 1, 2], output_layout="FCHW")
    else:
        mean, std = transform.mean or (0.0, 0.0, 0.0), transform.std or (1.0, 1.0, 1.0)
        out = fn.crop_mirror_normalize(
            frames,
            mirror=given["mirror"] if transform.flip else 0,
            mean=[255 * v for v in mean],
            std=[255 * v for v in std],
            dtype=types.FLOAT16 if transform.dtype == "float16" else types.FLOAT,
            output_layout="FHWC" if transform.layout == "FHWC" else "FCHW",
        )
    return fn.transpose(out, perm=[1, 0, 2, 3], output_layout="CFHW") if transform.layout == "CFHW" else out
