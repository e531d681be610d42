"""The DALI pipeline of a chunk of the plan: `fn.readers.webdataset` → `fn.decoders.video`, of images
`fn.decoders.image` → the transform's graph → `DALIGenericIterator`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64
from streamvid.color.render import recolouring
from streamvid.color.tags import Color, ColorOption
from streamvid.dali_engine.pictures import Picture, decode_by_kind, picture_arrays, picture_inputs
from streamvid.dali_engine.reader import ReaderFiles, VideoSource, write_indexes
from streamvid.decode.dali import reason_of
from streamvid.decode.deadline import LateBatches
from streamvid.errors import DatasetError, StreamvidError, VideoError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.forks import abandon_pipeline, in_children
from streamvid.storage.range_reader import FileTooShort
from streamvid.transform.dali_graph import SIZES, build_graph, by_constants, input_names
from streamvid.transform.dali_pipeline import GraphOutputs, InputType, external_inputs, input_arrays
from streamvid.transform.params import ClipTransform, batch_params
from streamvid.transform.spec import Transform, Views, by_view
from streamvid.video.image_decoder import abandon_failed

if TYPE_CHECKING:
    import torch
    from nvidia.dali.data_node import DataNode
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

Inputs = tuple[list[npt.NDArray[np.generic]], ...]
DEPTH: Final = 2
"""Batches that DALI works on at once."""


@dataclass(frozen=True)
class ChunkBatch:
    """One batch of a chunk.

    Attributes:
        sources: the reader's input for each sample.
        frames: for each sample, int64 [wanted], the frames of its video to decode, increasing.
        colors: for each sample, matrix, range and siting of its clip.
        pictures: for each sample, the location of its image; None for a video.
        encoded: the batch without packets: its `slices` are empty.
        keys: the clips' keys, for error messages.
        by_shard: whether the reader reads samples sorted by shard and offset, so that few files are open; False: in
            order.
    """

    sources: list[VideoSource]
    frames: list[Int64]
    colors: list[Color]
    pictures: list[Picture | None]
    encoded: EncodedBatch
    keys: list[str]
    by_shard: bool = True

    @cached_property
    def reading_order(self) -> Int64:
        """int64 [batch]: the samples in the order in which the reader reads them."""
        if not self.by_shard:
            return np.arange(len(self.sources))
        places = [(source.path, int(source.ranges[0, 0])) for source in self.sources]
        return np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)


@dataclass(frozen=True)
class ClipKinds:
    """Properties of a graph's clips that decide which operators it has.

    Attributes:
        videos, images: whether there are any.
        recoloured: whether some clips' RGB has to be converted from DALI's matrix to that of the transform's option
            `color`; if not, the graph has no operator for it.
        on_gpu: whether the graph runs on a GPU.
    """

    videos: bool
    images: bool
    recoloured: bool
    on_gpu: bool

    @classmethod
    def of(
        cls, images: Collection[bool], colors: Iterable[Color], transform: Transform | Views, *, on_gpu: bool
    ) -> ClipKinds:
        """The kinds of clips, from whether each is an image, and from their matrix, range and siting."""
        factors = [recolouring(color.chosen(_option(transform))) for color in set(colors)]
        recoloured = any(not np.array_equal(factor, np.eye(3)) for factor in factors)
        return cls(not all(images), any(images), recoloured, on_gpu)

    @property
    def inputs(self) -> list[InputType]:
        """Inputs of the graph that come before those of the transform."""
        videos: list[InputType] = [(np.uint8, 1), (np.int32, 1)]
        return [
            (np.int32, 0),
            *(videos if self.videos else ()),
            *([(np.float32, 2)] if self.recoloured else ()),
            *self.of_pictures.values(),
        ]

    @property
    def of_pictures(self) -> dict[str, InputType]:
        """The last of these inputs, by name: those for images."""
        return picture_inputs(videos=self.videos) if self.images else {}


class ChunkPipeline:
    """A DALI pipeline over some batches of equal size; an iterator over their tensors.

    Args:
        batches: at least one. Reading and decoding of the first begins immediately.
        spec: the transform.
        device_id: the GPU's number, or None for the CPU.
        num_threads: CPU threads.

    Raises:
        DatasetError: a shard cannot be read, or the folder for temporary files cannot be written to.
        VideoError: a clip cannot be decoded.
    """

    def __init__(
        self, batches: Sequence[ChunkBatch], spec: ClipTransform, *, device_id: int | None, num_threads: int
    ) -> None:
        self._batches = batches
        self._iterator: DALIGenericIterator | None = None
        self._pipeline: Any = None
        self._resources = ExitStack()
        self._outputs = GraphOutputs(spec, on_gpu=device_id is not None)
        # Not a TemporaryDirectory, which every forked child removes when it ends.
        folder = mkdtemp(prefix="streamvid-dali-")
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            self._start(self._write_indexes(folder), spec, device_id=device_id, num_threads=num_threads)
        except BaseException:
            self.close()
            raise

    def _write_indexes(self, folder: str) -> ReaderFiles:
        sources = [batch.sources[n] for batch in self._batches for n in batch.reading_order]
        try:
            return write_indexes(sources, Path(folder), spare=DEPTH * len(self._batches[0].sources))
        except OSError as error:
            raise DatasetError(
                f"the indexes for DALI's reader cannot be written to {folder}: {os.strerror(error.errno or 0)}; make "
                "room there, or set TMPDIR to another folder",
                path=folder,
            ) from error

    def _start(self, files: ReaderFiles, spec: ClipTransform, *, device_id: int | None, num_threads: int) -> None:
        """Build the pipeline, which begins to read and decode."""
        from nvidia.dali import pipeline_def
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        batches, outputs, on_gpu = self._batches, self._outputs, device_id is not None
        images = [picture is not None for batch in batches for picture in batch.pictures]
        kinds = ClipKinds.of(
            images, (color for batch in batches for color in batch.colors), spec.transform, on_gpu=on_gpu
        )

        @pipeline_def(
            batch_size=len(batches[0].sources),
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=DEPTH,
        )
        def chunk() -> tuple[DataNode, ...]:
            names = graph_inputs(spec, on_gpu=on_gpu)
            feed = (clip_inputs(batch, spec.transform, names, kinds) for batch in batches)
            views, columns = clip_nodes(files, feed, outputs.spec, kinds)
            return *views, *([node.gpu() for node in columns] if on_gpu else columns)

        self._pipeline = in_children(chunk(), abandon_pipeline)
        try:
            # PARTIAL returns every batch unchanged: the plan has decided about the last one.
            self._iterator = DALIGenericIterator(
                [self._pipeline],
                outputs.names,
                auto_reset=False,
                last_batch_policy=LastBatchPolicy.PARTIAL,
            )
        except RuntimeError as error:
            self._abandon_failed()
            raise _explain(error, batches, 0) from error

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        import torch

        assert self._iterator is not None
        with LateBatches() as late:
            for number, batch in enumerate(self._batches):
                try:
                    (tensors,) = late.wait_for(partial(next, self._iterator), batch.keys)
                except RuntimeError as error:
                    self._abandon_failed()
                    raise _explain(error, self._batches, number) from error
                if tensors["clip"].is_cuda and number == 0:
                    # The first batch was made with the pipeline, in a thread whose current stream is the default one.
                    here = torch.cuda.current_stream(tensors["clip"].device)
                    here.wait_stream(torch.cuda.default_stream(tensors["clip"].device))
                    for tensor in tensors.values():
                        tensor.record_stream(here)
                yield self._outputs.finish(tensors, batch.encoded)

    def _abandon_failed(self) -> None:
        abandon_failed(
            self._pipeline, {picture.stsd for batch in self._batches for picture in batch.pictures if picture}
        )

    def close(self) -> None:
        """Wait for the pipeline's work in progress, and free it."""
        self._iterator = self._pipeline = None
        self._resources.close()


def graph_inputs(spec: ClipTransform, *, on_gpu: bool) -> tuple[str, ...]:
    """The transform's inputs. On a GPU, a transform for evaluation is built as for a server, which does not know the
    size of frames (`streamvid.transform.triton`)."""
    names = input_names(spec, crop_resized=False)
    if on_gpu and by_constants(spec.transform):
        return tuple(name for name in names if name.rpartition(".")[2] not in SIZES)
    return names


def clip_nodes(
    files: ReaderFiles,
    feed: Iterator[Inputs],
    spec: ClipTransform,
    kinds: ClipKinds,
    *,
    reader_name: str | None = None,
    pad_last_batch: bool = False,
) -> tuple[list[DataNode], list[DataNode]]:
    """The graph from shards to views, inside a pipeline definition.

    Args:
        files: the files of `fn.readers.webdataset`.
        feed: returns `clip_inputs` of each batch, in the reader's order.
        spec: the transform.
        kinds: the kinds of the clips; `on_gpu` is whether the pipeline runs on a GPU.
        reader_name, pad_last_batch: arguments `name` and `pad_last_batch` of the reader.

    Returns:
        The views, and `BATCH_COLUMNS`, which are on the CPU.
    """
    from nvidia.dali import fn, types

    # Without mmap: a shard that shrinks while it is read raises instead of killing the process with SIGBUS.
    ranges = fn.readers.webdataset(
        paths=files.paths,
        index_paths=files.index_paths,
        ext=files.extensions,
        missing_component_behavior="empty",
        dont_use_mmap=True,
        name=reader_name,
        pad_last_batch=pad_last_batch,
    )
    (place, *nodes), params, columns = external_inputs(feed, graph_inputs(spec, on_gpu=kinds.on_gpu), kinds.inputs)
    parts = list(ranges) if isinstance(ranges, list | tuple) else [ranges]
    if kinds.videos:
        header, frames, *nodes = nodes
        parts = [header, *parts]
    colours = [nodes.pop(0)] if kinds.recoloured else []
    encoded = fn.permute_batch(fn.cat(*parts, axis=0), indices=place)

    def decode_videos(take: Callable[[DataNode], DataNode]) -> DataNode:
        decoded = fn.decoders.video(take(encoded), frames=take(frames), device="mixed" if kinds.on_gpu else "cpu")
        for factors in colours:
            decoded = fn.coord_transform(decoded, M=take(factors), dtype=types.UINT8)
        return decoded

    if kinds.images:
        decoded = decode_by_kind(
            encoded, dict(zip(kinds.of_pictures, nodes, strict=True)), decode_videos if kinds.videos else None
        )
    else:
        decoded = decode_videos(lambda node: node)
    return build_graph(spec, [decoded], params, crop_resized=False), columns


def clip_inputs(batch: ChunkBatch, transform: Transform | Views, names: Sequence[str], kinds: ClipKinds) -> Inputs:
    """Inputs of the graph besides shards: the position of each sample in the order of reading; headers in that order,
    and frame numbers; the colour conversion of each clip; for images, `picture_arrays`; the transform's inputs of the
    given names; and the columns."""
    option = _option(transform)
    headers = [batch.sources[n].header for n in batch.reading_order]
    params = batch_params(transform, batch.encoded)
    return (
        list(np.argsort(batch.reading_order).astype(np.int32)),
        *((headers, [frames.astype(np.int32) for frames in batch.frames]) if kinds.videos else ()),
        *([[recolouring(color.chosen(option)) for color in batch.colors]] if kinds.recoloured else ()),
        *picture_arrays(batch.pictures, kinds.of_pictures),
        *input_arrays(batch.encoded, params, names),
    )


def _option(transform: Transform | Views) -> ColorOption:
    return next(iter(by_view(transform).values())).color


def _explain(error: RuntimeError, batches: Sequence[ChunkBatch], number: int) -> StreamvidError:
    """Turn an error of DALI into an error of a shard or clip.

    Args:
        error: the exception that DALI raised.
        batches: the pipeline's batches.
        number: the batch that was awaited. DALI does not say which one failed.
    """
    reason = reason_of(error)
    if "readers.webdataset" in str(error):
        sources = [source for batch in batches for source in batch.sources if source.data is None]
        cut = [source.path for source in sources if _size(source.path) < source.ranges[-1, 1]]
        paths = ", ".join(cut[:1] or dict.fromkeys(source.path for source in sources))
        kind = FileTooShort if cut else DatasetError
        what = f"DALI could not read {paths} ({reason}): check the dataset with streamvid verify"
        return kind(what, path=cut[0] if cut else None)
    keys = ", ".join(dict.fromkeys(key for batch in batches[number : number + DEPTH] for key in batch.keys))
    return VideoError(
        f"DALI could not decode one of the clips {keys} ({reason}): check them with `streamvid verify --decode`, "
        'or give engine="default"'
    )


def _size(path: str) -> int:
    """Bytes of a file; 0 if it is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
