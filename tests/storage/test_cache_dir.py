"""Where caches lie by default, and users without a home folder, as those of containers who are not in /etc/passwd."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import NoReturn

import pytest

import streamvid as sv
from streamvid.dataset import table_cache
from streamvid.errors import InputError
from streamvid.inspection.doctor import examine
from streamvid.storage.cache_dir import user_cache_dir
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import pack_recipes
from tools.clips import Recipe


@pytest.mark.parametrize(
    ("given", "expected"),
    [("/caches", "/caches/streamvid"), ("", "~/.cache/streamvid"), ("relative", "~/.cache/streamvid")],
)
def test_by_the_xdg_specification(given: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert user_cache_dir() == Path(expected).expanduser()
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_dir() == Path("~/.cache/streamvid").expanduser()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process' user is one without a home folder."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_only_the_cache_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 1)
    packed = pack_recipes({f"{n}.mp4": Recipe(frames=4, seed=n) for n in range(3)}, tmp_path)

    def keys(path: str | Path, cache_dir: Path | None = None) -> list[str]:
        options = {} if cache_dir is None else {"cache_dir": cache_dir}
        with sv.StreamLoader(path, batch_size=1, sampling=sv.Window(2), device="cpu", **options) as loader:  # type: ignore[arg-type]
            return sorted(key for batch in loader for key in batch["key"])

    assert keys(packed) == ["0", "1", "2"]
    with faulty_s3() as s3:
        url = s3.add_folder(packed, "bucket/set")
        with pytest.raises(InputError, match="has no home folder"):
            keys(url)
        assert keys(url, tmp_path / "cache") == ["0", "1", "2"]
    (disk,) = [row for row in examine() if row.what == "cache disk"]
    assert (disk.state, "set HOME" in disk.remedy) == ("problem", True)
    assert sv.forget(packed, ["1"], purge=True).purged == 1
    assert set(keys(packed)) == {"0", "2"}
