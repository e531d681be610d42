"""The data-parallel ranks of a mesh, on every rank of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from streamvid.errors import InputError
from streamvid.plan.mesh import data_parallel_rank


def on_every_rank(shape: tuple[int, ...], names: tuple[str, ...] | None) -> Iterator[DeviceMesh]:
    """The mesh as each of its processes has it."""
    size = int(torch.tensor(shape).prod())
    for rank in range(size):
        torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        try:
            yield init_device_mesh("cpu", shape, mesh_dim_names=names)
        finally:
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("shape", "names", "ranks"),
    [
        ((4,), None, [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((2,), ("dp",), [(0, 2), (1, 2)]),
        ((2,), ("anything",), [(0, 2), (1, 2)]),
        ((2,), ("tp",), [(0, 1), (0, 1)]),
        ((2, 2), ("dp", "tp"), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ((2, 2), ("pp", "data"), [(0, 2), (1, 2), (0, 2), (1, 2)]),
        ((2, 2), ("replicate", "shard"), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((2, 2), ("data_parallel", "tensor_parallel"), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ((2, 1, 2, 1), ("dp_replicate", "cp", "dp_shard", "tp"), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ((2, 2, 2), ("replicate", "tp", "shard"), [(n, 4) for n in (0, 1, 0, 1, 2, 3, 2, 3)]),
        ((1, 2), ("dp", "cp"), [(0, 1), (0, 1)]),
    ],
)  # fmt: skip
def test_dimensions_by_name(shape: Any, names: Any, ranks: list[tuple[int, int]]) -> None:
    assert [data_parallel_rank(mesh) for mesh in on_every_rank(shape, names)] == ranks


def test_the_data_parallel_part_that_the_user_takes() -> None:
    names = ("stage", "dp", "expert")
    found = [data_parallel_rank(mesh["dp"]) for mesh in on_every_rank((2, 2, 2), names)]
    assert found == [(0, 2), (0, 2), (1, 2), (1, 2)] * 2


@pytest.mark.parametrize(
    ("shape", "names", "word"),
    [((2, 2), None, "no names"), ((2, 2), ("dp", "expert"), "'expert'"), ((2,), ("dp_cp",), "'dp_cp'")],
)
def test_meshes_that_do_not_say_which_ranks_share_data(shape: Any, names: Any, word: str) -> None:
    for mesh in on_every_rank(shape, names):
        with pytest.raises(InputError, match=word) as error:
            data_parallel_rank(mesh)
        assert "rank and world_size" in str(error.value)


def test_a_process_outside_the_mesh() -> None:
    for rank, mesh in enumerate(DeviceMesh("cpu", [1, 2]) for _ in on_every_rank((4,), None)):
        if rank in (1, 2):
            assert data_parallel_rank(mesh) == (rank - 1, 2)
        else:
            with pytest.raises(InputError, match="not in the mesh"):
                data_parallel_rank(mesh)


def test_a_value_that_is_no_device_mesh_is_refused() -> None:
    with pytest.raises(InputError, match="DeviceMesh"):
        data_parallel_rank((2, 2))  # type: ignore[arg-type]
