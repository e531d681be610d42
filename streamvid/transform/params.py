"""The random numbers of a batch → the parameters of its transform per clip, for all clips at once, in NumPy.

The random numbers come from the plan, and nothing else is random: a clip looks the same in an epoch wherever and
whenever it is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float64, Int64
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.mp4.boxes import MIRRORED
from streamvid.transform.draw import DRAWS, Draw
from streamvid.transform.output_size import resized, short_sides
from streamvid.transform.sharing import largest, pair
from streamvid.transform.spec import Transform, Views, by_view

Params = dict[str, npt.NDArray[np.generic]]

PARAM_TYPES: dict[str, tuple[type[np.generic], int]] = {
    # Parameters that all views share.
    "gather": (np.int32, 1),
    "shown": (np.uint8, 4),
    "mirrored": (np.int32, 0),
    "angle": (np.float32, 0),
    # Parameters of each view.
    "size": (np.float32, 1),
    "start": (np.float32, 1),
    "end": (np.float32, 1),
    "rotate": (np.float32, 0),
    "matrix": (np.float32, 2),
    "brightness": (np.float32, 0),
    "contrast": (np.float32, 0),
    "saturation": (np.float32, 0),
    "hue": (np.float32, 0),
    "sigma": (np.float32, 0),
    "window": (np.int32, 0),
    "erase_start": (np.float32, 1),
    "erase_size": (np.float32, 1),
    "mirror": (np.int32, 0),
    "upside_down": (np.int32, 0),
}
"""Parameters by name: dtype and number of dimensions per clip.

- `gather` [frames]: which decoded frame each frame position shows.
- `shown` [frames, 1, 1, 1]: 1, or 0 for a frame position that shows a black frame instead.
- `mirrored`: 1 to flip the frames, left to right, before they are turned upright.
- `angle`: degrees counterclockwise that stand the frames upright.
- `size` [2]: height and width of the output, in pixels.
- `start`, `end` [2]: the part of the upright frame that is resized to `size`: y and x, in pixels of that frame.
- `rotate`: degrees counterclockwise.
- `matrix` [2, 3]: the affine map from a pixel's old position to its new one, x and y.
- `brightness`, `contrast`, `saturation`: factors. `hue`: degrees.
- `sigma`, `window`: of the Gaussian, in pixels; a window of 1 changes nothing.
- `erase_start`, `erase_size` [2]: the black box, y and x, in pixels of the output.
- `mirror`, `upside_down`: 1 to flip.
"""


@dataclass(frozen=True)
class ClipTransform:
    """A transform, and the optional steps of it that a dataset's clips need.

    Attributes:
        transform: the transform.
        rotates: whether frames of some clips have to be rotated upright; if not, DALI's graph has no operator for it.
        has_black_frames: whether some frame positions may show a black frame; likewise.
        mirrors: whether frames of some clips have to be flipped before the rotation; likewise.
    """

    transform: Transform | Views
    rotates: bool
    has_black_frames: bool
    mirrors: bool = False


SHARED_DRAWS: Final[Mapping[str, tuple[Draw, ...]]] = {
    "crop": (Draw.CROP_X, Draw.CROP_Y, Draw.SCALE, Draw.AREA, Draw.ASPECT),
    "flip": (Draw.FLIP, Draw.VERTICAL_FLIP),
    "rotate": (Draw.ROTATE, Draw.TRANSLATE_X, Draw.TRANSLATE_Y, Draw.ZOOM, Draw.SHEAR),
    "color_jitter": (Draw.BRIGHTNESS, Draw.CONTRAST, Draw.SATURATION, Draw.HUE, Draw.GRAYSCALE),
    "blur": (Draw.BLUR, Draw.BLUR_SIGMA),
    "erase": (Draw.ERASE, Draw.ERASE_AREA, Draw.ERASE_ASPECT, Draw.ERASE_X, Draw.ERASE_Y),
}
"""For each shared operation, the random numbers that all views take from the first view."""


def followers(transform: Transform | Views) -> set[str]:
    """The views that show another view's crop, resized to their own."""
    if not isinstance(transform, Views) or "crop" not in transform.share:
        return set()
    views = transform.transforms
    leader = views[largest(views)]
    return {view for view, spec in views.items() if leader.resizes or pair(spec.crop or 0) != pair(leader.crop or 0)}


def needed(transform: Transform, *, follows: bool = False) -> tuple[str, ...]:
    """Names of the parameters that one view needs, besides those that all views share.

    Args:
        transform: the view's transform.
        follows: whether the view is one of the `followers`.
    """
    resizes = follows or transform.resizes
    crops, nearest = transform.crop is not None, resizes and transform.interpolation == "nearest"
    uses = {
        "size": resizes or crops,
        "start": crops or nearest,
        "end": (resizes and crops) or nearest,
        "rotate": transform.span("rotate") is not None and not transform.warps,
        "matrix": transform.warps,
        **dict.fromkeys(("brightness", "contrast", "saturation", "hue"), transform.recolours),
        **dict.fromkeys(("sigma", "window"), transform.blur > 0),
        **dict.fromkeys(("erase_start", "erase_size"), transform.erase > 0),
        "mirror": transform.horizontal_flip > 0,
        "upside_down": transform.vertical_flip > 0,
    }
    return tuple(name for name, used in uses.items() if used)


def param_names(spec: ClipTransform) -> tuple[str, ...]:
    """Names of all parameters of a transform: first the ones shared by all views, then `view.name` for each view."""
    uses = {"gather": True, "shown": spec.has_black_frames, "mirrored": spec.mirrors, "angle": spec.rotates}
    shared = (name for name, used in uses.items() if used)
    own = {
        view: needed(transform, follows=view in followers(spec.transform))
        for view, transform in by_view(spec.transform).items()
    }
    return (*shared, *(f"{view}.{name}" for view, names in own.items() for name in names))


def batch_params(transform: Transform | Views, batch: EncodedBatch) -> Params:
    """The parameters of a batch's clips.

    Returns:
        [batch, …] each: `gather`, `shown`, `mirrored`, `angle`, and for each view its `needed` parameters as
        `view.name`; dtypes in `PARAM_TYPES`.
    """
    sides = np.stack([batch.heights, batch.widths], axis=1)
    upright = np.where((batch.rotations % 180 != 0)[:, None], sides[:, ::-1], sides)
    fields: Params = {
        "gather": np.maximum(batch.gather, 0).astype(np.int32),
        "shown": (batch.gather >= 0).astype(np.uint8)[:, :, None, None, None],
        "mirrored": (batch.rotations >= MIRRORED).astype(np.int32),
        "angle": (-batch.rotations % 360).astype(np.float32),
    }
    share = transform.share if isinstance(transform, Views) else ()
    shared = [draw for name in share for draw in SHARED_DRAWS[name]]
    views: dict[str, Params] = {}
    for number, (view, spec) in enumerate(by_view(transform).items()):
        mine = batch.random[:, number * DRAWS : (number + 1) * DRAWS].copy()
        mine[:, shared] = batch.random[:, shared]
        views[view] = _of_one_view(spec, upright, mine)
    if "crop" in share:
        whole = views[largest(by_view(transform))]
        for made in views.values():
            made |= {"start": whole["start"], "end": whole["end"]}
    if "erase" in share:
        _scale_erased(list(views.values()))
    for view, spec in by_view(transform).items():
        names = needed(spec, follows=view in followers(transform))
        if spec.interpolation == "nearest" and "end" in names:  # the frames are resized
            _move_off_ties(views[view], upright)
        # C-contiguous, as DALI requires.
        fields |= {f"{view}.{name}": views[view][name].astype(PARAM_TYPES[name][0], order="C") for name in names}
    return fields


def _scale_erased(views: list[Params]) -> None:
    """Give all views the erased box of the largest view, scaled to their own sizes, in whole pixels."""
    whole = max(views, key=lambda made: int(made["size"][0].prod()))
    start, size, sides = (whole[name].astype(np.float64) for name in ("erase_start", "erase_size", "size"))
    for made in views:
        scale = made["size"].astype(np.float64) / sides
        first, last = (np.floor(edge * scale + 0.5) for edge in (start, start + size))
        made |= {"erase_start": first, "erase_size": np.where(size > 0, np.maximum(last - first, 1), 0)}


def _move_off_ties(made: Params, upright: Int64) -> None:
    """Move the boxes by a quarter of the least distance between positions at which samples may be taken.

    A position that lies exactly between two pixels is rounded by DALI to one of them on the CPU and often to the other
    one on a GPU, as both compute in float32. Behind the move all take the pixel below or to the right, as PyTorch's
    "nearest-exact".
    """
    start, end, size = (made[name].astype(np.float64) for name in ("start", "end", "size"))
    move = (end - start) / (4 * size * upright)
    made |= {"start": start + move, "end": end + move}


def _of_one_view(transform: Transform, upright: Int64, random: Float64) -> dict[str, npt.NDArray[np.generic]]:
    if transform.random_resized_crop is not None and transform.crop is not None:
        place = random[:, [Draw.CROP_Y, Draw.CROP_X]] if transform.random_crop else np.full(upright.shape, 0.5)
        start, extent = boxes(
            upright, transform.random_resized_crop, transform.ratio, random[:, Draw.AREA], random[:, Draw.ASPECT], place
        )
        size = np.broadcast_to(np.array(pair(transform.crop)), upright.shape)
        made = {"size": size, "start": start, "end": start + extent}
    else:
        made = _resized_and_cropped(transform, upright, random)
        size = made["size"].astype(np.int64)
    for name in ("rotate", "shear", "zoom", "brightness", "contrast", "saturation", "hue"):
        low, high = transform.span(name) or ((0.0, 0.0) if name in ("rotate", "shear", "hue") else (1.0, 1.0))
        made[name] = low + (high - low) * random[:, Draw[name.upper()]]
    made["matrix"] = _affine(
        size, made, transform.translate * (2 * random[:, [Draw.TRANSLATE_X, Draw.TRANSLATE_Y]] - 1)
    )
    # Saturation 0 makes frames grey; brightness and contrast work on grey as on colours.
    made["saturation"] = np.where(random[:, Draw.GRAYSCALE] < transform.grayscale, 0.0, made["saturation"])
    low, high = transform.blur_sigma
    sigma = low + (high - low) * random[:, Draw.BLUR_SIGMA]
    blurred = random[:, Draw.BLUR] < transform.blur
    made["sigma"] = sigma
    made["window"] = np.where(blurred, 2 * np.ceil(3 * sigma) + 1, 1)
    if transform.erase:
        place = random[:, [Draw.ERASE_Y, Draw.ERASE_X]]
        area, aspect = random[:, Draw.ERASE_AREA], random[:, Draw.ERASE_ASPECT]
        start, extent = boxes(size, transform.erase_scale, transform.erase_ratio, area, aspect, place)
        made["erase_start"] = start
        made["erase_size"] = np.where((random[:, Draw.ERASE] < transform.erase)[:, None], extent, 0)
    made["mirror"] = random[:, Draw.FLIP] < transform.horizontal_flip
    made["upside_down"] = random[:, Draw.VERTICAL_FLIP] < transform.vertical_flip
    return made


def _affine(sizes: Int64, made: Params, shift: Float64) -> Float64:
    """float64 [clips, 2, 3]: sheared, zoomed and rotated about the centre, then moved by shares of width and height."""
    turn, slant, zoom = (made[name].astype(np.float64) for name in ("rotate", "shear", "zoom"))
    cos, sin, slant = zoom * np.cos(np.radians(turn)), zoom * np.sin(np.radians(turn)), np.tan(np.radians(slant))
    linear = np.stack([cos, cos * slant + sin, -sin, cos - sin * slant], axis=1).reshape(-1, 2, 2)
    sides: Float64 = sizes[:, ::-1].astype(np.float64)
    moved = sides / 2 + shift * sides - (linear * sides[:, None] / 2).sum(axis=2)
    return np.concatenate([linear, moved[:, :, None]], axis=2)


def _resized_and_cropped(transform: Transform, upright: Int64, random: Float64) -> dict[str, npt.NDArray[np.generic]]:
    """`size`, `start` and `end` of a transform that resizes the whole frame and then crops."""
    size = resized(transform, upright[:, 0], upright[:, 1], short_sides(transform, random[:, Draw.SCALE]))
    if transform.crop is None:
        return {"size": size, "start": np.zeros(size.shape), "end": upright}
    crop = np.broadcast_to(np.array(pair(transform.crop)), size.shape)
    place = random[:, [Draw.CROP_Y, Draw.CROP_X]] if transform.random_crop else np.full(size.shape, 0.5)
    corner = _corners(size, crop, place)
    return {"size": crop, "start": corner * upright / size, "end": (corner + crop) * upright / size}


def _corners(sizes: Int64, parts: Int64, place: Float64) -> Float64:
    """float64 [clips, 2]: upper left corners of boxes in frames, uniform over all positions, of which there is one more
    than the difference in pixels."""
    return np.asarray(np.floor((sizes - parts + 1) * place), dtype=np.float64)


def boxes(
    sizes: Int64,
    area: tuple[float, float],
    ratio: tuple[float, float],
    area_at: Float64,
    ratio_at: Float64,
    place: Float64,
) -> tuple[Float64, Int64]:
    """Boxes of random area, aspect ratio and position in frames.

    The area is uniform. The logarithm of width / height is uniform over the ratios that fit into the frame with that
    area. If no ratio within `ratio` fits, the nearest one is taken, and the box is as large as fits.

    Args:
        sizes: int64 [clips, 2], height and width of the frames.
        area: (smallest, largest) share of the frame's area.
        ratio: (smallest, largest) width / height.
        area_at, ratio_at: float64 [clips], uniform in [0, 1).
        place: float64 [clips, 2], uniform in [0, 1), for y and x.

    Returns:
        The corner, float64 [clips, 2], whole numbers, and height and width, int64 [clips, 2].
    """
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    wanted = height * width * (area[0] + (area[1] - area[0]) * area_at)
    narrowest, widest = np.log(wanted / height**2), np.log(width**2 / wanted)
    low, high = np.log(ratio[0]), np.log(ratio[1])
    low, high = np.clip(narrowest, low, high), np.clip(widest, low, high)
    proportion = np.exp(low + (high - low) * ratio_at)
    # If no ratio fits, low equals high, and that box is cut down to the frame.
    wide = np.minimum(np.sqrt(wanted * proportion), np.minimum(width, height * proportion))
    extent = np.floor(np.stack([wide / proportion, wide], axis=1) + 0.5).astype(np.int64)
    extent = np.clip(extent, 1, sizes)
    return _corners(sizes, extent, place), extent
