"""Slices of clips through NVIDIA's DALI Proxy: PyTorch's DataLoader reads, one DALI pipeline decodes, on the GPU.

    python examples/dali_proxy.py datasets/mine --batches 8 --workers 4

The pipeline is yours: what comes behind `fn.decoders.video` is plain DALI. The workers hand it slices, a few packets
each, where whole files would be decoded from their beginning. At the end the same frames come from a GpuDataLoader,
whose pipeline is streamvid's, and the program says how fast both were.

DALI Proxy needs a build of PyTorch for CUDA, workers started by fork, and one of them at least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from torch.utils.data import Dataset

import streamvid as sv


@pipeline_def
def decode(side: int, device: str) -> Any:
    """Encoded slices in, frames of one size out, float CFHW. Frames that a slice has once may be shown several
    times."""
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
    wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
    order = fn.external_source(name="order", dtype=types.INT32, ndim=1)
    frames = fn.decoders.video(encoded, frames=wanted, device="cpu" if device == "cpu" else "mixed")
    frames = fn.resize(fn.sequence_rearrange(frames, new_order=order), size=[side, side])
    scaled = fn.crop_mirror_normalize(frames, std=255.0, dtype=types.FLOAT, output_layout="FCHW")
    return fn.transpose(scaled, perm=[1, 0, 2, 3], output_layout="CFHW")


class Slices(Dataset[dict[str, Any]]):
    """Samples of a `ClipDataset` whose frames the proxy's pipeline decodes.

    Args:
        clips: the samples; all must have as many frames, and none black ones (`pad="constant"`).
        proxy: `DALIServer.proxy`.
    """

    def __init__(self, clips: sv.ClipDataset, proxy: Any) -> None:
        self._clips, self._proxy = clips, proxy

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, item: int | str | sv.At) -> dict[str, Any]:
        sample = self._clips.encode([item])
        (part,), (order,) = sample.slices, sample.gather
        video = self._proxy(
            encoded=part.to_mp4(), wanted=part.frames.astype(np.int32), order=np.maximum(order, 0).astype(np.int32)
        )
        return {"video": video, **{name: column[0] for name, column in sample.columns().items()}}


def batches(
    clips: sv.ClipDataset,
    sampler: Iterable[int | str | sv.At],
    *,
    batch_size: int,
    workers: int,
    side: int,
    device: str,
) -> Iterator[Mapping[str, Any]]:
    """Batches as of a `GpuDataLoader`, without keys."""
    from nvidia.dali.plugin.pytorch.experimental import proxy as dali_proxy

    pipeline = decode(
        side, device, batch_size=batch_size, num_threads=8, device_id=None if device == "cpu" else 0,
        prefetch_queue_depth=2 * workers,
    )  # fmt: skip
    with dali_proxy.DALIServer(pipeline) as server:
        yield from dali_proxy.DataLoader(
            server, Slices(clips, server.proxy), batch_size=batch_size, num_workers=workers, sampler=sampler,
            drop_last=True, multiprocessing_context="fork",
        )  # fmt: skip


def clips_per_second(loader: Iterable[Mapping[str, Any]]) -> float:
    """Of all batches behind the first two, which wait for workers and decoders to be opened."""
    started, clips = 0.0, 0
    for number, batch in enumerate(loader):
        if batch["video"].is_cuda:
            torch.cuda.synchronize()
        if number == 1:
            started = time.perf_counter()
        clips += len(batch["clip"]) if number > 1 else 0
    return clips / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a packed dataset: a folder or a URL")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if torch.version.cuda is None:
        parser.error("DALI Proxy needs a build of PyTorch for CUDA, with --device cpu, too")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU: give --device cpu")

    clips = sv.ClipDataset(
        options.dataset,
        sampling=sv.Window(options.frames, stride=options.stride),
        transform=sv.Transform(resize=(options.side, options.side), dtype="float32", layout="CFHW"),
    )
    count = (2 + options.batches) * options.batch_size
    chosen = np.random.default_rng(0).integers(len(clips), size=count).tolist()
    shared = {"batch_size": options.batch_size, "sampler": chosen}
    proxy = batches(clips, workers=options.workers, side=options.side, device=options.device, **shared)
    print(f"DALI Proxy with slices: {clips_per_second(proxy):.1f} clips/s of {options.frames} frames", flush=True)
    with sv.GpuDataLoader(clips, num_workers=options.workers, device=options.device, **shared) as loader:
        print(f"GpuDataLoader: {clips_per_second(loader):.1f} clips/s")


if __name__ == "__main__":
    main()
