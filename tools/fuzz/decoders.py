"""Decode random frames of random clips in mixed batches as a loader does, and compare them with FFmpeg's whole decode.

    python -m tools.fuzz.decoders --seed 1 --clips 800 --seconds 160        # on a GPU with 16 cores

By decode sessions on a GPU, and by FFmpeg without one. A finding is a clip of which a frame differs, by more than a
level in any value (MPEG-4: a level on average; VP8 and VP9: in one of a thousand values), or that does not decode. HEVC
of which FFmpeg makes other samples than NVDEC is compared with its whole decode by one session.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np
import torch

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.ffmpeg_fault import ffmpeg_is_exact
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import StreamvidError
from streamvid.video.gpu_support import Route, support
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tools import clips
from tools.fuzz.encodings import random_encoding, random_pictures
from tools.recipes import Recipe

_CLIPS, _PROCESS_S = 8, 60
"""Clips that a process makes, and seconds after which it is killed."""
_BATCH = 24
Decode = Callable[[Sequence[EncodedSlice]], list[torch.Tensor]]


@dataclass(frozen=True)
class Made:
    """A clip to decode.

    Attributes:
        seed, recipe: that it was made of.
        clip: as it is packed.
        frames: uint8 [frames, height, width, 3]: what a decoder makes of all packets in order.
    """

    seed: int
    recipe: Recipe
    clip: StoredClip
    frames: UInt8


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.decoders", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first clip")
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that encode")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seeds, half = range(options.seed, options.seed + options.clips), begun + options.seconds / 2
        made = list(_encoded(Path(folder), seeds, options.processes, half))
        print(f"{len(made)} of {options.clips} clips in {time.monotonic() - begun:.0f} s")
        with _decoder() as decode:
            found = _compare([_exact(one, decode) for one in made], decode, begun + options.seconds, options.seed)
    for line in found:
        print(line)
    return int(bool(found))


def _encoded(folder: Path, seeds: range, processes: int, end: float) -> Iterator[Made]:
    """The clips that can be made until `end`, but at least the first few, and that a GPU decodes by the table of
    `streamvid.video.gpu_support`.

    For some options encoders crash or hang, and their process with them: so each process makes only a few clips.
    """

    def make(part: range) -> None:
        if part.start > seeds.start and time.monotonic() > end:
            return
        process = get_context("spawn").Process(target=_encode, args=(folder, part))
        process.start()
        process.join(_PROCESS_S)
        process.kill()

    with ThreadPoolExecutor(processes) as threads:
        list(threads.map(make, (seeds[n : n + _CLIPS] for n in range(0, len(seeds), _CLIPS))))
    for path in sorted(folder.glob("*/made")):
        yield pickle.loads(path.read_bytes())


def _encode(folder: Path, seeds: range) -> None:
    """Make clips, each in a folder of its own with the file `made`, a pickled `Made`."""
    av.logging.set_level(None)
    for seed in seeds:
        recipe, own = random_encoding(seed), folder / f"{seed:09}"
        own.mkdir()
        with contextlib.suppress(av.error.FFmpegError, StreamvidError):
            path = clips.write(recipe, own / f"source.{recipe.container}", random_pictures(seed, recipe))
            clip = store_clip(path, own)
            intra = len(clip.index.starts) == len(clip.index) > 1
            row = support(clip.codec, clip.pix_fmt, clip.width, clip.height, traits=clip.traits, all_intra=intra)
            if row.route is not Route.CPU:
                made = Made(seed, recipe, clip, decode_with_pyav(_every(clip), color="auto"))
                (own / "part").write_bytes(pickle.dumps(made))
                (own / "part").rename(own / "made")


def _every(clip: StoredClip) -> EncodedSlice:
    return clip.slice(np.arange(len(clip.index.visible)))


@contextlib.contextmanager
def _decoder() -> Iterator[Decode]:
    if not torch.cuda.is_available():
        yield lambda slices: [torch.from_numpy(decode_with_pyav(one, color="auto")) for one in slices]
        return
    decoder = GpuDecoder(device_id=0, threads=os.cpu_count() or 1, max_batch=2 * _BATCH)
    try:
        yield lambda slices: decoder.submit(slices, color="auto").result()
    finally:
        decoder.close()


def _exact(one: Made, decode: Decode) -> Made:
    if one.clip.codec != "hevc" or ffmpeg_is_exact("hevc", parameter_sets("hevc", one.clip.stsd).annex_b):
        return one
    (frames,) = decode([_every(one.clip)])
    return Made(one.seed, one.recipe, one.clip, frames.cpu().numpy())


def _compare(made: Sequence[Made], decode: Decode, end: float, seed: int) -> list[str]:
    """Compare until `end`, but each clip once at least; returns a line for each clip that differs."""
    rng = np.random.default_rng(seed)
    found: dict[int, str] = {}
    slices = frames = rounds = 0
    while made and (not rounds or time.monotonic() < end):
        order = rng.permutation(len(made)).tolist()
        for first in range(0, len(order), _BATCH):
            batch = [(made[n], _wanted(rng, len(made[n].frames))) for n in order[first : first + _BATCH] * 2]
            slices, frames = slices + len(batch), frames + sum(len(wanted) for _, wanted in batch)
            for (one, wanted), got in zip(batch, _decoded(batch, decode), strict=True):
                if fault := got if isinstance(got, str) else _difference(one, wanted, got):
                    found.setdefault(one.seed, f"seed {one.seed}, frames {wanted.tolist()}: {fault}; {one.recipe}")
        rounds += 1
    print(f"{slices} slices with {frames} frames of {len(made)} clips: {len(found)} clips differ or do not decode")
    return list(found.values())


def _wanted(rng: np.random.Generator, frames: int) -> Int64:
    count = int(rng.integers(1, min(frames, 10) + 1))
    if rng.random() < 0.5:
        return np.sort(rng.choice(frames, count, replace=False))
    return np.arange(int(rng.integers(frames)), frames, int(rng.integers(1, 5)))[:count]


def _decoded(batch: Sequence[tuple[Made, Int64]], decode: Decode) -> list[torch.Tensor | str]:
    """The frames of each clip, or its error, when it was decoded alone after an error of the batch."""
    slices = [one.clip.slice(wanted) for one, wanted in batch]
    try:
        return list(decode(slices))
    except StreamvidError as error:
        return [str(error)] if len(batch) == 1 else [got for each in batch for got in _decoded([each], decode)]


def _difference(one: Made, wanted: Int64, got: torch.Tensor) -> str:
    expected = torch.from_numpy(one.frames[wanted]).to(got.device)
    if got.shape != expected.shape:
        return f"{tuple(got.shape)} instead of {tuple(expected.shape)}"
    far = (got.to(torch.int16) - expected.to(torch.int16)).abs().flatten(1)
    off = float((far > 1).float().mean())
    bad = bool((far.float().mean(1) >= 1).any()) if one.recipe.codec == "mpeg4" else off > 0
    if one.recipe.codec in ("vp8", "vp9"):
        bad = off >= 0.001
    return f"{off:.1%} of its values differ, by up to {int(far.max())} levels" if bad else ""


if __name__ == "__main__":
    raise SystemExit(main())
