"""Error responses over http in the formats of S3, Google and Azure: which requests are retried, and the messages of
errors."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamvid.errors import DatasetError
from streamvid.storage import client, filesystem, part
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.link import Link
from streamvid.storage.ranges import read_ranges
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from tests.support.clock import Clock
from tests.support.faulty_s3 import FAULTS, FaultyS3, faulty_s3
from tests.support.serving import Handler, serving
from tests.support.web import website

DATA = bytes(range(256)) * 40


@pytest.fixture
def site(site: FaultyS3) -> FaultyS3:
    site.objects = {"bucket/key": DATA}
    return site


@pytest.mark.parametrize("fault", [one for one in FAULTS if one not in ("stall", "redirect")])
def test_what_passes_is_waited_out_by_every_way_to_read(site: FaultyS3, fault: str) -> None:
    url, clock = f"{site.endpoint}/bucket/key", Clock()

    def failing(times: int) -> None:
        site.requests.clear()
        site.fault = lambda method, key, before: fault if before < times else None

    failing(2)
    assert read_ranges([(url, 0, 10), (url, 5000, 9000)], retry=clock.retry()) == [DATA[:10], DATA[5000:9000]]
    failing(2)
    assert filesystem.read_bytes(url, retry=clock.retry()) == DATA
    failing(2)
    assert fetched(url, clock.retry()) == DATA
    failing(2)
    found = filesystem.details(url, retry=clock.retry())
    assert found is not None
    assert found.size == len(DATA)
    failing(2)
    found = filesystem.details(url, retry=clock.retry(), hosts=())
    assert found is not None
    assert found.size == len(DATA)


def fetched(url: str, retry: Retry, length: int = len(DATA)) -> bytes:
    """A whole file."""
    found = bytearray()

    def write(block: bytes, start: int) -> None:
        found[start:] = block

    assert filesystem.fetch(url, write, length=length, mark="", retry=retry, link=Link()) == len(found)
    return bytes(found)


def test_a_large_file_that_comes_short_is_not_taken_for_a_damaged_one(site: FaultyS3, tmp_path: Path) -> None:
    site.fault = lambda method, key, before: "short" if method == "GET" and before < 4 else None
    with (
        ShardCache(tmp_path, limit_bytes=10**6, retry=Clock().retry()) as cache,
        cache.lease(f"{site.endpoint}/bucket/key", size=len(DATA), sha256=hashlib.sha256(DATA).hexdigest()) as lease,
    ):
        assert Path(lease.opened).read_bytes() == DATA


BIG = bytes(range(251)) * 20_000


@contextlib.contextmanager
def breaking(*, ranges: bool = True, etag: str = '"a"', each: int = 1 << 20) -> Iterator[tuple[str, list[str]]]:
    """A web server of one file, whose answers break off after some bytes; its URL, and the ranges asked for."""
    asked: list[str] = []

    class Breaking(Handler):
        def answer(self) -> None:
            wanted = self.headers.get("Range", "")
            asked.append(wanted)
            start = int(wanted[6:-1]) if wanted and ranges and self.headers.get("If-Range") == etag else 0
            body = BIG[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(BIG) - 1}/{len(BIG)}")
            if etag:
                self.send_header("ETag", etag)
            self.end_headers()
            # Without ranges, or an ETag that says that it is the same file, some answer must be whole.
            self.wfile.write(body[: each if len(asked) < 4 or start else None])
            self.close_connection = True

    with serving(Breaking) as port:
        yield f"http://127.0.0.1:{port}/big", asked


def test_a_large_file_goes_on_where_it_broke_off(caplog: pytest.LogCaptureFixture) -> None:
    """As from servers that end every connection after a minute. Only time without progress counts."""
    with breaking(each=400_000) as (url, asked):
        assert fetched(url, Clock().retry(0.4), len(BIG)) == BIG
    assert len(asked) > 10
    starts = [int(one[6:-1]) for one in asked[1:]]
    assert starts == sorted(set(starts))
    assert starts[0] > 0


def test_a_file_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a camera that sends some bytes a minute: a few bytes are no progress."""
    monkeypatch.setattr(part, "_PACE_SECONDS", 0.05)
    requests = []

    class Dripping(Handler):
        def answer(self) -> None:
            start = int(self.headers.get("Range", "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(BIG) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(BIG) - 1}/{len(BIG)}")
            self.send_header("ETag", '"a"')
            self.end_headers()
            requests.append(start)
            self.wfile.write(BIG[start:] if len(requests) > 30 else BIG[start : start + 9])
            time.sleep(0.2)
            self.close_connection = True

    with serving(Dripping) as port, pytest.raises(StorageUnavailable, match="tried"):
        filesystem.read_bytes(f"http://127.0.0.1:{port}/live", retry=Clock().retry(1))
    assert len(requests) > 1


@pytest.mark.parametrize(("ranges", "etag"), [(False, '"a"'), (True, ""), (True, 'W/"a"')])
def test_a_large_file_begins_again_where_it_cannot_go_on(ranges: bool, etag: str) -> None:
    """The server has no ranges, or the file may have been replaced meanwhile."""
    with breaking(ranges=ranges, etag=etag) as (url, asked):
        assert fetched(url, Clock().retry(), len(BIG)) == BIG
    assert len(asked) == 4
    assert ranges == (asked[1:] == [""] * 3)


def test_a_url_signed_for_get_alone_tells_its_size(site: FaultyS3) -> None:
    site.fault = lambda method, key, before: "403" if method == "HEAD" else None
    found = filesystem.details(f"{site.endpoint}/bucket/key?sig=1", retry=Clock().retry(), hosts=())
    assert found is not None
    assert (found.size, found.mark) == (len(DATA), f'"{hashlib.md5(DATA).hexdigest()}"')


XML = "<Error><Code>{}</Code><Message>{}</Message></Error>"


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "told"),
    [
        (400, XML.format("RequestTimeout", ""), {}, StorageUnavailable, "400 RequestTimeout"),
        (400, XML.format("RequestTimeTooSkewed", ""), {}, AccessRefused, "(RequestTimeTooSkewed)"),
        (403, XML.format("RequestTimeTooSkewed", ""), {}, AccessRefused, "this machine's clock"),
        (400, XML.format("ExpiredToken", ""), {}, AccessRefused, "refuses the credentials (ExpiredToken)"),
        (403, XML.format("AccessDenied", "Request has expired"), {}, AccessRefused, "(expired)"),
        (
            403,
            XML.format("AuthenticationFailed", "Signature not valid in the specified time frame"),
            {},
            AccessRefused,
            "(AuthenticationFailed)",
        ),
        (403, XML.format("AccessDenied", "no"), {}, AccessRefused, "or there is no such file"),
        (401, "", {}, AccessRefused, "access is refused"),
        (403, '{"error": {"errors": [{"reason": "rateLimitExceeded"}], "code": 403}}', {}, StorageUnavailable, "403"),
        (400, XML.format("SlowDown", ""), {}, StorageUnavailable, "SlowDown"),
        (409, XML.format("OperationAborted", ""), {}, StorageUnavailable, "OperationAborted"),
        (400, "", {"x-ms-error-code": "OperationTimedOut"}, StorageUnavailable, "OperationTimedOut"),
        (408, "", {}, StorageUnavailable, "408"),
        (425, "", {}, StorageUnavailable, "425"),
        (429, "too many", {}, StorageUnavailable, "429"),
        (400, "<html>what?</html>", {}, DatasetError, "400"),
        (404, XML.format("NoSuchKey", ""), {}, DatasetError, "it does not exist"),
        (410, "", {}, DatasetError, "410"),
        (302, "", {"Location": "http://["}, DatasetError, "it redirects to something that is no web address"),
        (302, "", {"Location": "?X-Amz-Signature=hunter2"}, DatasetError, "it redirects again and again"),
    ],
)
def test_the_body_of_an_answer_says_what_it_is(
    site: FaultyS3, status: int, body: str, headers: dict[str, str], kind: type[DatasetError], told: str
) -> None:
    url = f"{site.endpoint}/bucket/key?X-Amz-Signature=hunter2"
    site.answers["bucket/key"] = (status, body.encode(), headers)
    clock = Clock()
    for read in (
        lambda: read_ranges([(url, 0, 10)], retry=clock.retry(31)),
        lambda: filesystem.read_bytes(url, retry=clock.retry(31)),
        lambda: fetched(url, clock.retry(31)),
        lambda: filesystem.size(url, retry=clock.retry(31)),
        lambda: filesystem.details(url, retry=clock.retry(31), hosts=()),
    ):
        began = clock.now
        with pytest.raises(DatasetError, match=re.escape(told)) as error:
            _found(read())
        assert "hunter2" not in str(error.value)
        assert told == "it does not exist" or type(error.value) is kind
        assert clock.now - began == pytest.approx({StorageUnavailable: 31, AccessRefused: 30, DatasetError: 0}[kind])


@pytest.mark.parametrize(("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")])
def test_a_bucket_of_another_region(site: FaultyS3, status: int, code: str) -> None:
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    site.answers["bucket/key"] = (status, XML.format(code, "elsewhere").encode(), {})
    with pytest.raises(DatasetError, match=rf"another region \({code}\); check AWS_REGION and AWS_ENDPOINT_URL"):
        read_ranges([("s3://bucket/key", 0, 10)], retry=Clock().retry())


def _found(what: object) -> None:
    """Of a file that is missing there are no details."""
    if what is None:
        raise DatasetError("it does not exist")


def test_sessions_that_the_user_has_configured_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client.fsspec.config.conf, "http", {"client_kwargs": {"trust_env": True}})
    options = client._options("http", patient=True)["client_kwargs"]
    assert options["trust_env"] is True
    assert options["raise_for_status"] is not None


def test_a_proxy_of_the_environment_is_used_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As machines of a cluster need it: by a name that nobody but the proxy knows."""
    url, seen, passwords = "http://storage.invalid/key", set[str](), ["Basic bmFtZTpwYXNz"]

    class Proxy(Handler):
        def answer(self) -> None:
            seen.add(f"{self.command} {self.path}")
            if self.headers["Proxy-Authorization"] not in passwords:
                self.send(407)
            elif found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                start, end = int(found[1]), min(int(found[2]) + 1, len(DATA))
                self.send(206, DATA[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(DATA)}"})
            else:
                self.send(200, DATA)

    with serving(Proxy) as port:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://name:pass@127.0.0.1:{port}")
        assert read_ranges([(url, 5, 9)], retry=Clock().retry()) == [DATA[5:9]]
        assert filesystem.read_bytes(url, retry=Clock().retry()) == filesystem.read_bytes(url) == DATA
        assert filesystem.size(url) == filesystem.size(url, retry=Clock().retry()) == len(DATA)
        assert fetched(url, Clock().retry()) == DATA
        assert seen == {f"GET {url}", f"HEAD {url}"}
        passwords.clear()
        with pytest.raises(DatasetError, match="the proxy wants a name and password; check HTTP_PROXY"):
            read_ranges([(url, 5, 9)], retry=Clock().retry())
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with faulty_s3() as site:
            site.objects = {"bucket/key": DATA}
            assert filesystem.read_bytes(f"{site.endpoint}/bucket/key") == DATA


ESCAPED = "/a%20b/c+d%2Fe.mp4?k=a%2Fb%3a~%7E&sig=%E4+b%2B"


def test_an_escaped_address_is_requested_as_it_is() -> None:
    """Signatures cover each character of it, also where a server redirects to it."""
    with website() as site:
        site.files = {ESCAPED: DATA, "/%C3%BC%20%25.mp4?a=%22": DATA, "/%FF.mp4": DATA}
        site.redirects = {"/moved": f"{site.url}{ESCAPED}"}
        for path in (ESCAPED, "/moved", '/ü %.mp4?a="', '/x/../ü %25.mp4?a="', "/\udcff.mp4"):
            url = site.url + path
            assert filesystem.read_bytes(url) == filesystem.read_bytes(url, retry=Clock().retry()) == DATA
            assert filesystem.size(url) == filesystem.size(url, retry=Clock().retry()) == len(DATA)
            assert filesystem.details(url, hosts=()) is not None
            assert read_ranges([(url, 5, 9)], retry=Clock().retry()) == [DATA[5:9]]
            assert fetched(url, Clock().retry()) == DATA


@pytest.mark.parametrize(
    ("status", "what"), [(501, "does not know such a request"), (405, "does not know such a request"), (400, "log")]
)
@pytest.mark.parametrize("way", ["http", "s3"])
def test_what_a_storage_will_never_answer_is_not_asked_again(site: FaultyS3, status: int, what: str, way: str) -> None:
    """501 counted as an overload, so that its request was repeated for ten minutes."""
    clock = Clock()
    site.answers["bucket/key"] = (status, b"<Error><Code>Strange</Code></Error>", {})
    url = f"{site.endpoint}/bucket/key" if way == "http" else "s3://bucket/key"
    with pytest.raises(DatasetError, match=f"Cannot read {url}.*{what}"):
        read_ranges([(url, 0, 10)], retry=clock.retry())
    assert not clock.waits
