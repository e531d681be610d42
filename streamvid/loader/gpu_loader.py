"""`GpuDataLoader`: PyTorch's samplers and workers read; the main process decodes and transforms."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from multiprocessing.context import BaseContext
from typing import Any, Final, cast

import numpy as np
import torch
import torch.distributed
import torch.utils.data

from streamvid.checks import boolean, integer, one_of, suggest_keywords
from streamvid.decode.lost_gpu import GpuWatch
from streamvid.errors import InputError, StreamvidError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.loader.batch import Batch, LoaderStats, make_batch
from streamvid.loader.batch_loader import BatchLoader
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.clip_items import At, Item
from streamvid.loader.pipeline import RenderPipeline
from streamvid.loader.preflight import FALLBACKS, ClipRoute, Fallback, find_cpu_decoded, routes_to
from streamvid.loader.quarantine import OnError
from streamvid.loader.rescue import BAD_CLIP, Rescuer
from streamvid.loader.run_position import Delivery, RunPosition
from streamvid.loader.sampler_state import ResumableBatches, SamplerPosition, from_state, global_generator, to_state
from streamvid.loader.shm_transfer import SharedBatch, pack, unpack
from streamvid.loader.torch_options import begin, begin_worker, check_items, check_order, check_workers
from streamvid.plan.world import find_cores, find_device
from streamvid.transform.render import make_renderer
from streamvid.video.packet_selection import EncodedSlice

log = logging.getLogger(__name__)

_PROBE_FRAMES: Final = 3

_Read = EncodedBatch | Exception
"""The result for a list of items: a batch, or the error to raise."""


class GpuDataLoader(BatchLoader[SamplerPosition]):
    """A DataLoader whose workers read packets and whose main process decodes them.

    The workers look up frames, read their packets, and send them to the main process. There they are decoded and
    transformed as in a StreamLoader, on a GPU or on the CPU. Batches are those of a StreamLoader: the same dict, dtypes
    and device.

    NVIDIA's DALI Proxy divides the work in the same way. This loader does not use it: it needs no CUDA build of
    PyTorch, works with any start method and without workers, raises if a stage dies instead of waiting, and decodes the
    slices of a batch together, because a GPU's decoder is fast with few long streams.

    Every iteration is an epoch; random numbers depend on its number, from 0. A sampler's epoch is set by its owner or
    by `set_epoch`. `state_dict` resumes within an epoch. Use the loader in a `with`, or call `close`.

    Args:
        dataset: the clips, with their `sampling`, `transform`, `columns` and `seed`.
        batch_size: clips per batch; with a `batch_sampler` without this attribute, clips in its largest batch.
        sampler: yields items: numbers, keys or `At`, in any mixture. Default: all samples, in order.
        batch_sampler: yields lists of items instead.
        shuffle: random order, if there is no sampler.
        drop_last: leave out an incomplete last batch.
        num_workers: processes that read; 0: a thread reads.
        device: "cuda", "cuda:1", "cpu"; default: this rank's GPU if there is one.
        fallback: as in `StreamLoader`.
        num_threads: CPU threads that decode and transform, beside the workers; as in `StreamLoader`.
        isolate: as in `StreamLoader`.
        on_error, max_errors, quarantine: for bad clips, as in `ClipDataset`; default: the dataset's.
        prefetch_factor, persistent_workers, multiprocessing_context, worker_init_fn, generator, timeout: as in torch's
            DataLoader.

    Raises:
        InputError: an option is invalid, or `fallback` is "error" and the GPU cannot decode some clips.
    """

    @suggest_keywords
    def __init__(
        self,
        dataset: ClipDataset,
        *,
        batch_size: int | None = None,
        sampler: Iterable[Item] | None = None,
        batch_sampler: Iterable[Sequence[Item]] | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        num_workers: int = 0,
        device: str | int | None = None,
        fallback: Fallback = "cpu",
        num_threads: int | None = None,
        isolate: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: str | BaseContext | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        generator: torch.Generator | None = None,
        timeout: float = 0,
        on_error: OnError | None = None,
        max_errors: int | None = None,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(dataset, ClipDataset):
            raise InputError(
                "GpuDataLoader takes a ClipDataset, such as ClipDataset(path, sampling=…), or for some of its clips "
                f"ClipDataset(Subset(path, keys=…), sampling=…); it is {dataset!r}"[:300]
            )
        if batch_size is None:
            batch_size = getattr(batch_sampler, "batch_size", None)
            if batch_size is None:
                raise InputError("give batch_size: with a batch_sampler the most clips that it puts into a batch")
        integer(batch_size, "batch_size")
        if num_threads is not None:
            integer(num_threads, "num_threads")
        check_order(sampler, batch_sampler, shuffle=shuffle, drop_last=drop_last)
        check_workers(num_workers, prefetch_factor, persistent_workers, timeout, worker_init_fn, generator)
        if any(given is not None for given in (on_error, max_errors, quarantine)):
            dataset = dataset.with_policy(dataset.policy.but(on_error, max_errors, quarantine))
        self.dataset = dataset
        self._batch_size, self._num_workers = batch_size, num_workers
        self._undivided = sampler is None and batch_sampler is None
        self._loader: Any = None
        try:
            if batch_sampler is None:
                items: Any = _sampler(dataset, shuffle, generator) if sampler is None else sampler
                batch_sampler = torch.utils.data.BatchSampler(items, batch_size, drop_last)
            self._batches = ResumableBatches(batch_sampler, generator)
            self._generator, self._seeds = generator, torch.Generator()
            self._loader = torch.utils.data.DataLoader(
                _Slices(dataset, batch_size),
                collate_fn=_share,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                multiprocessing_context=multiprocessing_context,
                worker_init_fn=partial(begin_worker, worker_init_fn),
                generator=self._seeds,
                timeout=timeout,
                batch_sampler=cast(Any, self._batches),
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"DataLoader refuses the options: {error}") from error
        one_of(fallback, FALLBACKS, "fallback")
        boolean(isolate, "isolate")
        self._num_threads = num_threads = num_threads or find_cores()
        device_id, found = find_device(device), None
        if device_id is not None:
            found = find_cpu_decoded(
                dataset.dataset,
                dataset.rows,
                device_id=device_id,
                probe=self._probe,
                num_threads=num_threads,
                fallback=fallback,
            )
        self._found = found
        self._device = torch.device("cpu" if device_id is None else f"cuda:{device_id}")
        self._pipeline = RenderPipeline(
            partial(
                make_renderer,
                dataset.clip_transform,
                device_id=device_id,
                threads=num_threads,
                max_batch=batch_size,
                on_cpu=None if found is None else found.on_cpu,
                isolate=isolate,
            )
        )
        self._position = RunPosition(SamplerPosition(0))
        self._watch = GpuWatch(device_id, self._position.where)
        self._stats = LoaderStats()

    def __repr__(self) -> str:
        return f"GpuDataLoader({self.dataset!r}, num_workers={self._num_workers}, device={str(self._device)!r})"

    def __len__(self) -> int:
        """Batches in an epoch. Raises TypeError if the sampler has no length."""
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, for random numbers and for samplers with a `set_epoch`. Without effect
        if it is that epoch already, so a resumed epoch goes on. Leave a running iteration first: its reader, which is
        ahead of the loop, may still draw from the sampler's generator."""
        epoch = integer(epoch, "epoch", least=0, most=None)
        self._batches.set_epoch(epoch)
        self._position.put(self._position.next if epoch == self.epoch else SamplerPosition(epoch))

    def state_dict(self) -> dict[str, Any]:
        """This rank's position, counting batches that the loop has received. As in `StreamLoader`, it is a position
        within the epoch only within the loop.

        It includes everything that a sampler's order may depend on: its `state_dict`, the state of its generator, its
        epoch, and the state of PyTorch's global generator, from which samplers without a generator draw. It is
        JSON-safe if the sampler's state is.
        """
        return to_state(self._position.to_save(), self._batches, self._batch_size, self.dataset.identity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume from a state, and restore the sampler's state.

        Raises:
            InputError: the state is invalid, or of other clips, sampling, seed, batch size, ranks or kind of sampler.
        """
        position = from_state(state, self._batches, self._batch_size, self.dataset.identity)
        self._position.put(position, restored=True)

    def stats(self) -> LoaderStats:
        """Counts and times so far, and the bad clips found."""
        found = self.dataset.quarantine()
        return replace(self._stats, bad_clips=found.found, bad=found.bad)

    @property
    def routes(self) -> tuple[ClipRoute, ...]:
        """As in `StreamLoader`."""
        if self._found is not None:
            return self._found.table
        return routes_to("cpu", self.dataset.dataset, self.dataset.rows)

    def close(self) -> None:
        """End persistent workers, and free threads and device memory."""
        if self._pipeline.home.here and self._loader is not None:
            _shut_down(self._loader._iterator)
            self._loader._iterator = None
        self._pipeline.close()
        self._watch.close()

    def _run(self) -> Generator[Delivery[Batch, SamplerPosition], None, None]:
        start = self._position.next
        number, made = start.epoch_number, start.batches
        if self._position.goes_on:
            self._batches.load(start.samplers or ())
        samplers, own = self._batches.state(), None
        if start.batches and start.samplers:
            # PyTorch's global generator is set back only while the epoch begins.
            own = start.samplers[-1]
            samplers[-1] = dict(own)
        # Before its first batch, too: by then the reader has drawn from the samplers' generators.
        self._position.next = replace(start, samplers=samplers)
        following = SamplerPosition(number + 1)
        order = self._batches.begin(number, made)
        self.dataset.set_epoch(number)
        if self._undivided and self._stats.batches == 0:
            _warn_undivided()
        self.dataset.quarantine(anew=True)
        policy, rescue = self.dataset.policy, None
        if policy.on_error != "raise":
            rescue = self.dataset.in_epoch(number).rescuer(order.given.__getitem__, threads=self._num_threads)
        encoded = self._encoded(global_generator(own), made, rescue)
        rendered = self._pipeline.run(encoded, read_here=self._num_workers > 0, rescue=rescue)
        try:
            while True:
                started = time.perf_counter()
                result = next(rendered, None)
                self._stats = self._stats.plus(result, time.perf_counter() - started)
                if result is None:
                    break
                del order.given[made]
                made += 1
                last = order.count == made
                masked = policy.on_error == "mask"
                batch = make_batch(result, self.dataset.dataset, self.dataset.columns, masked=masked)
                position = following if last else SamplerPosition(number, made, samplers)
                yield Delivery(batch, position, following, last)
        finally:
            rendered.close()
        if start.batches == made > 0:
            raise InputError(f"the state is after {made} batches of an epoch, but the sampler yields no more than that")

    def _encoded(
        self, generator: AbstractContextManager[None], first_number: int, rescue: Rescuer | None
    ) -> Generator[EncodedBatch, None, None]:
        """The batches of PyTorch's DataLoader, in order."""
        getpid = os.getpid  # module globals may be gone when the interpreter closes this generator as it exits
        process = getpid()
        with torch.device("cpu"), generator:
            # Drawn in every epoch. DataLoader draws a seed for its workers only when it starts them: the sampler of a
            # resumed run, whose workers are new, would draw other numbers after that than with persistent workers.
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            self._seeds.manual_seed(int(seed))
            if not all(worker.is_alive() for worker in getattr(self._loader._iterator, "_workers", ())):
                _shut_down(self._loader._iterator)  # PyTorch would wait in every epoch for a worker that was killed
                self._loader._iterator = None
            iterator = begin(self._loader)
            batches = _watched(iterator)
            first = list(islice(batches, 1))
        try:
            for number, shared in enumerate(chain(first, batches), first_number):
                batch = unpack(shared) if isinstance(shared, SharedBatch) else shared
                if isinstance(batch, BAD_CLIP) and rescue is not None:
                    batch = rescue(number, batch, decode=False)
                if isinstance(batch, Exception):
                    raise batch
                yield replace(batch, number=number)
        finally:
            if getpid() == process and not getattr(self._loader, "persistent_workers", False):
                # Not left to the destructor, because an exception's traceback may keep the iterator alive.
                _shut_down(iterator)

    def _probe(self, row: int) -> EncodedSlice:
        """Some frames from all over a clip."""
        count = int(self.dataset.dataset.clips.frames[row])
        frames = np.unique(np.linspace(0, count - 1, _PROBE_FRAMES).astype(np.int64))
        return self.dataset.encoded(At(row, frames=frames.tolist()))


def _sampler(dataset: ClipDataset, shuffle: bool, generator: torch.Generator | None) -> torch.utils.data.Sampler[int]:
    """A sampler of all items, in order or shuffled, with a generator of its own, whose state can be saved."""
    if not shuffle:
        return torch.utils.data.SequentialSampler(dataset)
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    return torch.utils.data.RandomSampler(dataset, generator=generator)


class _Slices(torch.utils.data.Dataset[_Read]):
    """The dataset that the workers have: lists of items → encoded batches, or errors of items and clips."""

    def __init__(self, clips: ClipDataset, max_batch: int) -> None:
        self._clips, self._max_batch = clips, max_batch

    def __len__(self) -> int:
        return len(self._clips)

    def __getitems__(self, batch: tuple[int, Sequence[Item]]) -> _Read:
        epoch, items = batch
        try:
            check_items(items, self._max_batch)
            return self._clips.in_epoch(epoch).encode(items)
        except (StreamvidError, IndexError, KeyError) as error:
            # Not raised, as PyTorch would wrap its one sentence into the text of a traceback.
            return error.with_traceback(None)


def _warn_undivided() -> None:
    """Warn if there are several ranks, each of which gets every clip, as with PyTorch's DataLoader."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        if ranks > 1:
            log.warning("all %d ranks get every clip: give sampler=DistributedSampler(dataset) to divide them", ranks)


def _share(batch: Any) -> _Read | SharedBatch[_Read]:
    """The collate function: in a worker, pack for the main process; in the main process, the batch itself."""
    if torch.utils.data.get_worker_info() is None:
        return batch  # type: ignore[no-any-return]
    try:
        return pack(batch)
    except StreamvidError as error:
        return pack(error.with_traceback(None))


def _watched(iterator: Iterator[_Read | SharedBatch[_Read]]) -> Iterator[_Read | SharedBatch[_Read]]:
    """The items of PyTorch's iterator, which notices dead workers except those that died while sending a batch."""
    while True:
        try:
            with torch.device("cpu"):  # samplers draw from generators of the CPU, whatever the default device is
                value = next(iterator)
        except StopIteration:
            return
        except (ConnectionError, EOFError) as error:  # connections close before a process counts as dead
            raise RuntimeError(
                "a DataLoader worker died while it sent a batch, or may open no further file (`ulimit -n`)"
            ) from error
        yield value


def _shut_down(iterator: Any) -> None:
    """End the workers of one of PyTorch's iterators and wait for them; there is no public way but its destructor."""
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        # AttributeError: the iterator's constructor failed. RuntimeError: a worker was killed, which PyTorch's handler
        # of SIGCHLD raises at any place of the main thread; by then all workers have ended or been killed.
        with contextlib.suppress(AttributeError, RuntimeError):
            shut_down()
