"""Clips for tests: `write` as in tools/clips.py, but each recipe is encoded once in a session and copied afterwards."""

from __future__ import annotations

from pathlib import Path

from tools import clips
from tools.clips import Recipe

_LARGEST = 4 << 20
"""Bytes of a file that is kept."""
_encoded: dict[Recipe, bytes] = {}


def write(recipe: Recipe, path: Path | str) -> Path:
    """Make the clip, a file that the test may change."""
    path = Path(path)
    if recipe in _encoded:
        path.write_bytes(_encoded[recipe])
        return path
    clips.write(recipe, path)
    if path.stat().st_size <= _LARGEST:
        _encoded[recipe] = path.read_bytes()
    return path
