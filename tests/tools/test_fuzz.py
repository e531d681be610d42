"""The fuzzers, for a moment: they find nothing, and would find something."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
import torch

from tools.fuzz import decoders, pack_mutants, run
from tools.fuzz.mutate import mutated, mutated_json
from tools.fuzz.targets import TARGETS

SLOW = ("rows", "cells", "csv", "jsonl", "parquet", "tar", "idx", "index", "quarantine")
"""These need a dataset; `test_readers_of_a_dataset` has one for all."""


def some(name: str, folder: Path, count: int) -> None:
    """Read a few mutants of a target in this process."""
    target, draw = TARGETS[name], random.Random(0)
    seeds = list(target.seeds(folder))
    for n in range(count):
        data = mutated(draw, seeds, target.tokens)
        if target.is_json and n % 4:
            data = json.dumps(mutated_json(draw, json.loads(draw.choice(seeds)))).encode("utf-8", "surrogatepass")
        with contextlib.suppress(*target.allowed):
            target.read(data)


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - set(SLOW)))
def test_readers(name: str, tmp_path: Path) -> None:
    some(name, tmp_path, 150)


@pytest.mark.parametrize("name", SLOW)
def test_readers_of_a_dataset(name: str, tmp_path: Path) -> None:
    some(name, tmp_path, 25)


def test_a_seed_gives_the_same_mutants() -> None:
    seeds = [b"abc" * 100, b"x" * 50]
    one, two = ([mutated(draw, seeds) for _ in range(20)] for draw in (random.Random(3), random.Random(3)))
    assert one == two
    assert len(set(one)) > 15


@pytest.mark.usefixtures("worker_processes")
def test_pack_over_mutants(tmp_path: Path) -> None:
    """In worker processes, whose memory is watched."""
    names = ("h264", "hevc", "vp9", "mpeg4", "h264_ts", "mjpeg_mov")
    (tmp_path / "sources").mkdir()
    files = pack_mutants.sources(tmp_path / "sources", None, names)
    assert len(files) == len(names)
    found = pack_mutants.run(20, 5, files, tmp_path)
    assert found.mutants == 20
    assert found.accepted > 0
    assert found.frames > 0
    assert found.findings == []
    assert 0 < found.peak < pack_mutants.LIMIT


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--seconds", "1", "--target", "times", "--keep", str(tmp_path / "found")]) == 0
    assert "times: " in capsys.readouterr().out
    assert not (tmp_path / "found").exists()


def test_decoders(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    once = ["--clips", "3", "--seconds", "0", "--processes", "1"]
    assert decoders.main(once) == 0
    assert "3 clips: 0 clips differ" in capsys.readouterr().out
    decode = decoders.decode_with_pyav
    monkeypatch.setattr(decoders, "decode_with_pyav", lambda *given, **more: decode(*given, **more)[::-1] ^ 255)
    assert decoders.main(once) == 1
    assert "seed 0, frames" in capsys.readouterr().out
