"""Reads parts of files in storages other than S3, with the version mark of the file if the storage has one."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from streamvid.errors import DatasetError
from streamvid.storage.explain import FileChangedError, NoRangesError, StorageUnavailable, refusal, status_of
from streamvid.storage.link import Link
from streamvid.storage.url import redact

T = TypeVar("T")

_CHANGED: Final = 412
NO_SUCH_RANGE: Final = 416
"""The status of a response to a range beyond the end, and so to every range of an empty file."""
HEAD_SECONDS: Final = 60.0
"""Most seconds for the head of a response."""
_PACE_SECONDS: Final = 60.0
PACE_BYTES: Final = 16 << 10
"""A response of which fewer bytes arrive in that time counts as stalled."""
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-")
_SIZE: Final = re.compile(r"bytes [0-9*-]{1,40}/([0-9]{1,18})", re.ASCII)
_VERSION: Final = re.compile(r"[ -~]{1,300}")
_CODINGS: Final = ("gzip", "x-gzip", "deflate", "br", "zstd")
_LEAST_BYTES: Final = 512
TIMES: Final = 3
"""How often a range is requested of a server that sends the whole file, as a cache on the way does that has none of it
yet."""
_SHORT: Final = 64 << 10
"""Size of a range whose transfer takes about as long as its latency."""


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
    """Read bytes [start, end) of a file with a client of fsspec, on the condition ``ifGenerationMatch`` in Google's
    storage and If-Match in Azure's; other storages have no such condition.

    Args:
        fs: an asynchronous file system.
        mark: version mark that the file must have, "" for any.
        link: records how long a short request took.

    Raises:
        FileChangedError: the file has another mark now.
        Exceptions of the client.
    """
    begin = time.perf_counter()
    try:
        return await _read(fs, name, start, end, mark, link)
    except Exception as error:
        if mark and (status_of(error) == _CHANGED or isinstance(error, FileExistsError)):  # the latter: gcsfs
            raise changed(fs.unstrip_protocol(name), mark) from None
        raise
    finally:
        if end - start < _SHORT:
            link.measured(time.perf_counter() - begin, 0, 0.0)


async def _read(fs: Any, name: str, start: int, end: int, mark: str, link: Link) -> Part:
    if "gs" in fs.protocol:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        condition = {"ifGenerationMatch": mark} if mark else {}
        answer, data = await fs._call("GET", fs.url(name), headers=headers, **condition)
        return Part(data, str(answer.get("X-Goog-Generation", "")))
    if "az" in fs.protocol:
        return await _of_azure(fs, name, start, end, mark)
    if "http" in fs.protocol:
        return await _of_web(fs, name, start, end, link)
    return Part(await fs._cat_file(name, start=start, end=end), "")


async def _of_web(fs: Any, url: str, start: int, end: int, link: Link) -> Part:
    host = urlsplit(url).netloc

    async def read(first: int) -> Part:
        async with answer_of(fs, url, {"Range": f"bytes={first}-{end - 1}"}) as answer:
            if answer.status == NO_SUCH_RANGE:
                return behind_end(url, first, answer.headers)._replace(mark="")
            if answer.headers.get("Content-Encoding") in _CODINGS and answer.status == 206:
                answer.close()
                raise NoRangesError.of(url)  # these are bytes of the compressed file
            data = await body_of(answer, url, first, end, ranged=host in link.ranged)
            if answer.status == 206:
                link.ranged.add(host)
            return Part(data, "", size_of(answer.headers.get("Content-Range")) if answer.status == 206 else None)

    return await put_together(read, start, end)


async def put_together(read: Callable[[int], Awaitable[Part]], start: int, end: int) -> Part:
    """The part of a file from `start` to `end`, or to the end of the file, of a server that may send fewer bytes than
    were requested (RFC 9110, 15.3.7): what follows is requested next.

    Args:
        read: requests the bytes from an offset to `end`. A response of less than `_LEAST_BYTES` is the last one.
    """
    part, data = await read(start), bytearray()
    while len(part.data) >= _LEAST_BYTES and (at := start + len(data) + len(part.data)) < min(end, part.size or 0):
        data += part.data
        part = await read(at)
    return part._replace(data=bytes(data) + part.data) if data else part


async def retried_for_range(read: Callable[[], Awaitable[T]]) -> T:
    """The result of a request for a range, repeated up to `TIMES` times if the whole file comes (NoRangesError)."""
    for _ in range(TIMES - 1):
        with contextlib.suppress(NoRangesError):
            return await read()
    return await read()


async def read_from_whole(fs: Any, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Ranges of a file on a web server without range support, cut out of the whole file as it arrives; only the ranges
    are kept in memory."""
    blocks, at, last = [bytearray() for _ in ranges], 0, max(end for _, end in ranges)
    async with answer_of(fs, url, {}) as answer:
        pace = Pace(answer)
        try:
            while at < last and (piece := await answer.content.readany()):
                for block, (start, end) in zip(blocks, ranges, strict=True):
                    block += piece[max(0, start - at) : max(0, end - at)]
                at += len(piece)
        finally:
            pace.end()
            answer.close()  # do not wait for the rest of the body
    return [bytes(block) for block in blocks]


@asynccontextmanager
async def answer_of(fs: Any, url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """A web server's response with status 200, 206 or 416."""
    options = dict(fs.kwargs)
    options["headers"] = {**options.get("headers", {}), "Accept-Encoding": "identity", **headers}
    session = await fs.set_session()
    async with asyncio.timeout(HEAD_SECONDS):
        answer = await session.get(fs.encode_url(url), **options)
    async with answer:
        if answer.status == 404:
            raise FileNotFoundError(url)
        if answer.status not in (200, 206, NO_SUCH_RANGE):
            raise await refusal(answer)
        yield answer


async def body_of(answer: Any, url: str, start: int, end: int, *, ranged: bool = False) -> bytes:
    """The body of an aiohttp response to a request for bytes [start, end), fewer if the file ends. Never keeps more
    than that in memory, whatever the server sends. Arguments and errors as in `check_range`."""
    headers, most, length = answer.headers, end - start, answer.content_length
    try:
        check_range(url, start, end, answer.status, headers.get("Content-Range"), length, ranged=ranged)
        pace = Pace(answer)
        try:
            if length is not None and "Content-Encoding" not in headers:
                data: bytes = await answer.read()
                return data
            data = await held(answer.content.read, most)
        finally:
            pace.end()
        check_range(url, start, end, answer.status, None, len(data), ranged=ranged)
        return data
    except DatasetError:
        answer.close()  # do not wait for the rest of the body
        raise


async def held(read: Callable[[int], Awaitable[bytes]], most: int) -> bytes:
    """The bytes of a stream, read by `read`, which returns at most the given number of bytes; if there are more than
    `most`, one byte more."""
    pieces = bytearray()
    while len(pieces) <= most and (piece := await read(most + 1 - len(pieces))):
        pieces += piece
    return bytes(pieces)


class Pace:
    """Gives up an aiohttp response whose body drips, since each byte would restart the timeout for stalls."""

    def __init__(self, answer: Any) -> None:
        self._answer, self._seen = answer, answer.content.total_bytes
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PACE_SECONDS, self._look)

    def _look(self) -> None:
        came, self._seen = self._answer.content.total_bytes - self._seen, self._answer.content.total_bytes
        if came < PACE_BYTES:
            self._answer.content.set_exception(TimeoutError(f"{came} bytes came in {_PACE_SECONDS:.0f} s"))
            self._answer.close()
        else:
            self._timer = self._loop.call_later(_PACE_SECONDS, self._look)

    def end(self) -> None:
        """The body has come, or failed."""
        self._timer.cancel()


def behind_end(url: str, start: int, headers: Mapping[str, str]) -> Part:
    """The empty part for a response with status 416: the file ends before the range. Raises StorageUnavailable if the
    response's own size contradicts that."""
    size = size_of(headers.get("Content-Range") or headers.get("content-range"))
    if size is not None and size > start:
        raise StorageUnavailable(
            f"Cannot read {redact(url)}: the storage answers {NO_SUCH_RANGE} to a range from {start} on of {size} "
            "bytes; look for what changes answers on their way.",
            path=redact(url),
        )
    return Part(b"", version(headers), size)


def first_byte(content_range: str | None) -> int | None:
    """The offset of a response's first byte from its Content-Range; None if it does not give it."""
    found = _CONTENT_RANGE.match(content_range or "")
    return int(found[1]) if found else None


def size_of(content_range: str | None) -> int | None:
    """The size of a file from a Content-Range; None if it does not give it."""
    found = _SIZE.fullmatch(content_range or "")
    return int(found[1]) if found else None


def version(headers: Mapping[str, Any]) -> str:
    """The ETag of a response; "" if it has none that can be sent back."""
    etag = str(headers.get("ETag") or "")
    return etag if is_sendable(etag) else ""


def is_sendable(mark: str) -> bool:
    """Whether a mark from a server or a dataset can be put into requests and messages."""
    return bool(_VERSION.fullmatch(mark))


def check_range(
    url: str, start: int, end: int, status: int, sent: str | None, length: int | None, *, ranged: bool = False
) -> None:
    """Check the response to a request for a range before its body is read.

    Args:
        url: URL of the file, for errors.
        start, end: the range, not empty.
        status: below 300.
        sent: the response's Content-Range.
        length: length of its body; None if unknown.
        ranged: whether the server is known to support ranges.

    Raises:
        StorageUnavailable: the response has other bytes of the file.
        NoRangesError: the response has more than was requested, because the server does not support ranges;
            StorageUnavailable if it is known to.
    """
    first = first_byte(sent)
    other = status == 206 and first not in (None, start)
    if not other and not (status == 200 and start) and (length or 0) <= end - start:
        return
    if not other and not ranged:
        raise NoRangesError.of(url)
    what = f"bytes from {first} on" if other else "more"
    raise StorageUnavailable(
        f"Cannot read {redact(url)}: the storage sent {what}, where {start} to {end} were asked for; look for what "
        "changes answers on their way.",
        path=redact(url),
    )


async def _of_azure(fs: Any, name: str, start: int, end: int, mark: str) -> Part:
    from azure.core import MatchConditions

    container, blob, version = fs.split_path(name)
    condition = {"etag": mark, "match_condition": MatchConditions.IfNotModified} if mark else {}
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        stream = await client.download_blob(offset=start, length=end - start, version_id=version, **condition)
        return Part(await stream.readall(), str(stream.properties.etag or ""), stream.properties.size)


def changed(url: str, known: str, now: str = "") -> FileChangedError:
    """The error for a file whose version has changed."""
    return FileChangedError(
        f"{redact(url)} has changed while it was being read: its ETag was {known}{f' and is {now}' if now else ''}; "
        "restore the version that the run began with, or start the run again"
    )
