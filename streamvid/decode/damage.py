"""Finds the frames of a clip that a loader cannot decode. `verify --decode` reports them, and packing rejects such
clips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream import hevc
from streamvid.bitstream.h264_gaps import FrameNumbers
from streamvid.bitstream.packet_info import tells_sets
from streamvid.bitstream.packets import Packets, packets_in
from streamvid.checksum import crc32c
from streamvid.decode.slice_frames import DamagedClipError, decode_frames
from streamvid.video.codec_context import MAX_REORDER, ReusableCodecContext, in_band_description, reorder_depth
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import EncodedSlice, select_packets

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_MIN_PACKETS: Final = 64
"""Fewest packets of a part. Each part is decoded by a new codec context, because a loader that begins at this part does
not know the parameter sets in the packets of earlier parts."""
_KEPT_BYTES: Final = 128 << 20
"""Memory for frames that are kept while others are decoded."""
_DECODED_PARTLY: Final = ("hevc", "vp8")
"""Codecs of which FFmpeg may leave out a part of a picture without an error."""
_LEFT_OUT: Final = "FFmpeg leaves out a part of a picture"
_SHOWN: Final = 5
"""Runs of frame numbers that a message lists."""


@dataclass(frozen=True)
class Damage:
    """Frames that do not decode.

    Attributes:
        frames: their numbers, ascending.
        total: frames of the clip.
        cause: the cause of the first.
    """

    frames: tuple[int, ...]
    total: int
    cause: str

    def __str__(self) -> str:
        numbers = np.array(self.frames)
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        shown = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:_SHOWN])
        more = sum(map(len, runs[_SHOWN:]))
        if len(numbers) == 1:
            return f"frame {shown} of its {self.total} does not decode: {self.cause}"
        others = f" and {more} more" if more else ""
        return f"{len(numbers)} of its {self.total} frames do not decode, {shown}{others}: {self.cause}"


def find_damage(index: FrameIndex, frames: Int64, encode: Callable[[Int64], EncodedSlice]) -> Damage | None:
    """Decode frames of a clip as a loader does, and find the frames that fail.

    A frame is damaged if a slice of only this frame does not decode; a window is damaged if one of its frames is. A
    frame of HEVC or VP8 is also damaged if it shows uninitialised memory, which a loader does not notice.
    Undamaged parts are decoded once, of these codecs several times. In a damaged part the frames are found by
    bisection, or by comparing what came out each time.

    Args:
        index: the clip's packets.
        frames: int64 [wanted], the numbers of the frames to decode, ascending, at least one.
        encode: makes a slice of some of them, ascending.
    """
    found: dict[int, str] = {}
    for part in _parts(index, frames):
        # In decode order: reference frames come before the frames that depend on them.
        _search(index, part[np.argsort(index.visible[part], kind="stable")], encode, found)
    if not found:
        return None
    numbers = tuple(sorted(found))
    return Damage(numbers, len(index.visible), found[numbers[0]])


def _parts(index: FrameIndex, frames: Int64) -> Iterator[Int64]:
    """The frames in parts that end where a GOP does."""
    gops = np.searchsorted(index.starts, index.visible[frames], side="right")
    first = 0
    for cut in [*(np.flatnonzero(np.diff(gops)) + 1).tolist(), len(frames)]:
        if cut == len(frames) or cut - first >= _MIN_PACKETS:
            yield frames[first:cut]
            first = cut


def _search(index: FrameIndex, frames: Int64, encode: Callable[[Int64], EncodedSlice], found: dict[int, str]) -> None:
    """Add the damaged frames among `frames`, which are in decode order, to `found`, with their causes."""
    frames = frames[[number not in found for number in frames.tolist()]]
    if not len(frames):
        return
    if (cause := _cause(encode(np.sort(frames)))) is None:
        return
    if cause.rows:
        found.update(dict.fromkeys(np.sort(frames)[[*cause.rows]].tolist(), cause.text))
        return
    before = len(found)
    if len(frames) > 1:
        half = len(frames) // 2
        _search(index, frames[:half], encode, found)
        _search(index, frames[half:], encode, found)
    if len(found) == before:
        found.update(dict.fromkeys(frames.tolist(), cause.text))
        if cause.spreads:
            _add_dependent(index, int(frames[0]), cause.text, found)


def _add_dependent(index: FrameIndex, damaged: int, cause: str, found: dict[int, str]) -> None:
    """Add the frames that need all packets of a damaged frame, since decoding them meets the same damage."""
    needed = select_packets(index, np.array([damaged])).offsets
    first = int(index.visible[damaged])
    # No frame that is decoded after the next GOP needs it.
    later = index.starts[index.starts > first]
    end = int(later[1]) if len(later) > 1 else len(index)
    for number in np.flatnonzero((index.visible > first) & (index.visible < end)).tolist():
        if number not in found and np.isin(needed, select_packets(index, np.array([number])).offsets).all():
            found[number] = cause


class _Cause(NamedTuple):
    """The cause of damage.

    Attributes:
        text: in words.
        spreads: whether all frames that need the damaged packets fail, too.
        rows: the damaged frames among the slice's; () if unknown.
    """

    text: str
    spreads: bool = True
    rows: tuple[int, ...] = ()


def _cause(encoded: EncodedSlice) -> _Cause | None:
    """The cause for which a slice does not decode to its frames in order; None if it does."""
    partly = encoded.codec in _DECODED_PARTLY
    context, kept = ReusableCodecContext(any_history=partly), _kept_frames(encoded) if partly else 0
    try:
        passes = [_numbered(decode_frames(encoded, context=context), kept) for _ in range(1 + partly)]
    except DamagedClipError as error:
        return _Cause(error.reason)
    rows = [row for row, _ in passes[0]]
    if encoded.in_order and rows != sorted(rows):
        return _Cause("they come out of a decoder in another order than the index says")
    if changed := [row for (row, before), (_, after) in zip(passes[0], passes[-1], strict=True) if before != after]:
        return _Cause(_LEFT_OUT, rows=tuple(changed))
    if encoded.codec == "h264":
        return _missing_references(encoded)
    text = _error_of_hevc(encoded) if encoded.codec == "hevc" else None
    return None if text is None else _Cause(text)


def _kept_frames(encoded: EncodedSlice) -> int:
    """How many frames `_KEPT_BYTES` hold, with 4:4:4 in 16 bits for the largest."""
    return max(1, _KEPT_BYTES // (6 * encoded.width * encoded.height))


def _numbered(frames: Iterator[tuple[int, VideoFrame]], kept: int) -> list[tuple[int, list[int]]]:
    """Numbers of frames, with a checksum of each plane if `kept` is not 0.

    A picture that FFmpeg decodes only partly shows what its memory held before. New memory is zeroed; after a pass,
    that of the last `kept` frames is filled with ones for the next: the sums of two passes by one decoder then differ.
    """
    found: list[tuple[int, list[int]]] = []
    held: deque[VideoFrame] = deque(maxlen=kept)  # so that no memory is reused within a pass
    for number, frame in frames:
        held.append(frame)
        found.append((number, _sums(frame) if kept else []))
    for plane in (plane for frame in held for plane in frame.planes):  # which the decoder has let go of
        plane.update(b"\xff" * plane.buffer_size)
    return found


def _missing_references(encoded: EncodedSlice) -> _Cause | None:
    """A cause if frame_num shows that reference pictures of a slice of H.264 are missing."""
    numbers, starts = FrameNumbers(encoded.stsd), set(encoded.starts.tolist())
    wanted = set(encoded.frames.tolist())
    packets = zip(packets_in(encoded.data, encoded.sizes), encoded.display_order.tolist(), strict=True)
    for n, (packet, rank) in enumerate(packets):
        if gap := numbers.gap_before(packet, starts=n in starts, rank=rank, wanted=rank in wanted):
            where = "" if gap.spreads else ", before a recovery point"
            text = f"reference pictures are missing between frame_num {gap.before} and {gap.after}{where}"
            return _Cause(text, gap.spreads)
    return None


def _error_of_hevc(encoded: EncodedSlice) -> str | None:
    """The cause for which FFmpeg does not decode a part of a picture, or None. It only logs such a part, or does not
    notice it.

    A strict decoder raises an error, but also for invalid SEI messages, which many encoders write, so it gets only
    slices and parameter sets, from one key frame to the next.
    """
    import av

    try:
        sets = hevc.parameter_sets(encoded.stsd)
        packets = list(Packets.checked(encoded.data, encoded.sizes, length_size=sets.length_size))
    except ValueError:  # bytes after the last unit, which the decoder above has accepted
        return None
    stsd = in_band_description("hevc", width=encoded.width, height=encoded.height)
    reorder = reorder_depth(encoded.display_order) if encoded.in_order else MAX_REORDER
    stored = packets_in(encoded.data, encoded.sizes)
    kinds = [*map(hevc.classifier(encoded.stsd), stored)]
    units = [hevc.SYNTAX.leading_units(packet, sets.length_size) for packet in stored]
    # Then no decoder was kept for a second pass of `_cause`.
    changes_sets = any(map(tells_sets("hevc", encoded.stsd), stored))
    kept = _kept_frames(encoded) if changes_sets else 0
    # Not where the sets differ from those of the sample description, and are not repeated.
    idr = [n for n, leading in enumerate(units) if kinds[n].random_access and hevc.SYNTAX.is_idr(leading)]
    for first, end in pairwise([*np.union1d(encoded.starts, idr).astype(int).tolist(), len(packets)]):
        # Where decoding begins, pictures that refer to earlier ones are skipped.
        later = next((n for n in range(first + 1, end) if kinds[n].random_access), end)
        taken = [n for n in range(first, end) if n > later or not kinds[n].skipped_leading]
        run = [hevc.pictures(packets[n]) for n in taken]
        if hevc.has_vps(sets.annex_b):  # without it, a strict decoder refuses the others; then they are in band, too
            run[0] = hevc.pictures(sets.annex_b) + run[0]
        ranks, context = encoded.display_order[taken].tolist(), ReusableCodecContext(strict=True)
        try:
            passes = []
            for _ in range(1 + changes_sets):
                frames = context.decode(stsd, zip(run, ranks, strict=True), reorder=reorder)
                passes.append(_numbered(((frame.pts or 0, frame) for frame in frames), kept))
        except av.error.FFmpegError as error:
            return f"FFmpeg: {error.strerror or type(error).__name__}"
        if passes[0] != passes[-1]:
            return _LEFT_OUT
    return None


def _sums(frame: VideoFrame) -> list[int]:
    """A checksum of each plane, without the padding beside the picture."""
    sample = (frame.format.components[0].bits + 7) // 8
    planes = (
        (np.frombuffer(bytes(plane), dtype=np.uint8).reshape(-1, plane.line_size), plane) for plane in frame.planes
    )
    return [crc32c(rows[: plane.height, : sample * plane.width].tobytes()) for rows, plane in planes]
