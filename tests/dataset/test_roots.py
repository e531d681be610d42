"""Which roots a dataset may name."""

from __future__ import annotations

import pytest

from streamvid.dataset.roots import resolve_roots
from streamvid.errors import StreamvidError

SITE = "https://example.com/public"


@pytest.mark.parametrize("dataset", ["/data/set", f"{SITE}/set"])
def test_roots_below_the_dataset(dataset: str) -> None:
    assert resolve_roots(dataset, ["", "a/b", "..a/%2E%2E%2E"], ()) == (
        dataset, f"{dataset}/a/b", f"{dataset}/..a/%2E%2E%2E",
    )  # fmt: skip


def test_roots_below_what_is_allowed() -> None:
    assert resolve_roots(f"{SITE}/set", [f"{SITE}/videos"], [SITE]) == (f"{SITE}/videos",)
    assert resolve_roots("/data/set", ["/data/videos/"], ["/data"]) == ("/data/videos",)


@pytest.mark.parametrize("way", ["..", "a/../..", "a/./b", "%2e%2E", "a/.%2e/b", "a%2F..%2f..%2Fb"])
@pytest.mark.parametrize("start", ["", f"{SITE}/", "/data/"])
def test_no_root_leaves_its_folder(start: str, way: str) -> None:
    """Nor by what a web server takes for ``..``."""
    with pytest.raises(StreamvidError, match=r"must not leave|if you trust whoever|which only a local one may"):
        resolve_roots("/data/set" if start == "/data/" else f"{SITE}/set", [start + way], [SITE, "/data"])
