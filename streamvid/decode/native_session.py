"""Decode sessions of the native module (`streamvid/native/nvdec.c`): a call takes the packets of whole jobs.

Each session has a thread of its own that decodes the jobs, without the GIL. A session is opened for the largest frame
size and reconfigured for each other size: that takes NVDEC 0.3 ms, opening takes 40 to 58.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count, groupby
from typing import Final

import numpy as np
from numpy import ctypeslib

from streamvid.decode.decode_job import GopJob
from streamvid.decode.nvdec_library import CODECS, ERROR_BYTES, SLOTS, NativeJob, NvdecLibrary, SessionOptions, Staging
from streamvid.decode.session_key import SessionKey
from streamvid.decode.surface_queue import Take
from streamvid.errors import VideoError

_FEWEST_STAGED: Final = 4
_STAGED_BYTES: Final = 128 << 20
"""Bytes of staging memory for large pictures, which holds at least `_FEWEST_STAGED` of them."""
_RECONFIGURED: Final = frozenset({"h264", "hevc"})
"""Codecs whose sessions are reconfigured for other frame sizes. Other codecs decoded wrongly after that, so each of
their sessions is for one size."""
_EXTRA_SURFACES: Final = 6
"""Decode surfaces beyond the minimum of the stream."""
_DELAY: Final = 8
"""Pictures that the parser delays before it displays them. Mapping a picture waits until it is decoded, so the engine
needs later pictures to work on."""
_AHEAD_PIXELS: Final = 12_000_000
"""Packets × pixels per frame that may wait in a session when `decode` returns. Python may take milliseconds to come
with the next jobs, and the engine decodes those meanwhile."""
_AHEAD: Final = 8
"""The same in packets at most, while the queue is short."""
_STREAM: Final = 2
"""`NVDEC_STREAM` in nvdec.c."""


def largest(key: SessionKey, seen: Iterable[SessionKey]) -> SessionKey:
    """The configuration to open a session with for jobs of `key`: the largest width and height among the
    configurations in `seen` that the session can be reconfigured for."""
    found = [key, *(other for other in seen if alike(other, key))]
    return key._replace(width=max(k.width for k in found), height=max(k.height for k in found), group="")


def alike(one: SessionKey, other: SessionKey) -> bool:
    """Whether a session that is large enough for both can be reconfigured from one configuration to the other. Sizes up
    to 2048, up to 4096 and above have separate sessions, because a session takes the memory of its largest size."""
    return _family(one) == _family(other)


def _family(key: SessionKey) -> tuple[object, ...]:
    side = max(key.width, key.height)
    size = (side > 2048, side > 4096) if key.codec in _RECONFIGURED else (key.width, key.height)
    return key.codec, key.bit_depth, size


def staged(key: SessionKey) -> int:
    """Number of pictures that a session of this configuration can stage."""
    return max(_FEWEST_STAGED, min(SLOTS, _STAGED_BYTES // key.surface_bytes))


class NativeSession:
    """A `streamvid.decode.nvdec_worker.DecodeSession` of the native module. Not thread-safe, except for `stop` and
    `packets`.

    Args:
        library: the native module.
        device_id: the GPU's number.
        key: codec and bit depth of all jobs, and the largest width and height.
        stream: CUDA stream on which `launch` queues its work.
        take: called for each staged picture when pictures are handed over.
        launch: called after that. `decode` calls both, too, whenever more than half of the slots are taken.
        ahead: packets that may wait when `decode` returns; default: `_AHEAD_PIXELS`.
        slots: capacity of the staging memory in pictures; default: `staged(key)`.
        extra_surfaces: decode surfaces beyond the minimum of the stream.
        delay: pictures that the parser delays before it displays them.

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
        ahead: int | None = None,
        slots: int | None = None,
        extra_surfaces: int = _EXTRA_SURFACES,
        delay: int = _DELAY,
    ) -> None:
        self._calls, self._staging, self.key = library.calls, Staging(slots=slots or staged(key)), key
        staging = self._staging
        self._numbers, self._rows = ctypeslib.as_array(staging.jobs), ctypeslib.as_array(staging.rows)
        self._surfaces = [ctypeslib.as_array(field) for field in (staging.places, staging.columns, staging.chroma_at)]
        self._take, self._launch = take, launch
        # Configuration and DPB frames of the jobs in the decoder.
        self._now, self._dpb_frames = key, 0
        self._lock = threading.Lock()
        # By number: jobs that the session's thread may still read, with what points to their packets.
        self._given: dict[int, tuple[GopJob, NativeJob]] = {}
        self._spent = 0, 0
        self._put = 0
        self._ahead = _AHEAD_PIXELS // (key.width * key.height) if ahead is None else ahead
        options = SessionOptions(
            device_id, CODECS[key.codec], key.bit_depth, key.width, key.height, extra_surfaces, delay, stream,
            ctypes.pointer(self._staging),
        )  # fmt: skip
        error = ctypes.create_string_buffer(ERROR_BYTES)
        self._session: int | None = self._calls.nvdec_open(ctypes.byref(options), error, len(error))
        if self._session is None:
            raise RuntimeError(error.value.decode(errors="replace"))

    @property
    def confirmed(self) -> int:
        return int(self._staging.confirmed)

    @property
    def packets(self) -> int:
        return int(self._staging.packets)

    @property
    def unfed(self) -> int:
        return self._put - self.packets

    def begun(self, number: int) -> bool:
        return bool(number <= self._staging.last)

    def spent(self) -> tuple[int, float]:
        before, self._spent = self._spent, (self._staging.done, self._staging.nanoseconds)
        return self._spent[0] - before[0], 1e-9 * (self._spent[1] - before[1])

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of times that a decoder was opened, and reconfigured; its number of surfaces; its largest width
        and height."""
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
        self._put += sum(len(job.packets) for job in jobs)
        given = (NativeJob * len(jobs))(*map(self._native_job, count(number), jobs))
        self._given |= {n: (job, native) for n, job, native in zip(count(number), jobs, given)}
        # A single job is one of the last: an engine that takes another early would leave none to an idle one.
        self._call(given, ahead=self._ahead if len(jobs) > 1 else min(self._ahead, _AHEAD))

    def _call(self, given: ctypes.Array[NativeJob] | None = None, *, ahead: int = 0, draining: bool = False) -> None:
        """Give jobs to the session's thread, and wait until few are left."""
        staging, calls = self._staging, self._calls
        self._check(calls.nvdec_decode(self._session, given, 0 if given is None else len(given), ahead, draining))
        while 2 * staging.count > staging.slots or staging.pending:
            self.hand_over()
            if staging.pending:
                self._check(calls.nvdec_decode(self._session, None, 0, ahead, False))
        while self._given and (draining or next(iter(self._given)) < staging.last):
            del self._given[next(iter(self._given))]

    def _native_job(self, number: int, job: GopJob) -> NativeJob:
        """A job for the native module."""
        # Drained first if the decoder is to be reconfigured or opened anew with more surfaces. So is it before a CRA
        # picture, at which NVDEC does not reset: it would decode the leading pictures, wrongly.
        alone = job.exclusive or job.key != self._now or job.dpb_frames > self._dpb_frames or not job.starts_with_idr
        self._now, self._dpb_frames = job.key, max(job.dpb_frames, self._dpb_frames)
        packets, key, ranks = job.packets, job.key, job.display_order.tolist()
        # Only their order matters, as there are gaps where packets were dropped.
        if max(ranks) - min(ranks) >= len(ranks):
            ranks = job.display_order.argsort().argsort().tolist()
        # `bytes`, whose address ctypes gets in a tenth of the time that an array's takes.
        table = struct.pack(f"{3 * len(ranks)}q", *packets.sizes.tolist(), *job.rows.tolist(), *ranks)
        return NativeJob(
            number, key.width, key.height, job.target.window, len(ranks), alone, job.packet_by_packet, not job.timed,
            packets.length_size, len(packets.header), packets.header, packets.data.ctypes.data, table,
        )  # fmt: skip

    def flush(self) -> None:
        self._call(draining=True)
        self.hand_over()

    @property
    def oldest_waiting(self) -> int | None:
        return self._staging.jobs[self._staging.first] if self._staging.count else None

    def hand_over(self) -> None:
        if not self._staging.count:
            return
        staged, first = self._staged(), 0
        rows, surfaces = self._rows[staged], np.empty((len(staged), len(self._surfaces)), dtype=np.int64)
        for column, values in enumerate(self._surfaces):
            surfaces[:, column] = values[staged]
        for number, same in groupby(self._numbers[staged].tolist()):
            end = first + len(list(same))
            self._take(number, rows[first:end], surfaces[first:end])
            first = end
        self._launch()
        self._staging.count = 0

    def salvage(self) -> None:
        """See `streamvid.decode.nvdec_worker.DecodeSession`. Staged pictures were copied before the error."""
        self._staging.count = int(np.count_nonzero(self._numbers[self._staged()] < self.confirmed))
        self.hand_over()

    def _staged(self) -> list[int]:
        """Indices of the staged pictures."""
        first, slots = self._staging.first, self._staging.slots
        places = range(first, first + self._staging.count)
        return [place % slots for place in places]

    def stop(self) -> None:
        with self._lock:
            if self._session is not None:
                self._calls.nvdec_stop(self._session)

    def close(self) -> None:
        """Free the session. No other call may be running."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                self._calls.nvdec_close(session)

    def _check(self, status: int) -> None:
        if not status:
            return
        text = self._calls.nvdec_error(self._session).decode(errors="replace")
        if status == _STREAM:
            job, _ = self._given[self._staging.last]
            raise VideoError(f"clip {job.encoded.name} {text}: pack it again")
        raise RuntimeError(text)
