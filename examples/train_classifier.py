"""Train a small 3D CNN on a labelled dataset that `streamvid pack … --labels …` made.

    python examples/train_classifier.py datasets/train --held-out datasets/held-out
    torchrun --nproc-per-node 2 examples/train_classifier.py datasets/train --held-out datasets/held-out

To copy from: the loader takes rank and device from its surroundings, so that nothing here but DDP knows how many
processes there are.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import streamvid as sv

FRAMES, FPS, SIDE = 8, 8, 64


def make_loader(dataset: str, batch_size: int, training: bool) -> sv.StreamLoader:
    """Random windows and crops to train on; to evaluate, the middle of every clip, exactly once."""
    # No flip: the demo's classes are directions, and mirrored, "left" would be a "right" with the wrong label.
    transform = sv.Transform(resize=SIDE + 8, crop=SIDE, mean=0.5, std=0.25, layout="CTHW", dtype="float32")
    return sv.StreamLoader(
        dataset,
        batch_size=batch_size,
        sampling=sv.Window(frames=FRAMES, fps=FPS, start="random" if training else "center"),
        transform=transform if training else transform.for_evaluation(),
        shuffle=training,
        # A clip twice in an epoch does no harm in training, and keeps all ranks' batches alike.
        last_batch="fill" if training else "partial",
        seed=0,
    )


class SmallNet(nn.Module):
    """Four 3D convolutions, an average over time and space, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        # GroupNorm, unlike BatchNorm, needs no agreement between ranks, and works for a batch of one.
        self.features = nn.Sequential(
            nn.GroupNorm(1, 1),  # Pale clips get the contrast of vivid ones.
            self._block(1, 16, kernel=(3, 5, 5), stride=(1, 2, 2)),
            self._block(16, 32, kernel=(3, 3, 3), stride=(1, 2, 2)),
            self._block(32, 64, kernel=(3, 3, 3), stride=(2, 2, 2)),
            self._block(64, 64, kernel=(3, 3, 3), stride=(1, 1, 1)),
        )
        self.head = nn.Linear(64, classes)

    @staticmethod
    def _block(inputs: int, outputs: int, kernel: tuple[int, int, int], stride: tuple[int, int, int]) -> nn.Module:
        padding = (kernel[0] // 2, kernel[1] // 2, kernel[2] // 2)
        return nn.Sequential(nn.Conv3d(inputs, outputs, kernel, stride, padding), nn.GroupNorm(8, outputs), nn.ReLU())

    def forward(self, video: torch.Tensor) -> torch.Tensor:
        """(batch, 3, frames, height, width) → (batch, classes)."""
        # Brightness alone: what moves where does not depend on colour.
        grey = video.mean(dim=1, keepdim=True)
        logits: torch.Tensor = self.head(self.features(grey).mean(dim=(2, 3, 4)))
        return logits


def train_epoch(
    model: nn.Module,
    loader: sv.StreamLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    device: torch.device,
) -> float:
    """One pass over the training clips; returns the mean loss of all ranks."""
    model.train()
    total = torch.zeros(2, device=device)
    for batch in loader:
        video, label = batch["video"].to(device), batch["label"].to(device)
        loss = cross_entropy(model(video), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += torch.stack([loss.detach(), torch.ones_like(loss)])
    return _ratio(total)


@torch.no_grad()
def evaluate(model: nn.Module, loader: sv.StreamLoader, device: torch.device) -> float:
    """The share of clips, over all ranks, whose class the model names."""
    model.eval()
    total = torch.zeros(2, device=device)
    for batch in loader:
        video, label = batch["video"].to(device), batch["label"].to(device)
        # Where clips are too few for all ranks, one is repeated and marked not valid: count it once.
        valid = batch["valid"].to(device)
        right = (model(video).argmax(dim=1) == label) & valid
        total += torch.stack([right.sum(), valid.sum()])
    return _ratio(total)


def _ratio(total: torch.Tensor) -> float:
    if dist.is_initialized():
        dist.all_reduce(total)
    return float(total[0] / total[1])


def run(arguments: argparse.Namespace, device: torch.device, rank: int) -> None:
    """Train, then evaluate."""
    loader = make_loader(arguments.dataset, arguments.batch_size, training=True)
    held_out = make_loader(arguments.held_out or arguments.dataset, arguments.batch_size, training=False)
    classes = loader.dataset.classes
    if classes is None or held_out.dataset.classes != classes:
        raise SystemExit("Training needs labels, the same in both datasets: pack them with --labels labels.csv.")

    torch.manual_seed(0)
    model: nn.Module = SmallNet(len(classes)).to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=arguments.epochs * len(loader))
    for epoch in range(arguments.epochs):
        start = time.monotonic()
        loss = train_epoch(model, loader, optimizer, schedule, device)
        if rank == 0:
            print(f"epoch {epoch + 1:2}  loss {loss:.3f}  {time.monotonic() - start:.1f} s", flush=True)
    accuracy = evaluate(model, held_out, device)
    if rank == 0:
        print(f"accuracy {accuracy:.1%} of {len(held_out.dataset)} clips, {len(classes)} classes")


def main() -> int:
    """Set up what torchrun asks for, and run."""
    parser = argparse.ArgumentParser(description="Train a small 3D CNN on a dataset packed with labels.")
    parser.add_argument("dataset", help="the dataset to train on")
    parser.add_argument("--held-out", help="the dataset to evaluate on; without it, the one trained on")
    parser.add_argument("--epochs", type=int, default=24, help="passes over the training clips (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="clips on each rank (default: %(default)s)")
    arguments = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo")
    try:
        run(arguments, device, dist.get_rank() if dist.is_initialized() else 0)
    finally:
        if dist.is_initialized():
            # PyTorch with gloo aborts one process in fifty at exit whose DistributedDataParallel outlives its group.
            gc.collect()
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
