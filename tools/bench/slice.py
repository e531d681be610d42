"""The cost of a slice: from frame numbers to a small MP4, against remuxing the same packets through PyAV.

    python -m tools.bench.slice [--quick] [--json FILE]

Videos of 60, 300 and 3,000 seconds at 60 frames a second, x264's usual GOPs of 250; 16 frames one second apart, about
500 packets. All is in memory or in the page cache. Medians of many rounds, the ways in turn.

- slice: frame numbers → packets → byte ranges → MP4 (`streamvid.slice`); of that, "copy" is what copying the same
  bytes costs, which is done twice: out of what was read, and behind the MP4's header.
- mux: PyAV puts the same packets, ready in memory, into an MP4.
- seek and mux: PyAV opens the video, seeks to each group of pictures, reads its packets and puts those needed into an
  MP4.
- first: what the first slice of a clip takes on top, to sort its frame index.

Then the longest video is packed, and the packets of 16 frames found that begin two thirds into it, when nothing of the
clip's frame index is at hand: "blocks" reads its directory and the blocks that hold them, "whole" all of it, and "plan"
is all that a loader does for a random window by frames a second, up to its byte ranges.
"""

from __future__ import annotations

import io
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt

import streamvid as sv
from streamvid.fetch.plan_samples import SampleSpec, plan_samples
from streamvid.plan.epoch import Step
from streamvid.video.frame_index import DISPOSABLE, FrameIndex
from streamvid.video.index_blocks import AnyIndex, IndexBlocks
from streamvid.video.packet_selection import PacketSelection, byte_ranges, select_packets
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.sources import FPS, GOP, repeat
from tools.clips import Recipe, write

PATTERN: Final = 4
"""Different groups of pictures, of which videos are made over and over, to the next whole one."""
WANTED: Final = 16
MOST_US: Final = 200.0
"""Microseconds beside the copies, issue 5."""
MOST_WINDOW_US: Final = 300.0
"""Microseconds for a window in an hour-long clip whose index is not at hand, issue 17."""
FLATNESS: Final = 1.2
"""The longest video's time against the shortest's, issue 5."""
BUCKET_GAP, BUCKET_WASTE = 1 << 20, 0.15
"""The gap and waste within which ranges of a bucket are read as one: `streamvid.video.packet_selection.byte_ranges`."""
LENGTHS: Final = (60, 300, 3600)

Int64 = npt.NDArray[np.int64]


def muxed(video: Any, packets: list[Any]) -> int:
    """Put packets into an MP4 through PyAV; its size in bytes."""
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as output:
        copy = output.add_stream_from_template(video)
        for packet in packets:
            packet.stream = copy
            output.mux(packet)
    return len(target.getbuffer())


def sought(path: Path, first: Int64, last: Int64, needed: set[int]) -> int:
    """Open the video, read groups of pictures, each from `first` to `last` (dts), and mux their needed packets."""
    with av.open(str(path)) as source:
        stream = source.streams.video[0]
        packets = []
        for start, end in zip(first.tolist(), last.tolist(), strict=True):
            source.seek(start, stream=stream)
            for packet in source.demux(stream):
                if packet.dts is None or packet.dts > end:
                    break
                if packet.dts >= start and packet.dts in needed:
                    packets.append(packet)
        return muxed(stream, packets)


def in_turn(ways: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median microseconds of each."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, taken in zip(ways, times, strict=True):
            started = time.perf_counter()
            way()
            taken.append(time.perf_counter() - started)
    return [median(taken) * 1e6 for taken in times]


def measure(path: Path, clip: StoredClip, seconds: int, *, rounds: int) -> Row:
    """One row of the table."""
    index, data = clip.index, clip.mp4.read_bytes()
    view = memoryview(data)
    # At about two thirds of the video, and in the same pictures whatever its length.
    frames = np.arange(WANTED) * FPS + (len(index) - WANTED * FPS) * 2 // 3 // (PATTERN * GOP) * (PATTERN * GOP) + 200
    part = select_packets(index, frames)

    def first() -> PacketSelection:
        fresh = FrameIndex(index.pts, index.offset, index.size, index.flags)
        return select_packets(fresh, frames)

    def ours() -> int:
        small, _ = sv.slice(index, frames, lambda start, end: view[start:end], stsd=clip.stsd)
        return len(small)

    packed = np.frombuffer(data, dtype=np.uint8, count=int(part.sizes.sum()))

    with av.open(str(path)) as source:
        stream = source.streams.video[0]
        at: dict[int, Any] = {}
        dts = []
        for packet in source.demux(stream):
            if packet.size:
                at[int(packet.pos or 0)] = packet
                dts.append(packet.dts)
        # The stored clip has the source's packets, in their order, at other places.
        number = np.searchsorted(index.offset, part.offsets)
        packets = [list(at.values())[n] for n in number.tolist()]
        times = np.array(dts)[number]
        turns = np.flatnonzero(np.diff(part.gops)) + 1
        firsts, lasts = times[[0, *turns]], times[[*(turns - 1), -1]]
        needed = set(times.tolist())
        ways: list[Callable[[], Any]] = [
            ours,
            lambda: (packed.copy(), packed.copy()),
            lambda: muxed(stream, packets),
        ]
        whole, copy, mux = in_turn(ways, rounds)
        # Apart from the others, as it empties the processor's caches for those.
        again, fresh = in_turn([lambda: select_packets(index, frames), first], max(3, rounds // 5))
        (seek,) = in_turn([lambda: sought(path, firsts, lasts, needed)], max(3, rounds // 20))
    return {
        "video, s": seconds,
        "packets": len(part.sizes),
        "kB": int(part.sizes.sum()) // 1000,
        "slice, us": whole,
        "copy, us": copy,
        "mux, us": mux,
        "mux / slice": mux / whole,
        "seek and mux, us": seek,
        "seek / slice": seek / whole,
        "first, us": fresh - again,
    }


def reads(index: FrameIndex, seconds: float) -> tuple[str, float]:
    """What is read from a bucket for frames so far apart, at random places: a sentence, and requests per group of
    pictures."""
    rng, step = np.random.default_rng(0), round(seconds * FPS)
    counts = []
    for start in rng.integers(0, len(index) - WANTED * step, 100).tolist():
        part = select_packets(index, start + step * np.arange(WANTED))
        spans = byte_ranges(part, gap=BUCKET_GAP, waste=BUCKET_WASTE)
        read, needed = (spans[:, 1] - spans[:, 0]).sum(), part.sizes.sum()
        counts.append((len(spans), len(np.unique(part.gops)), len(byte_ranges(part, gap=0)), read / needed))
    requests, gops, without, waste = np.mean(counts, axis=0).tolist()
    return (
        f"frames {seconds:g} s apart: {requests:.1f} requests for {gops:.1f} groups of pictures, "
        f"{waste:.2f} times the bytes needed; {without:.0f} requests if nothing else were read"
    ), requests / gops


def index_us(path: Path, folder: Path, *, rounds: int) -> tuple[list[float], int]:
    """Microseconds to find packets by blocks of the index, by the whole of it, and to plan a window; and the index's
    packets."""
    sv.pack(path, folder / "set", options=sv.PackOptions(compatible_with="any"), progress=False)
    dataset = sv.Dataset.open(folder / "set")
    step = Step(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))
    spec = SampleSpec(sv.Window(WANTED, fps=FPS / 2), seed=0, num_random=0)
    frames = int(dataset.clips.frames[0]) * 2 // 3 + 2 * np.arange(WANTED)

    def select(_: int, index: AnyIndex) -> PacketSelection:
        return index.select(frames) if isinstance(index, IndexBlocks) else select_packets(index, frames)

    def by_blocks() -> None:
        dataset.forget_indexes()
        dataset.use_indexes([0], select)

    def whole() -> None:
        dataset.forget_indexes()
        select_packets(dataset.indexes([0])[0], frames)

    def plan() -> None:
        dataset.forget_indexes()
        plan_samples(dataset, step, spec)

    return in_turn([by_blocks, whole, plan], rounds), int(dataset.clips.packets[0])


def main() -> int:
    options = arguments(__doc__).parse_args()
    lengths, rounds = (LENGTHS[:2], 60) if options.quick else (LENGTHS, 300)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        params = (("b-adapt", "1"), ("scenecut", "40"))
        recipe = Recipe(
            width=640, height=360, fps=Fraction(FPS), frames=PATTERN * GOP, gop=GOP, b_frames=3, number=False
        )
        pattern = write(replace(recipe, params=params), folder / "pattern.mp4")
        for seconds in lengths:
            inner = folder / str(seconds)
            inner.mkdir()
            period = Fraction(PATTERN * GOP, FPS)
            path = repeat(pattern, math.ceil(seconds / period), inner / "source.mp4", seconds=period)
            clip = store_clip(path, inner)
            rows.append(measure(path, clip, seconds, rounds=rounds))
        (blocks, whole, plan), packets = index_us(path, inner, rounds=rounds)
    own = [float(row["slice, us"]) - float(row["copy, us"]) for row in rows]
    checks = [Check.at_most(f"us for a slice beside the copies, {row['video, s']} s", us, MOST_US)
              for row, us in zip(rows, own, strict=True)]  # fmt: skip
    checks.append(Check.at_most("time at the longest against the shortest video", own[-1] / own[0], FLATNESS))
    checks.append(Check.at_least("least gain over mux", min(float(row["mux / slice"]) for row in rows), 1.0))
    checks.append(Check.at_most(f"us to find a window among {packets:,} packets, by blocks", blocks, MOST_WINDOW_US))
    disposable = (clip.index.flags & DISPOSABLE) != 0
    apart = [reads(clip.index, distance) for distance in (0.25, 1, 2, 5) if distance * WANTED < lengths[-1]]
    checks.append(Check.at_most("most requests per group of pictures", max(ratio for _, ratio in apart), 1.0))
    notes = [
        f"disposable: {disposable.mean():.0%} of the packets, "
        f"{clip.index.size[disposable].sum() / clip.index.size.sum():.0%} of the bytes",
        f"over a bucket, {WANTED} frames at random places:",
        *(note for note, _ in apart),
        f"packets of a window among {packets:,}, index not at hand: {blocks:.0f} us by blocks, {whole:.0f} us by the "
        f"whole index; to plan a random window {plan:.0f} us",
    ]
    return finish(Report("slice", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
