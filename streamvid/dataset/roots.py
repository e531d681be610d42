"""Where clips outside of shards may lie: the roots that dataset.json names, as far as they may be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from streamvid.errors import DatasetError, InputError
from streamvid.storage.url import is_local, join, local_path, redact

_BELOW: Final = re.compile(r"[^/\x00-\x1f:]+(/[^/\x00-\x1f:]+)*")


def resolve_roots(dataset: str, roots: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """The roots of a dataset as paths and URLs. One without a scheme and a leading slash is a folder of the dataset, ""
    the dataset's own; of all others, only those that the user allows are taken, as whoever wrote dataset.json may have
    named anything.

    Args:
        dataset: folder or URL.
        roots: as in dataset.json.
        allowed: paths and URLs below which files may be read.

    Raises:
        InputError: a root that is not allowed.
        DatasetError: one that a dataset cannot have.
    """
    granted = tuple(map(_whole, allowed))
    return tuple(_resolved(dataset, root, granted) for root in roots)


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
