"""Packing videos from web servers, buckets and mounted storages that fail: what passes is waited out, and what does not
costs its video alone."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

import streamvid as sv
from streamvid.errors import DatasetError, InputError, VideoError
from streamvid.inspection.verify import verify
from streamvid.packing import fingerprints, process_source, source_file
from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.storage import listing
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from tests.support.clips import write
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.packed import SMALL
from tests.support.serving import Handler, serving

pytestmark = pytest.mark.usefixtures("user", "quick_retries")

NAMES = ("a", "b", "c")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FaultyS3]:
    """Three videos, of a bucket and of a web server."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    data = write(SMALL, tmp_path / "clip.mp4").read_bytes()
    with faulty_s3() as served:
        served.objects = {f"bucket/{name}.mp4": data for name in NAMES}
        yield served


@pytest.fixture(params=["web", "s3"])
def table(request: pytest.FixtureRequest, site: FaultyS3, tmp_path: Path) -> Path:
    """A list of the videos."""
    return listed(tmp_path, site.endpoint + "/bucket" if request.param == "web" else "s3://bucket")


def listed(tmp_path: Path, folder: str) -> Path:
    found = tmp_path / "list.csv"
    found.write_text("path\n" + "".join(f"{folder}/{name}.mp4\n" for name in NAMES))
    return found


def reasons(report: Any) -> dict[str, str]:
    return {one.source: one.reason for one in report.rejected}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        *(("s3", fault) for fault in ("503", "429", "expired", "cut")),
        *(("web", fault) for fault in ("empty 503", "timeout", "reset", "cut")),
    ],
    indirect=["table"],
)
def test_an_outage_is_waited_out(site: FaultyS3, table: Path, tmp_path: Path, fault: str) -> None:
    site.fault = lambda method, key, before: fault if method == "GET" and "b.mp4" in key and before < 2 else None
    report = pack(table, tmp_path / "packed", progress=False)
    assert (report.clips, report.rejected) == (3, ())


def test_an_outage_that_lasts_ends_the_pack_and_the_same_command_goes_on(
    site: FaultyS3, table: Path, tmp_path: Path
) -> None:
    down = True
    site.fault = lambda method, key, before: "503" if down and method == "GET" and "b.mp4" in key else None
    with pytest.raises(StorageUnavailable, match=r"503.*It was tried"):
        pack(table, tmp_path / "packed", retry_for=0.5, progress=False)
    down = False
    assert pack(table, tmp_path / "packed", progress=False).clips == 3


def test_an_archived_video_costs_itself_alone(site: FaultyS3, table: Path, tmp_path: Path) -> None:
    """Of a storage class such as Glacier, into which a rule moves old objects."""
    site.fault = lambda method, key, before: "archived" if method == "GET" and "b.mp4" in key else None
    report = pack(table, tmp_path / "packed", progress=False)
    assert report.clips == 2
    assert "it is in an archive" in next(iter(reasons(report).values()))


def test_a_bucket_behind_a_proxy_without_head(site: FaultyS3, tmp_path: Path) -> None:
    site.fault = lambda method, key, before: "403" if method == "HEAD" else None
    assert pack("s3://bucket/a.mp4", "s3://bucket/packed", progress=False).clips == 1
    report = pack(["s3://bucket/a.mp4", "s3://bucket/b.mp4"], "s3://bucket/packed", append=True, progress=False)
    assert (report.clips, report.skipped) == (1, ("a.mp4",))
    assert index("s3://bucket/c.mp4", tmp_path / "indexed", progress=False).clips == 1
    assert verify("s3://bucket/packed").ok
    with sv.StreamLoader(
        "s3://bucket/packed", batch_size=2, sampling=sv.Window(4), fetch="shards", cache_dir=tmp_path / "cache"
    ) as loader:
        assert [len(batch["key"]) for batch in loader] == [2]
    with pytest.raises(InputError, match=r"Cannot list s3://bucket/d\.mp4: it does not exist"):
        pack("s3://bucket/d.mp4", tmp_path / "none", progress=False)


def test_an_object_is_packed_from_a_bucket_that_may_not_be_listed(site: FaultyS3, tmp_path: Path) -> None:
    site.fault = lambda method, key, before: None if key in site.objects else "403"
    assert pack("s3://bucket/a.mp4", tmp_path / "packed", progress=False).clips == 1
    with pytest.raises(InputError, match=r"Cannot list s3://bucket/folder: access is refused"):
        pack("s3://bucket/folder", tmp_path / "none", progress=False)


@pytest.mark.parametrize("pattern", ["", "**/*.mp4"])
def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path, pattern: str) -> None:
    """fsspec takes a folder for empty if the connection breaks when it is listed. A dead link is left out."""
    clip, broken = write(SMALL, tmp_path / "clip.mp4").read_bytes(), [True]
    pages = {"/": b'<a href="b/">b</a><a href="a.mp4">a</a><a href="none/">none</a>', "/b": b'<a href="/b/b.mp4">b</a>'}

    class Listing(Handler):
        def answer(self) -> None:
            if self.path == "/b" and broken:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                self.connection.close()
                self.close_connection = True
            elif self.path.endswith(".mp4") or self.path in pages:
                self.send(200, pages.get(self.path, clip), {"Content-Type": "text/html"})
            else:
                self.send(404)

    with serving(Listing) as port:
        with pytest.raises(StorageUnavailable, match=r"Cannot list http://.*/b: the storage"):
            pack(f"http://127.0.0.1:{port}/{pattern}", tmp_path / "packed", progress=False)
        broken.clear()
        assert pack(f"http://127.0.0.1:{port}/{pattern}", tmp_path / "packed", progress=False).clips == 2


@pytest.mark.parametrize("pattern", ["", "*.mp4", "?token=q7/q7"])
def test_listings_of_web_servers_are_read_as_browsers_do(tmp_path: Path, pattern: str) -> None:
    """Of Apache's a video with an apostrophe was missing without a word, and one with & was rejected; of Caddy's no
    video was found."""
    clip = write(SMALL, tmp_path / "clip.mp4").read_bytes()
    page = """<A HREF="?C=N;O=D">Name</A> <a class=x href="a'b.mp4">x</a> <a title="c" href='c&amp;d.mp4'>x</a>
        <a href="./e%20f.mp4">x</a> <a href=g+h.mp4>x</a> <a href="#top">x</a> <a href="..">x</a> <a href="">x</a>
        <a href="/v/i.mp4">x</a> <a href="./e%20f.mp4#t">x</a> <a href="/w/other.mp4">x</a> <a href="http://[">x</a>
        <a href="one/">x</a> <a href="./two/">x</a>"""

    class Listing(Handler):
        def answer(self) -> None:
            found = ".mp4" in self.path
            path, _, query = self.path.partition("?")
            if unquote(query) != pattern.partition("?")[2]:
                self.send(403)
                return
            shown = page if path == "/v/" else '<a href="j.mp4">x</a>'
            self.send(200, clip if found else shown.encode(), {"Content-Type": "video/mp4" if found else "text/html"})

    with serving(Listing) as port:
        report = pack(f"http://127.0.0.1:{port}/v/{pattern}", tmp_path / "packed", progress=False)
    below = set() if "*" in pattern else {"one/j.mp4", "two/j.mp4"}
    found = {name.partition("?")[0] for name in sv.Dataset.open(tmp_path / "packed").clips.source}
    assert (report.rejected, found) == ((), {"a'b.mp4", "c&d.mp4", "e%20f.mp4", "g+h.mp4", "i.mp4"} | below)


def test_a_page_of_links_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_PAGE_BYTES", 1000)

    class Endless(Handler):
        def answer(self) -> None:
            self.send(200, 50 * b"<a href='a.mp4'>a</a>", {"Content-Type": "text/html"})

    with (
        serving(Endless) as port,
        pytest.raises(InputError, match=r"page of links http://.*/v/ has more than 1.0 kB"),
    ):
        pack(f"http://127.0.0.1:{port}/v/", tmp_path / "packed", progress=False)


def test_a_live_stream_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never ends, and its server gives no size."""
    monkeypatch.setattr(source_file, "_MOST_UNSIZED_BYTES", 3 << 20)
    sent, clip = [0], write(SMALL, tmp_path / "clip.mp4").read_bytes()

    class Live(Handler):
        def answer(self) -> None:
            if "clip" in self.path:
                self.send(200, clip)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while self.command == "GET" and sent[0] < 64 << 20:
                self.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                sent[0] += 1 << 16

    with serving(Live) as port:
        (tmp_path / "list.csv").write_text(
            "".join(
                f"{line}\n"
                for line in ("path", f"http://127.0.0.1:{port}/live.ts", f"http://127.0.0.1:{port}/clip.mp4")
            )
        )
        report = pack(tmp_path / "list.csv", tmp_path / "packed", progress=False)
    assert report.clips == 1
    assert "its server gives no size, and sends more than 3145728, as a live stream" in reasons(report)["live.ts"]
    assert sent[0] < 32 << 20


def test_a_pack_goes_on_with_urls_that_were_signed_again(site: FaultyS3, tmp_path: Path) -> None:
    expired = True
    site.fault = lambda method, key, before: "expired" if expired and method == "GET" and "c.mp4" in key else None

    def signed(number: int) -> Path:
        found = listed(tmp_path, site.endpoint + "/bucket")
        found.write_text(found.read_text().replace(".mp4", f".mp4?X-Amz-Date={number}&X-Amz-Signature=q{number}"))
        return found

    with pytest.raises(AccessRefused) as error:
        pack(signed(1), tmp_path / "packed", shard_size=1, retry_for=0, progress=False)
    assert "q1" not in str(error.value)
    expired = False
    site.requests.clear()
    assert pack(signed(2), tmp_path / "packed", shard_size=1, progress=False).clips == 3
    assert ("GET", "bucket/a.mp4", "") not in site.requests


def test_credentials_that_are_refused_end_the_pack(site: FaultyS3, table: Path, tmp_path: Path) -> None:
    site.fault = lambda method, key, before: "403" if method == "GET" and "b.mp4" in key else None
    with pytest.raises(AccessRefused):
        pack(table, tmp_path / "packed", retry_for=0, progress=False)


@pytest.mark.parametrize(
    "answer", [(403, {}), (404, {}), (410, {}), (302, {"Location": "http://["}), (302, {"Location": "https://{}"})]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_a_web_server_refuses_costs_its_video_alone(
    site: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, dict[str, str]], in_place: bool
) -> None:
    monkeypatch.setattr(fingerprints, "COMMAND_SECONDS", 0.5)
    status, headers = answer
    here = site.endpoint.partition("://")[2]
    site.answers["bucket/b.mp4"] = (status, b"", {name: one.format(here) for name, one in headers.items()})
    table = listed(tmp_path, site.endpoint + "/bucket")
    if in_place:
        report = index(table, tmp_path / "packed", roots=site.endpoint, progress=False)
    else:
        report = pack(table, tmp_path / "packed", progress=False)
    assert report.clips == 2
    assert list(reasons(report)) == ["b.mp4"]


def test_a_web_server_that_answers_only_later_is_asked_again(site: FaultyS3, tmp_path: Path) -> None:
    """Also for the sizes of videos, before packing begins."""
    site.fault = lambda method, key, before: "503" if "b.mp4" in key and before < 2 else None
    assert pack(listed(tmp_path, site.endpoint + "/bucket"), tmp_path / "packed", progress=False).clips == 3


def test_a_file_of_another_size_than_its_server_said_is_rejected(site: FaultyS3, tmp_path: Path) -> None:
    """Half of a Matroska file is a video, too."""
    site.objects["bucket/b.mp4"] = write(replace(SMALL, container="mkv"), tmp_path / "clip.mkv").read_bytes()
    site.fault = lambda method, key, before: "short" if method == "GET" and "b.mp4" in key else None
    report = pack(listed(tmp_path, site.endpoint + "/bucket"), tmp_path / "packed", progress=False)
    assert "said before that it has" in reasons(report)["b.mp4"]


def test_an_object_that_is_replaced_meanwhile_is_rejected(
    site: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = source_file._fetch

    def replaced(*given: Any) -> None:
        site.objects["bucket/b.mp4"] = write(replace(SMALL, container="mkv"), tmp_path / "clip.mkv").read_bytes()
        fetch(*given)

    monkeypatch.setattr(source_file, "_fetch", replaced)
    report = pack(listed(tmp_path, "s3://bucket"), tmp_path / "packed", progress=False)
    assert "has changed" in reasons(report)["b.mp4"]


def test_a_full_disk_ends_the_pack(
    site: FaultyS3, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rejects no videos."""

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = Path.open

    def full(path: Path, *given: Any, **more: Any) -> Any:
        return Full(opened(path, *given, **more)) if path.name == "source" else opened(path, *given, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises((OSError, DatasetError), match=r"disk is full|No space left"):
        pack(table, tmp_path / "packed", progress=False)


def test_images_are_asked_for_again(site: FaultyS3, tmp_path: Path) -> None:
    picture = tmp_path / "0.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture)
    site.objects = {f"bucket/images/{n}.png": picture.read_bytes() for n in range(4)}
    site.fault = lambda method, key, before: "503" if key.endswith("2.png") and before < 2 else None
    table = tmp_path / "list.csv"
    table.write_text("path\ns3://bucket/images/\n")
    report = pack(table, tmp_path / "packed", options=PackOptions(fps=Fraction(24)), progress=False)
    assert report.clips == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_mounted_storage_that_does_not_answer_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    """Its error may come from FFmpeg, too. A file that can never be read is named."""
    (tmp_path / "in").mkdir()
    for name in NAMES:
        write(SMALL, tmp_path / "in" / f"{name}.mp4")
    read, failures = process_source.remux_or_build, [2]

    def failing(path: str, *given: Any, **more: Any) -> Any:
        if path.endswith("b.mp4") and failures[0]:
            failures[0] -= 1
            error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            if not wrapped:
                raise error
            raise VideoError("it cannot be read") from error
        return read(path, *given, **more)

    monkeypatch.setattr(process_source, "remux_or_build", failing)
    report = pack(tmp_path / "in", tmp_path / "packed", progress=False)
    assert (report.clips, report.rejected) == (3, ())
    failures[0] = -1
    with pytest.raises(StorageUnavailable, match=r"in/b\.mp4, or a file in .* cannot be read or written \(Stale file"):
        pack(tmp_path / "in", tmp_path / "other", retry_for=0.3, progress=False)
