"""Encoders that hang cost a clip a second try, not the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import clips
from tools.clips import Recipe, look


def test_an_encoder_that_hangs_is_killed_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(codec="hevc", width=96, height=64, frames=6, seed=11)
    clips.write(recipe, tmp_path / "first.mp4")
    (encoder,) = clips._encoder
    monkeypatch.setattr(clips, "LIMIT_S", 3.0)
    os.kill(encoder.pid, signal.SIGSTOP)
    assert look(clips.write(Recipe(codec="hevc", width=96, height=64, frames=7), tmp_path / "a.mp4")).numbers == [
        *range(7)
    ]
    assert clips._encoder[0].pid != encoder.pid
