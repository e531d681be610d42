"""Mutations of bytes and of JSON values, drawn from a `random.Random`: the same seed gives the same mutants."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, Literal

NUMBERS = (0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 65535, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1 << 31, 1 << 62, 10**18, 10**400, -(10**18), 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "\ud800", "\0", "../../x", "9" * 5000, "é" * 300, [], {}, [[]], [0] * 1000, {"a": {}},
)  # fmt: skip


def mutated(random: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> bytes:
    """One of the seeds, changed in one place or in several."""
    data = bytearray(random.choice(seeds))
    for _ in range(1 << random.randrange(4)):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + (1 << random.randrange(12)))
        match random.randrange(11):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << random.randrange(8)
            case 2 if at < len(data):
                data[at] = random.choice((0, 1, 127, 128, 254, 255, random.randrange(256)))
            case 3 | 4:
                width = random.choice((1, 2, 4, 8))
                order: Literal["big", "little"] = random.choice(("big", "little"))
                number = random.choice(NUMBERS) + random.choice((0, 0, 1, -1))
                data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)
            case 5:
                del data[at:end]
            case 6:
                data[at:at] = data[at:end] * random.choice((1, 1, 2, 50))
            case 7:
                other = random.choice(seeds)
                begin = random.randrange(len(other) + 1)
                data[at:end] = other[begin : begin + end - at]
            case 8:
                data[at:at] = random.randbytes(random.randrange(16))
            case 9 if tokens:
                data[at : random.choice((at, end))] = random.choice(tokens)
            case 10 if not random.randrange(4):
                del data[at:]
        if len(data) > 1 << 22:
            del data[1 << 22 :]
    return bytes(data)


def mutated_json(random: random.Random, value: Any) -> Any:
    """A JSON value with a few of its parts replaced, dropped, doubled or moved."""
    value = copy.deepcopy(value)
    for _ in range(1 << random.randrange(3)):
        places: list[tuple[Any, Any]] = []
        stack = [value]
        while stack:
            one = stack.pop()
            keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
            places += [(one, key) for key in keys]
            stack += [one[key] for key in keys]
        if not places:
            return random.choice(VALUES)
        parent, key = random.choice(places)
        match random.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent[key:key] = [copy.deepcopy(parent[key])] * random.choice((1, 2, 1000))
            case 2:
                other, place = random.choice(places)
                parent[key] = copy.deepcopy(other[place])
            case 3 if isinstance(parent[key], int | float) and parent[key] == parent[key]:
                parent[key] = parent[key] * random.choice((-1, 2, 1000, 1 << 40)) + random.choice((0, 1, -1))
            case _:
                parent[key] = copy.deepcopy(random.choice(VALUES))
    return value
