"""FFmpeg's decoders without Python between two packets: the C of `streamvid/native/ffmpeg.c`, which calls the libraries
that PyAV has loaded.

PyAV takes and gives Python's lock three times for each packet. Of the threads that decode, one or two then wait for it
on four cores, and most of them on sixteen. Here it is held once for each picture that is wanted.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.color.picture import Picture, picture_at

CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4"})
"""Whose pictures are planar."""
_VERSION: Final = 1
"""As in ffmpeg.c."""
_CORRUPT: Final = 2
log = logging.getLogger(__name__)


class NativeRun(ctypes.Structure):
    """Packets of a stream that depends on nothing before it, and which of their pictures are wanted: `sv_run` of
    ffmpeg.c.

    Args:
        data: uint8 [bytes], the packets one after another.
        sizes, ranks: int64 [packets], of each packet, and its picture's place in display order.
        wanted: ranks of the pictures that are wanted.
        taken: counts packets that FFmpeg is given, for who watches.
    """

    _fields_ = (
        ("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("ranks", ctypes.c_void_p), ("wanted", ctypes.c_void_p),
        ("shown", ctypes.c_void_p), ("counter", ctypes.c_void_p), ("packets", ctypes.c_int64),
        ("first", ctypes.c_int64), ("count", ctypes.c_int64), ("taken", ctypes.c_int64), ("made", ctypes.c_int64),
        ("planes", ctypes.c_void_p * 3), ("strides", ctypes.c_int64 * 3), ("rank", ctypes.c_int64),
        ("width", ctypes.c_int32), ("height", ctypes.c_int32), ("format", ctypes.c_int32), ("drained", ctypes.c_int32),
    )  # fmt: skip

    def __init__(self, data: UInt8, sizes: Int64, ranks: Int64, wanted: Iterable[int], taken: ctypes.c_int64) -> None:
        assert sizes.min() >= 0
        assert sizes.sum() <= len(data)
        first = int(ranks.min())
        marks, self.shown_marks = np.zeros((2, int(ranks.max()) - first + 1), dtype=np.uint8)
        marks[np.fromiter(wanted, dtype=np.int64) - first] = 1
        # Kept, as C reads and writes them.
        self._kept = data, sizes, ranks, marks, taken = *map(np.ascontiguousarray, (data, sizes, ranks)), marks, taken
        super().__init__(
            data.ctypes.data, sizes.ctypes.data, ranks.ctypes.data, marks.ctypes.data, self.shown_marks.ctypes.data,
            ctypes.addressof(taken), len(sizes), first, len(marks), made=-1,
        )  # fmt: skip

    def has_shown(self, rank: int) -> bool:
        """Whether FFmpeg has output the picture of that rank until now."""
        return bool(self.shown_marks[rank - self.first])


@cache
def compiled() -> Any:
    """The compiled library, which calls PyAV's FFmpeg; None, and one warning, where it was not built, or FFmpeg is of
    another version."""
    import av.container.core

    reason = "it was not built: install streamvid again where there is a C compiler"
    for path in sorted(Path(__file__).parents[1].glob("native/ffmpeg*.so")):
        with suppress(OSError, AttributeError):  # built for another machine, or long ago
            library = ctypes.CDLL(str(path))
            if library.sv_ffmpeg_version() != _VERSION:
                continue
            if library.sv_bind(av.container.core.__file__.encode()):
                reason = f"it does not know the FFmpeg of PyAV {av.__version__}"
                continue
            library.sv_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32)]
            library.sv_open.restype = ctypes.c_void_p
            for function in (library.sv_close, library.sv_flush_buffers, library.sv_name):
                function.argtypes = [ctypes.c_void_p]
            library.sv_name.restype = library.sv_format.restype = ctypes.c_char_p
            library.sv_next.argtypes = [ctypes.c_void_p, ctypes.POINTER(NativeRun)]
            return library
    log.warning(
        "streamvid's native part for FFmpeg is not used, so that decoding threads wait for each other: %s", reason
    )
    return None


class CorruptPictureError(Exception):
    """FFmpeg marks a picture as damaged."""


class NativeDecoder:
    """An open decoder of FFmpeg's, for one thread at a time.

    Args:
        mp4: one that says how its track is to be decoded; without packets.
        pixels: of a picture at most.

    Attributes:
        name: of the codec, in FFmpeg's words.
        pix_fmt: of the last picture.

    Raises:
        av.error.FFmpegError: the track cannot be decoded.
    """

    def __init__(self, mp4: bytes, *, pixels: int) -> None:
        self._library, error = compiled(), ctypes.c_int32()
        file = os.memfd_create("streamvid-head")
        try:
            os.write(file, mp4)
            self._stream = self._library.sv_open(b"/proc/self/fd/%d" % file, b"%d" % pixels, ctypes.byref(error))
        finally:
            os.close(file)
        _check(error.value)
        weakref.finalize(self, self._library.sv_close, self._stream).atexit = False
        self.name, self.pix_fmt = self._library.sv_name(self._stream).decode(), ""

    def pictures(self, run: NativeRun) -> Iterator[tuple[int, Picture]]:
        """The rank of each wanted picture, and the picture, which is valid until the next is asked for.

        Raises:
            av.error.FFmpegError: the packets cannot be decoded.
            CorruptPictureError: FFmpeg says so of a picture, be it wanted or not.
        """
        while (result := self._library.sv_next(self._stream, ctypes.byref(run))) == 1:
            self.pix_fmt = self._library.sv_format(run.format).decode()
            yield run.rank, picture_at(self.pix_fmt, run.height, run.width, run.planes, run.strides)
        if result == _CORRUPT:
            raise CorruptPictureError
        _check(result)

    def flush_buffers(self) -> None:
        """Forget the stream, for the next one."""
        self._library.sv_flush_buffers(self._stream)


def _check(result: int) -> None:
    if result < 0:
        import av

        av.error.err_check(result)
