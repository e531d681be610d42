"""What the documentation names exists: files, modules, and what `sv` exports."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import streamvid as sv

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
FOLDERS = ("streamvid", "tests", "tools", "examples")
PATH = re.compile(r"\b(?:streamvid|tests|tools|examples)/[\w/.-]*[\w/]")
MODULE = re.compile(r"\b(?:streamvid|tools|tests)(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"`([\w/]+\.(?:py|sh))`")
IDENTIFIER = re.compile(r"`([A-Za-z_]+[A-Z_]\w*)(?:\([^`\n]*\))?`")
EARLIER = re.compile(r"\bat (?:e9ec70e|c73bf5f4)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def sources() -> dict[str, str]:
    """All programs: their text by path."""
    found = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh", ".sbatch")
    ]
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


@cache
def words() -> set[str]:
    """All identifiers in them, and the names of their modules."""
    return set(re.findall(r"\w+", "\n".join([*sources(), *sources().values()])))


def text(page: Path) -> str:
    """The page, without paragraphs of an earlier commit."""
    return "\n\n".join(text for text in page.read_text().split("\n\n") if not EARLIER.search(text))


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    *modules, name = dotted.split(".")
    for count in range(len(modules) + 1, 0, -1):
        try:
            found = importlib.import_module(".".join([*modules, name][:count]))
        except ModuleNotFoundError:
            continue
        for attribute in [*modules, name][count:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_things_exist(page: Path) -> None:
    content = text(page)
    missing = {path for path in PATH.findall(content) if not (ROOT / path).exists()}
    missing |= {f"sv.{name}" for name in re.findall(r"\bsv\.(\w+)", content) if not hasattr(sv, name)}
    missing |= {
        name for name in FILE.findall(content) if not any(f"/{path}".endswith(f"/{name}") for path in sources())
    }
    if page.parents[1].name != "examples":  # those name what Slurm and Kubernetes have
        missing |= set(IDENTIFIER.findall(content)) - words()
    missing |= {name for name in MODULE.findall(content) if not exists(name)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            heads = [line.lstrip("#").strip().lower() for line in linked.read_text().splitlines() if line[:1] == "#"]
            anchors = {re.sub(r"[^\w -]", "", head).replace(" ", "-") for head in heads}
            assert anchor in anchors, target
