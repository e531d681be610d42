"""Accelerate: train on any number of processes, and go on where the last run stopped, in the middle of an epoch.

accelerate launch --multi_gpu --num_processes 2 examples/frameworks/accelerate_train.py datasets/train --checkpoints run
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

import streamvid as sv


def train(arguments: argparse.Namespace, accelerator: Accelerator) -> None:
    """All epochs, or so many steps; with a checkpoint, from there on."""
    loader = sv.StreamLoader(
        arguments.dataset,
        batch_size=2,
        sampling=sv.Window(frames=4),
        transform=sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32"),
    )
    model: nn.Module = nn.Linear(3, 3)  # three classes from the mean colour of a video
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    # The loader gives every process its share on its device, so `prepare` has nothing to do for it. Its state is saved
    # and loaded with the rest.
    accelerator.register_for_checkpointing(loader)
    if arguments.checkpoints.exists():
        accelerator.load_state(str(arguments.checkpoints))

    step = 0
    for epoch in range(loader.epoch, arguments.epochs):
        for batch in loader:
            clips = [key for key, valid in zip(batch["key"], batch["valid"], strict=True) if valid]
            print(json.dumps({"rank": accelerator.process_index, "epoch": epoch, "clips": clips}), flush=True)
            each = cross_entropy(model(batch["video"].mean(dim=(1, 3, 4))), batch["label"], reduction="none")
            accelerator.backward((each * batch["valid"]).sum() / batch["valid"].sum().clamp(min=1))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == arguments.steps:
                accelerator.save_state(str(arguments.checkpoints))
                return


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after so many")
    arguments = parser.parse_args()

    accelerator = Accelerator()
    train(arguments, accelerator)
    # Where a model in DistributedDataParallel outlives its process group, PyTorch with gloo aborts one process in fifty
    # at exit.
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
