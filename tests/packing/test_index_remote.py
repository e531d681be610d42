"""Videos indexed where they lie in buckets and on web servers: few bytes, one version, one host."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamvid.dataset.dataset import Dataset
from streamvid.errors import ClipError, InputError
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing import process_source, run_local
from streamvid.packing.index import index
from streamvid.packing.pack import pack
from streamvid.sampling.windows import Window
from streamvid.storage import filesystem
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.retry import Retry
from streamvid.transform.spec import Transform
from tests.support import hostile
from tests.support.clips import write
from tests.support.foreign import CLIP, encoded, write_lerobot, write_tar
from tests.support.in_band import join_recordings
from tests.support.packed import upload
from tests.support.web import Site, website

pytestmark = pytest.mark.usefixtures("user")


@pytest.fixture
def site() -> Iterator[Site]:
    with website() as found:
        yield found


def frames(path: str | Path, key: str, retry_for: float = 0) -> np.ndarray[Any, Any]:
    clips = ClipDataset(Dataset.open(path, retry_for=retry_for))
    count = int(clips.dataset.clips.frames[clips.dataset.row(key)])
    return np.asarray(clips.get(key, frames=range(count))["video"])


def listed(site: Site, tmp_path: Path, *paths: str) -> Path:
    """A table of URLs."""
    table = tmp_path / "list.csv"
    table.write_text("url,caption\n" + "".join(f"{site.url}{path},of {path}\n" for path in paths))
    return table


# Buckets


def test_a_bucket_of_videos_tars_and_episodes(tmp_path: Path, s3_bucket: str) -> None:
    place = tmp_path / "place"
    clip = encoded(CLIP, tmp_path)
    write_tar(place / "a.tar", [("0.mp4", clip), ("0.txt", b"a text")])
    write(CLIP, place / "plain.mp4")
    url = upload(place, f"s3://{s3_bucket}/place")
    for fast in (False, True):
        report = index(url, tmp_path / f"indexed-{fast}", fast=fast, progress=False)
        assert not report.rejected
        assert np.array_equal(frames(tmp_path / f"indexed-{fast}", "0"), frames(tmp_path / f"indexed-{fast}", "plain"))
    assert Dataset.open(tmp_path / "indexed-True").manifest.roots == (url,)
    robot = upload(write_lerobot(tmp_path / "robot", [3, 4]), f"s3://{s3_bucket}/robot")
    index(robot, f"s3://{s3_bucket}/indexed", progress=False)
    data = Dataset.open(f"s3://{s3_bucket}/indexed")
    assert data.clips.frames.tolist() == [3, 4]
    assert data.columns.get("episode").to_pylist() == [0, 1]
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 1}
    with StreamLoader(data, **options) as loader:
        assert len([*loader]) == 2


def test_a_key_with_two_slashes_in_a_row_is_listed(tmp_path: Path, s3_bucket: str) -> None:
    """A path cannot name it: every clip of it would be bad."""
    data = write(CLIP, tmp_path / "a.mp4").read_bytes()
    for key in ("videos/a.mp4", "videos//b.mp4", "videos/c//d.mp4"):
        filesystem.write_bytes(f"s3://{s3_bucket}/{key}", data)
    report = index(f"s3://{s3_bucket}/videos", tmp_path / "indexed", progress=False)
    assert report.clips == 1
    assert [one.reason for one in report.rejected] == ["its name cannot be stored: rename it"] * 2


def test_an_object_that_changes_is_a_bad_clip(tmp_path: Path, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/videos"
    filesystem.put_file(write(CLIP, tmp_path / "a.mp4"), f"{url}/a.mp4")
    index(url, tmp_path / "indexed", fast=True, progress=False)
    frames(tmp_path / "indexed", "a")
    filesystem.put_file(write(replace(CLIP, crf=40), tmp_path / "b.mp4"), f"{url}/a.mp4")
    with pytest.raises(ClipError, match=r"clip 'a'.*changed"):
        frames(tmp_path / "indexed", "a")


# Web servers


def test_a_table_of_urls(tmp_path: Path, site: Site) -> None:
    site.files = {
        "/v/a.mp4": encoded(CLIP, tmp_path),
        "/v/b.webm": encoded(replace(CLIP, codec="vp9", container="webm"), tmp_path),
    }
    index(listed(site, tmp_path, "/v/a.mp4", "/v/b.webm"), tmp_path / "indexed", roots=site.url, progress=False)
    data = Dataset.open(tmp_path / "indexed")
    assert data.columns.get("caption").to_pylist() == ["of /v/a.mp4", "of /v/b.webm"]
    assert frames(tmp_path / "indexed", "a").shape[0] == 12
    assert frames(tmp_path / "indexed", "b").shape[0] == 12


def test_signed_urls_are_packed_without_their_signatures(tmp_path: Path, site: Site) -> None:
    """Neither names nor reports hold them."""
    signed = "/a.mp4?X-Amz-Signature=q7q7&X-Amz-Expires=9"
    site.files = {signed: write(CLIP, tmp_path / "a.mp4").read_bytes()}
    (tmp_path / "list.csv").write_text(f"url\n{site.url}{signed}\n{site.url}/none.mp4?token=q7q7\n")
    report = pack([tmp_path / "list.csv"], tmp_path / "packed", progress=False)
    assert (report.clips, [one.source for one in report.rejected]) == (1, ["none.mp4?token=***"])
    assert Dataset.open(tmp_path / "packed").clips.source[0] == "a.mp4"
    assert not [path for path in (tmp_path / "packed").rglob("*.*") if b"q7q7" in path.read_bytes()]


def test_lists_tars_and_images_are_known_by_their_names_before_a_query(tmp_path: Path, site: Site) -> None:
    """Relative rows of a list, and tars of a pattern, have its query, too."""
    video, tar, png, query = write(CLIP, tmp_path / "a.mp4").read_bytes(), io.BytesIO(), io.BytesIO(), "?token=q7/q7.e"
    with tarfile.open(fileobj=tar, mode="w") as members:
        members.add(tmp_path / "a.mp4", "a.mp4")
    Image.new("RGB", (32, 32)).save(png, "png")
    files = {"/v/0.tar": tar.getvalue(), "/v/1.tar": tar.getvalue(), "/v/i.png": png.getvalue(), "/v/a.mp4": video}
    lists = {"/v/l.csv": b"path,label\na.mp4,x\n", "/v/l.jsonl": b'{"path": "a.mp4", "label": "x"}\n'}
    site.files = {path + query: data for path, data in {**files, **lists}.items()}
    for name, clips, codec in (
        ("l.csv", 1, "h264"),
        ("l.jsonl", 1, "h264"),
        ("{0..1}.tar", 2, "h264"),
        ("i.png", 1, "png"),
    ):
        packed = tmp_path / name
        report = pack(f"{site.url}/v/{name}{query}", packed, progress=False)
        assert (report.clips, report.rejected) == (clips, ()), name
        data = Dataset.open(packed)
        assert (data.clips.codec[0], data.classes) == (codec, ("x",) if "l." in name else None)
        assert not [path for path in packed.rglob("*.*") if path.is_file() and b"q7/q7" in path.read_bytes()]


def test_tables_take_few_bytes_of_a_long_video(tmp_path: Path, site: Site) -> None:
    params = (("nal-hrd", "cbr"), ("bitrate", "350"), ("vbv-maxrate", "350"), ("vbv-bufsize", "350"), ("filler", "1"))
    minute = replace(CLIP, width=64, height=64, frames=1800, gop=60, crf=None, params=params)
    site.files["/long.mp4"] = encoded(minute, tmp_path)
    assert len(site.files["/long.mp4"]) < 2.7e6  # 0.36 Mbit/s: the tables are most of it
    index(f"{site.url}/long.mp4", tmp_path / "indexed", fast=True, progress=False)
    assert site.sent < 0.01 * len(site.files["/long.mp4"])


@pytest.mark.parametrize("moov_first", [True, False])
def test_tables_take_few_requests(tmp_path: Path, site: Site, moov_first: bool) -> None:
    muxer = (("movflags", "faststart"),) if moov_first else ()
    site.files["/a.mp4"] = encoded(replace(CLIP, frames=120, muxer=muxer), tmp_path)
    index(f"{site.url}/a.mp4", tmp_path / "indexed", fast=True, progress=False)
    # The size, where the moov is, the moov, and side by side the heads of three packets.
    assert len(site.requests) == 6


def test_every_key_frame_is_looked_at_where_sets_are_in_band(tmp_path: Path, site: Site) -> None:
    """They may change there. Elsewhere three heads tell enough: above."""
    site.files["/a.mp4"] = join_recordings("h264", tmp_path / "a.mp4", in_band=True).read_bytes()
    for fast in (False, True):
        index(f"{site.url}/a.mp4", tmp_path / f"{fast}", fast=fast, progress=False)
    wanted, clips = frames(tmp_path / "False", "a"), ClipDataset(Dataset.open(tmp_path / "True"))
    assert all(np.array_equal(clips.get("a", frames=[n])["video"][0], wanted[n]) for n in range(len(wanted)))


@pytest.mark.usefixtures("worker_processes")
def test_a_crash_costs_one_of_the_videos_that_a_worker_takes_at_once(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["/one.mp4", "/two.mp4", "/three.mp4"]
    site.files = dict.fromkeys(names, encoded(CLIP, tmp_path))
    options: dict[str, Any] = {"fast": True, "roots": site.url, "workers": 1, "progress": False}
    monkeypatch.setattr(run_local, "process_source", hostile.crash_on_two)
    report = index(listed(site, tmp_path, *names), tmp_path / "indexed", **options)
    assert report.clips == 2
    assert [(one.source, "SIGSEGV" in one.reason) for one in report.rejected] == [("two.mp4", True)]


@pytest.mark.parametrize("marks", ["ETag", "Last-Modified"])
def test_every_range_carries_if_range(tmp_path: Path, site: Site, marks: str) -> None:
    site.marks = marks
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    index(f"{site.url}/a.mp4", tmp_path / "indexed", progress=False)
    site.requests.clear()
    frames(tmp_path / "indexed", "a")
    asked = [headers for method, _, headers in site.requests if method == "GET"]
    assert asked
    assert all(headers["If-Range"] for headers in asked)
    site.files["/a.mp4"] = encoded(replace(CLIP, crf=40), tmp_path)
    with pytest.raises(ClipError, match=r"clip 'a'.*changed since it was indexed"):
        frames(tmp_path / "indexed", "a")


def test_servers_that_tell_no_version_are_listed(tmp_path: Path, site: Site) -> None:
    site.marks = ""
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    with pytest.raises(InputError, match="gives no size, ETag or Last-Modified"):
        index(f"{site.url}/a.mp4", tmp_path / "indexed", progress=False)


def test_an_answer_may_have_fewer_bytes_than_were_asked_for(tmp_path: Path, site: Site) -> None:
    """RFC 9110, 15.3.7: as of functions in a cloud, whose answers have a limit. HEAD need not be answered either."""
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    assert len(site.files["/a.mp4"]) > 3000
    site.most, site.heads = 1000, False
    for fast in (False, True):
        report = index(f"{site.url}/a.mp4", tmp_path / f"{fast}", fast=fast, progress=False)
        assert (report.clips, report.rejected) == (1, ())
        assert frames(tmp_path / f"{fast}", "a").shape[0] == 12
    wanted = [(f"{site.url}/a.mp4", 5, 2700), (f"{site.url}/a.mp4", 0, len(site.files["/a.mp4"]) + 9)]
    expected = [site.files["/a.mp4"][start:end] for _, start, end in wanted]
    assert RemoteRanges().read(wanted, retry=Retry(0)) == expected


def test_redirects_to_another_host_are_refused_unless_told(tmp_path: Path, site: Site) -> None:
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    other = site.url.replace("127.0.0.1", "localhost")
    site.redirects = {"/own.mp4": "/a.mp4", "/other.mp4": f"{other}/a.mp4", "/meta.mp4": "http://169.254.169.254/x"}
    names = ("/own.mp4", "/other.mp4", "/meta.mp4")
    report = index(listed(site, tmp_path, *names), tmp_path / "indexed", roots=site.url, progress=False)
    assert report.clips == 1
    assert [("redirects to another host" in one.reason) for one in report.rejected] == [True, True]
    assert frames(tmp_path / "indexed", "own").shape[0] == 12
    told = [site.url, other]
    assert index(listed(site, tmp_path, *names), tmp_path / "told", roots=told, progress=False).clips == 2
    assert frames(tmp_path / "told", "other").shape[0] == 12
    # A redirect that comes later.
    del site.redirects["/own.mp4"]
    site.redirects["/own.mp4"] = "http://169.254.169.254/x"
    with pytest.raises(ClipError, match="its file cannot be read: it redirects to another host"):
        frames(tmp_path / "indexed", "own")


def test_servers_that_fail_cost_their_videos_alone(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    site.files["/b.mp4"] = encoded(replace(CLIP, frames=7), tmp_path)
    table = listed(site, tmp_path, "/a.mp4", "/gone.mp4", "/b.mp4")
    table.write_text(table.read_text() + "http://127.0.0.1:9/silent.mp4,none\n")
    look = process_source.index_by_tables

    def change(name: Path, file: Any, read: Any, **options: Any) -> Any:
        if name.name == "b.mp4":
            site.files["/b.mp4"] += b"more"
        return look(name, file, read, **options)

    monkeypatch.setattr(process_source, "index_by_tables", change)
    report = index(table, tmp_path / "indexed", fast=True, roots=site.url, progress=False)
    assert report.clips == 1
    reasons = {one.source.rpartition("/")[2]: one.reason for one in report.rejected}
    assert "does not exist" in reasons["gone.mp4"]
    assert "cannot be reached" in reasons["silent.mp4"]
    assert "was changed" in reasons["b.mp4"]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("tar", [False, True])
@pytest.mark.parametrize("fault", ["503", "whole", "other"])
def test_answers_that_fail_now_and_then_cost_no_video(
    fault: str, tar: bool, fast: bool, tmp_path: Path, site: Site
) -> None:
    """One 503 rejected a video, or ended the command if it met a tar; so did the whole of a file for a range; and of
    bytes of another place an index was made, which nothing would have shown to be wrong."""
    data = encoded(replace(CLIP, frames=9), tmp_path)
    path = "/a.tar" if tar else "/a.mp4"
    site.files[path] = data
    if tar:
        write_tar(tmp_path / "a.tar", [("a.mp4", data)])
        site.files[path] = (tmp_path / "a.tar").read_bytes()
    index(f"{site.url}{path}", tmp_path / "wanted", fast=fast, progress=False, name="x")
    wanted = frames(tmp_path / "wanted", "a")
    site.faults[path] = ["", fault] * 100
    for number in range(2):
        del site.faults[path][:1]
        report = index(f"{site.url}{path}", tmp_path / f"{number}", fast=fast, progress=False, name="x")
        assert (report.clips, report.rejected) == (1, ())
        found = (tmp_path / f"{number}/shards/00000000.packets").read_bytes()
        assert found == (tmp_path / "wanted/shards/00000000.packets").read_bytes()
        assert np.array_equal(frames(tmp_path / f"{number}", "a", retry_for=60), wanted)


def test_a_remote_list_names_no_local_files(tmp_path: Path, site: Site) -> None:
    secret = write(CLIP, tmp_path / "secret.mp4")
    site.files["/list.csv"] = f"path\n{secret}\n".encode()
    with pytest.raises(InputError, match="is remote and names"):
        index(f"{site.url}/list.csv", tmp_path / "indexed", progress=False)


def test_another_version_is_not_tried_again(tmp_path: Path, site: Site) -> None:
    """It is what it is: asking again would cost ten minutes."""
    site.files["/a.mp4"] = encoded(CLIP, tmp_path)
    index(f"{site.url}/a.mp4", tmp_path / "indexed", progress=False)
    site.files["/a.mp4"] += b"more"
    site.requests.clear()
    clips = ClipDataset(Dataset.open(tmp_path / "indexed"))
    with pytest.raises(ClipError):
        clips.get("a", frames=[0])
    assert len([one for one in site.requests if one[0] == "GET"]) <= 2
    assert isinstance(clips.dataset.reader.remote, RemoteRanges)
    assert json.loads((tmp_path / "indexed" / "dataset.json").read_text())["roots"] == [site.url]
