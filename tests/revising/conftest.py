"""A small dataset to change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.packed import pack_recipes
from tools.recipes import Recipe

CLIPS = 6


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips of one size with labels, captions and scores, two in each shard."""
    numbers = range(CLIPS)
    recipes = {f"clip{n}": Recipe(width=64, height=64, frames=6, gop=3, b_frames=0, seed=n) for n in numbers}
    columns = {
        "label": [n % 2 for n in numbers],
        "caption": [f"caption of number {n}" for n in numbers],
        "score": [n / 4 for n in numbers],
    }
    return pack_recipes(recipes, tmp_path_factory.mktemp("revising"), columns, shard_size=20_000)


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "ds"))
