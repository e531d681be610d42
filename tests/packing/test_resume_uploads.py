"""Packs to S3 in parts, killed with SIGKILL: they go on with their own uploads, and leave those of others alone."""

from __future__ import annotations

import random
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamvid.errors import InputError
from streamvid.inspection.verify import verify
from streamvid.packing import journal
from streamvid.packing.index import index
from streamvid.packing.journal import Journal, Record
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.storage import upload
from streamvid.storage.explain import StorageUnavailable
from tests.support.clock import Clock
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.launcher import Launcher
from tests.support.packed import digests, make_videos
from tests.support.profile import by_profile
from tools.clips import Recipe

URL = "s3://bucket/set"
PART = 20_000
SHARD = 150_000


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=320, height=192, frames=36, gop=6, b_frames=2, seed=n) for n in range(4)}
    return make_videos(tmp_path_factory.mktemp("videos"), recipes)


@pytest.fixture
def site() -> Iterator[FaultyS3]:
    with faulty_s3() as site:
        site.uploads["foreign"] = ("bucket/set/shards/00000000.tar", {1: b"of others"})
        yield site


def call(videos: Path, destination: str) -> dict[str, Any]:
    return {
        "inputs": [str(videos)],
        "destination": destination,
        "shard_size": SHARD,
        "workers": 1,
        "options": PackOptions(cutting=FixedLength(12, "frames")),
        "progress": False,
    }


def files(site: FaultyS3, folder: Path) -> dict[str, str]:
    shutil.rmtree(folder, ignore_errors=True)
    for key, data in site.objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return digests(folder / "bucket/set")


def sent_parts(site: FaultyS3) -> set[tuple[str, int]]:
    """Uploads and numbers of the parts that were sent."""
    queries = [urllib.parse.parse_qs(query) for method, _, query in site.requests if method == "PUT"]
    return {(query["uploadId"][0], int(query["partNumber"][0])) for query in queries if query}


def test_killed_again_and_again(videos: Path, site: FaultyS3, tmp_path: Path) -> None:
    pack(**call(videos, str(tmp_path / "bucket" / "set")))
    expected = digests(tmp_path / "bucket" / "set")
    assert len([name for name in expected if name.endswith(".tar")]) >= 2
    moments = random.Random(1)
    kills = in_parts = 0
    with Launcher(tmp_path / "log") as launcher:
        while True:
            there = {(name, number) for name, (_, parts) in site.uploads.items() for number in parts}
            site.requests.clear()
            site.changes = 0
            # An undisturbed run makes some thirty changes; the first is the claim.
            last = moments.randrange(3, 16) if kills < by_profile(ci=5, nightly=30) else 10_000

            def kill(number: int, last: int = last, first: bool = not kills) -> None:
                # Of five parts the first has been answered, as four are under way.
                if "partNumber=5" in site.requests[-1][2] if first else number == last:
                    launcher.send_kill()

            site.before = kill
            launcher.start(**call(videos, URL), part_bytes=PART)
            killed = launcher.was_killed()
            assert not there & sent_parts(site), "what is there is not sent again"
            if not killed:
                break
            kills += 1
            in_parts += any(name != "foreign" and parts for name, (_, parts) in site.uploads.items())
            assert "bucket/set/dataset.json" not in site.objects or verify(URL).ok
    assert in_parts, "none was killed within an upload"
    assert files(site, tmp_path / "copy") == expected
    assert site.uploads == {"foreign": ("bucket/set/shards/00000000.tar", {1: b"of others"})}
    assert verify(URL).ok


def unfinished(videos: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Leave a pack that ends in the middle of a shard; its uploads."""
    monkeypatch.setattr(upload, "PART_BYTES", PART)

    def end(number: int) -> None:
        if number == 5:
            site.fault = lambda method, *_: "403" if method == "PUT" else None

    site.before = end
    with pytest.raises(Exception, match="refused"):
        pack(**call(videos, URL), retry_for=0)
    site.before, site.fault = lambda _: None, lambda *_: None
    left = set(site.uploads) - {"foreign"}
    assert left
    return left


def test_another_pack_aborts_what_it_overwrites(
    videos: Path, site: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(videos, site, monkeypatch)
    other = call(videos, URL) | {"shard_size": 2 * SHARD}
    with pytest.raises(InputError, match="was broken off"):
        pack(**other)
    assert len(site.uploads) > 1, "it has touched none"
    pack(**other, overwrite=True)
    pack(**other | {"destination": str(tmp_path / "set")})
    assert set(site.uploads) == {"foreign"}
    assert files(site, tmp_path / "copy") == digests(tmp_path / "set")


def test_a_pack_that_may_not_abort_ends_all_the_same(
    videos: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (left,) = unfinished(videos, site, monkeypatch)
    site.fault = lambda method, _, __: "403" if method == "DELETE" and left in site.requests[-1][2] else None
    pack(**call(videos, URL) | {"shard_size": 2 * SHARD}, overwrite=True)
    assert left in site.uploads
    assert "Parts of it stay" in caplog.text
    assert verify(URL).ok


def test_the_tar_needs_no_disk(videos: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    seen: set[str] = set()
    site.before = lambda _: seen.update(path.suffix for path in tmp_path.rglob("*"))
    pack(**call(videos, URL))
    assert ".packets" in seen
    assert ".tar" not in seen


def test_index_writes_likewise(videos: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are changed on their way to a server that looks at nothing."""
    monkeypatch.setattr(upload, "PART_BYTES", 2_000)
    site.verifies = False
    hit: set[tuple[str, str]] = set()

    def flip(method: str, key: str, _: int) -> str | None:
        place = (key, site.requests[-1][2])
        if method != "PUT" or place in hit or key.endswith("unfinished.txt"):
            return None
        hit.add(place)
        return "flip"

    site.fault = flip
    index([site.add_folder(videos, "bucket/videos")], URL, progress=False)
    assert any("partNumber" in query for _, query in hit)
    assert verify(URL).ok
    assert set(site.uploads) == {"foreign"}


def test_the_journal_waits_for_its_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failures = iter([1, 1, 0, 1, 0])
    read, put = journal.read_claim, journal.filesystem.write_bytes

    def maybe() -> None:
        if next(failures):
            raise StorageUnavailable("not now")

    monkeypatch.setattr(journal, "read_claim", lambda path: (maybe(), read(path))[1])
    monkeypatch.setattr(journal.filesystem, "write_bytes", lambda path, data: (maybe(), put(path, data))[1])
    (tmp_path / "unfinished.txt").write_bytes(journal.unfinished_text("a" * 16))
    clock = Clock()
    mine = Journal(str(tmp_path), "a" * 16, retry=clock.retry())
    mine.check()
    mine.write(Record(0, None, 0.0, (), None))
    assert (tmp_path / "progress" / "00000000.json").exists()
    assert len(clock.waits) == 3
