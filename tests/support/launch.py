"""The environments that launchers give to the ranks of a job, as their sources and manuals have them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

Environment = dict[str, str]

_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "CROSS_RANK", "CROSS_SIZE", "FLUX_TASK_RANK", "PALS_RANKID",
)  # fmt: skip


def is_launchers(name: str) -> bool:
    """Whether a launcher sets the variable."""
    return name in _NAMES or name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_LOCAL", "MV2_", "JSM_", "PMIX_"))


def use(monkeypatch: pytest.MonkeyPatch, environment: Environment | None = None) -> None:
    """Let the process have these variables of a launcher and no others."""
    for name in filter(is_launchers, list(os.environ)):
        monkeypatch.delenv(name)
    for name, value in (environment or {}).items():
        monkeypatch.setenv(name, value)


def torchrun(rank: int, size: int, per_node: int) -> Environment:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node), "GROUP_RANK": str(rank // per_node),
        "GROUP_WORLD_SIZE": str(size // per_node),
    }  # fmt: skip


def deepspeed(rank: int, size: int, per_node: int) -> Environment:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % per_node), "LOCAL_SIZE": str(per_node),
        "CROSS_RANK": str(rank // per_node), "CROSS_SIZE": str(size // per_node),
    }  # fmt: skip


def lightning(rank: int, size: int, per_node: int) -> Environment:
    """Processes that Lightning's launcher started; the number per node is the user's to say if there are several."""
    environment = {
        "NODE_RANK": str(rank // per_node),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(size),
    }
    return environment | ({"LOCAL_WORLD_SIZE": str(per_node)} if size > per_node else {})


def srun(rank: int, size: int, per_node: int) -> Environment:
    """A task of a step, of a job that has more tasks than the step."""
    return sbatch(2 * size) | {
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % per_node), "SLURM_NODEID": str(rank // per_node),
        "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NTASKS": str(size), "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NUM_NODES": str(size // per_node), "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{size // per_node})",
    }  # fmt: skip


def sbatch(size: int) -> Environment:
    """The shell of a batch job, which is one process whatever the number of tasks."""
    return {
        "SLURM_JOB_ID": "17",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(size),
    }


def mpirun(rank: int, size: int, per_node: int) -> Environment:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % per_node), "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
    }  # fmt: skip


def mpirun_in_slurm(rank: int, size: int, per_node: int) -> Environment:
    """Open MPI starts a daemon on every other node by srun; its processes inherit what that task has."""
    node, nodes = rank // per_node, size // per_node
    around = srun(node - 1, nodes - 1, 1) if node else sbatch(size)
    return around | mpirun(rank, size, per_node)


def mpiexec(rank: int, size: int, per_node: int) -> Environment:
    return {
        "PMI_RANK": str(rank), "PMI_SIZE": str(size), "MPI_LOCALRANKID": str(rank % per_node),
        "MPI_LOCALNRANKS": str(per_node),
    }  # fmt: skip


def mpirun_rsh(rank: int, size: int, per_node: int) -> Environment:
    """MVAPICH2's."""
    return {
        "MV2_COMM_WORLD_RANK": str(rank), "MV2_COMM_WORLD_SIZE": str(size),
        "MV2_COMM_WORLD_LOCAL_RANK": str(rank % per_node), "MV2_COMM_WORLD_LOCAL_SIZE": str(per_node),
    }  # fmt: skip


def jsrun(rank: int, size: int, per_node: int) -> Environment:
    """The launcher of IBM's Spectrum LSF."""
    return {
        "JSM_NAMESPACE_RANK": str(rank), "JSM_NAMESPACE_SIZE": str(size),
        "JSM_NAMESPACE_LOCAL_RANK": str(rank % per_node), "JSM_NAMESPACE_LOCAL_SIZE": str(per_node),
    }  # fmt: skip


LAUNCHERS: list[Callable[[int, int, int], Environment]] = [
    torchrun, deepspeed, lightning, srun, mpirun, mpirun_in_slurm, mpiexec, mpirun_rsh, jsrun
]  # fmt: skip
