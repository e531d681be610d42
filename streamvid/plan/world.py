"""Where this process stands: its rank, the world's size, and the device it decodes on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from streamvid.errors import InputError


@dataclass(frozen=True)
class World:
    """This process among all that train together.

    Attributes:
        rank, size: of the world.
        nodes: machines, each with as many ranks; ranks of a node are numbered one after another.
    """

    rank: int
    size: int
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "size", "nodes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{_CALLED[name]} must be a whole number, it is {value!r}")
        if self.size < 1:
            raise InputError(f"world_size must be a whole number of at least 1, it is {self.size!r}")
        if not 0 <= self.rank < self.size:
            raise InputError(f"rank must be from 0 to {self.size - 1} in a world of {self.size}, it is {self.rank!r}")
        if self.nodes < 1 or self.size % self.nodes:
            raise InputError(f"{self.size} ranks cannot be {self.nodes} nodes with as many ranks each")

    @property
    def node(self) -> int:
        """Which node this rank is on."""
        return self.rank // (self.size // self.nodes)


_CALLED: Final = {"rank": "rank", "size": "world_size", "nodes": "the number of nodes"}


def find_world(rank: int | None, world_size: int | None, *, ranks_per_node: int | None = None) -> World:
    """Rank and world size: as given, else from torch.distributed, else from RANK and WORLD_SIZE, else one process
    alone. Nodes: from `ranks_per_node`, else from LOCAL_WORLD_SIZE as torchrun sets it, else one.

    Raises:
        InputError: only one of the two is given, or the environment holds something else than numbers.
    """
    if (rank is None) != (world_size is None):
        raise InputError("give rank and world_size together, or neither")
    if rank is not None and world_size is not None:
        return _on_nodes(rank, world_size, ranks_per_node)
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return _on_nodes(torch.distributed.get_rank(), torch.distributed.get_world_size(), ranks_per_node)
    there = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(there) == 1:
        raise InputError(
            f"of the environment variables RANK and WORLD_SIZE only {there[0]} is set: set both, or neither"
        )
    rank, size = (_number("RANK"), _number("WORLD_SIZE")) if there else (0, 1)
    return _on_nodes(rank, size, ranks_per_node)


def _on_nodes(rank: int, size: int, ranks_per_node: int | None) -> World:
    world = World(rank, size)
    if ranks_per_node is None:
        ranks_per_node = _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else size
    if isinstance(ranks_per_node, bool) or not isinstance(ranks_per_node, int) or ranks_per_node < 1:
        raise InputError(f"ranks_per_node must be a whole number of at least 1, it is {ranks_per_node!r}")
    # Nodes of unequal size count as one: only locality asks for nodes, and it needs them equal.
    return replace(world, nodes=size // ranks_per_node if size % ranks_per_node == 0 else 1)


def find_cores() -> int:
    """How many CPU cores this process may count on: those it may run on, shared with the other ranks of its node, as
    many as torchrun's LOCAL_WORLD_SIZE says.

    Raises:
        InputError: LOCAL_WORLD_SIZE is no number.
    """
    ranks = _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1
    return max(1, len(os.sched_getaffinity(0)) // max(1, ranks))


def find_device(device: str | int | None) -> int | None:
    """The number of the GPU to use, or None for the CPU.

    Args:
        device: "cpu", "cuda", "cuda:1", a number, or None: this process' GPU if there is one.

    Raises:
        InputError: no such device.
    """
    import torch

    text = "cuda" if device is None else str(device)
    if text == "cpu":
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None and count == 0:
        return None
    if text in ("cuda", "gpu"):
        local = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else torch.cuda.current_device() if count else 0
        number = local % max(count, 1)
    else:
        digits = text.removeprefix("cuda:")
        if not digits.isdecimal():
            raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:NUMBER', it is {device!r}")
        number = int(digits)
    if number >= count:
        raise InputError(
            f"there is no device {text}: torch sees {count} GPUs; use device='cpu', or install torch for CUDA"
        )
    return number


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise InputError(f"the environment variable {name} must be a number, it is {os.environ[name]!r}") from None
