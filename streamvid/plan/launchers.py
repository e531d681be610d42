"""Rank and world size from the environment variables that launchers set: torchrun, Lightning, srun, mpirun."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamvid.errors import InputError

_NODE_VARIABLES: Final = {"LOCAL_RANK", "NODE_RANK"}
_MPI: Final = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH or Intel MPI": ("PMI_RANK", "PMI_SIZE"),
    "MVAPICH2": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "jsrun": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
}
_LOCAL_RANKS: Final = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
_LOCAL_SIZES: Final = (
    "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE",
)  # fmt: skip
_RANKS: Final = ("LOCAL_RANK", "NODE_RANK", "PMIX_RANK", "FLUX_TASK_RANK", "PALS_RANKID")
"""Variables that do not say how many ranks there are; above 0 they show that there are others."""
_LARGEST_STEP: Final = 0xFFFFFFF0
"""Steps of Slurm with greater numbers are no parallel programs: batch shells, interactive shells and the like
(SLURM_MAX_NORMAL_STEP_ID in slurm.h)."""


@dataclass(frozen=True)
class Launch:
    """Rank and world size of this process, as its launcher sets them.

    Attributes:
        rank: None if it is known only with the process group.
        size: the world size; 1 if it is not set.
        source: names of the variables, for messages.
        one_run: False for launchers that also start independent tasks.
    """

    rank: int | None
    size: int
    source: str
    one_run: bool = True


def find_launch() -> Launch | None:
    """This process' launch from the environment; None if it names no rank.

    In this order: RANK and WORLD_SIZE (torchrun, accelerate, deepspeed); LOCAL_RANK and NODE_RANK, which Lightning sets
    with WORLD_SIZE for the processes that it starts; a step of Slurm; MPI.

    Raises:
        InputError: a variable is missing or no number, or variables contradict each other.
    """
    return _torchrun() or _lightning() or _slurm() or _mpi()


def sign_of_other_ranks() -> str:
    """What says that this process is one of several, for messages; "" if nothing does."""
    with suppress(InputError):
        launch = _slurm() or _mpi()
        if launch is not None and launch.size > 1:
            return f"{launch.source} says that it is rank {launch.rank} of {launch.size}"
        for name in _RANKS:
            if name in os.environ and number_of(name):
                return f"{name} is {number_of(name)}"
    return ""


def number_of(name: str) -> int:
    """The whole number in an environment variable.

    Raises:
        InputError: the variable is no whole number.
    """
    text = os.environ[name].strip()
    if not text.isdecimal():
        raise InputError(f"the environment variable {name} must be a whole number, it is {os.environ[name]!r}")
    return int(text)


def local_world_size() -> int | None:
    """Ranks on this node as set by torchrun (LOCAL_WORLD_SIZE) or deepspeed (LOCAL_SIZE, with CROSS_SIZE); None if
    neither is set.

    Raises:
        InputError: the variable is no number, or 0.
    """
    name = "LOCAL_SIZE" if "LOCAL_WORLD_SIZE" not in os.environ and "CROSS_SIZE" in os.environ else "LOCAL_WORLD_SIZE"
    if name not in os.environ:
        return None
    if number_of(name) == 0:
        raise InputError(f"the environment variable {name} is 0: it must be at least 1")
    return number_of(name)


def local_rank() -> int:
    """This process' number on its node; 0 if no launcher sets it."""
    return next((number_of(name) for name in _LOCAL_RANKS if name in os.environ), 0)


def tasks_on_node() -> int:
    """Processes on this node as set by srun or mpirun; 1 if neither started this one.

    Raises:
        InputError: mpirun's variable is no number.
    """
    for name in _LOCAL_SIZES:
        if name in os.environ:
            return max(1, number_of(name))
    with suppress(InputError, IndexError, ValueError):
        if _slurm() is not None:
            # "4(x2),3": four tasks on each of two nodes, three on the third.
            groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
            counts = [int(tasks) for tasks, nodes in groups for _ in range(int(nodes or 1))]
            return max(1, counts[int(os.environ.get("SLURM_NODEID", "0"))])
    return 1


def ranks_per_node(size: int) -> int | None:
    """Ranks on every node; None unless every node is known to have the same number.

    The result is the same on all ranks of a world, so that they divide clips among nodes alike, except where
    LOCAL_WORLD_SIZE differs between nodes.

    Raises:
        InputError: as in `local_world_size`.
    """
    per_node = local_world_size()
    if per_node is None:
        # "4(x2)": four tasks on each of two nodes.
        equal = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        if equal is None or int(equal[1]) * int(equal[2] or 1) != size:
            return None
        return int(equal[1])
    # The number of nodes as torchrun and deepspeed set it.
    nodes = os.environ.get("GROUP_WORLD_SIZE", os.environ.get("CROSS_SIZE", ""))
    unequal = size % per_node if not nodes.isdecimal() else per_node * int(nodes) != size
    return None if unequal else per_node


def _torchrun() -> Launch | None:
    there = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if not there or ("RANK" not in there and os.environ.keys() >= _NODE_VARIABLES):
        return None
    return _launch("RANK", "WORLD_SIZE", "the environment variables RANK and WORLD_SIZE")


def _lightning() -> Launch | None:
    if not os.environ.keys() >= _NODE_VARIABLES:
        return None
    local, node, per_node = number_of("LOCAL_RANK"), number_of("NODE_RANK"), local_world_size()
    size = number_of("WORLD_SIZE") if "WORLD_SIZE" in os.environ else None
    if per_node is not None and local >= per_node:
        raise InputError(f"the environment contradicts itself: LOCAL_RANK is {local} of {per_node} ranks on the node")
    source = "the environment variables LOCAL_RANK, NODE_RANK and WORLD_SIZE"
    if size is None or (node and per_node is None):
        return Launch(None, size or 1, source)
    return Launch(_checked(node * (per_node or 0) + local, size, source), size, source)


def _slurm() -> Launch | None:
    step = os.environ.get("SLURM_STEP_ID", os.environ.get("SLURM_STEPID", ""))
    if not step.isdecimal() or int(step) > _LARGEST_STEP or _is_interactive() or _is_batch_shell():
        return None
    tasks = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in os.environ), "SLURM_NTASKS")
    nodes = os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES"))
    if nodes == os.environ.get(tasks) and _mpi() is not None:
        return None  # The step's tasks are mpirun's daemons, one on each node.
    return _launch("SLURM_PROCID", tasks, "Slurm's step", one_run=False)


def _is_interactive() -> bool:
    """Whether this process runs in the shell of `srun --pty`. Tasks that srun starts from there inherit its variables,
    but not its terminal."""
    if "SLURM_PTY_PORT" not in os.environ:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _is_batch_shell() -> bool:
    """Whether this process runs in the shell of a batch job. A job that was submitted from a step inherits that step's
    variables, but the parent of its process is the daemon of the step "batch", as its title says."""
    try:
        # "PID (COMMAND) STATE PARENT …", proc(5)
        status = Path("/proc", os.environ["SLURM_TASK_PID"], "stat").read_text()
        title = Path("/proc", status.rpartition(")")[2].split()[1], "cmdline").read_bytes()
    except (KeyError, OSError, IndexError):
        return False
    return title.startswith(b"slurmstepd") and b".batch]" in title


def _mpi() -> Launch | None:
    for name, (rank, size) in _MPI.items():
        if rank in os.environ or size in os.environ:
            return _launch(rank, size, name, one_run=False)
    return None


def _launch(rank: str, size: str, source: str, *, one_run: bool = True) -> Launch:
    missing = [name for name in (rank, size) if name not in os.environ]
    if missing:
        there = rank if missing == [size] else size if missing == [rank] else "SLURM_STEP_ID"
        raise InputError(
            f"the environment variable {there} is set, and {' and '.join(missing)} not: set both, unset both, or give "
            "the loader rank and world_size"
        )
    whole = number_of(size)
    numbers = source if rank in source else f"{source}, {rank} and {size}"
    return Launch(_checked(number_of(rank), whole, numbers), whole, source, one_run)


def _checked(rank: int, size: int, source: str) -> int:
    if rank >= size:
        raise InputError(f"rank {rank} of {size} is impossible: the numbers are from {source}")
    return rank
