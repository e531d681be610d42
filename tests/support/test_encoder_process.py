"""An encoder that hangs or crashes costs its clip alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.encoder_process import EncoderProcess
from tools.clips import Recipe, look


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_the_next_clip_is_made(how: signal.Signals, tmp_path: Path) -> None:
    encoder, recipe = EncoderProcess(limit_s=15), Recipe(width=96, height=64, frames=2)
    assert encoder.write(recipe, tmp_path / "a.mp4")
    assert len(look(tmp_path / "a.mp4").numbers) == 2
    assert encoder.process.pid is not None
    os.kill(encoder.process.pid, how)
    encoder._limit_s = 1
    assert not encoder.write(recipe, tmp_path / "b.mp4")
    encoder._limit_s = 15
    assert encoder.write(recipe, tmp_path / "c.mp4")
    assert not encoder.write(Recipe(width=96, height=64, frames=2, options=(("profile", "none"),)), tmp_path / "d.mp4")
    encoder.close()
