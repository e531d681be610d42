"""A web server with ranges, ETags and redirects, that keeps a record of what it is asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """The server.

    Attributes:
        url: of its root.
        files: by path.
        redirects: by path, where to.
        marks: what it says of a version: "ETag", "Last-Modified" or "".
        ranges: whether it answers requests for ranges.
        sent: bytes of bodies.
        requests: method, path and headers of each.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    marks: str = "ETag"
    ranges: bool = True
    sent: int = 0
    requests: list[tuple[str, str, Message]] = field(default_factory=list)


@contextmanager
def website() -> Iterator[Site]:
    """A server on a port of this machine."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            site.requests.append((self.command, self.path, self.headers))
            if self.path in site.redirects:
                self._send(302, b"", {"Location": site.redirects[self.path]}, body)
                return
            path, _, wanted = self.path.partition("&ifGenerationMatch=")
            data = site.files.get(path)
            if data is None:
                self._send(404, b"", {}, body)
                return
            digest = md5(data).hexdigest()
            second = int(digest[:1], 16)
            known = {
                "ETag": f'"{digest}"',
                "Last-Modified": f"Mon, 02 Nov 2026 10:00:{second:02d} GMT",
                "X-Goog-Generation": str(int(digest[:12], 16)),
                "": "",
            }[site.marks]
            if wanted not in ("", known):
                self._send(412, b"", {}, body)
                return
            headers = {site.marks: known} if site.marks else {}
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if found and site.ranges and self.headers.get("If-Range", known) == known:
                start, end = int(found[1]), min(int(found[2]) + 1, len(data))
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
                self._send(206, data[start:end], headers, body)
            else:
                self._send(200, data, headers, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                site.sent += len(data)
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
