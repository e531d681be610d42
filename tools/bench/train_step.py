"""What a loader costs the model: the seconds of a training step fed by it, against those on synthetic data.

    python -m tools.bench.train_step [--quick] [--only TEXT] [--json FILE]

For every model and kind of clips, in turn and more than once:

- synthetic: the step alone, over one batch that lies on the GPU;
- floor: the same, while the engines decode the packets of the loader's batches beside it, one batch a step, and nobody
  converts or copies a picture;
- loader: the step over a StreamLoader's batches.

A step is forward, backward and SGD under bfloat16 autocast, eagerly or as one CUDA graph. Where the loader alone would
need more than 0.8 of it, a step takes several passes over its batch; their number is printed. Then, by kernel, what the
GPU does for a batch of the loader, with a step that takes 1.25 times as long as the loader alone needs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

import streamvid as sv
from streamvid.video.packet_selection import EncodedSlice
from tools.bench.decode_parts import Limit
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.stream import epoch_slices, make_dataset
from tools.clips import Recipe, write

FRAMES: Final = 16
SIDE: Final = 224
BATCH: Final = 32
MOST_OF_STEP: Final = 0.8
"""Of a step, the loader alone may need this."""
BARS: Final = {"720p": 0.01, "1080p": 0.03, "4K": 0.03}
"""Growth of the step above synthetic data that issue 16 allows, or `ABOVE_FLOOR` if that is higher."""
ABOVE_FLOOR: Final = 0.01
GPU_MS: Final = {"h264 1080p": 6.0}
"""What the GPU may take for a batch of 512 frames."""
_AHEAD: Final = 6
"""Steps that do not count: of as many batches, the loader has made some before."""
MODELS: Final = ("r3d_18", "mvit_v2_s", "vit_b_16")
_BASE: Final = Recipe(codec="h264", frames=96, gop=15, style="texture")
CLIPS: Final = {
    "h264 720p": replace(_BASE, width=1280, height=720),
    "h264 1080p": replace(_BASE, width=1920, height=1080),
    "hevc 4K": replace(_BASE, codec="hevc", width=3840, height=2160),
}
TRANSFORM: Final = sv.Transform(
    resize=256, crop=SIDE, horizontal_flip=0.5, mean=(0.45,) * 3, std=(0.225,) * 3, layout="CTHW", dtype="float16"
)
_ENDLESS: Final = 100_000
"""Steps of an epoch: more than are made, as the loop waits for the first batch of each."""
_TABLE: Final = 12
"""Kernels that are printed for each kind of clips."""


@dataclass(frozen=True)
class Size:
    """How much is measured: different clips, clips of a dataset, steps of a round, rounds."""

    made: int
    clips: int
    steps: int
    rounds: int


FULL: Final = Size(made=4, clips=640, steps=20, rounds=3)
QUICK: Final = Size(made=2, clips=192, steps=8, rounds=1)


class Step:
    """A training step of a model from torchvision, several passes over a batch; eager or a CUDA graph.

    Args:
        name: of the model; one for images takes each frame as one.
        graph: capture a pass as a CUDA graph.
    """

    def __init__(self, name: str, *, graph: bool) -> None:
        import torch
        import torchvision

        self.passes = 1
        models = torchvision.models
        images = name.startswith("vit")
        model = (getattr(models, name) if images else getattr(models.video, name))(weights=None).cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self._input = torch.randn(BATCH, 3, FRAMES, SIDE, SIDE, device="cuda", dtype=torch.float16)
        target = torch.zeros(BATCH * (FRAMES if images else 1), dtype=torch.int64, device="cuda")

        def one() -> None:
            video = self._input.transpose(1, 2).flatten(0, 1) if images else self._input
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(video).float(), target)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        self._pass: Callable[[], object] = one
        for _ in range(3):
            one()
        if graph:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    one()
            torch.cuda.current_stream().wait_stream(side)
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                one()
            self._pass = captured.replay
            self._captured_of = one  # whose model and target the graph works on

    def __call__(self, video: Any = None) -> None:
        """Queue a step on a batch, [batch, 3, frames, height, width] float16; default: the synthetic one."""
        if video is not None:
            self._input.copy_(video)
        for _ in range(self.passes):
            self._pass()


def seconds_of(step: Step, batches: Iterator[Any], steps: int, before: int = 2) -> float:
    """Of one step, over so many, after those that do not count."""
    import torch

    began = 0.0
    ends: deque[Any] = deque()
    for n in range(before + steps):
        if n == before:
            torch.cuda.synchronize()
            began = time.perf_counter()
        step(next(batches))
        ends.append(torch.cuda.current_stream().record_event())
        if len(ends) > 1:  # as a loop that reads each loss a step later
            ends.popleft().synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


class BesideDecoding:
    """None, a step at a time, while the engines decode a batch's packets for each: what `floor` is fed with."""

    def __init__(self, limit: Limit, batches: Sequence[Sequence[EncodedSlice]]) -> None:
        self._limit, self._batches, self._due, self._ended = limit, batches, threading.Semaphore(2), False
        self._thread = threading.Thread(target=self._decode)
        self._thread.start()

    def _decode(self) -> None:
        n = 0
        while self._due.acquire() and not self._ended:
            self._limit.seconds(self._batches[n % len(self._batches)])
            n += 1

    def __iter__(self) -> Iterator[None]:
        while True:
            self._due.release()
            yield None

    def close(self) -> None:
        """End the thread."""
        self._ended = True
        self._due.release()
        self._thread.join()


def videos_of(loader: sv.StreamLoader) -> Iterator[Any]:
    """Videos of a loader's batches."""
    for batch in loader:
        yield batch["video"]


def kernels(videos: Iterator[Any], batches: int, step: float) -> list[tuple[str, float, float]]:
    """What the GPU does for a batch of the loader, of which a loop takes one every `step` seconds: name, ms and calls,
    longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def run(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            next(videos)
            time.sleep(max(0.0, began + step - time.perf_counter()))
        torch.cuda.synchronize()

    run(_AHEAD)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run(batches)
    found = [(e.key, e.self_device_time_total / 1e3 / batches, e.count / batches) for e in seen.key_averages()]
    return sorted((row for row in found if row[1]), key=lambda row: -row[1])


def measure(folder: Path, kind: str, size: Size, only: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of one kind of clips, and its kernels as lines."""
    import torch

    recipe = CLIPS[kind]
    files = [folder / f"{kind}-{n}.mp4" for n in range(size.made)]
    for n, file in enumerate(files):
        write(replace(recipe, seed=n), file)
    dataset = make_dataset(folder, kind.replace(" ", "-"), files, size.clips)
    sampling = sv.Window(FRAMES)
    loader = sv.StreamLoader(
        dataset, batch_size=BATCH, sampling=sampling, transform=TRANSFORM, device="cuda", steps_per_epoch=_ENDLESS
    )
    slices = epoch_slices(loader.dataset, sampling, BATCH, 0)
    limit = Limit(codec=recipe.codec, width=recipe.width, height=recipe.height)
    fed = videos_of(loader)
    for _ in range(_AHEAD):
        next(fed)
    began = time.perf_counter()
    for _ in range(size.steps):
        next(fed)
    torch.cuda.synchronize()
    alone = (time.perf_counter() - began) / size.steps
    table = kernels(fed, 8, alone / MOST_OF_STEP)
    total = sum(ms for _, ms, _ in table)
    lines = [f"{kind}: {total:.1f} ms of the GPU for a batch of {BATCH * FRAMES} frames; ms and calls:"]
    lines += [f"  {ms:6.2f} {calls:7.1f}  {name[:100]}" for name, ms, calls in table[:_TABLE]]
    print(*lines, sep="\n", file=sys.stderr)
    rows = []
    wanted = [(name, graph) for name in MODELS for graph in (False, True)]
    for name, graph in [one for one in wanted if only in f"{one[0]}, {kind}, {'graph' if one[1] else 'eager'}"]:
        step = Step(name, graph=graph)
        step.passes = ceil(alone / MOST_OF_STEP / seconds_of(step, iter(lambda: None, 0), 4))
        times: dict[str, list[float]] = {"synthetic": [], "floor": [], "loader": []}
        for _ in range(size.rounds):
            times["synthetic"].append(seconds_of(step, iter(lambda: None, 0), size.steps))
            beside = BesideDecoding(limit, slices)
            times["floor"].append(seconds_of(step, iter(beside), size.steps))
            beside.close()
            times["loader"].append(seconds_of(step, fed, size.steps, _AHEAD))
        mid = {way: statistics.median(found) for way, found in times.items()}
        growth = {way: mid[way] / mid["synthetic"] - 1 for way in ("floor", "loader")}
        rows.append(
            {
                "model": name, "clips": kind, "mode": "graph" if graph else "eager", "batch": BATCH,
                "passes": step.passes, "loader alone s": alone, **{f"{way} s": mid[way] for way in times},
                "alone/step": alone / mid["synthetic"], "floor %": 100 * growth["floor"],
                "loader %": 100 * growth["loader"], "GPU ms": total,
            }
        )  # fmt: skip
        print({key: round(v, 4) if isinstance(v, float) else v for key, v in rows[-1].items()}, file=sys.stderr)
        del step
    loader.close()
    return rows, lines


def checks_of(rows: Sequence[Row]) -> list[Check]:
    """The bars of issue 16, in percent of the step on synthetic data."""
    found = []
    for row in rows:
        bar = next(bar for kind, bar in BARS.items() if kind in str(row["clips"]))
        allowed = max(100 * bar, float(row["floor %"]) + 100 * ABOVE_FLOOR)
        name = f"% that the step grows, {row['model']}, {row['clips']}, {row['mode']}"
        found.append(Check.at_most(name, float(row["loader %"]), allowed))
    of_gpu = {str(row["clips"]): float(row["GPU ms"]) for row in rows}
    for kind, most in GPU_MS.items():
        if kind in of_gpu:
            found.append(Check.at_most(f"ms of the GPU for {BATCH * FRAMES} frames, {kind}", of_gpu[kind], most))
    return found


def main() -> int:
    """The program."""
    import torch

    parser = arguments(__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='rows whose name holds this, as "r3d_18, h264 1080p"'
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("tools.bench.train_step needs an NVIDIA GPU and torch for CUDA", file=sys.stderr)
        return 2
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for kind in CLIPS:
            if any(options.only in f"{m}, {kind}, {mode}" for m in MODELS for mode in ("eager", "graph")):
                found, lines = measure(Path(name), kind, QUICK if options.quick else FULL, options.only)
                rows += found
                notes += lines
    if not rows:
        print("no row has that in its name", file=sys.stderr)
        return 2
    return finish(Report("train_step", rows, checks_of(rows), notes), options)


if __name__ == "__main__":
    raise SystemExit(main())
