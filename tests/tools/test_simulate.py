"""Lives of clusters hold what is promised, and lives of a product with a planted fault do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tools.simulate import kernel
from tools.simulate.life import live, world
from tools.simulate.machine import Disks
from tools.simulate.planted import PLANTED, lives_until_found

LIFE = 50_000
"""Switches: without a fault, lives of these seeds take 27,000 at most. To see that one does not end is most of the time
that it takes."""


@pytest.fixture(scope="module")
def disks() -> Iterator[Disks]:
    with world() as disks:
        yield disks


def test_what_is_promised_holds(disks: Disks) -> None:
    """Of a seed that fails: python -m tools.simulate --seed SEED."""
    for seed in range(settings.default.max_examples // 2):
        try:
            live(seed, disks)
        except Exception as error:
            raise AssertionError(f"the life of seed {seed}: {error}") from error


@pytest.mark.parametrize("reads", [False, True])
def test_a_seed_replays_its_life(disks: Disks, reads: bool) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        live(5, disks, trace.append, reads=reads)
    assert traces[0] == traces[1]
    assert len(traces[0]) > (100 if reads else 1)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(disks: Disks, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_MOST_SWITCHES", LIFE)
    assert lives_until_found(name, lambda seed, reads: live(seed, disks, reads=reads), 200) is not None
