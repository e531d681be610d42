"""The engines of `StreamLoader`: a pipeline of stages (default), or DALI pipelines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Final, Literal, Protocol

from streamvid.arrays import Int64
from streamvid.checks import boolean
from streamvid.dali_engine import support
from streamvid.dali_engine.engine import DaliEngine
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue, read_epoch
from streamvid.fetch.shard_access import ShardAccess
from streamvid.forks import HomeProcess
from streamvid.loader.pipeline import RenderPipeline
from streamvid.loader.preflight import ClipRoute, Fallback, find_cpu_decoded, probe_slice, routes_to
from streamvid.loader.quarantine import Quarantine
from streamvid.loader.rescue import epoch_rescuer
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import Epoch
from streamvid.transform.cpu_batch_writer import fits_batch_writer
from streamvid.transform.render import RenderedBatch, make_renderer

EngineName = Literal["default", "dali"]
ENGINES: Final[tuple[EngineName, ...]] = ("default", "dali")
_POLL_S: Final = 0.1
"""How often a thread that waits checks whether it has been told to stop."""


class Engine(Protocol):
    """Reads, decodes and transforms the samples of a plan.

    Attributes:
        home: the process with its threads.
    """

    home: HomeProcess

    def run(self, epoch: Epoch) -> Generator[RenderedBatch, None, None]:
        """The batches of what is left of an epoch, in the plan's order; an error is raised in its place."""

    def begin(self, epoch: Epoch) -> None:
        """Make the first batch of an epoch that `run` is likely to be asked for next, if that keeps cores busy."""

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""


class StagedEngine:
    """Reads, decodes and transforms in stages, each ahead of the next.

    Args:
        read: `streamvid.fetch.epoch_reader.read_epoch` of a dataset; the event gives up waiting for a storage.
        rescuer: makes what rescues the batches of an epoch.
        ahead: `begin` makes a batch. Else it does nothing: not where memory of a GPU would be kept from a model, nor
            where a cache gives up files by the epoch under way.
    """

    def __init__(
        self,
        read: Callable[[Epoch, threading.Event, Rescue | None], Generator[EncodedBatch, None, None]],
        pipeline: RenderPipeline,
        rescuer: Callable[[Epoch, threading.Event], Rescue | None],
        *,
        ahead: bool,
    ) -> None:
        self._read, self._pipeline, self._rescuer, self.home = read, pipeline, rescuer, pipeline.home
        self._ahead = ahead
        self._begun: tuple[Epoch, threading.Event, Generator[RenderedBatch, None, None]] | None = None

    def run(self, epoch: Epoch) -> Generator[RenderedBatch, None, None]:
        """See `Engine`."""
        if self._begun is not None and self._begun[0] is epoch:
            (_, asked, rendered), self._begun = self._begun, None
            asked.set()
            return rendered
        self._drop()
        return self._start(epoch, None)

    def begin(self, epoch: Epoch) -> None:
        """See `Engine`."""
        self._drop()
        if self._ahead:
            asked = threading.Event()
            self._begun = epoch, asked, self._start(epoch, asked)

    def close(self) -> None:
        """See `Engine`."""
        self._drop()
        self._pipeline.close()

    def _start(self, epoch: Epoch, asked: threading.Event | None) -> Generator[RenderedBatch, None, None]:
        stop = threading.Event()
        rescue = self._rescuer(epoch, stop)
        batches = self._read(epoch, stop, rescue)
        if asked is not None:
            batches = _first_alone(batches, asked, stop)
        return self._pipeline.run(batches, stop=stop, rescue=rescue)

    def _drop(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[2].close()


def _first_alone(
    batches: Generator[EncodedBatch, None, None], asked: threading.Event, stop: threading.Event
) -> Generator[EncodedBatch, None, None]:
    """Batches; those behind the first when they are asked for."""
    with closing(batches):
        for number, batch in enumerate(batches):
            while number and not asked.wait(_POLL_S):
                if stop.is_set():
                    return
            yield batch


def make_engine(
    name: EngineName,
    samples: SampleSet,
    rows: Int64,
    quarantine: Quarantine,
    access: ShardAccess,
    *,
    device_id: int | None,
    num_threads: int,
    max_batch: int,
    fallback: Fallback,
    isolate: bool,
) -> tuple[Engine, Callable[[], tuple[ClipRoute, ...]]]:
    """The engine of that name, if it can decode the clips, and what says who decodes which.

    Args:
        name: one of `ENGINES`.
        rows: int64 [clips], the rows that will be used.
        device_id: the GPU's number, or None for the CPU.
        max_batch: clips per batch at most.
        fallback: "cpu": clips that the GPU does not decode are decoded on the CPU, but not by "dali"; "error": they
            are refused.
        isolate: what the CPU decodes, it decodes in child processes.

    Raises:
        InputError: clips that it cannot decode on this device, or in child processes.
    """
    boolean(isolate, "isolate")
    if isolate and name == "dali":
        raise InputError("engine='dali' decodes in its own threads: leave out isolate=True")
    dataset, spec, transform = samples.dataset, samples.spec, samples.clip_transform(rows)
    if name == "dali":
        support.check_decodable(dataset, rows, device_id=device_id)
    routes = None
    if device_id is not None:
        routes = find_cpu_decoded(
            dataset,
            rows,
            device_id=device_id,
            probe=partial(probe_slice, dataset, access=access),
            num_threads=num_threads,
            fallback=fallback if name == "default" else "error",
            sessions=name == "default",
        )
    rescuer = partial(epoch_rescuer, dataset, access, spec, quarantine, num_threads)
    if name == "dali":
        engine = DaliEngine(
            dataset, access, spec, transform, device_id=device_id, num_threads=num_threads, rescuer=rescuer
        )
        return engine, partial(routes_to, "dali", dataset, rows)
    make = partial(
        make_renderer,
        transform,
        device_id=device_id,
        threads=num_threads,
        max_batch=max_batch,
        on_cpu=None if routes is None else routes.on_cpu,
        isolate=isolate,
    )
    read = partial(read_epoch, dataset, access, spec, batch_size=max_batch)
    table = partial(routes_to, "cpu", dataset, rows) if routes is None else partial(tuple, routes.table)
    ahead = device_id is None and dataset.is_local and fits_batch_writer(samples.transform)
    return StagedEngine(read, RenderPipeline(make), rescuer, ahead=ahead), table
