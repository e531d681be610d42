"""Rank, world size and device, from wherever they are said."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed

from streamvid.errors import InputError
from streamvid.plan import world
from streamvid.plan.world import World, find_cores, find_device, find_world
from tests.support.launch import deepspeed, jsrun, mpiexec, mpirun, srun, torchrun, use


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, current: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)


def test_without_arguments_and_environment_there_is_one_rank() -> None:
    assert find_world(None, None) == World(0, 1)


def test_arguments_take_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_world(3, 8) == World(3, 8)


def test_rank_and_world_size_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_world(None, None) == World(1, 2)


def test_torch_distributed_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    assert find_world(None, None) == World(5, 6)


def test_the_nodes_of_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """What started it says how many ranks a node has; of another number of ranks, it says nothing."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    for environment, nodes in ((torchrun(5, 8, 2), 4), (deepspeed(5, 8, 4), 2), (srun(5, 8, 4), 2), (srun(0, 2, 1), 1)):
        use(monkeypatch, environment)
        assert find_world() == World(5, 8, nodes)
        assert find_world(ranks_per_node=8) == World(5, 8)


def test_one_process_alone_needs_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, srun(3, 8, 8))
    assert find_world(None, 1) == World(0, 1)
    assert find_world(world_size=np.int64(1)) == World(0, 1)  # type: ignore[arg-type]
    for wrong in (True, 1.0, "1"):
        with pytest.raises(InputError):
            find_world(world_size=wrong)  # type: ignore[arg-type]


def test_numpys_numbers_become_pythons() -> None:
    """A state made of them is JSON."""
    world = World(np.int64(1), np.int32(4), np.uint8(2))  # type: ignore[arg-type]
    assert {type(value) for value in (world.rank, world.size, world.nodes, world.node)} == {int}


@pytest.mark.parametrize(("rank", "size"), [(0, None), (None, 2)])
def test_rank_without_world_size_is_refused_and_conversely(rank: int | None, size: int | None) -> None:
    with pytest.raises(InputError, match="together"):
        find_world(rank, size)


@pytest.mark.parametrize("wrong", ["", "one", "1.0"])
def test_an_environment_without_numbers(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", wrong)
    with pytest.raises(InputError, match="WORLD_SIZE"):
        find_world(None, None)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_an_environment_with_only_a_rank_or_a_world_size_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(InputError):
        find_world(None, None)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert find_device(None) is None
    assert find_device("cpu") is None
    assert find_device(torch.device("cpu")) is None  # type: ignore[arg-type]
    for device in ("cuda", "cuda:0", 0, "gpu"):
        with pytest.raises(InputError, match=f"there is no device {device!r}: torch sees no GPU; use device='cpu'"):
            find_device(device)


@pytest.mark.parametrize(
    ("device", "number"),
    [(None, 1), ("cuda", 1), ("cuda:0", 0), ("cuda:3", 3), ("gpu", 1), ("gpu:3", 3), (2, 2), ("2", 2), ("cpu", None)],
)
def test_with_gpus(device: Any, number: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4, current=1)
    assert find_device(device) == number


@pytest.mark.parametrize(("local", "number"), [("0", 0), ("3", 3), ("5", 1)])
def test_each_rank_of_a_node_has_its_own(local: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    monkeypatch.setenv("LOCAL_RANK", local)
    assert find_device(None) == number
    assert find_device("cuda") == number
    assert find_device("cuda:2") == 2


def test_each_task_of_slurm_and_mpi_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in (srun, mpirun):
        gpus(monkeypatch, 4)
        use(monkeypatch, launcher(6, 8, 4))
        assert find_device(None) == 2
        gpus(monkeypatch, 4, current=3)  # the program has chosen
        assert find_device(None) == 3
        gpus(monkeypatch, 1)  # each task sees its own alone
        assert find_device(None) == 0


def test_tasks_that_may_be_runs_of_their_own_are_told_their_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per process, and not where a launcher starts the ranks of one run only."""
    world._log_launch.cache_clear()
    for environment, told in ((torchrun(1, 4, 4), 0), (srun(0, 1, 1), 0), (srun(2, 4, 4), 1), (srun(2, 4, 4), 1)):
        use(monkeypatch, environment)
        find_world(settle=False)
        find_world()
        assert [record.getMessage() for record in caplog.records] == told * [
            "Slurm's step says that this is rank 2 of 4: loaders give it its part of the clips; if these tasks are not "
            "one run, give the loaders world_size=1"
        ]


ALONE = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (torchrun(0, 1, 1), ""),
        (srun(0, 1, 1) | ALONE, ""),
        (srun(2, 4, 4) | ALONE, "Slurm's step says that it is rank 2 of 4"),
        (mpirun(3, 4, 4) | ALONE, "Open MPI says that it is rank 3 of 4"),
        (ALONE | {"LOCAL_RANK": "3"}, "LOCAL_RANK is 3"),
        ({"LOCAL_RANK": "3"}, "LOCAL_RANK is 3"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK is 1"),
        ({"NODE_RANK": "1", "FLUX_TASK_RANK": "2"}, "NODE_RANK is 1"),
        ({"NODE_RANK": "0", "PMIX_RANK": "0", "PALS_RANKID": "none"}, ""),
    ],
)
def test_the_only_process_by_one_of_several_that_say(
    environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them would stream all clips, as with WORLD_SIZE=1 from a container's image."""
    world._warn_of_others.cache_clear()
    use(monkeypatch, environment)
    find_world(world_size=1)
    find_world(settle=False)
    assert not caplog.records
    assert find_world() == find_world() == World(0, 1)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == bool(told)
    assert all(f"but {told}: loaders give it all clips" in warning for warning in warnings)


def test_another_rank_than_the_launchers_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As LOCAL_RANK on a second node: the clips of the first node would come twice, and the others never."""
    world._warn_of_another.cache_clear()
    use(monkeypatch, torchrun(5, 8, 4))
    for rank, size in ((5, 8), (1, 4), (0, 1), (1, 16)):  # the last as for one of several DataLoader workers
        assert find_world(rank, size).rank == rank
    assert find_world(1, 8, settle=False).rank == 1
    assert not caplog.records
    assert find_world(1, 8).rank == find_world(1, 8).rank == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the loader is given rank 1 of 8, and this is rank 5 by the environment variables RANK and WORLD_SIZE: if two "
        "processes are given the same rank, clips come twice, and others never; leave out rank and world_size, which "
        "are found"
    ]


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:-1", "cuda:x", -1, "", "cuda:4", 4, True])
def test_no_such_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    with pytest.raises(InputError) as error:
        find_device(device)
    assert "\n" not in str(error.value)


def test_ranks_of_a_node_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.plan.world.usable_cores", lambda: 24)
    monkeypatch.setattr("streamvid.plan.world.shared_cores", lambda: 24)
    assert find_cores() == 24
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert find_cores() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert find_cores() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(InputError, match="LOCAL_WORLD_SIZE"):
        find_cores()


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        (srun(3, 8, 4) | {"SLURM_CPUS_ON_NODE": "16"}, 4),
        (srun(7, 8, 4), 6),
        (srun(5, 7, 3) | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),3", "SLURM_NODEID": "2"}, 8),
        (srun(0, 1, 1) | {"SLURM_CPUS_ON_NODE": "64"}, 24),
        (srun(0, 4, 4) | {"SLURM_CPUS_ON_NODE": "2"}, 1),
        (srun(0, 4, 4) | {"SLURM_STEP_TASKS_PER_NODE": "?", "SLURM_NODEID": "?"}, 24),
        (mpirun(1, 8, 4), 6),
        (mpiexec(1, 4, 2), 12),
        (jsrun(1, 12, 6), 4),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "0"}, 24),
        ({"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_CPUS_ON_NODE": "24"}, 24),  # in a shell of salloc
    ],
)
def test_ranks_that_are_bound_to_no_cores_share_the_nodes(
    variables: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamvid.plan.world.usable_cores", lambda: 24)
    monkeypatch.setattr("streamvid.plan.world.shared_cores", lambda: 24)
    use(monkeypatch, variables)
    assert find_cores() == cores
    monkeypatch.setattr("streamvid.plan.world.usable_cores", lambda: 2)  # bound to two
    assert find_cores() == min(cores, 2)


@pytest.mark.parametrize("variables", [mpirun(1, 8, 4), srun(3, 8, 4) | {"SLURM_CPUS_ON_NODE": "64"}])
def test_ranks_share_the_cpu_time_of_their_container(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes limits that of a pod in which mpirun starts a rank for each GPU."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr("streamvid.host._cores_by_time", lambda: [8])
    monkeypatch.setattr("streamvid.plan.world.usable_cores", lambda: 8)
    use(monkeypatch, variables)
    assert find_cores() == 2
