"""tools/demo.py with a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tools import demo


@pytest.mark.parametrize("dataset", ["s3://mine/prefix", "/tmp/demo/dataset"])
def test_nothing_of_a_bucket_is_overwritten(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(demo, "_run", lambda title, command, console: commands.append(list(command)))
    demo.run_demo(tmp_path, tmp_path / "out", dataset, Console(quiet=True))
    assert len(commands) == 4
    assert all(dataset in command for command in commands)
    assert ("--overwrite" in commands[0]) == dataset.startswith("/")
