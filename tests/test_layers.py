"""Imports go downwards: no module imports from a layer above its own. docs/design.md draws the layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "streamvid"
LAYERS = (
    *("cli", "inspection", "packing"),
    *("loader", "dali", "transform", "decode", "fetch", "plan", "sampling"),
    *("dataset", "storage", "video", "color", "bitstream", "mp4"),
)
BELOW_ALL = (("workers", "progress"), ("arrays", "checks", "text", "errors"))
"""Modules beside the folders, which import none of them."""
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported anywhere in a file: in functions and under TYPE_CHECKING, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> int | None:
    """How far down a module's layer is; None for what is not ours."""
    parts = module.split(".")
    if parts[0] != "streamvid" or len(parts) == 1:
        return None
    if parts[1] in LAYERS:
        return LAYERS.index(parts[1])
    return next((len(LAYERS) + n for n, names in enumerate(BELOW_ALL) if parts[1] in names), None)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    mine = layer(name_of(path))
    assert mine is not None, f"{path} is in no layer: docs/design.md"
    for imported in imports(ast.parse(path.read_text(encoding="utf-8"))):
        theirs = layer(imported)
        assert theirs is None or theirs >= mine, f"{name_of(path)} imports {imported}, which is above it"


def test_there_is_no_cycle() -> None:
    known = {name_of(path) for path in MODULES}
    needs = {
        name_of(path): {name for name in imports(ast.parse(path.read_text(encoding="utf-8"))) if name in known}
        for path in MODULES
    }
    while ready := [name for name, wanted in needs.items() if not wanted & needs.keys()]:
        for name in ready:
            del needs[name]
    assert not needs, f"these import one another: {sorted(needs)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*/__init__.py")), ids=name_of)
def test_packages_do_no_work(path: Path) -> None:
    (only,) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(only, ast.Expr), "a package has a docstring and nothing else"
