"""Views of a clip may share random choices: which options each name of `Views(share)` covers, and which of them must
agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from streamvid.checks import one_of, shown
from streamvid.errors import InputError


class View(Protocol):
    """The interface of `streamvid.transform.spec.Transform` that this module uses: how it crops, and whether it changes
    colours."""

    @property
    def resize(self) -> int | tuple[int, int] | None: ...
    @property
    def crop(self) -> int | tuple[int, int] | None: ...
    @property
    def random_short_side(self) -> tuple[int, int] | list[int] | None: ...
    @property
    def random_resized_crop(self) -> tuple[float, float] | None: ...
    @property
    def ratio(self) -> tuple[float, float]: ...
    @property
    def resizes(self) -> bool: ...
    @property
    def recolours(self) -> bool: ...
    @property
    def warps(self) -> bool: ...
    def span(self, name: str) -> tuple[float, float] | None: ...


SHARES: Final[Mapping[str, tuple[str, ...]]] = {
    "crop": ("crop",),
    "flip": ("horizontal_flip", "vertical_flip"),
    "rotate": ("rotate", "translate", "zoom", "shear"),
    "color_jitter": ("brightness", "contrast", "saturation", "hue", "grayscale"),
    "blur": ("blur",),
    "erase": ("erase",),
}
"""Names of operations that can be shared; for each, the options of which a view must have at least one."""
_BESIDE: Final = {
    "crop": ("random_crop",),
    "blur": ("blur", "blur_sigma"),
    "erase": ("erase", "erase_scale", "erase_ratio"),
}
"""The options that all views must have in common then, where these differ from `SHARES`."""


def checked_share(transforms: Mapping[str, View], share: object) -> tuple[str, ...]:
    """`Views(share)` as a tuple.

    Raises:
        InputError: a name is unknown, or names an operation that a view does not have, or that views have with
            different options.
    """
    if not isinstance(share, tuple | list | set | frozenset):
        raise InputError(f"Views(share) must be a list of {', '.join(map(repr, SHARES))}; it is {shown(share)}")
    for option in share:
        one_of(option, tuple(SHARES), "each of Views(share)")
    given = tuple(name for name in SHARES if name in share)
    for name in given:
        for view, transform in transforms.items():
            if not _does(transform, name):
                raise InputError(
                    f"Views(share) has {name!r}, which the view {view!r} does not do: give it "
                    f"{' or '.join(SHARES[name])}, or leave {name!r} out of share"
                )
        first, *others = transforms
        for option in _BESIDE.get(name, SHARES[name]):
            for view in others:
                mine, its = (getattr(transforms[name], option) for name in (view, first))
                if mine != its:
                    raise InputError(
                        f"views that share {name!r} must have the same {option}: it is {its!r} in {first!r}, and "
                        f"{mine!r} in {view!r}"
                    )
    if "crop" in given:
        _check_crops(transforms)
    return given


def largest(transforms: Mapping[str, View]) -> str:
    """Among views that share their crop, the view whose part of the frame all of them show: the one with the largest
    crop; among equals the first that resizes, or the first."""

    def place(view: str) -> tuple[int, bool]:
        spec = transforms[view]
        height, width = pair(spec.crop or 0)
        return height * width, spec.resizes

    return max(transforms, key=place)


def _does(transform: View, name: str) -> bool:
    if name == "rotate":
        return transform.span("rotate") is not None or transform.warps
    return transform.recolours if name == "color_jitter" else any(getattr(transform, option) for option in SHARES[name])


def _check_crops(transforms: Mapping[str, View]) -> None:
    """Raise InputError if a view cannot show the part of the largest one."""
    leader = largest(transforms)
    of = transforms[leader]
    high, wide = pair(of.crop or 0)
    for view, transform in transforms.items():
        height, width = pair(transform.crop or 0)
        if abs(height * wide - width * high) >= max(high, wide):
            raise InputError(
                f"views that share 'crop' must have the same proportions, to a pixel: {leader!r} has {high}x{wide} "
                f"(height x width), and {view!r} {height}x{width}"
            )
        own = (transform.random_resized_crop, transform.ratio if transform.random_resized_crop else None)
        if own[0] and own != (of.random_resized_crop, of.ratio):
            raise InputError(
                f"views that share 'crop' must have the same random_resized_crop and ratio: {view!r} has {own[0]} and "
                f"{own[1]}, and {leader!r} {of.random_resized_crop} and {of.ratio}"
            )
        if of.random_resized_crop and (transform.resize is not None or transform.random_short_side is not None):
            raise InputError(
                f"the view {view!r} shares the random_resized_crop of {leader!r}: leave out its resize and "
                "random_short_side"
            )


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width, from a pair or from the side of a square."""
    sides = value if isinstance(value, tuple) else (value,)
    return sides[0], sides[-1]
