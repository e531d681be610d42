"""Clips of a codec for DALI's decoder, of those that decode sessions would take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamvid.decode import gpu
from streamvid.video import gpu_support


def leave_to_dali(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Have the table of what a GPU decodes give a codec to DALI."""
    monkeypatch.setitem(gpu_support._CAPS, codec, replace(gpu_support._CAPS[codec], sessions=()))
    monkeypatch.setattr(gpu, "decode_support", gpu.decode_support.__wrapped__)  # what it knows is of another table
