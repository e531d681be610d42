"""Reads byte ranges of files in any storage concurrently, and retries failed ranges one by one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

from fsspec.asyn import sync

from streamvid.errors import DatasetError
from streamvid.storage import http_ranges
from streamvid.storage.byte_range import PART_BYTES, FileVersion
from streamvid.storage.client import in_s3, is_s3, locate, renew_credentials
from streamvid.storage.explain import (
    AccessRefused,
    FileChangedError,
    MissingFile,
    NoRangesError,
    StorageUnavailable,
    explained,
)
from streamvid.storage.link import Link
from streamvid.storage.part import Part, changed, is_sendable, read_from_whole, read_part, retried_for_range
from streamvid.storage.retry import Retry, Trouble
from streamvid.storage.s3_ranges import S3Ranges
from streamvid.storage.url import AnyPath, redact

log = logging.getLogger(__name__)

Range = tuple[AnyPath, int, int]
_WINDOW_BYTES: Final = 4 * PART_BYTES


def read_ranges(ranges: Sequence[Range], *, retry: Retry) -> list[bytes]:
    """`RemoteRanges.read` for a single call."""
    return RemoteRanges().read(ranges, retry=retry)


class RemoteRanges:
    """Reads byte ranges of files in any storage, and remembers ETags, sizes, signed URLs and times of requests.

    Thread-safe; usable in forked children.

    Args:
        link: measurements of the storage, shared with other readers; default: a new one.
        expected: version marks of files by path; ranges of objects in S3 are requested with theirs (If-Match).

    Attributes:
        link: measurements of the storage.
        from_whole_files: whether ranges of files on web servers without range support are cut out of whole files. If
            not, they are an error, since each read would transfer the whole file.
    """

    def __init__(self, link: Link | None = None, expected: Mapping[AnyPath, str] | None = None) -> None:
        self.link = link or Link()
        given = {path: mark for path, mark in (expected or {}).items() if in_s3(path)}
        self._marks: dict[str, str] = {_url(*locate(path, patient=True)): mark for path, mark in given.items()}
        self._told: dict[str, tuple[str, str, int | None]] = {}
        self._doubted: set[str] = set()
        self._sizes: dict[str, int] = {}
        self.from_whole_files = False
        self._hosts_without_ranges: set[str] = set()
        self._first: dict[tuple[int, str], tuple[int, asyncio.Event]] = {}
        self._s3 = S3Ranges()

    def tell(self, folder: str, files: Mapping[str, tuple[str, int | None]]) -> None:
        """Take the ETags and sizes that a dataset in S3 records for its objects. First ranges are requested with the
        ETag (If-Match). A copy of the dataset may have other ETags: if one object does, all ETags of the dataset are
        learned from the objects instead.

        Args:
            folder: the dataset's URL.
            files: for each path below the folder, the ETag with quotes, and the size in bytes if known.
        """
        if files and in_s3(folder):
            prefix = _url(*locate(folder, patient=True))
            self._told |= {f"{prefix}/{name}": (prefix, *details) for name, details in files.items()}

    def read_object(self, path: AnyPath, *, most: int, retry: Retry, tries: int = 3) -> bytes:
        """Read a whole object in S3. The response with the first part has the size, so that a short object takes one
        request. An object that is replaced meanwhile is read again. Errors as in `read`, and DatasetError if it has
        more than `most` bytes."""
        (beginning,) = self.read([(path, 0, PART_BYTES)], retry=retry)
        size = self._sizes.get(_url(*locate(path, patient=True)), len(beginning))
        if size > most:
            raise DatasetError(f"Cannot read {redact(path)}: it has {size} bytes, where {most} are the most.")
        starts = range(PART_BYTES, size, PART_BYTES)
        try:
            rest = self.read([(path, start, min(start + PART_BYTES, size)) for start in starts], retry=retry)
        except FileChangedError:
            if tries == 1:
                raise
            return RemoteRanges(self.link).read_object(path, most=most, retry=retry, tries=tries - 1)
        return b"".join([beginning, *rest])

    def read(
        self,
        ranges: Sequence[Range],
        *,
        retry: Retry,
        versions: Mapping[str, FileVersion] | None = None,
        turn: int = 0,
    ) -> list[bytes]:
        """Read bytes [start, end) of files, concurrently if the storage's client supports it; shorter if a file ends.

        Args:
            ranges: path, start and end of each.
            retry: for how long requests are repeated for ranges that failed, or came shorter than the file's size
                allows.
            versions: by path, the version that a file must have.
            turn: the step of the loop that needs them; requests of earlier steps go first.

        Raises DatasetError or InputError, which names the first file that cannot be read, or has another ETag than at
        its first range.
        """
        refused: set[str] = set()

        def attempt(left: Sequence[Range]) -> list[bytes | Trouble]:
            if refused:
                self._s3 = S3Ranges()  # signs anew
            renew_credentials(refused)
            outcomes = self._read_once(left, versions or {}, turn)
            for (path, _, _), outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, AccessRefused):
                    refused.add(os.fspath(path))
            return outcomes

        return retry.each(ranges, attempt)

    def copy(self, path: AnyPath, size: int, write: Callable[[bytes, int], object], *, retry: Retry) -> None:
        """Hand a whole file of `size` bytes to `write`, from front to back, with the offset of each block, and with
        `_WINDOW_BYTES` in memory at most. Errors as in `read`, and those of `write`."""
        for first in range(0, size, _WINDOW_BYTES):
            last = min(first + _WINDOW_BYTES, size)
            parts = [(path, start, min(start + PART_BYTES, last)) for start in range(first, last, PART_BYTES)]
            for (_, start, _), block in zip(parts, self.read(parts, retry=retry), strict=True):
                write(block, start)

    def _read_once(
        self, ranges: Sequence[Range], versions: Mapping[str, FileVersion], turn: int
    ) -> list[bytes | Trouble]:
        """The ranges, or errors that may be retried. Raises all other errors."""
        found: dict[int, bytes | BaseException] = {}
        by_storage: dict[int, tuple[Any, list[int], list[str]]] = {}
        located: dict[AnyPath, tuple[Any, str]] = {}
        for number, (path, _, _) in enumerate(ranges):
            if path not in located:
                with explained(path, "read"):
                    located[path] = locate(path, patient=True)
            fs, name = located[path]
            _, numbers, names = by_storage.setdefault(id(fs), (fs, [], []))
            numbers.append(number)
            names.append(name)
        for fs, numbers, names in by_storage.values():
            starts, ends = [ranges[n][1] for n in numbers], [ranges[n][2] for n in numbers]
            blocks: Sequence[Any]
            try:
                wanted = {name: versions.get(os.fspath(ranges[n][0])) for name, n in zip(names, numbers, strict=True)}
                if is_s3(fs) or (fs.async_impl and not any(wanted.values())):
                    blocks = self._side_by_side(fs, list(zip(names, starts, ends, strict=True)), wanted, turn)
                else:
                    self.link.count(len(numbers), sum(ends) - sum(starts))
                    if any(wanted.values()):
                        blocks = _of_version(fs, list(zip(names, starts, ends, strict=True)), wanted)
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
                        self._check_length(path, len(block), start, end)
                outcomes.append(bytes(block))
            except (StorageUnavailable, AccessRefused, MissingFile) as error:
                outcomes.append(error)
            except DatasetError as error:
                error.path = redact(path)
                raise
        return outcomes

    def _side_by_side(
        self, fs: Any, ranges: Sequence[tuple[str, int, int]], versions: Mapping[str, FileVersion | None], turn: int
    ) -> list[bytes | BaseException]:
        """Read ranges of files through an asynchronous client, and compare version marks. Empty ranges need no
        request."""
        given = {_url(fs, name): version.mark for name, version in versions.items() if version is not None}
        marks = self._marks if not given else ChainMap(given, self._marks)

        async def every() -> list[bytes | BaseException]:
            reads = (self._range(fs, name, start, end, marks, turn) for name, start, end in ranges)
            blocks: list[Any] = await asyncio.gather(*reads, return_exceptions=True)
            if self.from_whole_files:
                await self._cut_out(fs, ranges, blocks)
            return blocks

        return cast(list[bytes | BaseException], sync(fs.loop, every))

    async def _range(
        self, fs: Any, name: str, start: int, end: int, marks: MutableMapping[str, str], turn: int
    ) -> bytes:
        """Read one range. `marks` has the version marks of the files that are known, and gets this file's."""
        if end <= start:
            return b""
        url = _url(fs, name)
        if self.from_whole_files and urlsplit(name).netloc in self._hosts_without_ranges:
            raise NoRangesError.of(name)
        if (mark := marks.get(url)) and not is_sendable(mark):
            raise changed(url, "none that a file can have")
        read = self._s3.read if is_s3(fs) else read_part
        dataset, told, size = self._told.get(url, ("", "", None))

        async def ask(mark: str = "") -> Part:
            def once() -> Awaitable[Part]:  # with the mark that is known when its turn comes
                return read(fs, name, start, end, mark or marks.get(url, ""), self.link)

            part = await retried_for_range(lambda: self.link.fetch(end - start, once, turn))
            # A server that sends no ETag has confirmed the requested one.
            return part if part.mark or marks.get(url, mark) != told else part._replace(mark=told)

        part = None
        if told and url not in marks and dataset not in self._doubted:
            try:
                part = await ask(told)
            except FileChangedError:
                if marks.get(url) == told:  # other ranges had this ETag, so the object was replaced just now
                    raise
                self._doubt(dataset, url)
        if part is None and (url in marks or not is_s3(fs)):
            part = await ask()
        elif part is None:
            async with self._after_the_first(url, turn):
                part = await ask()
        # A response with status 416 says nothing about the version.
        if (part.data or part.mark) and (known := marks.setdefault(url, part.mark)) != part.mark:
            raise changed(url, known, part.mark)
        if part.size is not None:
            if size not in (None, part.size) and url not in self._sizes:
                log.warning("%s has %d bytes, where its dataset says %d.", redact(url), part.size, size)
            self._sizes[url] = part.size
        return part.data

    async def _cut_out(self, fs: Any, ranges: Sequence[tuple[str, int, int]], blocks: list[Any]) -> None:
        """Replace each NoRangesError by the range, cut out of the whole file."""
        numbers_of: dict[str, list[int]] = {}
        for number, block in enumerate(blocks):
            if isinstance(block, NoRangesError):
                numbers_of.setdefault(ranges[number][0], []).append(number)
        for name, numbers in numbers_of.items():
            if (host := urlsplit(name).netloc) not in self._hosts_without_ranges:
                self._hosts_without_ranges.add(host)
                log.warning(
                    "The server of %s knows no ranges: of shards that are read where they are, all is fetched for "
                    "every chunk of clips, which is slow.",
                    redact(name),
                )  # fmt: skip
            some = [ranges[number][1:] for number in numbers]
            self.link.count(1, max(end for _, end in some))
            try:
                found: Sequence[Any] = await read_from_whole(fs, name, some)
            except Exception as error:
                found = [error] * len(some)
            for number, block in zip(numbers, found, strict=True):
                blocks[number] = block

    def _doubt(self, dataset: str, url: str) -> None:
        """Trust no recorded ETag of a dataset any more, and log that once: a copy has other ETags for all objects."""
        if dataset not in self._doubted:
            self._doubted.add(dataset)
            log.info(
                "%s does not have the ETag in its dataset.json, as in a copy: the ETags of %s are learned again.",
                redact(url), redact(dataset),
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _after_the_first(self, url: str, turn: int) -> AsyncIterator[None]:
        """While the mark of an object is unknown, request one range alone, so that the others, which wait for it, are
        requested with the mark. Ranges of earlier steps do not wait for one of a later step."""
        key = os.getpid(), url
        if (first := self._first.get(key)) is not None and first[0] <= turn:
            await first[1].wait()  # if it failed, the others are requested without a mark
            yield
            return
        self._first[key] = own = turn, asyncio.Event()
        try:
            yield
        finally:
            if self._first.get(key) is own:
                del self._first[key]
            own[1].set()

    def _check_length(self, path: AnyPath, found: int, start: int, end: int) -> None:
        """Raise an error for a range of another length than requested, unless the file ends there."""
        shown = redact(path)
        if found > end - start:
            raise NoRangesError.of(shown)
        fs, name = locate(path, patient=True)
        if (size := self._sizes.get(_url(fs, name))) is None:
            size = fs.info(name).get("size") or 0
        if size >= min(end, start + found + 1):
            raise StorageUnavailable(
                f"Cannot read {shown}: the storage sent {found} of {end - start} bytes; check the network, then try "
                "again.",
                path=shown,
            )


def _url(fs: Any, name: str) -> str:
    """The URL of a file, unique among all storages."""
    return f"{fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]}://{name}"


def _of_version(
    fs: Any, ranges: Sequence[tuple[str, int, int]], versions: Mapping[str, FileVersion | None]
) -> list[bytes | BaseException]:
    """Read ranges of files in storages without If-Match, and check the files' versions: on web servers by If-Range, in
    other storages by requesting a file's mark after its ranges, which are of the expected version if the mark is."""
    names, starts, ends = [span[0] for span in ranges], [span[1] for span in ranges], [span[2] for span in ranges]
    if not hasattr(fs, "encode_url"):
        read = fs.cat_ranges(names, starts, ends, on_error="return")
        marks = {name: mark_of_info(fs.info(name)) for name, version in versions.items() if version is not None}
        return [
            FileChangedError(f"{redact(name)} was changed since it was indexed: its storage has another version")
            if name in marks and (version := versions[name]) is not None and marks[name] != version.mark
            else block
            for name, block in zip(names, read, strict=True)
        ]

    plain = [n for n, name in enumerate(names) if versions[name] is None]
    given = ([names[n] for n in plain], [starts[n] for n in plain], [ends[n] for n in plain])
    found = dict(zip(plain, fs.cat_ranges(*given, on_error="return") if plain else [], strict=True))

    async def one(name: str, start: int, end: int) -> bytes:
        version = versions[name]
        if version is None or end <= start:
            return b""
        read = partial(http_ranges.read_range, fs, name, start, end, version.mark, version.within)
        return await retried_for_range(read)

    async def every() -> list[bytes | BaseException]:
        return await asyncio.gather(*(one(*wanted) for wanted in ranges), return_exceptions=True)

    blocks = cast(list[bytes | BaseException], sync(fs.loop, every))
    return [found.get(n, block) for n, block in enumerate(blocks)]


def mark_of_info(info: Mapping[str, Any]) -> str:
    """The version mark from fsspec's details of a file, in which each storage has another name for it."""
    names = ("ETag", "etag", "md5Hash", "checksum", "mtime", "LastModified", "Last-Modified", "created")
    return next((str(info[name]) for name in names if info.get(name) is not None), "")
