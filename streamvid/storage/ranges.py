"""Byte ranges of files in any storage, side by side; what fails is asked for again, range by range."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final, cast

from fsspec.asyn import sync

from streamvid.errors import DatasetError
from streamvid.storage.client import is_s3, locate, renew_credentials
from streamvid.storage.explain import AccessRefused, StorageUnavailable, explained
from streamvid.storage.retry import Retry, Trouble
from streamvid.storage.url import AnyPath, redact

_CONCURRENT: Final = 32
"""Ranges of one bucket that are requested at the same time."""

Range = tuple[AnyPath, int, int]


def read_ranges(ranges: Sequence[Range], *, retry: Retry, etags: dict[str, str] | None = None) -> list[bytes]:
    """Bytes [start, end) of files, requested concurrently where the storage supports it; shorter where a file ends.

    Args:
        ranges: path, start and end of each.
        retry: for how long; a range that comes shorter than the file allows is asked for again, too.
        etags: the ETags of objects, by path. Those that are not in it yet are put there.

    Raises DatasetError or InputError, which names the first file that cannot be read, or has another ETag now.
    """
    seen: dict[str, str] = {} if etags is None else etags
    refused: set[str] = set()

    def attempt(left: Sequence[Range]) -> list[bytes | Trouble]:
        renew_credentials(refused)
        outcomes = _read_ranges(left, seen)
        for (path, _, _), outcome in zip(left, outcomes, strict=True):
            if isinstance(outcome, AccessRefused):
                refused.add(os.fspath(path))
        return outcomes

    return retry.each(ranges, attempt)


def _read_ranges(ranges: Sequence[Range], etags: dict[str, str]) -> list[bytes | Trouble]:
    """The ranges, or errors after which it may be tried again. Raises all other errors."""
    found: dict[int, bytes | BaseException] = {}
    by_storage: dict[int, tuple[Any, list[int], list[str]]] = {}
    for number, (path, _, _) in enumerate(ranges):
        with explained(path, "read"):
            fs, name = locate(path, patient=True)
        _, numbers, names = by_storage.setdefault(id(fs), (fs, [], []))
        numbers.append(number)
        names.append(name)
    for fs, numbers, names in by_storage.values():
        starts, ends = [ranges[n][1] for n in numbers], [ranges[n][2] for n in numbers]
        blocks: Sequence[Any]
        try:
            if is_s3(fs):
                blocks = _s3_ranges(fs, list(zip(names, starts, ends, strict=True)), etags)
            else:
                blocks = fs.cat_ranges(names, starts, ends, on_error="return")
        except Exception as error:
            blocks = [error] * len(numbers)
        found.update(zip(numbers, blocks, strict=True))
    outcomes: list[bytes | Trouble] = []
    for number, (path, start, end) in enumerate(ranges):
        block = found[number]
        try:
            with explained(path, "read"):
                if isinstance(block, BaseException):
                    raise block
                if len(block) != end - start:
                    _check_length(path, len(block), start, end)
            outcomes.append(bytes(block))
        except (StorageUnavailable, AccessRefused) as error:
            outcomes.append(error)
    return outcomes


def _check_length(path: AnyPath, found: int, start: int, end: int) -> None:
    """Raise an error for a range of another length than asked for, unless the file ends there."""
    shown = redact(path)
    if found > end - start:
        raise DatasetError(f"Cannot read {shown}: its server does not answer requests for ranges of bytes.")
    fs, name = locate(path, patient=True)
    if (fs.info(name).get("size") or 0) >= min(end, start + found + 1):
        error = StorageUnavailable(
            f"Cannot read {shown}: the storage sent {found} of {end - start} bytes; check the network, then try again."
        )
        error.path = shown
        raise error


def _s3_ranges(fs: Any, ranges: Sequence[tuple[str, int, int]], etags: dict[str, str]) -> list[bytes | BaseException]:
    """Ranges of objects, requested side by side, with their ETags compared. Empty ranges are not asked for."""

    async def read(name: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        bucket, key, version = fs.split_path(name)
        options = {"VersionId": version} if version else {}
        await fs.set_session()
        s3 = await fs.get_s3(bucket)
        # Keys that the user has configured for encrypted objects are needed for reading, too.
        options |= fs.req_kw | {name: one for name, one in fs.s3_additional_kwargs.items() if "Customer" in name}
        response = await s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **options)
        try:
            data: bytes = await response["Body"].read()
        finally:
            response["Body"].close()
        etag = str(response.get("ETag", ""))
        if (known := etags.setdefault(name, etag)) != etag:
            raise DatasetError(
                f"s3://{name} has changed while it was being read: its ETag was {known} and is {etag}; "
                "go back to the version that the run began with, or start it anew"
            )
        return data

    async def read_all() -> list[bytes | BaseException]:
        permits = asyncio.Semaphore(_CONCURRENT)

        async def one(name: str, start: int, end: int) -> bytes:
            async with permits:
                return await read(name, start, end)

        return await asyncio.gather(*(one(*wanted) for wanted in ranges), return_exceptions=True)

    return cast(list[bytes | BaseException], sync(fs.loop, read_all))
