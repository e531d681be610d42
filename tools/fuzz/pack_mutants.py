"""`pack` over mutants of video files, and what it accepts held against a sequential decode:
`python -m tools.fuzz.pack_mutants --count 1000 [--clips FOLDER]`.

A finding is a pack that fails or takes 1 GiB or more, an error that is not one of streamvid's, or a frame of an
accepted clip that is neither what FFmpeg's own demuxer and decoder give in sequence, nor reported as damaged.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

import streamvid as sv
from streamvid.color.yuv_to_rgb import RgbConverter
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import encoded_slice
from streamvid.mp4.boxes import iter_boxes
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.codec_context import bare_context
from streamvid.video.packet_selection import byte_ranges, extract_packets, select_packets
from tools.clips import hard_recipes, write
from tools.processes import peak_bytes, processes_below

LIMIT = 1 << 30
_AT_ONCE = 50


@dataclass
class Outcome:
    """The results of packing mutants.

    Attributes:
        mutants, accepted: how many there were, and how many were packed.
        frames: frames of accepted clips that were compared.
        damaged: clips of which a frame was reported as damaged.
        crashes: mutants that cost a worker process its life, which FFmpeg may, and pack survives.
        peak: the most memory that a process took, in bytes.
        reasons: of rejection, without their numbers, and how often.
        findings: what should not be.
    """

    mutants: int = 0
    accepted: int = 0
    frames: int = 0
    damaged: int = 0
    crashes: int = 0
    peak: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def mutant(draw: random.Random, original: bytes, files: Sequence[bytes]) -> bytes:
    """A file with one fault or two; heads are those of others."""
    data = bytearray(original)
    for _ in range(draw.choice((1, 1, 2))):
        at, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        end = min(end, at + (1 << draw.randrange(18)))
        match draw.randrange(8):
            case 0 | 6 | 7:
                # Half of them in the headers, which are at either end.
                whole = range(len(data))
                places = draw.choice((whole[:4096], whole[-4096:], whole, whole))
                for place in draw.choices(places, k=1 << draw.randrange(7)) if places else ():
                    data[place] ^= 1 << draw.randrange(8)
            case 1:
                del data[end:]
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * draw.choice((1, 2, 10))
            case 4:
                data = _swapped(draw, data)
            case 5:
                head = draw.choice(files)
                size = 1 << draw.randrange(4, 13)
                data[:size] = head[:size]
        if not data:
            break
    return bytes(data)


def _swapped(draw: random.Random, data: bytearray) -> bytearray:
    """With two boxes of one level in each other's place; of a file without boxes, two ranges."""
    level = (0, len(data))
    boxes: list[tuple[int, int]] = []
    for _ in range(draw.randrange(1, 7)):
        inside = [(start - 8, end) for _, start, end in iter_boxes(data, *level)]
        boxes = inside if len(inside) > 1 else boxes
        if not inside:
            break
        start, end = draw.choice(inside)
        level = (start + 8, end)
    if len(boxes) < 2:
        places = sorted(draw.randrange(len(data) + 1) for _ in range(4))
        boxes = [(places[0], places[1]), (places[2], places[3])]
    (a, b), (c, d) = sorted(draw.sample(boxes, 2))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def run(count: int, seed: int, files: dict[str, bytes], folder: Path) -> Outcome:
    """Pack mutants, some at a time, and compare what is accepted."""
    found, draw, named = Outcome(), random.Random(seed), list(files.items())
    watch = _Peak()
    with closing(watch):
        for first in range(0, count, _AT_ONCE):
            place = folder / f"{first:06d}"
            place.mkdir()
            for n in range(first, min(count, first + _AT_ONCE)):
                name, data = draw.choice(named)
                (place / f"{n:06d}-{name}").write_bytes(mutant(draw, data, list(files.values())))
                found.mutants += 1
            _pack(place, found)
            found.peak = max(found.peak, watch.peak)
    if found.peak >= LIMIT:
        found.findings.append(f"{found.peak >> 20} MiB were taken")
    return found


def _pack(place: Path, found: Outcome) -> None:
    videos = sorted(place.iterdir())
    try:
        report = pack(videos, place / "set", options=PackOptions("any"), workers=1, progress=False)
    except sv.StreamvidError as error:
        # Nothing at all was packed.
        if "rejected" not in str(error) and "no video" not in str(error):
            found.findings.append(f"{place}: {error}")
        return
    except Exception as error:
        found.findings.append(f"{place}: {type(error).__name__}: {error}")
        return
    for video in report.rejected:
        found.reasons[re.sub(r"[0-9]+", "#", video.reason)[:70]] += 1
        found.crashes += "crashed" in video.reason
        if "unexpected" in video.reason:
            found.findings.append(f"{place}/{video.source}: {video.reason}")
    dataset = sv.Dataset.open(place / "set")
    found.accepted += len(dataset)
    draw = random.Random(len(dataset))
    for row in range(len(dataset)):
        try:
            compare(dataset, row, draw, found)
        except Exception as error:
            found.findings.append(f"{place}: {dataset.key(row)}: {type(error).__name__}: {error}")


def compare(dataset: sv.Dataset, row: int, draw: random.Random, found: Outcome) -> None:
    """Hold frames of a clip, read alone and in windows, against a sequential decode."""
    clips, index = dataset.clips, dataset.index(row)
    with open(dataset.shard_path(int(clips.shard[row])), "rb") as file:
        file.seek(int(clips.mp4_offset[row]))
        data = file.read(int(clips.mp4_size[row]))
    mp4 = np.frombuffer(data, dtype=np.uint8)
    count = len(index.visible)
    windows = [range(count)] if count <= 200 else []
    for _ in range(5):
        start = draw.randrange(count)
        windows.append(range(start, min(count, start + draw.choice((1, 1, 8, 16)))))
    needed = {frame for window in windows for frame in window}
    reference = dict(_sequential(data, int(index.pts[0]), {int(index.frame_pts[frame]) for frame in needed},
                                 full_range=clips.color_range[row] == "pc"))  # fmt: skip
    damaged = False
    for window in windows:
        packets = select_packets(index, np.array(window))
        spans = byte_ranges(packets)
        part = extract_packets(packets, spans, [mp4[a:b] for a, b in spans.tolist()])
        try:
            frames = decode_with_pyav(encoded_slice(clips, row, packets, part))
        except VideoError:
            damaged = True
            continue
        for frame, picture in zip(window, frames, strict=True):
            found.frames += 1
            wanted = reference.get(int(index.frame_pts[frame]))
            if wanted is None or not np.array_equal(wanted, picture):
                what = "is not in a sequential decode" if wanted is None else "differs from a sequential decode"
                found.findings.append(f"{dataset.path}: {dataset.key(row)}: frame {frame} of {window} {what}")
                break
    found.damaged += damaged


def _sequential(
    data: bytes, first_pts: int, wanted: set[int], *, full_range: bool
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """The frames that FFmpeg gives of an MP4 in sequence, by their times as the clip's index has them, in which that of
    the first packet is `first_pts`.

    Key frames of VP8 depend on nothing, but FFmpeg shows other ones behind damaged frames: of VP8 each is a beginning.
    """
    with closing(av.open(io.BytesIO(data), "r", format="mp4", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        context.thread_count = 1
        shift: int | None = None
        for packet in container.demux(stream):
            if shift is None:
                shift = int(packet.pts or 0) - first_pts
            if packet.is_keyframe and context.codec.canonical_name == "vp8":
                context = bare_context("vp8")
            try:
                frames = context.decode(packet if packet.size else None)
            except av.error.FFmpegError:
                continue
            for frame in frames:
                if frame.pts is not None and frame.pts - shift in wanted:
                    yield frame.pts - shift, np.stack(RgbConverter()(frame, full_range=full_range), axis=-1)


class _Peak:
    """Watches how much memory this process's children take."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.peak = max([self.peak, *map(peak_bytes, processes_below(os.getpid()))])

    def close(self) -> None:
        """Stop watching."""
        self._done.set()
        self._thread.join()


def sources(folder: Path, clips: Path | None, names: Sequence[str] = ()) -> dict[str, bytes]:
    """Small clips of every property that recipes have, or of those named, and real ones of a folder."""
    made = {}
    for name, recipe in hard_recipes().items():
        if not names or name in names:
            file = f"{name}.{recipe.container}"
            made[file] = write(recipe, folder / file).read_bytes()
    real = sorted(clips.rglob("*.*")) if clips and clips.is_dir() else []
    return made | {path.name: path.read_bytes() for path in real if path.suffix in (".mp4", ".mov", ".webm")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print what became of the mutants; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.pack_mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clips", type=Path, help="a folder of further videos")
    parser.add_argument("--keep", type=Path, help="where to work, and leave all; default: a temporary folder")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        (folder / "sources").mkdir(parents=True)
        found = run(options.count, options.seed, sources(folder / "sources", options.clips), folder)
    print(
        f"{found.mutants} mutants: {found.accepted} clips accepted, {found.frames:,} frames compared, {found.damaged} "
        f"clips with damaged frames; {sum(found.reasons.values())} rejected, {found.crashes} of them by a crash of "
        f"FFmpeg; at most {found.peak >> 20} MiB"
    )
    for reason, times in found.reasons.most_common(15):
        print(f"  {times:5} {reason}")
    for line in found.findings:
        print(f"finding: {line}")
    return int(bool(found.findings))


if __name__ == "__main__":
    sys.exit(main())
