"""The speed of NVDEC's engines alone: the limit of decoding, and the floor of a training step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from streamvid.color.surfaces import Window
from streamvid.decode.cuda_calls import CudaCalls
from streamvid.decode.decode_job import NOT_WANTED, GopJob
from streamvid.decode.gop_jobs import split_at_idr
from streamvid.decode.native_session import NativeSession, largest
from streamvid.decode.nvdec_library import NvdecLibrary
from streamvid.decode.pynv_session import PynvSession, open_decoder
from streamvid.video.packet_selection import EncodedSlice

ENGINES: Final = 7
_TOGETHER: Final = 4
"""Jobs that a session is given at once."""


class Engines:
    """A decode session for each engine, fed with packets as fast as it takes them; no picture is wanted.

    Args:
        library: the native module; None: PyNvVideoCodec, which copies every picture all the same.
        some: a slice; the others are of its codec and size.
    """

    def __init__(self, library: NvdecLibrary | None, some: EncodedSlice) -> None:
        import torch

        key = _jobs([some])[0].key
        self._sessions: list[Any] = []
        self._number = 0
        self._pool = ThreadPoolExecutor(ENGINES)
        for _ in range(ENGINES):
            stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
            given: Any = {"take": lambda *_: None, "launch": lambda: None}
            if library is None:
                decoder = open_decoder(key, device_id=0, stream=stream.cuda_stream)
                given |= {"calls": CudaCalls(stream.cuda_stream), "device": stream.device}
                self._sessions.append(PynvSession(decoder, key, 16, **given))
            else:
                given |= {"device_id": 0, "key": largest(key, ()), "stream": stream.cuda_stream}
                self._sessions.append(NativeSession(library, **given))

    def decode(self, work: Sequence[EncodedSlice]) -> float:
        """Decode slices: pictures a second."""
        import torch

        jobs = list(enumerate(_jobs(work), self._number + 1))
        self._number += len(jobs)
        left = iter(jobs)

        def run(session: Any) -> None:
            with torch.cuda.device(0):
                while some := list(islice(left, _TOGETHER)):  # who is free takes the next
                    session.decode(some[0][0], [job for _, job in some])
                session.flush()

        began = time.perf_counter()
        list(self._pool.map(run, self._sessions))
        return sum(len(job.packets) for _, job in jobs) / (time.perf_counter() - began)

    def close(self) -> None:
        """Free the sessions."""
        for session in self._sessions:
            session.close()
        self._pool.shutdown()


def _jobs(work: Sequence[EncodedSlice]) -> list[GopJob]:
    nowhere: Any = SimpleNamespace(window=Window(0, 0, 0, 0))
    jobs = split_at_idr(work, [nowhere] * len(work))
    return [replace(job, rows=np.full(len(job.rows), NOT_WANTED, dtype=np.int32)) for job in jobs]
