"""streamvid/storage/upload.py: against a Ceph RGW, and against a server that misbehaves as it is told."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from streamvid.errors import DatasetError
from streamvid.storage import filesystem, upload
from streamvid.storage.retry import Retry
from streamvid.storage.upload import AT_ONCE, Upload, abort_upload
from tests.support.clock import Clock
from tests.support.faulty_s3 import WRITE_FAULTS, FaultyS3
from tests.support.s3_server import S3Server, forget_s3_connections

URL = "s3://bucket/folder/one.tar"
KEY = "bucket/folder/one.tar"


@dataclass
class Kept:
    """The id of an upload, in memory."""

    text: str = ""

    def read(self) -> str:
        return self.text

    def write(self, upload_id: str) -> None:
        self.text = upload_id


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PART_BYTES", 1000)


def put(data: bytes, kept: Kept | None, *, url: str = URL, step: int = 300, retry: Retry | None = None) -> None:
    with contextlib.closing(Upload(url, retry=retry or Clock().retry(), kept=kept)) as one:
        for start in range(0, len(data), step):
            one.write(memoryview(data)[start : start + step])
        one.finish()


def data_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def puts(site: FaultyS3) -> int:
    return sum(1 for method, _, _ in site.requests if method == "PUT")


def test_credentials_that_expire_while_a_file_is_uploaded_are_looked_up_anew(
    site: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    forget_s3_connections()
    keys, request, clock = list[str](), S3FileSystem.call_s3, Clock()

    def noted(fs: Any, *given: Any, **more: Any) -> Any:
        answer = request(fs, *given, **more)
        keys.append(fs._s3._request_signer._credentials.access_key)
        return answer

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        site.fault = lambda *_: None

    monkeypatch.setattr(S3FileSystem, "call_s3", noted)
    site.fault = lambda method, key, before: "expired" if len(keys) >= 2 else None
    put(data_of(5500), Kept(), retry=Retry(600, lambda: clock.now, sleep))
    assert site.objects[KEY] == data_of(5500)
    assert keys[0] != "renewed"
    assert keys[-1] == "renewed"
    forget_s3_connections()


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5500])
@pytest.mark.parametrize("checksums", [False, True])
def test_files_of_any_size_are_uploaded(site: FaultyS3, size: int, checksums: bool) -> None:
    site.checksums = checksums
    kept = Kept()
    put(data_of(size), kept)
    assert site.objects[KEY] == data_of(size)
    assert bool(kept.text) == (size >= 1000)
    assert not site.uploads
    if checksums:
        assert "x-amz-checksum-crc32c" in site.held[KEY]


@pytest.mark.parametrize(
    ("fault", "checksums"),
    [("flip", True), ("lost", True), *((fault, False) for fault in WRITE_FAULTS if fault != "403")],  # an expired token
)
def test_every_request_meets_every_fault_once(site: FaultyS3, fault: str, checksums: bool) -> None:
    site.checksums = checksums
    hit: set[tuple[str, str]] = set()

    def once(method: str, key: str, before: int) -> str | None:
        place = (method, site.requests[-1][2])  # the query names the part
        if place in hit or (fault == "flip" and method != "PUT"):
            return None
        hit.add(place)
        return fault

    site.fault = once
    put(data_of(5500), Kept())
    assert site.objects[KEY] == data_of(5500)
    assert not site.uploads or fault == "lost"  # an upload whose id has never come has no parts
    assert all(not parts for _, parts in site.uploads.values())


def test_redirects_of_a_minute_are_waited_out(site: FaultyS3) -> None:
    """aiohttp would follow them without a signature, and S3 refuse that, for which half a minute is waited alone."""
    clock = Clock()
    site.fault = lambda method, *_: "redirect" if method == "PUT" and clock.now < 60 else None
    put(data_of(600), None, retry=clock.retry())
    assert site.objects[KEY] == data_of(600)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kept", [Kept, lambda: None])
def test_what_is_taken_back_is_not_in_the_file(site: FaultyS3, seed: int, kept: Callable[[], Kept | None]) -> None:
    random_ = random.Random(seed)
    wanted = b""
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept())) as one:
        for number in range(8):
            stays, back = (data_of(random_.choice([0, 10, 300, 1000, 2700]), seed + number + n) for n in (0, 99))
            one.write(stays)
            one.mark()
            one.write(back)
            one.rewind()
            wanted += stays
        one.finish()
    assert site.objects[KEY] == wanted


def test_parts_that_were_there_and_are_taken_back_are_sent_again(site: FaultyS3) -> None:
    kept, data = Kept(), data_of(5500)
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept)) as killed:
        killed.write(data)
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept)) as one:
        one.write(data[:1500])
        one.mark()
        one.write(data_of(2000, 9))
        one.rewind()
        one.write(data[1500:])
        one.finish()
    assert site.objects[KEY] == data


@pytest.mark.parametrize("size", [600, 5500])
def test_a_changed_body_is_found_by_the_etag_and_sent_again(site: FaultyS3, size: int) -> None:
    """By a server that looks at nothing."""
    site.verifies = False
    site.fault = lambda method, _, before: "flip" if method == "PUT" and before < 2 else None
    put(data_of(size), Kept())
    assert site.objects[KEY] == data_of(size)


@pytest.mark.parametrize("size", [600, 5500])
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("strange_etags", [False, True])
def test_what_the_storage_holds_wrong_is_no_success(
    site: FaultyS3, size: int, checksums: bool, strange_etags: bool
) -> None:
    site.verifies, site.checksums, site.strange_etags = False, checksums, strange_etags
    site.fault = lambda method, *_: "flip" if method == "PUT" else None
    with pytest.raises(DatasetError, match=r"other bytes|BadDigest"):
        put(data_of(size), Kept(), retry=Retry(0.0))


@pytest.mark.parametrize("size", [600, 5500])
def test_where_etags_say_nothing_it_is_read_back(site: FaultyS3, size: int) -> None:
    site.strange_etags = True
    put(data_of(size), Kept())
    assert site.objects[KEY] == data_of(size)
    assert any(method == "GET" and wanted for method, _, wanted in site.requests)


def test_a_server_that_lists_no_parts_gets_all_of_them_again(site: FaultyS3) -> None:
    """At once: with credentials looked up again, they were asked for during 30 s."""
    site.lists_parts, kept, clock = False, Kept(), Clock()
    with contextlib.closing(Upload(URL, retry=clock.retry(), kept=kept)) as one:
        one.write(data_of(2500))
        first = kept.text
    put(data_of(2500), kept, retry=clock.retry())
    assert site.objects[KEY] == data_of(2500)
    assert kept.text != first
    assert not clock.waits


def test_a_server_that_refuses_checksums(site: FaultyS3) -> None:
    site.refuses_checksums = True
    put(data_of(5500), Kept())
    put(data_of(10), Kept(), url="s3://bucket/two")
    assert site.objects == {KEY: data_of(5500), "bucket/two": data_of(10)}


@pytest.mark.parametrize("checksums", [False, True])
def test_an_unfinished_one_is_gone_on_with(site: FaultyS3, checksums: bool) -> None:
    """Parts that are there are not sent again, but for one that is another."""
    site.checksums = checksums
    kept, data = Kept(), data_of(5500)
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept)) as one:
        one.write(data[:4200])
    assert KEY not in site.objects
    ((_, parts),) = site.uploads.values()
    there = set(parts)
    assert there <= {1, 2, 3, 4}
    parts[1] = data_of(1000, seed=9)
    site.requests.clear()
    put(data, kept)
    assert site.objects[KEY] == data
    assert puts(site) == 6 - len(there) + 1
    assert not site.uploads


def test_an_upload_that_was_aborted_is_begun_anew(site: FaultyS3) -> None:
    kept = Kept("another")
    put(data_of(3000), kept)
    assert site.objects[KEY] == data_of(3000)
    assert kept.text != "another"


def test_another_process_completes_it(site: FaultyS3) -> None:
    """Two packs of one fingerprint may run at once."""
    kept, data = Kept(), data_of(5500)
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept)) as first:
        first.write(data[:2500])
        put(data, kept)
        first.write(data[2500:])
        first.finish()
    assert site.objects[KEY] == data


def test_another_process_aborts_it(site: FaultyS3) -> None:
    kept, data = Kept(), data_of(5500)
    with contextlib.closing(Upload(URL, retry=Clock().retry(), kept=kept)) as first:
        first.write(data[:2500])
        abort_upload(URL, kept.text)
        first.write(data[2500:])
        with pytest.raises(DatasetError, match="ended by others"):
            first.finish()
    assert KEY not in site.objects


def test_no_part_is_sent_before_its_id_is_kept(site: FaultyS3) -> None:
    class Refuses(Kept):
        def write(self, upload_id: str) -> None:
            raise DatasetError("no")

    with pytest.raises(DatasetError, match="no"):
        put(data_of(5500), Refuses())
    ((_, parts),) = site.uploads.values()
    assert not parts


def test_few_parts_are_under_way(site: FaultyS3) -> None:
    """A writer waits for a server that does not answer."""
    site.fault = lambda method, *_: "503" if method == "PUT" else None
    with pytest.raises(DatasetError, match="503"):
        put(data_of(1000 * (AT_ONCE + 3)), Kept(), retry=Retry(0.0))
    assert len({query for method, _, query in site.requests if method == "PUT"}) <= AT_ONCE + 1


def test_an_error_that_lasts_is_told_without_secrets(site: FaultyS3) -> None:
    site.fault = lambda *_: "503"
    with pytest.raises(DatasetError, match=r"Cannot write s3://bucket/folder/one.tar: .*tried") as caught:
        put(data_of(5500), Kept(), retry=Clock().retry(5.0))
    assert "svsecret" not in str(caught.value)


def test_closing_ends_the_waiting(site: FaultyS3) -> None:
    site.fault = lambda method, *_: "503" if method == "PUT" else None
    one = Upload(URL, retry=Retry(600.0), kept=Kept())
    one.write(data_of(1000))
    one.close()


def test_an_upload_to_ceph_is_resumed_and_leaves_others_alone(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that are there stay; uploads of others are not touched; nothing is visible before the end."""
    monkeypatch.setattr(upload, "PART_BYTES", 5 << 20)
    fs, kept, data = s3_server.filesystem(), Kept(), os.urandom(12 << 20)
    url, there = f"s3://{s3_bucket}/up/one.tar", {"Bucket": s3_bucket, "Key": "up/one.tar"}
    others = fs.call_s3("create_multipart_upload", **there)["UploadId"]
    with contextlib.closing(Upload(url, retry=Retry(30.0), kept=kept)) as first:
        first.write(data[: 11 << 20])
        first._under_way[0].result()
    assert not filesystem.exists(url)
    parts = fs.call_s3("list_parts", UploadId=kept.text, **there)["Parts"]
    assert {part["PartNumber"] for part in parts} >= {1}
    put(data, kept, url=url, step=1 << 20, retry=Retry(30.0))
    assert filesystem.read_bytes(url) == data
    assert [one["UploadId"] for one in fs.call_s3("list_multipart_uploads", Bucket=s3_bucket)["Uploads"]] == [others]
    with contextlib.closing(Upload(url, retry=Retry(30.0), kept=(again := Kept()))) as second:
        second.write(data[: 6 << 20])
    abort_upload(url, again.text)
    abort_upload(url, again.text)
    assert [one["UploadId"] for one in fs.call_s3("list_multipart_uploads", Bucket=s3_bucket)["Uploads"]] == [others]
    abort_upload(url, others)
    assert filesystem.read_bytes(url) == data
