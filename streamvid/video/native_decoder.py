"""FFmpeg's decoders without Python between two packets: the C of `streamvid/native/ffmpeg.c`, which calls the libraries
that PyAV has loaded.

PyAV takes and gives Python's lock three times for each packet, and threads that decode wait for each other. Here it is
held once for each picture that is wanted, or for each run of packets where pictures are rendered at once, too.
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
from streamvid.color.picture import GRAY, Picture, picture_at
from streamvid.color.render import PlaneFormat, Targets

CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4"})
"""Whose pictures are planar."""
_VERSION: Final = 2
"""As in ffmpeg.c."""
_CORRUPT: Final = 2
log = logging.getLogger(__name__)


FindTargets = Callable[[PlaneFormat], Targets | None]


class _Like(NamedTuple):
    """What pictures are: FFmpeg's number of their format, and how they lie in memory."""

    format: int
    form: PlaneFormat


class NativeRun(ctypes.Structure):
    """Packets of a stream that depends on nothing before it, and which of their pictures are wanted: `sv_run` of
    ffmpeg.c.

    Args:
        data: uint8 [bytes], the packets one after another.
        sizes, ranks: int64 [packets], of each packet, and its picture's place in display order.
        rows: of the pictures that are wanted, by rank; others are not looked at.
        taken: counts packets that FFmpeg is given, for who watches.
        size: height and width of pictures that may be rendered.
        targets: says where those of a format are, by row, instead of being given; None: nowhere.
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
        # Kept, as C reads and writes them.
        self._kept = data, sizes, ranks, taken = *map(np.ascontiguousarray, (data, sizes, ranks)), taken
        self._find, self._size = targets, size
        self._memory: object = None
        self._aimed: tuple[_Like, Targets | None] | None = None
        super().__init__(
            data.ctypes.data, sizes.ctypes.data, ranks.ctypes.data, marks.ctypes.data, shown.ctypes.data,
            ctypes.addressof(taken), len(sizes), first, len(marks), made=-1,
        )  # fmt: skip

    def has_shown(self, rank: int) -> bool:
        """Whether FFmpeg has output the picture of that rank until now."""
        return bool(self._shown[rank - self.first])

    def aim(self, like: _Like) -> None:
        """Have pictures like those before rendered where they belong, until another is given."""
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
        """Ranks of the pictures that were rendered until now."""
        ranks: list[int] = (np.flatnonzero(self._marks == 2) + self.first).tolist()
        return ranks


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
        self._last: _Like | None = None

    def pictures(self, run: NativeRun) -> Iterator[tuple[int, Picture]]:
        """The rank of each wanted picture that is given, and the picture, which is valid until the next is asked for.

        Raises:
            av.error.FFmpegError: the packets cannot be decoded.
            CorruptPictureError: FFmpeg says so of a picture, be it wanted or not.
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
        """Forget the stream, for the next one."""
        self._library.sv_flush_buffers(self._stream)


def _check(result: int) -> None:
    if result < 0:
        import av

        av.error.err_check(result)
