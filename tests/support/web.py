"""A web server with ranges, ETags and redirects, that keeps a record of what it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from hashlib import md5

from tests.support.serving import Handler, serving


@dataclass
class Site:
    """The server.

    Attributes:
        url: of its root.
        files: by path.
        redirects: by path, where to.
        marks: what it says of a version: "ETag", "Last-Modified" or "".
        ranges: whether it answers requests for ranges.
        most: most bytes that it sends of a range.
        heads: whether it answers HEAD.
        faults: by path, of its next requests: "503", "whole" for all of the file, "other" for bytes of another place
            without a word of that, "" for none.
        sent: bytes of bodies.
        requests: method, path and headers of each.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    marks: str = "ETag"
    ranges: bool = True
    most: int = 1 << 40
    heads: bool = True
    faults: dict[str, list[str]] = field(default_factory=dict)
    sent: int = 0
    requests: list[tuple[str, str, Message]] = field(default_factory=list)


class _Handler(Handler):
    site: Site

    def answer(self) -> None:
        site = self.site
        site.requests.append((self.command, self.path, self.headers))
        path, _, wanted = self.path.partition("&ifGenerationMatch=")
        if self.path in site.redirects:
            self.send(302, headers={"Location": site.redirects[self.path]})
        elif path not in site.files or (self.command == "HEAD" and not site.heads):
            self.send(404)
        else:
            faults = site.faults.get(path)
            fault = faults.pop(0) if faults else ""
            if fault == "503":
                self.send(503)
                return
            self._file(site.files[path], wanted, fault)

    def _file(self, data: bytes, wanted: str, fault: str) -> None:
        site, digest = self.site, md5(data).hexdigest()
        second = int(digest[:1], 16)
        known = {
            "ETag": f'"{digest}"',
            "Last-Modified": f"Mon, 02 Nov 2026 10:00:{second:02d} GMT",
            "X-Goog-Generation": str(int(digest[:12], 16)),
            "": "",
        }[site.marks]
        if wanted not in ("", known):
            self.send(412)
            return
        status, headers = 200, {site.marks: known} if site.marks else {}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found and site.ranges and fault != "whole" and self.headers.get("If-Range", known) == known:
            start = int(found[1])
            end = min(int(found[2]) + 1, len(data), start + site.most)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            if fault == "other" and start:
                del headers["Content-Range"]
                start, end = max(0, start - 512), end - min(start, 512)
            status, data = 206, data[start:end]
        site.sent += len(data) if self.command == "GET" else 0
        self.send(status, data, headers)


@contextmanager
def website() -> Iterator[Site]:
    """A server on a port of this machine."""
    site = Site()
    with serving(_Handler, site=site) as port:
        site.url = f"http://127.0.0.1:{port}"
        yield site
