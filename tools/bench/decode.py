"""What decoding costs on a GPU: stock DALI, streamvid's decoder, and the limit of the chip.

    python -m tools.bench.decode [--quick] [--only TEXT] [--json FILE] [--plot FILE]

Batches of windows of 16 frames at random places, the same packets three ways:

- stock: `fn.decoders.video`, one stream per sample, with its better thread count;
- streamvid: `GpuDecoder`, batch after batch, as the loader runs it;
- limit: the same packets as long streams, one per engine, through decoders that stay open; frames are dropped.

Frames of the first batch are compared with stock's, bit for bit. Memory is what the GPU has less while batches run,
against the frames of the two batches that are alive at a time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.stream.decode import DaliDecoder, GpuDecoder
from streamvid.video.annexb import parameters, to_annex_b
from streamvid.video.remux import store_clip
from streamvid.video.slice import EncodedSlice
from streamvid.video.stored import StoredClip
from tests.reference import slice_of
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write
from tools.gpu_survey import arrays

WINDOW: Final = 16
FRAMES: Final = 400
ENGINES: Final = 7
GOPS: Final = (15, 60, 250)
STRIDES: Final = (1, 8)
BATCHES: Final = (16, 64, 256)
KINDS: Final = {
    "h264 720p": Recipe(codec="h264", width=1280, height=720),
    "hevc 720p": Recipe(codec="hevc", width=1280, height=720),
    "h264 1080p": Recipe(codec="h264", width=1920, height=1080),
    "hevc 1080p": Recipe(codec="hevc", width=1920, height=1080),
    "hevc10 640x272": Recipe(codec="hevc", width=640, height=272, pix_fmt="yuv420p10le"),
}
BARS: Final = {"720p": 2.5, "1080p": 8.0, "640x272": 3.0}
"""Gains over stock that issue 6 asks for at a batch of 64."""
OF_LIMIT: Final = 0.9


@dataclass(frozen=True)
class Case:
    """A row: kind of clip, frames from key frame to key frame, step from frame to frame, windows per batch."""

    kind: str
    gop: int
    stride: int
    batch: int


def cases(quick: bool, only: str) -> list[Case]:
    """All rows; other batch sizes than 64 for one GOP alone, as stock takes its time."""
    gops, kinds = (GOPS[:1], list(KINDS)[::2]) if quick else (GOPS, list(KINDS))
    found = [Case(kind, gop, stride, 64) for kind in kinds for gop in gops for stride in STRIDES]
    if not quick:
        found += [Case(kind, GOPS[0], 1, batch) for kind in kinds for batch in BATCHES if batch != 64]
    return [case for case in sorted(found, key=lambda c: list(KINDS).index(c.kind)) if only in case.kind]


def make_clip(kind: str, gop: int, folder: Path) -> StoredClip:
    """A clip of moving texture, with two B-frames between references."""
    from dataclasses import replace

    recipe = replace(KINDS[kind], frames=FRAMES, gop=gop, b_frames=2, style="texture")
    folder.mkdir()
    return store_clip(write(recipe, folder / "source.mp4"), folder)


def batches(clip: StoredClip, case: Case, count: int) -> list[list[EncodedSlice]]:
    """Windows at random places."""
    span = (WINDOW - 1) * case.stride + 1
    starts = np.random.default_rng(0).integers(0, FRAMES - span + 1, (count, case.batch)).tolist()
    return [[slice_of(clip, np.arange(s, s + span, case.stride)) for s in row] for row in starts]


def stock_seconds(work: list[EncodedSlice]) -> tuple[float, list[Any]]:
    """One stream per sample, with the better of two thread counts; and the frames."""
    taken = []
    frames: list[Any] = []
    for threads in (ENGINES, 16):
        decoder = DaliDecoder(device_id=0, threads=threads, max_batch=len(work))
        decoder.run(work[:ENGINES])
        started = time.perf_counter()
        out = decoder.run(work)
        taken.append(time.perf_counter() - started)
        frames = frames or arrays(out)
    return min(taken), frames


def our_seconds(decoder: GpuDecoder, work: list[list[EncodedSlice]]) -> float:
    """Seconds per batch, one batch ahead, as `streamvid.stream.run` does it."""
    started = time.perf_counter()
    begun: list[Callable[[], list[Any]]] = []
    for batch in work:
        begun.append(decoder.submit(batch))
        if len(begun) > 1:
            begun.pop(0)()
    for wait in begun:
        wait()
    return (time.perf_counter() - started) / len(work)


class Limit:
    """Decoders that stay open, one per engine, fed as fast as they take it."""

    def __init__(self, clip: StoredClip) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        codec = {"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[clip.codec]
        self._packet = nvc.PacketData
        self._pool = ThreadPoolExecutor(ENGINES)
        self._decoders = [
            nvc.CreateDecoder(gpuid=0, codec=codec, usedevicememory=True, maxwidth=clip.width, maxheight=clip.height)
            for _ in range(ENGINES)
        ]

    def seconds(self, work: Sequence[EncodedSlice]) -> float:
        """For all packets of the slices, cut into as many streams of as many packets as there are engines."""
        packets: list[bytes] = []
        for part in work:
            settings = parameters(part.codec, part.stsd)
            mine = to_annex_b(part.data, part.sizes, settings.length_size)
            packets += [settings.sets + mine[0], *mine[1:]]
        starts = np.flatnonzero([packet.startswith(settings.sets) for packet in packets])
        cuts = [int(starts[np.searchsorted(starts, n * len(packets) // ENGINES)]) for n in range(1, ENGINES)]
        shares = [packets[a:b] for a, b in zip([0, *cuts], [*cuts, len(packets)], strict=True)]

        def run(decoder: Any, share: list[bytes]) -> None:
            for data in share:
                decoder.Decode(self._made(data))
            decoder.Decode(self._made(b""))

        started = time.perf_counter()
        list(self._pool.map(run, self._decoders, shares))
        return time.perf_counter() - started

    def _made(self, data: bytes) -> Any:
        packet = self._packet()
        if data:
            packet.bsl_data = np.frombuffer(data, dtype=np.uint8).ctypes.data
        packet.bsl = len(data)
        return packet


class Memory:
    """The most that the GPU has less than at the start, sampled while it is open."""

    def __enter__(self) -> Memory:
        import torch

        torch.cuda.empty_cache()
        self._free = least = torch.cuda.mem_get_info()[0]
        self.taken = 0
        self._stop = threading.Event()

        def watch() -> None:
            nonlocal least
            while not self._stop.wait(0.005):
                least = min(least, torch.cuda.mem_get_info()[0])
                self.taken = self._free - least

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def measure(case: Case, clip: StoredClip, rounds: int) -> Row:
    """One row."""
    work = batches(clip, case, 3)
    packets = sum(len(part.sizes) for batch in work for part in batch) / len(work)
    limit = Limit(clip)
    limit.seconds(work[0])
    with Memory() as memory:
        decoder = GpuDecoder(device_id=0, threads=16, max_batch=case.batch)
        got = arrays(decoder.decode(work[0]))
        our_seconds(decoder, work)
    ours, bounds = [], []
    # In turn, so that what else the machine does falls on both.
    for _ in range(rounds):
        bounds.append(limit.seconds([part for batch in work for part in batch]) / len(work))
        ours.append(our_seconds(decoder, work))
    decoder.close()
    del limit
    stock, frames = stock_seconds(work[0])
    mine, bound = statistics.median(ours), statistics.median(bounds)
    return {
        "clips": case.kind,
        "GOP": case.gop,
        "stride": case.stride,
        "batch": case.batch,
        "stock s": stock,
        "streamvid s": mine,
        "limit s": bound,
        "delivered/s": case.batch * WINDOW / mine,
        "decoded/s": packets / mine,
        "x stock": stock / mine,
        "of limit": bound / mine,
        "memory": memory.taken / (2 * case.batch * WINDOW * clip.width * clip.height * 3),
        "same": str(all(np.array_equal(a, b) for a, b in zip(got, frames, strict=True))),
    }


def checks(rows: Sequence[Row]) -> list[Check]:
    """What issue 6 asks for."""
    made = []
    for row in rows:
        name = f"{row['clips']}, GOP {row['GOP']}, stride {row['stride']}, batch {row['batch']}"
        if row["batch"] == 64:
            bar = next(bar for size, bar in BARS.items() if size in str(row["clips"]))
            made.append(Check.at_least(f"x stock, {name}", float(row["x stock"]), bar))
        made.append(Check.at_least(f"of the limit, {name}", float(row["of limit"]), OF_LIMIT))
        made.append(Check.at_least(f"same frames, {name}", float(row["same"] == "True"), 1.0))
    return made


def plot(rows: Sequence[Row], path: Path) -> None:
    """Milliseconds per 1,000 decoded frames, by row: stock, streamvid, limit."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if row["batch"] == 64]
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(shown) + 1.5))
    place = np.arange(len(shown))
    for shift, (column, label) in enumerate(
        (("stock s", "stock DALI"), ("streamvid s", "streamvid"), ("limit s", "the chip's limit"))
    ):
        decoded = [float(row["decoded/s"]) * float(row["streamvid s"]) for row in shown]
        each = [1e6 * float(row[column]) / count for row, count in zip(shown, decoded, strict=True)]
        axes.barh(place + 0.27 * (shift - 1), each, height=0.27, label=label)
    axes.set_yticks(place, [f"{row['clips']}, GOP {row['GOP']}, stride {row['stride']}" for row in shown], fontsize=8)
    axes.set(xscale="log", xlabel="ms per 1,000 decoded frames, batches of 64")
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> int:
    """The program."""
    import torch

    parser = arguments(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds of clips whose name holds this")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows; needs matplotlib")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("tools.bench.decode needs an NVIDIA GPU and torch for CUDA", file=sys.stderr)
        return 2
    wanted = cases(options.quick, options.only)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        kinds = list(dict.fromkeys((case.kind, case.gop) for case in wanted))
        with ThreadPoolExecutor(4) as pool:
            made = pool.map(lambda kind: make_clip(*kind, Path(name) / f"{kind[0]} {kind[1]}"), kinds)
            clips = dict(zip(kinds, made, strict=True))
        for case in wanted:
            rows.append(measure(case, clips[case.kind, case.gop], 1 if options.quick else 3))
            print(rows[-1], file=sys.stderr, flush=True)
    if options.plot:
        plot(rows, options.plot)
    notes = [f"Windows of {WINDOW} frames; seconds per batch; memory in frames of two batches."]
    return finish(Report("decode", rows, checks(rows), notes), options)


if __name__ == "__main__":
    raise SystemExit(main())
