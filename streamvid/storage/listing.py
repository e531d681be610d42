"""Lists folders by fsspec without leaving out those that cannot be listed, and web servers by the links of pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.cached import CachingFileSystem

from streamvid.errors import DatasetError
from streamvid.storage.explain import explained
from streamvid.storage.part import answer_of, held
from streamvid.storage.url import redact, split_query
from streamvid.text import format_bytes

_PAGE_BYTES: Final = 64 << 20
"""Of a page of links that are read."""


def listed(fs: Any, method: str, *args: object, **options: object) -> Any:
    """The result of `find` or `glob` of a file system.

    fsspec's own walk leaves out a folder whose listing fails (OSError), as if it were empty, and gives no way to tell.
    So it walks a copy of the file system whose listings raise other errors. Storages with a walk of their own, such as
    S3, raise them anyway. Of web servers' pages it cuts names at an apostrophe, and keeps ``./`` and ``&amp;`` in them,
    so `_links` lists these.

    Raises:
        InputError, DatasetError: a folder cannot be listed. One that does not exist is left out, as a dead link is.
    """
    kind, prefix = (AsyncFileSystem, "_") if fs.async_impl else (AbstractFileSystem, "")
    own = getattr(type(fs), f"{prefix}find") is not getattr(kind, f"{prefix}find")
    if own or isinstance(fs, CachingFileSystem):  # the latter passes all on to another
        return getattr(fs, method)(*args, **options)
    copy = object.__new__(type(fs))
    vars(copy).update(vars(fs))
    ls = _links if hasattr(fs, "encode_url") else getattr(type(fs), f"{prefix}ls")

    @contextmanager
    def errors_raised(folder: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError:
            with explained(fs.unstrip_protocol(folder), "list"):
                raise

    def list_folder(folder: str, **how: Any) -> Any:
        with errors_raised(folder):
            return ls(copy, folder, **how)

    async def list_folder_async(folder: str, **how: Any) -> Any:
        with errors_raised(folder):
            return await ls(copy, folder, **how)

    if not fs.async_impl:
        vars(copy)["ls"] = list_folder
        return getattr(copy, method)(*args, **options)
    vars(copy)["_ls"] = list_folder_async
    return sync(fs.loop, getattr(copy, f"_{method}"), *args, **options)


class _Hrefs(HTMLParser):
    """The addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


async def _links(fs: Any, url: str, detail: bool = True, **_: Any) -> list[Any]:
    """What the links of a page lead to below it, as fsspec's listings have it."""
    async with answer_of(fs, url, {}) as answer:
        html = answer.headers.get("Content-Type", "text/html").partition(";")[0] == "text/html"
        data = await held(answer.content.read, _PAGE_BYTES) if html else b""
        if len(data) > _PAGE_BYTES:
            answer.close()  # do not wait for the rest
            long = f"the page of links {redact(url)} has more than {format_bytes(_PAGE_BYTES)}"
            raise DatasetError(f"{long}: name its files in a list")
    (page := _Hrefs()).feed(data.decode(errors="ignore"))
    (address, query), names = split_query(url), {}
    base = address.rstrip("/") + "/"
    for link in page.found:
        with suppress(ValueError):  # no address
            place, own = split_query(urldefrag(urljoin(base, link)).url)
            if place.startswith(base) and place != base:  # not another order of the same page
                # A token for a folder is good for what is in it. fsspec tells names apart by what follows the last /.
                name = place.rstrip("/") + (own or query).replace("/", "%2F")
                names[name] = {"name": name, "size": None, "type": "directory" if place.endswith("/") else "file"}
    return [*names.values()] if detail else [*names]
