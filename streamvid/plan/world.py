"""This process among all of a distributed job: its rank, the world size, its node, its GPU and its CPU cores."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from streamvid.checks import integer
from streamvid.errors import InputError
from streamvid.host import shared_cores, usable_cores
from streamvid.plan import launchers
from streamvid.plan.mesh import data_parallel_rank

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)

PROCESS_GROUP: Final = "torch.distributed's process group"
MESH: Final = "the mesh"
ARGUMENTS: Final = "the arguments"
"""The sources of a `World` that torch.distributed says, a DeviceMesh, and the caller."""


@dataclass(frozen=True)
class World:
    """The processes that train together, as in torch.distributed, and this process' rank among them.

    Attributes:
        rank: this process' number, from 0.
        size: the world size, the number of processes.
        nodes: number of machines, all with the same number of ranks; the ranks of a node are consecutive.
        source: where rank and size are from, for messages.
    """

    rank: int
    size: int
    nodes: int = 1
    source: str = field(default=ARGUMENTS, compare=False)

    def __post_init__(self) -> None:
        size = integer(self.size, "world_size")
        rank = integer(self.rank, f"rank, in a world of {size},", least=0, most=size - 1)
        nodes = integer(self.nodes, "the number of nodes")
        if size % nodes:
            raise InputError(f"{size} ranks cannot be {nodes} nodes of equally many ranks")
        for name, value in (("rank", rank), ("size", size), ("nodes", nodes)):
            object.__setattr__(self, name, value)

    @property
    def node(self) -> int:
        """Number of the node that this rank is on."""
        return self.rank // (self.size // self.nodes)

    def __str__(self) -> str:
        on = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"rank {self.rank} of {self.size}{on} (by {self.source})"


def find_world(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    ranks_per_node: int | None = None,
    settle: bool = True,
) -> World:
    """Find rank and world size: the given ones, else from a mesh, from torch.distributed, or from the environment
    variables of a launcher (`streamvid.plan.launchers`), else those of a single process. If that is the only one by
    one of these, and one of several by another, the log says so, once per process.

    Args:
        rank, world_size: both or neither; world_size=1 needs no rank.
        mesh: a mesh whose data-parallel ranks are the world's.
        ranks_per_node: ranks on a node; default: as set by torchrun, deepspeed or Slurm, else all. With a mesh, its
            data-parallel ranks on a node.
        settle: whether the world is final. Then it is an error if the environment does not set the rank, or if this is
            one of several DataLoader workers and rank and world_size are not given; and a launcher that may have
            started independent tasks is logged, once per process. If False, only the size is reliable.

    Raises:
        InputError: only one of rank and world_size is given, one is out of range, the mesh does not show which ranks
            are data-parallel, or an environment variable is missing or no number; and see `settle`.
    """
    if rank is None and world_size is not None and integer(world_size, "world_size") == 1:
        rank = 0
    if (rank is None) != (world_size is None):
        raise InputError("give rank and world_size together, or neither")
    if rank is not None and world_size is not None:
        if settle:
            _compare(rank, world_size)
        return _on_nodes(rank, world_size, ranks_per_node, ARGUMENTS)
    if settle:
        _refuse_workers()
    if mesh is not None:
        rank, size = data_parallel_rank(mesh)
        return _on_nodes(rank, size, size if ranks_per_node is None else ranks_per_node, MESH)
    launch = _launch()
    if settle and launch.rank is None:
        raise InputError(
            "LOCAL_RANK and NODE_RANK do not say the rank without WORLD_SIZE and LOCAL_WORLD_SIZE: set these, or make "
            "the process group before the first batch"
        )
    if settle and not launch.one_run and launch.size > 1:
        _log_launch(launch)
    if settle and launch.size == 1:
        _warn_of_others(launch.source, launchers.sign_of_other_ranks())
    return _on_nodes(launch.rank or 0, launch.size, ranks_per_node, launch.source)


def _launch() -> launchers.Launch:
    """Rank and world size by torch.distributed, else by a launcher."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return launchers.Launch(torch.distributed.get_rank(), torch.distributed.get_world_size(), PROCESS_GROUP)
    return launchers.find_launch() or launchers.Launch(0, 1, "nothing that says otherwise")


def _compare(rank: int, size: int) -> None:
    """Warn if a given rank is not that of the launcher, of equally many, as where LOCAL_RANK is given on all nodes."""
    with suppress(InputError):
        launch = _launch()
        if launch.size == size and launch.rank not in (rank, None):
            _warn_of_another(rank, launch)


@cache
def _warn_of_another(rank: int, launch: launchers.Launch) -> None:
    log.warning(
        "the loader is given rank %d of %d, and this is rank %d by %s: if two processes are given the same rank, clips "
        "come twice, and others never; leave out rank and world_size, which are found",
        rank, launch.size, launch.rank, launch.source,
    )  # fmt: skip


def _refuse_workers() -> None:
    """Raises InputError in one of several workers of a DataLoader: each would stream all clips of this rank."""
    import torch.utils.data

    worker = torch.utils.data.get_worker_info()
    if worker is not None and worker.num_workers > 1:
        raise InputError(
            f"each of the {worker.num_workers} DataLoader workers would stream all clips of this rank: iterate over "
            "the loader itself, which reads and decodes ahead in threads, or give DataLoader num_workers=0"
        )


@cache
def _log_launch(launch: launchers.Launch) -> None:
    log.warning(
        "%s says that this is rank %d of %d: loaders give it its part of the clips; if these tasks are not one run, "
        "give the loaders world_size=1",
        launch.source, launch.rank, launch.size,
    )  # fmt: skip


@cache
def _warn_of_others(source: str, told: str) -> None:
    if told:
        log.warning(
            "this process is the only one by %s, but %s: loaders give it all clips; if it is one of several of a run, "
            "set RANK and WORLD_SIZE for each, or give the loaders rank and world_size; else world_size=1",
            source, told,
        )  # fmt: skip


def _on_nodes(rank: int, size: int, ranks_per_node: int | None, source: str) -> World:
    size = integer(size, "world_size")
    if ranks_per_node is None:
        ranks_per_node = launchers.ranks_per_node(size)
    per_node = size if ranks_per_node is None else integer(ranks_per_node, "ranks_per_node")
    # Nodes of unequal size count as one: only locality="node" needs nodes, and it needs equal ones.
    return World(rank, size, size // per_node if size % per_node == 0 else 1, source)


def warn_if_one_node(world: World, ranks_per_node: int | None) -> None:
    """Log that locality has no effect in a world of one node, unless its ranks are known to be on one; on rank 0.

    Args:
        ranks_per_node: as given to `find_world`.

    Raises:
        InputError: this node has another number of ranks than others, some of whose ranks may not see that, and no
            process group compares the ranks.
    """
    per_node = ranks_per_node or launchers.ranks_per_node(world.size)
    alone = world.size == 1 or world.source in (PROCESS_GROUP, MESH, ARGUMENTS)
    if not (alone or per_node) and (here := launchers.local_world_size()) is not None:
        raise InputError(
            f"locality='node' needs nodes of equally many ranks, and this one has {here} of {world.size}: give "
            "ranks_per_node, a common divisor of all nodes' ranks, or leave locality out"
        )
    if world.rank or world.nodes > 1 or world.size == 1 or per_node == world.size:
        return
    why = (
        f"{world.size} ranks are no whole number of nodes with {per_node}"
        if per_node
        else "nothing says which they are"
    )
    log.warning(
        "locality='node' has no effect, all nodes read all shards: %s; give ranks_per_node, equal on all nodes", why
    )


def find_cores() -> int:
    """Number of CPU cores for this process: the usable ones, divided by the ranks on its node as set by torchrun and
    deepspeed. srun and mpirun bind each rank to its cores; where they do not, it gets its share of the node's
    or the container's.

    Raises:
        InputError: a variable that says how many ranks there are is no number.
    """
    usable = usable_cores()
    if (ranks := launchers.local_world_size()) is not None:
        return max(1, usable // ranks)
    node = shared_cores()
    if (cores := os.environ.get("SLURM_CPUS_ON_NODE", "")).isdecimal():
        node = min(node, int(cores))
    return max(1, min(usable, node // launchers.tasks_on_node()))


def find_device(device: str | int | None) -> int | None:
    """The number of the GPU to use, or None for the CPU.

    Args:
        device: "cpu", "cuda", "cuda:1", a number, or None: this process' GPU if there is one.

    Raises:
        InputError: there is no such device.
    """
    import torch

    text = "cuda" if device is None else str(device).replace("gpu", "cuda", 1)
    if text == "cpu":
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None and count == 0:
        return None
    if text == "cuda":
        # LOCAL_RANK, else the device that the program has set, else the launcher's number of this process on its node.
        current = torch.cuda.current_device() if count and "LOCAL_RANK" not in os.environ else 0
        local = current or launchers.local_rank()
        number = local % max(count, 1)
    else:
        digits = text.removeprefix("cuda:")
        if not digits.isdecimal():
            raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:NUMBER', it is {device!r}")
        number = int(digits)
    if number >= count:
        seen = f"torch sees {count} GPUs" if count else "torch sees no GPU"
        raise InputError(f"there is no device {device!r}: {seen}; use device='cpu', or install torch for CUDA")
    return number
