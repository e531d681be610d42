"""How busy the host keeps NVDEC's engines, on a machine without a GPU.

    python -m tools.bench.feeding [--quick] [--json FILE] [--clips DIR] [--ms 0.72] [--kind "H.264 720p"]

The native module, the decode queue, the renderer and the loader are the real ones. Behind them is `paced_nvdec.c`:
seven engines that take a fixed time for each picture, decoding nothing. Calls of CUDA only let go of the GIL; launching
a kernel takes `LAUNCH` seconds of Python. For each size of batch: a loop that does nothing with batches, and one that
computes in Python for `LOOP` seconds with each.

*Busy* is the share of the time from their first picture to their last that the engines decode. It depends on the cores
of this machine, and on what else they do.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import streamvid as sv
from streamvid.color import surfaces
from streamvid.decode import nvdec
from streamvid.decode.nvdec_library import NvdecLibrary
from streamvid.loader import engine
from streamvid.loader.preflight import ClipRoutes
from tools.bench.decode_cases import FORMATS, LOOP_CLIPS, Case, clip_path, make_clips
from tools.bench.engines import ENGINES
from tools.bench.host_times import HostTimes
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.stream import TRANSFORM, make_dataset
from tools.clips import Recipe

BAR: Final = 0.95
BATCHES: Final = (16, 64, 256)
CLIPS: Final = 1280
"""That are decoded for a row, at least."""
FRAMES: Final = 16
LAUNCH: Final = 80e-6
LOOP: Final = 3e-3
_ENDLESS: Final = 100_000


def compute(seconds: float) -> None:
    """Keep the GIL busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Paced:
    """The driver that is none.

    Args:
        folder: for what is compiled.
        seconds: of an engine for a picture.
        recipe: of the clips.
    """

    def __init__(self, folder: Path, seconds: float, recipe: Recipe) -> None:
        from tests.support.nvdec_driver import SOURCES, compile_c

        source = Path(__file__).with_name("paced_nvdec.c")
        driver = compile_c([source], folder / "paced.so", "-shared", "-fPIC")
        module = compile_c([SOURCES / "nvdec.c"], folder / "nvdec.so", "-shared", "-fPIC", "-fvisibility=hidden")
        self.library, self.seconds = NvdecLibrary(module, str(driver), str(driver)), seconds
        self._calls = ctypes.CDLL(str(driver))
        self._calls.paced_set(ENGINES, ctypes.c_int64(round(1e9 * seconds)), recipe.width, recipe.height)

    def reset(self) -> None:
        """Count from now on."""
        self._calls.paced_reset()

    def counts(self) -> npt.NDArray[np.int64]:
        """int64 [engines, 4]: pictures, nanoseconds from the first to the last, of these idle, and how often."""
        found = (ctypes.c_int64 * 4 * ENGINES)()
        for n in range(ENGINES):
            self._calls.paced_counts(n, found[n])
        return np.array(found, dtype=np.int64)


@contextmanager
def in_place(paced: Paced) -> Iterator[None]:
    """Have it, and calls of CUDA that do nothing, used."""
    import pytest
    import torch

    from tests.support import fake_gpu

    let_go = ctypes.CDLL(None).getppid  # of the GIL, as calls of CUDA do

    class Event(fake_gpu.Event):
        def record(self, stream: Any) -> None:
            let_go()

        def synchronize(self) -> None:
            let_go()

        def query(self) -> bool:
            return bool(let_go()) or True

    class Stream(fake_gpu.Stream):
        def synchronize(self) -> None:
            let_go()

        def wait_event(self, event: Any) -> None:
            let_go()

    with pytest.MonkeyPatch.context() as patch:
        fake_gpu.put_in_place(patch)
        for name, value in {
            "Event": Event, "Stream": Stream, "is_available": lambda: True, "device_count": lambda: 1,
            "current_device": lambda: 0, "current_stream": lambda *_: Stream(0), "synchronize": lambda *_: None,
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, value)
        patch.setattr(nvdec, "native_library", lambda: paced.library)
        patch.setattr(nvdec, "missing_packages", list)
        patch.setattr(surfaces, "launch", lambda *_: compute(LAUNCH))
        patch.setattr(torch.Tensor, "record_stream", lambda *_: None)
        patch.setattr(
            engine, "find_cpu_decoded", lambda dataset, *_, **__: ClipRoutes(np.zeros(len(dataset), dtype=bool), ())
        )
        yield


def measure(paced: Paced, what: str, batch: int, step: Callable[[], object], clips: int) -> Row:
    """A row: steps after three that do not count."""
    for _ in range(3):
        step()
    paced.reset()
    began, steps = time.perf_counter(), max(4, clips // batch)
    with HostTimes() as host:
        for _ in range(steps):
            step()
    seconds, counts = time.perf_counter() - began, paced.counts()
    pictures, spans, idle, gaps = counts.sum(axis=0).tolist()
    limit = ENGINES / paced.seconds
    row: Row = {
        "way": what, "batch": batch, "busy": 1e9 * paced.seconds * pictures / max(1, spans),
        "of limit": pictures / seconds / limit, "idle ms a batch": idle / ENGINES / steps / 1e6,
        "gaps a batch": gaps / steps, "ms a batch": 1000 * seconds / steps, "cores": str(host),
    }  # fmt: skip
    print({key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()}, file=sys.stderr)
    return row


def rows(paced: Paced, dataset: str, clips: int) -> Iterator[Row]:
    """Each as it comes."""
    for batch in BATCHES:
        make = partial(
            sv.StreamLoader, dataset, batch_size=batch, sampling=sv.Window(FRAMES), transform=TRANSFORM, device="cuda",
            steps_per_epoch=_ENDLESS,
        )  # fmt: skip
        for computing in (0.0, LOOP):
            with make() as loader:
                videos = iter(loader)

                def step(videos: Any = videos, computing: float = computing) -> None:
                    next(videos)
                    compute(computing)

                yield measure(paced, f"loop of {1000 * computing:.0f} ms", batch, step, clips)
                videos.close()  # type: ignore[attr-defined]


def main() -> int:
    """The program."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=Path, metavar="DIR", help="keep the clips there, and take those that are there")
    parser.add_argument("--ms", type=float, default=0.72, help="of an engine for a picture; 0.72: H.264 720p, H200")
    parser.add_argument("--kind", choices=[kind for kind in FORMATS if "sizes" not in kind], default="H.264 720p")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        case = Case(options.kind, 15, 1, 16, loop=True)
        make_clips([case], options.clips or work)
        dataset = make_dataset(work, "set", [clip_path(case, options.clips or work)], LOOP_CLIPS)
        paced = Paced(work, options.ms / 1000, FORMATS[options.kind])
        with in_place(paced):
            found = list(rows(paced, dataset, CLIPS // 4 if options.quick else CLIPS))
    checks = [Check.at_least(f"busy, {row['way']}, batch {row['batch']}", float(row["busy"]), BAR) for row in found]
    notes = [f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"]
    return finish(Report("feeding", found, checks, notes), options)


if __name__ == "__main__":
    raise SystemExit(main())
