"""Remuxing and transcoding of sources and clips.

Every video is remuxed first, because only the parsed bitstream shows which decoders are compatible with it. Clips that
are incompatible with the wanted decoders are then transcoded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av

from streamvid.errors import VideoError
from streamvid.packing.images import is_sequence, sequence_video
from streamvid.packing.options import PackOptions
from streamvid.storage.retry import Retry
from streamvid.video.cut_off import without_cut_off_packet
from streamvid.video.gpu_support import check
from streamvid.video.left_out import left_out
from streamvid.video.probe import CannotCopyError, VideoFile
from streamvid.video.remux import as_video_error, remux_with_ffmpeg, store_clip, try_ingest
from streamvid.video.stored_clip import StoredClip

if TYPE_CHECKING:
    from streamvid.video.transcode import TranscodeOptions

log = logging.getLogger(__name__)


def remux_or_build(
    path: str, video: Path, folder: Path, options: PackOptions, retry: Retry, *, cut_only: bool
) -> tuple[StoredClip, bool]:
    """Remux a source. Image sequences, and videos in codecs that shards do not store, are encoded first.

    Args:
        path: the source's path or URL, ending in '/' if it is a folder of images.
        video: the local file; unused for images.
        folder: for temporary files; created if needed.
        retry: for how long requests for images are repeated while their storage does not answer.
        cut_only: see `streamvid.video.remux.store_clip`.

    Returns:
        The clip, whose MP4 may not be written yet, and whether it was transcoded here.

    Raises:
        VideoError: the source cannot be read.
        InputError: images without timestamps, and no frame rate.
    """
    from streamvid.video.transcode import TranscodeOptions, transcode

    if not is_sequence(path) and not options.track:  # an ingested file has one video track
        clip = try_ingest(video, cut_only=cut_only)
        if clip is not None:
            return clip, False
    folder.mkdir(exist_ok=True)
    missing: tuple[str, ...] = ()
    if is_sequence(path):
        made, transcoded = sequence_video(
            path, folder, fps=options.fps, options=options.transcode or TranscodeOptions(), retry=retry
        )
    else:
        source = VideoFile(video, options.track, options.fps)
        try:
            return remux_with_ffmpeg(source, folder, cut_only=cut_only), False
        except CannotCopyError as reason:
            if options.transcode is None and options.compatible_with == "any":
                raise
            why = reason.args[0]
        with as_video_error():
            source = without_cut_off_packet(source)
            missing = left_out(source)
        made, transcoded = folder / "transcoded-source.mp4", True
        try:
            transcode(source, made, options.transcode or TranscodeOptions())
        except VideoError as error:
            if isinstance(error.__cause__, av.error.FFmpegError):  # it says little
                raise VideoError(f"{error}; {why}") from error.__cause__
            raise
    clip = store_clip(made, folder, cut_only=cut_only)
    if clip.mp4 != made:
        made.unlink()
    return replace(clip, source_remarks=missing), transcoded


def transcode_if_needed(
    clip: StoredClip, folder: Path, options: PackOptions, *, reencode: bool = False, keyframes: Sequence[Fraction] = ()
) -> StoredClip:
    """Transcode a clip if its options or its decoders require that; the given clip's MP4 is then removed.

    Args:
        clip: a remuxed clip, in a temporary file or not written yet.
        folder: for the encoded file; created if needed.
        options: the decoders with which the clip must be compatible, or how to transcode all clips.
        reencode: encode the clip in any case, by default in its own codec.
        keyframes: seconds at which the encoder must place key frames.

    Returns:
        The clip itself, or the transcoded one.

    Raises:
        VideoError: its frames cannot be decoded or encoded.
    """
    encoder = _transcode_options(clip, options, reencode=reencode)
    if encoder is None:
        return clip
    from streamvid.video.transcode import transcode

    folder.mkdir(parents=True, exist_ok=True)  # of an attempt at which the source's storage did not answer
    clip = clip.as_file(folder / "copied.mp4")
    encoded = folder / "encoded.mp4"
    transcode(clip, encoded, encoder, keyframes=keyframes)
    clip.mp4.unlink()
    stored = store_clip(encoded, folder)
    encoded.unlink()
    # An MP4 with reordered frames does not store the duration of the last frame.
    ticks = Fraction(*clip.time_base) * clip.duration / Fraction(*stored.time_base)
    return replace(stored, source_remarks=clip.remarks, duration=max(round(ticks), int(stored.index.frame_pts[-1]) + 1))


def _transcode_options(clip: StoredClip, options: PackOptions, *, reencode: bool) -> TranscodeOptions | None:
    from streamvid.video.encoders import TARGETS
    from streamvid.video.transcode import TranscodeOptions

    if options.transcode is not None:
        return options.transcode
    problem, target = check(clip, options.compatible_with)
    if target is not None:
        log.info("transcoding to %s: %s", target, problem)
    elif reencode:
        target = next((codec for codec in TARGETS if codec == clip.codec), "h264")
    return None if target is None else TranscodeOptions(codec=target)
