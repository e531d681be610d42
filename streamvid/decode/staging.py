"""Memory of one NVDEC engine for decoded surfaces on their way to RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamvid.decode.decode_job import SessionKey

if TYPE_CHECKING:
    import torch

STAGED: Final = 32
"""Frames converted by one kernel launch: enough to be worth a launch, few enough to need little memory."""


class StagingBuffer:
    """GPU memory of one engine for decoded surfaces of one configuration that wait for conversion.

    Attributes:
        samples: [STAGED, surface rows, width], uint8 (NV12), or int16 for 10 bits (P016), as NVDEC delivers them.
        samples8: the same in uint8; `samples` itself for 8 bits.
        dst_rows: int64 [STAGED], the row of the output that each becomes.
        samples_address, dst_rows_address: device addresses of both.
    """

    def __init__(self, key: SessionKey, device: torch.device) -> None:
        import torch

        shape = (STAGED, key.surface_rows, key.width)
        self.samples8 = torch.empty(shape, dtype=torch.uint8, device=device)
        self.samples = torch.empty(shape, dtype=torch.int16, device=device) if key.bit_depth > 8 else self.samples8
        self.dst_rows = torch.empty(STAGED, dtype=torch.int64, device=device)
        self.samples_address, self.dst_rows_address = self.samples.data_ptr(), self.dst_rows.data_ptr()


class PinnedIndexBuffer:
    """Pinned host memory from which the GPU copies the destination rows of one conversion.

    Attributes:
        rows: int64 [STAGED].
        address: host address of `rows`.
        reusable: CUDA event after which it may be overwritten; None if it was never used.
    """

    def __init__(self) -> None:
        import torch

        self._memory = torch.empty(STAGED, dtype=torch.int64, pin_memory=True)
        self.rows = self._memory.numpy()
        self.address = self._memory.data_ptr()
        self.reusable: torch.cuda.Event | None = None
