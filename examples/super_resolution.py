"""Train a small network for video super-resolution: three frames of half the size in, the middle one at full size out.

    python examples/super_resolution.py                 # makes videos of its own; half a minute on two cores
    python examples/super_resolution.py --videos films --held-out other-films --short-side 540 --crop 256 --steps 20000

The way of DALI's example of that name: videos are split at their scenes and transcoded to one size; sequences of frames
of fixed length, with a stride, are cropped in one place, and laid out CFHW. Pairs come of one draw: the same crop of
the same frames at two sizes. docs/super-resolution.md sets both side by side.
"""

from __future__ import annotations

import argparse
import math
import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from torch import nn
from torch.nn.functional import interpolate

import streamvid as sv

SCALE, FRAMES, STRIDE = 2, 3, 2


def prepare(videos: list[Path], dataset: Path, short_side: int) -> Path:
    """One clip for each scene, all of one size, with key frames close together as sequences are short."""
    options = sv.PackOptions(cutting=sv.Scenes(), transcode=sv.TranscodeOptions(short_side=short_side, gop=8))
    sv.pack(videos, dataset, options=options, overwrite=dataset.exists())
    return dataset


def make_loader(dataset: Path, crop: int, batch_size: int, training: bool, device: str | None) -> sv.StreamLoader:
    """Sequences of all scenes, once per epoch: batch["high"], and the same pictures at half the size, batch["low"]."""
    pair = sv.Views(
        low=sv.Transform(crop=crop // SCALE, horizontal_flip=0.5, layout="CFHW", dtype="float32"),
        high=sv.Transform(crop=crop, horizontal_flip=0.5, layout="CFHW", dtype="float32"),
        share=("crop", "flip"),
    )
    return sv.StreamLoader(
        dataset,
        batch_size=batch_size,
        sampling=sv.TiledWindows(FRAMES, step=1 if training else FRAMES, stride=STRIDE, pad="none"),
        transform=pair if training else pair.for_evaluation(),
        shuffle=training,
        last_batch="partial",  # or DALI's LastBatchPolicy.PARTIAL
        seed=0,
        device=device,
    )


class SmallNet(nn.Module):
    """The middle frame, enlarged by bicubic interpolation, and what three convolutions over all frames add to it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3 * FRAMES, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, 3 * SCALE**2, 3, padding=1), nn.PixelShuffle(SCALE),
        )  # fmt: skip

    def forward(self, low: torch.Tensor) -> torch.Tensor:
        """(batch, 3, frames, height, width) → (batch, 3, SCALE · height, SCALE · width)."""
        added: torch.Tensor = self.layers(low.flatten(1, 2))
        return enlarge(low) + added


def enlarge(low: torch.Tensor) -> torch.Tensor:
    """The middle frame by bicubic interpolation, which the network is held against."""
    return interpolate(low[:, :, FRAMES // 2], scale_factor=SCALE, mode="bicubic")


def train(model: nn.Module, loader: sv.StreamLoader, steps: int, device: torch.device) -> None:
    """A fixed number of steps, over as many epochs as they take."""
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    step = 0
    while step < steps:
        for batch in loader:
            low, high = (batch[name].to(device) for name in ("low", "high"))
            loss = (model(low) - high[:, :, FRAMES // 2]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % 100 == 0 or step == steps:
                print(f"step {step:4}  epoch {(step - 1) // len(loader)}  loss {loss:.5f}", flush=True)
            if step == steps:
                break


@torch.no_grad()
def evaluate(model: nn.Module, loader: sv.StreamLoader, device: torch.device, picture: Path) -> tuple[float, float]:
    """PSNR in dB of bicubic interpolation and of the network, the mean over all sequences; and both as a picture."""
    model.eval()
    decibels: list[torch.Tensor] = []
    shown: list[list[torch.Tensor]] = []
    for batch in loader:
        low, high = (batch[name].to(device) for name in ("low", "high"))
        wanted = high[:, :, FRAMES // 2]
        made = [enlarge(low).clamp(0, 1), model(low).clamp(0, 1)]
        errors = torch.stack([(one - wanted).square().mean(dim=(1, 2, 3)) for one in made])
        # Clips that only fill the batch of a rank are not valid: count each once.
        decibels.append((-10 * errors.clamp(min=1e-10).log10())[:, batch["valid"].to(device)])
        if len(shown) < 3:
            small = interpolate(low[:1, :, FRAMES // 2], scale_factor=SCALE, mode="nearest")
            shown.append([small[0], *(one[0] for one in made), wanted[0]])
    write_png(torch.cat([torch.cat(row, dim=2) for row in shown], dim=1), picture)
    bicubic, network = torch.cat(decibels, dim=1).mean(dim=1).tolist()
    return bicubic, network


def write_png(image: torch.Tensor, path: Path) -> None:
    """Write an image, (3, height, width), 0 to 1."""
    pixels = (255 * image).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
    encoder = av.CodecContext.create("png", "w")
    encoder.height, encoder.width, encoder.pix_fmt, encoder.time_base = *pixels.shape[:2], "rgb24", Fraction(1)
    packets = encoder.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")) + encoder.encode(None)
    path.write_bytes(b"".join(map(bytes, packets)))


def make_videos(folder: Path, videos: int, scenes: int = 3, seconds: int = 1, seed: int = 0) -> list[Path]:
    """Videos of 160x120, 16 frames a second: scenes of sharp-edged shapes that move and turn, on light and dark
    grounds."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:02}.mp4" for number in range(videos)]
    for number, path in enumerate(paths):
        random = np.random.default_rng([seed, number])
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=16, options={"crf": "10", "preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
            for scene in range(scenes):
                for picture in paint_scene(random, light=scene % 2 == 1, frames=16 * seconds):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))
    return paths


def paint_scene(random: np.random.Generator, light: bool, frames: int) -> list[np.ndarray]:
    """Striped rectangles and discs, drawn at twice the size and averaged, so that edges are smooth."""
    y, x = np.mgrid[0:240, 0:320].astype(np.float32)
    ground = random.uniform(170, 255, 3) if light else random.uniform(0, 85, 3)
    shapes = [
        (random.uniform((0, 0), (240, 320)), random.uniform(-4, 4, 2), random.uniform(0, math.pi),
         random.uniform(-0.1, 0.1), random.uniform(15, 60, 2), random.uniform(6, 18), random.uniform(0, 255, (2, 3)),
         random.random() < 0.4)
        for _ in range(9)
    ]  # fmt: skip
    pictures = []
    for number in range(frames):
        picture = np.broadcast_to(ground, (240, 320, 3)).copy()
        for place, speed, angle, turning, size, stripe, colours, is_disc in shapes:
            down, right = place + number * speed
            turned = angle + number * turning
            u = (x - right) * math.cos(turned) + (y - down) * math.sin(turned)
            v = (y - down) * math.cos(turned) - (x - right) * math.sin(turned)
            inside = (u / size[1]) ** 2 + (v / size[0]) ** 2 < 1 if is_disc else (abs(u) < size[1]) & (abs(v) < size[0])
            picture[inside] = colours[(u[inside] // stripe % 2).astype(np.int64)]
        pictures.append(picture.reshape(120, 2, 160, 2, 3).mean(axis=(1, 3)).round().astype(np.uint8))
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, nargs="+", help="files and folders to train on; default: made ones")
    parser.add_argument("--held-out", type=Path, nargs="+", help="files and folders to evaluate on")
    parser.add_argument("--out", type=Path, default=Path("super-resolution"), help="folder of datasets and picture")
    parser.add_argument("--short-side", type=int, default=120, help="pixels that videos are transcoded to")
    parser.add_argument("--crop", type=int, default=64, help="pixels of the high view, a multiple of 2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", help="cuda or cpu; default: the GPU if there is one")
    options = parser.parse_args()
    if bool(options.videos) != bool(options.held_out):
        parser.error("give --videos and --held-out, or neither")

    torch.manual_seed(0)
    videos, held_out = options.videos, options.held_out
    if not videos:
        shutil.rmtree(options.out / "videos", ignore_errors=True)
        made = make_videos(options.out / "videos", videos=6)
        videos, held_out = made[:4], made[4:]
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    shared = (options.crop, options.batch_size)
    model = SmallNet().to(device)
    with make_loader(
        prepare(videos, options.out / "train", options.short_side), *shared, True, options.device
    ) as loader:
        print(f"{len(loader.dataset)} scenes, {len(loader)} batches in an epoch")
        train(model, loader, options.steps, device)
    held = prepare(held_out, options.out / "held-out", options.short_side)
    with make_loader(held, *shared, False, options.device) as loader:
        bicubic, network = evaluate(model, loader, device, options.out / "low-bicubic-ours-high.png")
    print(f"bicubic {bicubic:.2f} dB, the network {network:.2f} dB, on {len(loader.dataset)} held-out scenes")


if __name__ == "__main__":
    main()
