"""The options of transforms and views."""

from __future__ import annotations

from streamvid.transform.spec import Transform, Views


def test_views_do_not_change_with_the_dict_they_are_made_of() -> None:
    given = {"a": Transform(), "b": Transform(resize=8)}
    views = Views(given)
    del given["b"]
    assert list(views.transforms) == ["a", "b"]


def test_a_tuple_of_one_number_is_that_number() -> None:
    """As in torchvision. The graph of `engine="dali"` on a GPU, and of a server, took it for the sides of a square."""
    assert Transform(resize=(256,), crop=(224,)) == Transform(resize=256, crop=224)
