"""A small dataset to change."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from streamvid.packing.pack import pack
from tests.support.clips import write
from tests.support.packed import packing_inline
from tools.recipes import Recipe

CLIPS = 6


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips of one size with labels, captions and scores, two in each shard."""
    root = tmp_path_factory.mktemp("revising")
    (root / "in").mkdir()
    lines = ["path,label,caption,score"]
    for n in range(CLIPS):
        write(Recipe(width=64, height=64, frames=6, gop=3, b_frames=0, seed=n), root / "in" / f"clip{n}.mp4")
        lines.append(f"clip{n}.mp4,{n % 2},caption of number {n},{n / 4}")
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    with packing_inline():
        pack([root / "in"], root / "ds", labels=root / "list.csv", shard_size=20_000, progress=False)
    return root / "ds"


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "ds"))


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
