"""The native module of NVDEC, compiled for a test, and what stands in for the driver behind it (`driver.c`)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

import streamvid
from streamvid.color.picture import picture_of
from streamvid.decode.nvdec_library import CODECS, NvdecLibrary
from tests.support.fake_gpu import BEFORE_LAUNCHES, Decoder, Surface

SOURCES = Path(streamvid.__file__).parent / "native"
STAND_IN = Path(__file__).parents[1] / "native" / "driver.c"
Spoil = Callable[[list[av.VideoFrame]], list[av.VideoFrame]]
"""Changes the frames of one packet."""
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 3)


def compile_c(sources: Sequence[Path], out: Path, *flags: str) -> Path:
    """A program or library, with all warnings as errors; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    warnings = ("-Wall", "-Wextra", "-Werror")
    names = [str(path) for path in sources]
    command = [compiler, "-g", "-O1", *warnings, *flags, *names, "-o", str(out), "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


class StandIn:
    """The driver that is none.

    Attributes:
        library: the native module, loaded with it.
        calls: `standin_*` of `driver.c`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        driver = compile_c([STAND_IN], folder / "driver.so", "-shared", "-fPIC")
        module = compile_c([SOURCES / "nvdec.c"], folder / "nvdec.so", "-shared", "-fPIC", "-fvisibility=hidden")
        self.library = NvdecLibrary(module, str(driver), str(driver))
        self.calls = ctypes.CDLL(str(driver))
        self.calls.standin_picture.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, *(ctypes.c_int,) * 6, ctypes.c_void_p,
        ]  # fmt: skip
        self._hook: Any = None
        BEFORE_LAUNCHES.append(self.synchronize)

    def another_module(self) -> Path:
        """A copy of the module, to be loaded anew."""
        return Path(shutil.copy(self._folder / "nvdec.so", self._folder / "another.so"))

    def fail(self, name: str, nth: int = 1, result: int = 999) -> None:
        """Have the nth call from now on of one of the driver's functions fail."""
        self.calls.standin_fail(name.encode(), nth, result)

    def spoil(self, kind: str, nth: int = 1) -> None:
        """Have the nth picture from now on be lost, come twice, or with a time that is not its own."""
        self.calls.standin_spoil({"lost": 1, "twice": 2, "foreign": 3}[kind], nth)

    def synchronize(self) -> None:
        """Have done what the calling thread has queued."""
        self.calls.standin_synchronize()

    def copy(self, to: npt.NDArray[np.uint8], source: int) -> None:
        """Queue the copy of host memory at an address."""
        self.calls.standin_copy(ctypes.c_void_p(to.ctypes.data), ctypes.c_void_p(source), ctypes.c_int64(to.nbytes))

    def open_objects(self) -> int:
        """Parsers, decoders, mapped pictures and contexts that are open."""
        return self._counts()[0]

    def decoders_opened(self) -> int:
        """Ever."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, int]:
        found = (ctypes.c_int64 * 2)()
        self.calls.standin_counts(found)
        return found[0], found[1]

    def decode_by_ffmpeg(self, spoil: Spoil = lambda frames: frames) -> None:
        """Have FFmpeg decode what the parser is given."""
        parsers: dict[int, Decoder] = {}
        codecs = {number: name for name, number in CODECS.items()}

        def hook(handle: int, payload: int | None, size: int, flags: int, time: int) -> int:
            try:
                if payload is None and not flags:
                    parsers[handle] = Decoder(codecs[time], lambda surfaces: surfaces)
                    return 1
                data = ctypes.string_at(payload, size) if payload is not None else b""
                return int(all(self._show(handle, frame) for frame in spoil(parsers[handle].frames(data, time))))
            except av.error.FFmpegError:
                return 0
            except Exception:
                traceback.print_exc()
                return 0

        self.reset()
        self._hook = _HOOK(hook)
        self.calls.standin_hook(self._hook)

    def reset(self) -> None:
        """Errors, hooks and all are forgotten."""
        self.fail("", 0)
        self.calls.standin_spoil(0, 0)
        self.calls.standin_hook(None)
        self.calls.standin_entered(None)

    def _show(self, handle: int, frame: av.VideoFrame) -> bool:
        wide, high = -(-frame.width // 16) * 16, -(-frame.height // 16) * 16
        surface = Surface(frame).samples
        samples = np.full((high * 3 // 2, wide), 77, surface.dtype)
        samples[: frame.height, : frame.width] = surface[: frame.height]
        samples[high : high + frame.height // 2, : frame.width] = surface[frame.height :]
        depth = picture_of(frame).form.bits
        found = self.calls.standin_picture(
            handle, frame.pts, frame.width, frame.height, wide, high, depth, 12, samples.ctypes.data
        )
        return bool(found)


@cache
def stand_in() -> StandIn:
    """One for the process: the native module loads its driver once."""
    return StandIn(Path(mkdtemp(prefix="streamvid-nvdec-")))
