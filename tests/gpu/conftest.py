"""Tests that need an NVIDIA GPU with NVDEC; without one they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def inline_workers() -> None:
    """Clips for a GPU are large: `pack` encodes them in worker processes, for users and for these tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and torch for CUDA"))
