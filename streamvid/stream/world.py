"""Where this process stands: its rank, the world's size, and the device it decodes on."""

from __future__ import annotations

import os
from dataclasses import dataclass

from streamvid.errors import InputError


@dataclass(frozen=True)
class World:
    """This process among all that train together."""

    rank: int
    size: int


def find_world(rank: int | None, world_size: int | None) -> World:
    """Rank and world size: as given, else from torch.distributed, else from RANK and WORLD_SIZE, else one process
    alone.

    Raises:
        InputError: only one of the two is given, or the environment holds something else than numbers.
    """
    if (rank is None) != (world_size is None):
        raise InputError("give rank and world_size together, or neither")
    if rank is not None and world_size is not None:
        return World(rank, world_size)
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    there = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if len(there) == 1:
        raise InputError(
            f"of the environment variables RANK and WORLD_SIZE only {there[0]} is set: set both, or neither"
        )
    return World(_number("RANK"), _number("WORLD_SIZE")) if there else World(0, 1)


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
