"""Which of the video tracks of a file is packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import av

from streamvid.text import format_count

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream


def video_streams(container: InputContainer) -> list[VideoStream]:
    """The video tracks without cover pictures and thumbnails, FFmpeg's `V`, and without the pictures of HEIF and AVIF,
    each of which may be a tile of one."""
    pictures = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    return [stream for stream in container.streams.video if not (stream.disposition & pictures or _is_item(stream))]


def _is_item(stream: VideoStream) -> bool:
    """Whether it is a picture of HEIF (ISO/IEC 23008-12): to FFmpeg a stream of one frame without a duration."""
    return stream.frames == 1 and stream.duration is None and stream.time_base == 1 == stream.average_rate


def video_stream(container: InputContainer, track: int | None = None) -> VideoStream:
    """A video track, by default the one that FFmpeg would take.

    Of the tracks with a decoder, it prefers those marked as default, then those with the largest pictures, then the
    first by `av_find_best_stream`, which counts bits.

    Args:
        container: as `open_video` gives it.
        track: the track's number in `video_streams`; None: FFmpeg's choice.

    Raises:
        ValueError: there is no video track, or none of that number.
    """
    streams = video_streams(container)
    if not streams:
        if any(map(_is_item, container.streams.video)):
            raise ValueError("it is a picture, HEIF or AVIF, which is not read: convert it to JPEG or PNG first")
        raise ValueError("it holds no video track")
    if track is not None:
        if track >= len(streams):
            count = format_count(len(streams), "video track")
            raise ValueError(f"it has {count}, counted from 0; there is no track {track}")
        return streams[track]
    best = container.streams.best("video")

    def rank(stream: VideoStream) -> tuple[bool, bool, int, bool]:
        context = stream.codec_context
        area = context.width * context.height if context else 0
        return bool(context), bool(stream.disposition & av.stream.Disposition.default), area, stream == best

    return max(streams, key=rank)
