"""The options of transforms and views."""

from __future__ import annotations

from streamvid.transform.spec import Transform, Views


def test_views_do_not_change_with_the_dict_they_are_made_of() -> None:
    given = {"a": Transform(), "b": Transform(resize=8)}
    views = Views(given)
    del given["b"]
    assert list(views.transforms) == ["a", "b"]
