"""The files of a cache folder, where several processes work on it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from streamvid.storage.cache_folder import CacheFolder, claim, give_up

CONTENT = b"whole" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_what_another_process_fetches_under_the_name_is_not_published(tmp_path: Path) -> None:
    """The folder was removed while this process fetched, and another one began anew there."""
    folder = CacheFolder(tmp_path)
    part = folder.part(SHA256, len(CONTENT), 0)
    mine = claim(part)
    assert mine is not None
    mine.write(CONTENT)
    part.unlink()
    other = claim(part)
    assert other is not None
    other.write(CONTENT[:10])
    with mine, other:
        assert folder.publish(mine, part, len(CONTENT), SHA256) is None
        assert not (tmp_path / SHA256).exists()


def test_only_the_own_part_is_removed(tmp_path: Path) -> None:
    part = CacheFolder(tmp_path).part(SHA256, len(CONTENT), 0)
    mine = claim(part)
    assert mine is not None
    part.unlink()
    with mine:
        other = claim(part)
        assert other is not None
        with other:
            give_up(part, mine)
            assert part.exists()
            give_up(part, other)
            assert not part.exists()
