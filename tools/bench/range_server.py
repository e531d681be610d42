"""A static server of ranges that speaks as much S3 as readers need: GET and HEAD of files in a folder, held in memory.

    python -m tools.bench.range_server FOLDER [--port N] [--latency MS] [--stall SHARE]

A process of its own, with one event loop; it does not check signatures. `--stall`: that share of GETs is answered after
30 s. Prints its port when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from pathlib import Path
from typing import Final

STALL_SECONDS: Final = 30.0
_RANGE: Final = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """Answers requests of one connection, one after the other."""

    def __init__(self, files: dict[str, bytes], latency: float, stall: float, dice: random.Random) -> None:
        self.files, self.latency, self.stall, self.dice, self.received = files, latency, stall, dice, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head, self.received = self.received[: end + 2], self.received[end + 4 :]
            delay = self.latency
            if head.startswith(b"GET") and self.dice.random() < self.stall:
                delay = STALL_SECONDS
            if delay:
                asyncio.get_running_loop().call_later(delay, self.answer, head)
            else:
                self.answer(head)

    def answer(self, head: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        if self.transport.is_closing():
            return
        name = head.split(b" ", 2)[1].partition(b"?")[0].decode().strip("/")
        body = self.files.get(name)
        if body is None:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        status, more, whole = b"200 OK", b"", len(body)
        if found := _RANGE.search(head):
            first, last = int(found[1]), min(int(found[2]), whole - 1)
            status, body = b"206 Partial Content", body[first : last + 1]
            more = b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, whole)
        lines = (
            b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "%d"\r\nLast-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\n%s\r\n'
        )
        self.transport.write(lines % (status, len(body), whole, more))
        if not head.startswith(b"HEAD"):
            self.transport.write(body)


async def serve(folder: Path, port: int, latency: float, stall: float) -> None:
    """Serve until the process is ended."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    dice = random.Random(0)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(files, latency, stall, dice), "127.0.0.1", port
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--stall", type=float, default=0.0)
    options = parser.parse_args()
    asyncio.run(serve(options.folder, options.port, options.latency / 1000, options.stall))
