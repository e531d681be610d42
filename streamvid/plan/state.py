"""The state of a run as a small JSON object: what it is a state of, and where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from streamvid.errors import InputError
from streamvid.plan.epoch_plan import Plan, Position, Topology, TopologyRun
from streamvid.sampling.base import FrameSampler

VERSION: Final = 1
GROUPED_VERSION: Final = 2
"""Of states in which items were grouped by kind: their segments have a fifth number, which version 1 did not know."""
_WHAT: Final = {
    "dataset": "another dataset, or other clips of it (a filter, a key list, weights)",
    "sampling": "another sampling or padding",
    "order": "another seed, shuffle, locality, mixture or steps_per_epoch",
}


@dataclass(frozen=True)
class Identity:
    """What a position means something in: short digests.

    Attributes:
        dataset: of the shards' checksums and of the items that take part.
        sampling: of how frames are chosen.
        order: of how items are ordered.
        shards: how many there are: a dataset that is appended to still begins with them.
    """

    dataset: str
    sampling: str
    order: str
    shards: int


def identify(checksums: Sequence[str], plan: Plan, sampling: FrameSampler) -> Identity:
    """The identity of a run.

    Args:
        checksums: of all shards of all datasets, in order.
        plan: its stream, and how epochs are cut from it.
        sampling: how frames are chosen.
    """
    stream = plan.stream
    content = hashlib.sha256("\n".join(checksums).encode())
    for pool in stream.pools:
        content.update(np.ascontiguousarray(pool.items).data)
        if pool.weights is not None:
            content.update(np.ascontiguousarray(pool.weights).data)
    order = (stream.seed, stream.shuffle, stream.block_shards, stream.weights, plan.local, plan.steps)
    return Identity(content.hexdigest()[:16], _digest(sampling), _digest(order), len(checksums))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def to_state(position: Position, identity: Identity) -> dict[str, Any]:
    """The state as a dict of strings, integers and lists: under 1 KiB of JSON."""
    grouped = any(segment.layout.group for segment in position.segments)
    segments = [
        [s.layout.lanes, s.layout.ranks, s.layout.batch, s.steps, *([s.layout.group] if grouped else [])]
        for s in position.segments
    ]
    return {
        "version": GROUPED_VERSION if grouped else VERSION,
        **asdict(identity),
        "epoch": position.epoch,
        "first": position.first,
        "size": position.size,
        "segments": segments,
    }


def from_state(state: Mapping[str, Any], identity: Identity) -> Position:
    """The position that a state tells of.

    Raises:
        InputError: it is none, is of another version, or belongs to a run over something else.
    """
    if not isinstance(state, Mapping) or "segments" not in state:
        raise InputError("this is not the state of a StreamLoader: give what its state_dict() returned")
    version = state.get("version")
    if version not in (VERSION, GROUPED_VERSION) or isinstance(version, bool):
        raise InputError(f"the state is of version {version!r}, this library knows {VERSION} and {GROUPED_VERSION}")
    for name, meaning in _WHAT.items():
        if state.get(name) != getattr(identity, name):
            raise InputError(
                f"the state belongs to a run with {meaning}: make the loader as it was, or start without the state"
            )
    try:
        epoch, first, size = (_count(state[name]) for name in ("epoch", "first", "size"))
        segments = tuple(_segment(numbers, version == GROUPED_VERSION) for numbers in state["segments"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError("the state is damaged: give what state_dict() returned, unchanged") from error
    return Position(epoch, first, size, segments)


def _segment(numbers: Sequence[object], grouped: bool) -> TopologyRun:
    lanes, ranks, batch = (_count(n, 1) for n in numbers[:3])
    return TopologyRun(Topology(lanes, ranks, batch, _count(numbers[4]) if grouped else 0), _count(numbers[3]))


def _count(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise ValueError(value)
    return value
