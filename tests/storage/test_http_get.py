"""GETs over connections that stay open, from a server that sends what it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from streamvid.storage import http_get
from streamvid.storage.http_get import Answer, Connections, Target, UnframedError, target_of

yarl = pytest.importorskip("yarl", reason="no yarl to test with: pip install yarl")

BODY = bytes(range(256)) * 8000
OK = b'HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n'


@dataclass
class Server:
    """Answers each request with the next script: pieces to send, seconds to wait, or None to break off."""

    target: Target
    scripts: list[Sequence[bytes | float | None]]
    requests: list[str] = field(default_factory=list)
    connections: int = 0
    closed: int = 0


@contextlib.asynccontextmanager
async def served(*scripts: Sequence[bytes | float | None]) -> AsyncIterator[Server]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        site.connections += 1
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                site.requests.append(request.decode())
                for one in site.scripts.pop(0):
                    if one is None:
                        writer.transport.abort()
                    elif isinstance(one, bytes):
                        writer.write(one)
                        await writer.drain()
                    else:
                        await asyncio.sleep(one)
        except (asyncio.IncompleteReadError, ConnectionError):
            site.closed += 1
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    site = Server(target_of(yarl.URL(f"http://127.0.0.1:{port}/bucket/key?a=b%2Fc", encoded=True)), list(scripts))
    try:
        yield site
    finally:
        server.close()


def run(test: Callable[[Connections], Awaitable[None]], *, stall_seconds: float = 20.0) -> None:
    async def with_connections() -> None:
        connections = Connections(None, connect_seconds=10.0, stall_seconds=stall_seconds)
        try:
            await test(connections)
        finally:
            connections.close()
            await asyncio.sleep(0)

    asyncio.run(with_connections())


async def get(connections: Connections, site: Server, most: int = len(BODY)) -> Answer:
    return await asyncio.wait_for(connections.get(site.target, {"Range": f"bytes=0-{most - 1}"}, most), 20)


def test_bodies_of_all_sizes_come_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever pieces, also those smaller than what the event loop is woken up for."""
    monkeypatch.setattr(http_get, "_PIECE", 100_000)
    sizes = [0, 1, 5000, 9000, 250_000, len(BODY)]
    whole = [[OK % size + BODY[:size]] for size in sizes]
    slowly = [OK % 300_000, 0.01, BODY[:70_000], 0.01, BODY[70_000:299_999], 0.01, BODY[299_999:300_000]]

    async def test(connections: Connections) -> None:
        async with served(*whole, slowly, [bytes([one]) for one in OK % 3 + b"abc"]) as site:
            for size in [*sizes, 300_000]:
                answer = await get(connections, site)
                assert (answer.status, answer.length, answer.headers["etag"]) == (206, size, '"1"')
                assert answer.body == BODY[:size]
                assert answer.body.readonly
            assert (await get(connections, site)).body == b"abc"
            assert site.connections == 1
            first, *lines = site.requests[0].split("\r\n")
            assert first == "GET /bucket/key?a=b%2Fc HTTP/1.1"
            assert f"Host: 127.0.0.1:{site.target.port}" in lines
            assert f"Range: bytes=0-{len(BODY) - 1}" in lines

    run(test)


def test_requests_side_by_side_have_connections_of_their_own() -> None:
    async def test(connections: Connections) -> None:
        async with served(*[[0.05, OK % 4 + b"data"]] * 6) as site:
            for _ in range(2):
                found = await asyncio.gather(*(get(connections, site) for _ in range(3)))
                assert [one.body for one in found] == [b"data"] * 3
            assert site.connections == 3

    run(test)


def test_a_connection_that_was_closed_unused_or_kept_too_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(connections: Connections) -> None:
        async with served([OK % 1 + b"a"], [None], [OK % 1 + b"b"], [OK % 1 + b"c"]) as site:
            assert (await get(connections, site)).body == b"a"
            assert (await get(connections, site)).body == b"b"  # after one that breaks off
            assert site.connections == 2
            monkeypatch.setattr(http_get, "_IDLE_SECONDS", -1.0)
            assert (await get(connections, site)).body == b"c"
            assert site.connections == 3

    run(test)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([None], ConnectionResetError),
        ([OK % 100 + b"half", None], asyncio.IncompleteReadError),
        ([b"HTTP/1.1 206", None], asyncio.IncompleteReadError),
        ([b"SSH-2.0 hello\r\n\r\n"], ConnectionError),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], ConnectionError),
        ([b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000], ConnectionError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"], UnframedError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], UnframedError),
        ([0.4], TimeoutError),
        ([OK % 100_000 + BODY[:50_000], 0.8], TimeoutError),
    ],
)
def test_what_is_no_answer_is_an_error_and_ends_the_connection(
    script: Sequence[bytes | float | None], kind: type[Exception]
) -> None:
    async def test(connections: Connections) -> None:
        async with served(script, [OK % 1 + b"a"]) as site:
            with pytest.raises(kind):
                await get(connections, site)
            if kind is UnframedError:  # it is taken to answer so always
                with pytest.raises(UnframedError):
                    await get(connections, site)
            else:
                assert (await get(connections, site)).body == b"a"
            assert site.connections == (1 if kind is UnframedError else 2)

    run(test, stall_seconds=0.2)


def test_a_body_that_comes_slowly_is_waited_for() -> None:
    """Each byte counts, however many the event loop would be woken up for."""
    slowly = [OK % 1000, *(step for n in range(8) for step in (BODY[n * 125 : n * 125 + 125], 0.06))]

    async def test(connections: Connections) -> None:
        async with served(slowly) as site:
            assert (await get(connections, site)).body == BODY[:1000]

    run(test, stall_seconds=0.2)


def test_a_longer_body_than_was_asked_for_is_not_read() -> None:
    async def test(connections: Connections) -> None:
        async with served([OK % 101 + BODY[:101]], [OK % 1 + b"a"]) as site:
            answer = await get(connections, site, most=100)
            assert (answer.length, answer.body) == (101, b"")
            await get(connections, site)
            assert site.connections == 2

    run(test)


@pytest.mark.parametrize(
    ("headers", "sent", "kept"),
    [
        (b"Content-Length: 20", b"<Code>SlowDown</Code>"[:20], True),
        (b"Transfer-Encoding: chunked", b"5\r\n<Code\r\n0\r\n\r\n", False),
        (b"Content-Length: 70000", BODY[:70_000], False),
    ],
)
def test_an_error_has_the_body_that_says_what_it_is(headers: bytes, sent: bytes, kept: bool) -> None:
    async def test(connections: Connections) -> None:
        head = b"HTTP/1.1 503 Slow Down\r\nX-Amz-Error-Code: SlowDown\r\n" + headers + b"\r\n\r\n"
        async with served([head + sent], [OK % 1 + b"a"]) as site:
            answer = await get(connections, site, most=4)
            assert (answer.status, answer.headers["x-amz-error-code"]) == (503, "SlowDown")
            assert answer.body == (sent if len(sent) < 70_000 else b"")
            await get(connections, site)
            assert site.connections == (1 if kept else 2)

    run(test)


def test_a_request_that_is_given_up_ends_its_connection() -> None:
    async def test(connections: Connections) -> None:
        async with served([OK % 9 + b"1", 0.1, b"2345"], [OK % 1 + b"a"]) as site:
            asking = asyncio.ensure_future(get(connections, site))
            while not site.requests:
                await asyncio.sleep(0.005)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert (await get(connections, site)).body == b"a"
            assert site.connections == 2

    run(test)


def test_bytes_after_an_answer_are_not_the_beginning_of_the_next() -> None:
    async def test(connections: Connections) -> None:
        async with served([OK % 1 + b"ab"], [OK % 1 + b"c", 0.02, b"d"], [OK % 1 + b"e"]) as site:
            assert [(await get(connections, site)).body for _ in range(2)] == [b"a", b"c"]
            await asyncio.sleep(0.1)
            assert (await get(connections, site)).body == b"e"
            assert site.connections == 3

    run(test)


def test_no_connection_is_an_error() -> None:
    async def test(connections: Connections) -> None:
        async with served() as site:
            pass
        with pytest.raises(ConnectionError):
            await get(connections, site)

    run(test)


@pytest.mark.parametrize("mark", ['"1"\r\nX: y', '"1\n"', '"\u00fc"'])
def test_a_header_cannot_begin_another(mark: str) -> None:
    async def test(connections: Connections) -> None:
        async with served() as site:
            with pytest.raises(ValueError, match="characters"):
                await connections.get(site.target, {"If-Match": mark}, 1)

    run(test)
