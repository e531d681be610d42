"""The clips of `tools.bench.object_store`, as a dataset and in the formats of other libraries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import av
import numpy as np

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.sampling.windows import Window

SAMPLING: Final[dict[str, Window]] = {"dense": sv.Window(frames=16, fps=8), "sparse": sv.Window(frames=16, fps=1)}
SECONDS: Final = {"dense": 10, "sparse": 300}
BATCH: Final = {"dense": 8, "sparse": 2}
FPS: Final = 25
_WIDTH: Final = 480
_HEIGHT: Final = 272
_MADE: Final = {"dense": 8, "sparse": 2}
OF_PEERS: Final = {"dense": 4, "sparse": 3}
"""One in so many clips is in the others' formats, who do not come further: Ceph's memory takes 8 GiB."""
_CHUNK: Final = 64 << 20


def make_video(path: Path, seconds: int, seed: int) -> None:
    """480 x 272 at 1.1 MBit/s, a key frame every two seconds: moving stripes and noise."""
    noise = np.random.default_rng(seed).integers(0, 40, (4, _HEIGHT, _WIDTH), dtype=np.uint8)
    ramp = (np.arange(_WIDTH, dtype=np.int64) // 3)[None, :] + (np.arange(_HEIGHT, dtype=np.int64) // 5)[:, None]
    picture = np.full((_HEIGHT * 3 // 2, _WIDTH), 128, dtype=np.uint8)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = _WIDTH, _HEIGHT, "yuv420p", 1_100_000
        stream.options = {"preset": "ultrafast", "g": str(2 * FPS), "keyint_min": str(2 * FPS), "sc_threshold": "0"}
        for n in range(seconds * FPS):
            picture[:_HEIGHT] = ((ramp + 2 * n) % 200).astype(np.uint8) + noise[n % 4]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        file.mux(stream.encode(None))


def make(folder: Path, workload: str, clips: int) -> Path:
    """A dataset of so many clips, copies of a few different ones, and some of its videos."""
    videos, some = folder / workload / "all", folder / workload / "videos"
    videos.mkdir(parents=True)
    for n in range(min(clips, _MADE[workload])):
        make_video(videos / f"{n:05}.mp4", SECONDS[workload], n)
    made, dice = sorted(videos.iterdir()), np.random.default_rng(0)
    for n in range(len(made), clips):  # in no order, so that shards differ in more than their clips' names
        os.link(made[dice.integers(len(made))], videos / f"{n:05}.mp4")
    options = PackOptions(decode="none")
    pack([videos], folder / workload / "set", shard_size=_CHUNK, options=options, progress=False)
    some.mkdir()
    for path in sorted(videos.iterdir())[: -(-clips // OF_PEERS[workload])]:
        path.rename(some / path.name)
    shutil.rmtree(videos)
    return folder / workload


def convert(folder: Path, workload: str, way: str) -> None:
    """The same files in another library's format, beside the dataset."""
    videos = sorted((folder / workload / "videos").iterdir())
    target = folder / workload / way
    if way == "litdata":
        import litdata

        inputs = [str(path) for path in videos]
        litdata.optimize(fn=_as_sample, inputs=inputs, output_dir=str(target), chunk_bytes="64MB", num_workers=1)
    elif way == "mosaicml":
        from streaming import MDSWriter

        with MDSWriter(out=str(target), columns={"video": "bytes"}, size_limit=_CHUNK) as writer:
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


def spans(folder: str, workload: str) -> list[list[tuple[int, int]]]:
    """The byte ranges of one sample of each clip, from the local dataset."""
    from streamvid.fetch.plan_samples import SampleSpec, plan_samples
    from streamvid.plan.epoch import Step

    dataset = sv.Dataset.open(f"{folder}/{workload}/set")
    ids = np.arange(len(dataset))
    step = Step(ids, np.zeros_like(ids), np.ones(len(ids), dtype=bool))
    samples = plan_samples(dataset, step, SampleSpec(SAMPLING[workload], 0, 0))
    return [[(start, end) for start, end in sample.spans.tolist()] for sample in samples]
