"""Decode sessions of the native module (`streamvid/native/nvdec.c`): a call takes the packets of whole jobs.

Python takes the GIL back once per call, and when the staging memory for copies of wanted pictures is full. A session is
opened for the largest frame size and reconfigured for each other size: that takes NVDEC 0.3 ms, opening takes 40 to 58.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, groupby
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.surface_queue import Take
from streamvid.errors import VideoError

SLOTS: Final = 64
"""Most pictures that are staged before they are handed over: `SLOTS` in nvdec.c."""
_FEWEST_STAGED: Final = 4
_STAGED_BYTES: Final = 64 << 20
"""Bytes of staging memory for large pictures, which holds at least `_FEWEST_STAGED` of them."""
CODECS: Final = {"mpeg4": 2, "h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}
"""Values of `cudaVideoCodec`."""
_RECONFIGURED: Final = frozenset({"h264", "hevc"})
"""Codecs whose sessions are reconfigured for other frame sizes. Other codecs decoded wrongly after that, so each of
their sessions is for one size."""
_VERSION: Final = 6
"""The interface version that `nvdec_version` must return."""
_EXTRA_SURFACES: Final = 6
"""Decode surfaces beyond the minimum of the stream."""
_DELAY: Final = 8
"""Pictures that the parser delays before it displays them. Mapping a picture waits until it is decoded, so the engine
needs later pictures to work on, also while the thread waits for the GIL between two calls."""
_STREAM: Final = 2
"""`NVDEC_STREAM` in nvdec.c."""
_ERROR_BYTES: Final = 400

log = logging.getLogger(__name__)


class Staging(ctypes.Structure):
    """Copies of pictures that wait to be handed over: `nvdec_staging`.

    Attributes:
        confirmed: the number below which all jobs have received all their pictures.
        packets: packets fed to the decoder so far.
        last: number of the last job of which packets were fed.
        slots, count: capacity, and number of staged pictures.
        jobs, rows: for each picture the number of its job, and its row in the job's target.
        places, columns, chroma_at: for each picture its device address, its pitch in samples, and the bytes from its
            luma to its chroma.
    """

    _fields_ = (
        ("confirmed", ctypes.c_int64), ("packets", ctypes.c_int64), ("last", ctypes.c_int64),
        ("slots", ctypes.c_int32), ("count", ctypes.c_int32),
        ("jobs", ctypes.c_int64 * SLOTS), ("places", ctypes.c_uint64 * SLOTS),
        ("chroma_at", ctypes.c_int64 * SLOTS), ("rows", ctypes.c_int32 * SLOTS), ("columns", ctypes.c_int32 * SLOTS),
    )  # fmt: skip


_FULL: Final = ctypes.CFUNCTYPE(ctypes.c_int32)


class _Options(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_int32), ("codec", ctypes.c_int32), ("bit_depth", ctypes.c_int32),
        ("max_width", ctypes.c_int32), ("max_height", ctypes.c_int32), ("surfaces", ctypes.c_int32),
        ("delay", ctypes.c_int32), ("flags", ctypes.c_int32), ("stream", ctypes.c_void_p),
        ("staging", ctypes.POINTER(Staging)), ("full", _FULL),
    )  # fmt: skip


class _Job(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int64), ("width", ctypes.c_int32), ("height", ctypes.c_int32),
        ("packets", ctypes.c_int32), ("alone", ctypes.c_int32), ("lenient", ctypes.c_int32),
        ("untimed", ctypes.c_int32), ("length_size", ctypes.c_int32), ("header_size", ctypes.c_int32),
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
            ("open", session, (ctypes.POINTER(_Options), text, ctypes.c_int32)),
            ("decode", ctypes.c_int, (session, ctypes.POINTER(_Job), ctypes.c_int32)),
            ("flush", ctypes.c_int, (session,)),
            ("stop", None, (session,)),
            ("close", ctypes.c_int, (session,)),
            ("error", text, (session,)),
            ("counts", None, (session, ctypes.POINTER(ctypes.c_int64))),
            ("caps", ctypes.c_int, (*(ctypes.c_int32,) * 3, ctypes.POINTER(ctypes.c_int32), text, ctypes.c_int32)),
        ):
            function = getattr(library, f"nvdec_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)
        self.calls = library
        if error := library.nvdec_load(cuda.encode(), nvcuvid.encode()):
            raise OSError(error.decode(errors="replace"))

    def caps(self, device_id: int, codec: str, bit_depth: int = 8) -> Caps:
        """A GPU's capabilities for a codec in 4:2:0.

        Raises:
            RuntimeError: the driver's query failed.
        """
        found, error = (ctypes.c_int32 * 6)(), ctypes.create_string_buffer(_ERROR_BYTES)
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


def largest(key: SessionKey, seen: Iterable[SessionKey]) -> SessionKey:
    """The configuration to open a session with for jobs of `key`: the largest width and height among the
    configurations in `seen` that the session can be reconfigured for."""
    found = [key, *(other for other in seen if alike(other, key))]
    return replace(key, width=max(k.width for k in found), height=max(k.height for k in found), dpb_group="")


def alike(one: SessionKey, other: SessionKey) -> bool:
    """Whether a session that is large enough for both can be reconfigured from one configuration to the other. Sizes up
    to 2048, up to 4096 and above are kept apart, because a session takes the memory of its largest size."""
    return _family(one) == _family(other)


def _family(key: SessionKey) -> tuple[object, ...]:
    side = max(key.width, key.height)
    size = (side > 2048, side > 4096) if key.codec in _RECONFIGURED else (key.width, key.height)
    return key.codec, key.bit_depth, size


def staged(key: SessionKey) -> int:
    """Pictures that a session of this configuration can stage."""
    return max(_FEWEST_STAGED, min(SLOTS, _STAGED_BYTES // key.surface_bytes))


class NativeSession:
    """A decode session of the native module. Not thread-safe, except for `stop` and `packets`.

    Args:
        library: the native module.
        device_id: the GPU's number.
        key: codec and bit depth of all jobs, and the largest width and height.
        stream: CUDA stream on which `launch` queues its work.
        take: called for each staged picture when pictures are handed over.
        launch: called after that. `decode` calls both, too, whenever `slots` pictures are staged.
        slots: capacity of the staging memory in pictures; default: `staged(key)`.
        extra_surfaces: decode surfaces beyond the minimum of the stream.
        delay: pictures that the parser delays before it displays them.
        flags: `CUVID_PKT_*` flags added to each packet.

    Raises:
        RuntimeError: the driver refuses it.
    """

    def __init__(
        self,
        library: NvdecLibrary,
        *,
        device_id: int,
        key: SessionKey,
        stream: int,
        take: Take,
        launch: Callable[[], None],
        slots: int | None = None,
        extra_surfaces: int = _EXTRA_SURFACES,
        delay: int = _DELAY,
        flags: int = 0,
    ) -> None:
        self._calls, self._staging, self.key = library.calls, Staging(slots=slots or staged(key)), key
        staging = self._staging
        self._numbers, self._rows = np.ctypeslib.as_array(staging.jobs), np.ctypeslib.as_array(staging.rows)
        self._surfaces = [np.ctypeslib.as_array(one) for one in (staging.places, staging.columns, staging.chroma_at)]
        self._take, self._launch = take, launch
        # Configuration and DPB frames of the jobs in the decoder.
        self._now, self._dpb_frames = key, 0
        self._lock = threading.Lock()
        self._raised: Exception | None = None
        # The names of the last call's clips, and the number of its first job.
        self._names, self._first = [""], 0

        def empty() -> int:
            try:
                self._hand_over()
            except Exception as error:
                self._raised = error
                return 1
            return 0

        self._full = _FULL(empty)
        options = _Options(
            device_id, CODECS[key.codec], key.bit_depth, key.width, key.height, extra_surfaces, delay, flags, stream,
            ctypes.pointer(self._staging), self._full,
        )  # fmt: skip
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._session: int | None = self._calls.nvdec_open(ctypes.byref(options), error, len(error))
        if self._session is None:
            raise RuntimeError(error.value.decode(errors="replace"))

    @property
    def confirmed(self) -> int:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        return int(self._staging.confirmed)

    @property
    def packets(self) -> int:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        return int(self._staging.packets)

    @property
    def counts(self) -> tuple[int, ...]:
        """How often a decoder was opened, and how often reconfigured; its surfaces, and its largest width and
        height."""
        found = (ctypes.c_int64 * 5)()
        self._calls.nvdec_counts(self._session, found)
        return tuple(found)

    def takes(self, key: SessionKey, dpb_frames: int = 0) -> bool:
        """See `streamvid.decode.nvdec_worker.DecodeSession`. DPB frames are no limit: the decoder is opened anew with
        more surfaces if a job needs them."""
        mine = self.key
        return alike(key, mine) and key.width <= mine.width and key.height <= mine.height

    def follows(self, job: GopJob) -> bool:
        """See `streamvid.decode.nvdec_worker.DecodeSession`: `decode` drains the decoder first if it has to."""
        return self.takes(job.key)

    def decode(self, number: int, jobs: Sequence[GopJob]) -> None:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        self._names, self._first = [job.encoded.name for job in jobs], number
        given = (_Job * len(jobs))(*map(self._given, count(number), jobs))
        self._check(self._calls.nvdec_decode(self._session, given, len(jobs)))
        # Here, where the GIL is held anyway, rather than in the middle of the next call.
        if 2 * self._staging.count > self._staging.slots:
            self.hand_over()

    def _given(self, number: int, job: GopJob) -> _Job:
        """A job for the native module."""
        # Drained first if the decoder is to be reconfigured or opened anew with more surfaces. So is it before a CRA
        # picture, at which NVDEC does not reset: it would decode the leading pictures, wrongly.
        alone = job.alone or job.key != self._now or job.dpb_frames > self._dpb_frames or not job.starts_with_idr
        self._now, self._dpb_frames = job.key, max(job.dpb_frames, self._dpb_frames)
        packets, key, ranks = job.packets, job.key, job.display_order.tolist()
        # Only their order counts: there are gaps where packets were dropped.
        if max(ranks) - min(ranks) >= len(ranks):
            ranks = job.display_order.argsort().argsort().tolist()
        # `bytes`, whose address ctypes gets in a tenth of the time that an array's takes.
        table = struct.pack(f"{3 * len(ranks)}q", *packets.sizes.tolist(), *job.rows.tolist(), *ranks)
        return _Job(
            number, key.width, key.height, len(ranks), alone, job.exact, not job.timed,
            packets.length_size, len(packets.header), packets.header, packets.data.ctypes.data, table,
        )  # fmt: skip

    def flush(self) -> None:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        self._check(self._calls.nvdec_flush(self._session))
        self.hand_over()

    def waiting(self) -> list[int]:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        return list(self._staging.jobs[: self._staging.count])

    def hand_over(self) -> None:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        if self._staging.count:
            self._hand_over()
            self._staging.count = 0

    def stop(self) -> None:
        """See `streamvid.decode.nvdec_worker.DecodeSession`."""
        with self._lock:
            if self._session is not None:
                self._calls.nvdec_stop(self._session)

    def close(self) -> None:
        """Free the session. No other call may be running."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                self._calls.nvdec_close(session)

    def _hand_over(self) -> None:
        count = self._staging.count
        surfaces = np.empty((count, len(self._surfaces)), dtype=np.int64)
        for column, values in enumerate(self._surfaces):
            surfaces[:, column] = values[:count]
        first = 0
        for number, same in groupby(self._numbers[:count].tolist()):
            end = first + len(list(same))
            self._take(number, self._rows[first:end].copy(), surfaces[first:end])
            first = end
        self._launch()

    def _check(self, status: int) -> None:
        if not status:
            return
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        text = self._calls.nvdec_error(self._session).decode(errors="replace")
        if status == _STREAM:
            last = self._staging.last - self._first
            raise VideoError(f"clip {self._names[last if 0 <= last < len(self._names) else 0]} {text}: pack it again")
        raise RuntimeError(text)
