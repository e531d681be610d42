"""The files of a cache folder, where several processes work on it."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from streamvid.storage.cache_folder import CacheFolder, claim, give_up
from tests.support.mounted import with_locks_of_nfs, without_hard_links

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


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EIO])
def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    without_hard_links(monkeypatch, number)
    folder = CacheFolder(tmp_path)
    part = folder.part(SHA256, len(CONTENT), 0)
    mine = claim(part)
    assert mine is not None
    mine.write(CONTENT)
    lease = folder.publish(mine, part, len(CONTENT), SHA256)
    assert lease is not None
    with lease:
        assert Path(lease.opened).read_bytes() == CONTENT
    assert [*tmp_path.iterdir()] == [tmp_path / SHA256]


def test_nfs_locks_for_removal_only_what_is_open_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_locks_of_nfs(monkeypatch)
    folder = CacheFolder(tmp_path)
    part = folder.part(SHA256, len(CONTENT), 0)
    mine = claim(part)
    assert mine is not None
    with mine:
        assert folder.reserved() == len(CONTENT)
    assert folder.reserved() == 0  # as of a process that died
    assert not part.exists()
    (tmp_path / SHA256).write_bytes(CONTENT)
    lease = folder.pin(len(CONTENT), SHA256)
    assert lease is not None
    with lease:
        assert not folder.evict(tmp_path / SHA256)
    assert folder.evict(tmp_path / SHA256)
