"""Where clips outside of shards may lie: the roots that dataset.json names, as far as they may be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from streamvid.dataset import grants
from streamvid.errors import DatasetError, InputError
from streamvid.storage.url import given_path, is_local, join, local_path, redact

_BELOW: Final = re.compile(r"[^/\x00-\x1f:]+(/[^/\x00-\x1f:]+)*")


def given_roots(roots: object) -> tuple[str, ...]:
    """The option `roots`: one path or URL, or several. Raises InputError if it is none."""
    several = [roots] if isinstance(roots, str | os.PathLike) else roots
    if not isinstance(several, Iterable):
        raise InputError(f"roots must be a list of folders and URLs; it is {roots!r}"[:300])
    return tuple(given_path(one, "roots") for one in several)


def resolve_roots(dataset: str, roots: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """The roots of a dataset as paths and URLs. One without a scheme and a leading slash is a folder of the dataset, ""
    the dataset's own; of all others, only those that the user allows, or has indexed here (`streamvid.dataset.grants`),
    are taken, as whoever wrote dataset.json may have named anything.

    Args:
        dataset: folder or URL.
        roots: as in dataset.json.
        allowed: paths and URLs below which files may be read.

    Raises:
        InputError: a root that is not allowed.
        DatasetError: one that a dataset cannot have.
    """
    if not roots:
        return ()
    granted = tuple(map(_whole, (*allowed, *grants.granted(dataset))))
    return tuple(_resolved(dataset, root, granted) for root in roots)


@dataclass(frozen=True)
class Bounds:
    """Where files of a dataset may lie, wherever links and redirects lead.

    Attributes:
        folders: local ones, without links.
        hosts: to which URLs may redirect, besides their own.
    """

    folders: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: str, roots: Sequence[str], allowed: Sequence[str]) -> Bounds:
        """Those of a dataset; `roots` as `resolve_roots` returns them, all else as there."""
        every = dict.fromkeys((*roots, *allowed, *(grants.granted(dataset) if roots else ())))
        hosts = dict.fromkeys(urlsplit(one).hostname or "" for one in every if not is_local(one))
        return cls(tuple(os.path.realpath(local_path(one)) for one in every if is_local(one)), tuple(hosts))


def _resolved(dataset: str, root: str, granted: tuple[str, ...]) -> str:
    if not root:
        return dataset
    if _BELOW.fullmatch(root):
        if {".", ".."} & set(root.split("/")):
            raise DatasetError(
                f"the dataset {redact(dataset)} names the root {root[:100]!r}: it must not leave its folder"
            )
        return join(dataset, root)
    whole = _whole(root)
    if is_local(whole) and not is_local(dataset):
        raise DatasetError(
            f"the dataset {redact(dataset)} names local files, which only a local one may: {root[:100]!r}"
        )
    if ".." in whole.split("/") or not whole.startswith(tuple(one.rstrip("/") + "/" for one in granted)):
        shown = redact(root)[:200]
        raise InputError(
            f"the dataset {redact(dataset)} reads files of {shown}: if you trust whoever indexed it, open it with "
            f"roots=[{shown!r}]"
        )
    return whole.rstrip("/")


def _whole(root: str) -> str:
    """A path or URL that ends in a slash."""
    return (local_path(root) if is_local(root) else root).rstrip("/") + "/"
