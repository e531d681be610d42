"""Checks of refusals: the message and exit code of the command, and that it leaves no files."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.cli.main import main


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    """These arguments end with one sentence that says so, no output, and nothing new in the working folder."""
    before = set(Path().iterdir())
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("streamvid: ")
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert set(Path().iterdir()) == before
