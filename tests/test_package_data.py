"""The wheel contains all files that are not Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_all_files_are_named() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    there = [path for path in (ROOT / "streamvid").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in there} >= {".html", ".css", ".js"}
    for path in there:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert any(fnmatch(path.name, pattern) for pattern in settings.get(package, [])), path


def test_no_native_part_of_an_earlier_build_is_installed(tmp_path: Path) -> None:
    """A copy without a compiler: what `build/` keeps, and what lies beside the sources, is not of these sources."""
    pytest.importorskip("setuptools", "77", reason="builds here what pip builds in an environment of its own")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    sources = ROOT / "streamvid/native"
    shutil.copytree(sources, tmp_path / "streamvid/native", ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "streamvid/__init__.py", tmp_path / "streamvid")
    old = [tmp_path / folder / "streamvid/native/pixels.abi3.so" for folder in ("built", ".")]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"of an earlier version")
    for option, path in zip(([], ["--inplace"]), old, strict=True):
        command = [sys.executable, "setup.py", "build_py", "-d", "built", "build_ext", "-b", "built", *option]
        subprocess.run(command, cwd=tmp_path, env=os.environ | {"CC": "false"}, check=True, capture_output=True)
        assert not path.exists()
