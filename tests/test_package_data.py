"""The wheel contains all files that are not Python."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_all_files_are_named() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    there = [path for path in (ROOT / "streamvid").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in there} >= {".html", ".css", ".js"}
    for path in there:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert any(fnmatch(path.name, pattern) for pattern in settings.get(package, [])), path
