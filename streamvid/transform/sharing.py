"""What several views of a clip may share: which options belong to it, and what shared options must have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from streamvid.checks import one_of, shown
from streamvid.errors import InputError


class View(Protocol):
    """What is asked of a `streamvid.transform.spec.Transform`: how it cuts out its part, and whether it changes
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
"""What may be shared, and the options of which a view must have one."""
_BESIDE: Final = {
    "crop": ("random_crop",),
    "blur": ("blur", "blur_sigma"),
    "erase": ("erase", "erase_scale", "erase_ratio"),
}
"""The options that must be the same in all views then, where they are others."""


def checked_share(transforms: Mapping[str, View], share: object) -> tuple[str, ...]:
    """`Views(share)` as a tuple.

    Raises:
        InputError: a name that nothing has, or what a view does not do, or does otherwise than another.
    """
    if isinstance(share, str) or not isinstance(share, tuple | list | set | frozenset):
        raise InputError(f"Views(share) must be a list of {', '.join(map(repr, SHARES))}; it is {shown(share)}")
    for one in share:
        one_of(one, tuple(SHARES), "each of Views(share)")
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
                mine, its = (getattr(transforms[one], option) for one in (view, first))
                if mine != its:
                    raise InputError(
                        f"views that share {name!r} must have the same {option}: it is {its!r} in {first!r}, and "
                        f"{mine!r} in {view!r}"
                    )
    if "crop" in given:
        _check_crops(transforms)
    return given


def largest(transforms: Mapping[str, View]) -> str:
    """The view whose part of the frame the views show that share their crop: the one of the largest crop; of several
    one that is resized before, if one is, and then the first."""

    def place(view: str) -> tuple[int, bool]:
        one = transforms[view]
        height, width = pair(one.crop or 0)
        return height * width, bool(one.resize or one.random_short_side or one.random_resized_crop)

    return max(transforms, key=place)


def _does(transform: View, name: str) -> bool:
    if name == "rotate":
        return transform.span("rotate") is not None or transform.warps
    return transform.recolours if name == "color_jitter" else any(getattr(transform, one) for one in SHARES[name])


def _check_crops(transforms: Mapping[str, View]) -> None:
    """Raise InputError where views cannot show the part of the largest one."""
    leader = largest(transforms)
    of = transforms[leader]
    high, wide = pair(of.crop or 0)
    for view, one in transforms.items():
        height, width = pair(one.crop or 0)
        if abs(height * wide - width * high) >= max(high, wide):
            raise InputError(
                f"views that share 'crop' must have the same proportions, to a pixel: {leader!r} has {high}x{wide} "
                f"(height x width), and {view!r} {height}x{width}"
            )
        own = (one.random_resized_crop, one.ratio if one.random_resized_crop else None)
        if own[0] and own != (of.random_resized_crop, of.ratio):
            raise InputError(
                f"views that share 'crop' must have the same random_resized_crop and ratio: {view!r} has {own[0]} and "
                f"{own[1]}, and {leader!r} {of.random_resized_crop} and {of.ratio}"
            )
        if of.random_resized_crop and (one.resize is not None or one.random_short_side is not None):
            raise InputError(
                f"the view {view!r} shares the random_resized_crop of {leader!r}: leave out its resize and "
                "random_short_side"
            )


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width, of those or of a square's side."""
    sides = value if isinstance(value, tuple) else (value,)
    return sides[0], sides[-1]
