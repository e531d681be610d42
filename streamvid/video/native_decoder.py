"""FFmpeg's decoders, fed by the C code of `streamvid/native/ffmpeg.c`, which calls the libraries that PyAV has loaded.

PyAV releases and reacquires the GIL three times per packet, so that decoding threads wait for each other. Here the GIL
is taken once per wanted picture, or once per run of packets if C renders the pictures, too.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream.packets import packets_in
from streamvid.color.picture import GRAY, Picture, picture_at
from streamvid.color.render import PlaneFormat, Targets

CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4"})
"""Codecs whose pictures are planar."""
_VERSION: Final = 2
"""The interface version that `sv_ffmpeg_version` must return."""
_CORRUPT: Final = 2
"""`sv_next`'s result for a picture that FFmpeg marks as damaged."""
log = logging.getLogger(__name__)


FindTargets = Callable[[PlaneFormat], Targets | None]
"""The render targets for pictures of a plane format; None if C cannot render them."""


class _Like(NamedTuple):
    """A picture format: FFmpeg's number of the pixel format, and the planes' format."""

    format: int
    form: PlaneFormat


class NativeRun(ctypes.Structure):
    """A run of packets that starts at a random access packet, and the pictures wanted of it: `sv_run` of ffmpeg.c.

    Args:
        data: uint8 [bytes], the packets one after another.
        sizes, ranks: int64 [packets], bytes of each packet, and its picture's rank in display order.
        rows: rank of each wanted picture → its row.
        taken: incremented for each packet that FFmpeg is given; other threads may read it.
        size: height and width of the pictures that may be rendered.
        targets: where pictures of a format are rendered; None: all wanted pictures are yielded.
    """

    _fields_ = (
        ("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("ranks", ctypes.c_void_p), ("wanted", ctypes.c_void_p),
        ("shown", ctypes.c_void_p), ("counter", ctypes.c_void_p), ("packets", ctypes.c_int64),
        ("first", ctypes.c_int64), ("count", ctypes.c_int64), ("taken", ctypes.c_int64), ("made", ctypes.c_int64),
        ("planes", ctypes.c_void_p * 3), ("strides", ctypes.c_int64 * 3), ("rank", ctypes.c_int64),
        ("width", ctypes.c_int32), ("height", ctypes.c_int32), ("format", ctypes.c_int32), ("drained", ctypes.c_int32),
        ("render", ctypes.c_void_p), ("picture", ctypes.c_void_p), ("scratch", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p), ("output_at", ctypes.c_int64),
    )  # fmt: skip

    def __init__(
        self,
        data: UInt8,
        sizes: Int64,
        ranks: Int64,
        rows: Mapping[int, int],
        *,
        taken: ctypes.c_int64,
        size: tuple[int, int] = (0, 0),
        targets: FindTargets | None = None,
    ) -> None:
        assert sizes.min() >= 0
        assert sizes.sum() <= len(data)
        first = int(ranks.min())
        self._marks, self._shown = marks, shown = np.zeros((2, int(ranks.max()) - first + 1), dtype=np.uint8)
        self._rows = {rank - first: rows[rank] for rank in ranks.tolist() if rank in rows}
        marks[list(self._rows)] = 1
        # Kept alive, because C reads and writes them.
        self._kept = data, sizes, ranks, taken = *map(np.ascontiguousarray, (data, sizes, ranks)), taken
        self._stream = data, sizes
        self._find, self._size = targets, size
        self._memory: object = None
        self._aimed: tuple[_Like, Targets | None] | None = None
        super().__init__(
            data.ctypes.data, sizes.ctypes.data, ranks.ctypes.data, marks.ctypes.data, shown.ctypes.data,
            ctypes.addressof(taken), len(sizes), first, len(marks), made=-1,
        )  # fmt: skip

    def each_packet(self) -> list[memoryview]:
        """The run's packets, in decode order."""
        return packets_in(*self._stream)

    def has_shown(self, rank: int) -> bool:
        """Whether FFmpeg has output the picture of this rank so far."""
        return bool(self._shown[rank - self.first])

    def aim(self, like: _Like) -> None:
        """Let C render the next pictures if they have the format `like`, until a picture is yielded."""
        form = like.form
        if self._find is None or form.subsampling[0] == GRAY or (form.height, form.width) != self._size:
            return
        if self._aimed is None or self._aimed[0] != like:
            self._aimed = like, self._find(form)
            if (targets := self._aimed[1]) is not None:
                outputs = np.zeros(self.count, dtype=np.uintp)
                outputs[list(self._rows)] = targets.outputs[list(self._rows.values())]
                picture, scratch = ctypes.create_string_buffer(targets.picture), np.empty(targets.floats, np.float32)
                self._memory = targets, outputs, picture, scratch
                self.picture, self.scratch = ctypes.addressof(picture), scratch.ctypes.data
                self.outputs, self.output_at = outputs.ctypes.data, targets.output_at
        targets = self._aimed[1]
        self.format, self.height, self.width = like.format, form.height, form.width
        self.render = None if targets is None else targets.render

    def rendered(self) -> list[int]:
        """Ranks of the pictures that C has rendered so far."""
        ranks: list[int] = (np.flatnonzero(self._marks == 2) + self.first).tolist()
        return ranks


@cache
def compiled() -> Any:
    """The compiled library; None, and one warning, if it was not built or does not support the FFmpeg of this PyAV."""
    import av  # first, because this waits for another thread that imports PyAV, while importing a part of PyAV does not
    import av.container.core

    reason = "it was not built: install streamvid again where there is a C compiler"
    for path in sorted(Path(__file__).parents[1].glob("native/ffmpeg*.so")):
        with suppress(OSError, AttributeError):  # built for another machine or an older version
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
    """An open FFmpeg decoder, for one thread at a time.

    Args:
        mp4: an MP4 without packets, whose track has the decoder's configuration.
        pixels: most pixels of a picture.

    Attributes:
        name: FFmpeg's name of the codec.
        pix_fmt: FFmpeg's name of the last picture's pixel format.

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
        self._last: _Like | None = None

    def pictures(self, run: NativeRun) -> Iterator[tuple[int, Picture]]:
        """The wanted pictures that C does not render: each with its rank, and valid until the next is asked for.

        Raises:
            av.error.FFmpegError: the packets cannot be decoded.
            CorruptPictureError: FFmpeg marks a picture, wanted or not, as damaged.
        """
        while True:
            if self._last is not None:
                run.aim(self._last)
            if (result := self._library.sv_next(self._stream, ctypes.byref(run))) != 1:
                break
            self.pix_fmt = self._library.sv_format(run.format).decode()
            picture = picture_at(self.pix_fmt, run.height, run.width, run.planes, run.strides)
            self._last = _Like(run.format, picture.form)
            yield run.rank, picture
        if result == _CORRUPT:
            raise CorruptPictureError
        _check(result)

    def flush_buffers(self) -> None:
        """Empty the decoder before the next stream."""
        self._library.sv_flush_buffers(self._stream)


def _check(result: int) -> None:
    if result < 0:
        import av

        av.error.err_check(result)
