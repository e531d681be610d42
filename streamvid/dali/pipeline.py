"""The DALI pipeline of a chunk of the plan: `fn.readers.webdataset` → `fn.decoders.video` → the transform's graph →
`DALIGenericIterator`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from streamvid.arrays import Int64
from streamvid.dali.reader import VideoSource, write_indexes
from streamvid.errors import DatasetError, StreamvidError, VideoError
from streamvid.fetch.encoded_batch import BATCH_COLUMNS, EncodedBatch
from streamvid.transform.dali_graph import build_graph, input_names
from streamvid.transform.dali_pipeline import check_dali_part
from streamvid.transform.params import PARAM_TYPES, batch_params
from streamvid.transform.spec import Transform, Views, by_view


@dataclass(frozen=True)
class ChunkBatch:
    """One batch of a chunk.

    Attributes:
        sources: what the reader reads, one for each sample.
        frames: per sample int64 [wanted], which frames of its video are decoded, rising.
        encoded: all but the packets; its `slices` are empty.
        keys: the clips' keys, for error messages.
    """

    sources: list[VideoSource]
    frames: list[Int64]
    encoded: EncodedBatch
    keys: list[str]


class ChunkPipeline:
    """A DALI pipeline over some batches of as many samples each; an iterator over their tensors.

    Args:
        batches: at least one. Reading and decoding of the first begins at once.
        transform: what is done to the frames.
        device_id: the GPU's number, or None for the CPU.
        num_threads: CPU threads.
        rotates, has_blanks: as in `streamvid.transform.dali_graph.build_graph`.
    """

    def __init__(
        self,
        batches: Sequence[ChunkBatch],
        transform: Transform | Views,
        *,
        device_id: int | None,
        num_threads: int,
        rotates: bool,
        has_blanks: bool,
    ) -> None:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        self._batches, self._transform, self._views = batches, transform, by_view(transform)
        self._iterator: Any = None
        self._resources = ExitStack()
        folder = self._resources.enter_context(TemporaryDirectory(prefix="streamvid-dali-"))
        files = write_indexes([source for batch in batches for source in batch.sources], Path(folder))
        names = input_names(transform, crop_resized=False, rotates=rotates, has_blanks=has_blanks)
        kinds = [
            (np.uint8, 1),
            (np.int32, 1),
            *(PARAM_TYPES[name.rpartition(".")[2]] for name in names),
            *BATCH_COLUMNS.values(),
        ]
        on_gpu = device_id is not None

        @pipeline_def(
            batch_size=len(batches[0].sources), num_threads=num_threads, device_id=device_id, prefetch_queue_depth=2
        )
        def chunk() -> Any:
            # Without mmap: a shard that shrinks while it is read raises instead of killing the process with SIGBUS.
            read = fn.readers.webdataset(
                paths=files.paths,
                index_paths=files.index_paths,
                ext=files.extensions,
                missing_component_behavior="empty",
                dont_use_mmap=True,
            )
            ranges = read if isinstance(read, list | tuple) else [read]
            header, frames, *rest = fn.external_source(
                source=self._feed(names),
                num_outputs=len(kinds),
                batch=True,
                dtype=[types.to_dali_type(np.dtype(dtype).name) for dtype, _ in kinds],
                ndim=[ndim for _, ndim in kinds],
            )
            video = fn.decoders.video(
                fn.cat(header, *ranges, axis=0), frames=frames, device="mixed" if on_gpu else "cpu"
            )
            given = dict(zip(names, rest, strict=False))
            shown = build_graph(transform, [video], given, crop_resized=False, rotates=rotates, has_blanks=has_blanks)
            beside = rest[len(names) :]
            return *shown, *([node.gpu() for node in beside] if on_gpu else beside)

        try:
            pipeline = chunk()
            pipeline.build()
            # The plan decides how the last batch is made; here every batch is handed on as it comes.
            self._iterator = DALIGenericIterator(
                [pipeline],
                [*self._views, *BATCH_COLUMNS],
                auto_reset=False,
                last_batch_policy=LastBatchPolicy.PARTIAL,
            )
        except RuntimeError as error:
            self.close()
            raise _explained(error, batches[:1]) from error
        except BaseException:
            self.close()
            raise

    def _feed(self, names: Sequence[str]) -> Iterator[tuple[list[Any], ...]]:
        """What the external source gives for each batch: headers, frame numbers, the transform's inputs, the rest."""
        for batch in self._batches:
            encoded, params = batch.encoded, batch_params(self._transform, batch.encoded)
            yield (
                [source.header for source in batch.sources],
                [frames.astype(np.int32) for frames in batch.frames],
                *([np.asarray(value) for value in params[name]] for name in names),
                *([np.asarray(value) for value in column] for column in encoded.columns().values()),
            )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, batch in enumerate(self._batches):
            try:
                (tensors,) = next(self._iterator)
            except RuntimeError as error:
                raise _explained(error, self._batches[number : number + 3]) from error
            # On a GPU looking would wait for all that the training loop has queued there.
            if not tensors["clip"].is_cuda and tensors["clip"].tolist() != batch.encoded.clips.tolist():
                raise AssertionError("DALI handed out a batch out of turn")
            for view, one in self._views.items():
                if one.dali is not None:
                    check_dali_part(view, one, tensors)
            yield tensors

    def close(self) -> None:
        """Wait for what the pipeline is doing, and free it."""
        self._iterator = None
        self._resources.close()


def _explained(error: RuntimeError, batches: Sequence[ChunkBatch]) -> StreamvidError:
    """What a failure of DALI means for the dataset.

    Args:
        error: as DALI raised it.
        batches: those that were in the pipeline; DALI does not say which one failed.
    """
    reason = " ".join(str(error).split())
    if "readers.webdataset" in reason:
        paths = ", ".join(dict.fromkeys(source.path for batch in batches for source in batch.sources))
        return DatasetError(
            f"one of the shards {paths} cannot be read ({reason[:300]}): check it with `streamvid verify`, "
            "then copy it again"
        )
    keys = ", ".join(dict.fromkeys(key for batch in batches for key in batch.keys))
    return VideoError(
        f"DALI could not decode one of the clips {keys} ({reason[:300]}): check them with `streamvid verify --decode`, "
        'or give engine="default"'
    )
