"""Makes a stored clip of an MP4 or MOV file from the file's own tables, without a demuxer: twice as fast as
`streamvid.video.remux`, which is for all other files.

The video track is read once, in large blocks; its packets are classified and hashed meanwhile. Nothing is written: the
result has the header of the clip's MP4, and writing the clip copies the packets from the source.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Final

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream import hevc, packet_info
from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.bitstream.packets import head_of_packet
from streamvid.checksum import crc32c
from streamvid.host import BROKEN_ERRNOS
from streamvid.mp4.reader import VideoTrack, read_track
from streamvid.mp4.sample_entry import with_coded_size
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.mp4.writer import clip_header
from streamvid.video.clip_index import build_clip
from streamvid.video.frame_index import HIDDEN
from streamvid.video.packet_times import PacketTimes
from streamvid.video.picture_damage import checking_classifier
from streamvid.video.probe import FrameFormat, probe_packet
from streamvid.video.read_buffer import coalesce, read_blocks, read_range
from streamvid.video.stored_clip import AUDIO, UNORDERED, StoredClip, UnwrittenMp4, file_signature

_LOOKED_AT: Final = 3
"""Number of sync samples of a track that are checked, including the first and the last."""
_FIRST_PACKETS: Final = 8
"""Packets at the start of a track in which B-frames are looked for: of most encoders one in four is one, or none is."""
_HEAD_BYTES: Final = 512
"""Bytes of a packet in which its first slice begins, behind parameter sets and messages."""
_PROBED_BYTES: Final = {"h264": 2048, "hevc": 4096}
"""Bytes of the first packet: x264 and x265 describe themselves in it."""


def ingest_by_tables(source: Path, *, cut_only: bool = False) -> StoredClip:
    """Index and hash the video track of an MP4 or MOV file; the clip's MP4 is not written (`StoredClip.as_file`).

    Args:
        source: a local video file.
        cut_only: whether the clip is only for `streamvid.video.trim.trim_clip`: then its index has positions in the
            source.

    Raises:
        NeedsDemuxerError: the file cannot be read by its tables.
        OSError: its disk, or the storage that is mounted there, fails; FFmpeg would call a packet damaged.
    """
    try:
        with source.open("rb") as file:  # buffered, as a storage may give less than is asked for
            return _ingest(source, file, cut_only=cut_only)
    except NeedsDemuxerError:
        raise
    except (OSError, EOFError, ValueError, av.error.FFmpegError) as error:
        if getattr(error, "errno", 0) in BROKEN_ERRNOS and not isinstance(error, av.error.FFmpegError):
            raise
        raise NeedsDemuxerError(str(error)) from error


def _ingest(source: Path, file: io.BufferedReader, *, cut_only: bool) -> StoredClip:
    signature = file_signature(file.fileno())
    track = read_track(file)
    start = int(track.offset[0])
    found = _probe(track, bytes(read_range(file, start, start + int(track.size[0]))))
    times = found.times
    of = checking_classifier(track.codec, found.stsd)
    kinds: list[PacketKind] = []
    crcs: list[int] = []
    head = b""
    if not cut_only:
        head = clip_header(
            found.stsd,
            pts=times.pts,
            sizes=track.size,
            sync=track.sync,
            shown=(0, int(times.pts.max()) + found.last_frame),
            width=found.frame_format.width,
            height=found.frame_format.height,
            rotation=found.frame_format.rotation,
            timescale=times.time_base[1],
        )
    checksum = hashlib.sha256(head)
    for block in read_blocks(file, track.offset, track.size):
        kinds.extend(map(of, block.ranges))
        crcs.extend(map(crc32c, block.ranges))
        for run in () if cut_only else block.runs:
            checksum.update(run)
    offset, sha256, unwritten = track.offset, "", None
    if not cut_only:
        offset, sha256 = len(head) + np.cumsum(track.size) - track.size, checksum.hexdigest()
        unwritten = UnwrittenMp4(head, *coalesce(track.offset, track.size), signature)
    clip = found.clip(source, packet_info.finalize_disposable(track.codec, kinds), offset, crcs, cut_only=cut_only)
    _check_order(clip)
    return replace(clip, sha256=sha256, unwritten=unwritten)


def _check_order(clip: StoredClip) -> None:
    shown = clip.index.pts[(clip.index.flags & HIDDEN) == 0]
    # VP9 and AV1 are output in decode order, regardless of their times.
    if clip.has_trait(UNORDERED) or (clip.codec in ("vp9", "av1") and (np.diff(shown) < 0).any()):
        raise NeedsDemuxerError("times in another order than that of its pictures")


ReadSpans = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]
"""Reads parts of a file, each from a start to an end, at once."""


def index_by_tables(name: Path, file: io.RawIOBase, read: ReadSpans, *, every_key: bool = False) -> StoredClip:
    """The clip of an MP4 or MOV file by its tables and very few of its packets, with positions in the file.

    Properties that tables do not have are assumed to be as in sound files: sync samples are random access packets, and
    the size, format and colours of pictures stay, which is checked for some of them; and pictures are output in the
    order of their times. No packet counts as disposable. Loaders check the assumptions when they read packets:
    `streamvid.video.packet_selection`.

    Args:
        file: the file, open for reading.
        every_key: look at every key frame where parameter sets may change, and not only if some are in band.

    Raises:
        NeedsDemuxerError: the file cannot be read by its tables, or they contradict the packets.
        CannotCopyError: its pictures change.
        OSError, DatasetError: the file cannot be read.
    """
    try:
        found, looked = _look_at_packets(read_track(file, more=True), read, every_key=every_key)
        track, pts = found.track, found.times.pts
        order = np.empty(len(pts), dtype=np.int64)
        order[np.argsort(pts, kind="stable")] = np.arange(len(pts))
        anchor = np.maximum.accumulate(np.where(track.sync, np.arange(len(pts)), 0))
        leading = pts < pts[anchor]
        hides = track.codec == "vp9"  # any of its packets may have non-displayed pictures
        kinds = [
            PacketKind(random_access=access, skipped_leading=behind, order=rank, show_existing=hides, superframe=hides)
            for access, behind, rank in zip(track.sync.tolist(), leading.tolist(), order.tolist(), strict=True)
        ]
        for number, kind in looked.items():
            kinds[number] = replace(
                kinds[number], size=kind.size, samples=kind.samples, colors=kind.colors, adds_grain=kind.adds_grain
            )
        clip = found.clip(name, kinds, track.offset, [-1] * len(pts))
        _check_order(clip)
        return clip
    except (EOFError, av.error.FFmpegError) as error:
        raise NeedsDemuxerError(str(error)) from error


@dataclass(frozen=True)
class _Header:
    """The contents of a file's tables and of its first packet.

    Attributes:
        track: the tables.
        frame_format, profile: format of the first packet's picture, and the stream's profile.
        stsd: the sample description for the clip.
        times: times of its packets, in ticks of the clip, from the first.
        last_frame: duration of the last frame in ticks.
        of: classifies its packets; has been called with the first.
    """

    track: VideoTrack
    of: Classifier
    frame_format: FrameFormat
    profile: str
    stsd: bytes
    times: PacketTimes
    last_frame: int

    def clip(
        self, file: Path, kinds: list[PacketKind], offset: Int64, crcs: list[int], *, cut_only: bool = False
    ) -> StoredClip:
        """The clip, made of packets with these kinds, offsets in a file, and checksums; `cut_only` as in
        `build_clip`."""
        made = build_clip(
            file,
            self.track.codec,
            self.profile,
            self.frame_format,
            stsd=self.stsd,
            kinds=kinds,
            times=self.times,
            last_frame=self.last_frame,
            offset=offset,
            crcs=crcs,
            cut_only=cut_only,
        )
        return replace(made, source_remarks=(AUDIO,) if self.track.has_audio else ())


def _look_at_packets(track: VideoTrack, read: ReadSpans, *, every_key: bool) -> tuple[_Header, dict[int, PacketKind]]:
    """Read enough of the first packet to decode its picture, and enough of some others to classify them. Returns the
    kinds of these by their numbers."""
    first = track.size[:1].tolist()[0]
    if track.codec == "mjpeg":
        return _probe(track, *read(_spans(track, [0], first))), {}
    most = _PROBED_BYTES.get(track.codec, first)
    sync = np.flatnonzero(track.sync)
    every_key = every_key and track.codec in packet_info.WITH_SETS
    looked = sync if every_key else sync[np.linspace(0, len(sync) - 1, _LOOKED_AT).astype(np.int64)]
    # Where tables reorder nothing, they may have decode times alone: the first packets tell.
    rising = bool((np.diff(track.pts) > 0).all())
    if rising and len(track.pts) > _FIRST_PACKETS and _may_reorder(track):
        raise NeedsDemuxerError("times that may be in another order than that of its pictures")
    # B-frames behind the first key frame that refer to frames before it are dropped, whatever their times: the second
    # packet tells. Behind an IDR picture of H.264 there are none. VP9 and AV1 have no B-frames that come out later.
    few = 0 if track.codec == "h264" else 2
    count = 0 if track.codec in ("vp9", "av1") else _FIRST_PACKETS if rising else few
    first_packets = np.arange(min(count, len(track.pts)))
    looked = np.union1d(looked, first_packets)
    heads = read([*_spans(track, [0], most), *_spans(track, looked[1:].tolist(), _HEAD_BYTES)])
    packets = [_head_as_packet(track, head) for head in heads]
    if any(packet_info.has_sets(track.codec, track.stsd, packet) for packet in packets):  # others may come anywhere
        more = np.setdiff1d(sync, looked)
        packets += [_head_as_packet(track, head) for head in read(_spans(track, more.tolist(), _HEAD_BYTES))]
        looked = np.append(looked, more)
        packets, looked = [packets[n] for n in np.argsort(looked)], np.sort(looked)
    found = None
    if first > most:
        with suppress(ValueError, av.error.FFmpegError):
            found = _probe(track, packets[0])
    found = found or _probe(track, heads[0] if first <= most else read(_spans(track, [0], first))[0])
    kinds = [found.of(memoryview(packet)) for packet in packets]
    if any(kind.in_fields for kind in kinds):
        raise NeedsDemuxerError("interlaced MPEG-4, in which decoding may not start at every key frame")
    if not all(kind.random_access for kind in compress(kinds, track.sync[looked])):
        raise NeedsDemuxerError("a key frame by the container that is none by the bitstream")
    if kinds[0].delay_unstated and not rising:
        raise NeedsDemuxerError("MPEG-4 with B-VOPs where decoders expect none")
    if any(kind.several for kind in kinds):
        raise NeedsDemuxerError("a packet of several pictures, which is no frame")
    if any(kind.drops_prior for kind in kinds[1:]):
        raise NeedsDemuxerError("frames that a decoder drops at a key frame")
    if not packet_info.in_output_order(track.codec, kinds[: len(first_packets)], track.pts[: len(first_packets)]):
        raise NeedsDemuxerError("times in another order than that of its pictures")
    return found, dict(zip(looked.tolist(), kinds, strict=True))


def _may_reorder(track: VideoTrack) -> bool:
    """Whether its parameter sets say that pictures may be reordered (max_num_reorder_frames, sps_max_num_reorder_pics):
    there may be B-frames anywhere. Where they do not say, no."""
    if track.codec not in ("h264", "hevc"):
        return False
    need = dpb_requirement(track.codec, parameter_sets(track.codec, track.stsd).annex_b)
    return need.reorder > 0 and (track.codec == "hevc" or not need.group)


def _head_as_packet(track: VideoTrack, head: bytes) -> bytes:
    """The first bytes of a packet as a packet of its own."""
    syntax = NAL_SYNTAX.get(track.codec)
    return head if syntax is None else head_of_packet(head, syntax.length_size(track.configuration))


def _spans(track: VideoTrack, numbers: list[int], most: int) -> list[tuple[int, int]]:
    """The byte ranges in the file of the first bytes of packets."""
    starts, sizes = track.offset[numbers].tolist(), track.size[numbers].tolist()
    return [(start, start + min(size, most)) for start, size in zip(starts, sizes, strict=True)]


def _probe(track: VideoTrack, first: bytes) -> _Header:
    of = packet_info.classifier(track.codec, track.stsd)
    if not of(memoryview(first)).random_access:
        raise NeedsDemuxerError("a first packet that decoding cannot start from")
    frame_format, profile = probe_packet(track, first)
    times = PacketTimes(track.pts, track.size, track.sync, track.hidden, track.last_duration, (1, track.timescale))
    times, stsd = times.in_coarsest_ticks(), _sample_description(track, frame_format)
    return _Header(track, of, frame_format, profile, stsd, times, times.last_frame_ticks())


def _sample_description(track: VideoTrack, frame_format: FrameFormat) -> bytes:
    """The sample description as FFmpeg's muxer writes it: with the size of decoded frames, and with `hvc1` instead of
    `hev1`, which fewer players support."""
    stsd = track.stsd
    if track.codec == "hevc" and stsd[20:24] != b"hvc1":
        configuration = hevc.with_complete_arrays(track.configuration)
        at = stsd.index(track.configuration)
        stsd = stsd[:20] + b"hvc1" + stsd[24:at] + configuration + stsd[at + len(configuration) :]
    return with_coded_size(stsd, frame_format.width, frame_format.height)
