"""Reads a video file through FFmpeg: its stream's codec, the format of its first frame, its packets.

Demuxers are trusted with what they parse (containers, edit lists, Annex B), but not with what they guess (frame sizes
from container headers, the content of AVI packets).
"""

from __future__ import annotations

import logging
import math
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import av

from streamvid.bitstream import jpeg, mpeg4, packet_info
from streamvid.bitstream.image import MAX_SIDE
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.color.tags import tag_names
from streamvid.errors import VideoError
from streamvid.mp4.boxes import NO_MOOV, box, children, lacks_moov, read_moovs, rotation_of_matrix
from streamvid.mp4.reader import VideoTrack
from streamvid.mp4.sample_entry import coded_size, read_entries, visual_sample_description
from streamvid.video.codec_context import MAX_PIXELS, bare_context, limit_pixels, open_context, padded_packet
from streamvid.video.containers import FORMATS, check_pattern, kind_of_refused, nameless, raw_format, refused
from streamvid.video.packed_vops import VopUnpacker
from streamvid.video.recordings import whole_packets
from streamvid.video.tracks import video_stream

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

log = logging.getLogger(__name__)

CODECS: Final = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg")


class CannotCopyError(VideoError, ValueError):
    """A video whose packets cannot be stored, although its frames can, by transcoding: its codec is none of CODECS, or
    an MP4 cannot have its times."""

    def __str__(self) -> str:
        # Not an argument, since an error from a worker process is constructed again from its arguments.
        return f"{super().__str__()}: transcode it, with --codec or --for gpu"


@dataclass(frozen=True)
class StreamInfo:
    """The properties of a video stream for which container headers are reliable.

    Attributes:
        codec: one of CODECS.
        profile: FFmpeg's name of the profile, or "".
        annex_b: whether NAL units in packets have start codes instead of lengths.
        container: the first of FFmpeg's names of the container's format, such as "mov" or "avi".
    """

    codec: str
    profile: str
    annex_b: bool
    container: str


@dataclass(frozen=True)
class FrameFormat:
    """The format of the first decoded frame, which headers may contradict: columns of docs/format.md."""

    width: int
    height: int
    pix_fmt: str
    color_space: str
    color_primaries: str
    color_range: str
    rotation: int


def open_video(source: Path, *, apply_edits: bool = True, fill_times: bool = True) -> InputContainer:
    """Open a local file by its content, but no files that it refers to, because playlists and the like could name any
    URL.

    Args:
        apply_edits: let FFmpeg apply the edit lists of an MP4.
        fill_times: let FFmpeg invent times that the container does not have.

    Raises:
        ValueError: the file is empty, or of none of the formats in `streamvid.video.containers`.
    """
    options = {"protocol_whitelist": "file", "format_whitelist": ",".join(FORMATS), "enable_drefs": "0"}
    options["max_pixels"] = str(MAX_PIXELS)  # limits the pictures that FFmpeg decodes to find out about the streams
    options |= {} if apply_edits else {"ignore_editlist": "1"}
    options |= {} if fill_times else {"fflags": "nofillin"}
    try:
        with nameless(source) as url:
            return av.open(url, "r", format=raw_format(source), options=options, metadata_errors="replace")
    except av.error.EOFError as error:
        raise ValueError("it ends with its header: it is cut off, or its recording was") from error
    except (av.error.ArgumentError, av.error.InvalidDataError) as error:
        if not source.stat().st_size:
            raise ValueError("it is empty, a file of 0 bytes: copy it again") from error
        kind = kind_of_refused(source)
        if not kind and isinstance(error, av.error.InvalidDataError):
            if not lacks_moov(source):
                raise
            raise ValueError(NO_MOOV) from error
        raise ValueError(kind or refused("of no video format that is read (docs/packing.md lists them)")) from error


@dataclass(frozen=True)
class VideoFile:
    """A video in a local file.

    Attributes:
        path: path of the file.
        track: number of the video track, as in FFmpeg's `V:0`, `V:1`, …; None: the one that `video_stream` chooses.
        fps: frames per second of a file that has neither times nor a rate.
        cut_off: whether the track's last packet is left out, because the file ends within it
            (`streamvid.video.cut_off`).
    """

    path: Path
    track: int | None = None
    fps: Fraction | None = None
    cut_off: bool = False

    @contextmanager
    def open(
        self, *, apply_edits: bool = True, fill_times: bool = True
    ) -> Iterator[tuple[InputContainer, VideoStream]]:
        """A context with the open file and its video track, decoded by one thread, as worker processes use all cores.

        Arguments and errors as in `open_video` and `streamvid.video.tracks.video_stream`.
        """
        with closing(open_video(self.path, apply_edits=apply_edits, fill_times=fill_times)) as container:
            stream = video_stream(container, self.track)
            if stream.codec_context is not None:
                stream.codec_context.thread_count = 1
                limit_pixels(stream.codec_context)
            yield container, stream


def read_stream_info(source: VideoFile) -> StreamInfo:
    """Read the headers of a file's video stream.

    Raises:
        ValueError: the file has no video track, is a part of a split MXF clip, or was joined of fragments that differ.
        CannotCopyError: the codec is none of CODECS.
    """
    with source.open() as (container, stream):
        check_pattern(container.metadata.get("operational_pattern_ul", ""))
        moovs = read_moovs(source.path) if container.format.name.startswith("mov") else iter(())
        entries = read_entries(next(moovs, b""), stream.id)
        _check_readable(stream, entries)
        # FFmpeg reads fragments behind another `moov`, too, but by the first.
        if any(b"mvex" in children(moov, 0, len(moov)) and read_entries(moov, stream.id) != entries for moov in moovs):
            raise ValueError("recordings of other parameter sets were joined in it: split it at its second moov box")
        context = stream.codec_context
        codec = context.codec.canonical_name
        if codec not in CODECS:
            raise CannotCopyError(f"its codec is {codec}; streamvid stores {', '.join(CODECS)}")
        # avcC and hvcC begin with their version, 1; Annex B begins with a start code (ISO/IEC 14496-15).
        annex_b = codec in ("h264", "hevc") and (context.extradata or b"")[:1] != b"\x01"
        return StreamInfo(codec, context.profile or "", annex_b, container.format.name.split(",")[0])


_ENCRYPTED: Final = "it is encrypted, as by a DRM: decrypt it first"


def _check_readable(stream: VideoStream, entries: Mapping[bytes, Mapping[bytes, bytes]]) -> None:
    """Refuse tracks that FFmpeg demuxes but cannot decode.

    Args:
        entries: the track's sample entries, if the file is an MP4.

    Raises:
        ValueError: the track is encrypted, or in a codec without a decoder.
    """
    if b"encv" in entries or any(b"sinf" in boxes for boxes in entries.values()):
        raise ValueError(_ENCRYPTED)
    if stream.codec_context is None:
        names = "".join(f", {name.decode('latin-1')!a}" for name in entries)
        if b"dav1" in entries:
            names += " (AV1 for Dolby Vision, whose colours other players get wrong)"
        raise ValueError(f"FFmpeg does not know the codec of its video track{names}: convert it to H.264 first")


def probe_first_frame(source: VideoFile) -> FrameFormat:
    """Decode the first displayed frame, or, if no frame that the edit list shows can be decoded, the first frame.

    Raises:
        ValueError: no frame decodes, or the frame is too large, or has an unsupported display matrix.
        CannotCopyError: it is H.264 without IDR pictures and recovery points. Decoders show that from an I picture on.
    """
    with suppress(av.error.InvalidDataError, _NoFrameError, CannotCopyError):
        return _first_frame(source, apply_edits=True)
    return _first_frame(source, apply_edits=False)


class _NoFrameError(ValueError):
    """A video without a frame that can be decoded."""


def _first_frame(source: VideoFile, *, apply_edits: bool) -> FrameFormat:
    with source.open(apply_edits=apply_edits) as (container, stream):
        context = stream.codec_context
        width, height, most, codec = context.width, context.height, limit_pixels(context), context.codec.canonical_name
        try:
            for number, packet in enumerate(chain(demux(source, container, stream, codec), [None])):
                if packet is None and not number and codec == "h264":
                    raise CannotCopyError("it has no IDR picture and no recovery point")
                for frame in context.decode(packet):
                    found = _frame_format(frame, source.path)
                    own = jpeg.rotation(bytes(packet)) if packet and codec == "mjpeg" else 0
                    return replace(found, rotation=found.rotation or own)
        except av.error.FFmpegError as error:
            if width * height <= most:
                raise
            raise ValueError(f"its frames are {width}x{height}; the limit is {most:,} pixels") from error
    return _frame_format(None)


def probe_packet(track: VideoTrack, packet: bytes) -> tuple[FrameFormat, str]:
    """The result of `probe_first_frame`, and the profile as in `StreamInfo`, from only the first packet of a track.

    Args:
        track: the track as read from the file's tables.

    Raises:
        ValueError: the packet does not decode to a frame by itself, or the frame is too large, or has an unsupported
            display matrix.
    """
    if not track.configuration:  # it is part of what FFmpeg's demuxer reads
        context = open_context(track.stsd, 0)
    else:
        context = bare_context(_DECODERS.get(track.codec, track.codec), track.configuration)
        if track.codec == "h264":  # FFmpeg crops its pictures to the container's size, if that is a little smaller
            context.width, context.height = coded_size(track.stsd)
    context.options = {**context.options, "skip_loop_filter": "all"}  # pixels are not used
    # The container's matrix and range apply if the bitstream has none; 2 and 0: nor has the container.
    context.colorspace = 2 if track.matrix is None else track.matrix
    context.color_range = {None: 0, False: 1, True: 2}[track.full_range]
    frames = context.decode(padded_packet(packet)) or context.decode(None)
    found = _frame_format(frames[0] if frames else None)
    # As in FFmpeg, the rotation in the bitstream (a SEI, or EXIF) applies if the container has none.
    own = jpeg.rotation(packet) if track.codec == "mjpeg" else found.rotation
    return replace(found, rotation=track.rotation or own), context.profile or ""


_DECODERS: Final = {"av1": "libdav1d"}  # FFmpeg's native decoder needs hardware
_FULL_RANGE: Final = {1: False, 2: True}  # by FFmpeg's AVColorRange


def _frame_format(frame: VideoFrame | None, source: Path | None = None) -> FrameFormat:
    if frame is None:
        raise _NoFrameError("not one frame of it can be decoded")
    if not (0 < frame.width <= MAX_SIDE and 0 < frame.height <= MAX_SIDE):
        raise ValueError(f"its frames are {frame.width}x{frame.height}; the limit is {MAX_SIDE} on a side")
    name: str = frame.format.name
    full_range = name.startswith("yuvj") or _FULL_RANGE.get(int(frame.color_range))
    tags = tag_names(int(frame.colorspace), int(frame.color_primaries), full_range)
    return FrameFormat(frame.width, frame.height, name, *tags, frame_rotation(frame, source))


def frame_rotation(frame: VideoFrame, source: Path | None = None) -> int:
    """The display rotation of a frame: one of `streamvid.mp4.boxes.ROTATIONS`.

    Args:
        source: named in a warning if the frame's display matrix is invalid, so that players ignore it.

    Raises:
        ValueError: the display matrix rotates by other than quarter turns, or shears.
    """
    try:
        data: Any = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV has no name for EXIF, which only pictures have: `jpeg.rotation` reads it
        return 0
    if data is None:
        return 0
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
    rotation = rotation_of_matrix(a, b, c, d)
    if rotation is None:
        angle = round(math.degrees(math.atan2(b, a)))
        raise ValueError(
            f"its display matrix turns frames by {angle} degrees, or shears them; streamvid applies quarter turns and "
            "mirror images alone: re-encode it as it is to be seen"
        )
    if source is not None and not (a * d - b * c):
        log.warning("%s: its display matrix is garbage, and ignored, as players do", source)
    return rotation


def _classifier(stream: VideoStream, codec: str) -> Classifier:
    """`packet_info.classifier` of a track, wherever it is from. Of Annex B, and of codecs that are not stored, it
    finds no key frames: there FFmpeg's flag is by the bitstream, too."""
    name, versions = _CONFIGURATIONS.get(codec, (b"", ()))
    extradata = stream.codec_context.extradata or b""
    if codec == "mpeg4":
        return mpeg4.vop_classifier(extradata)
    if codec not in CODECS or (name and extradata[:1] not in versions):
        return lambda packet: PacketKind()
    stsd = visual_sample_description(bytes(4), box(name, extradata), width=0, height=0)
    return packet_info.classifier(codec, stsd)


_CONFIGURATIONS: Final = {"h264": (b"avcC", (b"\x01",)), "hevc": (b"hvcC", (b"\x01",)), "av1": (b"av1C", (b"\x81",))}
"""By codec: its configuration box, and the first bytes of extradata that are the payload of one."""


def demux(source: VideoFile, container: InputContainer, stream: VideoStream, codec: str) -> Iterator[Packet[Any]]:
    """The track's packets from the first key frame on, without empty ones, and without a last one that is cut off.

    The container or the bitstream says which packets are key frames: some muxers leave the flag out where an edit
    begins. Of MPEG-4 the bitstream alone decides, as decoders show any other picture, too.
    Pictures behind a recovery point of H.264 may show what came before it, so that then earlier packets count, too.

    Args:
        source: the file.
        container, stream: as its `open` gives them.
        codec: of that track, one of CODECS.

    Raises:
        ValueError: as of `whole_packets`, or they are encrypted, or there are none.
    """
    unpack: Callable[[Packet[VideoStream] | None], list[Packet[VideoStream]]] | None = None
    if codec == "mpeg4" and container.format.name == "avi":
        unpack = VopUnpacker(stream.codec_context.extradata or b"").take
    elif codec == "vp9":
        # Some WebMs have non-displayed pictures in packets of their own. In an MP4 they are in the next, a superframe.
        unpack = av.BitStreamFilterContext("vp9_superframe", stream).filter
    started, is_empty, classify = False, True, _classifier(stream, codec)
    framed = codec == "h264" and (stream.codec_context.extradata or b"")[:1] == b"\1"  # its parameter sets are known
    held: deque[Packet[VideoStream]] = deque(maxlen=1000 if framed else 0)
    for packet in whole_packets(container, stream, cut_off=source.cut_off):
        if packet.has_sidedata("encryption_info"):
            raise ValueError(_ENCRYPTED)
        is_empty = is_empty and not packet.size
        for unpacked in [packet] if unpack is None else unpack(packet if packet.size else None):
            if not started or codec == "mpeg4":
                begins = classify(memoryview(bytes(unpacked))).random_access
                unpacked.is_keyframe = begins if codec == "mpeg4" else unpacked.is_keyframe
            if not started:
                started = unpacked.is_keyframe or begins
                yield from held if started and not begins else ()
                held.append(unpacked)
            if unpacked.size and started:
                yield unpacked
    if is_empty:
        segment = "; if it is an initialization segment, join its segments behind it"
        segment *= container.format.name.startswith("mov")
        raise _NoFrameError(f"its video track is empty: it holds no packet{segment}")
