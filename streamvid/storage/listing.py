"""Lists folders by fsspec without leaving out those that cannot be listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.cached import CachingFileSystem

from streamvid.storage.explain import explained


def listed(fs: Any, method: str, *args: object, **options: object) -> Any:
    """The result of `find` or `glob` of a file system.

    fsspec's own walk leaves out a folder whose listing fails (OSError), as if it were empty, and gives no way to tell.
    So it walks a copy of the file system whose listings raise other errors. Storages with a walk of their own, such as
    S3, raise them anyway.

    Raises:
        InputError, DatasetError: a folder cannot be listed. One that does not exist is left out, as a dead link is.
    """
    kind, prefix = (AsyncFileSystem, "_") if fs.async_impl else (AbstractFileSystem, "")
    own = getattr(type(fs), f"{prefix}find") is not getattr(kind, f"{prefix}find")
    if own or isinstance(fs, CachingFileSystem):  # the latter passes all on to another
        return getattr(fs, method)(*args, **options)
    copy = object.__new__(type(fs))
    vars(copy).update(vars(fs))
    ls = getattr(type(fs), f"{prefix}ls")

    @contextmanager
    def errors_raised(folder: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError:
            with explained(fs.unstrip_protocol(folder), "list"):
                raise

    def list_folder(folder: str, **how: object) -> Any:
        with errors_raised(folder):
            return ls(copy, folder, **how)

    async def list_folder_async(folder: str, **how: object) -> Any:
        with errors_raised(folder):
            return await ls(copy, folder, **how)

    if not fs.async_impl:
        vars(copy)["ls"] = list_folder
        return getattr(copy, method)(*args, **options)
    vars(copy)["_ls"] = list_folder_async
    return sync(fs.loop, getattr(copy, f"_{method}"), *args, **options)
