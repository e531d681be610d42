"""torchdata's StatefulDataLoader over a ClipDataset: random access, any sampler, and a state of the epoch's rest.

python examples/frameworks/torchdata_train.py datasets/train --checkpoints run
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchdata.stateful_dataloader import StatefulDataLoader

import streamvid as sv


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    transform = sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32")
    dataset = sv.ClipDataset(arguments.dataset, sampling=sv.Window(frames=4), transform=transform)
    loader = StatefulDataLoader(dataset, batch_size=2, shuffle=True, num_workers=arguments.workers)
    model = nn.Linear(3, 3)  # three classes from the mean colour of a video
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, first = arguments.checkpoints / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)  # a state of torchdata's holds more than tensors
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        first = saved["epoch"]

    step = 0
    for epoch in range(first, arguments.epochs):
        dataset.set_epoch(epoch)
        for batch in loader:
            print(json.dumps({"rank": 0, "epoch": epoch, "clips": batch["key"]}), flush=True)
            loss = cross_entropy(model(batch["video"].mean(dim=(1, 3, 4))), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == arguments.steps:
                arguments.checkpoints.mkdir(exist_ok=True)
                saved = {"model": model.state_dict(), "loader": loader.state_dict(), "epoch": epoch}
                torch.save(saved, checkpoint)
                return


if __name__ == "__main__":
    main()
