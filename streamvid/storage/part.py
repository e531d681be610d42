"""Parts of files in storages other than S3: with what tells a version of a file, where there is something."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from streamvid.storage.explain import FileChangedError, status_of
from streamvid.storage.link import Link
from streamvid.storage.url import redact

_CHANGED: Final = 412
_SHORT: Final = 64 << 10
"""Bytes of a range that takes about as long as its latency."""


class Part(NamedTuple):
    """A part of a file, as its storage gave it.

    Attributes:
        data: its bytes.
        mark: of the file's version, "" for none: ETag, or generation.
        size: of the file in bytes, if the answer says it.
    """

    data: bytes
    mark: str
    size: int | None = None


async def read_part(fs: Any, name: str, start: int, end: int, mark: str, link: Link) -> Part:
    """Bytes [start, end) of a file by a client of fsspec: by ``ifGenerationMatch`` in Google's storage, If-Match in
    Azure's; others know no such condition.

    Args:
        fs: an asynchronous file system.
        mark: that the file must have, "" for any.
        link: is told how long a short one took.

    Raises:
        FileChangedError: it has another mark now.
        Exceptions of the client.
    """
    begin = time.perf_counter()
    try:
        return await _read(fs, name, start, end, mark)
    except Exception as error:
        if mark and (status_of(error) == _CHANGED or isinstance(error, FileExistsError)):  # the latter is gcsfs'
            raise changed(fs.unstrip_protocol(name), mark) from None
        raise
    finally:
        if end - start < _SHORT:
            link.measured(time.perf_counter() - begin, 0, 0.0)


async def _read(fs: Any, name: str, start: int, end: int, mark: str) -> Part:
    if "gs" in fs.protocol:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        condition = {"ifGenerationMatch": mark} if mark else {}
        answer, data = await fs._call("GET", fs.url(name), headers=headers, **condition)
        return Part(data, str(answer.get("X-Goog-Generation", "")))
    if "az" in fs.protocol:
        return await _of_azure(fs, name, start, end, mark)
    return Part(await fs._cat_file(name, start=start, end=end), "")


async def _of_azure(fs: Any, name: str, start: int, end: int, mark: str) -> Part:
    from azure.core import MatchConditions

    container, blob, version = fs.split_path(name)
    condition = {"etag": mark, "match_condition": MatchConditions.IfNotModified} if mark else {}
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        stream = await client.download_blob(offset=start, length=end - start, version_id=version, **condition)
        return Part(await stream.readall(), str(stream.properties.etag or ""), stream.properties.size)


def changed(url: str, known: str, now: str = "") -> FileChangedError:
    """The error of a file that is another one now."""
    return FileChangedError(
        f"{redact(url)} has changed while it was being read: its ETag was {known}{f' and is {now}' if now else ''}; "
        "go back to the version that the run began with, or start it anew"
    )
