"""The ways that `tools.bench.object_store` compares, each for a process of its own: `python -m … TASK` measures one."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

import streamvid as sv
from streamvid.storage.shard_cache import ShardCache
from tools.bench.store_data import BATCH, FPS, OF_PEERS, SAMPLING, convert, spans
from tools.bench.store_server import BUCKET
from tools.processes import peak_bytes, processes_below

_PASSES: Final = 8
"""Windows of each clip by range, where the loop takes its time for a step, and of the few long videos of `sparse`, one
of each of which come in less than a second."""


@dataclass(frozen=True)
class Task:
    """What a process measures.

    Attributes:
        way, workload: of these names.
        port: of the proxy.
        folder: where the data is locally.
        decode: to the tensor, not to the slice.
        limit: seconds after the first batch, after which none is asked for.
        pace: seconds that the loop takes for a step.
        freeze: such a loop keeps Python's garbage collector from what there is after the first batch.
    """

    way: str
    workload: str
    port: int
    folder: str
    decode: bool
    limit: float
    pace: float = 0.0
    freeze: bool = False

    @property
    def batch(self) -> int:
        """Clips of a batch."""
        return BATCH[self.workload]


def ours(task: Task) -> Iterator[int]:
    """Clips of each batch of a StreamLoader: its batches where `decode`, else what its reading stage gives."""
    local = task.way == "local"
    path = f"{task.folder}/{task.workload}/set" if local else f"s3://{BUCKET}/{task.workload}/set"
    sampling = SAMPLING[task.workload]
    with tempfile.TemporaryDirectory(dir=task.folder) as cache:
        if task.decode:
            options: dict[str, Any] = {} if local else {"fetch": task.way, "cache_dir": cache}
            transform = sv.Transform(resize=256, crop=224)
            with sv.StreamLoader(
                path, batch_size=task.batch, sampling=sampling, transform=transform, device="cpu", **options
            ) as loader:
                for batch in loader:
                    yield len(batch["key"])
            return
        with ShardCache(Path(cache), limit_bytes=64 << 30) as shards:
            dataset = sv.Dataset.open(path, cache=None if local else shards)
            kept = None if local or task.pace else shards
            by_range = task.way == "ranges"
            passes = _PASSES if task.pace or (by_range and task.workload == "sparse") else 1
            yield from slices(dataset, kept, sampling, task.batch, by_range=by_range, passes=passes)


def slices(
    dataset: sv.Dataset,
    cache: ShardCache | None,
    sampling: sv.Window,
    batch: int,
    *,
    by_range: bool = True,
    passes: int = 1,
) -> Iterator[int]:
    """Clips of each batch that the reading stage of a StreamLoader gives."""
    from streamvid.fetch.epoch_reader import read_epoch
    from streamvid.fetch.plan_samples import SampleSpec
    from streamvid.fetch.shard_access import ShardAccess
    from streamvid.plan.epoch_plan import Plan
    from streamvid.plan.mixture import SampleStream
    from streamvid.plan.permutation import Pool
    from streamvid.plan.sample_id import expand, rows_of
    from streamvid.plan.world import World

    rows = np.arange(len(dataset))
    ids = expand(rows, np.full(len(rows), passes))
    pools = (Pool(ids, dataset.clips.shard[rows_of(ids)]),)
    plan = Plan(SampleStream(pools, (1,), 0, "full", 16), batch, World(0, 1), "partial", False, None)
    access = ShardAccess(dataset, cache=cache, limit_bytes=64 << 30, by_range=by_range)
    spec, epoch = SampleSpec(sampling, 0, 0), plan.epoch(plan.start(0))
    for read in read_epoch(dataset, access, spec, epoch, threading.Event(), batch_size=batch):
        yield len(read.slices)


def by_objects(task: Task) -> Iterator[int]:
    """The client of `ranges` fetches whole videos, each an object, side by side and as far ahead as that reads, and
    keeps nothing: what the link and it can do."""
    from concurrent.futures import ThreadPoolExecutor

    from streamvid.storage.byte_range import ByteRange
    from streamvid.storage.range_reader import RangeReader

    videos = sorted(Path(task.folder, task.workload, "videos").iterdir())
    reader, base = RangeReader(), f"s3://{BUCKET}/{task.workload}/videos"
    wanted = [ByteRange(f"{base}/{path.name}", 0, path.stat().st_size) for path in videos]
    wanted *= OF_PEERS[task.workload]  # as many as `ranges` reads
    steps = deque(wanted[first : first + task.batch] for first in range(0, len(wanted), task.batch))
    ahead = max(2, (256 << 20) // (task.batch * wanted[0].end))
    with ThreadPoolExecutor(ahead) as threads:
        reading = deque[Future[Any]]()
        while steps or reading:
            while steps and len(reading) < ahead:
                reading.append(threads.submit(reader.read, steps.popleft()))
            yield len(reading.popleft().result())


def frames_of(data: bytes, task: Task) -> int:
    """Decode the frames that the sampling would take, if at all."""
    if task.decode:
        step = FPS if task.workload == "sparse" else FPS // 8
        with av.open(io.BytesIO(data), "r") as file:
            file.streams.video[0].thread_type = "AUTO"
            for n, frame in enumerate(file.decode(video=0)):
                if n % step == 0:
                    frame.to_ndarray(format="rgb24")
                if n >= 15 * step:
                    break
    return 1


def by_webdataset(task: Task) -> Iterator[int]:
    """Whole tars by a pipe of curl, as its documentation has it."""
    import webdataset as wds

    shards = [entry.name for entry in sv.Dataset.open(f"{task.folder}/{task.workload}/set").shards]
    base = f"http://127.0.0.1:{task.port}/{BUCKET}/{task.workload}/set/shards"
    urls = [f"pipe:curl -s -f {base}/{name}.tar" for name in shards]
    data = wds.WebDataset(urls, shardshuffle=False, empty_check=False, handler=wds.reraise_exception)
    count = 0
    for sample in wds.WebLoader(data, batch_size=None, num_workers=4):
        count += frames_of(sample["mp4"], task)
        if count == task.batch:
            yield count
            count = 0
    yield count


def by_lance(task: Task) -> Iterator[int]:
    """The clips' bytes as a column of blobs, of which each sample's byte ranges are read."""
    from concurrent.futures import ThreadPoolExecutor

    import lance

    options = {
        "aws_access_key_id": "svkey", "aws_secret_access_key": "svsecret", "allow_http": "true",
        "aws_endpoint": f"http://127.0.0.1:{task.port}", "aws_region": "us-east-1",
        "virtual_hosted_style_request": "false",
    }  # fmt: skip
    table = lance.dataset(f"s3://{BUCKET}/{task.workload}/lance", storage_options=options)
    wanted = spans(task.folder, task.workload)[: table.count_rows()]
    order = np.random.default_rng(0).permutation(len(wanted)).tolist()

    def read(blob: Any, row: int) -> int:
        for start, end in wanted[row]:
            blob.seek(start)
            assert len(blob.read(end - start)) == end - start
        return 1

    with ThreadPoolExecutor(16) as threads:
        for first in range(0, len(order), task.batch):
            rows = order[first : first + task.batch]
            yield sum(threads.map(read, table.take_blobs("video", indices=rows), rows))


def by_dali(task: Task) -> Iterator[int]:
    """DALI's own s3:// reader of files."""
    from nvidia.dali import fn, pipeline_def

    names = sorted(path.name for path in Path(task.folder, task.workload, "videos").iterdir())
    urls = [f"s3://{BUCKET}/{task.workload}/videos/{name}" for name in names]

    @pipeline_def(batch_size=task.batch, num_threads=4, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=urls, random_shuffle=False, read_ahead=True)
        return data

    made = pipeline()
    made.build()
    for first in range(0, len(urls), task.batch):
        (out,) = made.run()
        for n in range(min(task.batch, len(urls) - first)):
            frames_of(bytes(np.array(out[n])), task)
        yield min(task.batch, len(urls) - first)


def by_litdata(task: Task) -> Iterator[int]:
    """litdata's own chunks, of the same files."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # else it speaks https alone
    data = litdata.StreamingDataset(
        f"s3://{BUCKET}/{task.workload}/litdata",
        cache_dir=tempfile.mkdtemp(dir=task.folder),
        shuffle=True,
        storage_options={
            "endpoint_url": f"http://127.0.0.1:{task.port}", "aws_access_key_id": "svkey",
            "aws_secret_access_key": "svsecret",
        },
    )  # fmt: skip
    # With more workers, litdata 0.2.76 reads chunks of dense ones that another is still fetching (struct.error).
    workers = 4 if task.workload == "sparse" else 1
    for batch in litdata.StreamingDataLoader(data, batch_size=task.batch, num_workers=workers, collate_fn=list):
        yield sum(frames_of(one["video"], task) for one in batch)


def by_mosaicml(task: Task) -> Iterator[int]:
    """mosaicml-streaming's own shards, of the same files."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{task.port}"
    data = StreamingDataset(
        remote=f"s3://{BUCKET}/{task.workload}/mosaicml",
        local=tempfile.mkdtemp(dir=task.folder),
        shuffle=True,
        batch_size=task.batch,
    )
    for stream in data.streams:
        stream._downloader.clean_up()  # else workers share its connection, and one waits 60 s for another's answer
    for batch in DataLoader(data, batch_size=task.batch, num_workers=4, collate_fn=list):
        yield sum(frames_of(one["video"], task) for one in batch)


OURS: Final = ("local", "ranges", "shards", "objects")
PEERS: Final[dict[str, Callable[[Task], Iterator[int]]]] = {
    "dali": by_dali,
    "webdataset": by_webdataset,
    "litdata": by_litdata,
    "mosaicml": by_mosaicml,
    "lance": by_lance,
}
WAYS: Final = {**dict.fromkeys(OURS, ours), "objects": by_objects, **PEERS}
"""`local`: a StreamLoader on local files; `ranges` and `shards`: from the bucket."""


def run_here(task: Task) -> dict[str, float]:
    """Measure one way, in this process."""
    begin, times, sizes = time.perf_counter(), [], []
    batches = WAYS[task.way](task)
    for count in batches:
        sizes.append(count)
        times.append(time.perf_counter() - begin)
        if times[-1] - times[0] > task.limit:
            break
        if task.freeze and len(times) == 1:
            gc.freeze()
        time.sleep(task.pace)
    memory = sum(map(peak_bytes, [os.getpid(), *processes_below(os.getpid())]))  # each at most
    batches.close()  # type: ignore[attr-defined]
    del batches
    gc.collect()  # ends the workers of others, so that their time counts
    clips, steps = sum(sizes), np.diff(times) if len(times) > 1 else np.zeros(1)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "clips": clips,
        "seconds": times[-1],
        "first": times[0],
        "steady": (clips - sizes[0]) / max(times[-1] - times[0], 1e-9),
        "p50": float(np.median(steps)),
        "p99": float(np.quantile(steps, 0.99)),
        "cpu": sum(one.ru_utime + one.ru_stime for one in used),
        "memory": memory / 2**20,
    }


def main() -> None:
    """A measurement, or with `--convert FOLDER WORKLOAD WAY` the data of a peer."""
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        print(json.dumps(run_here(Task(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
