"""Revisions of a dataset: each can be opened, one of two writers wins, and what fails leaves all as it was."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.dataset import revisions
from streamvid.dataset.manifest import Manifest, Overlay
from streamvid.dataset.revisions import Base, changing, publish_revision, read_manifest, table_name
from streamvid.errors import DatasetError, InputError
from streamvid.packing.pack import pack
from streamvid.storage import filesystem
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import VIDEOS, digests, edit_json, make_videos, pack_recipes, upload
from tools.damage import flip_bytes


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips in a few shards."""
    return pack_recipes(VIDEOS, tmp_path_factory.mktemp("revisions"), shard_size=40_000)


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "ds"))


def overlay(
    base: Base, values: list[Any], name: str = "note", kind: pa.DataType | None = None
) -> tuple[Overlay, bytes]:
    """A table of one column."""
    sink = pa.BufferOutputStream()
    column = pa.array(values, kind)
    pq.write_table(pa.table({name: column}), sink)
    data = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(data).hexdigest()
    file = table_name("columns", base.manifest.revision + 1, digest)
    return Overlay(file, digest, len(data), len(values), ((name, str(column.type)),)), data


def annotated(path: str, values: list[Any], **options: Any) -> Manifest:
    with changing(path) as base:
        one, data = overlay(base, values, **options)
        return publish_revision(base, replace(base.manifest, overlays=(one,)), {one.file: data})


def test_every_revision_can_be_opened(folder: Path) -> None:
    clips = len(sv.Dataset.open(folder))
    first = [f"a{n}" for n in range(clips)]
    assert annotated(str(folder), first).revision == 1
    assert annotated(str(folder), [None] * clips, kind=pa.string()).revision == 2
    assert [sv.Dataset.open(folder, revision=n).manifest.revision for n in (0, 1, 2)] == [0, 1, 2]
    assert "note" not in sv.Dataset.open(folder, revision=0).columns.names
    assert sv.Dataset.open(folder, revision=1).columns.get("note").to_pylist() == first
    newest = sv.Dataset.open(folder)
    assert newest.columns.get("note").null_count == clips
    assert dict(newest.meta.parquet_types)["note"] == "string"
    with pytest.raises(InputError, match=r"no revision 3 of .*: its newest is 2"):
        sv.Dataset.open(folder, revision=3)
    for wrong in (-1, True, 1.5, "1"):
        with pytest.raises(InputError, match="revision must be"):
            sv.Dataset.open(folder, revision=wrong)  # type: ignore[arg-type]
    (folder / "revisions" / "00000001.json").unlink()
    with pytest.raises(DatasetError, match=r"revision 1 of .* is not kept"):
        sv.Dataset.open(folder, revision=1)


def test_a_revision_that_a_purge_has_ended_says_so(folder: Path) -> None:
    for _ in range(2):
        with changing(folder) as base:
            publish_revision(base, replace(base.manifest, oldest=base.manifest.revision + 1))
    with pytest.raises(DatasetError, match=r"revision 1 of .* was ended by revision 2, in which clips were purged"):
        sv.Dataset.open(folder, revision=1)


def test_columns_of_rows_that_were_appended_later_are_those_of_their_shards(folder: Path, tmp_path: Path) -> None:
    clips = len(sv.Dataset.open(folder))
    annotated(str(folder), list(range(clips)), name="score")
    before = json.loads((folder / "dataset.json").read_text())
    videos = make_videos(tmp_path / "more")
    (tmp_path / "list.csv").write_text("video,score\n" + "".join(f"{name},0.5\n" for name in VIDEOS))
    for name in VIDEOS:
        (videos / name).rename(videos / name.replace(Path(name).stem, f"more-{Path(name).stem}"))
    listed = "".join(f"more-{Path(name).name},0.5\n" for name in VIDEOS)
    (tmp_path / "list.csv").write_text("video,score\n" + listed)
    pack([videos], folder, append=True, metadata=tmp_path / "list.csv", progress=False)
    dataset = sv.Dataset.open(folder)
    assert dataset.manifest.overlays
    assert dataset.manifest.revision == 2
    assert json.loads((folder / "revisions" / "00000001.json").read_text()) == before
    scores = dataset.columns.get("score")
    assert scores.type == pa.float64()
    assert scores.to_pylist() == [*map(float, range(clips)), *[0.5] * (len(dataset) - clips)]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.columns.get("score").equals(scores)
    assert len(sv.Dataset.open(folder, revision=1)) == clips


def test_labels_of_an_overlay_are_the_clips_labels(folder: Path) -> None:
    clips = len(sv.Dataset.open(folder))
    labels = [None, *range(1, clips)]
    annotated(str(folder), labels, name="label")
    dataset = sv.Dataset.open(folder)
    assert dataset.clips.label.tolist() == [-1, *range(1, clips)]
    assert dataset.columns.get("label").to_pylist() == labels
    annotated(str(folder), [-1] * clips, name="label")
    with pytest.raises(DatasetError, match="no class numbers"):
        sv.Dataset.open(folder)


def test_two_writers(folder: Path) -> None:
    """A second one is refused while the first is at work; where there are no locks, the one that is later fails."""
    with changing(folder), pytest.raises(InputError, match="another process writes to"), changing(folder):
        pass
    with changing(folder) as base:
        pass
    clips = len(sv.Dataset.open(folder))
    annotated(str(folder), ["won"] * clips)
    before = digests(folder)
    one, data = overlay(base, ["lost"] * clips)
    with pytest.raises(InputError, match=r"another process has changed the dataset at .* meanwhile: run this again"):
        publish_revision(base, replace(base.manifest, overlays=(one,)), {one.file: data})
    assert digests(folder) == before
    # Both wrote the same: the file that was published stays.
    one, data = overlay(base, ["won"] * clips)
    with pytest.raises(InputError, match="meanwhile"):
        publish_revision(base, replace(base.manifest, overlays=(one,)), {one.file: data})
    assert digests(folder) == before


def test_a_pack_that_is_not_finished_is_not_disturbed(folder: Path) -> None:
    (folder / "unfinished.txt").write_text("fingerprint: 0123456789abcdef\n")
    with pytest.raises(InputError, match=r"a pack to .* is running or was broken off"), changing(folder):
        pass


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset at"), changing(tmp_path / "none"):
        pass


@pytest.mark.parametrize("failing", range(6))
def test_a_full_disk_leaves_it_as_it_was(folder: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clips, before = len(sv.Dataset.open(folder)), digests(folder)
    calls, real = [0], {name: getattr(os, name) for name in ("fsync", "replace")}

    def full(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == failing + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real[name](*arguments)

        return call

    for name in real:
        monkeypatch.setattr(os, name, full(name))
    with pytest.raises(DatasetError, match="the disk is full"):
        annotated(str(folder), ["x"] * clips)
    monkeypatch.undo()
    assert failing < calls[0]
    left = digests(folder)
    left.pop("revisions/00000000.json", None)  # a copy of dataset.json
    assert left == before
    assert annotated(str(folder), ["x"] * clips).revision == 1


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "other rows"])
def test_an_overlay_that_is_missing_or_another(folder: Path, damage: str) -> None:
    clips = len(sv.Dataset.open(folder))
    (one,) = annotated(str(folder), ["x"] * clips).overlays
    path = folder / one.file
    match damage:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:-1])
        case "flipped":
            flip_bytes(path, 0.5)
        case "other rows":
            document = json.loads((folder / "dataset.json").read_text())
            document["overlays"][0]["rows"] -= 1
            (folder / "dataset.json").write_text(json.dumps(document))
    with pytest.raises(DatasetError, match=rf"{one.file}.*(columns? note|dataset.json names)") as found:
        sv.Dataset.open(folder).columns.get("note")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("overlays", {}, "'overlays' is missing or has the wrong type"),
        ("overlays", [1], "no columns"),
        ("overlays", [{"columns": {"a": 1}}], "has no type"),
        ("overlays", [{"columns": {"a": "string"}, "file": "../x.parquet"}], "no Parquet file beside"),
        ("oldest", -1, "'oldest' is -1"),
        ("change", [], "'change' is not an object"),
        ("change", {"command": 1}, "'command' is missing"),
    ],
)
def test_invalid_fields_of_a_manifest_are_refused(folder: Path, field: str, value: object, said: str) -> None:
    edit_json(folder, **{field: value})
    with pytest.raises(DatasetError, match=said):
        read_manifest(str(folder))


def test_on_s3_one_of_two_writers_wins(packed: Path, s3_bucket: str) -> None:
    path = upload(packed, f"s3://{s3_bucket}/revisions")
    with changing(path) as base:
        clips = base.manifest.clips
        annotated(path, ["won"] * clips)
        one, data = overlay(base, ["lost"] * clips)
        with pytest.raises(InputError, match="another process has changed"):
            publish_revision(base, replace(base.manifest, overlays=(one,)), {one.file: data})
        assert not filesystem.exists(f"{path}/{one.file}")
    assert sv.Dataset.open(path).columns.get("note").to_pylist() == ["won"] * clips
    assert sv.Dataset.open(path, revision=0).manifest == base.manifest


def test_on_s3_the_last_look_is_the_servers(packed: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer comes between the comparison and the put."""
    path = f"s3://{s3_bucket}/one.txt"
    filesystem.write_bytes(path, b"a")
    assert filesystem.replace_bytes(path, b"b", expected=b"a")
    assert not filesystem.replace_bytes(path, b"c", expected=b"a")
    real = filesystem._put_if

    def late(*arguments: Any) -> None:
        filesystem.write_bytes(path, b"other")
        real(*arguments)

    monkeypatch.setattr(filesystem, "_put_if", late)
    assert not filesystem.replace_bytes(path, b"c", expected=b"b")
    assert filesystem.read_bytes(path) == b"other"


def test_a_worker_reads_the_revision_of_its_parent(folder: Path) -> None:
    """It opens the dataset again, which another process may have changed since."""
    clips = len(sv.Dataset.open(folder))
    items = sv.ClipDataset(folder, sampling=sv.Window(2, pad="edge"), columns=["source"])
    sent = pickle.dumps(items)
    annotated(str(folder), ["new"] * clips)
    assert pickle.loads(sent).dataset.manifest.revision == 0
    assert sv.ClipDataset(folder, revision=0, sampling=sv.Window(2, pad="edge")).dataset.manifest.revision == 0
    assert sv.ClipDataset(folder, sampling=sv.Window(2, pad="edge")).dataset.manifest.revision == 1


def test_a_loader_reads_the_revision_that_it_is_told(folder: Path) -> None:
    clips = len(sv.Dataset.open(folder))
    annotated(str(folder), ["new"] * clips)
    options: dict[str, Any] = {"batch_size": 1, "sampling": sv.Window(2, pad="edge"), "device": "cpu"}
    options["transform"] = sv.Transform(resize=(32, 32))
    assert sv.StreamLoader(folder, columns=["note"], **options).dataset.columns.get("note").to_pylist()[0] == "new"
    with pytest.raises(InputError, match="there is no column 'note'"):
        sv.StreamLoader(folder, columns=["note"], revision=0, **options)
    with pytest.raises(InputError, match="revision is of one dataset"):
        sv.StreamLoader(sv.Mix([(folder, 1), (folder, 1)]), revision=0, **options)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_dataset_json_that_came_damaged_is_read_again(folder: Path, scheme: str) -> None:
    """As by a bad network card, or a page that asks to log in."""
    with faulty_s3() as site:
        site.add_folder(folder, "bucket/ds")
        path = "s3://bucket/ds" if scheme == "s3" else f"{site.endpoint}/bucket/ds"
        key, pages = "bucket/ds/dataset.json", [b"<html>Log in.</html>"]
        document, first = site.objects[key], "GET" if scheme == "s3" else "HEAD"

        def answered(method: str, name: str, before: int) -> None:
            if (method, name) == (first, key):
                site.objects[key] = pages.pop() if pages else document

        site.fault = answered
        assert read_manifest(path) == read_manifest(str(folder))
        document = b"<html>"
        with pytest.raises(DatasetError, match="is not JSON"):
            read_manifest(path)


def test_a_revision_in_a_bucket_writes_etags_down(folder: Path) -> None:
    """Of a dataset that was packed on a disk and copied there: strong ones, which may go into a header."""
    with faulty_s3() as site:
        site.lists_etags = True
        url = site.add_folder(folder, "bucket/ds")
        first, second = (entry.name for entry in read_manifest(url).shards)
        site.held[f"bucket/ds/shards/{first}.tar"] = {"ETag": 'W/"weak"'}
        site.held[f"bucket/ds/shards/{second}.parquet"] = {"ETag": '"two words"'}
        with changing(url) as base:
            publish_revision(base, base.manifest)
        entries = read_manifest(url).shards
        assert [sorted(entry.etags) for entry in entries] == [["packets", "parquet"], ["packets", "tar"]]
        for entry in entries:
            for extension, etag in entry.etags.items():
                assert etag == hashlib.md5((folder / entry.file(extension)).read_bytes()).hexdigest()
        assert entries == read_manifest(folder).shards
        # A copy of it, in parts of another size; and one more revision, which lists no shards.
        lists: list[int] = []
        site.held = {f"bucket/ds/shards/{first}.packets": {"ETag": '"0123-2"'}}
        for _ in range(2):
            site.requests.clear()
            with changing(url) as base:
                etags = [one.etags["packets"] for one in publish_revision(base, base.manifest).shards]
            assert etags == ["0123-2", hashlib.md5((folder / entries[1].file("packets")).read_bytes()).hexdigest()]
            lists.append([key for _, key, _ in site.requests].count("bucket"))
        assert lists[0] > lists[1]
    assert not any(entry.etags for entry in annotated(str(folder), [1] * 6).shards)


def test_a_table_that_the_storage_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said 200."""
    write = filesystem.write_bytes
    with faulty_s3() as site:
        url = site.add_folder(folder, "bucket/set")
        monkeypatch.setattr(filesystem, "write_bytes", lambda path, data: "columns-" in path or write(path, data))
        with pytest.raises(DatasetError, match=r"does not hold s3://bucket/set/columns-.*: run this again"):
            annotated(url, [1] * 6)
        assert read_manifest(url).revision == 0


def test_numbers_of_new_shards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier revisions, of which there may be thousands, are read only where the newest does not tell."""
    manifest = read_manifest(str(folder))
    (folder / "revisions").mkdir(exist_ok=True)
    names = ("00000000", "00000007")
    packed = replace(manifest, shards=tuple(replace(manifest.shards[0], name=name) for name in names))
    (folder / revisions.revision_file(0)).write_bytes(replace(packed, seconds=1.0).to_json())
    rewritten = replace(packed, shards=(packed.shards[0], replace(packed.shards[1], name="50000004")))
    assert revisions.next_number(str(folder), rewritten) == 8
    appended = replace(rewritten, shards=(*rewritten.shards, replace(packed.shards[0], name="00000009")))
    monkeypatch.setattr(revisions, "kept_manifests", lambda _: pytest.fail("all revisions were read"))
    assert revisions.next_number(str(folder), appended) == 10
    (folder / "shards" / "50000005.parquet").touch()  # of another writer
    assert next(revisions.rewritten_numbers(str(folder), appended)) == 50_000_006
    assert (folder / "shards" / "50000006.parquet").exists()
