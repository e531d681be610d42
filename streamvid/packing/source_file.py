"""The bytes of a source: a local file, or a local copy of a remote one. The bytes of an image, which is a clip of one
frame, are stored unchanged."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamvid.bitstream.image import AnimationError, is_image, read_header
from streamvid.errors import DatasetError, InputError, VideoError
from streamvid.host import BROKEN_ERRNOS
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import filesystem
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.client import has_ranges
from streamvid.storage.explain import AccessRefused, DiskFull, StorageUnavailable
from streamvid.storage.filesystem import Details
from streamvid.storage.link import Link
from streamvid.storage.ranged_file import RangedFile
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, local_path
from streamvid.video.containers import nameless
from streamvid.video.stored_clip import file_signature

_CHUNK_BYTES: Final = 32 << 20
_MOST_UNSIZED_BYTES: Final = 8 << 30
"""Most bytes that are fetched of a file whose server gives no size, so that a live stream does not fill the disk."""
_MAX_IMAGE: Final = 1 << 30
"""Most bytes of an image file."""
MISSING: Final = Details(0, "missing", False)


def local_details(path: str) -> Details:
    """Size and version of a local file, or of all files of a folder of images; MISSING if it cannot be looked at.

    Raises:
        OSError: the storage that is mounted there does not answer.
        InputError: it is no path.
    """
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                files = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
            return folder_details([(name, status.st_size, str(status.st_mtime_ns)) for name, status in files])
        return Details(found.st_size, str(found.st_mtime_ns), False)
    except OSError as error:
        if error.errno in BROKEN_ERRNOS:
            raise
        return MISSING  # reading the file will fail as well, with the reason
    except ValueError as error:
        raise InputError(f"{path!r} cannot be the path of a video: {error}") from error


def why_missing(path: str) -> str:
    """The reason for which a file is `MISSING`, such as who may read it, or a link that leads nowhere."""
    if is_local(path):
        try:
            with nameless(Path(local_path(path))):
                pass
        except VideoError as error:
            return str(error)
    return "it does not exist any more"


def folder_details(files: Sequence[tuple[str, int, str]]) -> Details:
    """The details of a folder of images: the sum of its files' sizes, and a mark of their names, sizes and marks,
    sorted by name."""
    content = hashlib.sha256(repr(files).encode("utf-8", "replace"))
    return Details(sum(size for _, size, _ in files), content.hexdigest(), True)


def is_changed(source: SourceVideo) -> bool:
    """Whether a local source was changed or removed since it was found, as by a download that goes on."""
    if source.problem or not source.mark or not is_local(source.path):
        return False
    now = local_details(local_path(source.path))
    return (now.size, now.mark) != (source.file_bytes or source.size, source.mark)


def local_video(source: SourceVideo, folder: Path, retry: Retry) -> Path:
    """The local file of a source, or a copy in a folder if it is remote, or a part of a file.

    Args:
        source: the source.
        folder: for the copy; created if one is needed.
        retry: for how long requests are repeated while a storage does not answer.

    Raises:
        VideoError: it is no file, does not exist, or has changed since it was found.
        DatasetError: the storage fails.
    """
    if is_local(source.path) and source.part is None:
        video = Path(local_path(source.path))
        if video.exists() and not video.is_file():
            raise VideoError("it is a pipe, a device or a socket, not a file")
        return video
    folder.mkdir(exist_ok=True)
    video = folder / "source"
    if source.part is None and not source.file:
        _fetch(source, video, retry)
        return video
    file = source_bytes(source, retry)
    with video.open("wb") as copy, of_this_file():
        while chunk := file.read(_CHUNK_BYTES):
            copy.write(chunk)
    return video


@contextmanager
def of_this_file() -> Iterator[None]:
    """A context that turns errors of reading into errors of the video, unless the storage fails, which would affect
    other videos, too.

    Raises:
        VideoError: the file has another version, or cannot be read.
    """
    try:
        yield
    except (StorageUnavailable, AccessRefused, DiskFull):
        raise
    except DatasetError as error:
        raise VideoError(str(error).rstrip(".")) from error


def source_bytes(source: SourceVideo, retry: Retry) -> RangedFile:
    """The bytes of a source, of the version that was found; `retry` as in `local_video`."""
    start, size = source.part or (0, source.size)
    version = FileVersion(
        source.file_bytes or source.size, source.mark, source.hosts if not is_local(source.path) else ()
    )
    return RangedFile(ByteRange(source.path, start, start + size), version, retry)


def _fetch(source: SourceVideo, local: Path, retry: Retry) -> None:
    """Fetch a remote video. Errors as in `of_this_file`; OSError if it cannot be written."""
    with local.open("wb") as copy, of_this_file():

        def write(block: bytes, start: int) -> None:
            if start + len(block) > (most := source.size or _MOST_UNSIZED_BYTES):
                told = f"said that it has {most} bytes" if source.size else "gives no size"
                raise VideoError(
                    f"its server {told}, and sends more than {most}, as a live stream does: save what you want "
                    "of it as a file"
                )
            copy.seek(start)
            copy.write(block)

        # Some web servers give another size before than with the file: asking again would not help.
        length = source.size if has_ranges(source.path) else 0
        size = filesystem.fetch(source.path, write, length=length, mark=source.mark, retry=retry, link=Link())
        if source.size not in (0, size):
            raise VideoError(f"its server sends {size} bytes, and said before that it has {source.size}")
        copy.truncate(size)


def read_image(source: SourceVideo, file: Path) -> tuple[bytes, tuple[int, int]] | None:
    """The bytes of an image and the signature of its file; None if the source is a video.

    A file with an image's extension counts as a video if it has other content, or an animation that FFmpeg decodes.

    Args:
        file: a local file with its bytes.

    Raises:
        VideoError: the image is too large.
    """
    if not source.is_named_as_image or not file.is_file():
        return None
    with file.open("rb") as opened:
        head = opened.read(16)
        if not is_image(head):
            return None
        signature = file_signature(opened.fileno())
        if signature[0] > _MAX_IMAGE:
            raise VideoError(f"it is {signature[0] / 2**20:.0f} MiB large; the limit for an image is 1024")
        data = head + opened.read()
    try:
        read_header(data)
    except AnimationError:
        return None
    except ValueError:
        pass  # the error is raised when the clip is made
    return data, signature
