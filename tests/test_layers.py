"""Imports go downwards: no module imports from a layer above its own. docs/design.md draws the layers."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "streamvid"
LAYERS = (
    *("__main__", "cli", "revising", "inspection", "packing", "dali"),
    *("loader", "dali_engine", "transform", "decode", "fetch", "plan", "sampling"),
    *("dataset", "storage", "video", "color", "bitstream", "mp4"),
)
BELOW_ALL = (("workers", "progress", "forks"), ("arrays", "checks", "checksum", "host", "stopwatch", "text", "errors"))
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


@cache
def trees() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def test_imports_go_down() -> None:
    for module, tree in trees().items():
        mine = layer(module)
        assert mine is not None, f"{module} is in no layer: docs/design.md"
        above = [name for name in imports(tree) if (theirs := layer(name)) is not None and theirs < mine]
        assert not above, f"{module} imports what is above it"


def test_there_is_no_cycle() -> None:
    needs = {module: set(imports(tree)) & trees().keys() for module, tree in trees().items()}
    while ready := [name for name, wanted in needs.items() if not wanted & needs.keys()]:
        for name in ready:
            del needs[name]
    assert not needs, f"these import one another: {sorted(needs)}"


def test_modules_are_small() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {module: count for module, count in lines.items() if count > 400} == {}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*/__init__.py")), ids=name_of)
def test_packages_do_no_work(path: Path) -> None:
    (only,) = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(only, ast.Expr), "a package has a docstring and nothing else"


def test_what_modules_import_is_required() -> None:
    """By name, as what comes by way of another package may go with it; inside functions, imports are of extras, too."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.match(r"[\w-]+", text)[0].lower() for text in project["dependencies"]}  # type: ignore[index]
    required |= {"streamvid", "triton"}  # the latter with PyTorch, where there is a GPU
    tops = [node for tree in trees().values() for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.partition(".")[0] for node in tops for name in imports(node)} - sys.stdlib_module_names
    assert names - required == set()


PRIVATE = re.compile(r"_[a-z]\w*")
FOREIGN_EXCEPTIONS = {
    "_exit",  # of os, documented
    "_get_process_group_store",  # PyTorch 2.8 has no public way
    "_new_shared",  # as PyTorch's own collate function allocates
    "_shutdown_workers",  # GpuDataLoader: there is no other way to end workers at once
    "_iterator",  # the workers that persist
    "_workers",  # of these, whether one was killed
    "_cat_file",  # of fsspec's asynchronous clients, documented: their coroutines have an underscore
}


def private_names(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names with an underscore in front: those that the file defines (True), and attributes that it uses (False)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True
        elif isinstance(node, ast.Attribute):
            yield node.attr, isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in ("self", "cls")
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            yield ast.unparse(node.args[1]).strip("'\""), False


def test_nothing_private_of_other_libraries_is_used() -> None:
    """It changes without notice: every `pack` failed on Python 3.13 for that."""
    found = [(module, name, own) for module, tree in trees().items() for name, own in private_names(tree)]
    ours = {name for _, name, own in found if own}
    foreign = {(name, module) for module, name, own in found if not own and PRIVATE.fullmatch(name)}
    assert {(name, module) for name, module in foreign if name not in ours | FOREIGN_EXCEPTIONS} == set()
