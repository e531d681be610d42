"""Whether loaders keep what they take: memory, descriptors, threads and processes of a long run, and of loaders that
are made and dropped.

    python -m tools.soak --minutes 60                 each kind of loader in a process of its own, all at once
    python -m tools.soak --minutes 5 stream           one kind
    python -m tools.soak --made 200 --minutes 0       made and dropped alone
    python -m tools.soak --minutes 8 --device cuda    H.264 on a GPU; made and dropped, one kind after another

Memory is the proportional set size (PSS) of a process and its children, without mapped files, of which a process has
the larger a share the fewer others there are; beside it what is in use by malloc
(`mallinfo2`), Arrow's pool and Python's objects, and of a GPU all that is in use on it. PSS that grows while that does
not is fragmentation; with `--trim` malloc gives back what it has free before each sample. A slope is that
of a line through the means of ten parts of the samples behind the first third, with Student's 95 % interval. The exit
code is 1 if the whole interval lies above the limit, or descriptors, threads or processes grow.

Samples of a long run begin once its descriptors have not changed for a tenth of the time, at the latest behind half of
it. On a GPU each of some seven engines opens a decode session for every size, when it is first given a clip of that
size: 3 descriptors, 4 MB of PSS, 8 MB of malloc. That is no growth, and takes a minute or two; sessions that are opened
later count. For that reason there are 6 sizes of clips on a GPU, and 15 on the CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

import streamvid as sv
from tools.clips import Recipe, write
from tools.processes import processes_below
from tools.recipes import Codec

WARM_PARTS: Final = 10
"""Parts of a long run over which the number of descriptors must not change before the first sample."""
PARTS: Final = 10
STUDENT: Final = 2.306
"""The 97.5 % quantile of Student's t for PARTS - 2 degrees of freedom."""
MB_PER_HOUR: Final = 4.0
KB_PER_LOADER: Final = 20.0
Sample = dict[str, float]
MEMORY: Final = ("pss", "gpu", "malloc", "arrow")
LIMITED: Final = ("pss", "gpu")
COUNTS: Final = ("descriptors", "threads", "processes")


def _clips(folder: Path, name: str = "set") -> sv.ClipDataset:
    return sv.ClipDataset(folder / name, sampling=sv.Window(8, stride=2), transform=sv.Transform(resize=(80, 80)))


def _stream(
    folder: Path, name: str = "set", engine: Any = "default", device: str = "cpu", **transform: Any
) -> sv.StreamLoader:
    sampling, final = sv.Window(8, stride=2), sv.Transform(resize=(80, 80), **transform)
    options: Any = {"batch_size": 4, "sampling": sampling, "transform": final, "device": device, "num_threads": 2}
    return sv.StreamLoader(folder / name, engine=engine, **options)


def _random(folder: Path, name: str = "set", device: str = "cpu") -> sv.GpuDataLoader:
    return sv.GpuDataLoader(_clips(folder, name), batch_size=4, num_workers=2, num_threads=2, device=device)


class _Plain:
    """DALI without streamvid: what it keeps of a pipeline."""

    def __init__(self, folder: Path) -> None:
        from nvidia.dali import fn, pipeline_def, types

        frames = [np.full((8, 144, 200, 3), n, dtype=np.uint8) for n in range(4)]

        @pipeline_def(batch_size=4, num_threads=2, device_id=None, prefetch_queue_depth=2)
        def graph() -> Any:
            given = fn.external_source(source=lambda: frames, batch=True, dtype=types.UINT8, ndim=4, layout="FHWC")
            turned = fn.rotate(fn.resize(given, size=(80, 80)), angle=5.0, fill_value=0, keep_size=True)
            return fn.crop_mirror_normalize(turned, dtype=types.FLOAT, output_layout="CFHW")

        self._pipeline = graph()
        self._pipeline.build()

    def __iter__(self) -> Iterator[object]:
        return (self._pipeline.run() for _ in range(6))

    def close(self) -> None:
        self._pipeline = None


KINDS: Final[dict[str, dict[str, Callable[[Path], Any]]]] = {
    "cpu": {
        "stream": partial(_stream, horizontal_flip=0.5),
        "dali": partial(_stream, rotate=5, brightness=0.2),
        "engine": partial(_stream, name="vp9", engine="dali"),
        "gpu": _random,
        "clips": _clips,
        "plain": _Plain,
    },
    "cuda": {
        "stream": partial(_stream, name="h264", device="cuda"),
        "engine": partial(_stream, name="h264", device="cuda", engine="dali"),
        "gpu": partial(_random, name="h264", device="cuda"),
    },
}
_MALLINFO: Final = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO.split()]


def sample(*, trim: bool = False) -> Sample:
    """The resources of this process and its children: memory in bytes, Python's blocks, counts; `time` in seconds."""
    libc = ctypes.CDLL(None)
    if trim:
        libc.malloc_trim(0)
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    free, total = torch.cuda.mem_get_info() if torch.cuda.is_initialized() else (0, 0)  # type: ignore[no-untyped-call]
    processes = [os.getpid(), *processes_below(os.getpid())]
    memory = {"pss": sum(map(_pss, processes)), "malloc": info.uordblks + info.hblkhd}
    memory |= {"gpu": total - free, "arrow": pa.total_allocated_bytes(), "blocks": sys.getallocatedblocks()}
    counts = {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
    return {"time": time.monotonic(), **memory, **counts, "processes": len(processes)}


def _pss(pid: int) -> float:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(1024 * float(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return 0.0


def slope(times: npt.ArrayLike, values: npt.ArrayLike) -> tuple[float, float]:
    """The slope of a line through the means of `PARTS` parts of a series, and half the width of its 95 % interval."""
    x, y = (np.array([part.mean() for part in np.array_split(np.asarray(of, float), PARTS)]) for of in (times, values))
    x = x - x.mean()
    squares = (x**2).sum()
    rise = float((x * y).sum() / squares)
    rest = y - y.mean() - rise * x
    return rise, float(STUDENT * np.sqrt((rest**2).sum() / (PARTS - 2) / squares))


def steady(make: Callable[[], Any], seconds: float, look: Callable[[], Sample]) -> Iterator[Sample]:
    """One loader, epoch after epoch, some 300 samples; none before its descriptors stand still."""
    loader = make()

    def epoch() -> float:
        for _ in loader if not isinstance(loader, sv.ClipDataset) else map(loader.__getitem__, range(len(loader))):
            pass
        return time.monotonic()

    begin = due = still = time.monotonic()
    count = 0
    while due < min(still + seconds / WARM_PARTS, begin + seconds / 2):
        due = epoch()
        if (found := len(os.listdir("/proc/self/fd"))) != count:
            count, still = found, due
    print(f"warm after {due - begin:.0f} s, with {count} descriptors", flush=True)
    each = (begin + seconds - due) / 300
    while (now := epoch()) < begin + seconds:
        if now >= due:
            due += each
            yield look()


def made_and_dropped(make: Callable[[], Any], count: int, look: Callable[[], Sample]) -> Iterator[Sample]:
    """Loaders that are left in all ways: unused, early, by an error, at the end; closed, or only dropped."""

    def use(n: int) -> None:
        loader = make()
        if isinstance(loader, sv.ClipDataset):
            loader[n % len(loader)]
            return
        with suppress(ZeroDivisionError):
            for _ in loader if n % 4 else ():
                if n % 4 == 1:
                    break
                _ = 1 // (n % 4 - 2)
        if n % 8 < 4:
            loader.close()

    for n in range(count):
        use(n)
        gc.collect()
        yield look()


def judge(name: str, samples: list[Sample], limit: float, per: str) -> bool:
    """Print the slopes of a series; whether it is flat: PSS and memory of a GPU below a limit in MB per hour, or in kB
    per loader."""
    kept = samples[len(samples) // 3 :]
    if len(kept) < 2 * PARTS:
        print(f"{name}: {len(samples)} samples are too few")
        return False
    at, unit = ([one["time"] / 3600 for one in kept], 1e6) if per == "h" else (range(len(kept)), 1e3)
    found = {of: slope(at, [one[of] / (unit if of in MEMORY else 1) for one in kept]) for of in (*MEMORY, "blocks")}
    parts = np.array_split([[one[of] for of in COUNTS] for one in kept], 2)
    before, after = (part.min(axis=0).astype(int).tolist() for part in parts)
    good = all(found[of][0] - found[of][1] <= limit for of in LIMITED)
    good &= all(a <= b for a, b in zip(after, before, strict=True))
    print(
        f"{name}: {'flat' if good else 'GROWS'}, {len(samples)} samples; in {'MB' if per == 'h' else 'kB'} per {per}:",
        ", ".join(f"{of} {rise:+.2f} ± {error:.2f}" for of, (rise, error) in found.items()),
        f"(PSS {kept[-1]['pss'] / 1e6:.0f} MB; {', '.join(COUNTS)} {before}, then {after})",
        flush=True,
    )
    return good


SETS: Final[dict[str, dict[str, tuple[Codec, ...]]]] = {
    "cpu": {"set": ("h264", "hevc", "vp9"), "vp9": ("vp9",)},
    "cuda": {"h264": ("h264",)},
}
"""Datasets and their codecs. VP9 is what DALI decodes on a CPU."""


def make(folder: Path, device: str) -> None:
    """Clips of many sizes and lengths, for fragmentation."""
    for name, codecs in SETS[device].items():
        if (folder / name).exists():
            continue
        (folder / f"{name}-clips").mkdir()
        for n in range(24):
            size, codec = 128 + 64 * (n % (5 if device == "cpu" else 2)), codecs[n % len(codecs)]
            recipe: Any = {"codec": codec, "width": size + 32 * (n % 3), "height": size, "frames": 20 + 7 * (n % 6)}
            write(Recipe(**recipe, b_frames=0 if codec == "vp9" else 2, seed=n), folder / f"{name}-clips" / f"{n}.mp4")
        sv.pack([str(folder / f"{name}-clips")], str(folder / name), shard_size=200_000, progress=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS['cpu'])}; default: all that the device has")
    parser.add_argument("--minutes", type=float, default=60, help="how long each loader runs; 0: not at all")
    parser.add_argument("--made", type=int, default=200, help="loaders that are made and dropped before; 0: none")
    parser.add_argument("--device", choices=list(KINDS), default="cpu")
    parser.add_argument("--trim", action="store_true", help="before each sample, let malloc give back what is free")
    parser.add_argument("--data", type=Path, help="a folder that an earlier run has made, or that is still empty")
    options = parser.parse_args()
    if unknown := [kind for kind in options.kinds if kind not in KINDS[options.device]]:
        parser.error(f"{options.device} has no kind {unknown[0]!r}: choose from {', '.join(KINDS[options.device])}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        make(folder, options.device)
        if len(options.kinds) != 1:
            same = ["--data", str(folder), "--minutes", str(options.minutes), "--made", str(options.made)]
            same += ["--device", options.device, *(["--trim"] if options.trim else [])]
            commands = [
                [sys.executable, "-m", "tools.soak", *same, kind] for kind in options.kinds or KINDS[options.device]
            ]
            if options.device == "cuda" and options.made:  # its memory is that of all processes
                codes = [subprocess.run(command, check=False).returncode for command in commands]
            else:
                codes = [run.wait() for run in [subprocess.Popen(command) for command in commands]]
            return int(any(codes))  # that of a process which a signal has ended is negative
        kind, good, look = options.kinds[0], True, partial(sample, trim=options.trim)
        loader = partial(KINDS[options.device][kind], folder)
        if options.made:
            samples = list(made_and_dropped(loader, options.made, look))
            good &= judge(f"{kind}, {options.made} made and dropped", samples, KB_PER_LOADER, "loader")
        if options.minutes:
            samples = list(steady(loader, 60 * options.minutes, look))
            good &= judge(f"{kind}, {options.minutes:g} min", samples, MB_PER_HOUR, "h")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
