"""This process among all of a distributed job: its rank, the world size, its node, its GPU and its CPU cores."""

from __future__ import annotations

import os
from dataclasses import dataclass

from streamvid.checks import integer
from streamvid.errors import InputError


@dataclass(frozen=True)
class World:
    """The processes that train together, in the words of torch.distributed, and which of them this is.

    Attributes:
        rank: this process, from 0.
        size: the world size, how many processes there are.
        nodes: machines, all with the same number of ranks; the ranks of a node are consecutive.
    """

    rank: int
    size: int
    nodes: int = 1

    def __post_init__(self) -> None:
        integer(self.size, "world_size")
        integer(self.rank, f"rank, in a world of {self.size},", least=0, most=self.size - 1)
        if self.size % integer(self.nodes, "the number of nodes"):
            raise InputError(f"{self.size} ranks cannot be {self.nodes} nodes of equally many ranks")

    @property
    def node(self) -> int:
        """Which node this rank is on."""
        return self.rank // (self.size // self.nodes)


def find_world(rank: int | None, world_size: int | None, *, ranks_per_node: int | None = None) -> World:
    """Rank and world size: as given, else from torch.distributed, else from the environment variables RANK and
    WORLD_SIZE, else a single process. Nodes: from `ranks_per_node`, else from LOCAL_WORLD_SIZE as torchrun sets it,
    else one.

    Raises:
        InputError: only one of rank and world_size is given, one is out of range, or an environment variable is no
            number.
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
    size = integer(size, "world_size")
    if ranks_per_node is None:
        ranks_per_node = _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else size
    per_node = integer(ranks_per_node, "ranks_per_node")
    # Nodes of unequal size count as one: only locality="node" needs nodes, and it needs equal ones.
    return World(rank, size, size // per_node if size % per_node == 0 else 1)


def find_cores() -> int:
    """CPU cores for this process: those of its CPU affinity, divided by the ranks on its node (LOCAL_WORLD_SIZE, which
    torchrun sets; one if it is unset).

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
