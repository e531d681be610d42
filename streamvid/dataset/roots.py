"""The roots of clips in place, which dataset.json names, and the permission to read files below them.

Roots that this user has indexed may be read without being named again, because a small file for each dataset in the
user's data folder notes them. Replacing dataset.json cannot add a root to that file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from streamvid.checks import listed
from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.storage import filesystem
from streamvid.storage.url import DOT_SEGMENTS, given_path, is_local, join, local_path, real_path, redact

log = logging.getLogger(__name__)

_BELOW: Final = re.compile(r"[^/\x00-\x1f:]+(/[^/\x00-\x1f:]+)*")


def given_roots(roots: object) -> tuple[str, ...]:
    """The paths or URLs of the option `roots`, one or several. Raises InputError for other values. Warns of local ones
    that are no folders, but a dataset can be opened while its videos are not mounted."""
    several = [roots] if isinstance(roots, str | os.PathLike) else listed(roots, "roots", "folders and URLs")
    found = tuple(given_path(root, "roots") for root in several)
    for root in found:
        if is_local(root) and not os.path.isdir(local_path(root)):
            log.warning("roots: %r is no folder on this machine: mount it, or name another", root[:200])
    return found


def resolve_roots(dataset: str, roots: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """The roots of a dataset as paths and URLs. A root with neither a scheme nor a leading slash is a folder of the
    dataset, and "" the dataset's own folder. Other roots must be allowed by the user, or have been indexed on this
    machine (`grant`), because a dataset.json from elsewhere may name any file.

    Args:
        dataset: folder or URL.
        roots: the roots in dataset.json.
        allowed: paths and URLs below which files may be read.

    Raises:
        InputError: a root is not allowed.
        DatasetError: a root is impossible.
    """
    if not roots:
        return ()
    known = tuple(map(_whole, (*allowed, *granted(dataset))))
    return tuple(_resolved(dataset, root, known) for root in roots)


@dataclass(frozen=True)
class Bounds:
    """The folders and hosts in which files of a dataset may lie after links and redirects are followed.

    Attributes:
        folders: local folders, as real paths.
        hosts: hosts to which URLs may redirect, besides their own.
    """

    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: str, roots: Sequence[str], allowed: Sequence[str]) -> Bounds:
        """The bounds of a dataset; `roots` is the result of `resolve_roots`, whose other arguments these are."""
        every = dict.fromkeys((*roots, *allowed, *(granted(dataset) if roots else ())))
        hosts = dict.fromkeys(urlsplit(root).hostname or "" for root in every if not is_local(root))
        return cls(tuple(os.path.realpath(local_path(root)) for root in every if is_local(root)), tuple(hosts))


def _resolved(dataset: str, root: str, granted: tuple[str, ...]) -> str:
    if not root:
        return dataset
    if _BELOW.fullmatch(root):
        if re.search(DOT_SEGMENTS, root):
            raise DatasetError(
                f"the dataset {redact(dataset)} names the root {root[:100]!r}: it must not leave its folder"
            )
        return join(dataset, root)
    whole = _whole(root)
    if is_local(whole) and not is_local(dataset):
        raise DatasetError(
            f"the dataset {redact(dataset)} names local files, which only a local one may: {root[:100]!r}"
        )
    if re.search(DOT_SEGMENTS, whole) or not whole.startswith(tuple(root.rstrip("/") + "/" for root in granted)):
        shown = redact(root)[:200]
        raise InputError(
            f"the dataset {redact(dataset)} reads files of {shown}: if you trust whoever indexed it, open it with "
            f"roots=[{shown!r}] (--roots)"
        )
    return whole.rstrip("/")


def _whole(root: str) -> str:
    """A path or URL that ends in a slash."""
    return (local_path(root) if is_local(root) else root).rstrip("/") + "/"


def grant(dataset: str, roots: Iterable[str]) -> None:
    """Note that this user's dataset may read these roots, paths or URLs. If the note cannot be stored, they must be
    named when the dataset is opened, as a warning says."""
    every = {_without_secrets(root) for root in (*granted(dataset), *roots) if root and not _BELOW.fullmatch(root)}
    if not every:  # folders of the dataset
        return
    try:
        path = _grants_file(dataset)
        document = {"dataset": redact(real_path(dataset)), "roots": sorted(every)}
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        filesystem.write_bytes(path, json.dumps(document, indent=1).encode())
    except (OSError, RuntimeError, ValueError, StreamvidError) as error:
        log.warning(
            "your data folder (XDG_DATA_HOME) has no note of the files that %s may read, so name them with --roots "
            "(roots=) wherever it is opened: %s", redact(dataset), redact(str(error)).rstrip("."),
        )  # fmt: skip


def _without_secrets(root: str) -> str:
    """A root without the user, password and query of its URL, where these hold secrets: no dataset names such a root,
    so that what counts of it is its host."""
    if is_local(root) or redact(root) == root:
        return root
    parts = urlsplit(root)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def granted(dataset: str) -> tuple[str, ...]:
    """The roots that this user has granted to a dataset."""
    try:
        path = _grants_file(dataset)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return ()
            roots = json.loads(file.read())["roots"]
        return tuple(root for root in roots if isinstance(root, str))
    except (OSError, RuntimeError, ValueError, LookupError, TypeError):
        return ()


def _grants_file(dataset: str) -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return folder / "streamvid" / "roots" / f"{hashlib.sha256(real_path(dataset).encode()).hexdigest()}.json"
