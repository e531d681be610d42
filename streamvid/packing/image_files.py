"""Files of single images as sources: each is a clip of one frame, its bytes as they are."""

from __future__ import annotations

from pathlib import Path

from streamvid.bitstream.image import AnimationError, is_image, read_header
from streamvid.errors import VideoError
from streamvid.packing.accept import find_clip_damage
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.options import PackOptions, PreparedClip, RejectedCut
from streamvid.video.containers import IMAGE_EXTENSIONS
from streamvid.video.image import image_clip
from streamvid.video.stored_clip import file_signature

_MAX_BYTES = 1 << 30
"""The largest file of an image."""


def read_image(source: SourceVideo, file: Path) -> tuple[bytes, tuple[int, int]] | None:
    """The bytes of an image and the signature of its file; None if the source is a video.

    What has the extension of an image and holds another thing, or an animation that FFmpeg decodes, is a video.

    Args:
        file: a local one with its bytes.

    Raises:
        VideoError: it is too large.
    """
    if not source.name.lower().endswith(IMAGE_EXTENSIONS) or not file.is_file():
        return None
    with file.open("rb") as opened:
        head = opened.read(16)
        if not is_image(head):
            return None
        signature = file_signature(opened.fileno())
        if signature[0] > _MAX_BYTES:
            raise VideoError(f"it is {signature[0] / 2**20:.0f} MiB large; the limit for an image is 1024")
        data = head + opened.read()
    try:
        read_header(data)
    except AnimationError:
        return None
    except ValueError:
        pass  # told where the clip is made
    return data, signature


def image_source(
    source: SourceVideo, options: PackOptions, file: Path, data: bytes, signature: tuple[int, int]
) -> list[PreparedClip | RejectedCut]:
    """The clip of an image, which is neither cut nor transcoded.

    Args:
        source, options: as of `streamvid.packing.process_source.process_source`.
        file, data, signature: as of `read_image`.

    Raises:
        VideoError: it is damaged, of a kind that is not read, or has cuts.
    """
    if source.cuts is not None:
        raise VideoError("it is an image, of which nothing can be cut: leave it out of the cuts")
    try:
        clip = image_clip(file, data, None if options.in_place else signature)
    except ValueError as error:
        raise VideoError(str(error)) from error
    if damage := find_clip_damage(clip, options.decode):
        raise VideoError(damage.cause)
    return [PreparedClip(clip, "", source.rows, {}, source.label)]
