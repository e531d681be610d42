"""Train a classifier on a dataset, and write it and its transform as models for Triton: one transform for both.

python examples/serve/train.py datasets/train --models models --steps 200
tritonserver --model-repository models     # in NVIDIA's container
python examples/serve/client.py film.mp4 --classes models/classes.txt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import streamvid as sv

FRAMES, STRIDE, SIDE = 8, 3, 64
TRANSFORM = sv.Transform(
    resize=SIDE + 8, crop=SIDE, brightness=0.2, contrast=0.2, mean=0.5, std=0.25, layout="CTHW", dtype="float32",
    color="bt601",  # a server knows no tags of its videos: the same matrix for all
)  # fmt: skip
"""Trained with at random, served as `TRANSFORM.for_evaluation()`: the centre crop, and no changes of colour."""
CONFIG = """\
name: "classify"
backend: "pytorch"
max_batch_size: 256
input [ {{ name: "INPUT__0", data_type: TYPE_FP32, dims: [ 3, {frames}, {side}, {side} ] }} ]
output [ {{ name: "OUTPUT__0", data_type: TYPE_FP32, dims: [ {classes} ] }} ]
"""


def make_model(classes: int) -> nn.Module:
    """A small 3D CNN: float32 [batch, 3, frames, height, width] → [batch, classes]."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv3d(inputs, outputs, 3, (1, 2, 2), 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, classes))


def train(loader: sv.StreamLoader, model: nn.Module, steps: int, device: torch.device) -> None:
    """So many steps, over as many epochs as that takes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    done = 0
    while done < steps:
        for batch in loader:
            loss = cross_entropy(model(batch["video"].to(device)), batch["label"].to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimizer.step()
            done += 1
            if done % 20 == 0 or done == steps:
                print(f"step {done}  loss {loss.item():.3f}", flush=True)
            if done == steps:
                break


def main() -> int:
    """Train, and write three things: the transform's model, the classifier's, and the names of the classes."""
    parser = argparse.ArgumentParser(description="Train a classifier, and write it and its transform for Triton.")
    parser.add_argument("dataset")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the model repository")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--server", default="cuda", choices=["cuda", "cpu"], help="what the server decodes on")
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = sv.StreamLoader(
        arguments.dataset,
        batch_size=arguments.batch_size,
        sampling=sv.Window(FRAMES, stride=STRIDE),
        transform=TRANSFORM,
        last_batch="fill",
    )
    classes = loader.dataset.classes
    if classes is None:
        raise SystemExit("Training needs labels: pack the dataset with --labels labels.csv.")
    torch.manual_seed(0)
    model = make_model(len(classes)).to(device)
    train(loader, model, arguments.steps, device)

    sv.dali.export(
        arguments.models, transform=TRANSFORM, frames=FRAMES, stride=STRIDE, name="clips", device=arguments.server
    )
    folder = arguments.models / "classify" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    traced = torch.jit.trace(model.cpu().eval(), torch.zeros(2, 3, FRAMES, SIDE, SIDE))  # type: ignore[no-untyped-call]
    traced.save(str(folder / "model.pt"))
    config = CONFIG.format(frames=FRAMES, side=SIDE, classes=len(classes))
    (arguments.models / "classify" / "config.pbtxt").write_text(config)
    (arguments.models / "classes.txt").write_text("\n".join(classes) + "\n")
    print(f"wrote {arguments.models}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
