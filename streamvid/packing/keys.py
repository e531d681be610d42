"""Keys: the names of clips in a dataset, made from the paths of their sources."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

KEY_MAX: Final = 80
"""Characters of the longest key."""
_VALID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{KEY_MAX}}}")
_HASH_DIGITS: Final = (0, 8, 16, 32)
"""Hexadecimal digits of the name's SHA-256 appended to a key: none for a valid, unique name; more only if keys with
eight digits still collide."""


def make_keys(names: Sequence[str]) -> list[str]:
    """Make a unique key for each name, in the same order.

    A key is the name without its extension if that matches ``[A-Za-z0-9_-]{1,80}``. Otherwise other characters become
    '_', the text is shortened, and '-' and eight digits of the name's SHA-256 are appended. Names whose keys would be
    equal, ignoring case, all get the digits, so that a key depends on other names only if they collide.

    Args:
        names: distinct relative paths.
    """
    levels = [0 if _VALID.fullmatch(_stem(name)) else 1 for name in names]
    for _ in range(len(names) + len(_HASH_DIGITS)):
        keys = [_key(name, level) for name, level in zip(names, levels, strict=True)]
        colliding = duplicates([key.casefold() for key in keys])
        if not colliding:
            return keys
        for i in colliding:
            levels[i] = min(levels[i] + 1, len(_HASH_DIGITS) - 1)
    raise ValueError("names are not distinct")


def longer_keys(name: str) -> list[str]:
    """Alternative keys of a name whose usual key is taken, the shortest first."""
    return [_key(name, level) for level in range(1, len(_HASH_DIGITS))]


def uncut_key(name: str, key: str, taken: Collection[str]) -> str:
    """The key of a source that stays whole where others are cut, which is not that of a clip of another: a longer one
    for `a_000000` if `taken`, the case-folded keys of all sources, has `a`."""
    cut, _, number = key.casefold().rpartition("_")
    return longer_keys(name)[0] if cut in taken and re.fullmatch("[0-9]{6}", number) else key


def clip_key(source_key: str, suffix: str) -> str:
    """The key of a clip: its source's key with the clip's suffix, shortened and hashed if it would be too long."""
    if len(source_key) + len(suffix) <= KEY_MAX:
        return source_key + suffix
    digits = hashlib.sha256(source_key.encode()).hexdigest()[:8]
    return f"{source_key[: KEY_MAX - 9 - len(suffix)]}-{digits}{suffix}"


def duplicates(values: Sequence[str]) -> list[int]:
    """Indices of the values that occur more than once."""
    counts = Counter(values)
    return [i for i, value in enumerate(values) if counts[value] > 1]


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]


def _key(name: str, level: int) -> str:
    if level == 0:
        return _stem(name)
    digits = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[: _HASH_DIGITS[level]]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", _stem(name)) or "_"
    return f"{readable[: KEY_MAX - 1 - len(digits)]}-{digits}"
