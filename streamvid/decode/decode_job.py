"""What decoders that stay open work on: slices, cut where they begin anew, and the batches they belong to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

from streamvid.bitstream.annexb import CODECS, begins_anew, parameters, sets_in_band, to_annex_b
from streamvid.bitstream.dpb import Dpb, dpb, sequences
from streamvid.errors import VideoError
from streamvid.video.packet_selection import EncodedSlice

_BITS: Final = {"h264": (8,), "hevc": (8, 10)}
"""Bits per sample that NVDEC decodes and `streamvid.color.nv12` makes RGB of."""

_WIDE_STEP: Final = 4
"""Both sides of 10-bit frames must be a multiple of this: samples come to 8 bits four by four, also those that are cut
off at the border, which nobody gets to see."""


@dataclass(frozen=True)
class SessionKey:
    """Streams that can share a decoder, if it keeps enough pictures.

    Attributes:
        codec: "h264" or "hevc".
        width, height: of decoded frames, in pixels.
        bits: per sample, 8 or 10.
        group: as in `streamvid.bitstream.dpb.Dpb`.
    """

    codec: str
    width: int
    height: int
    bits: int
    group: str

    @cached_property
    def rows(self) -> int:
        """Rows of a decoded frame, luma above chroma."""
        return self.height * 3 // 2

    @cached_property
    def frame_bytes(self) -> int:
        """Of a decoded frame."""
        return self.rows * self.width * (2 if self.bits > 8 else 1)


class JobGroup:
    """Runs that somebody waits for together.

    Args:
        runs: how many.
    """

    def __init__(self, runs: int) -> None:
        self._lock = threading.Lock()
        self._left = runs
        self._error: VideoError | None = None
        self._written: dict[int, Any] = {}
        self._done: Future[None] = Future()
        if not runs:
            self._done.set_result(None)

    def finished(self, written: Any = None) -> None:
        """One run is done.

        Args:
            written: a CUDA event that comes after its frames are written; None if they are. Of each thread the last
                one counts.
        """
        with self._lock:
            if written is not None:
                self._written[threading.get_ident()] = written
            self._left -= 1
            left = self._left
        if not left:
            self._done.set_result(None)

    def failed(self, error: VideoError) -> None:
        """One run cannot be done."""
        with self._lock:
            self._error = self._error or error
        self.finished()

    def wait(self) -> None:
        """Until all are done and written, also if some failed: whose memory it is may be let go then.

        Raises:
            VideoError: one failed.
        """
        self._done.result()
        for event in self._written.values():
            event.synchronize()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, eq=False)
class GopJob:
    """Packets of a slice, from an IDR picture to the next, or to the end: what can be decoded by itself.

    Attributes:
        part: the slice.
        out: uint8 tensor [frames, height, width, 3] on the GPU, to be written: all wanted frames of this size in the
            batch.
        packets: in decode order, with the parameter sets before the first.
        anew: the first is an IDR picture.
        ranks: of each packet, as in `EncodedSlice`.
        rows: of the wanted frames among them, by rank, their places in `out`.
        kind, pictures: what it needs of a decoder; see `streamvid.bitstream.dpb.Dpb`.
        batch: what it belongs to.
        tried: why it is decoded a second time, with no other beside it.
    """

    part: EncodedSlice
    out: Any
    packets: list[bytes]
    anew: bool
    ranks: list[int]
    rows: dict[int, int]
    kind: SessionKey
    pictures: int
    batch: JobGroup
    tried: VideoError | None = None

    def wrong(self, error: Exception | str) -> VideoError:
        """A sentence that names the clip."""
        if isinstance(error, VideoError):
            return error
        reason = " ".join(str(error).split())[:300]
        made = VideoError(
            f"clip {self.part.name} cannot be decoded ({reason}): check it with `streamvid verify --decode`"
        )
        if isinstance(error, Exception):
            made.__cause__ = error
        return made


def is_supported(codec: str, stsd: bytes, width: int, height: int) -> bool:
    """Whether a clip is one for decoders that stay open: H.264 with 8 bits or HEVC with 8 or 10, and even sides.

    Args:
        codec, stsd: as in docs/format.md.
        width, height: of decoded frames, in pixels.
    """
    if codec not in CODECS:
        return False
    try:
        bits = parameters(codec, stsd).bits
    except ValueError:
        return False
    step = _WIDE_STEP if bits > 8 else 2
    return bits in _BITS[codec] and width % step == 0 and height % step == 0


@lru_cache(maxsize=4096)
def session_key(codec: str, stsd: bytes, width: int, height: int) -> tuple[SessionKey, Dpb]:
    """The kind of a clip's streams, and what they ask of a decoder.

    Raises:
        ValueError: as `streamvid.bitstream.annexb.parameters`.
    """
    settings = parameters(codec, stsd)
    asked = dpb(codec, settings.sets)
    return SessionKey(codec, width, height, settings.bits, asked.group), asked


def split_at_idr(slices: Sequence[EncodedSlice], places: Sequence[tuple[Any, int]]) -> list[GopJob]:
    """Cut slices of a batch where they begin anew, so that few long slices keep all engines busy, too.

    Args:
        slices: those of one batch; all of codecs that `takes` takes.
        places: where the frames of each go: see `Run.out`, and which of those is the slice's first.

    Raises:
        VideoError: packets are no NAL units, or a wanted frame is none of theirs.
    """
    pieces = [_pieces(part) for part in slices]
    batch = JobGroup(sum(len(each) for each in pieces))
    runs = []
    for part, (out, start), each in zip(slices, places, pieces, strict=True):
        kind, asked = session_key(part.codec, part.stsd, part.width, part.height)
        rows = {rank: row for row, rank in enumerate(part.frames.tolist(), start)}
        for packets, anew, ranks, in_band in each:
            mine = {rank: rows[rank] for rank in ranks if rank in rows}
            # What comes last counts.
            need = dpb(part.codec, in_band) if sequences(part.codec, in_band) else asked
            runs.append(
                GopJob(part, out, packets, anew, ranks, mine, replace(kind, group=need.group), need.pictures, batch)
            )
    return runs


def _pieces(part: EncodedSlice) -> list[tuple[list[bytes], bool, list[int], bytes]]:
    """Packets, whether they begin anew, ranks, and parameter sets in band, of each run of a slice."""
    try:
        settings = parameters(part.codec, part.stsd)
        packets = to_annex_b(part.data, part.sizes, settings.length_size)
    except ValueError as error:
        raise VideoError(f"clip {part.name} is damaged ({error}): check it with `streamvid verify`") from error
    ranks = part.display_order.tolist()
    lost = set(part.frames.tolist()) - set(ranks)
    if lost:
        raise VideoError(
            f"clip {part.name} has no packet for {len(lost)} of its frames: check it with `streamvid verify`"
        )
    # A CRA picture needs none before it, but does not begin anew.
    anew = {n for n in part.starts.tolist() if begins_anew(packets[n], part.codec)}
    cuts = sorted({0} | anew)
    in_band = b""
    pieces = []
    for start, end in zip(cuts, [*cuts[1:], len(packets)], strict=True):
        in_band = sets_in_band(packets[start], part.codec) or in_band
        first = settings.sets + in_band + packets[start]
        pieces.append(([first, *packets[start + 1 : end]], start in anew, ranks[start:end], in_band))
    return pieces
