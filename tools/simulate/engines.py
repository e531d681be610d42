"""The end of a loader in a simulation: the product's engine with a decoder that knows packets, or the plan alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from streamvid.decode.base import Pending
from streamvid.decode.slice_frames import DamagedClipError
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue
from streamvid.forks import HomeProcess
from streamvid.plan.epoch import Epoch
from streamvid.plan.sample_id import rows_of
from streamvid.transform.in_order import BatchSource, decoded_in_order
from streamvid.transform.render import RenderedBatch, RunAhead
from streamvid.video.packet_selection import EncodedSlice
from tools.simulate.data import data
from tools.simulate.kernel import Current, Failure


def _rendered(encoded: EncodedBatch, samples: list[int]) -> RenderedBatch:
    columns = {name: torch.from_numpy(column) for name, column in encoded.columns().items()}
    return RenderedBatch(encoded, columns | {"sample": torch.tensor(samples)})


class PlanEngine:
    """Gives the samples of the plan, and reads nothing."""

    def __init__(self) -> None:
        self.home = HomeProcess()

    def run(self, epoch: Epoch, following: Callable[[], Epoch] | None = None) -> Generator[RenderedBatch, None, None]:
        for number in range(epoch.done, epoch.steps):
            step = epoch.step(number)
            clips = rows_of(step.sample_ids)
            none, many = np.zeros(0, np.int64), np.zeros((len(clips), 0))
            encoded = EncodedBatch(
                [], clips, step.passes, clips, step.valid, many.astype(bool), many, none, none, none, none, many, 0,
                step.stands_for, number,
            )  # fmt: skip
            yield _rendered(encoded, (step.sample_ids >> 32 & 0xFFFFF).tolist())

    def close(self) -> None:
        pass


class PacketRenderer:
    """In the place of the product's renderers: decodes a packet by looking up which one it is. The sample is its frame.

    All between the plan and this is the product's code.
    """

    shared = False

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        return run_ahead(decoded_in_order(batches, self._submit, rescue))

    def render_sample(self, batch: EncodedBatch) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def _submit(self, batch: EncodedBatch) -> Pending[RenderedBatch]:
        frames = [_frame(encoded) for encoded in batch.slices]
        return Pending(lambda: _rendered(batch, frames))


def _frame(one: EncodedSlice) -> int:
    """The frame that a slice of one packet decodes to. Raises DamagedClipError if the clip's source is damaged."""
    key, frame = data().packets.get(one.data.tobytes(), ("no clip", -1))
    if not one.name.endswith(key):
        raise Failure(f"clip {one.name} is delivered with the bytes of {key}")
    kernel = Current.get()
    if kernel is not None:
        if key in kernel.current.process.quarantined:
            raise Failure(f"clip {key} is decoded again, and is in quarantine")
        if key in kernel.bad:
            error = DamagedClipError(f"clip {one.name} does not decode")
            error.clip, error.reason = one.name, "it does not decode"
            raise error
    return frame


def decoded(slices: Sequence[EncodedSlice], **_: object) -> list[VideoError | None]:
    """In the place of `decode_isolated`, which starts processes."""
    found: list[VideoError | None] = []
    for encoded in slices:
        try:
            _frame(encoded)
            found.append(None)
        except DamagedClipError as error:
            found.append(error)
    return found
