"""The soak: what it counts as flat."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest

from tests.support.clock import Clock
from tools.soak import COUNTS, Sample, judge, main, sample, slope, steady

RNG = np.random.default_rng(3)


def series(rise: float, **last: float) -> list[Sample]:
    """300 samples of an hour: PSS rises by so many MB, with noise; counts as given in the second half."""
    noise = RNG.normal(0, 2e6, 300)
    common = {"gpu": 0.0, "malloc": 1e7, "arrow": 0.0, "blocks": 1000.0, **dict.fromkeys(COUNTS, 5.0)}
    return [
        {**common, "time": 12.0 * n, "pss": 2e8 + rise * 1e6 * n / 300 + noise[n], **(last if n >= 150 else {})}
        for n in range(300)
    ]


@pytest.mark.parametrize(
    ("samples", "flat"),
    [
        (series(0), True), (series(-30), True), (series(40), False), (series(0, threads=6), False),
        (series(0, descriptors=6), False), (series(0, processes=6), False), (series(0, threads=4), True),
        (series(0)[:20], False), (series(0, gpu=1e7), False),
    ],
)  # fmt: skip
def test_a_figure_grows_or_is_flat(samples: list[Sample], flat: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge("loader", samples, 4.0, "h") == flat
    assert ("GROWS" in capsys.readouterr().out) == (not flat and len(samples) > 20)


def test_a_slope_has_an_interval() -> None:
    times = np.arange(1000.0)
    rise, error = slope(times, 7 + 0.5 * times)
    assert (rise, error) == pytest.approx((0.5, 0))
    rise, error = slope(times, 0.01 * times + RNG.normal(0, 5, 1000))
    assert abs(rise - 0.01) < 2 * error < 0.02


def test_children_count() -> None:
    before = sample()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        during = sample()
        child.communicate(b"\n")
    assert during["processes"] == before["processes"] + 1
    assert during["descriptors"] == before["descriptors"] + 1
    assert before["pss"] > 1e7


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_kind_that_a_signal_ended_is_no_success(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *gpu) kill -TERM $$;; esac\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("tools.soak.make", lambda *_: None)
    for kinds, code in ((["stream", "engine"], 0), (["stream", "gpu"], 1), (["gpu", "stream"], 1)):
        monkeypatch.setattr(sys, "argv", ["soak", *kinds, "--device", device])
        assert main() == code


def test_samples_begin_once_descriptors_stand_still(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, clock = list[IO[bytes]](), Clock()
    monkeypatch.setattr("tools.soak.time", SimpleNamespace(monotonic=lambda: clock.now))

    class Loader:
        """Opens a file in each of its first epochs."""

        def __iter__(self) -> Iterator[int]:
            if len(held) < 20:
                held.append(open(os.devnull, "rb"))  # noqa: SIM115
            clock.sleep(0.01)
            return iter([1])

    try:
        samples = list(steady(Loader, 4.0, lambda: {"held": len(held)}))
    finally:
        for file in held:
            file.close()
    assert len(samples) > 10
    assert {one["held"] for one in samples} == {20}
    assert "warm after" in capsys.readouterr().out
