"""Reads files on web servers in a fixed version: ranges with If-Range, and redirects only to allowed hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from fsspec.asyn import sync

from streamvid.errors import DatasetError
from streamvid.storage.client import locate
from streamvid.storage.explain import NO_ADDRESS, NO_RANGES, FileChangedError, NoRangesError, StorageUnavailable
from streamvid.storage.part import (
    HEAD_SECONDS,
    NO_SUCH_RANGE,
    TIMES,
    Part,
    body_of,
    first_byte,
    is_sendable,
    put_together,
    size_of,
)
from streamvid.storage.url import redact

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MOST_REDIRECTS: Final = 5


async def read_range(fs: Any, url: str, start: int, end: int, mark: str, hosts: Collection[str]) -> bytes:
    """Read bytes [start, end) of a file.

    Args:
        fs: fsspec's HTTP file system.
        url: URL of the file.
        start, end: the range, not empty.
        mark: ETag or Last-Modified that the file must have; "" is refused.
        hosts: hosts to which redirects may lead, besides the URL's own.

    Raises:
        FileChangedError: the file has another mark now.
        StorageUnavailable: the server does not say which bytes it sent; no checksum may tell.
        DatasetError: the server sends no ranges, or redirects to another host.
        Exceptions of aiohttp, as `streamvid.storage.explain` knows them.
    """
    if not is_sendable(mark):
        raise FileChangedError(f"{redact(url)} was changed since it was indexed: its index names no version of a file")
    headers = {"Accept-Encoding": "identity"}
    if not mark.startswith("W/"):  # a weak ETag matches nothing (RFC 9110, 13.1.5)
        headers["If-Range"] = mark

    async def read(first: int) -> Part:
        headers["Range"] = f"bytes={first}-{end - 1}"
        async with _answer(fs, url, headers, hosts) as answer:
            answer.raise_for_status()
            if mark_of(answer.headers) != mark:
                raise FileChangedError(
                    f"{redact(url)} was changed since it was indexed: its server has another version"
                )
            if answer.status != 206:
                raise NoRangesError(f"Cannot read {redact(url)}: {NO_RANGES}.")
            sent = answer.headers.get("Content-Range")
            if first_byte(sent) is None:
                raise StorageUnavailable(
                    f"Cannot read {redact(url)}: its server does not say which bytes it sent (Content-Range).",
                    path=redact(url),
                )
            data = await body_of(answer, url, first, end)
            return Part(data, mark, size_of(sent))

    return (await put_together(read, start, end)).data


def size_and_mark(url: str, hosts: Collection[str]) -> tuple[int, str]:
    """Size in bytes and mark of a file; arguments and errors as in `read_range`.

    They come with its first byte, not by HEAD: many servers answer that with another size, none, or an error, and URLs
    are signed for one method.
    """
    fs, name = locate(url, patient=True)

    async def ask() -> tuple[int, str]:
        headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
        for _ in range(TIMES):
            async with _answer(fs, name, headers, hosts) as answer:
                if answer.status != NO_SUCH_RANGE:  # of an empty file
                    answer.raise_for_status()
                whole = answer.status == 200
                size = answer.content_length if whole else size_of(answer.headers.get("Content-Range"))
                mark = mark_of(answer.headers)
            if not whole:
                break
        if size is None or not mark:
            raise DatasetError(
                f"Cannot notice changes of {redact(url)}: its server gives no size, ETag or Last-Modified."
            )
        return size, mark

    found: tuple[int, str] = sync(fs.loop, ask)
    return found


def mark_of(headers: Any) -> str:
    """The version mark of a file: its ETag or Last-Modified; "" if the server gives neither."""
    mark = str(headers.get("ETag") or headers.get("Last-Modified") or "")
    return mark if is_sendable(mark) else ""


@asynccontextmanager
async def _answer(fs: Any, url: str, headers: dict[str, str], hosts: Collection[str]) -> AsyncIterator[Any]:
    """The response to a GET, after redirects to allowed hosts."""
    session = await fs.set_session()
    own, at = urlsplit(url).hostname, url
    for _ in range(_MOST_REDIRECTS):
        async with asyncio.timeout(HEAD_SECONDS):
            answer = await session.get(fs.encode_url(at), headers=headers, allow_redirects=False)
        async with answer:
            if answer.status not in _REDIRECTS:
                yield answer
                return
            location = answer.headers.get("Location", "")
        try:
            at = urljoin(at, location)
            host = urlsplit(at).hostname
        except ValueError as error:
            raise DatasetError(f"Cannot read {redact(url)}: {NO_ADDRESS}.") from error
        if urlsplit(at).scheme not in ("http", "https") or (host != own and host not in hosts):
            raise DatasetError(
                f"Cannot read {redact(url)}: it redirects to another host, {redact(str(host))}; if that is meant, name "
                "it with roots= (--roots)."
            )
    raise DatasetError(f"Cannot read {redact(url)}: it redirects again and again; check the address.")
