"""The lock on a folder in which a dataset is written."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from streamvid.errors import InputError
from streamvid.storage.folder_lock import lock_folder
from tests.support.mounted import with_locks_of_nfs


@pytest.mark.parametrize("nfs", [False, True])
def test_one_holds_it_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nfs: bool) -> None:
    """Also on NFS, where locks of folders hold on one machine; what a killed process left there does no harm."""
    if nfs:
        with_locks_of_nfs(monkeypatch)
        (tmp_path / ".streamvid.lock").touch()
    for _ in range(2):
        with (
            lock_folder(str(tmp_path)),
            pytest.raises(InputError, match="another process writes to"),
            lock_folder(str(tmp_path)),
        ):
            pytest.fail("two hold it")
        assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("nfs", [False, True])
def test_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nfs: bool) -> None:
    """As Lustre without its option flock, and NFS whose server has no service for locks."""
    with_locks_of_nfs(monkeypatch)
    lock = fcntl.flock

    def flock(file: Any, how: int) -> None:
        if not nfs or not isinstance(file, int):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(str(tmp_path)):
        pass
    assert [*tmp_path.iterdir()] == []
