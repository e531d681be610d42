"""Runs an epoch through the stages: read, slice, decode, transform, each in its own thread and ahead of the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from streamvid.dataset.clip_source import ClipSource
from streamvid.fetch import plan_samples
from streamvid.fetch.plan_samples import EncodedBatch, SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.background import Background
from streamvid.loader.decode_and_render import Begun, DecodeAndRender, Submit
from streamvid.plan.epoch_plan import Epoch, Step
from streamvid.plan.sample_id import rows_of
from streamvid.transform.dali_renderer import DecodedBatch

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


class EpochPipeline:
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
        recipe: SampleSpec,
        *,
        device_id: int | None,
        threads: int,
        max_batch: int,
        rotates: bool,
    ) -> None:
        self._dataset, self._access, self._recipe, self._max_batch = dataset, access, recipe, max_batch
        self._stage = DecodeAndRender(
            recipe, device_id=device_id, threads=threads, max_batch=max_batch, rotates=rotates
        )

    def run(self, epoch: Epoch) -> Iterator[Delivered]:
        """The batches of what is left of an epoch, in order."""
        steps: deque[Step] = deque()

        def begin(submit: Submit) -> Begun:
            read = Background(self._read(epoch), depth=_AHEAD, name="streamvid-read")
            decoded = Background(_decoded(read, submit, steps), depth=_AHEAD, name="streamvid-decode")

            def stop() -> None:
                # Both are told before either is waited for: the second takes from the first.
                read.stop()
                decoded.close()
                read.close()

            return decoded, stop

        with closing(self._stage.run(begin)) as delivered:
            for encoded, tensors in delivered:
                yield Delivered(steps.popleft(), encoded, tensors)

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""
        self._stage.close()

    def _read(self, epoch: Epoch) -> Iterator[tuple[Step, EncodedBatch]]:
        """Chunks of steps, small at first so that the first batch comes soon."""
        most = max(1, _CHUNK_CLIPS // self._max_batch)
        start, chunk = epoch.done, 1
        while start < epoch.steps:
            end = min(start + chunk, epoch.steps)
            self._access.prefetch(self._shards_from(epoch, end))
            steps = [epoch.step(number) for number in range(start, end)]
            chosen = [plan_samples.plan_samples(self._dataset, step, self._recipe) for step in steps]
            yield from zip(steps, plan_samples.encode(self._dataset, chosen, self._recipe, self._access), strict=True)
            start, chunk = end, min(2 * chunk, most)

    def _shards_from(self, epoch: Epoch, start: int) -> Iterator[int]:
        """The shards that the steps from `start` on will read, as far ahead as is worth fetching."""
        for number in range(start, min(start + _STEPS_AHEAD, epoch.steps)):
            yield from self._dataset.clips.shard[rows_of(epoch.step(number).items)].tolist()


def _decoded(read: Iterator[tuple[Step, EncodedBatch]], submit: Submit, steps: deque[Step]) -> Iterator[DecodedBatch]:
    """Decode one batch ahead: the engines of a GPU that are done with a batch need not wait for the others.

    `steps` gets the step of each batch.
    """
    begun: deque[tuple[Step, EncodedBatch, Callable[[], list[Any]]]] = deque()

    def finished() -> DecodedBatch:
        step, encoded, frames = begun.popleft()
        decoded = DecodedBatch(encoded, frames())
        steps.append(step)
        return decoded

    for step, encoded in read:
        begun.append((step, encoded, submit(encoded)))
        if len(begun) > 1:
            yield finished()
    while begun:
        yield finished()
