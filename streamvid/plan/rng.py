"""Random numbers as a function of seed, pass and sample: the same on any rank, process and order of drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from streamvid.arrays import Float64

ORDER, SAMPLE, COPIES, SHARDS, MIX, AUGMENT, BUCKET, REPEAT = range(8)
"""Purposes of random numbers, which are independent for different purposes."""
_MASK64: Final = (1 << 64) - 1


def generator(seed: int, number: int, purpose: int, *, part: int = 0, sample_id: int = 0) -> np.random.Generator:
    """A Philox generator (counter-based: Salmon et al., SC 2011), independent for every combination of arguments.

    Args:
        seed: any integer.
        number: number of the pass, or of a mixture's block.
        purpose: one of the constants above.
        part: index of the dataset in a mixture.
        sample_id: the sample, if the random numbers belong to one.
    """
    # uint64 from the start, as NumPy would convert a list of small and large integers to float64.
    key = np.array([seed & _MASK64, number & _MASK64], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, sample_id, purpose]))


def generators(
    seed: int, each: Iterable[tuple[int, int]], purpose: int, *, part: int = 0
) -> Iterator[np.random.Generator]:
    """`generator` of each (number, sample_id), good until the next one is taken: the same object, which is set anew,
    because making one takes ten times as long."""
    made = generator(seed, 0, purpose, part=part)
    state = dict(made.bit_generator.state)
    for number, sample_id in each:
        state["state"]["key"][1], state["state"]["counter"][2] = number & _MASK64, sample_id
        made.bit_generator.state = state
        yield made


def draws(seed: int, number: int, sample_id: int, count: int, *, purpose: int = SAMPLE) -> Float64:
    """float64 [count], uniform in [0, 1): the random numbers of a sample in pass `number`."""
    if not count:
        return np.empty(0)
    return generator(seed, number, purpose, sample_id=sample_id).random(count)


def draws_of_each(
    seed: int, numbers: Sequence[int], sample_ids: Sequence[int], count: int, *, purpose: int = SAMPLE
) -> Float64:
    """float64 [samples, count]: `draws` of several samples. Draws numbers one by one, because filling an array releases
    the GIL, which may take milliseconds to get back."""
    made = np.empty((len(sample_ids), count))
    if made.size:
        each = zip(numbers, sample_ids, strict=True)
        for row, random in enumerate(generators(seed, each, purpose)):
            made[row] = [random.random() for _ in range(count)]
    return made
