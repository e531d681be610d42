"""Comparison of batches and samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def assert_same(one: Any, two: Any) -> None:
    """Assert that two batches or samples, or two sequences of them, are equal: keys in their order, dtypes, devices and
    values."""
    if not isinstance(one, Mapping):
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
        return
    assert list(one) == list(two)
    for name, value in one.items():
        other = two[name]
        if isinstance(value, torch.Tensor):
            assert (value.dtype, value.device) == (other.dtype, other.device), name
            assert torch.equal(value, other), name
        else:
            assert value == other, name


def same(one: Any, two: Any) -> bool:
    """Whether `assert_same` holds."""
    try:
        assert_same(one, two)
    except (AssertionError, ValueError):
        return False
    return True
