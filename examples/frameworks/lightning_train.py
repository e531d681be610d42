"""Lightning: train on any number of devices, and go on where the last run stopped, in the middle of an epoch.

python examples/frameworks/lightning_train.py datasets/train --checkpoints run --devices 2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  # as its documentation does
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy

import streamvid as sv


class Classifier(L.LightningModule):
    """Three classes from the mean colour of a video."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
        """The loss of a batch."""
        clips = [key for key, valid in zip(batch["key"], batch["valid"], strict=True) if valid]
        print(json.dumps({"rank": self.global_rank, "epoch": self.current_epoch, "clips": clips}), flush=True)
        each = cross_entropy(self.head(batch["video"].mean(dim=(1, 3, 4))), batch["label"], reduction="none")
        return (each * batch["valid"]).sum() / batch["valid"].sum().clamp(min=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many")
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()

    loader = sv.StreamLoader(
        arguments.dataset,
        batch_size=2,
        sampling=sv.Window(frames=4),
        transform=sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32"),
    )
    trainer = L.Trainer(
        devices=arguments.devices,
        max_epochs=arguments.epochs,
        max_steps=arguments.steps,
        # Its checkpoints hold the loader's state, too.
        callbacks=[ModelCheckpoint(arguments.checkpoints, every_n_train_steps=1, save_last=True)],
        logger=False,
        enable_progress_bar=False,
    )
    last = arguments.checkpoints / "last.ckpt"
    trainer.fit(Classifier(), loader, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
