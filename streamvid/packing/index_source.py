"""The clips of one source where it lies: what packing would store of it, without its bytes."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from functools import cache
from pathlib import Path

from streamvid.errors import VideoError
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.packing.accept import find_clip_damage
from streamvid.packing.frame_spans import FrameSpan, no_clip, source_spans, span_columns
from streamvid.packing.image_files import image_source, read_image
from streamvid.packing.images import is_sequence
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.options import PackOptions, PreparedClip, RejectedCut
from streamvid.packing.source_file import local_video, of_this_file, source_bytes
from streamvid.storage.url import is_local, local_path
from streamvid.video.containers import IMAGE_EXTENSIONS
from streamvid.video.in_place import index_where_it_lies
from streamvid.video.ingest import index_by_tables
from streamvid.video.probe import VideoFile
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import cut_clip

log = logging.getLogger(__name__)


def index_source(source: SourceVideo, folder: Path, options: PackOptions) -> list[PreparedClip | RejectedCut]:
    """Find the clips of a source where it lies; otherwise as `streamvid.packing.process_source.process_source`.

    Raises:
        VideoError: it cannot be read where it lies, or was changed meanwhile.
    """
    if is_sequence(source.path):
        raise VideoError(
            "a folder of images is no video, so that it cannot be read where it lies: pack it (--copy-others)"
        )
    if source.name.lower().endswith(IMAGE_EXTENSIONS):
        video = local_video(source, folder)
        if (image := read_image(source, video)) is not None:
            found = image_source(source, options, video, *image)
            _check_unchanged(source)
            shutil.rmtree(folder, ignore_errors=True)
            return found
    whole = _by_tables(source) if options.in_place == "tables" and not options.track else None
    if whole is not None:
        return _clips(source, whole, options, readable=False)
    with _full_look():
        file = VideoFile(local_video(source, folder), options.track, options.fps)
        clips = _clips(source, index_where_it_lies(file, folder / "copy"), options, readable=True)
        shutil.rmtree(folder, ignore_errors=True)
    return clips


def _clips(
    source: SourceVideo, whole: StoredClip, options: PackOptions, *, readable: bool
) -> list[PreparedClip | RejectedCut]:
    """The clips of a source; `readable` if the file with its packets is a local one, to be decoded."""
    if source.cuts is None and options.cutting is None:
        clips: list[PreparedClip | RejectedCut] = [PreparedClip(whole, "", source.rows, {}, source.label)]
        damage = find_clip_damage(whole, options.decode) if readable else None
        if damage:
            raise VideoError(str(damage))
    else:
        spans, rejected = source_spans(source, whole, options)
        clips = [*rejected]
        for number, span in enumerate(spans):
            clip = cut_clip(whole, span.first, span.end, readable=readable)
            clips.append(prepare_cut(source, whole, number, span, clip, options, readable))
        if not any(isinstance(one, PreparedClip) for one in clips):
            raise no_clip([one for one in clips if isinstance(one, RejectedCut)])
    _check_unchanged(source)
    return clips


def _check_unchanged(source: SourceVideo) -> None:
    if is_local(source.path):
        now = os.stat(local_path(source.path))
        if (now.st_size, str(now.st_mtime_ns)) != (source.file_bytes or source.size, source.mark):
            raise VideoError("it was changed while it was indexed: run this again")


@cache
def _full_look() -> threading.Lock:
    """Held while a file is looked at in full: copies of many would fill the disk."""
    return threading.Lock()


def _by_tables(source: SourceVideo) -> StoredClip | None:
    """The clip by a file's tables; None if it must be looked at in full."""
    try:
        with of_this_file():
            file = source_bytes(source)
            return index_by_tables(Path(source.name), file, file.read_spans)
    except (NeedsDemuxerError, ArithmeticError, ValueError) as reason:
        log.debug("%s is looked at in full: %s", source.name, reason)
        return None


def prepare_cut(
    source: SourceVideo,
    whole: StoredClip,
    number: int,
    span: FrameSpan,
    clip: StoredClip,
    options: PackOptions,
    look: bool,
) -> PreparedClip | RejectedCut:
    """One clip of a source that is cut, or why it is none; `look` at its frames."""
    if look and (damage := find_clip_damage(clip, options.decode)):
        return RejectedCut(f"the clip of the frames {span.first} to {span.end - 1} is damaged: {damage}")
    rows, label = source.rows, source.label
    if span.cut is not None:
        rows += span.cut.rows
        label = label if span.cut.label is None else span.cut.label
    return PreparedClip(clip, f"_{number:06d}", rows, span_columns(whole, span), label)
