"""What this GPU and this DALI decode, and how rightly: one line for each hard clip of tools/recipes.py.

    python -m tools.gpu_survey [--json FILE]

Each clip is decoded three ways: all packets in sequence on the GPU (the reference), minimal slices on the GPU, and
on the CPU. The table says whether the slices' frames are bit for bit the reference's, whether the frame numbers
drawn into the pictures are right, and how far GPU and CPU colours are apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import StreamvidError
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of, whole
from tools.clips import Recipe, hard_recipes, read_frame_number, write


@dataclass(frozen=True)
class Finding:
    """What became of one clip."""

    name: str
    codec: str
    profile: str
    pix_fmt: str
    size: str
    error: str = ""
    frames: int = 0
    exact: int = 0
    numbered: int = 0
    mean_difference: float = 0.0
    largest_difference: int = 0
    seconds: float = 0.0


def arrays(decoded: Any) -> list[np.ndarray[Any, Any]]:
    """Frames on a GPU as NumPy arrays: PyTorch tensors, or DALI's list of tensors."""
    if isinstance(decoded, list):
        return [frames.cpu().numpy() for frames in decoded]
    host = decoded.as_cpu()
    return [np.array(host.at(i)) for i in range(len(host))]


def survey(recipe: Recipe, clip: StoredClip, name: str) -> Finding:
    """Decode one clip all ways."""
    about = Finding(name, clip.codec, clip.profile, clip.pix_fmt, f"{clip.width}x{clip.height}")
    shown = recipe.shown()
    rng = np.random.default_rng(1)
    picks = [
        np.sort(rng.choice(len(shown), min(len(shown), int(rng.integers(1, 6))), replace=False)) for _ in range(12)
    ]
    started = time.perf_counter()
    try:
        decoder = GpuDecoder(device_id=0, threads=4, max_batch=16)
        (reference,) = arrays(decoder.decode([whole(clip)]))
        slices: list[EncodedSlice] = [slice_of(clip, pick) for pick in picks]
        got = arrays(decoder.decode(slices))
    except (StreamvidError, RuntimeError) as error:
        return replace(about, error=str(error).split("\n")[0][:300], seconds=time.perf_counter() - started)
    exact = numbered = frames = 0
    differences = []
    for pick, part, pictures in zip(picks, slices, got, strict=True):
        on_cpu = decode_with_pyav(part)
        for n, picture, host in zip(pick.tolist(), pictures, on_cpu, strict=True):
            frames += 1
            exact += bool(np.array_equal(picture, reference[n]))
            with contextlib.suppress(ValueError):
                numbered += read_frame_number(picture) == shown[n]
            differences.append(np.abs(picture.astype(np.int16) - host))
    return replace(
        about,
        frames=frames,
        exact=exact,
        numbered=numbered,
        mean_difference=round(float(np.mean([d.mean() for d in differences])), 3),
        largest_difference=int(max(d.max() for d in differences)),
        seconds=round(time.perf_counter() - started, 2),
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path, metavar="FILE")
    options.add_argument("--only", metavar="TEXT", default="", help="clips whose name holds this")
    chosen = options.parse_args()
    findings = []
    for name, recipe in hard_recipes().items():
        if chosen.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            clip = store_clip(write(recipe, Path(folder) / f"{name}.{recipe.container}"), Path(folder))
            finding = survey(recipe, clip, name)
        findings.append(finding)
        frames = f"exact {finding.exact}/{finding.frames}  numbered {finding.numbered}"
        colours = f"against the CPU: mean {finding.mean_difference}, largest {finding.largest_difference}"
        verdict = finding.error or f"{frames}  {colours}"
        print(
            f"{name:32} {finding.codec:6} {finding.pix_fmt:14} {finding.size:10} {finding.seconds:5.2f} s  {verdict}",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps([vars(f) for f in findings], indent=1))


if __name__ == "__main__":
    main()
