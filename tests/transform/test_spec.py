"""The options of transforms and views."""

from __future__ import annotations

from typing import Any

import pytest

from streamvid.errors import InputError
from streamvid.transform.spec import Transform, Views


def test_views_do_not_change_with_the_dict_they_are_made_of() -> None:
    given = {"a": Transform(), "b": Transform(resize=8)}
    views = Views(given)
    del given["b"]
    assert list(views.transforms) == ["a", "b"]


def test_a_tuple_of_one_number_is_that_number() -> None:
    """As in torchvision. The graph of `engine="dali"` on a GPU, and of a server, took it for the sides of a square."""
    assert Transform(resize=(256,), crop=(224,)) == Transform(resize=256, crop=224)


def test_sides_may_be_a_list() -> None:
    """As the values of a JSON or YAML file are, and as `mean` and ranges may be."""
    given: Any = [240, 320]
    transform = Transform(resize=given, crop=given)
    assert transform == Transform(resize=(240, 320), crop=(240, 320))
    given[0] = 1
    assert transform.resize == (240, 320)


@pytest.mark.parametrize("zoom", [0, 0.99, (0.01, 100), (1, 1)])
def test_zooms(zoom: float | tuple[float, float]) -> None:
    assert Transform(zoom=zoom).zoom == zoom


@pytest.mark.parametrize("zoom", [1, 3.5, -0.1, (0, 0), (0, 2), (1e-300, 1e-300), (1, 1e300)])
def test_a_zoom_that_may_leave_no_picture_is_refused(zoom: float | tuple[float, float]) -> None:
    """DALI raises an error of its own for a map that cannot be inverted, in the middle of a run."""
    with pytest.raises(
        InputError, match=r"zoom\) must be a number from 0 to 0.99, or \(from, to\) within 0.01 and 100; "
    ):
        Transform(zoom=zoom)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float32", {"std": 1e-40}), ("float16", {"std": (1, 1, 1e-5)}), ("bfloat16", {"std": 1e-39, "mean": -0.5})],
)
def test_a_std_that_makes_infinities_is_refused(dtype: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"std\) makes values that {dtype} does not hold"):
        Transform(dtype=dtype, **options)
    with pytest.raises(InputError, match=r"mean\) is in units of the full range"):
        Transform(mean=-1e300)
    assert Transform(dtype="float16", mean=-1, std=1 / 255).std == (1 / 255,) * 3
