"""The samples that a run got, and those that it should have got, clip by clip and without the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.simulate.data import data
from tools.simulate.kernel import Failure

Sample = tuple[int, int, int]
"""Row, sample of the clip, pass."""


@dataclass(frozen=True)
class Shape:
    """The settings that may change whenever a run is resumed."""

    ranks: int
    nodes: int
    batch: int
    bucket: int
    last: Any


@dataclass(frozen=True)
class Options:
    """The settings that stay the same over a run's life."""

    seed: int
    tiled: bool
    shuffle: Any
    local: bool
    steps: int | None
    weighted: bool
    parts: int
    where: str | None
    exclude: tuple[str, ...]

    @property
    def appendable(self) -> bool:
        """Whether an epoch goes on after an append."""
        return self.steps is None and not self.weighted and self.parts == 1


@dataclass
class Entry:
    """One step as the loops of all ranks saw it."""

    epoch: int
    version: int
    shape: Shape
    samples: list[Sample]
    """The valid samples, rank after rank."""
    state: dict[str, Any]
    over: bool = False
    """Whether the epoch ended behind this step, by itself or by `break`, and was judged."""


@dataclass(frozen=True)
class Mark:
    """A saved state, and how many steps of the run it has behind it."""

    entries: int
    text: str
    over: bool = False


def check(holds: bool, message: str) -> None:
    """Raise Failure unless it holds."""
    if not holds:
        raise Failure(message)


def check_passes(
    options: Options, stream: list[Sample], pool: dict[tuple[int, int], float], length: int, clips: int
) -> None:
    """Every full pass over a part holds each of its samples once, or as often as its weight says."""
    for part in range(options.parts):
        own = [sample for sample in stream if sample[0] // clips == part]
        for number in range(len(own) // length):
            seen = Counter((row % clips, sample) for row, sample, passed in own if passed == number)
            for sample in pool.keys() | seen.keys():
                weight = pool.get(sample, 0.0)
                near = abs(seen[sample] - weight) < (1 if options.weighted else 0.5)
                check(near, f"{sample} comes {seen[sample]} times in pass {number}")


def pool_of(options: Options, version: int) -> tuple[dict[tuple[int, int], float], int]:
    """How often each sample of a part comes in a pass, and how many they are: clip by clip, without the plan."""
    clips = data().local[version].clips
    pool = {}
    for row, weight in enumerate(weights_of(len(clips)) if options.weighted else np.ones(len(clips))):
        if options.where is None or clips.width[row] == 64:
            for sample in range(int(clips.frames[row]) if options.tiled else 1):
                pool[row, sample] = float(weight)
    length = round(sum(pool.values()))
    scale = length / sum(pool.values())
    return {sample: weight * scale for sample, weight in pool.items()}, length


def weights_of(clips: int) -> npt.NDArray[np.float64]:
    """float64 [clips]: those of a weighted run."""
    return np.linspace(0, 2.5, clips)
