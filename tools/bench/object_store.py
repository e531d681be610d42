"""Streaming from a bucket far away: byte ranges, whole shards, local files, and other libraries' readers.

    python -m tools.bench.object_store [--clips 400 24] [--latency 0 50 200] [--ways ranges shards …] [--decode]

It starts a Ceph RGW (tools/s3/up.sh) and, in front of it, a proxy that adds the latency and limits each connection
(tools/bench/slow_link.c, compiled with cc). Two workloads: dense, 16 frames at 8 frames per second out of clips of 10 s
and some 1 MB; sparse, 16 frames a second apart out of videos of 300 s and some 40 MB. Each way runs in a process of its
own, with empty caches, to the slice (`--decode`: to the tensor), once through all clips in batches of 8. Requests and
bytes are those that the proxy sees. What is not installed is left out.

Others' readers fetch whole samples: `webdataset` by a pipe of curl, `litdata` and `mosaicml-streaming` from their own
formats, of the same files; `lance` takes the bytes of the same packets out of a column of blobs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

import streamvid as sv
from streamvid.packing.pack import pack
from tests.support.s3_server import S3Server

ROOT: Final = Path(__file__).parents[2]
BATCH: Final = 8
BUCKET: Final = "bench"
SAMPLING: Final = {
    "dense": sv.Window(frames=16, fps=8),
    "sparse": sv.Window(frames=16, fps=1),
}
SECONDS: Final = {"dense": 10, "sparse": 300}
FPS: Final = 25


@dataclass(frozen=True)
class Task:
    """What a child process measures."""

    way: str
    workload: str
    port: int
    folder: str
    decode: bool


def make_video(path: Path, seconds: int, seed: int) -> None:
    """480 x 272 at 1.1 MBit/s, a key frame every two seconds: moving stripes and noise."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 40, (4, 272, 480), dtype=np.uint8)
    ramp = (np.arange(480, dtype=np.int64) // 3)[None, :] + (np.arange(272, dtype=np.int64) // 5)[:, None]
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 480, 272, "yuv420p", 1_100_000
        stream.options = {"preset": "ultrafast", "g": str(2 * FPS), "keyint_min": str(2 * FPS), "sc_threshold": "0"}
        for n in range(seconds * FPS):
            luma = ((ramp + 2 * n) % 200).astype(np.uint8) + noise[n % 4]
            frame = av.VideoFrame.from_ndarray(np.repeat(luma[:, :, None], 3, axis=2), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def make(folder: Path, workload: str, clips: int) -> Path:
    """A dataset of so many clips, copies of a few different ones."""
    videos = folder / workload / "videos"
    videos.mkdir(parents=True)
    for n in range(2 if workload == "sparse" else 8):
        make_video(videos / f"{n:05}.mp4", SECONDS[workload], n)
    made = sorted(videos.iterdir())
    for n in range(len(made), clips):
        os.link(made[n % len(made)], videos / f"{n:05}.mp4")
    pack([videos], folder / workload / "set", shard_size=64 << 20, progress=False)
    return folder / workload


@contextlib.contextmanager
def ceph(folder: Path, port: int) -> Iterator[S3Server]:
    """A Ceph RGW of one node."""
    environment = {**os.environ, "STREAMVID_S3_PORT": str(port)}
    subprocess.run([ROOT / "tools/s3/up.sh", folder], env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        subprocess.run([ROOT / "tools/s3/down.sh", folder], check=False)


@contextlib.contextmanager
def slow_link(program: Path, port: int, server: int, latency: float, rate: float) -> Iterator[Callable[[], list[int]]]:
    """The proxy; the function says how many connections, requests and bytes it has had."""
    command = [program, str(port), str(server), str(latency), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        time.sleep(0.3)

        def counts() -> list[int]:
            proxy.send_signal(signal.SIGUSR1)
            return [int(word) for word in proxy.stdout.readline().split()]  # type: ignore[union-attr]

        try:
            yield counts
        finally:
            proxy.terminate()


def ours(task: Task) -> Iterator[int]:
    """Clips of each batch of a StreamLoader: its batches where `decode`, else what its reading stage gives."""
    from functools import partial

    from streamvid.fetch.epoch_reader import read_epoch
    from streamvid.fetch.plan_samples import SampleSpec
    from streamvid.fetch.shard_access import ShardAccess
    from streamvid.plan.epoch_plan import Plan
    from streamvid.plan.mixture import SampleStream
    from streamvid.plan.permutation import Pool
    from streamvid.plan.world import World
    from streamvid.storage.shard_cache import ShardCache

    local = task.way == "local"
    path = f"{task.folder}/{task.workload}/set" if local else f"s3://{BUCKET}/{task.workload}/set"
    sampling: Any = SAMPLING[task.workload]
    with tempfile.TemporaryDirectory(dir=task.folder) as cache:
        if task.decode:
            options: dict[str, Any] = {} if local else {"fetch": task.way, "cache_dir": cache}
            transform = sv.Transform(resize=256, crop=224)
            with sv.StreamLoader(
                path, batch_size=BATCH, sampling=sampling, transform=transform, device="cpu", **options
            ) as loader:
                for batch in loader:
                    yield len(batch["key"])
            return
        with ShardCache(Path(cache), limit_bytes=64 << 30) as shards:
            dataset = sv.Dataset.open(path, cache=None if local else shards)
            ids = np.arange(len(dataset))
            pools = (Pool(ids, dataset.clips.shard[ids]),)
            plan = Plan(SampleStream(pools, (1,), 0, "full", 16), BATCH, World(0, 1), "partial", False, None)
            access = ShardAccess(
                dataset, cache=None if local else shards, limit_bytes=64 << 30, by_range=task.way == "ranges"
            )
            read = partial(read_epoch, dataset, access, SampleSpec(sampling, 0, 0))
            for batch in read(plan.epoch(plan.start(0)), threading.Event(), batch_size=BATCH):
                yield len(batch.slices)


def frames_of(data: bytes, task: Task) -> int:
    """Decode the frames that the sampling would take, if at all."""
    if task.decode:
        step = FPS if task.workload == "sparse" else FPS // 8
        with av.open(io.BytesIO(data)) as file:
            file.streams.video[0].thread_type = "AUTO"
            for n, frame in enumerate(file.decode(video=0)):
                if n % step == 0:
                    frame.to_ndarray(format="rgb24")
                if n >= 15 * step:
                    break
    return 1


def by_webdataset(task: Task) -> Iterator[int]:
    """Whole tars by a pipe of curl, as its documentation has it; the bucket is public for that."""
    import webdataset as wds

    shards = [entry.name for entry in sv.Dataset.open(f"{task.folder}/{task.workload}/set").shards]
    base = f"http://127.0.0.1:{task.port}/{BUCKET}/{task.workload}/set/shards"
    urls = [f"pipe:curl -s -f {base}/{name}.tar" for name in shards]
    data = wds.WebDataset(urls, shardshuffle=False, empty_check=False, handler=wds.reraise_exception)
    loader = wds.WebLoader(data, batch_size=None, num_workers=4)
    count = 0
    for sample in loader:
        count += frames_of(sample["mp4"], task)
        if count == BATCH:
            yield count
            count = 0
    yield count


def by_lance(task: Task) -> Iterator[int]:
    """The clips' bytes as a column of blobs, of which each sample's byte ranges are read."""
    import lance

    options = {
        "aws_access_key_id": "svkey", "aws_secret_access_key": "svsecret", "allow_http": "true",
        "aws_endpoint": f"http://127.0.0.1:{task.port}", "aws_region": "us-east-1",
        "virtual_hosted_style_request": "false",
    }  # fmt: skip
    table = lance.dataset(f"s3://{BUCKET}/{task.workload}/lance", storage_options=options)
    wanted = spans(task)
    order = np.random.default_rng(0).permutation(len(wanted)).tolist()
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        blobs = table.take_blobs("video", indices=rows)
        for row, blob in zip(rows, blobs, strict=True):
            for start, end in wanted[row]:
                blob.seek(start)
                assert len(blob.read(end - start)) == end - start
        yield len(rows)


def spans(task: Task) -> list[list[tuple[int, int]]]:
    """Of each clip, the byte ranges of one sample, from the local dataset."""
    from streamvid.fetch.plan_samples import SampleSpec, plan_samples
    from streamvid.plan.epoch import Step

    dataset = sv.Dataset.open(f"{task.folder}/{task.workload}/set")
    ids = np.arange(len(dataset))
    step = Step(ids, np.zeros_like(ids), np.ones(len(ids), dtype=bool))
    samples = plan_samples(dataset, step, SampleSpec(SAMPLING[task.workload], 0, 0))  # type: ignore[arg-type]
    return [[(start, end) for start, end in sample.spans.tolist()] for sample in samples]


def by_dali(task: Task) -> Iterator[int]:
    """DALI's own s3:// reader of files."""
    from nvidia.dali import fn, pipeline_def

    names = sorted(path.name for path in Path(task.folder, task.workload, "videos").iterdir())
    urls = [f"s3://{BUCKET}/{task.workload}/videos/{name}" for name in names]

    @pipeline_def(batch_size=BATCH, num_threads=4, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=urls, random_shuffle=False, read_ahead=True)
        return data

    made = pipeline()
    made.build()
    for first in range(0, len(urls), BATCH):
        (out,) = made.run()
        for n in range(min(BATCH, len(urls) - first)):
            frames_of(bytes(np.array(out[n])), task)
        yield min(BATCH, len(urls) - first)


def by_litdata(task: Task) -> Iterator[int]:
    """litdata's own chunks, of the same files."""
    import litdata

    data = litdata.StreamingDataset(
        f"s3://{BUCKET}/{task.workload}/litdata",
        cache_dir=tempfile.mkdtemp(dir=task.folder),
        shuffle=True,
        storage_options={
            "endpoint_url": f"http://127.0.0.1:{task.port}", "aws_access_key_id": "svkey",
            "aws_secret_access_key": "svsecret",
        },
    )  # fmt: skip
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=4, collate_fn=list)
    for batch in loader:
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
        batch_size=BATCH,
    )
    for batch in DataLoader(data, batch_size=BATCH, num_workers=4, collate_fn=list):
        yield sum(frames_of(one["video"], task) for one in batch)


WAYS: Final[dict[str, Callable[[Task], Iterator[int]]]] = {
    "local": ours,
    "ranges": ours,
    "shards": ours,
    "dali": by_dali,
    "webdataset": by_webdataset,
    "litdata": by_litdata,
    "mosaicml": by_mosaicml,
    "lance": by_lance,
}


def convert(folder: Path, workload: str, way: str) -> None:
    """The same files in another library's format, beside the dataset."""
    videos = sorted((folder / workload / "videos").iterdir())
    target = folder / workload / way
    if way == "litdata":
        import litdata

        litdata.optimize(
            fn=_as_sample,
            inputs=[str(path) for path in videos],
            output_dir=str(target),
            chunk_bytes="64MB",
            num_workers=1,
        )
    elif way == "mosaicml":
        from streaming import MDSWriter

        with MDSWriter(out=str(target), columns={"video": "bytes"}, size_limit=64 << 20) as writer:
            for path in videos:
                writer.write({"video": path.read_bytes()})
    elif way == "lance":
        import lance
        import pyarrow as pa

        field = pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        schema = pa.schema([field])
        batches = (
            pa.record_batch([pa.array([path.read_bytes()], pa.large_binary())], schema=schema) for path in videos
        )
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(target))


def _as_sample(path: str) -> dict[str, bytes]:
    return {"video": Path(path).read_bytes()}


def run_here(task: Task) -> dict[str, float]:
    """Measure one way, in this process."""
    begin, times, sizes, clips = time.perf_counter(), [], [], 0
    for count in WAYS[task.way](task):
        clips += count
        sizes.append(count)
        times.append(time.perf_counter() - begin)
    steps = np.diff(times) if len(times) > 1 else np.zeros(1)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    # Not ru_maxrss, which a process inherits from the one that has started it.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {
        "clips": clips,
        "seconds": times[-1],
        "first": times[0],
        "steady": (clips - sizes[0]) / max(times[-1] - times[0], 1e-9),
        "p50": float(np.median(steps)),
        "p99": float(np.quantile(steps, 0.99)),
        "cpu": sum(one.ru_utime + one.ru_stime for one in used),
        "memory": int(peak.split()[1]) / 1024,
    }


def measure(task: Task, environment: dict[str, str]) -> dict[str, float] | str:
    """The same in a child; the last line of its error if it fails."""
    command = [sys.executable, "-m", "tools.bench.object_store", "--task", json.dumps(vars(task))]
    try:
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=600
        )
    except subprocess.TimeoutExpired:
        return "more than 600 s"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return (done.stderr.strip().splitlines() or ["?"])[-1][:150]
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def public(fs: Any) -> None:
    """Let anybody read the bucket: webdataset's pipes sign nothing."""
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    fs.call_s3(
        "put_bucket_policy", Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, nargs=2, default=(400, 24), help="dense and sparse ones")
    parser.add_argument("--latency", type=float, nargs="+", default=(0.0, 50.0, 200.0), help="of a request, in ms")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s of a connection")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--workloads", nargs="+", default=list(SAMPLING), choices=SAMPLING)
    parser.add_argument("--decode", action="store_true", help="measure to the tensor")
    parser.add_argument("--port", type=int, default=17490)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(run_here(Task(**json.loads(options.task)))))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sv-store-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        program = folder / "slow_link"
        subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("slow_link.c")], check=True)
        server = stack.enter_context(ceph(folder / "ceph", options.port))
        fs = server.filesystem()
        fs.call_s3("create_bucket", Bucket=BUCKET)
        public(fs)
        unusable: dict[tuple[str, str], str] = {}
        for workload, clips in zip(SAMPLING, options.clips, strict=True):
            if workload in options.workloads:
                made = make(folder, workload, clips)
                for way in options.ways:
                    try:
                        convert(folder, workload, way)
                    except Exception as error:
                        unusable[workload, way] = f"{type(error).__name__}: {error}"[:150]
                for part in made.iterdir():
                    fs.put(str(part), f"{BUCKET}/{workload}/{part.name}", recursive=True)
        print(f"{'':8}{'':12}{'ms':>5}  clips/s  steady   MB/s  first  KB/clip  req/clip    P50    P99  memory   CPU")
        for workload in options.workloads:
            for latency in options.latency:
                for way in options.ways:
                    port = options.port + 1
                    with slow_link(program, port, options.port, latency, options.rate) as counts:
                        environment = S3Server(f"http://127.0.0.1:{port}").environment()
                        task = Task(way, workload, port, str(folder), options.decode)
                        found = unusable.get((workload, way)) or measure(task, environment)
                        _, requests, sent = counts()
                    head = f"{workload:8}{way:12}{latency:5.0f}  "
                    if isinstance(found, str):
                        print(f"{head}{found}", flush=True)
                        continue
                    clips = found["clips"]
                    print(
                        f"{head}{clips / found['seconds']:7.1f} {found['steady']:7.1f} "
                        f"{sent / found['seconds'] / 1e6:6.0f} {found['first']:6.2f} "
                        f"{sent / clips / 1e3:8.0f} {requests / clips:9.2f} "
                        f"{found['p50']:6.3f} {found['p99']:6.3f} {found['memory']:7.0f} {found['cpu']:5.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
