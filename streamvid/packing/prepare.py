"""What is done to a source before it is stored, and to a clip after, so that it suits its purpose.

Copying comes first: what a video is, its bitstream tells, and that is gone through when it is copied. Only a clip
that does not suit is then decoded and encoded again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from streamvid.packing.images import is_sequence, sequence_video
from streamvid.packing.options import PackOptions
from streamvid.video.gpu_support import check
from streamvid.video.probe import OtherCodecError
from streamvid.video.remux import ingest_plain, store_clip, store_through_ffmpeg
from streamvid.video.stored_clip import StoredClip

if TYPE_CHECKING:
    from streamvid.video.transcode import TranscodeOptions

log = logging.getLogger(__name__)


def remux_or_build(
    path: str, video: Path, place: Path, treatment: PackOptions, *, cut_only: bool
) -> tuple[StoredClip, bool]:
    """A source as a clip: its packets copied. Images, and a codec that is not stored, are made into a video first.

    Args:
        path: the source's path or URL, ending in '/' if it is a folder of images.
        video: where its bytes are, if it is a file.
        place: a folder for what is made; made itself if need be.
        treatment: what to do.
        cut_only: see `streamvid.video.remux.store_clip`.

    Returns:
        The clip, its MP4 perhaps not written yet, and whether it was encoded here: then it needs no converting any
        more.

    Raises:
        VideoError: it cannot be read.
        InputError: images without times, and no frame rate.
    """
    from streamvid.video.transcode import TranscodeOptions, transcode

    if not is_sequence(path):
        plain = ingest_plain(video, cut_only=cut_only)
        if plain is not None:
            return plain, False
    place.mkdir(exist_ok=True)
    if is_sequence(path):
        made, encoded = sequence_video(
            path, place, fps=treatment.fps, conversion=treatment.conversion or TranscodeOptions()
        )
    else:
        try:
            return store_through_ffmpeg(video, place, moov_first=not cut_only), False
        except OtherCodecError:
            if treatment.conversion is None and treatment.suits == "any":
                raise
        made, encoded = place / "converted-source.mp4", True
        transcode(video, made, treatment.conversion or TranscodeOptions())
    clip = store_clip(made, place, cut_only=cut_only)
    if clip.mp4 != made:
        made.unlink()
    return clip, encoded


def transcode_if_needed(
    clip: StoredClip,
    folder: Path,
    treatment: PackOptions,
    *,
    again: bool = False,
    keyframes: Sequence[Fraction] = (),
) -> StoredClip:
    """The clip, or the same frames encoded again where the treatment wants that; then the clip's own MP4 is gone.

    Args:
        clip: as it was copied, to a temporary file or to none yet.
        folder: made for what is encoded.
        treatment: what to do.
        again: encode in any case.
        keyframes: seconds at which there must be key frames, if it is encoded.

    Raises:
        VideoError: its frames cannot be decoded, or encoded.
    """
    conversion = _conversion(clip, treatment, again=again)
    if conversion is None:
        return clip
    from streamvid.video.transcode import transcode

    folder.mkdir(parents=True)
    clip = clip.as_file(folder / "copied.mp4")
    encoded = folder / "encoded.mp4"
    transcode(clip, encoded, conversion, keyframes=keyframes)
    clip.mp4.unlink()
    stored = store_clip(encoded, folder)
    encoded.unlink()
    # How long the last frame is shown is the clip's knowledge: an MP4 keeps it only where frames are not reordered.
    ticks = Fraction(*clip.time_base) * clip.duration / Fraction(*stored.time_base)
    return replace(stored, duration=max(round(ticks), int(stored.index.frame_pts[-1]) + 1))


def _conversion(clip: StoredClip, treatment: PackOptions, *, again: bool) -> TranscodeOptions | None:
    from streamvid.video.encoders import TARGETS
    from streamvid.video.transcode import TranscodeOptions

    if treatment.conversion is not None:
        return treatment.conversion
    verdict = check(clip, treatment.suits)
    if verdict.codec is not None:
        log.info("converting to %s: %s", verdict.codec, verdict.problem)
        return TranscodeOptions(codec=verdict.codec)
    return TranscodeOptions(codec=next((codec for codec in TARGETS if codec == clip.codec), "h264")) if again else None
