"""Who feeds NVDEC's sessions: the native module and PyNvVideoCodec, same packets, same run.

    python -m tools.bench.nvdec [--quick] [--parts check,raw,pool,loop,sizes] [--only TEXT] [--clips DIR] [--json FILE]
                                [--sessions 1,2]

- check: random frames of clips of many sizes and formats in random batches, by both: the same, bit for bit;
- raw: pictures a second of the sessions alone, a thread for each engine, with no picture wanted; the better is
  the limit;
- pool: `NvdecSessionPool`, batch after batch, as a loader runs it: pictures decoded a second, none by cores; also with
  PyNvVideoCodec unless --quick;
- loop: a `StreamLoader` whose loop sums each batch, against a pool that decodes the same packets;
- sizes: random batches of clips of 132 sizes of the same area, against batches of one size.

To see it on slow cores: `taskset -c 0-3 python -m tools.bench.nvdec --parts raw,pool,loop`.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

import streamvid as sv
from streamvid.decode.native_session import NvdecLibrary, native_library
from streamvid.decode.nvdec import NvdecSessionPool
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of, whole
from tools.bench.engines import ENGINES, Engines
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.stream import BARE, epoch_slices, make_dataset
from tools.clips import Recipe, write

WINDOW: Final = 16
OF_LIMIT: Final = 0.95
BEYOND: Final = 1.03
BATCHES: Final = 32
"""Of an epoch of the loop, of which the first and the last `ENDS` do not count."""
ENDS: Final = 4
SIZES: Final = 132
AREA: Final = 640 * 360
PYNV, NATIVE = "PyNvVideoCodec/s", "native/s"
SHAPES: Final = {
    f"{codec} {rows}p GOP {gop}": Recipe(
        codec=codec, width=width, height=rows, frames=240, gop=gop, b_frames=2, style="texture"
    )
    for codec in ("h264", "hevc")
    for width, rows in ((1280, 720), (1920, 1080))
    for gop in (15, 60)
}
CHECKED: Final = [
    Recipe(frames=40, gop=10, b_frames=3, crf=28),
    Recipe(frames=40, gop=40, b_frames=7, width=416, height=180, params=(("ref", "16"), ("b-pyramid", "normal"))),
    Recipe(frames=24, gop=8, width=482, height=270),
    Recipe(frames=24, gop=8, width=66, height=98),
    Recipe(codec="hevc", frames=40, gop=20, b_frames=3, open_gop=True),
    Recipe(codec="hevc", frames=24, gop=8, b_frames=2, width=640, height=272, pix_fmt="yuv420p10le", crf=12),
    # Those above with --quick.
    Recipe(frames=40, gop=20, b_frames=0, width=640, height=272, options=(("profile", "baseline"),)),
    Recipe(frames=40, gop=12, width=1920, height=1080, b_frames=2, full_range=True),
    Recipe(frames=24, gop=8, width=1080, height=1920, b_frames=2),
    *(Recipe(frames=24, gop=8, width=w, height=h) for w, h in ((176, 144), (854, 480))),
    Recipe(codec="hevc", frames=40, gop=13, b_frames=2, width=1920, height=1080),
    *(Recipe(codec="hevc", frames=24, gop=8, width=w, height=h) for w, h in ((176, 144), (482, 270), (854, 480))),
    *(
        Recipe(codec="hevc", frames=24, gop=8, b_frames=2, width=w, height=h, pix_fmt="yuv420p10le", crf=12)
        for w, h in ((644, 268), (324, 180), (1920, 1080))
    ),
]
FEW: Final = 6


def stored(recipe: Recipe, folder: Path) -> StoredClip:
    """A clip as a dataset keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "source.mp4"
    if not path.exists():
        write(recipe, folder / "draft.mp4").replace(path)
    return store_clip(path, Path(tempfile.mkdtemp(dir=folder)))


def stored_all(recipes: Sequence[Recipe], folder: Path, name: str) -> list[StoredClip]:
    """Some at a time, each with pictures of its own."""
    with ThreadPoolExecutor(8) as pool:
        return list(
            pool.map(lambda n: stored(replace(recipes[n], seed=n + 1), folder / f"{name}-{n}"), range(len(recipes)))
        )


def compare_frames(library: NvdecLibrary, clips: Sequence[StoredClip], rounds: int) -> Counter[str]:
    """Slices that come out otherwise than from PyNvVideoCodec, of batches of all clips in random order."""
    import torch

    pool = NvdecSessionPool(device_id=0, engines=1)
    references = pool.submit([whole(clip) for clip in clips]).result()
    rng, compared = np.random.default_rng(5), 0
    different: Counter[str] = Counter()
    for engines in (1, ENGINES):
        pool = NvdecSessionPool(device_id=0, engines=engines, library=library)
        for number in range(rounds):
            order = rng.permutation(np.repeat(np.arange(len(clips)), 3))
            wanted = [np.sort(rng.choice(len(references[n]), 6, replace=False)) for n in order]
            if number % 3 == 0:
                wanted = [np.arange(len(references[n])) for n in order]
            got = pool.submit([slice_of(clips[n], frames) for n, frames in zip(order, wanted, strict=True)]).result()
            for n, rows, frames in zip(order, wanted, got, strict=True):
                expected = references[n][torch.from_numpy(rows).to(frames.device)]
                compared += len(rows)
                if not torch.equal(frames, expected):
                    clip = clips[n]
                    wrong = (frames != expected).flatten(1).any(1).nonzero().flatten().tolist()
                    different[f"{clip.codec} {clip.width}x{clip.height}, rows {wrong[:12]} of {rows[:12]}"] += 1
        pool.close()
    print(f"check: {compared} frames of {len(clips)} clips compared, {different.total()} slices differ", flush=True)
    for text in list(different)[:10]:
        print(f"DIFFERENT: {text}")
    return different


def windows(clip: StoredClip, batches: int, batch: int) -> list[list[EncodedSlice]]:
    """Windows at random places."""
    starts = np.random.default_rng(0).integers(0, len(clip.index.visible) - WINDOW, (batches, batch))
    return [[slice_of(clip, start + np.arange(WINDOW)) for start in row] for row in starts.tolist()]


def raw(library: NvdecLibrary | None, work: Sequence[EncodedSlice]) -> float:
    """Pictures a second of the sessions alone."""
    engines = Engines(library, work[0])
    engines.decode(work[:14])
    found = engines.decode(work)
    engines.close()
    return found


def rate(
    library: NvdecLibrary | None, works: Sequence[Sequence[Sequence[EncodedSlice]]], rounds: int, sessions: int = 1
) -> list[float]:
    """Pictures that a pool decodes a second, of each work a median: the next batch is submitted before one is waited
    for."""
    pool = NvdecSessionPool(device_id=0, engines=ENGINES, sessions=sessions, library=library)

    def once(work: Sequence[Sequence[EncodedSlice]]) -> float:
        began = time.perf_counter()
        pending = pool.submit(work[0])
        for batch in work[1:]:
            following = pool.submit(batch)
            pending.result()
            pending = following
        pending.result()
        return sum(len(one.sizes) for batch in work for one in batch) / (time.perf_counter() - began)

    found = [statistics.median([once(work) for _ in range(rounds + 1)][1:]) for work in works]
    pool.close()
    return found


def loop(source: Path, folder: Path, batch: int, threads: int | None) -> tuple[float, float, float]:
    """Pictures decoded a second, in the midst of an epoch: with a loop that sums each batch, with one that does
    nothing, and without a loader."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        dataset = make_dataset(Path(work), "set", [source], BATCHES * batch)
        loader = sv.StreamLoader(
            dataset, batch_size=batch, sampling=sv.Window(WINDOW), transform=BARE, device="cuda", num_threads=threads
        )
        slices = epoch_slices(loader.dataset, sv.Window(WINDOW), batch, 0)
        packets = sum(len(one.sizes) for batch in slices for one in batch) / len(slices)

        def epoch(*, summed: bool) -> float:
            ends = []
            for found in loader:
                if summed:
                    found["video"].sum().item()
                ends.append(time.perf_counter())
            return (ends[-ENDS] - ends[ENDS - 1]) / (len(ends) - 2 * ENDS + 1)

        epoch(summed=True)
        both = [(epoch(summed=True), epoch(summed=False)) for _ in range(2)]
        loader.close()
        (alone,) = rate(native_library(), [slices], 2, 2)
    summed, bare = (statistics.mean(some) for some in zip(*both, strict=True))
    return packets / summed, packets / bare, alone


def sizes(folder: Path, made: int, batches: int) -> tuple[list[list[EncodedSlice]], list[list[list[EncodedSlice]]]]:
    """Batches of clips of many sizes of the same area, and for some of the sizes batches of it alone."""
    widths = [384 + 6 * n * SIZES // made for n in range(made)]
    recipes = [
        Recipe(width=w, height=round(AREA / w / 2) * 2, frames=60, gop=30, b_frames=2, style="texture") for w in widths
    ]
    clips = stored_all(recipes, folder, f"size-{made}")
    rng = np.random.default_rng(1)

    def batch(numbers: Sequence[int]) -> list[EncodedSlice]:
        return [slice_of(clips[n], int(rng.integers(0, 44)) + np.arange(WINDOW)) for n in numbers]

    mixed = [batch(rng.integers(0, made, 64).tolist()) for _ in range(batches)]
    return mixed, [[batch([n] * 64) for _ in range(batches)] for n in range(0, made, made // 6)]


class Bench:
    """Rows and checks as they come."""

    def __init__(self, library: NvdecLibrary, folder: Path, sessions: Sequence[int]) -> None:
        self._library, self._folder, self._sessions = library, folder, sessions
        self.rows: list[Row] = []
        self.checks: list[Check] = []

    def _add(self, part: str, clips: str, batch: int, found: Sequence[float], of_limit: float) -> None:
        pynv, native = found
        row: Row = {"part": part, "clips": clips, "batch": batch, PYNV: pynv, NATIVE: native, "of limit": of_limit}
        self.rows.append(row)
        print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, flush=True)

    def check(self, *, quick: bool) -> None:
        """See the module's docstring; so of the others."""
        recipes = CHECKED[:FEW] if quick else CHECKED
        found = compare_frames(self._library, stored_all(recipes, self._folder, "check"), 4 if quick else 12)
        self.checks.append(Check.at_most("slices that differ from PyNvVideoCodec's", found.total(), 0))

    def limit(self, name: str, clip: StoredClip) -> float:
        """The `raw` rows."""
        (work,) = windows(clip, 1, 224)
        both = [raw(one, work) for one in (None, self._library)]
        self._add("raw", name, len(work), both, 1.0)
        return max(both)

    def pool(self, name: str, clip: StoredClip, batches: Sequence[int], limit: float, *, quick: bool) -> None:
        """One row for each batch size."""
        works = [windows(clip, max(2, 384 // batch), batch) for batch in batches]
        old = [math.nan] * len(batches) if quick else rate(None, works, 1)
        for sessions in self._sessions:
            for batch, pynv, native in zip(batches, old, rate(self._library, works, 1, sessions), strict=True):
                self._add(f"pool, {sessions} sessions", name, batch, (pynv, native), native / limit)
                text = f"of the limit, {sessions} sessions, {name}, batch {batch}"
                self.checks.append(Check.at_least(text, native / limit, OF_LIMIT))

    def loop(self, name: str, source: Path, threads: int | None) -> None:
        """Three rows, at a batch of 32."""
        found = loop(source, self._folder, 32, threads)
        for what, each in zip(("summed", "bare", "decoded alone"), found, strict=True):
            self._add(f"loop, {what}", name, 32, (math.nan, each), each / found[2])
        self.checks.append(Check.at_most(f"of decoding, a loop that sums, {name}", found[2] / found[0], BEYOND))

    def sizes(self, *, quick: bool) -> None:
        """Two rows."""
        mixed, alone = sizes(self._folder, SIZES, 4)
        for sessions in self._sessions:
            found = [rate(one, [mixed, *alone], 1, sessions if one else 1) for one in (None, self._library)[quick:]]
            one_size = [len(alone) / sum(1 / each for each in rates[1:]) for rates in found]
            of_one = found[-1][0] / max(one_size)
            name, none = f"sizes, {sessions} sessions", [math.nan] * quick
            self._add(name, "one size", 64, [*none, *one_size], 1.0)
            self._add(name, "mixed sizes", 64, [*none, *(one[0] for one in found)], of_one)
            text = f"of one size's speed, {sessions} sessions, mixed sizes"
            self.checks.append(Check.at_least(text, of_one, OF_LIMIT))


def main() -> int:
    """The program."""
    parser = arguments(__doc__)
    parser.add_argument("--parts", default="check,raw,pool,loop,sizes")
    parser.add_argument("--only", default="", help='clips whose names hold one of these: "720p GOP 15;hevc"')
    parser.add_argument("--batches", default="16,64,256")
    parser.add_argument("--threads", type=int, help="cores of the loop's loader; default: as it chooses")
    parser.add_argument("--sessions", default="2", help="for each engine, of the native module")
    parser.add_argument("--clips", type=Path, help="keep the clips there, and take those that are there")
    parser.add_argument("--module", type=Path, help="the native module; default: the one that was installed")
    options = parser.parse_args()
    folder, parts = options.clips or Path(tempfile.mkdtemp()), options.parts.split(",")
    shapes = {name: recipe for name, recipe in SHAPES.items() if any(one in name for one in options.only.split(";"))}
    places = {name: folder / name.replace(" ", "-") for name in shapes}
    if parts == ["make"]:
        stored_all(CHECKED, folder, "check")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(stored, shapes.values(), places.values()))
        sizes(folder, SIZES, 1)
        return 0
    library = native_library() if options.module is None else NvdecLibrary(options.module)
    if library is None:
        parser.error("the native module was not built, or finds no driver")
    bench = Bench(library, folder, [int(n) for n in options.sessions.split(",")])
    if "check" in parts:
        bench.check(quick=options.quick)
        if not bench.checks[0].passed:
            return 1
    if "raw" in parts:
        for name, recipe in shapes.items():
            clip = stored(recipe, places[name])
            limit = bench.limit(name, clip)
            if "pool" in parts:
                bench.pool(name, clip, [int(n) for n in options.batches.split(",")], limit, quick=options.quick)
            if "loop" in parts:
                bench.loop(name, places[name] / "source.mp4", options.threads)
    if "sizes" in parts:
        bench.sizes(quick=options.quick)
    report = Report("nvdec", bench.rows or [{"part": "check"}], bench.checks)
    return finish(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
