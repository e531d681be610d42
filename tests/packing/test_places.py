"""Which files may be indexed in place."""

from __future__ import annotations

import pytest

from streamvid.packing.places import Found, Places, count_extensions, path_parts

SITE = "https://example.com/public"


def test_extensions_are_counted_and_rare_ones_summed_up() -> None:
    files = [f"{number}.{letter}" for number, letter in enumerate("aabBcdefg")]
    assert count_extensions(files) == ": 2 .a, 2 .b, 1 .c, 1 .d, 1 .e, 2 others"
    assert count_extensions([*files[:-1], "x", "y.tar?a.z"], "") == "2 .a, 2 .b, 1 .c, 1 .d, 1 .e, 3 others"
    assert count_extensions(["https://a/b.zip?c.d"]) == ": 1 .zip"


@pytest.mark.parametrize("file", ["a.mp4", "b/..a.mp4", "b/%2E%2E%2E/a%20b.mp4"])
def test_names_that_can_be_stored(file: str) -> None:
    assert not checked(file).problem


@pytest.mark.parametrize("file", ["../a.mp4", "b/./a.mp4", "%2e%2E/a.mp4", "b%2f..%2f..%2fa.mp4", "b/.%2e"])
def test_no_name_leaves_its_root(file: str) -> None:
    """Nor by what a web server takes for ``..``: every clip of it would be refused when it is opened."""
    assert checked(file).problem == "its name cannot be stored: rename it"


def checked(file: str) -> Found:
    path = f"{SITE}/{file}"
    return Places((SITE,)).check(Found(path, path_parts(path), depth=len(path_parts(SITE))))
