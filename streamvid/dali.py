"""`sv.dali`: streamvid for authors of DALI pipelines, for training and for serving models. See docs/dali.md.

`pipeline` and `iterator` return objects of DALI's own classes. A training run with `StreamLoader(engine="dali")` uses
the same graph, built anew for every few steps.
"""

from __future__ import annotations

import resource
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, Literal

from streamvid.checks import boolean, check, integer, one_of, suggest_keywords
from streamvid.dali_engine.chunk_pipeline import ClipKinds, Inputs, clip_inputs, clip_nodes, graph_inputs
from streamvid.dali_engine.engine import chunk_batch, source_in_shard
from streamvid.dali_engine.pictures import are_images
from streamvid.dali_engine.reader import write_indexes
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import BATCH_COLUMNS, row_color
from streamvid.fetch.plan_samples import SamplePlan, plan_samples
from streamvid.forks import abandon_pipeline, in_children
from streamvid.loader.sample_set import SampleSet
from streamvid.loader.stream_loader import StreamLoader
from streamvid.plan.world import find_cores, find_device
from streamvid.storage.range_reader import RangeReader
from streamvid.transform.spec import by_view
from streamvid.transform.triton import export as export

if TYPE_CHECKING:
    from nvidia.dali import Pipeline
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

Place = Literal["gpu", "cpu"]
_PLACES: Final[tuple[Place, ...]] = ("gpu", "cpu")
_NOT_OF_GRAPHS: Final = {
    "columns": "its node `clip` has the rows by which a Dataset's columns are found",
    "batch_fn": "change what its iterator gives, or add operators to its nodes",
    "engine": "it is DALI's",
}
"""Options of `StreamLoader` that change finished batches, and what to do instead."""
_SPARE_FILES: Final = 100
"""File descriptors left to the process beside the graph's files."""


class _Order(StreamLoader):
    """Which samples a graph outputs, and in which order. Outputs may differ in size."""

    _one_size = False


def pipeline(
    dataset: Any,
    *,
    batch_size: int,
    epoch: int = 0,
    state: Mapping[str, Any] | None = None,
    device: str | int | None = None,
    num_threads: int | None = None,
    reader_name: str = "clips",
    pad_last_batch: bool = False,
    outputs: Place | Mapping[str, Place] | None = None,
    exec_dynamic: bool = True,
    prefetch_queue_depth: int = 2,
    **options: Any,
) -> Pipeline:
    """A DALI pipeline over this rank's part of an epoch: `fn.readers.webdataset` → `fn.decoders.video`, of images
    `fn.decoders.image` → transform.

    Its samples equal those of the default engine in that epoch: clips, order, frames, masks and random numbers. Like
    all readers of DALI, its reader repeats that order without end; another epoch needs another pipeline.

    The pipeline is not built yet: within `with pipe:`, operators can be added to `pipe.nodes`, and other outputs set.
    The nodes, by name, are the transform's views (`video`, or the names of several views) and the columns `mask`,
    `pts`, `label`, `clip`, `valid` and `epoch` of `streamvid.loader.batch.Batch`, without the batch dimension. Views
    are on the device, columns on the CPU. Views may differ in size from sample to sample, for operators to resize.
    `pipe.names` has the names of the initial outputs, `pipe.reader_name` that of the reader.

    Args:
        dataset, batch_size, device, num_threads: as in `StreamLoader`. Shards must be local files.
        epoch: number of the epoch, from 0.
        state: a loader's `state_dict()`: the pipeline has the samples that are left of that epoch.
        reader_name, pad_last_batch: arguments of the reader, for DALI's iterators.
        outputs: where views and columns are handed out: "gpu" (default with a GPU) or "cpu", for all or by name.
        exec_dynamic: use DALI's dynamic executor, which copying outputs from the GPU to the CPU needs.
        prefetch_queue_depth: batches that DALI works on at the same time.
        options: other options of `StreamLoader`: sampling, transform, seed, shuffle, rank, world_size ….

    Raises:
        InputError: an option is invalid, DALI does not decode some of the clips, or there are more shards than this
            process may have open.
        DatasetError: the dataset is missing or damaged.
    """
    from nvidia.dali import Pipeline

    device_id = find_device(device)
    num_threads = find_cores() if num_threads is None else integer(num_threads, "num_threads")
    integer(prefetch_queue_depth, "prefetch_queue_depth")
    boolean(pad_last_batch, "pad_last_batch")
    boolean(exec_dynamic, "exec_dynamic")
    for name in _NOT_OF_GRAPHS.keys() & options.keys():
        raise InputError(f"sv.dali.pipeline takes no {name}: {_NOT_OF_GRAPHS[name]}")
    check(isinstance(reader_name, str) and bool(reader_name), reader_name, "reader_name", "a name")
    with _Order(
        dataset, batch_size=batch_size, device=device, num_threads=num_threads, engine="dali", **options
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        else:
            loader.set_epoch(epoch)
        samples, left = loader.remaining()
    if not samples.dataset.is_local:
        raise InputError('sv.dali.pipeline reads local shards: StreamLoader(engine="dali") takes them from a bucket')
    spec, views = samples.clip_transform(), by_view(samples.transform)
    if any(view.dtype == "bfloat16" for view in views.values()):
        raise InputError("DALI writes no bfloat16: give Transform(dtype='float32'), and convert in PyTorch")
    names = [*views, *BATCH_COLUMNS]
    places = _places(outputs, names, on_gpu=device_id is not None)
    if not exec_dynamic and device_id is not None and any(places[view] == "cpu" for view in views):
        raise InputError("outputs of the GPU come back to the CPU by the dynamic executor alone: exec_dynamic=True")
    steps = map(left.step, range(left.done, left.steps))
    plans = [plan for step in steps for plan in plan_samples(samples.dataset, step, samples.spec) if plan.valid]
    if not plans:
        raise InputError("this rank has no samples in the rest of the epoch")
    made = Pipeline(
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=prefetch_queue_depth,
        exec_dynamic=exec_dynamic,
    )
    # Not a TemporaryDirectory, which every forked child removes when it ends.
    folder = mkdtemp(prefix="streamvid-dali-")
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    sources = [source_in_shard(samples.dataset, plan, samples.dataset.shard_path) for plan in plans]
    files = write_indexes(sources, Path(folder), spare=0)
    _check_open_files(len(files.paths))
    order = _reading_order(len(plans), batch_size, padded=pad_last_batch)
    colors = {row_color(samples.dataset.clips, clip) for clip in {plan.clip for plan in plans}}
    images = are_images(samples.dataset.clips, [plan.clip for plan in plans])
    kinds = ClipKinds.of(images.tolist(), colors, samples.transform, on_gpu=device_id is not None)
    feed = _feed(samples, plans, graph_inputs(spec, on_gpu=device_id is not None), order, kinds)
    with made:
        shown, columns = clip_nodes(files, feed, spec, kinds, reader_name=reader_name, pad_last_batch=pad_last_batch)
        made.nodes = dict(zip(names, [*shown, *columns], strict=True))
        made.set_outputs(
            *(node.cpu() if places[name] == "cpu" else node.gpu() for name, node in made.nodes.items())
            if device_id is not None
            else made.nodes.values()
        )
    made.names, made.reader_name = names, reader_name
    return in_children(made, abandon_pipeline)


@suggest_keywords
def iterator(
    pipelines: Pipeline | Sequence[Pipeline],
    names: Sequence[str] | None = None,
    *,
    size: int = -1,
    reader_name: str | None = None,
    last_batch_policy: LastBatchPolicy | Literal["fill", "drop", "partial"] | None = None,
    last_batch_padded: bool = False,
    auto_reset: bool | Literal["yes", "no"] = False,
    prepare_first_batch: bool = True,
) -> DALIGenericIterator:
    """DALI's `DALIGenericIterator` over pipelines of `pipeline`, one for each GPU of this process.

    Args:
        pipelines: built or not. Their readers say how long an epoch is, and whether its last batch is padded.
        names: names of the outputs; default: `pipe.names` of the first pipeline.
        size, reader_name, last_batch_policy, last_batch_padded, auto_reset, prepare_first_batch: as of
            DALIGenericIterator. With neither `size` nor `reader_name`, the pipelines' own readers count. Policies may
            be named as in `StreamLoader(last_batch)`; default: FILL, as there.

    Raises:
        InputError: these are no pipelines.
    """
    from nvidia.dali import Pipeline
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipelines = list(pipelines) if isinstance(pipelines, list | tuple) else [pipelines]
    if not pipelines or not all(isinstance(item, Pipeline) for item in pipelines):
        raise InputError("iterator takes DALI pipelines, one for each GPU: iterator(dali.pipeline(dataset, …))")
    if isinstance(last_batch_policy, str):
        one_of(last_batch_policy, ("fill", "drop", "partial"), "last_batch_policy")
        last_batch_policy = LastBatchPolicy[last_batch_policy.upper()]
    if reader_name is None and size < 0:
        reader_name = pipelines[0].reader_name
    return DALIGenericIterator(
        pipelines,
        list(pipelines[0].names if names is None else names),
        size=size,
        reader_name=reader_name,
        auto_reset=auto_reset,
        last_batch_padded=last_batch_padded,
        last_batch_policy=LastBatchPolicy.FILL if last_batch_policy is None else last_batch_policy,
        prepare_first_batch=prepare_first_batch,
    )


def _places(outputs: Place | Mapping[str, Place] | None, names: Sequence[str], *, on_gpu: bool) -> dict[str, Place]:
    """The device on which each output is returned, "cpu" or "gpu", by name."""
    default: Place = "gpu" if on_gpu else "cpu"
    given = outputs if isinstance(outputs, Mapping) else dict.fromkeys(names, outputs or default)
    for name, place in given.items():
        one_of(name, tuple(names), "a name in outputs")
        one_of(place, _PLACES, f"the place of {name} in outputs")
        if place == "gpu" and not on_gpu:
            raise InputError(f"without a GPU, {name} cannot be an output there: leave it out of outputs")
    return {name: given.get(name, default) for name in names}


def _check_open_files(count: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if count > most - _SPARE_FILES:
        raise InputError(
            f"the epoch goes {count:,} times from one shard to another, each an open file of DALI's reader, and this "
            f"process may open {most:,}: raise `ulimit -n`, give shuffle=False, or take StreamLoader(engine='dali')"
        )


def _reading_order(count: int, batch_size: int, *, padded: bool) -> Iterator[list[int]]:
    """Numbers of the samples in each batch of DALI's reader, without end."""
    first = 0
    while True:
        if padded:
            yield [min(first + n, count - 1) for n in range(batch_size)]
            first = 0 if first + batch_size >= count else first + batch_size
        else:
            yield [(first + n) % count for n in range(batch_size)]
            first = (first + batch_size) % count


def _feed(
    samples: SampleSet,
    plans: Sequence[SamplePlan],
    names: Sequence[str],
    order: Iterator[list[int]],
    kinds: ClipKinds,
) -> Iterator[Inputs]:
    """The values of the external source for each batch."""
    dataset = samples.dataset
    reader = RangeReader(like=dataset.reader)
    for numbers in order:
        planned = [plans[n] for n in numbers]
        batch = chunk_batch(dataset, planned, samples.spec, reader, dataset.shard_path, by_shard=False)
        yield clip_inputs(batch, samples.transform, names, kinds)
