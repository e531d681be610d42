"""Where caches lie by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.storage.cache_dir import user_cache_dir


@pytest.mark.parametrize(
    ("given", "expected"),
    [("/caches", "/caches/streamvid"), ("", "~/.cache/streamvid"), ("relative", "~/.cache/streamvid")],
)
def test_by_the_xdg_specification(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert user_cache_dir() == Path(expected).expanduser()
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_dir() == Path("~/.cache/streamvid").expanduser()
