"""What is done to frames: the description and its checks.

`streamvid.transform.params` turns it and the plan's random numbers into numbers per clip,
`streamvid.transform.dali_graph` into DALI operators, `streamvid.transform.output_size` says how large clips come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from streamvid.errors import InputError

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

Layout = Literal["FHWC", "FCHW", "CFHW"]
DType = Literal["uint8", "float16", "float32"]
Interpolation = Literal["linear", "cubic", "nearest"]
Span = float | tuple[float, float]
LAYOUTS: Final[tuple[Layout, ...]] = ("FHWC", "FCHW", "CFHW")
DTYPES: Final[tuple[DType, ...]] = ("uint8", "float16", "float32")
INTERPOLATIONS: Final[tuple[Interpolation, ...]] = ("linear", "cubic", "nearest")
ONLY_VIEW: Final = "video"
"""What the frames are called in a batch where there is one view of them."""
TAKEN: Final = ("mask", "pts", "label", "clip", "valid", "epoch", "dataset", "key")
"""What else a batch holds: no names for views."""
_MAX_SIDE: Final = 16384
_MAX_SIGMA: Final = 16.0


class Draw(IntEnum):
    """Which of a clip's random numbers decides what.

    Each has a place of its own, so that an option switched on or off leaves what the others do as it was.
    """

    CROP_X = 0
    CROP_Y = 1
    FLIP = 2
    VERTICAL_FLIP = 3
    SCALE = 4
    AREA = 5
    ASPECT = 6
    ROTATE = 7
    BRIGHTNESS = 8
    CONTRAST = 9
    SATURATION = 10
    HUE = 11
    GRAYSCALE = 12
    BLUR = 13
    BLUR_SIGMA = 14
    ERASE = 15
    ERASE_AREA = 16
    ERASE_ASPECT = 17
    ERASE_X = 18
    ERASE_Y = 19


DRAWS: Final = 24
"""Random numbers per clip and view; the last ones are for options to come."""


@dataclass(frozen=True)
class Transform:
    """What is done to a clip's frames; all that is left to chance is drawn once for all frames of the clip.

    In this order: stand upright, resize, crop, rotate, colour, blur, erase, flip, `dali`, normalise, lay out. What is
    not asked for is not in the graph.

    Attributes:
        resize: the short side in pixels, or (height, width) exactly.
        crop: a square of that many pixels, or (height, width), cut from the resized frames.
        random_crop: at a random place; False: from the centre.
        flip: mirror left and right every other clip, at random.
        mean, std: per channel R, G, B, in units of the full range: (value / 255 - mean) / std. For float dtypes alone.
        layout: of one clip: F frames, H height, W width, C channels.
        dtype: "uint8" (0 to 255), or a float type (0 to 1 before mean and std).
        scales: instead of `resize`, a short side that is drawn per clip: from the tuple's first to its second, or one
            of a list's. Needs a crop.
        random_resized_crop: instead of `resize`, the share of the frame's area that is cut out and resized to `crop`,
            from and to.
        ratio: its width / height, from and to.
        interpolation: of resizing; "linear" and "cubic" with a filter against aliasing.
        rotate: degrees, at most either way, or from and to (counterclockwise); linear, about the centre. What comes
            in from outside is black.
        brightness, contrast, saturation: how far the factor may be from 1, or from and to.
        hue: degrees, at most either way, or from and to.
        grayscale, blur, erase: the probability.
        blur_sigma: standard deviation of the Gaussian in pixels, from and to.
        erase_area, erase_ratio: of the box that is made black: share of the picture, and width / height; from and to.
        vertical_flip: turn every other clip upside down, at random.
        dali: your own part of the graph: takes a DALI node, uint8 FHWC, and gives one.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    random_crop: bool = True
    flip: bool = False
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    layout: Layout = "CFHW"
    dtype: DType = "float32"
    _: KW_ONLY
    scales: tuple[int, int] | list[int] | None = None
    random_resized_crop: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "linear"
    rotate: Span = 0.0
    brightness: Span = 0.0
    contrast: Span = 0.0
    saturation: Span = 0.0
    hue: Span = 0.0
    grayscale: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    erase: float = 0.0
    erase_area: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    vertical_flip: bool = False
    dali: Callable[[DataNode], DataNode] | None = None

    def __post_init__(self) -> None:
        self._check_sides()
        self._check_choices()
        for name in ("mean", "std"):
            self._check_channels(name)
        for name, low, high in (
            ("random_resized_crop", 0.0, 1.0),
            ("ratio", 0.0, math.inf),
            ("blur_sigma", 0.0, _MAX_SIGMA),
            ("erase_area", 0.0, 1.0),
            ("erase_ratio", 0.0, math.inf),
        ):
            self._check_range(name, low, high)
        for name, low, high in (
            ("rotate", -180.0, 180.0),
            ("hue", -180.0, 180.0),
            ("brightness", 0.0, math.inf),
            ("contrast", 0.0, math.inf),
            ("saturation", 0.0, math.inf),
        ):
            self._check_span(name, low, high)
        for name in ("grayscale", "blur", "erase"):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Transform({name}) must be a probability, from 0 to 1; it is {getattr(self, name)!r}")
        if self.dali is not None and not callable(self.dali):
            raise InputError(f"Transform(dali) must be a function of a DALI node; it is {self.dali!r}")
        self._check_together()

    @property
    def draws(self) -> int:
        """Random numbers per clip: see `Draw`."""
        return DRAWS

    def for_evaluation(self) -> Transform:
        """The same without chance: the centre crop, the smallest of `scales`, and no augmentation.

        Of a random resized crop, the largest centred part in the crop's proportions remains. `dali` stays.
        """
        changed: dict[str, Any] = {}
        if self.scales is not None:
            changed = {"scales": None, "resize": min(self.scales)}
        if self.random_resized_crop is not None and self.crop is not None:
            height, width = pair(self.crop)
            changed = {"random_resized_crop": (1.0, 1.0), "ratio": (width / height, width / height)}
        augmentations = ("rotate", "brightness", "contrast", "saturation", "hue", "grayscale", "blur", "erase")
        changed |= dict.fromkeys(augmentations, 0.0)
        return replace(self, random_crop=False, flip=False, vertical_flip=False, **changed)

    def span(self, name: str) -> tuple[float, float] | None:
        """From and to of an option that may be given as one number; None if it changes nothing."""
        value = getattr(self, name)
        about = 0.0 if name in ("rotate", "hue") else 1.0
        low, high = value if isinstance(value, tuple) else (about - value, about + value)
        if low == high == about:
            return None
        return (low, high) if name in ("rotate", "hue") else (max(low, 0.0), high)

    @property
    def recolours(self) -> bool:
        """Whether colours may change."""
        return bool(self.grayscale) or any(
            self.span(name) is not None for name in ("brightness", "contrast", "saturation", "hue")
        )

    def _check_sides(self) -> None:
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
        scales = self.scales
        if scales is None:
            return
        if not isinstance(scales, tuple | list) or not scales or any(not _is_side(side) for side in scales):
            raise InputError(
                f"Transform(scales) must be (smallest, largest) or a list of short sides, each from 1 to {_MAX_SIDE}; "
                f"it is {scales!r}"
            )
        if isinstance(scales, tuple) and (len(scales) != 2 or scales[0] > scales[1]):
            raise InputError(
                f"Transform(scales) must be (smallest, largest), or a list for one of several; it is {scales!r}"
            )
        if isinstance(scales, list):
            object.__setattr__(self, "scales", list(scales))

    def _check_choices(self) -> None:
        for name, choices in (("layout", LAYOUTS), ("dtype", DTYPES), ("interpolation", INTERPOLATIONS)):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"Transform({name}) must be one of {', '.join(choices)}; it is {getattr(self, name)!r}"
                )
        for name in ("random_crop", "flip", "vertical_flip"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"Transform({name}) must be True or False; it is {getattr(self, name)!r}")

    def _check_channels(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if self.dtype == "uint8":
            raise InputError(f"Transform({name}) needs a float dtype: give dtype='float16' or 'float32'")
        if not _are_channels(value) or (name == "std" and any(v == 0 for v in value)):
            raise InputError(
                f"Transform({name}) must be three numbers{', none of them 0' if name == 'std' else ''}; it is {value!r}"
            )
        object.__setattr__(self, name, tuple(float(v) for v in value))

    def _check_range(self, name: str, low: float, high: float) -> None:
        """Check and keep (from, to), more than `low` and up to `high`."""
        value = getattr(self, name)
        if value is None and name == "random_resized_crop":
            return
        if not _is_range(value) or not low < value[0] <= value[1] <= high:
            most = "" if high == math.inf else f" and up to {high:g}"
            raise InputError(f"Transform({name}) must be (from, to), more than {low:g}{most}; it is {value!r}")
        object.__setattr__(self, name, (float(value[0]), float(value[1])))

    def _check_span(self, name: str, low: float, high: float) -> None:
        """Check and keep one number of at least 0, or (from, to) within limits."""
        value = getattr(self, name)
        if _is_range(value) and low <= value[0] <= value[1] <= high:
            object.__setattr__(self, name, (float(value[0]), float(value[1])))
        elif not (_is_number(value) and 0 <= value <= high):
            limits = f"at least {low:g}" if high == math.inf else f"within {low:g} and {high:g}"
            raise InputError(
                f"Transform({name}) must be a number of at least 0, or (from, to) {limits}; it is {value!r}"
            )

    def _check_together(self) -> None:
        if self.resize is not None and self.scales is not None:
            raise InputError("Transform takes resize or scales, not both")
        if self.scales is not None and self.crop is None:
            raise InputError("Transform(scales) makes clips of different sizes: give a crop as well")
        if self.random_resized_crop is None:
            return
        if self.crop is None:
            raise InputError("Transform(random_resized_crop) needs a crop, the size to resize to")
        if self.resize is not None or self.scales is not None:
            raise InputError(
                "Transform(random_resized_crop) takes its part from the whole frame: leave out resize and scales"
            )


@dataclass(frozen=True)
class Views:
    """Several views of each clip, each with its own transform and its own chance, of the same decoded frames.

    Attributes:
        transforms: by name; in a batch, `batch[name]` stands in for `batch["video"]`.
    """

    transforms: Mapping[str, Transform] = field()

    def __post_init__(self) -> None:
        if not isinstance(self.transforms, Mapping) or not self.transforms:
            raise InputError(f"Views must be a dict of one Transform or more by name; it is {self.transforms!r}")
        for name, transform in self.transforms.items():
            if not isinstance(name, str) or not name.isidentifier() or name in TAKEN:
                raise InputError(
                    f"a view's name must be a word other than {', '.join(TAKEN)}, which a batch holds already; "
                    f"it is {name!r}"
                )
            if not isinstance(transform, Transform):
                raise InputError(f"the view {name!r} must be a Transform; it is {transform!r}")
        object.__setattr__(self, "transforms", dict(self.transforms))

    @property
    def draws(self) -> int:
        """Random numbers per clip: those of the first view, then those of the second."""
        return DRAWS * len(self.transforms)

    def for_evaluation(self) -> Views:
        """Every view without chance: see `Transform.for_evaluation`."""
        return Views({name: transform.for_evaluation() for name, transform in self.transforms.items()})


def by_view(transform: Transform | Views) -> Mapping[str, Transform]:
    """The transforms by the name that their frames have in a batch."""
    return transform.transforms if isinstance(transform, Views) else {ONLY_VIEW: transform}


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width, of those or of a square's side."""
    sides = value if isinstance(value, tuple) else (value,)
    return sides[0], sides[-1]


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def _is_range(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(_is_number(v) for v in value)


def _is_side(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(1 <= value <= _MAX_SIDE)


def _are_channels(value: object) -> bool:
    """Whether it is three finite numbers."""
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return numbers.shape == (3,) and bool(np.isfinite(numbers).all())
