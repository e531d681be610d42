"""Which roots this user has indexed, for which datasets: those may be read without being named again.

A small file for each dataset in the user's data folder. Whoever puts another dataset.json at a dataset's place cannot
add a root to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from streamvid.storage import filesystem
from streamvid.storage.url import is_local, local_path, redact


def grant(dataset: str, roots: Iterable[str]) -> None:
    """Remember that this user's dataset may read these roots, paths or URLs. Where nothing can be stored, they must be
    named when the dataset is opened."""
    with suppress(OSError, RuntimeError, ValueError):
        path = _file(dataset)
        document = {"dataset": redact(_whole(dataset)), "roots": sorted({*granted(dataset), *roots})}
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        filesystem.write_bytes(path, json.dumps(document, indent=1).encode())


def granted(dataset: str) -> tuple[str, ...]:
    """The roots that this user has granted to a dataset."""
    try:
        path = _file(dataset)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return ()
            roots = json.loads(file.read())["roots"]
        return tuple(root for root in roots if isinstance(root, str))
    except (OSError, RuntimeError, ValueError, LookupError, TypeError):
        return ()


def _file(dataset: str) -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return folder / "streamvid" / "roots" / f"{hashlib.sha256(_whole(dataset).encode()).hexdigest()}.json"


def _whole(dataset: str) -> str:
    return os.path.realpath(local_path(dataset)) if is_local(dataset) else dataset.rstrip("/")
