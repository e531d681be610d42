"""One video file → one stored clip: its video track copied packet by packet into an MP4, and the frame index of that.

Nothing is re-encoded. What FFmpeg's demuxers know (edit lists, containers, Annex B) is left to them; what they guess
(timestamps in AVI, key frame flags, sizes in headers) is found out from the bitstream.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from streamvid.errors import VideoError
from streamvid.video import bitstream, mp4
from streamvid.video.index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex, Int64
from streamvid.video.stored import StoredClip

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

log = logging.getLogger(__name__)

CODECS: Final = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg")
MAX_SIDE: Final = 16384
"""Frames wider or higher than this, in pixels, are refused: no model wants them, and headers lie."""
_REORDERED: Final = ("h264", "hevc", "mpeg4")


@dataclass(frozen=True)
class _Scan:
    """The source's packets in decode order, as arrays of one length; times in ticks of `time_base`."""

    pts: Int64
    hidden: npt.NDArray[np.bool_]
    last_duration: int
    time_base: tuple[int, int]


@dataclass(frozen=True)
class _Look:
    """What the first decoded frame says; the container's headers may say something else."""

    width: int
    height: int
    pix_fmt: str
    color_space: str
    color_range: str
    rotation: int


def store_clip(source: Path, folder: Path) -> StoredClip:
    """Copy the video track of a file into an MP4 in `folder` and index it.

    Args:
        source: a local video file in any container that FFmpeg knows.
        folder: where the MP4 is written; the caller owns and removes it.

    Raises:
        VideoError: the file holds no video, is damaged, or holds a video that cannot be stored frame by frame.
    """
    target = folder / "clip.mp4"
    try:
        codec, profile, annex_b, container = _open_summary(source)
        look = _look(source)
        scan = _scan(source, codec, trust_times=container != "avi")
        first, last = _extent(scan)
        kept = slice(first, last + 1)
        pts = scan.pts[kept]
        if codec == "vp8":
            _write_vp8(source, target, kept, pts, scan, look)
        else:
            _mux(
                source, target, kept, pts, scan, look, faststart_tag="hvc1" if codec == "hevc" and not annex_b else None
            )
        return _index(target, codec, profile, look, scan.hidden[kept], pts, scan)
    except av.error.FFmpegError as error:
        raise VideoError(f"FFmpeg cannot read it: {error.strerror or type(error).__name__}") from error
    except ValueError as error:
        raise VideoError(str(error)) from error


def _open(source: Path) -> InputContainer:
    """Open a local file, and nothing that it may refer to: playlists and the like could name any URL."""
    return av.open(
        f"file:{source.absolute()}",
        "r",
        options={"protocol_whitelist": "file", "format_whitelist": _FORMATS},
        metadata_errors="replace",
    )


_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts"


def _video(container: InputContainer) -> VideoStream:
    streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
    if not streams:
        raise ValueError("it holds no video track")
    return streams[0]


def _open_summary(source: Path) -> tuple[str, str, bool, str]:
    """(codec, profile, whether packets are in Annex B form, container)."""
    with closing(_open(source)) as container:
        stream = _video(container)
        context = stream.codec_context
        codec = context.codec.canonical_name
        if codec not in CODECS:
            raise ValueError(f"its codec is {codec}; streamvid stores {', '.join(CODECS)}: convert it first")
        # avcC and hvcC begin with their version, 1; Annex B begins with a start code (ISO/IEC 14496-15).
        extradata = context.extradata or b""
        annex_b = codec in ("h264", "hevc") and extradata[:1] != b"\x01"
        return codec, context.profile or "", annex_b, container.format.name.split(",")[0]


def _look(source: Path) -> _Look:
    """Decode the first frame that is shown."""
    with closing(_open(source)) as container:
        stream = _video(container)
        stream.codec_context.thread_count = 1
        frame = next(iter(container.decode(stream)), None)
        if frame is None:
            raise ValueError("not one frame of it can be decoded")
        if not (0 < frame.width <= MAX_SIDE and 0 < frame.height <= MAX_SIDE):
            raise ValueError(f"its frames are {frame.width}x{frame.height}; the limit is {MAX_SIDE} on a side")
        return _Look(
            width=frame.width,
            height=frame.height,
            pix_fmt=frame.format.name,
            color_space=_name(Colorspace, frame.colorspace),
            color_range="pc" if frame.format.name.startswith("yuvj") else _name(ColorRange, frame.color_range),
            rotation=_rotation(frame),
        )


def _name(kind: type[Colorspace] | type[ColorRange], value: int) -> str:
    names = {Colorspace: _COLOR_SPACES, ColorRange: _COLOR_RANGES}[kind]
    return names.get(int(value), "unknown")


# ITU-T H.273 table 4 and FFmpeg's AVColorRange, by FFmpeg's names.
_COLOR_SPACES: Final = {
    0: "gbr",
    1: "bt709",
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "ycgco",
    9: "bt2020nc",
    10: "bt2020c",
}
_COLOR_RANGES: Final = {1: "tv", 2: "pc"}


def _rotation(frame: VideoFrame) -> int:
    """Degrees clockwise that stand the frame upright; 0 where the display matrix is no multiple of 90."""
    counterclockwise = frame.rotation
    if counterclockwise % 90:
        log.warning("a display matrix turns frames by %s degrees; only multiples of 90 are applied", counterclockwise)
        return 0
    return int(-counterclockwise) % 360


def _packets(container: InputContainer, stream: VideoStream, codec: str) -> Iterator[Packet[VideoStream]]:
    """The track's packets from the first random access point on, without empty ones."""
    unpack = None
    if codec == "mpeg4" and container.format.name == "avi":
        # DivX packs a B-frame into the packet of the frame it precedes, with a placeholder after it.
        unpack = av.BitStreamFilterContext("mpeg4_unpack_bframes", stream)
    started = False
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise ValueError("a packet in it is damaged or cut off")
        for piece in [packet] if unpack is None else unpack.filter(packet if packet.size else None):
            started = started or piece.is_keyframe
            if piece.size and started:
                yield piece


def _scan(source: Path, codec: str, *, trust_times: bool) -> _Scan:
    """Times and visibility of every packet, without keeping their bytes."""
    times: list[int | None] = []
    decode_times: list[int] = []
    hidden: list[bool] = []
    duration = 0
    with closing(_open(source)) as container:
        stream = _video(container)
        base = stream.time_base
        if base is None or base <= 0:
            raise ValueError("its time base is not positive")
        expected = stream.frames if container.format.name.startswith("mov") else 0
        for number, packet in enumerate(_packets(container, stream, codec)):
            times.append(packet.pts)
            decode_times.append(packet.dts if packet.dts is not None else number)
            hidden.append(packet.is_discard)
            duration = packet.duration or duration
        edited = any(hidden)
    if not times:
        raise ValueError("it holds no packet from which decoding could start")
    if expected and len(times) < expected // 2 and not edited:
        raise ValueError(f"it is cut off: {len(times)} of {expected} frames are there")
    if None in times or (codec in _REORDERED and not trust_times):
        return _scan_by_decoding(source, codec, decode_times, duration)
    pts = np.array(times, dtype=np.int64)
    return _Scan(pts, np.array(hidden), duration, (base.numerator, base.denominator))


def _scan_by_decoding(source: Path, codec: str, decode_times: list[int], duration: int) -> _Scan:
    """Times for a container that has none, or only decode times: the decoder's order, on the clock of the packets.

    AVI stores no presentation times, and those that demuxers make up for it are wrong where frames are reordered.
    """
    with closing(_open(source)) as container:
        stream = _video(container)
        base = stream.time_base
        assert base is not None
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        order: list[int] = []
        for number, packet in enumerate(_packets(container, stream, codec)):
            packet.opaque = number
            order.extend(_number(frame) for frame in context.decode(packet))
        order.extend(_number(frame) for frame in context.decode(None))
    if len(order) != len(decode_times) or len(set(order)) != len(order):
        raise ValueError(
            f"its {len(decode_times)} packets decode to {len(order)} frames, "
            "and its container holds no times to match them: convert it first"
        )
    clock = np.sort(np.array(decode_times, dtype=np.int64))
    if len(np.unique(clock)) != len(clock):
        clock = np.arange(len(clock), dtype=np.int64)
    pts = np.empty(len(order), dtype=np.int64)
    pts[np.array(order)] = clock
    return _Scan(pts, np.zeros(len(order), dtype=bool), duration, (base.numerator, base.denominator))


def _number(frame: VideoFrame) -> int:
    """The number of the packet that the frame was decoded from."""
    if not isinstance(frame.opaque, int):
        raise ValueError("its frames cannot be matched with its packets: convert it first")
    return frame.opaque


def _extent(scan: _Scan) -> tuple[int, int]:
    """First and last packet worth keeping: behind the last visible packet in decode order nothing is needed."""
    shown = np.flatnonzero(~scan.hidden)
    if len(shown) == 0:
        raise ValueError("all its frames are hidden by an edit list")
    return 0, int(shown[-1])


def _decode_times(pts: Int64) -> Int64:
    """Strictly rising decode times, none after the packet's presentation time.

    The sorted presentation times, moved back as a whole by as much as the reordering needs.
    """
    ordered = np.sort(pts)
    ramp = np.arange(len(pts), dtype=np.int64)
    rising = np.maximum.accumulate(ordered - ramp) + ramp
    return np.asarray(rising - max(0, int((rising - pts).max())), dtype=np.int64)


def _last_duration(scan: _Scan, pts: Int64) -> int:
    """Ticks for which the last frame is shown: what the file says if it is sane, else the median distance."""
    steps = np.diff(np.unique(pts))
    typical = int(np.median(steps)) if len(steps) else max(1, round(scan.time_base[1] / scan.time_base[0] / 25))
    longest = max(int(steps.max()) if len(steps) else 0, typical)
    return scan.last_duration if 0 < scan.last_duration <= 10 * longest else max(typical, 1)


def _mux(
    source: Path, target: Path, kept: slice, pts: Int64, scan: _Scan, look: _Look, *, faststart_tag: str | None
) -> None:
    """Copy the kept packets into an MP4 with `moov` first, and nothing in it that varies between runs."""
    origin = int(pts[~scan.hidden[kept]].min())
    decode_times = _decode_times(pts)
    last = int(np.argmax(np.where(scan.hidden[kept], np.iinfo(np.int64).min, pts)))
    with closing(_open(source)) as container:
        stream = _video(container)
        options = {"movflags": "+faststart", "fflags": "+bitexact"}
        with closing(av.open(os.fspath(target), "w", format="mp4", options=options)) as output:
            track = output.add_stream_from_template(stream, opaque=True)
            track.time_base = stream.time_base
            track.codec_context.width, track.codec_context.height = look.width, look.height
            if faststart_tag:
                track.codec_context.codec_tag = faststart_tag
            for number, packet in enumerate(_packets(container, stream, stream.codec_context.codec.canonical_name)):
                if number > kept.stop - 1:
                    break
                packet.stream = track
                packet.pts = int(pts[number]) - origin
                packet.dts = int(decode_times[number]) - origin
                packet.duration = _last_duration(scan, pts) if number == last else 0
                output.mux(packet)
    if scan.hidden[kept].any():
        _end_edit(target, int(pts[~scan.hidden[kept]].max()) - origin + _last_duration(scan, pts), scan.time_base)


def _end_edit(target: Path, ticks: int, time_base: tuple[int, int]) -> None:
    """Let players stop at the end of the last visible frame: packets behind it are only there because others refer
    to them."""
    with target.open("r+b") as file:
        head = bytearray(_movie_header(file.read(1 << 26)))
        if mp4.limit_edit(head, ticks * time_base[0] / time_base[1]):
            file.seek(0)
            file.write(head)


def _write_vp8(source: Path, target: Path, kept: slice, pts: Int64, scan: _Scan, look: _Look) -> None:
    """FFmpeg reads VP8 from MP4 but does not write it: the track by our own writer, at the source's times.

    The sample entry follows "VP Codec ISO Media File Format Binding" 1.0: `vp08` with a `vpcC` box.
    """
    with closing(_open(source)) as container:
        stream = _video(container)
        data = [bytes(packet) for packet in _packets(container, stream, "vp8")][kept]
    vpcc = mp4.full_box(
        b"vpcC", bytes([0, 10, 8 << 4 | 1 << 1 | (look.color_range == "pc"), 2, 2, 2]), bytes(2), version=1
    )
    stsd = mp4.visual_sample_description(b"vp08", vpcc, width=look.width, height=look.height)
    sizes = np.array([len(d) for d in data], dtype=np.int64)
    base = scan.time_base
    scale = max(1, round(base[1] / base[0]))
    ticks = (pts - pts[0]) * base[0] * scale // base[1]
    steps = np.append(np.diff(ticks), _last_duration(scan, pts) * base[0] * scale // base[1])
    with target.open("wb") as file:
        file.write(mp4.header(stsd, sizes, width=look.width, height=look.height, timescale=scale, steps=steps))
        file.writelines(data)


def _index(
    target: Path, codec: str, profile: str, look: _Look, hidden: npt.NDArray[np.bool_], pts: Int64, scan: _Scan
) -> StoredClip:
    """Read the written MP4 back: where its packets lie, and what each of them is."""
    with target.open("rb") as file:
        stsd = mp4.sample_description(_movie_header(file.read(1 << 26)))
    data = np.memmap(target, mode="r", dtype=np.uint8).data
    with closing(av.open(os.fspath(target), "r", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        base = stream.time_base
        assert base is not None
        rows = [(p.pts, p.pos, p.size) for p in container.demux(stream) if p.size]
    raw, offset, size = np.array(rows, dtype=np.int64).T
    stored = raw - raw[np.flatnonzero(~hidden)[np.argmin(pts[~hidden])]] if len(raw) == len(pts) else raw
    wanted = (pts - pts[~hidden].min()) * scan.time_base[0] * base.denominator
    if len(raw) != len(pts) or np.any(
        np.abs(stored * scan.time_base[1] * base.numerator - wanted) >= scan.time_base[1] * base.numerator
    ):
        raise ValueError("its timestamps cannot be kept in an MP4: convert it first")

    kinds = bitstream.classify(codec, stsd, [data[o : o + s] for o, s in zip(offset, size, strict=True)])
    if not kinds[0].random_access:
        hidden = hidden | _unrecovered(target, raw)
    flags = _flags(kinds, stored, hidden, codec)
    visible = (flags & HIDDEN) == 0
    if not visible.any():
        raise ValueError("no frame of it can be decoded from where it starts")
    index = FrameIndex(stored, offset, size, flags)
    shown = index.frame_pts
    index = replace(index, pts=stored - shown[0])
    ticks = _last_duration(scan, pts) * scan.time_base[0] * base.denominator // (scan.time_base[1] * base.numerator)
    return StoredClip(
        mp4=target,
        index=index,
        codec=codec,
        profile=profile,
        pix_fmt=look.pix_fmt,
        color_space=look.color_space,
        color_range=look.color_range,
        traits=_traits(kinds),
        width=look.width,
        height=look.height,
        rotation=look.rotation,
        time_base=(base.numerator, base.denominator),
        duration=int(shown[-1] - shown[0]) + max(1, ticks),
        stsd=stsd,
    )


def _unrecovered(target: Path, pts: Int64) -> npt.NDArray[np.bool_]:
    """bool [packets]: those before the first frame that a decoder hands out.

    A stream that does not begin with a random access point may need some packets until a picture is whole.
    """
    with closing(av.open(os.fspath(target), "r", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        first = next((frame.pts for frame in container.decode(stream) if frame.pts is not None), None)
    if first is None:
        raise ValueError("not one frame of it can be decoded")
    return np.asarray(pts < first)


def _traits(kinds: list[bitstream.PacketKind]) -> str:
    """The `traits` column of docs/format.md."""
    found = {"lead-in": not kinds[0].random_access, "show-existing": any(kind.repeats for kind in kinds)}
    return ",".join(sorted(name for name, there in found.items() if there))


def _movie_header(start: bytes) -> bytes:
    """The part of an MP4 before its `mdat`."""
    for kind, payload, _ in mp4.boxes(start, 0, len(start)):
        if kind == b"mdat":
            return start[: payload - 8]
    return start


def _flags(kinds: list[bitstream.PacketKind], pts: Int64, hidden: npt.NDArray[np.bool_], codec: str) -> Int64:
    """Index flags from what the packets are and when they are shown."""
    random_access = np.array([kind.random_access for kind in kinds])
    disposable = np.array([kind.disposable for kind in kinds])
    silent = np.array([kind.silent for kind in kinds])
    # The random access packet that each packet follows. The first packet counts as one: the sequential decode starts
    # there.
    anchor = np.maximum.accumulate(np.where(random_access, np.arange(len(kinds)), 0))
    leading = np.array([kind.skipped_leading for kind in kinds]) if codec == "hevc" else pts < pts[anchor]
    # Those of the very first one have nothing to be decoded from.
    undecodable = leading & (anchor == 0)
    return np.asarray(
        random_access * RANDOM_ACCESS
        + disposable * DISPOSABLE
        + leading * LEADING
        + (hidden | undecodable | silent) * HIDDEN,
        dtype=np.int64,
    )
