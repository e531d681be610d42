"""Transfers batches from a worker to the main process: their arrays in one block of shared memory, the rest pickled.

If a batch was pickled as a whole, its video data would be copied through a pipe.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from streamvid.errors import StreamvidError
from streamvid.host import TMPDIR_TOO_LONG

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_ALIGNMENT: Final = 64
"""Bytes to which every array is aligned."""
_LONGEST_SOCKET: Final = 107
"""Bytes of the path of a socket (unix(7))."""


@dataclass(frozen=True)
class SharedBatch(Generic[T]):
    """A value on its way to another process.

    Attributes:
        head: the value without its arrays, pickled (protocol 5, buffers out of band: PEP 574).
        data: uint8 [bytes], the arrays, which PyTorch transfers in shared memory.
        extents: for each array its start in `data`, and its length in bytes.
    """

    head: bytes
    data: torch.Tensor
    extents: Sequence[tuple[int, int]]


def check_sockets() -> None:
    """Check that this process, if it is a worker of a DataLoader, can have a socket in the temporary folder. PyTorch
    sends tensors by sockets there, from a thread: without one, batches would be lost, and the loop would wait forever.

    Raises:
        StreamvidError: the folder's path is too long.
    """
    import torch.multiprocessing
    import torch.utils.data

    sharing: Any = torch.multiprocessing
    if torch.utils.data.get_worker_info() is None or sharing.get_sharing_strategy() == "file_system":
        return
    if len(os.fsencode(os.path.join(util.get_temp_dir(), "listener-12345678"))) > _LONGEST_SOCKET:
        raise StreamvidError(TMPDIR_TOO_LONG)


def pack(value: T) -> SharedBatch[T]:
    """Prepare any value that can be pickled; NumPy arrays in it are copied once.

    Raises:
        StreamvidError: shared memory has no room for them.
    """
    import torch

    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    extents, end = [], 0
    for view in views:
        extents.append((end, view.nbytes))
        end += -(-view.nbytes // _ALIGNMENT) * _ALIGNMENT
    # Allocated in shared memory, as by PyTorch's default_collate, because PyTorch would copy it there otherwise.
    data = torch.empty(0, dtype=torch.uint8, device="cpu")
    if end:
        storages: Any = torch.UntypedStorage
        try:
            data = data.set_(storages._new_shared(end))
        except RuntimeError as error:
            raise StreamvidError(
                f"a worker has no room in /dev/shm for a batch of {end:,} bytes: give it more, in a container by "
                "docker run --shm-size=8g, or use fewer num_workers, or a smaller prefetch_factor"
            ) from error
        memory = _memory(data)
        for view, (start, size) in zip(views, extents, strict=True):
            memory[start : start + size] = view
    return SharedBatch(head, data, extents)


def unpack(shared: SharedBatch[T]) -> T:
    """The value that was packed; its arrays are views of the shared memory."""
    memory = _memory(shared.data)
    return cast(T, pickle.loads(shared.head, buffers=[memory[at : at + size] for at, size in shared.extents]))


def _memory(data: torch.Tensor) -> memoryview:
    array: Any = data.numpy()
    return memoryview(array)
