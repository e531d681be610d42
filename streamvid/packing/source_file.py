"""The bytes of a source: a local file, or a local copy of a remote one. The bytes of an image, which is a clip of one
frame, are stored unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamvid.bitstream.image import AnimationError, is_image, read_header
from streamvid.errors import DatasetError, VideoError
from streamvid.packing.inputs import SourceVideo
from streamvid.storage import filesystem
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.ranged_file import RangedFile
from streamvid.storage.url import is_local, local_path
from streamvid.video.containers import IMAGE_EXTENSIONS
from streamvid.video.stored_clip import file_signature

_CHUNK_BYTES: Final = 32 << 20
_MAX_IMAGE: Final = 1 << 30
"""Most bytes of an image file."""


def local_video(source: SourceVideo, folder: Path) -> Path:
    """The local file of a source, or a copy in a folder if it is remote, or a part of a file.

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
        _fetch(source.path, video)
        return video
    file = source_bytes(source)
    with video.open("wb") as copy:
        while chunk := _read(file):
            copy.write(chunk)
    return video


def _read(file: RangedFile) -> bytes:
    with of_this_file():
        return file.read(_CHUNK_BYTES)


@contextmanager
def of_this_file() -> Iterator[None]:
    """A context that turns errors of reading into errors of the video, unless the storage fails, which would affect
    other videos, too.

    Raises:
        VideoError: the file has another version, or cannot be read.
    """
    try:
        yield
    except (StorageUnavailable, AccessRefused):
        raise
    except DatasetError as error:
        raise VideoError(str(error).rstrip(".")) from error


def source_bytes(source: SourceVideo) -> RangedFile:
    """The bytes of a source, of the version that was found."""
    start, size = source.part or (0, source.size)
    version = FileVersion(
        source.file_bytes or source.size, source.mark, source.hosts if not is_local(source.path) else ()
    )
    return RangedFile(ByteRange(source.path, start, start + size), version)


def _fetch(path: str, local: Path) -> None:
    """Fetch a remote video. Raises VideoError if it does not exist, DatasetError if its storage fails."""
    try:
        filesystem.get_file(path, local)
    except StorageUnavailable:
        raise
    except DatasetError as error:
        if not filesystem.exists(path):
            raise VideoError(str(error)) from error
        raise


def read_image(source: SourceVideo, file: Path) -> tuple[bytes, tuple[int, int]] | None:
    """The bytes of an image and the signature of its file; None if the source is a video.

    A file with an image's extension counts as a video if it has other content, or an animation that FFmpeg decodes.

    Args:
        file: a local file with its bytes.

    Raises:
        VideoError: the image is too large.
    """
    if not source.name.lower().endswith(IMAGE_EXTENSIONS) or not file.is_file():
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
