"""`Transform` and `Views`: the options, and their checks.

`streamvid.transform.params` turns them and the plan's random numbers into parameters per clip,
`streamvid.transform.dali_graph` into DALI operators, and `streamvid.transform.output_size` computes output sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from streamvid.checks import boolean, check, is_integer, is_real, one_of, shown, suggesting
from streamvid.color.tags import ColorOption
from streamvid.errors import InputError
from streamvid.transform.draw import DRAWS
from streamvid.transform.eager import Eager
from streamvid.transform.sharing import checked_share, pair

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

Layout = Literal["THWC", "TCHW", "CTHW"]
DType = Literal["uint8", "float16", "bfloat16", "float32"]
Interpolation = Literal["bilinear", "bicubic", "nearest"]
Span = float | tuple[float, float]
COLORS: Final[tuple[ColorOption, ...]] = get_args(ColorOption)
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
DTYPES: Final[tuple[DType, ...]] = get_args(DType)
INTERPOLATIONS: Final[tuple[Interpolation, ...]] = get_args(Interpolation)
ONLY_VIEW: Final = "video"
"""Name of the frames in a batch with one view."""
TAKEN: Final = ("mask", "pts", "label", "clip", "valid", "epoch", "dataset", "key")
"""Names of a batch's other entries, which views must not have."""
_MAX_SIDE: Final = 16384
_MAX_SIGMA: Final = 16.0
_MAX_SHEAR: Final = 80.0
_ZOOM: Final = (0.01, 100.0)
_ABOUT_0: Final = ("rotate", "shear", "hue")
"""Options whose neutral value is 0; for other spans it is 1."""


@suggesting
@dataclass(frozen=True, repr=False)
class Transform(Eager):
    """The operations on a clip's frames. Every random choice is made once per clip, for all its frames.

    The order is: rotate upright, resize, crop, rotate, colour, blur, erase, flip, `dali`, normalise, lay out. Names are
    those of torchvision.transforms.v2 if it has the operation. Operations that are not asked for cost nothing.

    Attributes:
        resize: the short side in pixels, or exactly (height, width).
        crop: side of a square in pixels, or (height, width), cut from the resized frames.
        random_crop: crop at a random position; False: from the centre.
        horizontal_flip: probability of mirroring left and right; True for 0.5.
        mean, std: per channel R, G, B, or one number for all, in units of the full range: (value / 255 - mean) / std.
            Only for float dtypes.
        layout: of one clip: T frames, H height, W width, C channels. F is accepted for T.
        dtype: "uint8" (0 to 255), or a float type (0 to 1 before mean and std); a torch.dtype is accepted as well.
        random_short_side: instead of `resize`, a short side in pixels drawn per clip: from a range (a tuple of two), or
            from a list of choices. Needs a crop.
        random_resized_crop: instead of `resize`, (smallest, largest) share of the frame's area that is cut out and
            resized to `crop` (torchvision's `scale`).
        ratio: (smallest, largest) width / height of that part.
        interpolation: for resizing; "bilinear" and "bicubic" with antialiasing.
        rotate: degrees counterclockwise, (from, to), or one number for both directions; bilinear, about the centre.
            Pixels from outside the frame are black.
        translate: largest shift, as a share of the frame's width and height. `rotate`, `translate`, `zoom` and `shear`
            form one affine map about the centre (torchvision's `RandomAffine`).
        zoom: factor of magnification, (from, to) within 0.01 and 100, or one number: its largest distance from 1.
        shear: degrees along x, (from, to), or one number for both directions.
        brightness, contrast, saturation: factor, (from, to), or one number: its largest distance from 1.
        hue: degrees, (from, to), or one number for both directions.
        grayscale, blur, erase: probability.
        blur_sigma: (smallest, largest) standard deviation of the Gaussian in pixels.
        erase_scale, erase_ratio: of the box that is made black, (smallest, largest) share of the frame's area, and
            width / height.
        vertical_flip: probability of turning the clip upside down; True for 0.5.
        color: the YUV matrix: "auto": by each clip's tags; "bt709" or "bt2020": for all clips; "bt601": for all clips,
            and with the pixels of DALI's decoder.
        resize_in: "yuv" resizes decoded planes and then converts; "rgb" converts first, as torchvision does with
            decoded frames. docs/transforms.md has the difference.
        dali: the user's part of the graph: a function from a DALI node, uint8 in DALI's layout FHWC, to another.

    Raises:
        InputError: an option is invalid, or options exclude each other.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    random_crop: bool = True
    horizontal_flip: float = 0.0
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    layout: Layout = "CTHW"
    dtype: DType = "float32"
    _: KW_ONLY
    random_short_side: tuple[int, int] | list[int] | None = None
    random_resized_crop: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    rotate: Span = 0.0
    translate: float = 0.0
    zoom: Span = 0.0
    shear: Span = 0.0
    brightness: Span = 0.0
    contrast: Span = 0.0
    saturation: Span = 0.0
    hue: Span = 0.0
    grayscale: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    erase: float = 0.0
    erase_scale: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    vertical_flip: float = 0.0
    color: ColorOption = "auto"
    resize_in: Literal["yuv", "rgb"] = "yuv"
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
            ("erase_scale", 0.0, 1.0),
            ("erase_ratio", 0.0, math.inf),
        ):
            self._check_range(name, low, high)
        for name, low, high in (
            ("rotate", -180.0, 180.0),
            ("shear", -_MAX_SHEAR, _MAX_SHEAR),
            ("zoom", *_ZOOM),
            ("hue", -180.0, 180.0),
            ("brightness", 0.0, math.inf),
            ("contrast", 0.0, math.inf),
            ("saturation", 0.0, math.inf),
        ):
            self._check_span(name, low, high)
        for name in ("horizontal_flip", "vertical_flip"):
            if isinstance(getattr(self, name), bool):
                object.__setattr__(self, name, 0.5 * getattr(self, name))
        for name in ("horizontal_flip", "vertical_flip", "grayscale", "blur", "erase", "translate"):
            value, what = getattr(self, name), "a share of the frame" if name == "translate" else "a probability"
            check(is_real(value) and 0 <= value <= 1, value, f"Transform({name})", f"{what}, from 0 to 1")
        check(self.dali is None or callable(self.dali), self.dali, "Transform(dali)", "a function of a DALI node")
        self._check_together()

    def __repr__(self) -> str:
        """Options that differ from their defaults. State files tell transforms apart by it."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        defaults = {field.name: field.default for field in fields(self)}
        return f"Transform({', '.join(f'{name}={value!r}' for name, value in given if value != defaults[name])})"

    @property
    def num_random(self) -> int:
        """Random numbers per clip: see `streamvid.transform.draw.Draw`."""
        return DRAWS

    def for_evaluation(self) -> Transform:
        """This transform without randomness: the centre crop, the smallest `random_short_side`, and no augmentation.

        A random resized crop becomes the largest centred part with the crop's proportions. `dali` stays.
        """
        changed: dict[str, Any] = {}
        if self.random_short_side is not None:
            changed = {"random_short_side": None, "resize": min(self.random_short_side)}
        if self.random_resized_crop is not None and self.crop is not None:
            height, width = pair(self.crop)
            changed = {"random_resized_crop": (1.0, 1.0), "ratio": (width / height, width / height)}
        colours = ("brightness", "contrast", "saturation", "hue", "grayscale", "blur", "erase")
        changed |= dict.fromkeys(("rotate", "translate", "zoom", "shear", *colours), 0.0)
        return replace(self, random_crop=False, horizontal_flip=0.0, vertical_flip=0.0, **changed)

    def span(self, name: str) -> tuple[float, float] | None:
        """The range (from, to) of an option that may be given as one number; None if it changes nothing."""
        value = getattr(self, name)
        about = 0.0 if name in _ABOUT_0 else 1.0
        low, high = value if isinstance(value, tuple) else (about - value, about + value)
        if low == high == about:
            return None
        return (low, high) if name in _ABOUT_0 else (max(low, 0.0), high)

    @property
    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of R, G, B, in units of the full range; 0 and 1 where none are given."""
        mean = np.broadcast_to(0.0 if self.mean is None else self.mean, 3)
        std = np.broadcast_to(1.0 if self.std is None else self.std, 3)
        return tuple(mean.tolist()), tuple(std.tolist())

    @property
    def converts_first(self) -> bool:
        """Whether frames become RGB before they are resized."""
        return self.resize_in == "rgb" or self.color == "bt601"

    @property
    def resizes(self) -> bool:
        """Whether frames change their scale."""
        return bool(self.resize or self.random_short_side or self.random_resized_crop)

    @property
    def warps(self) -> bool:
        """Whether frames may be moved, zoomed or sheared, so that rotation alone is not enough."""
        return bool(self.translate) or self.span("zoom") is not None or self.span("shear") is not None

    @property
    def needs_graph(self) -> bool:
        """Whether a step after the crop needs DALI's graph on either device: an affine map, blur, erasing or `dali`."""
        return self.dali is not None or self.span("rotate") is not None or self.warps or bool(self.blur or self.erase)

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
            sides = tuple(value) if isinstance(value, tuple | list) else (value,)  # a configuration file has lists
            what = f"a number of pixels or (height, width), each from 1 to {_MAX_SIDE}"
            check(len(sides) in (1, 2) and all(map(_is_side, sides)), value, f"Transform({name})", what)
            object.__setattr__(self, name, sides if len(sides) == 2 else sides[0])  # (256,) is torchvision's 256
        scales = self.random_short_side
        if scales is None:
            return
        if not isinstance(scales, tuple | list) or not scales or any(not _is_side(side) for side in scales):
            raise InputError(
                "Transform(random_short_side) must be (smallest, largest) or a list of short sides, "
                f"each from 1 to {_MAX_SIDE}; it is {shown(scales)}"
            )
        if isinstance(scales, tuple) and (len(scales) != 2 or scales[0] > scales[1]):
            raise InputError(
                "Transform(random_short_side) must be (smallest, largest), or a list for one of several; "
                f"it is {shown(scales)}"
            )
        if isinstance(scales, list):
            object.__setattr__(self, "random_short_side", list(scales))

    def _check_choices(self) -> None:
        if isinstance(self.layout, str):
            object.__setattr__(self, "layout", self.layout.upper().replace("F", "T"))
        if not isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        for name, choices in (("layout", LAYOUTS), ("dtype", DTYPES), ("interpolation", INTERPOLATIONS),
            ("color", COLORS), ("resize_in", ("yuv", "rgb")),
        ):  # fmt: skip
            one_of(getattr(self, name), choices, f"Transform({name})")
        boolean(self.random_crop, "Transform(random_crop)")

    def _check_channels(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if self.dtype == "uint8":
            raise InputError(f"Transform({name}) needs a float dtype: give dtype='float16' or 'float32'")
        value = (value,) * 3 if is_real(value) else value
        if not _are_channels(value) or (name == "std" and any(v <= 0 for v in value)):
            positive = ", above 0" if name == "std" else ""
            raise InputError(f"Transform({name}) must be a number or three{positive}; it is {shown(value)}")
        if max(map(abs, value)) > 1:
            raise InputError(
                f"Transform({name}) is in units of the full range, 0 to 1: divide by 255; it is {shown(value)}"
            )
        object.__setattr__(self, name, tuple(float(v) for v in value))

    def _check_range(self, name: str, low: float, high: float) -> None:
        """Check and keep (from, to), more than `low` and up to `high`."""
        value = getattr(self, name)
        if value is None and name == "random_resized_crop":
            return
        what = f"(from, to), more than {low:g}{'' if high == math.inf else f' and up to {high:g}'}"
        check(_is_range(value) and low < value[0] <= value[1] <= high, value, f"Transform({name})", what)
        object.__setattr__(self, name, (float(value[0]), float(value[1])))

    def _check_span(self, name: str, low: float, high: float) -> None:
        """Check and keep one number of at least 0, or (from, to) within limits."""
        value = getattr(self, name)
        most = 1 - low if name == "zoom" else high
        if _is_range(value) and low <= value[0] <= value[1] <= high:
            object.__setattr__(self, name, (float(value[0]), float(value[1])))
        elif not (is_real(value) and 0 <= value <= most):
            number = "of at least 0" if most == math.inf else f"from 0 to {most:g}"
            limits = f"at least {low:g}" if high == math.inf else f"within {low:g} and {high:g}"
            raise InputError(
                f"Transform({name}) must be a number {number}, or (from, to) {limits}; it is {shown(value)}"
            )

    def _check_together(self) -> None:
        most = 65504 if self.dtype == "float16" else 1e30  # in float32 and bfloat16 with room for intermediate results
        if any((1 + abs(mean)) / std > most for mean, std in zip(*self.mean_std, strict=True)):
            raise InputError(f"Transform(std) makes values that {self.dtype} does not hold; it is {shown(self.std)}")
        if self.resize is not None and self.random_short_side is not None:
            raise InputError("Transform takes resize or random_short_side, not both")
        if self.random_short_side is not None and self.crop is None:
            raise InputError("Transform(random_short_side) makes clips of different sizes: give a crop as well")
        if self.random_resized_crop is None:
            return
        if self.crop is None:
            raise InputError("Transform(random_resized_crop) needs a crop, the size to resize to")
        if self.resize is not None or self.random_short_side is not None:
            raise InputError(
                "Transform(random_resized_crop) crops the whole frame: leave out resize and random_short_side"
            )


@dataclass(frozen=True, init=False)
class Views(Eager):
    """Several views of each clip, each with its own transform, of the same decoded frames.

    Views have random numbers of their own, except for the operations that they share: those are drawn once. Views that
    share "crop" show the same part of the frame, that of the view with the largest crop, each at the size of its own
    crop.

    Attributes:
        transforms: the transforms by name; a batch has `batch[name]` for each instead of `batch["video"]`.
        share: random choices that all views share: "crop", "flip", "rotate", "color_jitter", "blur", "erase".

    Raises:
        InputError: a view's name is not possible in a batch, or it has no transform; or views share an operation that
            one does not have, or has with different options.
    """

    transforms: Mapping[str, Transform]
    share: tuple[str, ...]

    def __init__(
        self, transforms: Mapping[str, Transform] | None = None, *, share: Collection[str] = (), **by_name: Transform
    ) -> None:
        if not isinstance(transforms, Mapping | None) or not {**(transforms or {}), **by_name}:
            raise InputError(f"Views must be a dict of one Transform or more by name; it is {shown(transforms)}")
        views = {**(transforms or {}), **by_name}
        for name, transform in views.items():
            if not isinstance(name, str) or not name.isidentifier() or name in TAKEN:
                raise InputError(
                    f"a view's name must be a word other than {', '.join(TAKEN)}, which a batch holds already; "
                    f"it is {shown(name)}"
                )
            check(isinstance(transform, Transform), transform, f"the view {name!r}", "a Transform")
        if len({(view.color, view.resize_in) for view in views.values()}) > 1:
            raise InputError("Views share their decoded frames: give all of them the same color and resize_in")
        object.__setattr__(self, "transforms", views)
        object.__setattr__(self, "share", checked_share(views, share))

    @property
    def num_random(self) -> int:
        """Random numbers per clip: the first view's, then the second's."""
        return DRAWS * len(self.transforms)

    def for_evaluation(self) -> Views:
        """Every view without randomness: see `Transform.for_evaluation`."""
        plain = {name: transform.for_evaluation() for name, transform in self.transforms.items()}
        return Views(plain, share=[name for name in self.share if name == "crop"])


def by_view(transform: Transform | Views) -> Mapping[str, Transform]:
    """The transforms by the name that their frames have in a batch."""
    return transform.transforms if isinstance(transform, Views) else {ONLY_VIEW: transform}


def _is_range(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(is_real(v) for v in value)


def _is_side(value: object) -> bool:
    return is_integer(value) and 1 <= value <= _MAX_SIDE


def _are_channels(value: object) -> bool:
    """Whether a value is three finite numbers."""
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return numbers.shape == (3,) and bool(np.isfinite(numbers).all())
