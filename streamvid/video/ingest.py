"""An MP4 or MOV file → a stored clip by the file's own tables, without a demuxer: twice as fast as
`streamvid.video.remux`, which takes all other files.

The video track is read once, in large blocks; its packets are classified and hashed as they pass. Nothing is written:
the header of the clip's MP4 is known then, and whoever writes the clip copies the packets from the source.
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
from streamvid.checksum import crc32c
from streamvid.mp4.reader import NeedsDemuxerError, VideoTrack, read_track
from streamvid.mp4.sample_entry import with_coded_size
from streamvid.mp4.writer import clip_header
from streamvid.video.clip_index import ClipTimes, build_clip
from streamvid.video.probe import FrameFormat, probe_packet
from streamvid.video.read_buffer import coalesce, read_blocks
from streamvid.video.stored_clip import AUDIO, UNORDERED, StoredClip, UnwrittenMp4, file_signature
from streamvid.video.timestamps import PacketTimes

_MIN_TIMESCALE: Final = 10_000
"""FFmpeg's MP4 muxer doubles smaller timescales until they reach this (movenc.c). The same is done here, so that both
ways of storing a file give the same index."""


def ingest_by_tables(source: Path, *, cut_only: bool = False) -> StoredClip:
    """Index and hash the video track of an MP4 or MOV file; the clip's MP4 is not written (`StoredClip.as_file`).

    Args:
        source: a local video file.
        cut_only: for `streamvid.video.trim.trim_clip` alone: then the index holds positions in the source.

    Raises:
        NeedsDemuxerError: the file cannot be read by its tables.
    """
    try:
        with source.open("rb", buffering=0) as file:
            return _ingest(source, file, cut_only=cut_only)
    except NeedsDemuxerError:
        raise
    except (OSError, EOFError, ValueError, av.error.FFmpegError) as error:
        raise NeedsDemuxerError(str(error)) from error


def _ingest(source: Path, file: io.FileIO, *, cut_only: bool) -> StoredClip:
    signature = file_signature(file.fileno())
    track = read_track(file)
    first = next(read_blocks(file, track.offset[:1], track.size[:1])).ranges[0]
    if not packet_info.classifier(track.codec, track.stsd)(first).random_access:
        raise NeedsDemuxerError("a first packet that decoding cannot start from")
    frame_format, profile = probe_packet(track, bytes(first))
    stsd = _sample_description(track, frame_format)
    times = _clip_times(track)
    of = packet_info.classifier(track.codec, stsd)
    kinds: list[PacketKind] = []
    crcs: list[int] = []
    offset, sha256, unwritten = track.offset, "", None
    if cut_only:
        for block in read_blocks(file, track.offset, track.size):
            kinds.extend(map(of, block.ranges))
            crcs.extend(map(crc32c, block.ranges))
    else:
        head = clip_header(
            stsd,
            pts=times.pts,
            sizes=track.size,
            sync=track.sync,
            shown=(0, int(times.pts.max()) + times.last_frame),
            width=frame_format.width,
            height=frame_format.height,
            rotation=frame_format.rotation,
            timescale=times.time_base[1],
        )
        checksum = hashlib.sha256(head)
        for block in read_blocks(file, track.offset, track.size):
            kinds.extend(map(of, block.ranges))
            crcs.extend(map(crc32c, block.ranges))
            for run in block.runs:
                checksum.update(run)
        offset, sha256 = len(head) + np.cumsum(track.size) - track.size, checksum.hexdigest()
        unwritten = UnwrittenMp4(head, *coalesce(track.offset, track.size), signature)
    clip = build_clip(
        source,
        track.codec,
        profile,
        frame_format,
        stsd=stsd,
        kinds=packet_info.finalize_disposable(track.codec, kinds),
        times=times,
        offset=offset,
        size=track.size,
        crcs=crcs,
    )
    if clip.has_trait(UNORDERED):
        raise NeedsDemuxerError("times in another order than that of its pictures")
    return replace(clip, sha256=sha256, unwritten=unwritten, left_out=(AUDIO,) if track.has_audio else ())


def _sample_description(track: VideoTrack, frame_format: FrameFormat) -> bytes:
    """The sample description as FFmpeg's muxer writes it: with the size of decoded frames, and with `hvc1` in place of
    `hev1`, as more players take it."""
    stsd = track.stsd
    if track.codec == "hevc" and stsd[20:24] != b"hvc1":
        configuration = hevc.with_complete_arrays(track.configuration)
        at = stsd.index(track.configuration)
        stsd = stsd[:20] + b"hvc1" + stsd[24:at] + configuration + stsd[at + len(configuration) :]
    return with_coded_size(stsd, frame_format.width, frame_format.height)


def _clip_times(track: VideoTrack) -> ClipTimes:
    """Presentation times in ticks of the clip, from the first."""
    scan = PacketTimes(
        pts=track.pts,
        size=track.size,
        keyframe=track.sync,
        hidden=np.zeros(len(track.pts), dtype=bool),
        last_duration=track.last_duration,
        time_base=(1, track.timescale),
    )
    factor = 1
    while factor * track.timescale < _MIN_TIMESCALE:
        factor *= 2
    return ClipTimes(
        pts=(scan.pts - scan.origin) * factor,
        hidden=scan.hidden,
        last_frame=scan.last_frame_ticks() * factor,
        time_base=(1, factor * track.timescale),
    )
