"""Runs an epoch through the stages: read, slice, decode, transform, each in its own thread and ahead of the next."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from streamvid.store.access import ShardAccess
from streamvid.store.source import ClipSource
from streamvid.stream import samples
from streamvid.stream.background import Background
from streamvid.stream.batches import DecodedBatch, TorchBatches
from streamvid.stream.decode import CpuDecoder, Decoder, GpuDecoder
from streamvid.stream.items import rows_of
from streamvid.stream.plan import Epoch, Step
from streamvid.stream.samples import EncodedBatch, Recipe

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_STEPS_AHEAD: Final = 64
"""How many steps ahead shards of a remote dataset are fetched, as far as the cache has room."""
_AHEAD: Final = 2
"""Batches that wait between two stages at most."""


@dataclass(frozen=True)
class Delivered:
    """One batch, and what it was made from.

    Attributes:
        step: what the plan asked for.
        encoded: what was read.
        tensors: what came out.
    """

    step: Step
    encoded: EncodedBatch
    tensors: dict[str, Any]


class Runner:
    """Runs epochs over a dataset; decoders and pipelines live as long as it does.

    Args:
        dataset: where clips come from.
        access: opens its shards.
        recipe: what is made of every clip.
        device_id: the GPU's number, or None for the CPU.
        threads: CPU threads that decode and transform.
        max_batch: clips per batch at most.
        rotates: some clips are to be turned upright.
    """

    def __init__(
        self,
        dataset: ClipSource,
        access: ShardAccess,
        recipe: Recipe,
        *,
        device_id: int | None,
        threads: int,
        max_batch: int,
        rotates: bool,
    ) -> None:
        self._dataset, self._access, self._recipe = dataset, access, recipe
        self._device_id, self._threads, self._max_batch, self._rotates = device_id, threads, max_batch, rotates
        # Those that no iteration uses. Iterations at the same time each have their own.
        self._decoders: list[Decoder] = []
        self._transforms: list[TorchBatches] = []

    def run(self, epoch: Epoch) -> Iterator[Delivered]:
        """The batches of what is left of an epoch, in order."""
        decoder = self._decoders.pop() if self._decoders else self._make_decoder()
        transform = self._transforms.pop() if self._transforms else self._make_transform()
        passed: deque[tuple[Step, EncodedBatch]] = deque()
        read = Background(self._read(epoch), depth=_AHEAD, name="streamvid-read")
        decoded = Background(self._decoded(read, decoder, passed), depth=_AHEAD, name="streamvid-decode")
        whole = False

        def stop() -> None:
            # Both are told before either is waited for: the second takes from the first.
            read.stop()
            decoded.close()
            read.close()

        # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
        atexit.register(stop)
        try:
            for tensors in transform.over(decoded):
                step, encoded = passed.popleft()
                # On a GPU looking would wait for all that the training loop has queued there.
                if not tensors["clip"].is_cuda and tensors["clip"].tolist() != encoded.clips.tolist():
                    raise AssertionError("DALI handed out a batch out of turn")
                yield Delivered(step, encoded, tensors)
            whole = True
        finally:
            atexit.unregister(stop)
            stop()
            # A decoder that failed may be of no use; batches of an epoch that was left early are still inside the
            # transform's pipeline. The next iteration makes new ones.
            if whole and not self._decoders:
                self._decoders.append(decoder)
                self._transforms.append(transform)
            else:
                decoder.close()

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""
        while self._decoders:
            self._decoders.pop().close()
        self._transforms.clear()

    def _read(self, epoch: Epoch) -> Iterator[tuple[Step, EncodedBatch]]:
        """Chunks of steps, small at first so that the first batch comes soon."""
        most = max(1, _CHUNK_CLIPS // self._max_batch)
        start, chunk = epoch.done, 1
        while start < epoch.steps:
            end = min(start + chunk, epoch.steps)
            self._access.prefetch(self._shards_from(epoch, end))
            steps = [epoch.step(number) for number in range(start, end)]
            chosen = [samples.choose(self._dataset, step, self._recipe) for step in steps]
            yield from zip(steps, samples.encode(self._dataset, chosen, self._recipe, self._access), strict=True)
            start, chunk = end, min(2 * chunk, most)

    def _shards_from(self, epoch: Epoch, start: int) -> Iterator[int]:
        """The shards that the steps from `start` on will read, as far ahead as is worth fetching."""
        for number in range(start, min(start + _STEPS_AHEAD, epoch.steps)):
            yield from self._dataset.clips.shard[rows_of(epoch.step(number).items)].tolist()

    def _decoded(
        self, read: Iterator[tuple[Step, EncodedBatch]], decoder: Decoder, passed: deque[tuple[Step, EncodedBatch]]
    ) -> Iterator[DecodedBatch]:
        # One batch ahead: the engines of a GPU that are done with a batch need not wait for the others.
        begun: deque[tuple[Step, EncodedBatch, Callable[[], list[Any]]]] = deque()

        def finished() -> DecodedBatch:
            step, encoded, frames = begun.popleft()
            decoded = DecodedBatch(encoded, frames())
            passed.append((step, encoded))
            return decoded

        for step, encoded in read:
            begun.append((step, encoded, decoder.submit(encoded.slices)))
            if len(begun) > 1:
                yield finished()
        while begun:
            yield finished()

    def _make_decoder(self) -> Decoder:
        if self._device_id is None:
            return CpuDecoder(threads=self._threads, max_batch=self._max_batch)
        return GpuDecoder(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)

    def _make_transform(self) -> TorchBatches:
        return TorchBatches(
            self._recipe.transform,
            device_id=self._device_id,
            max_batch=self._max_batch,
            threads=self._threads,
            rotates=self._rotates,
            has_blanks=self._recipe.pad in ("constant", "none"),
        )
