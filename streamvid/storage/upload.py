"""Uploads a file to S3 while it is being written. The object becomes visible only when it is complete.

The bytes sent are compared with those that the server has: by the CRC-32C that it was asked to store, else by the
parts' MD5s, from which most servers make the ETag, else by reading the object back. Requests are retried as `Retry`
says.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

from streamvid.checksum import crc32c
from streamvid.errors import DatasetError
from streamvid.storage.client import asked, locate
from streamvid.storage.explain import StorageUnavailable, code_of, status_of
from streamvid.storage.ranges import read_ranges
from streamvid.storage.retry import Retry
from streamvid.storage.url import AnyPath, redact

log = logging.getLogger(__name__)

PART_BYTES: Final = 16 << 20
_PARTS_OF_A_SIZE: Final = 1000
"""Number of parts after which their size doubles, because S3 takes at most 10,000 parts per object."""
AT_ONCE: Final = 4
"""Number of parts that are sent at the same time. With the part being filled and its copy, an upload has six in
memory."""
_TIMES: Final = 3
"""How often bytes are sent that the server does not confirm, which may also be due to other ETags."""
_LEAST_SECONDS: Final = 60.0
_SLOWEST: Final = 200_000
"""Seconds, and bytes a second on top, that a request may take before it counts as stalled; the second twice that."""
_UNKNOWN: Final = {"NotImplemented", "InvalidRequest", "InvalidArgument"}
"""Error codes of servers that do not support checksums of objects."""
_NONE: Final[Mapping[str, object]] = MappingProxyType({})


class UploadGoneError(DatasetError):
    """The server does not know the upload any more, because it was completed or aborted."""


class KeptId(Protocol):
    """Keeps the id of an upload beyond the end of the process, so that another process can continue it."""

    def read(self) -> str:
        """The kept id; "" if there is none."""

    def write(self, upload_id: str) -> None:
        """Keep an id."""


@dataclass(frozen=True)
class _Part:
    """A part of the file, and the server's response to it."""

    size: int
    md5: bytes
    crc: bytes
    etag: str = ""

    def confirmed(self, answer: Mapping[str, Any]) -> bool:
        """Whether a response shows that the server has these bytes."""
        crc = answer.get("ChecksumCRC32C")
        return bool(_text(self.crc) == crc if crc else self.md5.hex() == _etag(answer))


class Upload:
    """A file for writing, which becomes visible with `finish`. An upload that was closed unfinished is continued by the
    next one of the same file.

    To continue, the same bytes must be written again; of the parts on the server, those that are equal are not sent.

    Args:
        url: URL of an object in S3, which is replaced.
        retry: for how long each request is repeated; None: the client makes its own few attempts.
        kept: where the id is kept; None: the file is held in memory and sent in one request.
    """

    def __init__(self, url: AnyPath, *, retry: Retry | None = None, kept: KeptId | None = None) -> None:
        self._url, self._kept = url, kept
        self._stop = threading.Event()
        self._retry = None if retry is None else retry.until(self._stop)
        fs, name = locate(url, patient=retry is not None)
        bucket, key, _ = fs.split_path(name)
        self._object = {"Bucket": bucket, "Key": key}
        self._id = ""
        self._gone = False
        self._checksums = True
        self._there: dict[int, Mapping[str, Any]] = {}
        self._buffer = bytearray()
        self._crc = 0
        self._parts: list[Future[_Part]] = []
        self._under_way: deque[Future[_Part]] = deque()
        self._marked, self._held = (0, 0, 0), b""
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="streamvid-upload")

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; waits while enough parts are on their way. Raises DatasetError or InputError, also for earlier
        parts."""
        self._buffer += data
        while self._kept and len(self._buffer) >= (size := PART_BYTES << (len(self._parts) // _PARTS_OF_A_SIZE)):
            part = bytes(memoryview(self._buffer)[:size])
            del self._buffer[:size]
            if len(self._parts) == self._marked[0]:
                self._held = part
            self._send(part)
        return len(data)

    def mark(self) -> None:
        """Note the end of the file, for `rewind`."""
        self._marked, self._held = (len(self._parts), len(self._buffer), self._crc), b""

    def rewind(self) -> None:
        """Take back what was written since `mark`: parts with it are sent again. Raises as `write`."""
        parts, length, self._crc = self._marked
        if self._held:
            self._buffer = bytearray(self._held)
        del self._buffer[length:]
        for number, part in enumerate(self._parts[parts:], parts + 1):
            part.result()  # or it might replace the one that is sent again
            self._there.pop(number, None)
        del self._parts[parts:]

    def finish(self) -> None:
        """Complete the object, and compare it with what was written.

        Raises:
            DatasetError, InputError: the object cannot be written, or has other bytes.
        """
        rest = bytes(self._buffer)
        if self._parts:
            if rest:
                self._send(rest)
            parts = [part.result() for part in self._parts]
            if not self._gone:
                self._complete(parts)
            self._check(parts)
        else:
            self._crc = crc32c(rest)
            part = _part(rest)
            if not self._sent("put_object", rest, part)[1]:
                self._check([part])
        self.close()

    def close(self) -> None:
        """End the threads. Without `finish` before, the parts stay on the server."""
        self._stop.set()
        self._threads.shutdown(cancel_futures=True)
        self._buffer = bytearray()

    def _send(self, data: bytes) -> None:
        if not self._parts:
            self._begin()
        self._crc = crc32c(data, self._crc)
        while len(self._under_way) >= AT_ONCE or (self._under_way and self._under_way[0].done()):
            self._under_way.popleft().result()
        self._parts.append(self._threads.submit(self._send_part, len(self._parts) + 1, data))
        self._under_way.append(self._parts[-1])

    def _begin(self) -> None:
        """Continue the upload whose id is kept, or begin one. No part is sent before the id is kept."""
        assert self._kept is not None
        self._id = self._kept.read()
        if self._id and self._list():
            return
        checksums = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"}
        self._id = str(self._call("create_multipart_upload", checksums=checksums)["UploadId"])
        self._kept.write(self._id)

    def _list(self) -> bool:
        """Find out which parts the server has. Returns whether the upload exists."""
        marker: dict[str, Any] = {}
        while True:
            try:
                answer = self._call("list_parts", UploadId=self._id, **marker)
            except StorageUnavailable:
                raise
            except DatasetError:  # it is gone, or this server lists no parts, or not to us
                return False
            self._there |= {int(part["PartNumber"]): part for part in answer.get("Parts", ())}
            self._checksums = answer.get("ChecksumAlgorithm") == "CRC32C"
            if not answer.get("IsTruncated"):
                return True
            marker = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def _send_part(self, number: int, data: bytes) -> _Part:
        part, there = _part(data), self._there.get(number)
        if there and there.get("Size") == part.size and part.confirmed(there):
            return _Part(part.size, part.md5, part.crc, _etag(there))
        try:
            etag, _ = self._sent("upload_part", data, part, UploadId=self._id, PartNumber=number)
        except UploadGoneError:  # another process of this pack may have completed it, which `_check` finds out
            etag, self._gone = "", True
        return _Part(part.size, part.md5, part.crc, etag)

    def _sent(self, method: str, data: bytes, part: _Part, **values: object) -> tuple[str, bool]:
        """Send bytes. Returns the ETag, and whether the server has confirmed them."""
        for _ in range(_TIMES):
            answer = self._call(
                method, checksums={"ChecksumCRC32C": _text(part.crc)}, Body=data, ContentMD5=_text(part.md5), **values
            )
            if part.confirmed(answer):
                return _etag(answer), True
        return _etag(answer), False

    def _complete(self, parts: list[_Part]) -> None:
        known = [{"ChecksumCRC32C": _text(part.crc)} if self._checksums else {} for part in parts]
        listed = [
            {"PartNumber": number, "ETag": f'"{part.etag}"', **crc}
            for number, (part, crc) in enumerate(zip(parts, known, strict=True), 1)
        ]
        checksums = {"ChecksumCRC32C": _text(self._crc.to_bytes(4, "big")), "ChecksumType": "FULL_OBJECT"}
        try:
            self._call(
                "complete_multipart_upload", checksums=checksums, UploadId=self._id, MultipartUpload={"Parts": listed}
            )
        except UploadGoneError:
            self._gone = True  # as above, or the response to an earlier request was lost

    def _check(self, parts: list[_Part]) -> None:
        """Compare the object with what was written. Raises DatasetError."""
        try:
            answer = self._call("head_object", ChecksumMode="ENABLED")
        except DatasetError:
            if not self._gone:
                raise
            answer = {"ContentLength": -1}
        size = sum(part.size for part in parts)
        same = answer.get("ContentLength") == size and (self._holds(answer, parts) or self._reads_back(parts))
        if not same and self._gone:
            raise DatasetError(f"Cannot write {redact(self._url)}: its upload was ended by others; run this again.")
        if not same:
            raise DatasetError(
                f"Cannot write {redact(self._url)}: the storage holds other bytes than were sent; run this again, and "
                "if that does not help, find out what changes them in transit."
            )

    def _holds(self, answer: Mapping[str, Any], parts: list[_Part]) -> bool:
        """Whether a response's checksum or ETag matches these parts."""
        crc, etag = answer.get("ChecksumCRC32C"), _etag(answer)
        if crc and "-" not in crc and answer.get("ChecksumType") != "COMPOSITE":
            return bool(crc == _text(self._crc.to_bytes(4, "big")))
        if not self._id:
            return etag == parts[0].md5.hex()
        return etag == f"{_md5(b''.join(part.md5 for part in parts)).hex()}-{len(parts)}"

    def _reads_back(self, parts: list[_Part]) -> bool:
        start = 0
        for part in parts:
            (data,) = read_ranges([(self._url, start, start + part.size)], retry=self._retry or Retry(0.0))
            if _md5(data) != part.md5:
                return False
            start += part.size
        return True

    def _call(self, method: str, *, checksums: Mapping[str, object] = _NONE, **values: object) -> dict[str, Any]:
        """Make a request, and return the response. `checksums` are left out for servers that refuse them."""
        body = values.get("Body")
        limit = _LEAST_SECONDS + (len(body) if isinstance(body, bytes) else 0) / _SLOWEST
        tries = 0

        def ask() -> dict[str, Any]:
            nonlocal tries
            tries += 1
            more = checksums if self._checksums else _NONE
            fs, _ = locate(self._url, patient=self._retry is not None)  # another after `renew_credentials`
            try:
                answer = fs.call_s3(method, timeout=tries * limit, **self._object, **values, **more)
            except OSError as error:
                if more and code_of(error) in _UNKNOWN:
                    self._checksums = False
                    return ask()
                if "UploadId" in values and status_of(error) == 404 and code_of(error) != "NoSuchBucket":
                    raise UploadGoneError(f"There is no such upload of {redact(self._url)}.") from None
                raise
            return cast(dict[str, Any], answer)

        return asked(self._url, ask, self._retry, action="write")


def abort_upload(url: AnyPath, upload_id: str) -> None:
    """Abort an upload if it exists. Raises DatasetError."""
    with contextlib.closing(Upload(url)) as upload:
        try:
            upload._call("abort_multipart_upload", UploadId=upload_id)
        except StorageUnavailable:
            raise
        except UploadGoneError:
            pass
        except DatasetError as error:
            log.warning("%s Parts of it stay, until the bucket's rules abort the upload.", error)


def _part(data: bytes) -> _Part:
    return _Part(len(data), _md5(data), crc32c(data).to_bytes(4, "big"))


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _text(digest: bytes) -> str:
    return b64encode(digest).decode()


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')
