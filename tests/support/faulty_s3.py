"""An S3 server over a dict of objects that misbehaves as it is told: GET with ranges, HEAD, and listing.

It does not check signatures; the tests against Ceph's server do.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import random
import re
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.s3_server import S3Server, s3_environment

ERRORS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "expired": (400, "ExpiredToken"),
    "timeout": (400, "RequestTimeout"),
    "403": (403, "AccessDenied"),
}
"""Answers with an error: status and code. A HEAD has no body, and so no code."""
FAULTS = (*ERRORS, "empty 503", "reset", "cut", "short", "stall")
"""All that an object's requests can meet; `cut` breaks off in the body, `short` says that there is no more. Beside
these, `flip` changes a bit of a range."""


@dataclass
class FaultyS3:
    """What the server serves. `fault` gives one of `FAULTS`, or None, for each request: method, key, and how many of
    its kind came before. `requests` has (method, key, range) of all."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[str, str, int], str | None] = lambda *_: None
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    matched: list[str | None] = field(default_factory=list)
    """The If-Match of each GET of an object."""
    refused_query: str = "no such text"
    """GETs with this in their URL are refused."""
    ranges: bool = True
    """Whether it knows ranges."""
    at_once: int = 0
    most_at_once: int = 0
    go: threading.Event = field(default_factory=threading.Event)
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_folder(self, folder: Path, prefix: str) -> str:
        """Serve the files of a folder; its URL."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()
        return f"s3://{prefix}"


class _Handler(http.server.BaseHTTPRequestHandler):
    site: FaultyS3
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        with self.site.lock:
            self.site.at_once += 1
            self.site.most_at_once = max(self.site.most_at_once, self.site.at_once)
        try:
            self._answer()
        finally:
            with self.site.lock:
                self.site.at_once -= 1

    def _answer(self) -> None:
        site, url = self.site, urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(url.path).strip("/")
        with site.lock:
            before = sum(1 for method, name, _ in site.requests if (method, name) == (self.command, key))
            site.requests.append((self.command, key, self.headers.get("Range", "")))
            fault = site.fault(self.command, key, before)
        if self.command == "GET" and site.refused_query in url.query:
            self._error(403, "AccessDenied")
        elif fault in ERRORS:
            self._error(*ERRORS[fault])
        elif fault == "empty 503":
            self._send(503, b"")
        elif fault == "reset":
            # Closed with unsent data dropped: the client sees a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault == "stall":
            site.go.wait(60)
            self.close_connection = True
        elif "list-type" in url.query:
            prefix = urllib.parse.parse_qs(url.query).get("prefix", [""])[0]
            names = sorted(name for name in site.objects if name.startswith(f"{key}/{prefix}"))
            items = "".join(
                f"<Contents><Key>{name.partition('/')[2]}</Key><Size>{len(site.objects[name])}</Size></Contents>"
                for name in names
            )
            self._send(200, f"<ListBucketResult><KeyCount>{len(names)}</KeyCount>{items}</ListBucketResult>".encode())
        elif key not in site.objects:
            self._error(404, "NoSuchKey")
        else:
            self._object(site.objects[key], fault)

    def _object(self, data: bytes, fault: str | None) -> None:
        status, body, headers = 200, data, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}
        if self.command == "GET":
            wanted = self.headers.get("If-Match")
            self.site.matched.append(wanted)
            if wanted not in (None, headers["ETag"]):
                self._error(412, "PreconditionFailed")
                return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match and self.site.ranges:
            first, last = int(match[1]), min(int(match[2]), len(data) - 1)
            status, body = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        length = len(body)
        if fault == "short" and self.command == "GET":
            body = body[: length // 2]
            length = len(body)
        elif fault == "flip" and status == 206:
            at = self.site.dice.randrange(8 * len(body))
            body = body[: at // 8] + bytes([body[at // 8] ^ 1 << at % 8]) + body[at // 8 + 1 :]
        elif fault == "cut":
            body = body[: length // 2]
            self.close_connection = True
        self._send(status, body, length, headers)

    def _error(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode())

    def _send(self, status: int, body: bytes, length: int | None = None, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # of a connection that the test broke


@contextlib.contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    """A server on a free port, with the environment variables that reach it set meanwhile."""
    site = FaultyS3()
    server = _Server(("127.0.0.1", 0), type("_SiteHandler", (_Handler,), {"site": site}))
    site.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        with s3_environment(S3Server(site.endpoint)):
            yield site
    finally:
        site.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
