"""Ranges of objects from a server that misbehaves: which requests are retried, and which fail at once, with which
message."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streamvid.errors import DatasetError
from streamvid.storage import client, filesystem, link, ranges
from streamvid.storage.explain import AccessRefused, MissingFile, StorageUnavailable
from streamvid.storage.part import Part
from streamvid.storage.ranges import RemoteRanges, read_ranges
from streamvid.storage.retry import Retry
from streamvid.storage.s3_ranges import S3Ranges
from tests.support.clock import Clock
from tests.support.faulty_s3 import FAULTS, FaultyS3
from tests.support.s3_server import forget_s3_connections

DATA = bytes(range(256)) * 40
SECRET = "hunter2hunter2"


@pytest.fixture
def s3(site: FaultyS3) -> FaultyS3:
    site.objects = {"bucket/key": DATA}
    return site


def first(times: int, fault: str) -> Any:
    """That fault for the first requests of each kind."""
    return lambda method, key, before: fault if before < times else None


@pytest.mark.parametrize("fault", FAULTS)
def test_every_passing_fault_is_waited_out(s3: FaultyS3, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "stall":  # it counts as broken sooner
        monkeypatch.setattr(client, "STALL_SECONDS", 1.0)
        monkeypatch.setattr(link, "_UNKNOWN_LATE", 60.0)  # and is not asked for a second time before
        forget_s3_connections()
    clock = Clock()
    # A signed URL that is refused is followed by a request of botocore at once.
    s3.fault = first({"stall": 1, "403": 4, "redirect": 4}.get(fault, 2), fault)
    wanted = [("s3://bucket/key", 0, 10), ("s3://bucket/key", 5000, 9000)]
    assert read_ranges(wanted, retry=clock.retry()) == [DATA[:10], DATA[5000:9000]]
    assert clock.waits or fault == "reset"  # of a connection kept open, aiohttp itself makes another
    s3.requests.clear()
    assert filesystem.read_bytes("s3://bucket/key", retry=clock.retry()) == DATA
    assert len(s3.requests) >= 2


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("stall", "expired", "redirect")])
def test_a_lasting_fault_names_bucket_key_and_cause(s3: FaultyS3, fault: str) -> None:
    s3.fault = first(10**6, fault)
    clock = Clock()
    refused = fault == "403"
    with pytest.raises(AccessRefused if refused else StorageUnavailable, match="s3://bucket/key: ") as error:
        read_ranges([("s3://bucket/key", 0, 100)], retry=clock.retry(100))
    assert clock.now == pytest.approx(30 if refused else 100)
    cause = {
        "500": "500 InternalError", "503": "503 SlowDown", "empty 503": "503", "429": "429 TooManyRequests",
        "timeout": "400 RequestTimeout", "403": "access is refused",
        "reset": "Connection|ClientOSError", "cut": "(ClientPayloadError|IncompleteRead)", "short": "50 of 100 bytes",
    }[fault]  # fmt: skip
    assert re.search(cause, str(error.value)), str(error.value)


def test_a_lasting_redirect_is_no_lack_of_permission(s3: FaultyS3) -> None:
    """As of a bucket that the DNS does not know yet. If requests for its region are redirected, too, botocore makes
    them again and again."""
    s3.fault = lambda method, key, before: "redirect" if key == "bucket/key" else None
    clock = Clock()
    with pytest.raises(StorageUnavailable, match=r"bucket/key: the storage redirects for a while \(Temp"):
        read_ranges([("s3://bucket/key", 0, 100)], retry=clock.retry(100))
    assert clock.now == pytest.approx(100)
    s3.fault = lambda *_: "redirect"
    with pytest.raises(DatasetError, match=r"bucket/key: its bucket is in another region \(all is redirected\); check"):
        read_ranges([("s3://bucket/key", 0, 100)], retry=clock.retry(100))


def test_half_of_all_requests_fail(s3: FaultyS3) -> None:
    dice = random.Random(7)
    kinds = [name for name in FAULTS if name not in ("stall", "403", "expired")]
    s3.fault = lambda *_: dice.choice(kinds) if dice.random() < 0.5 else None
    wanted = [("s3://bucket/key", n * 100, n * 100 + 90) for n in range(100)]
    assert read_ranges(wanted, retry=Clock().retry()) == [DATA[a:b] for _, a, b in wanted]


def test_one_attempt_is_one_request(s3: FaultyS3) -> None:
    """The clients below do not multiply them."""
    s3.fault = first(3, "503")
    read_ranges([("s3://bucket/key", 0, 10)], retry=Clock().retry())
    assert len(s3.requests) == 4


def test_a_missing_object_is_an_error_at_once(s3: FaultyS3) -> None:
    clock = Clock()
    with pytest.raises(DatasetError, match="s3://bucket/none: it does not exist"):
        read_ranges([("s3://bucket/key", 0, 10), ("s3://bucket/none", 0, 10)], retry=clock.retry())
    assert clock.waits == []


def test_an_object_that_is_replaced_is_an_error_at_once(s3: FaultyS3) -> None:
    clock, reader = Clock(), RemoteRanges()
    reader.read([("s3://bucket/key", 0, 10)], retry=clock.retry())
    s3.objects["bucket/key"] = DATA[::-1]
    with pytest.raises(
        DatasetError, match=r"s3://bucket/key has changed while it was being read: its ETag was"
    ) as error:
        reader.read([("s3://bucket/key", 0, 10)], retry=clock.retry())
    assert not isinstance(error.value, StorageUnavailable)
    assert clock.waits == []


def test_a_known_etag_is_demanded(s3: FaultyS3) -> None:
    reader = RemoteRanges()
    for _ in range(2):
        reader.read([("s3://bucket/key", 0, 10), ("s3://bucket/key", 20, 30)], retry=Clock().retry())
    etag = f'"{hashlib.md5(DATA).hexdigest()}"'
    assert s3.matched == [None, etag, etag, etag]


def test_every_range_but_the_first_of_an_object_demands_its_etag(s3: FaultyS3) -> None:
    """However many are asked for at once, by however many threads."""
    s3.objects = {f"bucket/{n}": DATA + bytes([n]) for n in range(4)}
    reader, wanted = RemoteRanges(), [(f"s3://bucket/{n % 4}", n, n + 10) for n in range(80)]
    with ThreadPoolExecutor(4) as threads:
        read = [threads.submit(reader.read, wanted[n : n + 20], retry=Clock().retry()) for n in range(0, 80, 20)]
        assert all(one.result(120) for one in read)
    assert 80 <= len(s3.matched) <= 80 + reader.link.hedged  # of those that are asked again, some are cancelled
    assert 4 <= s3.matched.count(None) <= 4 + reader.link.hedged


def answer_with(monkeypatch: pytest.MonkeyPatch, wait: Callable[[int], Awaitable[None]]) -> None:
    """Ranges of "s3://bucket/key" come at once, after `wait`, which is given their start; none is asked
    for a second time."""

    async def read(_: object, fs: object, name: str, start: int, end: int, *__: Any, **___: Any) -> Part:
        await wait(start)
        return Part(DATA[start:end], '"etag"', len(DATA))

    monkeypatch.setattr(S3Ranges, "read", read)
    monkeypatch.setattr(link, "_UNKNOWN_LATE", 1e9)


def test_those_that_wait_for_a_first_range_that_fails_are_asked_for_side_by_side(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    together = asyncio.Event()

    async def wait(start: int) -> None:
        asked.append(start)
        if len(asked) == 1:
            raise ConnectionError
        if len(asked) == 8:
            together.set()
        await asyncio.wait_for(together.wait(), 120)  # for all others, and those for each other

    answer_with(monkeypatch, wait)
    read = RemoteRanges().read([("s3://bucket/key", n, n + 10) for n in range(8)], retry=Clock().retry())
    assert read == [DATA[n : n + 10] for n in range(8)]
    assert asked == [*range(8), 0]


def test_a_range_of_an_earlier_step_does_not_wait_for_the_first_of_a_later_one(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, begun, free = RemoteRanges(), threading.Event(), threading.Event()

    async def wait(start: int) -> None:
        if not start:
            begun.set()
            assert await asyncio.to_thread(free.wait, 120)

    answer_with(monkeypatch, wait)
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(reader.read, [("s3://bucket/key", 0, 10)], retry=Clock().retry(), turn=9)
        assert begun.wait(120)
        assert reader.read([("s3://bucket/key", 5, 9)], retry=Clock().retry(), turn=3) == [DATA[5:9]]
        assert not later.done()
        free.set()
        assert later.result(120) == [DATA[:10]]


def test_a_told_etag_is_demanded_of_the_first_range(s3: FaultyS3) -> None:
    """All ranges are asked for side by side; nobody waits for the first."""
    reader = RemoteRanges()
    etag = f'"{hashlib.md5(DATA).hexdigest()}"'
    reader.tell("s3://bucket", {"key": (etag, len(DATA))})
    wanted = [("s3://bucket/key", n, n + 10) for n in range(20)]
    assert reader.read(wanted, retry=Clock().retry()) == [DATA[n : n + 10] for n in range(20)]
    assert {*s3.matched} == {etag}


def test_a_copy_with_other_etags_is_read(s3: FaultyS3, caplog: pytest.LogCaptureFixture) -> None:
    """They are learned anew from then on, as where none are told, and said once."""
    s3.objects = {f"bucket/{n}": DATA + bytes([n]) for n in range(4)}
    reader, clock = RemoteRanges(), Clock()
    sizes = {str(n): ('"0123-2"', len(DATA) + (n != 3)) for n in range(4)}  # of the last, another size is told
    reader.tell("s3://bucket", sizes)
    s3.objects["bucket/other/key"] = DATA
    etag = f'"{hashlib.md5(DATA).hexdigest()}"'
    reader.tell("s3://bucket/other", {"key": (etag, len(DATA))})  # of another dataset, which is none
    wanted = [(f"s3://bucket/{n % 4}", n, n + 10) for n in range(40)]
    with caplog.at_level(logging.INFO, "streamvid.storage.ranges"):
        for _ in range(2):
            assert reader.read(wanted, retry=clock.retry()) == [DATA[n : n + 10] for n in range(40)]
    said = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "streamvid.storage.ranges"]
    assert sorted(level for level, _ in said) == ["INFO", "WARNING"]
    assert any(
        re.match(r"s3://bucket/\d does not have the ETag .*: the ETags of s3://bucket are learned", text)
        for _, text in said
    )
    assert any(
        f"s3://bucket/3 has {len(DATA) + 1} bytes, where its dataset says {len(DATA)}" in text for _, text in said
    )
    assert 4 <= s3.matched.count(None) <= 4 + reader.link.hedged
    s3.matched.clear()
    reader.read([("s3://bucket/other/key", 0, 9)], retry=clock.retry())
    # A request that was made again for those before may come late.
    others = {f'"{hashlib.md5(one).hexdigest()}"' for key, one in s3.objects.items() if key != "bucket/other/key"}
    assert {*s3.matched} - others == {etag}
    assert not clock.waits


def test_an_object_that_was_as_told_and_is_replaced_is_an_error(s3: FaultyS3) -> None:
    clock, reader = Clock(), RemoteRanges()
    reader.tell("s3://bucket", {"key": (f'"{hashlib.md5(DATA).hexdigest()}"', len(DATA))})
    reader.read([("s3://bucket/key", 0, 10)], retry=clock.retry())
    s3.objects["bucket/key"] = DATA[::-1]
    with pytest.raises(DatasetError, match="s3://bucket/key has changed while it was being read"):
        reader.read([("s3://bucket/key", 0, 10)], retry=clock.retry())
    other = RemoteRanges()  # which was not as told, and is replaced once more
    other.tell("s3://bucket", {"key": (f'"{hashlib.md5(DATA).hexdigest()}"', len(DATA))})
    assert other.read([("s3://bucket/key", 0, 10)], retry=clock.retry()) == [DATA[:-11:-1]]
    s3.objects["bucket/key"] = DATA
    with pytest.raises(DatasetError, match="s3://bucket/key has changed while it was being read"):
        other.read([("s3://bucket/key", 0, 10)], retry=clock.retry())


def test_a_server_without_etags(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told is asked for on and on; it may look at it although it says none."""
    monkeypatch.setattr(s3, "sends_etags", False)
    reader = RemoteRanges()
    reader.tell("s3://bucket", {"key": ('"abc"', len(DATA))})
    for _ in range(2):
        assert reader.read([("s3://bucket/key", n, n + 9) for n in range(9)], retry=Clock().retry())
    assert {*s3.matched} == {'"abc"'}


def test_a_server_that_ignores_if_match(s3: FaultyS3) -> None:
    """What it answers is compared, and held to."""
    s3.answers["bucket/key"] = 206, DATA[:10], {"ETag": '"new"', "Content-Range": f"bytes 0-9/{len(DATA)}"}
    reader = RemoteRanges()
    reader.tell("s3://bucket", {"key": ('"old"', len(DATA))})
    try:
        assert reader.read([("s3://bucket/key", 0, 10)] * 2, retry=Clock().retry()) == [DATA[:10]] * 2
        s3.answers["bucket/key"] = 206, DATA[:10], {"ETag": '"newer"'}
        with pytest.raises(DatasetError, match='its ETag was "new" and is "newer"'):
            reader.read([("s3://bucket/key", 0, 10)], retry=Clock().retry())
    finally:
        s3.answers.clear()


def test_an_object_is_signed_once_and_each_range_is_one_request(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = []
    sign = S3Ranges._sign

    async def noting(self: S3Ranges, fs: Any, name: str) -> Any:
        signed.append(name)
        return await sign(self, fs, name)

    monkeypatch.setattr(S3Ranges, "_sign", noting)
    s3.objects["bucket/other"] = DATA
    reader = RemoteRanges()
    wanted = [(f"s3://bucket/{name}", n, n + 50) for name in ("key", "other") for n in range(0, 1000, 50)]
    for _ in range(2):
        assert reader.read(wanted, retry=Clock().retry()) == [DATA[a:b] for _, a, b in wanted]
    assert 0 <= len(s3.requests) - 2 * len(wanted) <= reader.link.hedged  # some may be late on a loaded machine
    assert sorted(signed) == ["bucket/key", "bucket/other"]


def test_a_bucket_that_refuses_signed_urls_is_read_by_signed_headers(s3: FaultyS3) -> None:
    """As a policy can say, and a bucket of another region."""
    s3.refused_query = "X-Amz-Signature"
    reader, clock = RemoteRanges(), Clock()
    for _ in range(3):
        assert reader.read([("s3://bucket/key", 3, 9)], retry=clock.retry()) == [DATA[3:9]]
    assert clock.waits == []
    # The first was refused once; some may be late on a loaded machine.
    assert 0 <= len(s3.requests) - 4 <= reader.link.hedged


@pytest.mark.parametrize("signed", [True, False])
def test_a_whole_object_is_one_request_if_it_is_short(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    """Its size comes with its beginning; an empty one has no ranges."""
    monkeypatch.setattr(link, "_UNKNOWN_LATE", 1e9)  # none is asked for twice, however slow this machine is
    s3.objects["bucket/empty"] = b""
    s3.refused_query = "no such text" if signed else "X-Amz-Signature"
    for name, data in (("key", DATA), ("empty", b"")):
        filesystem.read_bytes(f"s3://bucket/{name}", retry=Clock().retry())
        s3.requests.clear()
        assert filesystem.read_bytes(f"s3://bucket/{name}", retry=Clock().retry()) == data
        assert [method for method, *_ in s3.requests] == ["GET"] * (1 if signed else 2)
    monkeypatch.setattr(ranges, "PART_BYTES", 4000)
    reader, clock = RemoteRanges(), Clock()
    assert reader.read_object("s3://bucket/key", most=len(DATA), retry=clock.retry()) == DATA
    with pytest.raises(DatasetError, match=f"it has {len(DATA)} bytes, where 9999 are the most"):
        reader.read_object("s3://bucket/key", most=9999, retry=clock.retry())
    with pytest.raises(MissingFile):
        reader.read_object("s3://bucket/none", most=9999, retry=clock.retry())
    assert not clock.waits


def test_an_object_that_is_replaced_between_its_parts_is_read_anew(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As dataset.json is by a revision: all of it is of one version, or it is an error."""
    monkeypatch.setattr(ranges, "PART_BYTES", 4000)
    seen = []

    def replaced(method: str, key: str, before: int) -> None:
        seen.append(before)
        if before in replacing:
            s3.objects[key] = bytes([before]) * 9000

    s3.fault = replaced
    replacing: Collection[int] = [1]
    assert RemoteRanges().read_object("s3://bucket/key", most=99999, retry=Clock().retry()) == bytes([1]) * 9000
    replacing = range(1, 99)
    with pytest.raises(DatasetError, match="has changed while it was being read"):
        RemoteRanges().read_object("s3://bucket/key", most=99999, retry=Clock().retry())
    assert max(seen) < 20


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_first_request_of_a_process_that_stalls_is_made_again(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Nothing is known of the storage yet; whatever asks."""
    monkeypatch.setattr(link, "_UNKNOWN_LATE", 0.05)
    s3.fault = lambda kind, key, before: "stall" if kind == method and not before else None
    clock = Clock()
    if method == "GET":
        assert filesystem.read_bytes("s3://bucket/key", retry=clock.retry()) == DATA
    else:
        assert filesystem.size("s3://bucket/key", retry=clock.retry()) == len(DATA)
        assert filesystem.exists("s3://bucket/key", retry=clock.retry())
    assert not clock.waits
    s3.go.set()
    s3.go.clear()


def test_a_server_that_knows_no_ranges_is_an_error(s3: FaultyS3) -> None:
    s3.ranges = False
    for start, end in ((10, 20), (len(DATA), 2 * len(DATA)), (0, 5)):
        with pytest.raises(DatasetError, match="s3://bucket/key: its server does not answer requests for ranges"):
            read_ranges([("s3://bucket/key", start, end)], retry=Clock().retry())
    assert read_ranges([("s3://bucket/key", 0, len(DATA))], retry=Clock().retry()) == [DATA]


@pytest.mark.parametrize("url", ["s3://bucket/key", "{}/bucket/key"])
def test_bytes_of_another_place_are_not_taken(s3: FaultyS3, url: str) -> None:
    """As of a proxy that mixes answers up."""
    s3.fault = first(2, "elsewhere")
    clock = Clock()
    assert read_ranges([(url.format(s3.endpoint), 100, 200)], retry=clock.retry()) == [DATA[100:200]]
    assert len(clock.waits) == 2
    s3.fault = first(10**6, "elsewhere")
    with pytest.raises(StorageUnavailable, match="/key: the storage sent bytes from 116 on, where 100 to 200"):
        read_ranges([(url.format(s3.endpoint), 100, 200)], retry=clock.retry(1))


@pytest.mark.parametrize("url", ["s3://bucket/key", "{}/bucket/key"])
@pytest.mark.parametrize("ranges_before", [True, False])
def test_answers_without_a_range_are_no_server_without_ranges(s3: FaultyS3, url: str, ranges_before: bool) -> None:
    """As of a cache on the way that has not got all of it yet."""
    reader, url = RemoteRanges(), url.format(s3.endpoint)
    if ranges_before:
        reader.read([(url, 0, 10)], retry=Clock().retry())
    s3.fault = lambda method, key, before: "whole" if before in (ranges_before, ranges_before + 1) else None
    assert reader.read([(url, 10, 20)], retry=Clock().retry()) == [DATA[10:20]]


@pytest.mark.parametrize("url", ["s3://bucket/key", "{}/bucket/key"])
def test_more_than_was_asked_for_is_not_held(s3: FaultyS3, url: str) -> None:
    s3.fault, s3.endless = first(3, "endless"), 0
    with pytest.raises(DatasetError, match="its server does not answer requests for ranges"):
        read_ranges([(url.format(s3.endpoint), 0, 100)], retry=Clock().retry())
    assert s3.endless < 1 << 26


def test_keys_of_any_characters(s3: FaultyS3) -> None:
    names = ["a b", "ü+%25", "x=1&y", "~tilde", "d/e/f.tar", "a'b(c)", "日本"]
    s3.objects |= {f"bucket/{name}": name.encode() * 9 for name in names}
    got = read_ranges([(f"s3://bucket/{name}", 0, 9) for name in names], retry=Clock().retry())
    assert got == [(name.encode() * 9)[:9] for name in names]


def test_connections_are_bounded(s3: FaultyS3) -> None:
    """By what the latency needs: 32 here."""
    reader = RemoteRanges()
    reader.link.measured(0.001, 100, 0.001)
    assert reader.link.limit == 32
    wanted = [("s3://bucket/key", n, n + 9) for n in range(300)]
    assert reader.read(wanted, retry=Clock().retry()) == [DATA[a:b] for _, a, b in wanted]
    assert s3.most_at_once <= 32


def test_a_range_behind_the_end_is_short_and_not_waited_for(s3: FaultyS3) -> None:
    clock = Clock()
    assert read_ranges([("s3://bucket/key", len(DATA) - 5, len(DATA) + 5)], retry=clock.retry()) == [DATA[-5:]]
    assert clock.waits == []


def test_refused_credentials_are_looked_up_anew(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file of credentials that another program has renewed."""
    forget_s3_connections()
    s3.fault = lambda method, key, before: "expired"
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        s3.fault = lambda *_: None

    assert read_ranges([("s3://bucket/key", 0, 3)], retry=Retry(600, lambda: clock.now, sleep)) == [DATA[:3]]
    fs, _ = client.locate("s3://bucket/key", patient=True)
    assert fs._s3._request_signer._credentials.access_key == "renewed"


def test_no_secret_is_told(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    forget_s3_connections()
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET[::-1])
    s3.fault = first(10**6, "403")
    with caplog.at_level(logging.DEBUG, logger="streamvid"), pytest.raises(AccessRefused) as error:
        read_ranges([("s3://bucket/key", 0, 10)], retry=Clock().retry(0.1))
    s3.fault = first(10**6, "reset")
    with caplog.at_level(logging.DEBUG, logger="streamvid"), pytest.raises(StorageUnavailable):
        read_ranges([(f"{s3.endpoint.replace('//', f'//me:{SECRET}@')}/x?token={SECRET}", 0, 1)], retry=Clock().retry())
    s3.fault = first(10**6, "cut")
    with pytest.raises(StorageUnavailable) as cut:
        read_ranges([("s3://bucket/key", 0, 100)], retry=Clock().retry(0.1))
    told = "".join(traceback.format_exception(cut.value)) + "".join(traceback.format_exception(error.value))
    assert "Amz-Signature" not in caplog.text + told
    assert caplog.text
    assert SECRET not in caplog.text + str(error.value)
    assert SECRET[::-1] not in caplog.text + str(error.value)


def test_no_secret_is_told_by_the_clients_below(
    s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At level DEBUG of all loggers: botocore's would tell session tokens and signatures."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET[::-1])
    forget_s3_connections()
    with caplog.at_level(logging.DEBUG):
        assert read_ranges([("s3://bucket/key", 0, 10)], retry=Clock().retry()) == [DATA[:10]]
        filesystem.write_bytes("s3://bucket/other", b"x")
        assert filesystem.exists("s3://bucket/other")
    assert {record.name for record in caplog.records if record.name.startswith("botocore")}
    for secret in (SECRET, SECRET[::-1], "Signature="):
        assert secret not in caplog.text
