"""Ranges of objects from a server that misbehaves: what is asked for again, what is an error at once, what it says."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from streamvid.errors import DatasetError
from streamvid.storage import client, filesystem
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.ranges import read_ranges
from streamvid.storage.retry import Retry
from tests.support.clock import Clock
from tests.support.faulty_s3 import FAULTS, FaultyS3, faulty_s3
from tests.support.s3_server import forget_s3_connections

DATA = bytes(range(256)) * 40
SECRET = "hunter2hunter2"


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyS3]:
    """One for all tests of this module, as a client of S3 takes long to make."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    with faulty_s3() as site:
        yield site


@pytest.fixture
def s3(server: FaultyS3) -> FaultyS3:
    server.fault = lambda *_: None
    server.objects = {"bucket/key": DATA}
    server.requests.clear()
    return server


def first(times: int, fault: str) -> Any:
    """That fault for the first requests of each kind."""
    return lambda method, key, before: fault if before < times else None


@pytest.mark.parametrize("fault", FAULTS)
def test_every_passing_fault_is_waited_out(s3: FaultyS3, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "stall":  # it counts as broken sooner
        monkeypatch.setattr(client, "STALL_SECONDS", 1.0)
        forget_s3_connections()
    clock = Clock()
    s3.fault = first(1 if fault == "stall" else 2, fault)
    wanted = [("s3://bucket/key", 0, 10), ("s3://bucket/key", 5000, 9000)]
    assert read_ranges(wanted, retry=clock.retry()) == [DATA[:10], DATA[5000:9000]]
    assert clock.waits or fault == "reset"  # of a connection kept open, aiohttp itself makes another
    s3.requests.clear()
    assert filesystem.read_bytes("s3://bucket/key", retry=clock.retry()) == DATA
    assert len(s3.requests) > 2


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("stall", "expired")])
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
        "reset": "Connection", "cut": "(ClientPayloadError|IncompleteRead)", "short": "50 of 100 bytes",
    }[fault]  # fmt: skip
    assert re.search(cause, str(error.value)), str(error.value)


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
    clock, etags = Clock(), dict[str, str]()
    read_ranges([("s3://bucket/key", 0, 10)], retry=clock.retry(), etags=etags)
    s3.objects["bucket/key"] = DATA[::-1]
    with pytest.raises(
        DatasetError, match=r"s3://bucket/key has changed while it was being read: its ETag was"
    ) as error:
        read_ranges([("s3://bucket/key", 0, 10)], retry=clock.retry(), etags=etags)
    assert not isinstance(error.value, StorageUnavailable)
    assert clock.waits == []


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

    fs, _ = client.locate("s3://bucket/key", patient=True)
    assert read_ranges([("s3://bucket/key", 0, 3)], retry=Retry(600, lambda: clock.now, sleep)) == [DATA[:3]]
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
    assert caplog.text
    assert SECRET not in caplog.text + str(error.value)
    assert SECRET[::-1] not in caplog.text + str(error.value)
