"""One source, local or remote, → the clips made from it. Runs in worker processes, and so imports little."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from streamvid.dataset.schema import MAX_FILE_BYTES
from streamvid.errors import DatasetError, StreamvidError, VideoError
from streamvid.packing.frame_spans import FrameSpan, cut_spans, fixed_spans, scene_spans, seconds_at, span_columns
from streamvid.packing.images import is_sequence
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.lists import dump_json
from streamvid.packing.options import FixedLength, PackOptions, Piece, Refused, Scenes
from streamvid.packing.prepare import remux_or_build, transcode_if_needed
from streamvid.storage import filesystem
from streamvid.storage.url import local_path
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import hidden_bytes, trim_clip

log = logging.getLogger(__name__)

# Errors of the machine, not of the video: they end the packing rather than reject one video after another.
_NOT_THE_VIDEO: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_MOST_CLIPS: Final = 10**6
"""Clips that a video can be cut into: their keys end in six digits."""
_MOST_HIDDEN: Final = 20
"""Times its own bytes that a video's clips may store without showing them: an hour without key frames, cut into clips
of 10 s, would come to 180. One-second clips from GOPs of 250 frames come to 4."""


def process_source(source: SourceVideo, place: Path, treatment: PackOptions) -> list[Piece | Refused]:
    """Fetch one video and make its clips.

    Args:
        source: what to store.
        place: a folder that is made for it if one is needed; the caller removes it.
        treatment: what to do to it.

    Returns:
        The clips, in order of their starts, at least one. Listed cuts that the video has no frames for come first.

    Raises:
        VideoError: the video is to blame.
        OSError, StreamvidError: the machine or the storage is, and other videos would fare no better.
    """
    try:
        if is_sequence(source.path):
            video = place
        elif filesystem.is_local(source.path):
            video = Path(local_path(source.path))
        else:
            video = place / "source"
            place.mkdir()
            _fetch(source.path, video)
        cutting = treatment.cutting is not None or source.cuts is not None
        scenes = isinstance(treatment.cutting, Scenes)
        whole, encoded = remux_or_build(source.path, video, place, treatment, cut_only=cutting and not scenes)
        if cutting:
            place.mkdir(exist_ok=True)
            whole = whole.as_file(place / "clip.mp4")  # scenes are found by decoding
        if video not in (place, whole.mp4):
            _discard(video, place)
        if encoded:
            treatment = replace(treatment, conversion=None)
        if cutting:
            return _cut(source, whole, place, treatment)
        return [Piece(_fitting(transcode_if_needed(whole, place / "suited", treatment)), "", source.meta, source.label)]
    except VideoError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NOT_THE_VIDEO:
            raise OSError(cause.errno, os.strerror(cause.errno), str(place)) from error
        raise
    except (StreamvidError, OSError, MemoryError):
        raise
    except Exception as error:
        # Whatever else a hostile file brings about must not cost more than that file.
        log.debug("unexpected error while reading %s", source.name, exc_info=True)
        raise VideoError(f"unexpected {type(error).__name__} while reading it: {error}") from error


def _cut(source: SourceVideo, whole: StoredClip, place: Path, treatment: PackOptions) -> list[Piece | Refused]:
    """The clips that a video is cut into; its own MP4 is gone then, if it was made here."""
    spans, refused = _spans(source, whole, treatment)
    video = whole
    hidden = sum(hidden_bytes(whole.index, span.first, span.end) for span in spans)
    again = treatment.exact and hidden > 0
    if hidden > _MOST_HIDDEN * whole.index.size.sum():
        whole, treatment = _with_key_frames(whole, spans, place, treatment)
        again = again and whole is video
    pieces: list[Piece | Refused] = list(refused)
    for number, span in enumerate(spans):
        with as_video_error():
            clip = trim_clip(whole, span.first, span.end, place / f"clip-{number:06d}.mp4")
            clip = transcode_if_needed(clip, place / f"clip-{number:06d}", treatment, again=again)
        columns = json.loads(source.meta)
        label = source.label
        if span.cut is not None:
            columns |= json.loads(span.cut.meta)
            label = source.label if span.cut.label is None else span.cut.label
        meta = dump_json(columns | span_columns(video, span))
        pieces.append(Piece(_fitting(clip), f"_{number:06d}", meta, label))
    _discard(whole.mp4, place)
    return pieces


def _discard(file: Path, place: Path) -> None:
    """Remove a file if it is a temporary one, and not the user's."""
    if place in file.parents:
        file.unlink()


def _with_key_frames(
    whole: StoredClip, spans: Sequence[FrameSpan], place: Path, treatment: PackOptions
) -> tuple[StoredClip, PackOptions]:
    """A video with so few key frames that every clip would drag along much of it: encoded once, with key frames
    where clips begin and end, rather than clip by clip from far before each.

    Returns:
        The encoded video, and what is still to be done to its clips; or what was given, if frames are to be left out
        too, as clips then begin with other frames.

    Raises:
        VideoError: it is to be copied.
    """
    if treatment.conversion is None and not treatment.exact:
        raise VideoError(
            f"it has so few key frames that its clips would store more than {_MOST_HIDDEN} times the whole video in "
            "hidden packets: pack it with --exact-cuts reencode"
        )
    if treatment.conversion is not None and treatment.conversion.max_fps is not None:
        return whole, treatment
    edges = {frame for span in spans for frame in (span.first, span.end) if frame < len(whole.index.visible)}
    keyframes = [seconds_at(whole, int(whole.index.frame_pts[frame])) for frame in sorted(edges)]
    with as_video_error():
        made = trim_clip(whole, 0, len(whole.index.visible), place / "whole.mp4")
    _discard(whole.mp4, place)
    encoded = transcode_if_needed(made, place / "encoded", treatment, again=True, keyframes=keyframes)
    if len(encoded.index.visible) != len(whole.index.visible):
        raise VideoError("it does not keep its frames when it is encoded")
    return encoded, replace(treatment, conversion=None, exact=False)


def _spans(source: SourceVideo, whole: StoredClip, treatment: PackOptions) -> tuple[list[FrameSpan], list[Refused]]:
    """Which frames become clips.

    Raises:
        VideoError: none do, or so many that their keys would not differ.
    """
    refused: list[Refused] = []
    match treatment.cutting:
        case None:
            found = cut_spans(whole, source.cuts or ())
            spans = [one for one in found if isinstance(one, FrameSpan)]
            refused = [one for one in found if isinstance(one, Refused)]
            if not spans:
                others = f", and so with the {len(refused) - 1} others" if len(refused) > 1 else ""
                raise VideoError((refused[0].reason if refused else "no cuts are listed for it") + others)
        case FixedLength() as rule:
            spans = fixed_spans(whole, rule)
        case Scenes() as rule:
            from streamvid.packing.scenes import scene_starts

            with as_video_error():
                spans = scene_spans(whole, scene_starts(whole, rule))
    if len(spans) > _MOST_CLIPS:
        raise VideoError(f"it would be cut into {len(spans)} clips; the limit is {_MOST_CLIPS}")
    return spans, refused


def _fitting(clip: StoredClip) -> StoredClip:
    """The same clip, if a tar can hold it."""
    size = clip.mp4_bytes
    if size > MAX_FILE_BYTES:
        raise VideoError(f"it is {size / 2**30:.1f} GiB large, and a tar holds files below 8 GiB: cut it (--clip)")
    return clip


def _fetch(path: str, local: Path) -> None:
    """A remote video; one that is not there is rejected, while a storage that does not answer ends the packing."""
    try:
        filesystem.get_file(path, local)
    except filesystem.StorageUnavailable:
        raise
    except DatasetError as error:
        if not filesystem.exists(path):
            raise VideoError(str(error)) from error
        raise
