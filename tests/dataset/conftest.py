"""A dataset of four clips for conditions, keys and weights."""

from __future__ import annotations

from typing import Any

import pytest

from streamvid.dataset.dataset import Dataset
from tests.support.tables import dataset_of

METAS: list[dict[str, Any]] = [
    {"caption": "a dog runs", "score": 0.5, "take": 1, "good": True, "tags": ["x", "y"], "boxes": [1, 2]},
    {"caption": "a cat", "score": None, "take": 2, "good": False, "tags": [], "width": "wide", "a b": 1},
    {"caption": "", "score": 2.5, "take": 3, "good": None, "tags": None, "never": None, "class": "first"},
    {"score": -0.0, "take": -4, "tags": ["y"], "boxes": [2.5]},
]


@pytest.fixture(scope="module")
def small() -> Dataset:
    """Four clips: labels dog, cat, dog and none; 1, 2, 3 and 4 seconds."""
    return dataset_of(
        METAS, labels=[1, 0, 1, None], classes=["cat", "dog"], duration=[1, 2, 3, 4], width=[10, 20, 30, 40]
    )
