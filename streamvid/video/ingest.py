"""A plain MP4 or MOV file → a stored clip, without a demuxer: what `streamvid.video.remux` does through FFmpeg, faster.

The video track is gone through once, in large pieces; its packets are classified and summed up as they pass. Nothing
is written: what a clip consists of is known then, and whoever wants its bytes takes them from the source.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Final

import av
import numpy as np

from streamvid.bitstream import hevc, packet_info
from streamvid.bitstream.packet_kind import PacketKind
from streamvid.mp4.reader import NeedsDemuxerError, VideoTrack, read_track
from streamvid.mp4.sample_entry import with_coded_size
from streamvid.mp4.writer import clip_header
from streamvid.video.clip_index import Times, stored_clip
from streamvid.video.probe import FrameFormat, probe_packet
from streamvid.video.read_buffer import coalesce, read_pieces
from streamvid.video.stored_clip import UNORDERED, StoredClip, UnwrittenMp4, file_signature
from streamvid.video.timestamps import PacketTimes

_LEAST_TIMESCALE: Final = 10_000
"""FFmpeg's MP4 muxer doubles smaller ones until they are not. So do we: both ways give the same index."""


def ingest_by_tables(source: Path, *, cut_only: bool = False) -> StoredClip:
    """The video track of a plain file as a clip, indexed and summed up; its MP4 is not written (`StoredClip.as_file`).

    Args:
        source: a local video file.
        cut_only: for `streamvid.video.trim.trim_clip` alone: then the index holds places in the source.

    Raises:
        NeedsDemuxerError: the file is not plain, or damaged.
    """
    try:
        with source.open("rb", buffering=0) as file:
            return _store(source, file, cut_only=cut_only)
    except (OSError, EOFError) as error:
        raise NeedsDemuxerError(str(error)) from error


def _store(source: Path, file: io.FileIO, *, cut_only: bool) -> StoredClip:
    mark = file_signature(file.fileno())
    track = read_track(file)
    look, profile = _first_picture(track, next(read_pieces(file, track.offset[:1], track.size[:1])).stretches[0])
    stsd = _sample_description(track, look)
    times = _times(track)
    of = packet_info.classifier(track.codec, stsd)
    kinds: list[PacketKind] = []
    offset, sha256, parts = track.offset, "", None
    if cut_only:
        for piece in read_pieces(file, track.offset, track.size):
            kinds.extend(map(of, piece.stretches))
    else:
        head = _header(track, stsd, times, look)
        checksum = hashlib.sha256(head)
        for piece in read_pieces(file, track.offset, track.size):
            kinds.extend(map(of, piece.stretches))
            for run in piece.runs:
                checksum.update(run)
        offset, sha256 = len(head) + np.cumsum(track.size) - track.size, checksum.hexdigest()
        parts = UnwrittenMp4(head, *coalesce(track.offset, track.size), mark)
    clip = stored_clip(
        source,
        track.codec,
        profile,
        look,
        stsd=stsd,
        kinds=packet_info.finalize_disposable(track.codec, kinds),
        times=times,
        offset=offset,
        size=track.size,
    )
    if UNORDERED in clip.traits.split(","):
        raise NeedsDemuxerError("times in another order than that of its pictures")
    return replace(clip, sha256=sha256, parts=parts)


def _first_picture(track: VideoTrack, packet: memoryview) -> tuple[FrameFormat, str]:
    if not packet_info.classifier(track.codec, track.stsd)(packet).random_access:
        raise NeedsDemuxerError("a first packet that decoding cannot start from")
    try:
        return probe_packet(track, bytes(packet))
    except (av.error.FFmpegError, ValueError) as error:
        raise NeedsDemuxerError(f"a first packet that does not decode: {error}") from error


def _sample_description(track: VideoTrack, look: FrameFormat) -> bytes:
    """The sample description as FFmpeg's muxer writes it: with the size of decoded frames, and with `hvc1` in place of
    `hev1`, as more players take it."""
    stsd = track.stsd
    if track.codec == "hevc" and stsd[20:24] != b"hvc1":
        try:
            configuration = hevc.with_complete_arrays(track.configuration)
        except ValueError as error:
            raise NeedsDemuxerError(str(error)) from error
        at = stsd.index(track.configuration)
        stsd = stsd[:20] + b"hvc1" + stsd[24:at] + configuration + stsd[at + len(configuration) :]
    return with_coded_size(stsd, look.width, look.height)


def _times(track: VideoTrack) -> Times:
    """When packets are shown, in ticks of the clip."""
    scan = PacketTimes(
        pts=track.pts,
        size=track.size,
        keyframe=track.sync,
        hidden=np.zeros(len(track.pts), dtype=bool),
        last_duration=track.last_duration,
        time_base=(1, track.timescale),
    )
    times = 1
    while times * track.timescale < _LEAST_TIMESCALE:
        times *= 2
    return Times(
        pts=(scan.pts - scan.origin) * times,
        hidden=scan.hidden,
        last_frame=scan.last_frame_ticks() * times,
        time_base=(1, times * track.timescale),
    )


def _header(track: VideoTrack, stsd: bytes, times: Times, look: FrameFormat) -> bytes:
    try:
        return clip_header(
            stsd,
            pts=times.pts,
            sizes=track.size,
            sync=track.sync,
            shown=(0, int(times.pts.max()) + times.last_frame),
            width=look.width,
            height=look.height,
            rotation=look.rotation,
            timescale=times.time_base[1],
        )
    except ValueError as error:
        raise NeedsDemuxerError(str(error)) from error
