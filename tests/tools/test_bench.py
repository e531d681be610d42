"""The form that all benchmarks have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamvid.packing.options import PackOptions
from tools.bench import pack, pairs, ranks, stream
from tools.bench.report import Check, Report, arguments, finish
from tools.clips import Recipe


@pytest.mark.parametrize(("value", "code"), [(0.8, 0), (0.6, 1)])
def test_a_missed_bar_is_the_exit_code(
    value: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    rows = [{"clips": "h264", "frames": 1234, "ratio": value}]
    options = arguments("A benchmark.").parse_args(["--quick", "--json", str(file)])
    assert finish(Report("try", rows, [Check.at_least("ratio", value, 0.7)], ["A note."]), options) == code
    written = json.loads(file.read_text())
    assert written["rows"] == rows
    assert written["checks"] == [{"name": "ratio", "value": value, "bar": 0.7, "pass": code == 0}]
    assert written["quick"] is True
    assert written["machine"]["cores"] >= 1
    out = capsys.readouterr().out
    assert "1,234" in out
    assert "A note." in out
    assert ("FAILED" in out) == bool(code)


def test_a_benchmark_that_measures_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where all that it compares is not installed."""
    file = tmp_path / "out.json"
    options = arguments("A benchmark.").parse_args(["--json", str(file)])
    assert finish(Report("try", [], [], ["No server is installed."]), options) == 2
    assert "No server is installed." in (out := capsys.readouterr().out)
    assert "nothing was measured" in out
    assert not file.exists()


def test_bars_may_be_reached_but_not_passed() -> None:
    assert Check.at_least("x", 1.0, 1.0).passed
    assert Check.at_most("x", 1.0, 1.0).passed
    assert not Check.at_most("x", 1.1, 1.0).passed


def test_the_decoder_gets_what_the_loader_decodes(tmp_path: Path) -> None:
    files = stream.make_clips(tmp_path, 1)["h264"]
    size = stream.Size(made=1, clips=3, batch=2, rounds=1)
    path = stream.make_dataset(tmp_path, "dataset", files, size.clips)
    measured = stream.Bench(path, size, stream.TRANSFORM, "cpu").measure()
    assert measured.frames == 3 * 16
    assert measured.read <= 1


def test_packing_is_measured(tmp_path: Path) -> None:
    kind = pack.Kind("small", Recipe(width=96, height=64, frames=10), 3, 3, copying=True)
    source = pack.make_clips(kind, tmp_path / "in", sound=True, count=3)
    files = sorted(source.iterdir())
    assert len({path.read_bytes() for path in files}) == 3
    seconds: list[float] = []
    with pack.timed(seconds):
        pack.copy(source, tmp_path / "copy")
    pack.copy_summed(source, tmp_path / "summed")
    whole = b"".join(path.read_bytes() for path in files)
    for folder in ("copy", "summed"):
        assert (tmp_path / folder / "00000000.bin").read_bytes() == whole
    pack.pack_all(PackOptions())(source, tmp_path / "packed")
    assert (tmp_path / "packed/dataset.json").exists()
    assert len(seconds) == 1


def test_sequences_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "WARM", 1)
    rows = pairs.measure(tmp_path, "cpu", videos=1, frames=60, batches=2, rounds=1)
    assert [row["way"] for row in rows] == list(pairs.WAYS)
    assert all(float(row["sequences/s"]) > 0 for row in rows)


def test_the_slowest_rank_is_held_against_its_own_speed_with_one_size() -> None:
    """Ranks whose cores differ decode one size at different speeds."""
    rates = {
        "1 size": {0: 100.0, 1: 50.0}, "132 sizes": {0: 96.0, 1: 30.0},
        "132 sizes, rank 0 alone": {0: 95.0}, "132 sizes, rank 1 alone": {1: 50.0},
    }  # fmt: skip
    made = ranks.report(rates)
    assert [(row["clips"], row["slowest"]) for row in made.rows] == [
        ("1 size", 1.0), ("132 sizes", 0.6), ("132 sizes, each alone", 0.95),
    ]  # fmt: skip
    assert [check.passed for check in made.checks] == [False, True]
