"""An S3 server over a dict of objects that misbehaves as it is told: GET, HEAD, listing, PUT, uploads in parts.

It does not check signatures; the tests against Ceph's server do.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
import re
import socket
import struct
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streamvid.checksum import crc32c
from tests.support.s3_server import S3Server, s3_environment
from tests.support.serving import Handler, serving

ERRORS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "expired": (400, "ExpiredToken"),
    "timeout": (400, "RequestTimeout"),
    "403": (403, "AccessDenied"),
    "redirect": (307, "TemporaryRedirect"),
}
"""Answers with an error: status and code. A HEAD has no body, and so no code. A redirect leads to another name of the
server, which refuses requests that are not signed anew, as S3 does."""
WRITE_FAULTS = (*ERRORS, "empty 503", "reset", "lost", "flip")
"""All that a request that changes something can meet: `lost` does it, and breaks off before the answer."""
FAULTS = (*ERRORS, "empty 503", "reset", "cut", "short", "stall")
ANSWERS = {**ERRORS, "404": (404, "NoSuchKey"), "archived": (403, "InvalidObjectState"), "page": (200, "LogIn")}
"""All that an object's requests can meet; `cut` breaks off in the body, `short` says that there is no more. Beside
these, `flip` changes a bit of a range, `elsewhere` gives another range and says so, `whole` all of the object, and
`endless` more than anybody holds."""


@dataclass
class FaultyS3:
    """The state of the server. `fault` gives one of `FAULTS`, or None, for each request: method, key, and how many of
    its kind came before. `requests` has (method, key, range) of all."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[str, str, int], str | None] = lambda *_: None
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    matched: list[str | None] = field(default_factory=list)
    """The If-Match of each GET of an object."""
    answers: dict[str, tuple[int, bytes, dict[str, str]]] = field(default_factory=dict)
    """Status, body and headers of what every request for a key gets."""
    refused_query: str = "no such text"
    """GETs with this in their URL are refused."""
    ranges: bool = True
    """Whether it knows ranges."""
    checksums: bool = False
    """Whether it keeps the CRC-32C of objects, and knows those of parts; else it refuses a request that has one."""
    refuses_checksums: bool = False
    conditions: str = "kept"
    """What it does with If-None-Match and If-Match of a PUT: "kept", "ignored" or "refused"."""
    lists_parts: bool = True
    """Whether it lists the parts of uploads."""
    verifies: bool = True
    """Whether it refuses bodies of another Content-MD5."""
    lists_etags: bool = False
    """Whether its listings have them, as those of S3 do."""
    sends_etags: bool = True
    """Whether answers with objects have them; if not, If-Match is ignored, too."""
    strange_etags: bool = False
    """Whether its ETags have nothing to do with MD5."""
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    """Key and parts of each upload in parts, by id."""
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    """ETag and checksum of objects that were put, by key."""
    before: Callable[[int], None] = lambda _: None
    """Called before each request that changes something is done, with how many came before."""
    changes: int = 0
    endless: int = 0
    """Bytes that `endless` has sent."""
    at_once: int = 0
    most_at_once: int = 0
    go: threading.Event = field(default_factory=threading.Event)
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def etag(self, key: str) -> str:
        """The ETag of an object, in quotes."""
        held = self.held.get(key, {}).get("ETag")
        return held or f'"{hashlib.md5(self.objects[key]).hexdigest()}"'

    def add_folder(self, folder: Path, prefix: str) -> str:
        """Serve the files of a folder; its URL."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()
        return f"s3://{prefix}"


class _Handler(Handler):
    site: FaultyS3

    def answer(self) -> None:
        if self.headers["Host"].startswith("localhost"):
            self._error(403, "AccessDenied")
            return
        if self.command in ("PUT", "POST", "DELETE"):
            self._change()
            return
        counts = self.command == "GET"
        with self.site.lock:
            self.site.at_once += counts
            self.site.most_at_once = max(self.site.most_at_once, self.site.at_once)
        try:
            self._answer()
        finally:
            with self.site.lock:
                self.site.at_once -= counts

    def _change(self) -> None:
        site, url = self.site, urllib.parse.urlsplit(self.path)
        key, query = urllib.parse.unquote(url.path).strip("/"), urllib.parse.parse_qs(url.query, keep_blank_values=True)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with site.lock:
            count = sum(1 for method, name, _ in site.requests if (method, name) == (self.command, key))
            site.requests.append((self.command, key, url.query))
            number, site.changes = site.changes, site.changes + 1
            site.before(number)
            fault = site.fault(self.command, key, count)
            if fault in ANSWERS:
                answer: tuple[int, bytes, dict[str, str]] | str = fault
            elif fault in ("empty 503", "reset"):
                answer = (503, b"", {})
            else:
                answer = self._changed(key, query, flipped(body, site.dice) if fault == "flip" and body else body)
        if fault in ("reset", "lost"):
            self._break()
        elif isinstance(answer, str):
            self._error(*ANSWERS[answer])
        else:
            self._send(answer[0], answer[1], headers=answer[2])

    def _changed(self, key: str, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Do what a request asks for; the answer."""
        site, upload = self.site, query.get("uploadId", [""])[0]

        def refused(status: int, code: str) -> tuple[int, bytes, dict[str, str]]:
            return status, f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode(), {}

        sent = {name.lower(): value for name, value in self.headers.items()}
        if site.refuses_checksums and any(name.startswith("x-amz-checksum-") and "c32c" in name for name in sent):
            return refused(501, "NotImplemented")
        if site.refuses_checksums and sent.get("x-amz-checksum-algorithm") == "CRC32C":
            return refused(501, "NotImplemented")
        if upload and site.uploads.get(upload, ("",))[0] != key:
            return refused(404, "NoSuchUpload")
        md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
        if site.verifies and sent.get("content-md5", md5) != md5:
            return refused(400, "BadDigest")
        if self.command == "DELETE":
            (site.uploads if upload else site.objects).pop(upload or key, None)
            return 204, b"", {}
        if "uploads" in query:
            site.uploads[upload := uuid.uuid4().hex] = (key, {})
            known = {"x-amz-checksum-algorithm": "CRC32C"} if site.checksums else {}
            return 200, f"<R><UploadId>{upload}</UploadId></R>".encode(), known
        if upload and self.command == "PUT":
            site.uploads[upload][1][int(query["partNumber"][0])] = body
            return 200, b"", self._held(body)
        if upload:
            parts = site.uploads[upload][1]
            wanted = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", body)]
            etags = re.findall(rb"<ETag>(?:&quot;|\")(\S*?)(?:&quot;|\")<", body)
            if [self._held(parts[n])["ETag"].strip('"').encode() for n in wanted] != etags:
                return refused(400, "InvalidPart")
            whole = b"".join(parts[number] for number in wanted)
            if site.checksums and sent.get("x-amz-checksum-crc32c") != text_of(crc32c(whole)):
                return refused(400, "BadDigest")
            md5s = b"".join(hashlib.md5(parts[number]).digest() for number in wanted)
            del site.uploads[upload]
            etag = "strange" if site.strange_etags else hashlib.md5(md5s).hexdigest()
            site.objects[key], site.held[key] = whole, self._held(whole) | {"ETag": f'"{etag}-{len(wanted)}"'}
            return 200, b"<R><ETag>x</ETag></R>", {}
        if site.conditions == "refused" and not sent.keys().isdisjoint(("if-none-match", "if-match")):
            return refused(501, "NotImplemented")
        if site.conditions == "kept" and sent.get("if-none-match") == "*" and key in site.objects:
            return refused(412, "PreconditionFailed")
        site.objects[key], site.held[key] = body, self._held(body)
        return 200, b"", site.held[key]

    def _held(self, data: bytes) -> dict[str, str]:
        etag = "strange" if self.site.strange_etags else hashlib.md5(data).hexdigest()
        crc = {"x-amz-checksum-crc32c": text_of(crc32c(data)), "x-amz-checksum-type": "FULL_OBJECT"}
        return {"ETag": f'"{etag}"', **(crc if self.site.checksums else {})}

    def _parts(self, upload: str) -> None:
        if not self.site.lists_parts:
            self._error(405, "MethodNotAllowed")
            return
        if upload not in self.site.uploads:
            self._error(404, "NoSuchUpload")
            return
        parts = sorted(self.site.uploads[upload][1].items())
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><Size>{len(data)}</Size><ETag>{held['ETag']}</ETag>"
            + (f"<ChecksumCRC32C>{held['x-amz-checksum-crc32c']}</ChecksumCRC32C>" if self.site.checksums else "")
            + "</Part>"
            for number, data in parts
            if (held := self._held(data))
        )
        known = "<ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>" if self.site.checksums else ""
        self._send(200, f"<R>{known}<IsTruncated>false</IsTruncated>{listed}</R>".encode())

    def _break(self) -> None:
        # Closed with unsent data dropped: the client sees a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _answer(self) -> None:
        site, url = self.site, urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(url.path).strip("/")
        with site.lock:
            before = sum(1 for method, name, _ in site.requests if (method, name) == (self.command, key))
            site.requests.append((self.command, key, self.headers.get("Range", "")))
            fault = site.fault(self.command, key, before)
        if key in site.answers:
            status, body, headers = site.answers[key]
            self._send(status, body, headers=headers)
        elif self.command == "GET" and site.refused_query in url.query:
            self._error(403, "AccessDenied")
        elif fault in ANSWERS:
            self._error(*ANSWERS[fault])
        elif fault == "empty 503":
            self._send(503, b"")
        elif fault == "reset":
            self._break()
        elif fault == "stall":
            site.go.wait(60)
            self.close_connection = True
        elif "list-type" in url.query:
            prefix = urllib.parse.parse_qs(url.query).get("prefix", [""])[0]
            names = sorted(name for name in site.objects if name.startswith(f"{key}/{prefix}"))
            items = "".join(
                f"<Contents><Key>{name.partition('/')[2]}</Key><Size>{len(site.objects[name])}</Size>"
                + (f"<ETag>{site.etag(name)}</ETag>" if site.lists_etags else "")
                + "</Contents>"
                for name in names
            )
            self._send(200, f"<ListBucketResult><KeyCount>{len(names)}</KeyCount>{items}</ListBucketResult>".encode())
        elif "uploadId=" in url.query:
            self._parts(urllib.parse.parse_qs(url.query)["uploadId"][0])
        elif key not in site.objects:
            self._error(404, "NoSuchKey")
        else:
            self._object(site.objects[key], site.held.get(key, {}) | {"ETag": site.etag(key)}, fault)

    def _object(self, data: bytes, headers: dict[str, str], fault: str | None) -> None:
        status, body, headers = 200, data, dict(headers)
        if self.command == "GET":
            wanted = self.headers.get("If-Match")
            self.site.matched.append(wanted)
            if not self.site.sends_etags:
                del headers["ETag"]
            elif wanted not in (None, headers["ETag"]):
                self._error(412, "PreconditionFailed")
                return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match and fault == "endless":
            self._send_endless()
            return
        if match and self.site.ranges and int(match[1]) >= len(data):
            self._send(416, b"<Error/>", headers={"Content-Range": f"bytes */{len(data)}"})
            return
        if match and self.site.ranges and fault != "whole":
            first, last = int(match[1]), min(int(match[2]), len(data) - 1)
            if fault == "elsewhere":
                first, last = first + 16, last + 16
            status, body = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        length = len(body)
        if fault == "short" and self.command == "GET":
            body = body[: length // 2]
            length = len(body)
        elif fault == "flip" and status == 206:
            body = flipped(body, self.site.dice)
        elif fault == "cut":
            body = body[: length // 2]
            self.close_connection = True
        self._send(status, body, length, headers)

    def _send_endless(self) -> None:
        """In chunks, until the client has enough."""
        self.send_response(206)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.site.endless < 1 << 28:
                self.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                self.site.endless += 1 << 16
        self.close_connection = True

    def _error(self, status: int, code: str) -> None:
        moved = {"Location": f"{self.site.endpoint.replace('127.0.0.1', 'localhost')}{self.path}"}
        text = f"<Error><Code>{code}</Code><Message>because</Message></Error>"
        self._send(status, text.encode(), headers=moved if 300 <= status < 400 else None)

    def _send(self, status: int, body: bytes, length: int | None = None, headers: dict[str, str] | None = None) -> None:
        known = {"Content-Length": str(len(body) if length is None else length)}
        self.send(status, body, {"Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT", **known, **(headers or {})})


def flipped(body: bytes, dice: random.Random) -> bytes:
    """The same with another bit."""
    at = dice.randrange(8 * len(body))
    return body[: at // 8] + bytes([body[at // 8] ^ 1 << at % 8]) + body[at // 8 + 1 :]


def text_of(crc: int) -> str:
    """A CRC as S3 writes it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@contextlib.contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    """A server on a free port, with the environment variables that reach it set meanwhile. Skips without s3fs."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    site = FaultyS3()
    with serving(_Handler, site=site) as port:
        site.endpoint = f"http://127.0.0.1:{port}"
        try:
            with s3_environment(S3Server(site.endpoint)):
                yield site
        finally:
            site.go.set()


@pytest.fixture(scope="module")
def served(packed: Path) -> Iterator[FaultyS3]:
    """The module's dataset in a bucket, at s3://bucket/set."""
    with faulty_s3() as site:
        site.add_folder(packed, "bucket/set")
        yield site


@pytest.fixture
def s3(served: FaultyS3) -> Iterator[FaultyS3]:
    """The same, which misbehaves only as the test tells it."""
    served.requests.clear()
    yield served
    served.fault = lambda *_: None
