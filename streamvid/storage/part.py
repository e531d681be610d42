"""Parts of files in storages other than S3: with what tells a version of a file, where there is something."""

from __future__ import annotations

import re
import time
from typing import Any, Final, NamedTuple

from streamvid.errors import DatasetError
from streamvid.storage.explain import FileChangedError, StorageUnavailable, status_of
from streamvid.storage.link import Link
from streamvid.storage.url import redact

_CHANGED: Final = 412
_NO_SUCH_RANGE: Final = 416
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-")
_SHORT: Final = 64 << 10
"""Bytes of a range that takes about as long as its latency."""


class Part(NamedTuple):
    """A part of a file, with the version and size of the file.

    Attributes:
        data: the part's bytes.
        mark: mark of the file's version (ETag or generation); "" for none.
        size: bytes of the whole file, if the answer has it.
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
    if "http" in fs.protocol:
        return await _of_web(fs, name, start, end)
    return Part(await fs._cat_file(name, start=start, end=end), "")


async def _of_web(fs: Any, url: str, start: int, end: int) -> Part:
    options = dict(fs.kwargs)
    options["headers"] = {**options.get("headers", {}), "Range": f"bytes={start}-{end - 1}"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), **options) as answer:
        if answer.status == _NO_SUCH_RANGE:
            return Part(b"", "")
        if answer.status == 404:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        return Part(await body_of(answer, url, start, end), "")


async def body_of(answer: Any, url: str, start: int, end: int, *, ranged: bool = False) -> bytes:
    """The body of an answer of aiohttp to a request for bytes [start, end), fewer where the file ends. No more than
    that is ever held, whatever the server sends. Arguments and errors as of `check_range`."""
    headers, most, length = answer.headers, end - start, answer.content_length
    try:
        check_range(url, start, end, answer.status, headers.get("Content-Range"), length, ranged=ranged)
        if length is not None and "Content-Encoding" not in headers:
            data: bytes = await answer.read()
            return data
        pieces = bytearray()
        while len(pieces) <= most and (piece := await answer.content.read(most + 1 - len(pieces))):
            pieces += piece
        check_range(url, start, end, answer.status, None, len(pieces), ranged=ranged)
        return bytes(pieces)
    except DatasetError:
        answer.close()  # do not wait for the rest of the body
        raise


def check_range(
    url: str, start: int, end: int, status: int, sent: str | None, length: int | None, *, ranged: bool = False
) -> None:
    """Look at an answer to a request for a range before its body is read.

    Args:
        url: of the file, for errors.
        start, end: the range, not empty.
        status: below 300.
        sent: its Content-Range.
        length: of its body, as far as it is known.
        ranged: the server is known to answer with ranges.

    Raises:
        StorageUnavailable: these are other bytes of the file.
        DatasetError: it is more than was asked for: the server answers no requests for ranges. StorageUnavailable if
            it is known to do.
    """
    found = _CONTENT_RANGE.match(sent or "")
    other = status == 206 and found is not None and int(found[1]) != start
    if not other and not (status == 200 and start) and (length or 0) <= end - start:
        return
    shown = redact(url)
    if not other and not ranged:
        raise DatasetError(f"Cannot read {shown}: its server does not answer requests for ranges of bytes.")
    what = f"bytes from {found[1]} on" if other and found else "more"
    error = StorageUnavailable(
        f"Cannot read {shown}: the storage sent {what}, where {start} to {end} were asked for; look for what changes "
        "answers on their way."
    )
    error.path = shown
    raise error


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
