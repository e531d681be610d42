"""Reads local sources again while the storage that is mounted there does not answer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from streamvid.errors import InputError, StreamvidError, VideoError
from streamvid.host import BROKEN_ERRNOS
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.readable import readable
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, local_path
from streamvid.video.stored_clip import StoredClip

T = TypeVar("T")


def patiently(path: str, folder: Path, process: Callable[[], T], retry: Retry) -> T:
    """Call `process`, which reads a source, and again while its local storage does not answer. A sector that the disk
    cannot read is an error of this video.

    Args:
        path: path or URL of the source; `process` itself is patient with a remote one.
        folder: folder of its temporary files, for whose storage it is waited, too.

    Raises:
        VideoError: by `process`, or the disk cannot read a part of the file.
        StorageUnavailable: the storage did not answer for as long as `retry` says.
        OSError, StreamvidError: by `process`.
    """
    again = False  # whether there was a VideoError before

    def attempt() -> T | StreamvidError:
        nonlocal again
        try:
            return process()
        except (StreamvidError, OSError) as error:
            what = broken(error)
            if what and isinstance(error, OSError) and folder in Path(str(error.filename)).parents:
                raise unavailable(error.filename, what) from error
            fault = _at_fault(path, error, again=again)
            again = again or isinstance(error, VideoError)
            if fault in ("storage", "either"):
                named = path if fault == "storage" else f"{path}, or a file in {folder},"
                raise unavailable(named, what or str(error)) from error
            if fault == "disk":
                return VideoError(f"the disk cannot read a part of it ({what}): check the disk")
            if isinstance(error, StreamvidError):
                return error
            raise

    made = retry(attempt)
    if isinstance(made, StreamvidError):
        raise made
    return made


def _at_fault(path: str, error: Exception, *, again: bool) -> Literal["storage", "either", "disk", "video"]:
    """What an error of a source is due to: its storage is away, or that of temporary files, its disk cannot read it, or
    anything else.

    Args:
        again: whether it is not the first VideoError.
    """
    failed, of_video = bool(broken(error)), isinstance(error, VideoError)
    if not is_local(path) or not (failed or of_video):
        return "video"
    part = readable(local_path(path), whole=failed)
    if part == "none":
        return "storage"
    if part == "some" and failed:
        return "disk"
    if not of_video:
        return "either"
    # FFmpeg says EIO of damaged files, too.
    return "storage" if part == "all" and failed and not again else "video"


def read_mp4(clip: StoredClip, retry: Retry) -> Iterator[memoryview | bytes]:
    """`StoredClip.read_mp4`, which goes on where it was when a mounted storage answers again."""
    done, chunks = 0, clip.read_mp4()

    def following() -> memoryview | bytes | None:
        nonlocal chunks
        try:
            return next(chunks, None)
        except InputError as error:
            if not (what := broken(error)):
                raise
            chunks = itertools.islice(clip.read_mp4(), done, None)
            raise unavailable(str(clip.mp4), what) from error

    while (chunk := retry(following)) is not None:
        done += 1
        yield chunk


def broken(error: BaseException) -> str | None:
    """The system's message if an error is due to a storage that does not answer; else None."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno in BROKEN_ERRNOS else None


def unavailable(path: str, what: str) -> StorageUnavailable:
    """The error for a file or folder whose storage does not answer."""
    return StorageUnavailable(
        f"{path} cannot be read or written ({what}): check the disk, or the network if it is mounted from there."
    )
