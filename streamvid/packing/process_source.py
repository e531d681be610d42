"""Makes the clips of one source: fetches, remuxes, cuts and transcodes it; or, in place, derives everything that
packing would store except the bytes. Runs in worker processes, which start fast because few modules are imported."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.dataset.schema import MAX_FILE_BYTES
from streamvid.decode.damage import Damage, find_damage
from streamvid.errors import StreamvidError, VideoError
from streamvid.host import BROKEN_ERRNOS, memory_is_short
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.packing.frame_spans import FrameSpan, no_clip, seconds_at, source_spans, span_columns
from streamvid.packing.images import is_sequence
from streamvid.packing.options import DecodeLevel, PackOptions, PreparedClip, RejectedCut
from streamvid.packing.patience import patiently
from streamvid.packing.prepare import remux_or_build, transcode_if_needed
from streamvid.packing.source_file import is_changed, local_video, of_this_file, read_image, source_bytes
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local
from streamvid.video.clip_index import BROKEN
from streamvid.video.image import image_clip
from streamvid.video.in_place import index_where_it_lies
from streamvid.video.ingest import index_by_tables
from streamvid.video.probe import VideoFile
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import CHANGED, UNNUMBERED, StoredClip
from streamvid.video.trim import cut_clip, non_displayed_bytes, trim_clip

log = logging.getLogger(__name__)

# Errors of the machine, not of the video: they end the pack instead of rejecting one video after another.
_MACHINE_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_OUTAGES: Final = BROKEN_ERRNOS - {errno.EIO}
"""Errors of mounted storages. EIO is also FFmpeg's for a damaged file."""
_MAX_HIDDEN: Final = 20
"""The most non-displayed bytes that a video's clips may store, as a multiple of the video's. An hour without key
frames, cut into clips of 10 s, would store 180 times its bytes; 1 s clips of GOPs of 250 frames store 4 times."""
_WINDOW: Final = 64
"""Frames at the start of a clip, and in its middle, that must decode by default: as most models take at most."""


def process_source(
    source: SourceVideo, folder: Path, options: PackOptions, retry: Retry
) -> list[PreparedClip | RejectedCut]:
    """Fetch one video and make its clips.

    Args:
        folder: for temporary files; created if one is needed, and removed by the caller.
        retry: for how long requests are repeated while the source's storage does not answer; a local file is read
            again while its disk, or the storage that is mounted there, does not.

    Returns:
        At least one clip, in the order of their starts; before them the rejected cuts: listed cuts without a frame of
        the video, and damaged ones.

    Raises:
        VideoError: the video cannot be stored, but others may.
        OSError, StreamvidError: the machine or the storage fails; other videos would fail as well.
    """

    return patiently(source.path, folder, lambda: _process(source, folder, options, retry), retry)


def _process(source: SourceVideo, folder: Path, options: PackOptions, retry: Retry) -> list[PreparedClip | RejectedCut]:
    """`process_source` without reading a local file again."""
    try:
        clips = _clips_of(source, folder, options, retry)
        if is_changed(source):
            raise VideoError(CHANGED)
        return clips
    except (VideoError, FileNotFoundError) as error:
        if (fault := _fault_of_machine(error, folder)) is not None:
            raise fault from error
        if is_changed(source):  # which explains any error
            raise VideoError(CHANGED) from error
        raise
    except (StreamvidError, OSError, MemoryError):
        raise
    except Exception as error:
        # Any other exception that a hostile file causes rejects that file alone.
        log.debug("unexpected error while reading %s", source.name, exc_info=True)
        if memory_is_short():
            raise MemoryError(str(error)) from error
        raise VideoError(f"unexpected {type(error).__name__} while reading it: {error}") from error


def _clips_of(
    source: SourceVideo, folder: Path, options: PackOptions, retry: Retry
) -> list[PreparedClip | RejectedCut]:
    """The clips of a source, which may be changed meanwhile. Errors as of `process_source`."""
    if source.problem:
        raise VideoError(source.problem)
    if source.needed:  # imported here, because it takes a while
        from streamvid.packing.stored_clips import ClipRun, prepare_clips

        assert isinstance(source, ClipRun)
        return [*prepare_clips(source, folder, retry)]
    if options.in_place:
        return index_source(source, folder, options, retry)
    video = folder if is_sequence(source.path) else local_video(source, folder, retry)
    if (image := read_image(source, video)) is not None:
        return _image_source(source, options, video, *image)
    cutting = options.cutting is not None or source.cuts is not None
    whole, transcoded = remux_or_build(source.path, video, folder, options, retry, cut_only=cutting)
    if cutting:
        folder.mkdir(exist_ok=True)
    if video not in (folder, whole.mp4):
        _discard(video, folder)
    if transcoded:
        options = replace(options, transcode=None)
    if cutting:
        return _cut(source, whole, folder, options)
    clip = _check_size(transcode_if_needed(whole, folder / "transcoded", options))
    if clip is whole and not transcoded and (damage := _find_damage(clip, options.decode)):
        raise VideoError(str(damage))
    return [PreparedClip(clip, "", source.rows, {}, source.label)]


def _fault_of_machine(error: VideoError | OSError, folder: Path) -> Exception | None:
    """The error to raise if it is not the video but the machine, or the storage of `folder`, that failed."""
    cause = error.__cause__
    if memory_is_short():
        return MemoryError(str(error))
    if isinstance(cause, OSError) and cause.errno is not None:
        name = str(cause.filename or folder)  # FFmpeg's errors have it, too
        dead = cause.errno == errno.EIO and folder in Path(name).parents
        if dead or cause.errno in (*_MACHINE_ERRORS, *_OUTAGES):
            return OSError(cause.errno, os.strerror(cause.errno), name)
    return None


Outcome = list[PreparedClip | RejectedCut] | str
"""The clips of a source, or the reason why it is rejected."""


def process_sources(
    process: Callable[[SourceVideo, Path, PackOptions, Retry], list[PreparedClip | RejectedCut]],
    work: Sequence[tuple[SourceVideo, Path]],
    options: PackOptions,
    retry: Retry,
) -> list[Outcome]:
    """Process several sources concurrently, each with its folder, by `process`, such as `process_source`; errors as
    there."""

    def outcome(pair: tuple[SourceVideo, Path]) -> Outcome:
        try:
            return process(*pair, options, retry)
        except VideoError as error:
            return str(error)

    if len(work) == 1:
        return [*map(outcome, work)]
    with ThreadPoolExecutor(len(work)) as threads:
        return [*threads.map(outcome, work)]


def _cut(
    source: SourceVideo, whole: StoredClip, folder: Path, options: PackOptions
) -> list[PreparedClip | RejectedCut]:
    """Cut a video into clips. Removes its MP4 if that is a temporary file."""
    spans, rejected = source_spans(source, whole, options)
    video = whole
    hidden = sum(non_displayed_bytes(whole.index, span.first, span.end) for span in spans)
    reencode = options.exact_cuts and hidden > 0
    if hidden > _MAX_HIDDEN * whole.index.size.sum():
        whole, options = _reencode_with_key_frames(whole, spans, folder, options)
        reencode = reencode and whole is video
    damaged: list[RejectedCut] = []
    clips: list[PreparedClip | RejectedCut] = []
    for number, span in enumerate(spans):
        file, encoded = folder / f"clip-{number:06d}.mp4", folder / f"clip-{number:06d}"
        made: PreparedClip | RejectedCut
        try:
            with as_video_error():
                clip = trimmed = trim_clip(whole, span.first, span.end, file)
                if not trimmed.has_trait(BROKEN):
                    clip = transcode_if_needed(trimmed, encoded, options, reencode=reencode)
            made = prepare_cut(source, video, number, span, clip, options, look=clip is trimmed)
        except VideoError as error:
            if _fault_of_machine(error, folder) is not None:
                raise
            made = RejectedCut(f"the clip of the frames {span.first} to {span.end - 1} cannot be made: {error}")
        if isinstance(made, RejectedCut):
            file.unlink(missing_ok=True)
            shutil.rmtree(encoded, ignore_errors=True)
            damaged.append(made)
        else:
            _check_size(clip)
            clips.append(made)
    _discard(whole.mp4, folder)
    if not clips:
        raise no_clip(damaged)
    return [*rejected, *damaged, *clips]


def _discard(file: Path, folder: Path) -> None:
    """Remove a file if it is in the temporary folder, and so not the user's."""
    if folder in file.parents:
        file.unlink()


def _reencode_with_key_frames(
    whole: StoredClip, spans: Sequence[FrameSpan], folder: Path, options: PackOptions
) -> tuple[StoredClip, PackOptions]:
    """Encode a video once, with key frames where clips begin and end.

    This is for a video with so few key frames that, cut by copying, every clip would store and decode a large part of
    it.

    Returns:
        The encoded video, and the options for its clips. Both as given if frames are dropped to reach `max_fps`: the
        encoded frames are then not those that the spans number.

    Raises:
        VideoError: the options do not allow encoding it.
    """
    if options.transcode is None and not options.exact_cuts:
        raise VideoError(
            f"it has so few key frames that its clips would store more than {_MAX_HIDDEN} times the whole video in "
            "non-displayed packets: pack it with --exact-cuts reencode"
        )
    if options.transcode is not None and options.transcode.max_fps is not None:
        return whole, options
    edges = {frame for span in spans for frame in (span.first, span.end) if frame < len(whole.index.visible)}
    keyframes = [seconds_at(whole, int(whole.index.frame_pts[frame])) for frame in sorted(edges)]
    with as_video_error():
        made = trim_clip(whole, 0, len(whole.index.visible), folder / "whole.mp4")
    _discard(whole.mp4, folder)
    encoded = transcode_if_needed(made, folder / "encoded", options, reencode=True, keyframes=keyframes)
    if len(encoded.index.visible) != len(whole.index.visible):
        raise VideoError("it does not keep its frames when it is encoded")
    return encoded, replace(options, transcode=None, exact_cuts=False)


def _check_size(clip: StoredClip) -> StoredClip:
    """Return the clip. Raises VideoError if it is too large for a tar."""
    size = clip.mp4_bytes
    if size > MAX_FILE_BYTES:
        raise VideoError(f"it is {size / 2**30:.1f} GiB large, and a tar holds files below 8 GiB: cut it (--clip)")
    return clip


def index_source(
    source: SourceVideo, folder: Path, options: PackOptions, retry: Retry
) -> list[PreparedClip | RejectedCut]:
    """Find the clips of a source in place; otherwise as `process_source`.

    Raises:
        VideoError: the source cannot be read in place.
    """
    if is_sequence(source.path):
        raise VideoError("a folder of images is no video, so it cannot be indexed in place: pack it (--copy-others)")
    if source.is_named_as_image:
        video = local_video(source, folder, retry)
        if (image := read_image(source, video)) is not None:
            found = _image_source(source, options, video, *image)
            shutil.rmtree(folder, ignore_errors=True)
            return found
    whole = _by_tables(source, retry) if options.in_place == "tables" and not options.track else None
    if whole is not None:
        return _clips_in_place(source, whole, options, readable=False)
    with _full_look():
        file = VideoFile(local_video(source, folder, retry), options.track, options.fps)
        clips = _clips_in_place(source, index_where_it_lies(file, folder / "copy"), options, readable=True)
        shutil.rmtree(folder, ignore_errors=True)
    return clips


def _clips_in_place(
    source: SourceVideo, whole: StoredClip, options: PackOptions, *, readable: bool
) -> list[PreparedClip | RejectedCut]:
    """The clips of a source that stays where it is. `readable`: its file is local, so that frames can be decoded."""
    if source.cuts is None and options.cutting is None:
        clips: list[PreparedClip | RejectedCut] = [PreparedClip(whole, "", source.rows, {}, source.label)]
        damage = _find_damage(whole, options.decode) if readable else None
        if damage:
            raise VideoError(str(damage))
    else:
        spans, rejected = source_spans(source, whole, options)
        clips = [*rejected]
        for number, span in enumerate(spans):
            clip = cut_clip(whole, span.first, span.end, readable=readable)
            clips.append(prepare_cut(source, whole, number, span, clip, options, readable))
        if not any(isinstance(clip, PreparedClip) for clip in clips):
            raise no_clip([clip for clip in clips if isinstance(clip, RejectedCut)])
    return clips


@cache
def _full_look() -> threading.Lock:
    """A lock that is held while a file is read in full, because copies of many files would fill the disk."""
    return threading.Lock()


def _by_tables(source: SourceVideo, retry: Retry) -> StoredClip | None:
    """The clip from a file's tables; None if the file must be read in full."""
    try:
        with of_this_file():
            file = source_bytes(source, retry)
            return index_by_tables(Path(source.name), file, file.read_spans, every_key=is_local(source.path))
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
    """Make one clip of a source that is cut, or its rejection; `look` decodes its frames."""
    if look and (damage := _find_damage(clip, options.decode)):
        return RejectedCut(f"the clip of the frames {span.first} to {span.end - 1} is damaged: {damage}")
    rows, label = source.rows, source.label
    if span.cut is not None:
        rows += span.cut.rows
        label = label if span.cut.label is None else span.cut.label
    return PreparedClip(clip, f"_{number:06d}", rows, span_columns(whole, span), label)


def _image_source(
    source: SourceVideo, options: PackOptions, file: Path, data: bytes, signature: tuple[int, int]
) -> list[PreparedClip | RejectedCut]:
    """The clip of an image, which is neither cut nor transcoded.

    Args:
        source, options: as in `process_source`.
        file, data, signature: as in `streamvid.packing.source_file.read_image`.

    Raises:
        VideoError: the image is damaged or of an unsupported kind, or the source has cuts.
    """
    if source.cuts is not None:
        raise VideoError("it is an image, of which nothing can be cut: leave it out of the cuts")
    try:
        clip = image_clip(file, data, None if options.in_place else signature)
    except ValueError as error:
        raise VideoError(str(error)) from error
    if damage := _find_damage(clip, options.decode):
        raise VideoError(damage.cause)
    return [PreparedClip(clip, "", source.rows, {}, source.label)]


def _find_damage(clip: StoredClip, level: DecodeLevel) -> Damage | None:
    """Decode the frames of a clip that the option `decode` names.

    Returns:
        All damage of the clip if one of these frames is damaged, or if it has broken packets; else None.
    """
    count, level = len(clip.index.visible), "all" if UNNUMBERED in clip.source_remarks else level
    if clip.has_trait(BROKEN):
        every = np.arange(count)
        cause = "the NAL units of a packet of it do not fit, or zeros are in the place of a part of it"
        return find_damage(clip.index, every, clip.slice) or Damage(tuple(every.tolist()), count, cause)
    if level == "none":
        return None
    if level == "all":
        frames = np.arange(count)
    else:
        middle = (count - _WINDOW) // 2
        # One more where there are two ways to halve the rest.
        centre = np.arange(max(0, middle), min(count, middle + _WINDOW + 1))
        frames = np.union1d(np.arange(min(count, _WINDOW)), centre)
    found = find_damage(clip.index, frames, clip.slice)
    # List all damaged frames, not only those among the decoded ones.
    return found and find_damage(clip.index, np.arange(count), clip.slice)
