"""What runs an epoch behind `StreamLoader`: the default engine's pipeline of stages, or one DALI pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Literal, Protocol

from streamvid.arrays import Int64
from streamvid.dali import support
from streamvid.dali.engine import DaliEngine
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import InputError
from streamvid.fetch.plan_samples import EncodedBatch, SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.epoch_pipeline import EpochPipeline
from streamvid.loader.preflight import check_decodable, probe_slice
from streamvid.plan.epoch_plan import Epoch, Step

EngineName = Literal["default", "dali"]
ENGINES: Final[tuple[EngineName, ...]] = ("default", "dali")


class DeliveredBatch(Protocol):
    """One batch, and what it was made from."""

    @property
    def step(self) -> Step:
        """What the plan asked for."""

    @property
    def encoded(self) -> EncodedBatch:
        """What was read."""

    @property
    def tensors(self) -> dict[str, Any]:
        """The batch's tensors, on the engine's device."""


class Engine(Protocol):
    """Reads, decodes and transforms what a plan asks for."""

    def run(self, epoch: Epoch) -> Iterator[DeliveredBatch]:
        """The batches of what is left of an epoch, in the plan's order; an error is raised in its place."""

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""


def make_engine(
    name: EngineName,
    dataset: ClipSource,
    rows: Int64,
    access: ShardAccess,
    recipe: SampleSpec,
    *,
    device_id: int | None,
    num_threads: int,
    max_batch: int,
) -> Engine:
    """The engine of that name, if it can decode the clips.

    Args:
        name: one of `ENGINES`.
        dataset: where clips come from.
        rows: int64 [clips], the rows that will be used.
        access: opens the dataset's shards.
        recipe: what is made of every clip.
        device_id: the GPU's number, or None for the CPU.
        num_threads: CPU threads that decode and transform.
        max_batch: clips per batch at most.

    Raises:
        InputError: no such engine, or clips that it cannot decode on this device.
    """
    rotates = bool(dataset.clips.rotation[rows].any())
    if name not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(map(repr, ENGINES))}; it is {name!r}")
    if name == "dali":
        support.check_decodable(dataset, rows, device_id=device_id)
    if device_id is not None:
        probe = partial(probe_slice, dataset, access=access)
        check_decodable(dataset, rows, device_id=device_id, probe=probe, sessions=name == "default")
    if name == "dali":
        return DaliEngine(dataset, access, recipe, device_id=device_id, num_threads=num_threads, rotates=rotates)
    return EpochPipeline(
        dataset, access, recipe, device_id=device_id, threads=num_threads, max_batch=max_batch, rotates=rotates
    )
