"""The engines of `StreamLoader`: a pipeline of stages (default), or DALI pipelines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
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
from streamvid.loader.pipeline import Background, RenderPipeline, begun_at_call
from streamvid.loader.preflight import ClipRoute, Fallback, find_cpu_decoded, probe_slice, routes_to
from streamvid.loader.quarantine import Quarantine
from streamvid.loader.rescue import epoch_rescuer
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import Epoch
from streamvid.transform.cpu_batch_writer import fits_batch_writer
from streamvid.transform.output_size import check_batch_memory
from streamvid.transform.render import RenderedBatch, make_renderer

EngineName = Literal["default", "dali"]
ENGINES: Final[tuple[EngineName, ...]] = ("default", "dali")
Begins = Literal["batch", "reading"]
_CLIPS_AHEAD: Final = 128
_MOST_AHEAD: Final = 8
"""Clips (`_CLIPS_AHEAD`) and batches (`_MOST_AHEAD`, at least 2) of a GPU run that are read ahead of the decoder, so
that engines have work while the next chunk is read."""
_POLL_S: Final = 0.1
"""How often a thread that waits checks whether it has been told to stop."""


class Engine(Protocol):
    """Reads, decodes and transforms the samples of a plan.

    Attributes:
        home: the process that has the engine's threads.
    """

    home: HomeProcess

    def run(self, epoch: Epoch, following: Callable[[], Epoch] | None = None) -> Generator[RenderedBatch, None, None]:
        """The batches that are left of an epoch, in the plan's order. An error is raised in the place of its batch.

        Args:
            epoch: the epoch, from its first step that is left.
            following: makes the epoch that `run` is likely to be called with next. May be called in any thread, to
                begin that epoch while cores or the storage are idle.
        """

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""


class StagedEngine:
    """An `Engine` of stages that read, decode and transform, each ahead of the next.

    Args:
        read: `streamvid.fetch.epoch_reader.read_epoch` for a dataset; setting the event ends waits for a storage.
        rescuer: makes the `Rescuer` of an epoch.
        begins: which part of the next epoch is made in advance. "batch": its first batch, while the loop waits for the
            last batch of this epoch; unsuitable where it would take GPU memory from a model, or where a cache evicts
            files by the current epoch. "reading": its first chunks, as soon as this epoch is read to its end.
    """

    def __init__(
        self,
        read: Callable[[Epoch, threading.Event, Rescue | None], Generator[EncodedBatch, None, None]],
        pipeline: RenderPipeline,
        rescuer: Callable[[Epoch, threading.Event], Rescue | None],
        *,
        begins: Begins | None,
    ) -> None:
        self._read, self._pipeline, self._rescuer, self.home = read, pipeline, rescuer, pipeline.home
        self._begins = begins
        self._begun: _Rendering | None = None
        self._next: _Reading | None = None

    def run(self, epoch: Epoch, following: Callable[[], Epoch] | None = None) -> Generator[RenderedBatch, None, None]:
        if self._begun is not None and self._begun.epoch is epoch:
            self._begun.asked.set()
            rendered, self._begun = self._begun.batches, None
        else:
            rendered = self._render(self._read_ahead(epoch), following)
        try:
            for left in reversed(range(epoch.left)):
                if not left and following is not None and self._begins == "batch":
                    self._drop()
                    asked, reading = threading.Event(), self._start(following())
                    reading = replace(reading, batches=_first_alone(reading.batches, asked, reading.stop))
                    self._begun = _Rendering(reading.epoch, asked, self._render(reading, None))
                yield next(rendered)
            next(rendered, None)  # runs the generator to its end, so that its decoder is kept for the next epoch
        finally:
            rendered.close()

    def close(self) -> None:
        self._drop()
        self._pipeline.close()

    def _start(self, epoch: Epoch) -> _Reading:
        stop = threading.Event()
        rescue = self._rescuer(epoch, stop)
        return _Reading(epoch, stop, rescue, self._read(epoch, stop, rescue))

    def _read_ahead(self, epoch: Epoch) -> _Reading:
        """The reader of an epoch: the one begun in advance, or a new one. Readers begun for other epochs are closed."""
        found, self._next = self._next, None
        if found is None or found.epoch is not epoch:
            self._next = found
            self._drop()
            return self._start(epoch)
        return found

    def _render(self, reading: _Reading, following: Callable[[], Epoch] | None) -> Generator[RenderedBatch, None, None]:
        batches = reading.batches
        if following is not None and self._begins == "reading":
            batches = self._and_then(batches, following)
        return self._pipeline.run(batches, stop=reading.stop, rescue=reading.rescue)

    def _and_then(
        self, batches: Generator[EncodedBatch, None, None], following: Callable[[], Epoch]
    ) -> Generator[EncodedBatch, None, None]:
        """The batches of an epoch; after the last, start to read the next epoch in another thread."""
        with closing(batches):
            yield from batches
        begun = self._start(following())
        self._next = replace(
            begun, batches=_taken(Background(begun.batches, depth=1, name="streamvid-read").start(), begun.stop)
        )

    def _drop(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.batches.close()
        reading, self._next = self._next, None
        if reading is not None:
            reading.batches.close()


@dataclass(frozen=True)
class _Reading:
    """An epoch being read: its batches, the event that ends waits for a storage, and the rescuer of bad batches."""

    epoch: Epoch
    stop: threading.Event
    rescue: Rescue | None
    batches: Generator[EncodedBatch, None, None]


@dataclass(frozen=True)
class _Rendering:
    """An epoch whose first batch is rendered in advance; `asked` is set when the loop asks for it, and lets the reader
    go on to the second."""

    epoch: Epoch
    asked: threading.Event
    batches: Generator[RenderedBatch, None, None]


@begun_at_call
def _taken(reading: Background[EncodedBatch], stop: threading.Event) -> Generator[EncodedBatch | None, None, None]:
    """The batches that a thread reads; closing the generator ends the thread."""
    try:
        yield None
        yield from reading
    finally:
        stop.set()
        reading.close()


def _first_alone(
    batches: Generator[EncodedBatch, None, None], asked: threading.Event, stop: threading.Event
) -> Generator[EncodedBatch, None, None]:
    """The batches; the second and later ones only after `asked` is set."""
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
    """Make an engine that can decode the clips, and a function that returns their routes.

    Args:
        name: one of `ENGINES`.
        samples: the clips, and how samples are made of them.
        rows: int64 [clips], the rows that will be used.
        quarantine: of bad clips.
        access: opens the dataset's shards.
        device_id: the GPU's number, or None for the CPU.
        num_threads: CPU threads.
        max_batch: most clips per batch.
        fallback: "cpu": the CPU decodes clips that the GPU does not decode (not with "dali"); "error": they are
            refused.
        isolate: the CPU decodes in child processes.

    Raises:
        InputError: the engine cannot decode the clips on this device, or in child processes; or a batch has more bytes
            than the machine's memory.
    """
    boolean(isolate, "isolate")
    if isolate and name == "dali":
        raise InputError("engine='dali' decodes in its own threads: leave out isolate=True")
    dataset, spec, transform = samples.dataset, samples.spec, samples.clip_transform(rows)
    if device_id is None and len(rows):
        check_batch_memory(samples.transform, dataset.clips, rows, max_batch * (spec.sampling.num_frames or 1))
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
    begins: Begins | None = "reading" if access.by_range else None
    if device_id is None and dataset.is_local and fits_batch_writer(samples.transform):
        begins = "batch"
    ahead = 2 if device_id is None else max(2, min(_MOST_AHEAD, _CLIPS_AHEAD // max_batch))
    pipeline = RenderPipeline(make, read_ahead=ahead, on_wait=dataset.reader.reads.tell)
    return StagedEngine(read, pipeline, rescuer, begins=begins), table
