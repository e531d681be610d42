"""The benchmark of a training step tells a wrong batch from a right one, and holds each row to its bar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamvid as sv
from tools.bench import train_step
from tools.bench.stream import make_dataset
from tools.clips import write


def test_a_batch_is_compared_with_the_cpus(tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    write(replace(train_step.CLIPS["h264 720p"], width=320, height=240, frames=40), file)
    dataset = make_dataset(tmp_path, "set", [file], 8)

    def made(seed: int) -> sv.StreamLoader:
        transform = train_step.TRANSFORM
        return sv.StreamLoader(
            dataset, batch_size=2, sampling=sv.Window(4), transform=transform, device="cpu", seed=seed
        )

    with made(0) as loader:
        videos = train_step.videos_of(loader)
        next(videos)
        assert train_step.same_as_cpu(loader, videos, lambda device: made(0)) == 1
        state = loader.state_dict()

        class Another:
            def state_dict(self) -> Any:
                return state

        assert next(videos) is not None
        another: Any = Another()  # says that it stands a batch before where it does
        assert train_step.same_as_cpu(another, videos, lambda device: made(0)) < train_step.SAME


@pytest.mark.parametrize(
    ("kind", "floor", "grown", "same", "failed"),
    [
        ("h264 720p", 0.0, 0.9, 1.0, 0),
        ("h264 720p", 0.0, 1.1, 1.0, 1),
        ("h264 720p", 0.9, 1.8, 1.0, 0),
        ("h264 1080p", 0.0, 2.9, 0.99, 1),
        ("hevc 4K", 1.0, 3.1, 1.0, 1),
    ],
)
def test_a_step_may_grow_by_its_bar_or_by_one_percent_above_the_floor(
    kind: str, floor: float, grown: float, same: float, failed: int
) -> None:
    row: dict[str, Any] = {"model": "r3d_18", "clips": kind, "mode": "graph", "floor %": floor, "loader %": grown}
    checks = train_step.checks_of([row | {"same": same, "GPU ms": 3.0, "alone/step": 0.7}])
    assert sum(not one.passed for one in checks) == failed
