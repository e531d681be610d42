"""`StreamLoader(engine="dali")`: epochs through DALI pipelines, each over a chunk of the plan.

The files of a DALI pipeline are fixed when it is built. So the plan is cut into chunks of steps. While the loop gets
the batches of one chunk, a thread builds the pipeline of the next, which reads and decodes its first batches. DALI's
state is not part of a run's state: an epoch goes on from the plan's position.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from streamvid.dali_engine.chunk_pipeline import DEPTH, ChunkBatch, ChunkPipeline
from streamvid.dali_engine.pictures import are_images, find_picture
from streamvid.dali_engine.reader import VideoSource, source_of, video_source
from streamvid.dataset.clip_source import ClipSource, ShardPaths, shard_errors
from streamvid.decode.dali import check_packets
from streamvid.decode.lost_gpu import raise_if_lost
from streamvid.errors import ClipError, VideoError
from streamvid.fetch.encoded_batch import encoded_batch, read_slices, row_color
from streamvid.fetch.epoch_reader import Rescue, upcoming_shards
from streamvid.fetch.plan_samples import SamplePlan, SampleSpec, pad_to_longest, plan_samples
from streamvid.fetch.shard_access import ShardAccess
from streamvid.forks import HomeProcess
from streamvid.plan.epoch import Epoch, Step
from streamvid.plan.sample_id import rows_of
from streamvid.storage.range_reader import FileTooShort, RangeReader
from streamvid.storage.url import is_local
from streamvid.transform.params import ClipTransform
from streamvid.transform.render import RenderedBatch

_CHUNK_STEPS: Final = 64
"""Steps of a chunk at most."""
_CHUNK_FILES: Final = 128
"""Files that a chunk opens at most, unless a step has clips of more shards: each shard of each step is one. Two chunks
are open at a time, and a process may often have no more than 1,024."""


@dataclass
class _OpenChunk:
    """The pipeline of some steps, and the leases that keep its shards in the cache."""

    batches: list[ChunkBatch]
    shard_of: dict[str, int]
    pipeline: ChunkPipeline
    leases: ExitStack

    def close(self) -> None:
        self.pipeline.close()
        self.leases.close()


class DaliEngine:
    """Runs epochs over a dataset.

    Args:
        dataset: the dataset.
        access: opens its shards.
        spec: how samples are drawn from clips.
        transform: the transform.
        device_id: the GPU's number, or None for the CPU.
        num_threads: CPU threads of DALI.
        rescuer: makes the `Rescuer` of an epoch, which finds the bad clips of a batch.
    """

    def __init__(
        self,
        dataset: ClipSource,
        access: ShardAccess,
        spec: SampleSpec,
        transform: ClipTransform,
        *,
        device_id: int | None,
        num_threads: int,
        rescuer: Callable[[Epoch, threading.Event], Rescue | None],
    ) -> None:
        self._dataset, self._access, self._spec, self._transform = dataset, access, spec, transform
        self._device_id, self._num_threads, self._rescuer = device_id, num_threads, rescuer
        self.home = HomeProcess()

    def run(self, epoch: Epoch, following: Callable[[], Epoch] | None = None) -> Generator[RenderedBatch, None, None]:
        """The batches that are left of an epoch, in order. An error is raised in the place of its batch.

        DALI does not say which clip it failed on. So the clips of the batches that it was working on are tried one by
        one, by FFmpeg, and, if FFmpeg decodes all of them and DALI fails again, by DALI. New pipelines, without the bad
        clips, continue from the batch that failed.

        Raises:
            InputError: this process was forked from the one that iterated first, and has none of its threads.
        """
        rescue = self._rescuer(epoch, threading.Event())
        done, tried = epoch.done, -1
        while done < epoch.steps:
            with closing(self._run(replace(epoch, done=done))) as batches:
                try:
                    for batch in batches:
                        yield batch
                        done += 1
                    return
                except (ClipError, FileTooShort, VideoError) as error:
                    raise_if_lost(self._device_id, error)
                    if rescue is None:
                        raise
                    failed = error.with_traceback(None)
            if self._find_bad(rescue, epoch, done):
                continue
            if done != tried:
                rescue(done, failed)
                tried = done
            elif not self._find_undecodable(rescue, epoch, done):
                raise failed

    def _find_bad(self, rescue: Rescue, epoch: Epoch, first: int) -> bool:
        """Look for bad clips in the batches that DALI may have been working on. Returns whether there are any."""
        before = epoch.absent.count
        for number in range(first, min(first + _CHUNK_STEPS, epoch.steps)):
            rescue(number)
            if epoch.absent.count > before and number > first:
                break
        return epoch.absent.count > before

    def _find_undecodable(self, rescue: Rescue, epoch: Epoch, first: int) -> bool:
        """Leave out the clips that DALI does not decode one by one, of the batches on which it may have failed. Returns
        whether there are such clips. If DALI decodes none of several clips, no clip is at fault: returns False."""
        tried: dict[int, tuple[int, str]] = {}
        for number in range(first, min(first + DEPTH, epoch.steps)):
            step = epoch.step(number)
            for n, row in enumerate(rows_of(step.sample_ids).tolist()):
                if row not in tried:
                    tried[row] = number, self._failure_alone(step.at(n))
        bad = {row: about for row, about in tried.items() if about[1]}
        if len(bad) == len(tried) > 1:
            return False
        for row, (number, reason) in bad.items():
            rescue.leave_out(self._dataset.clip_error(row, reason, suspect="source"), number)
        return bool(bad)

    def _failure_alone(self, step: Step) -> str:
        """Why DALI does not decode a step of one sample; "" if it does."""
        try:
            chunk = self._open(iter([[step]]), threading.Event())
            assert chunk is not None
            with closing(chunk):
                for _ in chunk.pipeline:
                    pass
        except VideoError as error:
            return str(error)
        return ""

    def _run(self, epoch: Epoch) -> Generator[RenderedBatch, None, None]:
        process = self.home.enter()
        chunks = self._chunks(epoch)
        working: list[Future[_OpenChunk | None]] = []
        stopped = threading.Event()

        pool = ThreadPoolExecutor(1, thread_name_prefix="streamvid-dali")

        # Module globals may be gone when the interpreter exits.
        getpid, unregister = os.getpid, atexit.unregister

        def stop() -> None:
            if getpid() != process:
                return
            stopped.set()
            while working:
                coming = working.pop()
                if not coming.cancel() and coming.exception() is None and (chunk := coming.result()) is not None:
                    chunk.close()
            pool.shutdown()

        # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
        atexit.register(stop)
        try:
            working.append(pool.submit(self._open, chunks, stopped))
            while (chunk := working[0].result()) is not None:
                working.append(pool.submit(self._open, chunks, stopped))
                with shard_errors(self._dataset, chunk.shard_of):
                    for batch, tensors in zip(chunk.batches, chunk.pipeline, strict=True):
                        yield RenderedBatch(batch.encoded, tensors)
                        self.home.enter()
                working.pop(0)
                chunk.close()
        finally:
            unregister(stop)
            stop()

    def close(self) -> None:
        """Does nothing, because each iteration frees what it has made."""
        self.home.leave()

    def _chunks(self, epoch: Epoch) -> Iterator[list[Step]]:
        """The steps that are left, in chunks with equally many clips per step; the first chunks are small, so that a
        batch comes soon."""
        steps: list[Step] = []
        most = 1
        for number in range(epoch.done, epoch.steps):
            step = epoch.step(number)
            if steps and not self._fits([*steps, step], most):
                self._access.prefetch(upcoming_shards(self._dataset, epoch, number))
                yield steps
                steps, most = [], min(2 * most, _CHUNK_STEPS)
            steps.append(step)
        if steps:
            yield steps

    def _fits(self, steps: list[Step], most: int) -> bool:
        """Whether one pipeline may have these steps: not too many, of one batch size, with shards that fit the
        cache."""
        shards = [self._shards(step) for step in steps]
        return (
            len(steps) <= most
            and len(steps[-1].sample_ids) == len(steps[0].sample_ids)
            and sum(map(len, shards)) <= _CHUNK_FILES
            and len(self._access.groups(sorted(set().union(*shards)))) == 1
        )

    def _shards(self, step: Step) -> set[int]:
        """Numbers of the shards that hold a step's clips."""
        return set(self._dataset.clips.shard[rows_of(step.sample_ids)].tolist())

    def _open(self, chunks: Iterator[list[Step]], stopped: threading.Event) -> _OpenChunk | None:
        """The next chunk with its pipeline running, or None after the last. Called in the engine's thread."""
        steps = next(chunks, None)
        if steps is None:
            return None
        shards = sorted(set().union(*(self._shards(step) for step in steps)))
        with ExitStack() as leases:
            checked = self._spec.checksum is not None
            path_of = leases.enter_context(self._access.open(shards, stopped, checked=checked))
            reader = self._access.reader(shards, stopped)
            batches = []
            for step in steps:
                planned = plan_samples(self._dataset, step, self._spec, reader=reader, path_of=path_of)
                batches.append(chunk_batch(self._dataset, planned, self._spec, reader, path_of))
            shard_of = {path_of(number): number for number in shards}
            with shard_errors(self._dataset, shard_of):
                pipeline = ChunkPipeline(
                    batches, self._transform, device_id=self._device_id, num_threads=self._num_threads
                )
            return _OpenChunk(batches, shard_of, pipeline, leases.pop_all())


def chunk_batch(
    dataset: ClipSource,
    planned: Sequence[SamplePlan],
    spec: SampleSpec,
    reader: RangeReader,
    path_of: ShardPaths,
    *,
    by_shard: bool = True,
) -> ChunkBatch:
    """The pipeline's input for these samples; arguments as in `streamvid.fetch.encoded_batch.read_slices` and
    `ChunkBatch`.

    Raises:
        ClipError: packets differ from those that were indexed.
        VideoError: packets are invalid, or an image contradicts its row.
    """
    local = [is_local(dataset.location(plan.clip, path_of)) for plan in planned]
    images = are_images(dataset.clips, [plan.clip for plan in planned])
    slices = None
    if spec.checksum is not None or not all(local) or images.any():
        slices = read_slices(dataset, planned, reader, path_of, checksum=spec.checksum)
    if slices is not None and spec.checksum is not None:
        # DALI reads the ranges again, but checks no checksum.
        check_packets(slices)
    samples = pad_to_longest(planned, spec.sampling.pad)
    sources = [
        source_of(slices[n]) if slices is not None and not local[n] else source_in_shard(dataset, sample, path_of)
        for n, sample in enumerate(samples)
    ]
    pictures = [
        find_picture(slices[n], sources[n].begin) if slices is not None and is_image else None
        for n, is_image in enumerate(images.tolist())
    ]
    encoded = encoded_batch(dataset, samples, [])
    keys = [dataset.clips.key[sample.clip] for sample in samples]
    colors = [row_color(dataset.clips, sample.clip) for sample in samples]
    frames = [sample.packets.frames for sample in samples]
    return ChunkBatch(sources, frames, colors, pictures, encoded, keys, by_shard)


def source_in_shard(dataset: ClipSource, sample: SamplePlan, path_of: ShardPaths) -> VideoSource:
    """The ranges of a local shard that DALI reads for a sample."""
    rows = dataset.clips
    return video_source(
        dataset.location(sample.clip, path_of),
        int(rows.mp4_offset[sample.clip]),
        sample.packets,
        sample.spans,
        stsd=rows.stsds[rows.stsd_id[sample.clip]],
        width=int(rows.width[sample.clip]),
        height=int(rows.height[sample.clip]),
    )
