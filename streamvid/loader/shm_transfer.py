"""How a batch travels from a worker to the main process: its arrays in one piece of shared memory, the rest pickled.

Pickled as it is, a batch would be copied through a pipe, bytes of video and all.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_ALIGNED: Final = 64
"""Bytes to which every array is aligned."""


@dataclass(frozen=True)
class SharedBatch:
    """A value on its way to another process.

    Attributes:
        head: the value without its arrays, pickled.
        data: uint8 [bytes], the arrays; PyTorch hands it on in shared memory.
        places: where in `data` each array begins, and its length in bytes.
    """

    head: bytes
    data: torch.Tensor
    places: Sequence[tuple[int, int]]


def pack(value: Any) -> SharedBatch:
    """Make a parcel of any value that can be pickled; NumPy arrays in it are copied once."""
    import torch

    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    places, end = [], 0
    for view in views:
        places.append((end, view.nbytes))
        end += -(-view.nbytes // _ALIGNED) * _ALIGNED
    # In shared memory from the start, as default_collate makes it: PyTorch would copy it there otherwise.
    data = torch.empty(0, dtype=torch.uint8)
    if end:
        storages: Any = torch.UntypedStorage
        data = data.set_(storages._new_shared(end))
        whole = _memory(data)
        for view, (start, size) in zip(views, places, strict=True):
            whole[start : start + size] = view
    return SharedBatch(head, data, places)


def unpack(parcel: SharedBatch) -> Any:
    """The value; its arrays are views of the parcel's memory."""
    whole = _memory(parcel.data)
    return pickle.loads(parcel.head, buffers=[whole[start : start + size] for start, size in parcel.places])


def _memory(data: torch.Tensor) -> memoryview:
    array: Any = data.numpy()
    return memoryview(array)
