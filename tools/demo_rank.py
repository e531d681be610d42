"""One rank of the demo, started by torchrun: streams two epochs, and rank 0 reports for all."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import streamvid as sv
from streamvid.loader.engine import ENGINES, EngineName
from streamvid.storage import filesystem

EPOCHS = 2
# The short side is brought to 128 first, so that videos of any size and shape hold the crop. No flip, as the demo's
# classes are directions.
TRANSFORM = sv.Transform(resize=128, crop=112, mean=0.45, std=0.225, layout="CTHW", dtype="float32")


@dataclass(frozen=True)
class Share:
    """The part of an epoch that one rank saw.

    Attributes:
        clips: row numbers, without those repeated to fill a batch.
        batches, frames: how many.
        seconds: how long the loop took.
        waited: seconds of that spent waiting for the next batch.
        bytes_read: bytes.
        device: where batches arrived.
    """

    clips: tuple[int, ...]
    batches: int
    frames: int
    seconds: float
    waited: float
    bytes_read: int
    device: str


class TinyNet(nn.Module):
    """A stand-in for a model, so that the loop does something while the next batch is made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, 8, 3, stride=(1, 4, 4)), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2), nn.ReLU()
        )

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """(B, 3, F, H, W) → a number."""
        result: torch.Tensor = self.layers(video).square().mean()
        return result


def stream(dataset: sv.Subset, page: Path, engine: EngineName) -> list[Share]:
    """Stream all epochs on this rank."""
    loader = sv.StreamLoader(
        dataset,
        engine=engine,
        batch_size=4,
        sampling=sv.Window(frames=16, fps=8),
        transform=TRANSFORM,
        seed=0,
    )
    model: TinyNet | None = None
    shares = []
    for epoch in range(EPOCHS):
        before, start = loader.stats(), time.monotonic()
        clips: list[int] = []
        batches = frames = 0
        device = ""
        for batch in loader:
            video = batch["video"]
            if model is None:
                device = str(video.device)
                model = TinyNet().to(video.device)
            model(video).backward()
            clips += batch["clip"][batch["valid"]].tolist()
            frames += int(batch["mask"][batch["valid"]].sum())
            batches += 1
            if epoch == 0 and batches == 1 and dist.get_rank() == 0:
                sv.show(batch, transform=TRANSFORM).save(page)
        seconds, after = time.monotonic() - start, loader.stats()
        waited, read = after.wait_seconds - before.wait_seconds, after.bytes_read - before.bytes_read
        shares.append(Share(tuple(clips), batches, frames, seconds, waited, read, device))
    return shares


def problems(shares: Sequence[Share], wanted: Sequence[int]) -> list[str]:
    """The faults of an epoch: clips that no rank saw, or that came too often."""
    seen = Counter(clip for share in shares for clip in share.clips)
    missing = [clip for clip in wanted if clip not in seen]
    repeated = [clip for clip, times in seen.items() if times > 1]
    found = []
    if missing:
        found.append(f"{len(missing)} of {len(wanted)} clips were never seen, the first is clip {missing[0]}")
    if repeated:
        found.append(f"{len(repeated)} of {len(wanted)} clips were seen more than once, such as clip {repeated[0]}")
    if len({share.batches for share in shares}) > 1:
        found.append(f"ranks had unlike numbers of batches: {[share.batches for share in shares]}")
    return found


def report(epochs: Sequence[Sequence[Share]], shard_bytes: int) -> Table:
    """The demo's table: a row for each epoch, all ranks together."""
    where = f"{len(epochs[0])} ranks, to {epochs[0][0].device}"
    table = Table(title=f"Streamed on {where}, from {shard_bytes / 1e6:.2f} MB of shards")
    for name in ("epoch", "clips", "frames", "batches", "frames/s", "waiting", "read", "of shards"):
        table.add_column(name, justify="right")
    for number, shares in enumerate(epochs, start=1):
        frames, read = sum(share.frames for share in shares), sum(share.bytes_read for share in shares)
        waiting = sum(share.waited for share in shares) / sum(share.seconds for share in shares)
        table.add_row(
            str(number),
            str(sum(len(share.clips) for share in shares)),
            str(frames),
            str(sum(share.batches for share in shares)),
            f"{frames / max(share.seconds for share in shares):.0f}",
            f"{waiting:.0%}",
            f"{read / 1e6:.2f} MB",
            f"{read / shard_bytes:.0%}",
        )
    return table


def main() -> int:
    """Stream, gather, and on rank 0 report and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--engine", choices=ENGINES, default="default", help="dali streams the VP9 clips alone")
    arguments = parser.parse_args()
    codecs = sv.Dataset.open(arguments.dataset).clips.codec
    everything = arguments.engine == "default"
    wanted = [row for row, codec in enumerate(codecs) if everything or codec == "vp9"]
    if not wanted:
        print('There is no VP9 clip: nothing that engine="dali" decodes on any machine.')
        return 0
    chosen = sv.Subset(arguments.dataset, where=None if everything else "codec == 'vp9'")
    # NCCL refuses two ranks on one GPU.
    dist.init_process_group("nccl" if torch.cuda.device_count() >= 2 else "gloo")
    try:
        rank = dist.get_rank()
        if dist.get_backend() == "nccl":
            torch.cuda.set_device(dist.get_node_local_rank())
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, stream(chosen, arguments.page, arguments.engine))
    except sv.StreamvidError as error:
        Console(stderr=True).print(str(error), style="red")
        return 1
    finally:
        dist.destroy_process_group()
    if rank != 0:
        return 0
    manifest = json.loads(filesystem.read_bytes(f"{arguments.dataset}/dataset.json"))
    epochs: list[tuple[Share, ...]] = list(zip(*gathered, strict=True))
    console = Console()
    console.print(report(epochs, manifest["bytes"]))
    console.print("Waiting is the share of the loop's time in which it waited for data.")
    console.print(f"A batch, as a page: {arguments.page}")
    wrong = [f"Epoch {n}: {text}." for n, shares in enumerate(epochs, 1) for text in problems(shares, wanted)]
    for text in wrong:
        console.print(text, style="red")
    if not wrong:
        console.print("Every clip was seen exactly once in each epoch, over both ranks.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
