"""The data-parallel part of a `DeviceMesh`: which ranks get different clips, and which the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from streamvid.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DATA: Final = frozenset(("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard"))
_SAME_DATA: Final = frozenset(("tp", "pp", "cp", "sp", "tensor", "pipeline", "pipe", "context", "sequence", "model"))
_DO: Final = (
    "give its data-parallel part, such as mesh['dp'] or mesh['dp_replicate', 'dp_shard'], or rank and world_size"
)


def data_parallel_rank(mesh: DeviceMesh) -> tuple[int, int]:
    """This process' data-parallel rank in a mesh, and the number of data-parallel ranks.

    A dimension is data-parallel if a word of its name is dp, ddp, fsdp, hsdp, data, replicate or shard ("dp_shard").
    Along dimensions named for tensor, pipeline, context or sequence parallelism, ranks get the same clips. The one
    dimension of a 1-D mesh with another name, or none, is data-parallel.

    Raises:
        InputError: the value is no mesh, the names of its dimensions do not show which are data-parallel, or this
            process is not in it.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise InputError(f"mesh must be a torch.distributed DeviceMesh; it is {mesh!r}")
    coordinate, shape = mesh.get_coordinate(), tuple(mesh.shape)
    if coordinate is None:
        raise InputError("this process is not in the mesh: make the loader only where it is, or give another mesh")
    names = mesh.mesh_dim_names
    if names is None and len(shape) > 1:
        raise InputError(f"the mesh has {len(shape)} dimensions and no names for them: {_DO}")
    kinds = [True] if names is None else [_is_data(name, alone=len(names) == 1) for name in names]
    rank = 0
    for place, size, is_data in zip(coordinate, shape, kinds, strict=True):
        rank = rank * size + place if is_data else rank
    return rank, math.prod(size for size, is_data in zip(shape, kinds, strict=True) if is_data)


def _is_data(name: str, *, alone: bool) -> bool:
    words = set(name.lower().replace("-", "_").split("_"))
    data, same = bool(words & _DATA), bool(words & _SAME_DATA)
    if data == same and (data or not alone):
        raise InputError(f"the mesh's dimension {name!r} may or may not be data-parallel: {_DO}")
    return data or not same
