"""One source, local or remote, → the clips made from it. Runs in worker processes, and so imports little."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from streamvid.errors import DatasetError, StreamvidError, VideoError
from streamvid.packing.sources import Source
from streamvid.packing.treatment import Piece, Treatment
from streamvid.store import storage
from streamvid.store.paths import local_path
from streamvid.store.schema import MAX_FILE_BYTES
from streamvid.video.remux import store_clip

log = logging.getLogger(__name__)

# Errors of the machine, not of the video: they end the packing rather than reject one video after another.
_NOT_THE_VIDEO: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def store_source(source: Source, place: Path, treatment: Treatment) -> list[Piece]:
    """Fetch one video and make its clips.

    Args:
        source: what to store.
        place: a folder to make for it; the caller removes it.
        treatment: what to do to it.

    Raises:
        VideoError: the video is to blame.
        OSError, StreamvidError: the machine or the storage is, and other videos would fare no better.
    """
    place.mkdir()
    try:
        if storage.is_local(source.path):
            video = Path(local_path(source.path))
        else:
            video = place / "source"
            _fetch(source.path, video)
        clip = store_clip(video, place)
        size = clip.mp4.stat().st_size
        if size > MAX_FILE_BYTES:
            raise VideoError(f"it is {size / 2**30:.1f} GiB large, and a tar holds files below 8 GiB: split it")
        if video.parent == place:
            video.unlink()
        return [Piece(clip, "", source.meta)]
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


def _fetch(path: str, local: Path) -> None:
    """A remote video; one that is not there is rejected, while a storage that does not answer ends the packing."""
    try:
        storage.get_file(path, local)
    except storage.StorageUnavailable:
        raise
    except DatasetError as error:
        if not storage.exists(path):
            raise VideoError(str(error)) from error
        raise
