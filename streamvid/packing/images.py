"""Image sequences: folders of numbered images as sources. JPEGs are copied into Motion JPEG, other images encoded."""

from __future__ import annotations

import csv
import io
import logging
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.bitstream.image import CODECS, MAX_SIDE, read_header
from streamvid.bitstream.jpeg import check_jpeg, orientation
from streamvid.checks import fraction
from streamvid.errors import InputError, VideoError
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.storage import filesystem
from streamvid.storage.client import asked
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, local_path, redact
from streamvid.video.codec_context import bare_context, padded_packet
from streamvid.video.image_decoder import decode_images
from streamvid.video.remux import as_video_error

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from streamvid.video.transcode import TranscodeOptions

log = logging.getLogger(__name__)

TIMES_FILES: Final = ("timestamps.csv", "timestamps.txt")
"""Files with the presentation times of a folder's images: seconds, a line each, in order of the image numbers."""
_DECODERS: Final = {
    ".jpg": "mjpeg", ".jpeg": "mjpeg", ".png": "png", ".webp": "webp", ".bmp": "bmp", ".tif": "tiff", ".tiff": "tiff",
    ".ppm": "ppm", ".pgm": "pgm",
}  # fmt: skip
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,18})", re.DOTALL)
_MAX_BYTES: Final = 1 << 28
_SAME_LEVELS: Final = 8
"""Most levels of 256 by which pictures of two decoders differ, as by the rounding of 16 bits and of YCbCr."""
_FETCHED_AT_ONCE: Final = 16
_NO_TIMES: Final = (
    "the images in {} have no frame rate: give --fps to streamvid pack, "
    f"or put a {TIMES_FILES[0]} with a line of seconds for each image beside them; to pack each image as a clip, give "
    "--images"
)
_MICROSECONDS: Final = Fraction(1, 1_000_000)


def is_sequence(path: str) -> bool:
    """Whether a source is a folder of images: its path ends in '/'."""
    return path.endswith("/")


def find_sequence(names: Sequence[str]) -> list[str]:
    """The images of a folder in the order of their numbers (`img2.jpg` before `img10.jpg`); empty if they are no
    sequence.

    A sequence has at least two images of one format whose names differ only in the number at the end, and no other
    files except hidden ones and `TIMES_FILES`. Numbers may be missing.

    Args:
        names: the file names in the folder.
    """
    kept = [name for name in names if not name.startswith(".") and name.lower() not in TIMES_FILES]
    numbered: list[tuple[int, str]] = []
    kinds = set()
    for name in kept:
        stem, extension = posixpath.splitext(name)
        match = _NUMBERED.fullmatch(stem)
        if match is None or extension.lower() not in _DECODERS:
            return []
        kinds.add((match[1], _DECODERS[extension.lower()]))
        numbered.append((int(match[2]), name))
    if len(numbered) < 2 or len(kinds) != 1:
        return []
    return [name for _, name in sorted(numbered)]


def check_rate(paths: Iterable[str], fps: Fraction | None) -> None:
    """Check before packing that image sequences have timestamps.

    Only the first remote folder is looked into; others without timestamps fail when they are packed, as do listed
    folders that are no image sequences.

    Raises:
        InputError: there is no rate, and a folder has no file of timestamps.
    """
    if fps is not None:
        return
    remote = False
    for path in paths:
        if is_sequence(path) and not (remote and not is_local(path)):
            remote = remote or not is_local(path)
            names = [*_files(path)]
            if find_sequence(names) and not any(name.lower() in TIMES_FILES for name in names):
                raise InputError(_NO_TIMES.format(redact(path)))


def sequence_video(
    folder: str, target_folder: Path, *, fps: Fraction | None, options: TranscodeOptions, retry: Retry
) -> tuple[Path, bool]:
    """Make a video file of a folder of images.

    Args:
        folder: local path or URL, ending in '/'.
        target_folder: a local folder for the file.
        fps: images per second; None if the folder has a file of timestamps.
        options: how images other than JPEGs are encoded.
        retry: for how long requests are repeated while a storage does not answer.

    Returns:
        The file, and whether it was encoded; JPEGs are copied byte for byte, a packet each.

    Raises:
        VideoError: an image cannot be read, or differs in size or format from the first; the message names it.
        InputError: there are neither timestamps nor a rate.
    """
    files = asked(folder, partial(_files, folder), retry)
    names = find_sequence([*files])
    if not names:
        raise VideoError(
            "it is a folder, and no image sequence, which holds numbered images of one format and no other files: list "
            "the videos in it one by one"
        )
    numbers = [int(_NUMBERED.fullmatch(posixpath.splitext(name)[0])[2]) for name in names]  # type: ignore[index]
    if len(set(numbers)) < len(numbers):
        twice = next(n for n, m in pairwise(numbers) if n == m)
        raise VideoError(f"two of its images have the number {twice}: rename or remove one")
    if missing := numbers[-1] - numbers[0] + 1 - len(numbers):
        log.info("%s: %d numbers are missing between its images", redact(folder), missing)
    base, ticks, end = _times(files, len(names), fps, folder, retry)
    images = _images([files[name] for name in names], retry)
    kind = _DECODERS[posixpath.splitext(names[0])[1].lower()]
    target = target_folder / "images.mp4"
    if kind == "mjpeg":
        with as_video_error():
            _mux_jpegs(names, images, target, base, ticks, end)
        return target, False
    from streamvid.video.timed_frames import TimedFrame, TimedFrames
    from streamvid.video.transcode import encode

    rate = Fraction(len(ticks)) / (end * base) if end > 0 else Fraction(25)
    begin = next(images)
    rotation = _rotation(begin)
    decoded = _decoded(names, chain([begin], images), kind, rotation)
    frames = starmap(TimedFrame, zip(decoded, ticks, [*ticks[1:], end], strict=True))
    with as_video_error():
        encode(TimedFrames(frames, base, rate, rotation), target, options)
    return target, True


def _files(folder: str) -> dict[str, str]:
    """The files in a folder, without subfolders, as name → path."""
    if is_local(folder):
        try:
            with os.scandir(local_path(folder)) as entries:
                return {entry.name: entry.path for entry in entries if entry.is_file()}
        except OSError as error:
            raise VideoError(f"its folder cannot be read: {error.strerror}") from error
    return {posixpath.basename(path): path for path in filesystem.list_files(folder)}


def _times(
    files: dict[str, str], count: int, fps: Fraction | None, folder: str, retry: Retry
) -> tuple[Fraction, list[int], int]:
    """Seconds per tick, presentation time of each image in ticks, and end of the last image in ticks."""
    by_name = {name.lower(): path for name, path in files.items()}
    for name in TIMES_FILES:
        if name in by_name:
            ticks = _read_times(_read(by_name[name], retry), name, count)
            usual = int(np.median(np.diff(ticks)))
            return _MICROSECONDS, ticks, ticks[-1] + usual
    if fps is None:
        raise InputError(_NO_TIMES.format(redact(folder)))
    return 1 / fps, list(range(count)), count


def _read_times(data: bytes, name: str, count: int) -> list[int]:
    """Times in microseconds after the first image, from the last column of a CSV with or without a heading."""
    try:
        rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"))) if row]
        if rows and not re.match(r"\s*[+-]?\.?[0-9]", rows[0][-1]):
            rows = rows[1:]  # a heading
        seconds = [fraction(row[-1].strip()) for row in rows]
    except (UnicodeDecodeError, ValueError, ZeroDivisionError, csv.Error) as error:
        raise VideoError(f"its {name} does not hold seconds, one line for each image: {error}") from error
    if len(seconds) != count:
        raise VideoError(f"its {name} has {len(seconds)} times for {count} images: one line for each image")
    ticks = [round((at - seconds[0]) / _MICROSECONDS) for at in seconds]
    if any(later <= earlier for earlier, later in pairwise(ticks)):
        raise VideoError(f"the times in its {name} do not rise from image to image")
    if ticks[-1] >= 1 << 52:
        raise VideoError(f"the times in its {name} are not seconds: they span more than 140 years")
    return ticks


def _images(paths: Sequence[str], retry: Retry) -> Iterator[bytes]:
    """The bytes of the files, in order; remote ones are fetched several at a time."""
    read = partial(_read, retry=retry)
    if not paths or is_local(paths[0]):
        yield from map(read, paths)
        return
    yield read(paths[0])  # before the threads: see `streamvid.storage.filesystem` on the first remote call
    with ThreadPoolExecutor(_FETCHED_AT_ONCE) as threads:
        for start in range(1, len(paths), _FETCHED_AT_ONCE):
            yield from threads.map(read, paths[start : start + _FETCHED_AT_ONCE])


def _read(path: str, retry: Retry) -> bytes:
    size = filesystem.size(path, retry=retry)
    if size > _MAX_BYTES:
        raise VideoError(f"{posixpath.basename(path)} is {size / 2**20:.0f} MiB large; the limit is 256")
    return filesystem.read_bytes(path, retry=retry)


def _mux_jpegs(
    names: Sequence[str], images: Iterator[bytes], target: Path, base: Fraction, ticks: Sequence[int], end: int
) -> None:
    """Mux JPEG files as the packets of a Motion JPEG track."""
    first: tuple[int, int, str, int] | None = None
    options = {"fflags": "+bitexact"}
    with closing(av.open(os.fspath(target), "w", format="mp4", options=options)) as output:
        track: Any = None
        for i, (name, data) in enumerate(zip(names, images, strict=True)):
            check_jpeg(data, name)
            frame = _decode(data, "mjpeg", name)
            kind = (frame.width, frame.height, frame.format.name, orientation(data))
            if first is None:
                first = kind
                track = output.add_mux_stream("mjpeg", rate=1 / base, width=frame.width, height=frame.height)
                track.time_base = base
            elif kind != first:
                raise VideoError(
                    f"{name} is {_shown(kind)}, {names[0]} is {_shown(first)}: all images of a clip must be alike"
                )
            packet: Any = padded_packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = track, base, True
            packet.pts = packet.dts = ticks[i]
            packet.duration = (ticks[i + 1] if i + 1 < len(ticks) else end) - ticks[i]
            output.mux(packet)


def _shown(kind: tuple[int, int, str, int]) -> str:
    width, height, pix_fmt, turned = kind
    return f"{width}x{height} {pix_fmt}" + (f" with EXIF orientation {turned}" if turned != 1 else "")


def _decoded(names: Sequence[str], images: Iterator[bytes], decoder: str, rotation: int) -> Iterator[VideoFrame]:
    first: VideoFrame | None = None
    for name, data in zip(names, images, strict=True):
        frame = _checked(data, decoder, name)
        if _rotation(data) != rotation:
            raise VideoError(f"{name} has another EXIF orientation than {names[0]}: all images of a clip must be alike")
        if first is None:
            first = frame
        elif (frame.width, frame.height) != (first.width, first.height):
            raise VideoError(
                f"{name} is {frame.width}x{frame.height}, {names[0]} is {first.width}x{first.height}: "
                "all images of a clip must be alike"
            )
        yield frame


def _rotation(data: bytes) -> int:
    try:
        return read_header(data).rotation
    except ValueError:  # of a format without orientation, or one that decoding refuses
        return 0


def _checked(data: bytes, decoder: str, name: str) -> VideoFrame:
    """FFmpeg's frame of an image, which keeps 16 bits and tags. But FFmpeg gives black, without an error, for tiles and
    JPEG in a TIFF, and for missing parts of a PNG: of these formats DALI's frame, as of a single image, if it differs.
    """
    frame = _decode(data, decoder, name)
    if decoder not in ("png", "tiff"):
        return frame
    try:
        header = read_header(data)
    except ValueError as error:
        if decoder == "tiff":
            raise VideoError(f"{name} cannot be decoded: {error}") from error
        return frame
    stsd = visual_sample_description(CODECS[header.codec], b"", width=header.width, height=header.height)
    try:
        (other,) = decode_images(stsd, [(data, 0)])
    except av.error.FFmpegError as error:
        raise VideoError(f"{name} cannot be decoded: {error.strerror}") from error
    pictures = [made.to_ndarray(format="rgb24").astype(np.int16) for made in (frame, other)]
    return other if np.abs(pictures[0] - pictures[1]).max() > _SAME_LEVELS else frame


def _decode(data: bytes, decoder: str, name: str) -> VideoFrame:
    """Decode an image file, which must have exactly one picture."""
    context = bare_context(decoder)
    try:
        frames = [*context.decode(padded_packet(data)), *context.decode(None)]
    except (av.error.FFmpegError, ValueError) as error:
        raise VideoError(f"{name} cannot be decoded: {getattr(error, 'strerror', None) or error}") from error
    if len(frames) != 1 or frames[0].is_corrupt:
        raise VideoError(f"{name} cannot be decoded: it is damaged, or holds more than one picture")
    frame: VideoFrame = frames[0]
    if not (0 < frame.width <= MAX_SIDE and 0 < frame.height <= MAX_SIDE):
        raise VideoError(f"{name} is {frame.width}x{frame.height}; the limit is {MAX_SIDE} on a side")
    return frame
