"""Train on any number of ranks, stop at any time, and go on with any other number of ranks.

    torchrun --nproc-per-node 4 examples/resume.py datasets/train --checkpoint run/checkpoint.pt
    torchrun --nproc-per-node 2 examples/resume.py datasets/train --checkpoint run/checkpoint.pt

To copy from. The second command goes on where the first was stopped or killed: in the same epoch, with exactly the
clips that the checkpoint's steps have not seen. Steps after the last checkpoint are lost, model and data alike, and are
made again. The checkpoint must lie where all nodes see it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import streamvid as sv

STOPPED = 75
"""Exit code of a run that was told to stop before its end (EX_TEMPFAIL): whoever starts it is to start it again."""


def make_loader(arguments: argparse.Namespace) -> sv.StreamLoader:
    """Rank and world size are torchrun's. Nothing here depends on them, so that they may change."""
    return sv.StreamLoader(
        arguments.dataset,
        batch_size=arguments.batch_size,
        sampling=sv.Window(frames=4, fps=8),
        transform=sv.Transform(resize=64, crop=56, horizontal_flip=0.5, layout="CTHW", dtype="float32"),
        shuffle=arguments.shuffle,
        locality=arguments.locality,
        seed=0,
        num_threads=arguments.threads,
        cache_dir=arguments.cache_dir,
    )


class TinyNet(nn.Module):
    """Squeezes a clip and paints it again: a stand-in that learns something from videos without labels."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Conv3d(3, 8, kernel_size=(1, 4, 4), stride=(1, 4, 4))
        self.paint = nn.ConvTranspose3d(8, 3, kernel_size=(1, 4, 4), stride=(1, 4, 4))

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """(batch, 3, frames, height, width) → the same."""
        painted: torch.Tensor = self.paint(self.squeeze(video).relu())
        return painted


def save(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all: a run that is killed in the middle leaves the previous checkpoint."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def on_any_rank(happened: bool, device: torch.device) -> bool:
    """The same answer on all ranks, so that all stop after the same step, whichever of them was told to."""
    flag = torch.tensor(int(happened), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def train(arguments: argparse.Namespace, loader: sv.StreamLoader, device: torch.device) -> int:
    """Go on from the checkpoint, or begin. Returns the exit code."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # torchrun passes its own on to all ranks of its node.

    rank, step = dist.get_rank(), 0
    torch.manual_seed(0)
    model = TinyNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if arguments.checkpoint.exists():
        checkpoint = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        step = checkpoint["step"]
    log = Log(arguments.seen, rank)
    log.write(rank=rank, world_size=dist.get_world_size(), start=step)

    ddp = DistributedDataParallel(model)  # Waits for all ranks: nobody writes a checkpoint that another still reads.
    for epoch in range(loader.epoch, arguments.epochs):
        for batch in loader:
            # Before the step, that is before the ranks meet: what is in a checkpoint is in every rank's log.
            log.write(epoch=epoch, step=step, clips=batch["clip"][batch["valid"]].tolist())
            video, valid = batch["video"].to(device), batch["valid"].to(device)
            # A rank for which no clip is left gets one that is not valid, and must not learn from it.
            each = mse_loss(ddp(video), video, reduction="none").mean(dim=(1, 2, 3, 4))
            loss = (each * valid).sum() / valid.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            stop = on_any_rank(stopping.is_set(), device)
            if rank == 0 and (stop or step % arguments.every == 0):
                # All ranks' loaders have the same state.
                content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(arguments.checkpoint, content | {"loader": loader.state_dict(), "step": step})
            if stop:
                return STOPPED
        if rank == 0:
            print(f"epoch {epoch + 1}  step {step}  loss {loss.item():.4f}", flush=True)
    return 0


class Log:
    """Which clips this rank was given, as lines of JSON: not needed, but lets anyone check that none comes twice."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self._path = Path(f"{path}.{rank}") if path else None

    def write(self, **line: Any) -> None:
        """Add a line."""
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def main() -> int:
    """Set up what torchrun asks for, and train."""
    parser = argparse.ArgumentParser(description="Train under torchrun; go on from the checkpoint if there is one.")
    parser.add_argument("dataset", help="the dataset to train on, a folder or a URL")
    parser.add_argument("--checkpoint", type=Path, required=True, help="where to keep it; all nodes must see it")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the clips (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="clips on each rank (default: %(default)s)")
    parser.add_argument("--shuffle", default="full", choices=("full", "block", "none"))
    parser.add_argument("--locality", choices=("node",), help="let each node read its own shards")
    parser.add_argument("--threads", type=int, help="CPU threads of each rank (default: the node's, shared)")
    parser.add_argument("--cache-dir", help="fast disk of the node, for datasets on S3")
    parser.add_argument("--seen", type=Path, help="write the clips that rank R was given to SEEN.R")
    arguments = parser.parse_args()
    if "LOCAL_WORLD_SIZE" not in os.environ:
        parser.error("start it by torchrun, of one rank, too: torchrun --nproc-per-node 1 examples/resume.py …")
    arguments.threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"]))

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        with make_loader(arguments) as loader:
            return train(arguments, loader, device)
    finally:
        # PyTorch with gloo aborts one process in fifty at exit whose DistributedDataParallel outlives its group.
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
