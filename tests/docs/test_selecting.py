"""docs/selecting.md does what it says."""

from __future__ import annotations

import doctest
import re
import textwrap
from pathlib import Path

import pytest

import streamvid as sv
from streamvid.dataset.selection import select_rows
from streamvid.packing.pack import pack
from tests.support.packed import make_videos

PAGE = Path(__file__).parents[2] / "docs/selecting.md"
PACKED_WITH = re.compile(r"packed with this list:\n\n((?:    .*\n)+)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where datasets/mine is as the page says."""
    root = tmp_path_factory.mktemp("selecting")
    (root / "in").mkdir()
    for video in make_videos(root / "made").rglob("*.*"):
        video.rename(root / "in" / video.name)
    found = PACKED_WITH.search(PAGE.read_text())
    assert found
    (root / "labels.csv").write_text(textwrap.dedent(found[1]))
    pack([root / "in"], root / "datasets/mine", labels=root / "labels.csv", progress=False)
    return root


def test_examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(), {"sv": sv}, "selecting.md", str(PAGE), 0)
    assert len(examples.examples) > 15
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(examples, out=said.append)
    assert result.failed == 0, "".join(said)


def test_conditions(folder: Path) -> None:
    dataset = sv.Dataset.open(folder / "datasets/mine")
    section = PAGE.read_text().split("## Conditions")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    conditions = [condition for row in rows for condition in re.findall(r"`([^`]+)`", row)]
    assert len(conditions) > 8
    for condition in conditions:
        chosen = select_rows(dataset, where=condition)
        assert 0 < len(chosen) < len(dataset), condition
