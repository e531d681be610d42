"""What parts of decoding on a CPU cost beside FFmpeg's work itself, and a batch's way to the decoder.

    python -m tools.bench.parts [--quick] [--json FILE] [--clips DIR]

- decoder kept: pieces of slices of H.264 720p, through decoders that are opened for each and one that is kept;
- resizing alone: frames of 720p to 224x224 in as many threads as there are cores, with PyTorch's helper threads and
  without;
- frames: what RGB and resizing add to decoding, in as many threads as there are cores;
- looking: what packets are and in which order their pictures come out, when packing;
- reading: windows of 16 frames chosen, read, sliced and cut into runs, in batches of 64.

Milliseconds of processor time, medians of rounds in turn; other work on the machine hardly changes their ratios.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

import streamvid as sv
from streamvid.bitstream.packet_info import classify
from streamvid.color.yuv_to_rgb import RgbConverter
from streamvid.dataset.dataset import Dataset
from streamvid.decode.cpu import ReusableCodecContext, decode_frames, split_at_keyframes
from streamvid.decode.decode_job import split_at_idr
from streamvid.fetch import plan_samples
from streamvid.fetch.encoded_batch import read_batches
from streamvid.fetch.shard_access import ShardAccess
from streamvid.packing.pack import pack
from streamvid.plan.epoch_plan import Step
from streamvid.transform.cpu_crop_resize import CropBox, CropResizer, Scratch, resize_in_one_thread
from streamvid.video.packet_selection import EncodedSlice
from tests.support.reference import slice_of
from tools.bench import decode_clips as clips
from tools.bench.report import Report, Row, arguments, finish, machine

WINDOW: Final = np.arange(0, 128, 8)
SIDE: Final = 224
BATCH: Final = 64
FRAMES: Final = 256


def cpu_ms(function: Callable[[], object]) -> float:
    """Processor time of this process, in milliseconds."""
    started = time.process_time()
    function()
    return (time.process_time() - started) * 1e3


def in_turn(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Medians, after a round that does not count."""
    taken: list[list[float]] = [[cpu_ms(way) for way in ways] for _ in range(1 + rounds)][1:]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def kept_decoder(name: str, folder: Path, work: Path, rounds: int) -> Row:
    """Pieces of a clip's slices, by either way."""
    clip = clips.stored(name, folder, work)
    parts = [slice_of(clip, start + WINDOW) for start in range(0, 240, 24)]
    jobs = [(part, piece) for part in parts for piece in split_at_keyframes(part)]
    kept = ReusableCodecContext()

    def decode(decoder: ReusableCodecContext | None) -> None:
        for part, piece in jobs:
            for _ in decode_frames(part, piece, context=decoder):
                pass

    before, after = in_turn([lambda: decode(None), lambda: decode(kept)], rounds)
    what = f"decoder kept, {name}, {np.mean([last - first for _, (first, last) in jobs]):.0f} packets a piece"
    return _row(what, before / len(jobs), after / len(jobs))


def resizing(name: str, folder: Path, work: Path, rounds: int) -> Row:
    """One frame, again and again, in all threads."""
    clip = clips.stored(name, folder, work)
    ((_, frame),) = decode_frames(slice_of(clip, [0]))
    planes = RgbConverter()(frame, full_range=False)
    whole = CropBox(0, (0.0, 0.0), (float(clip.height), float(clip.width)), (SIDE, SIDE))
    placer = CropResizer(whole, height=clip.height, width=clip.width, scratch=Scratch())
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as helped, ThreadPoolExecutor(cores, initializer=resize_in_one_thread) as alone:

        def resize(pool: ThreadPoolExecutor) -> None:
            list(pool.map(lambda _: placer(planes), range(FRAMES)))

        before, after = in_turn([lambda: resize(helped), lambda: resize(alone)], rounds)
    return _row("resizing alone, a frame", before / FRAMES, after / FRAMES)


def frames(name: str, folder: Path, work: Path, rounds: int) -> list[Row]:
    """Slices decoded, decoded and made RGB, and that and resized."""
    clip = clips.stored(name, folder, work)
    parts = [slice_of(clip, start + WINDOW) for start in range(0, 240, 24)]
    whole = CropBox(0, (0.0, 0.0), (float(clip.height), float(clip.width)), (SIDE, SIDE))
    kept, convert = ReusableCodecContext(), RgbConverter()
    placer = CropResizer(whole, height=clip.height, width=clip.width, scratch=Scratch())

    def draw(part: EncodedSlice, stages: int) -> None:
        for _, frame in decode_frames(part, context=kept):
            planes = convert(frame, full_range=False) if stages > 1 else None
            if planes is not None and stages > 2:
                placer(planes)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=resize_in_one_thread) as pool:

        def run(stages: int) -> None:
            list(pool.map(lambda part: draw(part, stages), parts))

        taken = in_turn([lambda n=n: run(n) for n in (1, 2, 3)], rounds)  # type: ignore[misc]
    count = len(parts) * len(WINDOW)
    named = (
        (f"decoding, {name}, for each wanted frame", taken[0]),
        ("RGB, a frame", taken[1] - taken[0]),
        ("resizing, a frame", taken[2] - taken[1]),
    )
    return [{"what": what, "before ms": "-", "now ms": ms / count, "ratio": "-"} for what, ms in named]


def looking(name: str, folder: Path, work: Path, rounds: int) -> Row:
    """All packets of a clip, classified."""
    clip = clips.stored(name, folder, work)
    data = memoryview(clip.mp4.read_bytes())
    places = zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)
    packets = [data[at : at + size] for at, size in places]
    (taken,) = in_turn([lambda: classify(clip.codec, clip.stsd, packets)], rounds)
    return {"what": f"looking at a packet, {name}", "before ms": "-", "now ms": taken / len(packets), "ratio": "-"}


def reading(name: str, folder: Path, work: Path, rounds: int) -> Row:
    """A batch's way to the decoder."""
    packed = work / "packed"
    pack([clips.source(name, folder)], packed, progress=False)
    dataset = Dataset.open(str(packed))
    recipe = plan_samples.SampleSpec(sv.Window(len(WINDOW)), seed=0, num_random=0)
    access = ShardAccess(dataset, cache=None, limit_bytes=0)

    def batch(number: int) -> None:
        # The first sample of the first clip, each in another pass.
        items = np.zeros(BATCH, dtype=np.int64)
        step = Step(items, number * BATCH + np.arange(BATCH), items == 0)
        (encoded,) = read_batches(dataset, [plan_samples.plan_samples(dataset, step, recipe)], access)
        split_at_idr(encoded.slices, [(None, 0)] * BATCH)

    (taken,) = in_turn([lambda: [batch(number) for number in range(4)]], rounds)
    return {"what": f"reading a batch of {BATCH}, {name}", "before ms": "-", "now ms": taken / 4, "ratio": "-"}


def _row(what: str, before: float, after: float) -> Row:
    return {"what": what, "before ms": before, "now ms": after, "ratio": before / after}


def main() -> int:
    """The program."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=Path, metavar="DIR", help="keep the clips there, and take those that are there")
    options = parser.parse_args()
    rounds = 3 if options.quick else 9
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = options.clips or work / "clips"
        clips.make_all(["h264 720p 15", "h264 720p 250", "hevc 720p 60"], folder)
        rows: list[Row] = []
        for number, made in enumerate(
            (
                lambda place: kept_decoder("h264 720p 15", folder, place, rounds),
                lambda place: kept_decoder("h264 720p 250", folder, place, rounds),
                lambda place: resizing("h264 720p 15", folder, place, rounds),
                lambda place: frames("h264 720p 250", folder, place, rounds),
                lambda place: looking("h264 720p 250", folder, place, rounds),
                lambda place: looking("hevc 720p 60", folder, place, rounds),
                lambda place: reading("hevc 720p 60", folder, place, rounds),
            )
        ):
            place = work / str(number)
            place.mkdir()
            found = made(place)
            rows += found if isinstance(found, list) else [found]
    return finish(Report("parts", rows, [], [], []), options, machine())


if __name__ == "__main__":
    raise SystemExit(main())
