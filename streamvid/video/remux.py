"""Remuxing: the video track of a file, copied packet by packet into an MP4 of its own, and indexed.

Nothing is re-encoded. MP4 and MOV files are read by their own tables where that is possible
(`streamvid.video.ingest`); all other files are demuxed by FFmpeg.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import compress, islice
from pathlib import Path
from typing import Final

import av
import numpy as np

from streamvid.arrays import Bool
from streamvid.bitstream import hevc, jpeg, mpeg4
from streamvid.bitstream.h264_gaps import FrameNumbers
from streamvid.bitstream.packets import nal_units
from streamvid.bitstream.vpx import vp8_sample_description
from streamvid.errors import VideoError
from streamvid.mp4.boxes import box
from streamvid.mp4.edit_list import limit_edit
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.mp4.writer import clip_header, decode_times
from streamvid.text import format_count
from streamvid.video.clip_index import index_clip
from streamvid.video.cut_off import without_cut_off_packet
from streamvid.video.ingest import ingest_by_tables
from streamvid.video.left_out import left_out
from streamvid.video.output_order import OutputOrder, output_order
from streamvid.video.packet_times import PacketTimes
from streamvid.video.probe import (
    CannotCopyError,
    FrameFormat,
    StreamInfo,
    VideoFile,
    demux,
    probe_first_frame,
    read_stream_info,
)
from streamvid.video.recordings import DAMAGED
from streamvid.video.stored_clip import OVERLAPS, TIMES_SORTED, UNORDERED, StoredClip
from streamvid.video.timestamps import in_output_order, scan_packet_times

log = logging.getLogger(__name__)

_TELLING_TAGS: Final = {"mpeg4": ("XVIX", "UMP4"), "mjpeg": ("MTSJ",)}
"""Codec tags of AVI and Matroska by which FFmpeg decodes in another way, and which nothing in an MP4 can replace."""


def store_clip(source: Path, folder: Path, *, cut_only: bool = False) -> StoredClip:
    """Copy the video track of a file into an MP4 in `folder` and index it.

    Args:
        source: a local video file in any container that FFmpeg knows.
        folder: where the MP4 is written; the caller owns and removes it.
        cut_only: the clip is for `streamvid.video.trim.trim_clip` alone. Then there may be no MP4: the clip's `mp4` is
            the source, and its index has positions in that.

    Raises:
        VideoError: the file holds no video, is damaged, or holds a video that cannot be stored frame by frame.
    """
    clip = try_ingest(source, cut_only=cut_only)
    if clip is not None:
        return clip.as_file(folder / "clip.mp4")
    return remux_with_ffmpeg(source, folder, cut_only=cut_only)


def try_ingest(source: Path, *, cut_only: bool = False) -> StoredClip | None:
    """`ingest_by_tables`, or None if the file must be demuxed: then it is for `remux_with_ffmpeg`.

    Args:
        source: a local video file.
        cut_only: as for `store_clip`.
    """
    try:
        return ingest_by_tables(source, cut_only=cut_only)
    except (ValueError, ArithmeticError) as reason:
        log.debug("%s is demuxed by FFmpeg: %s", source, reason)
        return None


def remux_with_ffmpeg(source: Path | VideoFile, folder: Path, *, cut_only: bool = False) -> StoredClip:
    """The same as `store_clip`, always through FFmpeg's demuxer and muxer.

    Args:
        source, folder: as for `store_clip`.
        cut_only: as for `store_clip`. Otherwise the header comes before the packets, as docs/format.md demands of
            stored clips; FFmpeg writes the file twice for that.

    Raises:
        VideoError: as for `store_clip`.
    """
    with as_video_error():
        source = without_cut_off_packet(VideoFile(source) if isinstance(source, Path) else source)
        about = read_stream_info(source)
        missing = left_out(source)
        first = probe_first_frame(source)
        times = scan_packet_times(source, about, cut_only=cut_only)
        missing += (OVERLAPS,) * times.overlaps

        if about.codec == "vp9" and "440" in first.pix_fmt:
            raise CannotCopyError("an MP4 cannot say of VP9 that it is 4:4:0")

        def store(times: PacketTimes) -> StoredClip:
            times = times.up_to_last_visible().in_coarsest_ticks()
            target = folder / "clip.mp4"
            if about.codec == "vp8":
                _write_vp8(source, target, times, first)
            else:
                _mux(source, target, about, times, first, moov_first=not cut_only)
            if times.incomplete is not None:
                _break_packets(target, times.incomplete)
            clip = index_clip(target, about.codec, about.profile, first, times, cut_only=cut_only)
            return replace(clip, source_remarks=missing)

        clip = store(times)
        if not clip.has_trait(UNORDERED) or times.incomplete is not None:  # then each cut is looked at
            return clip
        output = None
        try:
            output = output_order(
                source,
                about.codec,
                apply_edits=times.edits_applied,
                num_skipped=times.num_skipped,
                count=len(times.pts),
            )
            ordered = in_output_order(times, output)
        except (ValueError, av.error.FFmpegError):
            if len(np.unique(times.pts)) < len(times.pts):
                raise CannotCopyError("frames of it that a decoder reorders are shown at the same time") from None
            if times.hidden.any():
                raise CannotCopyError("a decoder does not give all frames that its edit list shows") from None
            if output is not None:  # what is damaged is looked for later
                _check_all_output(output, clip)
            return clip
        if np.array_equal(ordered.pts, times.pts):
            return clip
        # Players show pictures in the decoder's output order, whatever the container's times are.
        shown = ~times.hidden
        falls = bool((np.diff(times.pts[shown][np.argsort(ordered.pts[shown])]) < 0).any())
        return replace(store(ordered), source_remarks=(*missing, *(TIMES_SORTED,) * falls))


def _check_all_output(output: OutputOrder, clip: StoredClip) -> None:
    """Raise CannotCopyError for a clip of which a decoder does not output some frames, as other frames would come under
    their numbers: the order of pictures goes back without an IDR picture, as where recordings were joined. If H.264 has
    lost reference pictures, the clip is kept as damaged, because transcoding would hide the damage."""
    several = len(np.unique(output.packets)) < len(output.packets)  # pictures of one packet: damage, too
    lost = len(np.setdiff1d(clip.index.visible, output.packets))
    if lost and not several and not (clip.codec == "h264" and _lacks_references(clip)):
        frames = format_count(len(clip.index.visible), "frame")
        raise CannotCopyError(f"decoders do not output {lost} of its {frames}, as where recordings were joined")


def _lacks_references(clip: StoredClip) -> bool:
    """Whether frame_num shows that reference pictures of H.264 are missing, other than before a recovery point."""
    numbers = FrameNumbers(clip.stsd)
    with clip.mp4.open("rb") as file:
        for number, (start, size) in enumerate(zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)):
            file.seek(start)
            gap = numbers.gap_before(memoryview(file.read(size)), starts=not number)
            if gap is not None and gap.spreads:
                return True
    return False


@contextmanager
def as_video_error() -> Iterator[None]:
    """Turn FFmpeg's errors, and the ValueError of the parsers here, into errors of the video.

    Raises:
        VideoError: with a message of one line.
    """
    try:
        yield
    # Of a transport stream with many zeros, where it would mean the storage as a cause; of a size of nonsense (IVF).
    except (av.error.BlockingIOError, av.error.MemoryError):
        raise VideoError(DAMAGED) from None
    except av.error.FFmpegError as error:
        why = error.strerror or type(error).__name__
        raise VideoError(f"FFmpeg cannot read it: {why}; if no player can, copy or download it again") from error
    except VideoError:
        raise
    except ValueError as error:
        raise VideoError(str(error)) from error


def _mux(
    source: VideoFile, target: Path, about: StreamInfo, times: PacketTimes, first: FrameFormat, *, moov_first: bool
) -> None:
    """Copy the scanned packets into an MP4 by FFmpeg's muxer, byte by byte the same in every run."""
    pts, dts = times.pts, decode_times(times.pts)
    last = int(np.argmax(np.where(times.hidden, np.iinfo(np.int64).min, pts)))
    # What FFmpeg calls unofficial is Dolby Vision's box, by which `streamvid.color.tags` knows its colours.
    options = {"fflags": "+bitexact", "strict": "unofficial", "video_track_timescale": str(times.time_base[1])}
    options |= {"movflags": "+faststart"} if moov_first else {}
    with (
        source.open(apply_edits=times.edits_applied) as (container, stream),
        closing(av.open(os.fspath(target), "w", format="mp4", options=options)) as output,
    ):
        tag, headers = stream.codec_context.codec_tag, stream.codec_context.extradata or b""
        if tag in _TELLING_TAGS.get(about.codec, ()):
            raise CannotCopyError(f"its codec tag {tag} tells decoders how to decode it, and an MP4 has no such tag")
        track = output.add_stream_from_template(stream, opaque=True)
        track.time_base = Fraction(*times.time_base)
        track.codec_context.width, track.codec_context.height = first.width, first.height
        if about.codec == "hevc" and not about.annex_b and _states_sets(headers):
            track.codec_context.codec_tag = "hvc1"
        for number, packet in enumerate(islice(demux(source, container, stream, about.codec), times.num_skipped, None)):
            if number == len(pts):
                break
            if tag == "MJPG" and not number and 0 < jpeg.picture_height(bytes(packet)) < first.height * 3 // 4:
                raise CannotCopyError("its codec tag alone says which field of a picture is the upper one")
            if about.codec == "mpeg4" and not number:
                track.codec_context.extradata = headers + mpeg4.user_data_of_tag(tag, headers + bytes(packet))
            packet.stream, packet.time_base = track, Fraction(*times.time_base)
            packet.pts, packet.dts = int(pts[number]), int(dts[number])
            packet.duration = times.last_frame_ticks() if number == last else 0
            output.mux(packet)
    if times.hidden.any() and moov_first:
        # Packets with later times than the last visible frame are there only because others refer to them.
        end = int(pts[last]) + times.last_frame_ticks()
        with target.open("r+b") as file:
            limit_edit(file, end * times.time_base[0] / times.time_base[1])


def _break_packets(target: Path, incomplete: Bool) -> None:
    """Give the first NAL unit of packets a length that does not fit: `PacketKind.broken` says so, whereas a decoder may
    conceal what is missing."""
    with VideoFile(target).open(apply_edits=False) as (container, stream), target.open("r+b") as file:
        places = [packet.pos for packet in container.demux(stream) if packet.size]
        for place in compress(places, incomplete):
            assert place is not None
            file.seek(place)
            file.write(b"\xff" * 4)


def _states_sets(hvcc: bytes) -> bool:
    """Whether an `hvcC` payload has parameter sets of all types. If they are in band alone, as fragments of `hev1` have
    them, FFmpeg's muxer writes `hvc1` without any payload, which no player opens."""
    stsd = visual_sample_description(b"hvc1", box(b"hvcC", hvcc), width=0, height=0)
    sets = hevc.parameter_sets(stsd).annex_b
    return {hevc.SYNTAX.unit_type(unit[0]) for unit in nal_units(sets)} >= set(hevc.SYNTAX.parameter_sets)


def _write_vp8(source: VideoFile, target: Path, times: PacketTimes, first: FrameFormat) -> None:
    """Write a VP8 track at the source's times: FFmpeg reads VP8 from MP4 but does not write it."""
    pts = times.pts
    end = int(pts[~times.hidden].max()) + times.last_frame_ticks()
    head = clip_header(
        vp8_sample_description(width=first.width, height=first.height, full_range=first.color_range == "pc"),
        pts=pts,
        sizes=times.size,
        sync=times.keyframe,
        shown=(0, end),
        width=first.width,
        height=first.height,
        rotation=first.rotation,
        timescale=times.time_base[1],
    )
    with source.open(apply_edits=times.edits_applied) as (container, stream), target.open("wb") as file:
        file.write(head)
        found = demux(source, container, stream, "vp8")
        for packet in islice(found, times.num_skipped, times.num_skipped + len(pts)):
            file.write(packet)
