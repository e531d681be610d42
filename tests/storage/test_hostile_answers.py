"""Hostile responses of storages, byte by byte: to signed URLs, to requests of botocore, and over http://."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamvid.errors import DatasetError, StreamvidError
from streamvid.storage import filesystem, part, s3_ranges
from streamvid.storage.explain import NoRangesError, StorageUnavailable
from streamvid.storage.http_ranges import size_and_mark
from streamvid.storage.link import Link
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from tests.support.clock import Clock
from tests.support.s3_server import S3Server, s3_environment
from tests.support.serving import Handler
from tests.support.serving import serving as serving_all

pytestmark = pytest.mark.usefixtures("quick_retries")

OBJECT = bytes(range(256)) * 200
RANGES = [(0, 1000), (5000, 9000), (20000, 20100)]
ZIPPED = gzip.compress(OBJECT)
REFUSED = b"HTTP/1.1 403 F\r\nContent-Length: 40\r\n\r\n<Error><Code>AccessDenied</Code></Error>"
NO_HEAD = b"HTTP/1.1 403 F\r\nContent-Length: 0\r\n\r\n"
ENDLESS = 1 << 30

Send = Callable[[bytes], object]
Answer = Callable[[Send, int, int, int], object]
"""Sends an answer to a request for bytes [start, end), of a number that counts from 0."""


def whole(start: int, end: int, **headers: str) -> bytes:
    """A right answer, with some headers replaced."""
    body = OBJECT[start:end]
    all_of_them = {
        "Content-Range": f"bytes {start}-{min(end, len(OBJECT)) - 1}/{len(OBJECT)}", "ETag": '"aaa"',
        "Content-Length": str(len(body)),
    } | {name.replace("_", "-"): value for name, value in headers.items()}  # fmt: skip
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_of_them.items() if value)
    return f"HTTP/1.1 206 P\r\n{lines}\r\n".encode("latin-1") + body


def endless(send: Send, head: bytes) -> None:
    """A body in chunks that never ends: until the client hangs up, or a gigabyte."""
    send(head + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(ENDLESS >> 16):
        send(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    raise AssertionError("all of it was taken")


@contextlib.contextmanager
def serving(answer: Answer, *, signed: bool = True, heads: bool = True) -> Iterator[str]:
    """A server of one object; where URLs are not `signed`, those of S3 are refused; without `heads`, so are
    HEADs. Its address."""
    count = 0

    def talk(client: socket.socket) -> None:
        nonlocal count
        with contextlib.suppress(OSError), client, client.makefile("rb") as lines:
            while line := lines.readline():
                head = b"".join(iter(lines.readline, b"\r\n"))
                found = re.search(rb"Range: bytes=(\d+)-(\d+)", head, re.IGNORECASE)
                if b"X-Amz-Signature" in line and not signed:
                    client.sendall(REFUSED)
                    continue
                if line.startswith(b"HEAD"):
                    client.sendall(
                        NO_HEAD if not heads else whole(0, len(OBJECT)).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                    )
                    continue
                number, count = count, count + 1
                start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(OBJECT))
                answer(client.sendall, start, end, number)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            with s3_environment(S3Server(address)):
                yield address
        finally:
            server.shutdown(socket.SHUT_RDWR)


WAYS = ("signed", "botocore", "http")


def read(way: str, answer: Answer, seconds: float = 600) -> list[bytes]:
    with serving(answer, signed=way != "botocore") as address:
        url = f"{address}/box/key?X-Amz-Signature=sesame" if way == "http" else "s3://box/key"
        return RemoteRanges().read([(url, *one) for one in RANGES], retry=Clock().retry(seconds))


MEANINGLESS = [
    {"Content_Range": "bytes 0-999/" + "9" * 5000}, {"Content_Range": "\x1b[31m"}, {"Content_Range": ""},
    {"ETag": '"\xff\xfe"'}, {"ETag": '"\x1b[31m"'}, {"ETag": f'"{"a" * 7000}"'}, {"Content_Encoding": "zap"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "headers"),
    # botocore takes an answer with other letters than ASCII's for a broken one.
    [(way, one) for way in WAYS for one in MEANINGLESS if way != "botocore" or str(one).find("\xff") < 0],
    ids=lambda one: str(one)[:40],
)
def test_headers_that_mean_nothing_do_no_harm(way: str, headers: dict[str, str]) -> None:
    if "Content_Range" in headers and headers["Content_Range"].startswith("bytes 0"):
        answer: Answer = lambda send, start, end, _: send(  # noqa: E731
            whole(start, end, Content_Range=f"bytes {start}-{end - 1}/{'9' * 5000}")
        )
    else:
        answer = lambda send, start, end, _: send(whole(start, end, **headers))  # noqa: E731
    assert read(way, answer) == [OBJECT[start:end] for start, end in RANGES]


@pytest.mark.parametrize("way", WAYS)
def test_an_endless_body_of_unknown_length_is_not_held(way: str) -> None:
    with pytest.raises(DatasetError, match=r"does not answer requests for ranges of bytes: .* fetched .fetch='shards'"):
        read(way, lambda send, *_: endless(send, b'HTTP/1.1 206 P\r\nETag: "a"\r\n'))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "first",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b'HTTP/1.1 206 P\r\nETag "a"\x1b[2J\r\n\r\n',
        b"HTTP/1.1 206 P\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 206 P\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 416 N\r\nContent-Range: bytes */51200\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 416 N\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 206 P\r\nETag: "aaa"\r\nContent-Length: 5\r\n\r\nabcde',
    ],
)
def test_one_answer_that_cannot_be_is_asked_for_again(way: str, first: bytes) -> None:
    def answer(send: Send, start: int, end: int, number: int) -> None:
        send(whole(start, end) if number else first)

    assert read(way, answer) == [OBJECT[start:end] for start, end in RANGES]


def test_a_date_that_botocore_cannot_parse_is_a_broken_answer() -> None:
    def answer(send: Send, start: int, end: int, number: int) -> None:
        send(whole(start, end, **({} if number else {"Last_Modified": "yesterday"})))

    assert read("botocore", answer) == [OBJECT[start:end] for start, end in RANGES]


@pytest.mark.parametrize("way", ["signed", "http"])
def test_a_page_of_a_gateway_is_not_taken_from_a_server_that_knows_ranges(way: str) -> None:
    def answer(send: Send, start: int, end: int, number: int) -> None:
        page = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
        send(page if start and number in (1, 2) else whole(start, end))

    with serving(answer) as address:
        url = f"{address}/box/key" if way == "http" else "s3://box/key"
        remote = RemoteRanges()
        for start, end in RANGES:
            assert remote.read([(url, start, end)], retry=Clock().retry()) == [OBJECT[start:end]]


@pytest.mark.parametrize("status", [204, 304, 101])
@pytest.mark.parametrize("way", ["signed", "http"])
def test_an_answer_of_no_content_is_not_the_end_of_the_file(way: str, status: int) -> None:
    with pytest.raises(DatasetError, match=str(status)):
        read(way, lambda send, *_: send(b"HTTP/1.1 %d X\r\n\r\n" % status))


@pytest.mark.parametrize("way", ["signed", "http"])
@pytest.mark.parametrize("head", [True, False])
def test_an_answer_that_drips_is_given_up(way: str, head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (part, s3_ranges):
        monkeypatch.setattr(module, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(part, "_PACE_SECONDS", 0.5)

    def answer(send: Send, start: int, end: int, number: int) -> None:
        data = whole(start, end)
        if number > 2:
            send(data)
            return
        at = 5 if head else len(data) - 90
        send(data[:at])
        for byte in data[at : at + 80]:
            time.sleep(0.1)
            send(bytes([byte]))

    assert read(way, answer) == [OBJECT[start:end] for start, end in RANGES]


def test_a_signed_url_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def cut(send: Send, start: int, end: int, number: int) -> None:
        send(whole(start, end)[:-9])
        raise ConnectionError  # the server hangs up

    with contextlib.suppress(StreamvidError):
        read("http", lambda send, *_: send(b"HTTP/1.1 416 N\r\nContent-Length: 0\r\n\r\n"), 0)
    with contextlib.suppress(StreamvidError):
        read("http", cut, 0)
    assert "sesame" not in caplog.text


def test_a_size_of_thousands_of_digits_is_none() -> None:
    def answer(send: Send, start: int, end: int, number: int) -> None:
        send(whole(0, 1, Content_Range="bytes 0-0/" + "9" * 5000))

    with serving(answer, heads=False) as address, pytest.raises(DatasetError, match="no size"):
        size_and_mark(f"{address}/box/key", ())


def test_a_file_that_never_ends_does_not_fill_the_disk() -> None:
    came = []
    with (
        serving(lambda send, *_: endless(send, b"HTTP/1.1 200 OK\r\n")) as address,
        pytest.raises(StorageUnavailable),
    ):
        filesystem.fetch(
            f"{address}/box/key", lambda block, _: came.append(len(block)), length=10 << 20, mark="", retry=Retry(0),
            link=Link(),
        )  # fmt: skip
    assert sum(came) <= 10 << 20


def _chunks(data: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (data[:200], data[200:])) + b"0\r\n\r\n"


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunks(OBJECT),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n" + _chunks(ZIPPED),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + OBJECT,
    ],
    ids=["chunks", "gzip", "close"],
)  # fmt: skip
def test_a_web_server_need_not_give_the_size_of_a_file(answer: bytes, heads: bool, tmp_path: Path) -> None:
    """Many compress text as they send it."""
    head = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    class Server(Handler):
        def answer(self) -> None:
            sent = head if self.command == "HEAD" else answer
            self.wfile.write(sent if heads or self.command == "GET" else NO_HEAD)
            self.close_connection = True

    digest = hashlib.sha256(OBJECT).hexdigest()
    with serving_all(Server) as port, ShardCache(tmp_path, limit_bytes=10**6) as cache:
        url = f"http://127.0.0.1:{port}/file"
        assert filesystem.read_bytes(url, retry=Retry(0)) == OBJECT
        with pytest.raises(DatasetError, match="more than 9999 bytes"):
            filesystem.read_bytes(url, most=9999, retry=Retry(0))
        with cache.lease(url, size=len(OBJECT), sha256=digest) as lease:
            assert Path(lease.opened).read_bytes() == OBJECT


def test_ranges_of_what_a_server_compresses_are_none() -> None:
    """They are asked for uncompressed; where that is ignored, it is no outage, and whole files are right."""

    def answer(send: Send, start: int, end: int, number: int) -> None:
        body = gzip.compress(OBJECT)[start:end]
        send(whole(start, end, Content_Encoding="gzip", Content_Length=str(len(body))).partition(b"\r\n\r\n")[0])
        send(b"\r\n\r\n" + body)

    with pytest.raises(NoRangesError):
        read("http", answer)
