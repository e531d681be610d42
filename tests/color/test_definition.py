"""The pixels that loaders make of packed clips on the CPU, against the standards."""

from __future__ import annotations

import pytest

from tests.support.colored import CASES, TRANSFORMS, ColoredClips, check


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> ColoredClips:
    return ColoredClips(tmp_path_factory.mktemp("clips"))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_pixels_are_those_of_the_standards(name: str, clips: ColoredClips) -> None:
    assert len(CASES) == 20
    check(clips, name, device="cpu")
