"""`streamvid doctor` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from streamvid.cli.main import main
from streamvid.inspection import doctor
from streamvid.inspection.doctor import Finding


def give(monkeypatch: pytest.MonkeyPatch, *found: Finding) -> None:
    def examine(dataset: str | None, *, cache_dir: str | None, roots: str | None) -> Iterator[Finding]:
        yield from found

    monkeypatch.setattr(doctor, "examine", examine)


def test_the_table_and_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, Finding("Python", "3.12.1"), Finding("av", "9", "note", "tested with 18"))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        ["ok", "Python", "3.12.1"], ["note", "av", "9"], ["→", "tested", "with", "18"], ["no", "problems"],
    ]  # fmt: skip
    give(monkeypatch, Finding("NVDEC", "[red]missing\x1b", "problem", "set it"))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "PROBLEM" in shown
    assert "[red]missing" in shown
    assert "\x1b" not in shown
    assert shown.endswith("1 problem\n")


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give(monkeypatch, Finding("NVDEC", "missing", "problem", "set it"))
    assert main(["doctor", "--json"]) == 1
    row = {"what": "NVDEC", "found": "missing", "state": "problem", "remedy": "set it"}
    assert json.loads(capsys.readouterr().out) == [row]


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) in (0, 1)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    for what in ("Python", "torch", "/dev/shm", "open files", "cache disk"):
        assert what in shown.out
