"""GETs of short bodies over HTTP/1.1, on connections that stay open.

aiohttp takes 0.3 ms of a core for a request, and copies each body twice. Here a request is one write, its answer's body
is received where it stays, and the event loop wakes up once for most of it (SO_RCVLOWAT): while it waits for the
interpreter lock of threads that compute, each wake-up costs up to a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np

_HEAD_BYTES: Final = 8 << 10
"""Most bytes of an answer's status line and headers, with the beginning of its body."""
_ERROR_BYTES: Final = 64 << 10
"""Most bytes that are read of an answer that is not the wanted one."""
_PIECE: Final = 512 << 10
"""Bytes of a body for which the event loop is woken up, or the rest of it."""
_LEFT_SECONDS: Final = 0.1
"""How long what has come of a piece takes to be received, once no more is waited for."""
_IDLE_SECONDS: Final = 15.0
"""How long a connection stays usable without a request: servers close theirs sooner or later."""


class Target(NamedTuple):
    """What is asked for, and where.

    Attributes:
        host, port: of the server.
        tls: whether the connection is encrypted.
        head: the request's first lines, up to headers that differ between requests.
    """

    host: str
    port: int
    tls: bool
    head: bytes


class Answer(NamedTuple):
    """An answer.

    Attributes:
        status: below 200 never.
        headers: names in lower case.
        length: bytes of the body, by the headers.
        body: all of it if `length` is not more than was wanted, else b""; of an error, as much as there is at hand.
        first: seconds from the request to the headers.
    """

    status: int
    headers: Mapping[str, str]
    length: int
    body: memoryview
    first: float


class UnframedError(Exception):
    """An answer whose length is not among its headers."""


class _NoAnswerError(Exception):
    """The connection was closed before a byte of an answer came."""


def target_of(url: Any) -> Target:
    """The target of a URL of yarl."""
    name = f"[{url.raw_host}]" if ":" in url.raw_host else url.raw_host
    host = name if url.is_default_port() else f"{name}:{url.port}"
    lines = (f"GET {url.raw_path_qs} HTTP/1.1", f"Host: {host}", "User-Agent: streamvid", "Accept-Encoding: identity")
    return Target(url.raw_host, url.port, url.scheme == "https", "".join(f"{line}\r\n" for line in lines).encode())


class Connections:
    """Connections to servers, of one event loop. As many as there are requests at a time.

    Args:
        context: for encrypted ones; None: certificates are not checked.
        connect_seconds: to make one.
        stall_seconds: without a byte, after which one counts as broken.
    """

    def __init__(self, context: ssl.SSLContext | None, *, connect_seconds: float, stall_seconds: float) -> None:
        if context is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._context, self._connect_seconds, self._stall_seconds = context, connect_seconds, stall_seconds
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = {}
        self._unframed: set[tuple[str, int, bool]] = set()

    async def get(self, target: Target, headers: Mapping[str, str], most: int) -> Answer:
        """The answer to a GET. On a connection that its server closes unused, it is made once more.

        Args:
            target: as of `target_of`.
            headers: more headers.
            most: bytes that the body may have; a longer one is not read.

        Raises:
            ValueError: a header is not one line of ASCII.
            UnframedError: the server answers without a length that is known before the end.
            OSError, asyncio.IncompleteReadError: no connection, or it is broken.
        """
        if not all(one.isascii() and one.isprintable() for one in headers.values()):
            raise ValueError("a header of a request has characters that it may not have")
        request = b"".join([target.head, *(f"{name}: {one}\r\n".encode() for name, one in headers.items()), b"\r\n"])
        idle = self._idle.setdefault(target[:3], [])
        loop = asyncio.get_running_loop()
        if target[:3] in self._unframed:
            raise UnframedError
        while True:
            while idle and idle[0].since < loop.time() - _IDLE_SECONDS:
                idle.pop(0).close()
            kept = idle.pop() if idle else None
            connection = kept or await self._connect(target)
            try:
                answer = await connection.ask(request, most)
            except _NoAnswerError as error:
                if kept is None:
                    raise ConnectionResetError(str(error)) from None
                continue
            except BaseException as error:
                connection.close()
                if isinstance(error, UnframedError):
                    self._unframed.add(target[:3])
                raise
            if connection.reusable:
                idle.append(connection)
            else:
                connection.close()
            return answer

    async def _connect(self, target: Target) -> _Connection:
        loop, idle = asyncio.get_running_loop(), self._idle[target[:3]]
        several = None if ":" in target.host or target.host.replace(".", "").isdecimal() else 0.25  # not of an address
        context, name = (self._context, target.host) if target.tls else (None, None)
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, made = await loop.create_connection(
                    lambda: _Connection(loop, idle, self._stall_seconds),
                    target.host, target.port, ssl=context, server_hostname=name, happy_eyeballs_delay=several,
                )  # fmt: skip
        except (socket.gaierror, TimeoutError):
            raise
        except OSError as error:  # of one address, or of each
            raise ConnectionError(str(error)) from (error if isinstance(error, ssl.SSLError) else None)
        return made

    def close(self) -> None:
        """Close the connections that wait for a request."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


class _Connection(asyncio.BufferedProtocol):
    """One request at a time.

    Attributes:
        since: event loop time of the last byte.
        reusable: whether it can take another request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: list[_Connection], stall_seconds: float) -> None:
        self._loop, self._idle, self._stall_seconds = loop, idle, stall_seconds
        self._head = bytearray(_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._body: memoryview | None = None
        self._least, self._at = 1, 0
        self.since, self.reusable = loop.time(), False

    def ask(self, request: bytes, most: int) -> asyncio.Future[Answer]:
        """Make a request; its answer. Arguments as of `Connections.get`."""
        self._most, self._at, self._body, self._unframed = most, 0, None, False
        self._begin = self.since = self._loop.time()
        self._answer = answer = self._loop.create_future()
        self.reusable = False
        if self._transport is None or self._transport.is_closing():
            self._fail(_NoAnswerError("the server has closed the connection"))
            return answer
        if self._timer is None:
            self._timer = self._loop.call_later(self._stall_seconds, self._look)
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """Close it at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self in self._idle:
            self._idle.remove(self)
        if self._unframed:
            self._done(self._head[self._at_body : self._at])
        elif self._at or self._body is not None:
            self._fail(asyncio.IncompleteReadError(b"", None if self._body is None else len(self._body)))
        else:
            self._fail(_NoAnswerError(str(error or "the server has closed the connection")))

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> Any:
        if self._body is not None:
            return self._body[self._at :]
        return memoryview(self._head)[self._at :]

    def buffer_updated(self, count: int) -> None:
        self.since = self._loop.time()
        if self._answer is None or self._answer.done():  # nobody asked for it
            self.close()
            return
        self._at += count
        if self._body is not None:
            self._go_on(self._body)
        elif self._unframed:
            if self._at == len(self._head) or self._head.endswith(b"\r\n0\r\n\r\n", 0, self._at):
                self._done(self._head[self._at_body : self._at])
        elif (end := self._head.find(b"\r\n\r\n", 0, self._at)) >= 0:
            self._take_head(end)
        elif self._at == len(self._head):
            self._fail(ConnectionError("the headers of an answer are too long"))

    def _take_head(self, end: int) -> None:
        """Read status and headers, which end before `end`, and receive the body."""
        self._first = self.since - self._begin
        first, *lines = self._head[:end].decode("latin-1").split("\r\n")
        self._headers = {name.lower(): one.strip() for name, _, one in (line.partition(":") for line in lines)}
        version, status = [*first.split(" ", 2), ""][:2]
        length = self._headers.get("content-length", "")
        if not version.startswith("HTTP/1.") or len(status) != 3 or not status.isdecimal() or status < "200":
            self._fail(ConnectionError("an answer is not HTTP"))
            return
        self._status, self._at_body = int(status), end + 4
        keeps = self._headers.get("connection", "" if version == "HTTP/1.1" else "close").lower()
        if "transfer-encoding" in self._headers or not (length.isascii() and length.isdecimal() and len(length) < 20):
            if self._status < 300:
                self._fail(UnframedError())
            self._unframed, self._head = True, self._head[: self._at] + bytes(_ERROR_BYTES)
            self.buffer_updated(0)
            return
        self._length = int(length)
        if self._length > (self._most if self._status < 300 else _ERROR_BYTES):
            self._done(b"")
            return
        self.reusable = keeps != "close"
        body = np.empty(self._length, dtype=np.uint8).data
        come = self._head[self._at_body : self._at][: self._length]
        self.reusable = self.reusable and self._at - self._at_body == len(come)
        body[: len(come)] = come
        self._body, self._at = body, len(come)
        self._go_on(body)

    def _go_on(self, body: memoryview) -> None:
        """Wait for the rest of the body."""
        left = len(body) - self._at
        self._wake_at(min(left, _PIECE) if left else 1)
        if not left:
            self._done(body)

    def _wake_at(self, least: int) -> None:
        """Be woken up once so many bytes are there, where the system can do that."""
        if self._socket is not None and least != self._least:
            self._least = least
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _done(self, body: bytes | bytearray | memoryview) -> None:
        if self._answer is not None and not self._answer.done():
            length = self._length if not self._unframed else len(body)
            whole = memoryview(body).toreadonly()
            self._answer.set_result(Answer(self._status, self._headers, length, whole, self._first))
        self._body, self._at = None, 0

    def _fail(self, error: Exception) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _look(self) -> None:
        """Give up an answer that stalls."""
        self._timer = None
        if self._answer is None or self._answer.done():
            return
        left = self.since + self._stall_seconds - self._loop.time()
        if left <= 0 and self._least == 1:
            self._fail(TimeoutError(f"no byte came for {self._stall_seconds:g} s"))
            return
        if left <= 0:  # less than the awaited piece may have come
            self._wake_at(1)
        self._timer = self._loop.call_later(max(left, _LEFT_SECONDS), self._look)
