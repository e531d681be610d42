"""The native module of NVDEC (`streamvid/native/nvdec.c`), loaded through ctypes, and the structures of its calls."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

SLOTS: Final = 128
"""Most pictures that are staged before they are handed over: `SLOTS` in nvdec.c."""
CODECS: Final = {"mpeg4": 2, "h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}
"""Values of `cudaVideoCodec`."""
_VERSION: Final = 8
"""The interface version that `nvdec_version` must return."""
ERROR_BYTES: Final = 400
"""Bytes of an error message, at most."""


log = logging.getLogger(__name__)


class Staging(ctypes.Structure):
    """Copies of pictures that wait to be handed over: `nvdec_staging`.

    Attributes:
        confirmed: the number below which all jobs have received all their pictures.
        packets: packets fed to the decoder so far.
        last: number of the last job of which packets were fed.
        done, nanoseconds: packets of the jobs that were fed completely, and the time that they took.
        slots: capacity in pictures of the following arrays, which are rings.
        first, count: the staged pictures.
        pending: whether the last call returned before it was done.
        jobs, rows: for each picture the number of its job, and its row in the job's target.
        places, columns, chroma_at: for each picture the device address at which it would begin, of which only its job's
            window is there, its pitch in samples, and the bytes from its luma to its chroma.
    """

    _fields_ = (
        ("confirmed", ctypes.c_int64), ("packets", ctypes.c_int64), ("last", ctypes.c_int64),
        ("done", ctypes.c_int64), ("nanoseconds", ctypes.c_int64), ("slots", ctypes.c_int32), ("first", ctypes.c_int32),
        ("count", ctypes.c_int32), ("pending", ctypes.c_int32),
        ("jobs", ctypes.c_int64 * SLOTS), ("places", ctypes.c_uint64 * SLOTS),
        ("chroma_at", ctypes.c_int64 * SLOTS), ("rows", ctypes.c_int32 * SLOTS), ("columns", ctypes.c_int32 * SLOTS),
    )  # fmt: skip


class SessionOptions(ctypes.Structure):
    """`nvdec_options`."""

    _fields_ = (
        ("device", ctypes.c_int32), ("codec", ctypes.c_int32), ("bit_depth", ctypes.c_int32),
        ("max_width", ctypes.c_int32), ("max_height", ctypes.c_int32), ("surfaces", ctypes.c_int32),
        ("delay", ctypes.c_int32), ("stream", ctypes.c_void_p), ("staging", ctypes.POINTER(Staging)),
    )  # fmt: skip


class NativeJob(ctypes.Structure):
    """`nvdec_job`."""

    _fields_ = (
        ("number", ctypes.c_int64), ("width", ctypes.c_int32), ("height", ctypes.c_int32),
        ("window", ctypes.c_int32 * 4), ("packets", ctypes.c_int32), ("alone", ctypes.c_int32),
        ("lenient", ctypes.c_int32), ("untimed", ctypes.c_int32), ("length_size", ctypes.c_int32),
        ("header_size", ctypes.c_int32),
        ("header", ctypes.c_char_p), ("data", ctypes.c_void_p), ("table", ctypes.c_char_p),
    )  # fmt: skip


@dataclass(frozen=True)
class Caps:
    """A chip's decoding capabilities for a codec, from `cuvidGetDecoderCaps`; sizes in pixels."""

    supported: bool
    engines: int
    min_width: int
    min_height: int
    max_width: int
    max_height: int


class NvdecLibrary:
    """The native module, bound to the driver's libraries.

    Args:
        path: the module's file.
        cuda, nvcuvid: names or paths of the driver's libraries.

    Raises:
        OSError: the module or one of the libraries cannot be loaded.
    """

    def __init__(self, path: Path, cuda: str = "libcuda.so.1", nvcuvid: str = "libnvcuvid.so.1") -> None:
        library = ctypes.CDLL(str(path))
        if library.nvdec_version() != _VERSION:
            raise OSError(f"{path} was built for another version: install streamvid again")
        session, text = ctypes.c_void_p, ctypes.c_char_p
        for name, result, arguments in (
            ("load", text, (text, text)),
            ("open", session, (ctypes.POINTER(SessionOptions), text, ctypes.c_int32)),
            ("decode", ctypes.c_int, (session, ctypes.POINTER(NativeJob), *(ctypes.c_int32,) * 3)),
            ("stop", None, (session,)),
            ("close", ctypes.c_int, (session,)),
            ("error", text, (session,)),
            ("counts", None, (session, ctypes.POINTER(ctypes.c_int64))),
            ("caps", ctypes.c_int, (*(ctypes.c_int32,) * 3, ctypes.POINTER(ctypes.c_int32), text, ctypes.c_int32)),
        ):
            function = getattr(library, f"nvdec_{name}")
            function.restype, function.argtypes = result, arguments
        library.nvdec_begin_turn.restype = None
        self._end_turn = ctypes.PyDLL(str(path)).nvdec_end_turn  # with the GIL, because it never waits
        self._end_turn.restype = None
        self.calls = library
        if error := library.nvdec_load(cuda.encode(), nvcuvid.encode()):
            raise OSError(error.decode(errors="replace"))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context during which threads of sessions do not request the GIL: they wait for their turns, in the order of
        their requests. `nvdec_decode` begins a turn when it returns, and ends it when it is called."""
        self.calls.nvdec_begin_turn()
        try:
            yield
        finally:
            self._end_turn()

    def end_turn(self) -> None:
        """End the calling thread's turn, because it is about to wait for something other than a session."""
        self._end_turn()

    def caps(self, device_id: int, codec: str, bit_depth: int = 8) -> Caps:
        """A GPU's capabilities for a codec in 4:2:0.

        Raises:
            RuntimeError: the driver's query failed.
        """
        found, error = (ctypes.c_int32 * 6)(), ctypes.create_string_buffer(ERROR_BYTES)
        if self.calls.nvdec_caps(device_id, CODECS[codec], bit_depth, found, error, len(error)):
            raise RuntimeError(error.value.decode(errors="replace"))
        return Caps(bool(found[0]), *found[1:])


def built_modules() -> list[Path]:
    """Files of the native module; none if streamvid was installed without a C compiler."""
    return sorted(Path(__file__).parents[1].glob("native/nvdec*.so"))


@cache
def native_library() -> NvdecLibrary | None:
    """The native module, loaded once; None (and the reason in the log) if it was not built or finds no driver."""
    reason = "streamvid was installed without a C compiler"
    for path in built_modules():
        try:
            return NvdecLibrary(path)
        except (OSError, AttributeError) as error:  # built for another machine or an older version
            reason = str(error)
    log.info("the native module of NVDEC is not used: %s", reason)
    return None
