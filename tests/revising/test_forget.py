"""Forgotten clips are in no new run, and all others keep their places; no byte of purged clips is left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.checksum import file_sha256
from streamvid.cli.main import main
from streamvid.dataset import table_cache
from streamvid.dataset.manifest import Manifest
from streamvid.dataset.revisions import Base, read_manifest
from streamvid.errors import DatasetError, InputError
from streamvid.packing.pack import pack
from streamvid.revising import purge
from streamvid.storage import filesystem
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.parquet import MAX_LISTS
from tests.packing.test_resume import die_before_change
from tests.revising.conftest import CLIPS
from tests.support.packed import digests, upload
from tests.support.profile import by_profile

GONE = ("clip1", "clip4")


def loader(folder: Path | str, **options: Any) -> sv.StreamLoader:
    return sv.StreamLoader(folder, **{"batch_size": 2, "sampling": sv.Window(2), "device": "cpu", **options})


def order(run: sv.StreamLoader) -> list[tuple[str, bool]]:
    return [one for batch in run for one in zip(batch["key"], batch["valid"].tolist(), strict=True)]


def all_bytes(*folders: Path) -> bytes:
    return b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())


def traces(folder: Path, dataset: sv.Dataset, keys: tuple[str, ...] = GONE) -> list[bytes]:
    """What only these clips have: pieces of their videos, and their names and captions. Parquet is compressed, so what
    its columns hold is looked for by the datasets of `leftovers`."""
    found = []
    for key in keys:
        row = dataset.row(key)
        with open(dataset.location(row), "rb") as file:
            file.seek(int(dataset.clips.mp4_offset[row]) + int(dataset.clips.mp4_size[row]) - 48)
            found += [file.read(48), key.encode() + b".mp4", f"caption of number {key[-1]}".encode()]
    return found


def leftovers(folder: Path, wanted: list[bytes]) -> list[bytes]:
    import pyarrow.parquet as pq

    everything = all_bytes(folder)
    for path in folder.rglob("*.parquet"):
        everything += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
    return [one for one in wanted if one in everything]


@pytest.mark.parametrize(
    ("options", "purge"),
    [({}, False), ({}, True), ({"shuffle": "block"}, False), ({"group_by_size": 2}, True), ({"shuffle": False}, False)],
    ids=str,
)
def test_all_others_stay_in_their_places(folder: Path, options: dict[str, Any], purge: bool) -> None:
    run = loader(folder, **options)
    before = order(run)
    batches = iter(run)
    next(batches)
    state = run.state_dict()
    rest = [key for batch in batches for key in batch["key"]]
    report = sv.forget(folder, list(GONE), purge=purge)
    assert (report.clips, report.forgotten, report.purged) == (2, 2, 2 * purge)
    after = order(loader(folder, **options))
    assert [valid for _, valid in after] == [key not in GONE for key, _ in before]
    assert [key for key, valid in after if valid] == [key for key, _ in before if key not in GONE]
    assert not {key for key, _ in after} & set(GONE)
    resumed = loader(folder, **options)
    resumed.load_state_dict(state)
    assert [key for key, valid in order(resumed) if valid] == [key for key in rest if key not in GONE]


def test_runs_of_the_revision_before_go_on(folder: Path) -> None:
    run = loader(folder)
    before = order(run)
    sv.forget(folder, list(GONE))
    run.set_epoch(0)
    assert order(run) == before
    assert order(loader(folder, revision=0)) == before
    with pytest.raises(InputError, match="revision=0, but the dataset is open at revision 1"):
        loader(sv.Dataset.open(folder), revision=0)
    with pytest.raises(InputError, match="revision=0, but the dataset is open at revision 1"):
        sv.ClipDataset(sv.Subset(sv.Dataset.open(folder)), revision=0)


def test_what_is_purged_is_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 1)
    dataset = sv.Dataset.open(folder)
    wanted = traces(folder, dataset)
    rows = [row for row in range(CLIPS) if dataset.key(row) not in GONE]
    sums = [dataset.sha256(row) for row in rows]
    cached = user_cache_dir()
    assert leftovers(folder, wanted) == wanted
    sv.forget(folder, ["clip4"])
    sv.Dataset.open(folder)
    assert any(b"caption of number 1" in path.read_bytes() for path in cached.glob("*.rows"))
    (folder / "mine.txt").write_text("of someone else")
    (folder / "shards" / "notes").write_text("of someone else")
    report = sv.forget(folder, list(GONE), purge=True)
    assert (report.clips, report.purged, report.foreign) == (1, 2, 0)
    assert leftovers(folder, wanted) == []
    assert not [path for path in cached.glob("*.rows") if b"caption of number 1" in path.read_bytes()]
    assert (folder / "mine.txt").exists()
    assert (folder / "shards" / "notes").exists()
    after = sv.Dataset.open(folder)
    assert [after.sha256(row) for row in rows] == sums
    assert [after.key(row) for row in rows] == [dataset.key(row) for row in rows]
    assert len(after) == CLIPS
    assert after.to_arrow(["score", "caption"]).take(rows).equals(dataset.to_arrow(["score", "caption"]).take(rows))
    assert sv.verify(folder, progress=False).problems == ()
    assert sv.verify(folder, progress=False, sample=1.0).problems == ()
    for revision in (0, 1):
        with pytest.raises(DatasetError, match=f"revision {revision} of .* was ended by revision 2"):
            sv.Dataset.open(folder, revision=revision)
    # The record of what went, and when: hashes.
    import pyarrow.parquet as pq

    (record,) = folder.glob("forgotten-*.parquet")
    rows_of_record = pq.read_table(record).to_pylist()
    assert all(row["purged"] and row["forgotten"] and len(row["key_sha256"]) == 64 for row in rows_of_record)


def test_a_purge_again_does_nothing(folder: Path) -> None:
    sv.forget(folder, list(GONE), purge=True)
    before = digests(folder)
    assert sv.forget(folder, list(GONE), purge=True).clips == 0
    assert sv.forget(folder, list(GONE)).clips == 0
    assert sv.forget(folder, purge=True).purged == 0
    assert digests(folder) == before


def test_purging_all_that_is_forgotten_already(folder: Path) -> None:
    sv.forget(folder, ["clip0"])
    sv.forget(folder, ["clip5"])
    assert sv.forget(folder, purge=True).purged == 2
    assert sorted(np.flatnonzero(sv.Dataset.open(folder).clips.mp4_size == 0).tolist()) == [0, 5]


def test_overlays_lose_them_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table.jsonl").write_text(
        "".join(json.dumps({"key": f"clip{n}", "said": f"words about {n}"}) + "\n" for n in range(CLIPS))
    )
    sv.annotate(folder, tmp_path / "table.jsonl")
    sv.forget(folder, list(GONE), purge=True)
    assert leftovers(folder, [f"words about {key[-1]}".encode() for key in GONE]) == []
    said = sv.Dataset.open(folder).columns.get("said").to_pylist()
    assert said == [None if f"clip{n}" in GONE else f"words about {n}" for n in range(CLIPS)]


def test_an_overlay_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    """It is as dataset.json says, and so whoever wrote both wrote it so."""
    (tmp_path / "table.jsonl").write_text(
        "".join(json.dumps({"key": f"clip{n}", "said": [n]}) + "\n" for n in range(CLIPS))
    )
    sv.annotate(folder, tmp_path / "table.jsonl")
    document = json.loads((folder / "dataset.json").read_text())
    (overlay,) = document["overlays"]
    path = folder / overlay["file"]
    table = pq.read_table(path)
    deep = pa.int64()
    for _ in range(MAX_LISTS + 1):
        deep = pa.list_(deep)
    for said, content in {
        "nested more than": table.set_column(0, "said", pa.nulls(len(table), deep)),
        "Field": table.rename_columns(["unsaid"]),
    }.items():
        pq.write_table(content, path)
        overlay |= {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        (folder / "dataset.json").write_text(json.dumps(document))
        with pytest.raises(DatasetError, match=f"{path.name} cannot be rewritten: .*{said}"):
            sv.forget(folder, list(GONE), purge=True)


def test_a_purge_does_not_begin_where_an_earlier_revision_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names files that caches hold."""
    sv.annotate(folder, pa.table({"key": list(GONE), "note": ["a", "b"]}))
    before, read = digests(folder), filesystem.read_bytes

    def read_bytes(path: str, **options: Any) -> bytes:
        if "/revisions/" in str(path):
            raise StorageUnavailable("it does not answer")
        return read(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "read_bytes", read_bytes)
        with pytest.raises(StorageUnavailable):
            sv.forget(folder, list(GONE), purge=True)
    assert digests(folder) == before
    assert sv.forget(folder, list(GONE), purge=True).purged == 2


@pytest.mark.parametrize("changed", [False, True])
def test_a_change_whose_files_a_purge_has_swept(folder: Path, changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on S3, where no lock keeps two apart."""

    def swept(base: Base, *_: object, **__: object) -> None:
        if changed:
            (folder / "dataset.json").write_bytes(base.document + b"\n")
        raise DatasetError("50000000.parquet: missing")

    monkeypatch.setattr(purge, "rewrite_shard", swept)
    error, said = (InputError, "has changed .* meanwhile: run this again") if changed else (DatasetError, "missing")
    with pytest.raises(error, match=said):
        sv.forget(folder, list(GONE), purge=True)


@pytest.mark.parametrize("other", ["annotate", "purge"])
def test_a_purge_removes_no_files_of_a_change_after_it(
    folder: Path, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on storages, where no lock keeps two apart; and where a server ignores If-Match, two purges at once publish
    the same revision: each removed the other's shards, and the clips were lost."""
    there, swept = Path(shutil.copytree(folder, tmp_path / "there")), purge.sweep

    def late(path: str, newest: Manifest, caches: purge.Caches) -> None:
        monkeypatch.undo()
        if other == "annotate":
            shutil.copytree(folder, there, dirs_exist_ok=True)
            sv.annotate(there, pa.table({"key": ["clip0"], "note": ["a"]}))
        else:
            sv.forget(there, ["clip2"], purge=True)
            for file in (there / "shards").iterdir():  # under other names, as numbers are reserved
                shutil.copy(file, folder / "shards" / file.name)
        shutil.copytree(there, folder, dirs_exist_ok=True)
        swept(path, newest, caches)

    monkeypatch.setattr(purge, "sweep", late)
    with pytest.raises(InputError, match=r"another process has changed .* meanwhile: run this again"):
        sv.forget(folder, list(GONE), purge=True)
    assert sv.verify(folder).ok
    assert [key for key, valid in order(loader(folder)) if valid]
    if other == "annotate":
        sv.forget(folder, purge=True)
        assert sv.verify(folder).ok


def test_purged_videos_do_not_come_back(folder: Path, packed: Path) -> None:
    sv.forget(folder, list(GONE), purge=True)
    assert pack([packed.parent / "videos"], folder, append=True, progress=False).clips == 0


def test_purged_clips_of_files_of_others(packed: Path, tmp_path: Path) -> None:
    videos = Path(shutil.copytree(packed.parent / "videos", tmp_path / "in"))
    before = digests(videos)
    sv.index([videos], tmp_path / "ds", progress=False)
    report = sv.forget(tmp_path / "ds", list(GONE), purge=True)
    assert (report.purged, report.foreign) == (2, 2)
    assert digests(videos) == before
    assert leftovers(tmp_path / "ds", [b"clip1", b"clip4"]) == []
    assert sv.verify(tmp_path / "ds", progress=False).ok
    assert not {key for key, _ in order(loader(tmp_path / "ds"))} & set(GONE)


def test_a_purge_needs_no_files_of_others(packed: Path, tmp_path: Path) -> None:
    """What became of them is no matter: of those that are forgotten, and of those that are not."""
    videos = Path(shutil.copytree(packed.parent / "videos", tmp_path / "in"))
    sv.index([videos], tmp_path / "ds", progress=False)
    lost = next(videos.glob("clip2.*"))
    lost.unlink()
    assert sv.forget(tmp_path / "ds", ["clip1"], purge=True).purged == 1
    (problem,) = sv.verify(tmp_path / "ds", progress=False).problems
    assert problem.clip == "clip2"
    sv.forget(tmp_path / "ds", ["clip2"])
    assert sv.verify(tmp_path / "ds", decode=True, progress=False).ok


def test_purged_clips_are_read_by_nothing(folder: Path) -> None:
    sv.forget(folder, list(GONE), purge=True)
    items = sv.ClipDataset(folder, sampling=sv.Window(2))
    for name in (1, "clip1"):
        with pytest.raises(KeyError, match=r"forgotten|no clip"):
            items.get(name, frames=[0])
    assert [items[n]["key"] for n in range(CLIPS)].count("clip1") == 0
    assert main(["info", str(folder), "--sampling", "Window(2)"]) == 0
    assert main(["ls", str(folder)]) == 0


def test_keys_that_cannot_be_forgotten_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digests(folder)
    with pytest.raises(InputError, match=r"1 of the 2 keys are not in the dataset: 'clip9'"):
        sv.forget(folder, ["clip1", "clip9"])
    with pytest.raises(InputError, match="no keys are given"):
        sv.forget(folder)
    with pytest.raises(InputError, match="cannot read the keys"):
        sv.forget(folder, tmp_path / "none.txt")
    assert main(["forget", str(folder), "--keys", str(tmp_path / "none.txt")]) == 2
    assert main(["forget", str(tmp_path / "none"), "--purge"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert digests(folder) == before


def test_a_damaged_shard(folder: Path) -> None:
    """Damaged clips are purged; a damaged clip that would stay is named, and nothing changes."""
    dataset = sv.Dataset.open(folder)
    last = int(dataset.clips.shard[-1])
    first, *others = dataset.clips.key[dataset.rows(last)]
    shard = Path(dataset.shard_path(last))
    shard.write_bytes(bytes(shard.stat().st_size))
    before = digests(folder)
    with pytest.raises(DatasetError, match=f"'{others[0]}', which was to stay .* is damaged.*forget it, too"):
        sv.forget(folder, [first], purge=True)
    assert digests(folder) == before
    sv.forget(folder, [first, *others], purge=True)
    assert sv.verify(folder, progress=False).ok


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is full, the dataset is as it was, and what was written is gone again."""
    before, real = digests(folder), os.replace
    for failing in range(7):
        calls = [0]

        def full(*arguments: Any, calls: list[int] = calls, failing: int = failing) -> None:
            calls[0] += 1
            if calls[0] == failing + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*arguments)

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(DatasetError, match="the disk is full"):
            sv.forget(folder, ["clip0"], purge=True)
        left = digests(folder)
        left.pop("revisions/00000000.json", None)
        assert left == before, failing
    monkeypatch.undo()
    assert sv.forget(folder, ["clip0"], purge=True).purged == 1


@pytest.mark.parametrize("purge", [False, True])
def test_killed_anywhere(folder: Path, tmp_path: Path, purge: bool) -> None:
    """It is the dataset of before, or the new one; and the same call ends it."""
    old, destination = folder, tmp_path / "killed" / "ds"
    wanted = traces(old, sv.Dataset.open(old))
    for at in range(1, 200, by_profile(ci=3, nightly=1)):
        shutil.rmtree(destination.parent, ignore_errors=True)
        shutil.copytree(old, destination)
        code = die_before_change(at, destination, lambda: sv.forget(destination, list(GONE), purge=purge))
        manifest = read_manifest(str(destination))
        assert len(sv.Dataset.open(destination).forgotten) == (2 if manifest.revision else 0)
        if at % 5 == 0 or code == 0:
            assert len(order(loader(destination))) == CLIPS
        assert code in (0, 9)
        sv.forget(destination, list(GONE), purge=purge)
        assert read_manifest(str(destination)).revision == 1
        assert leftovers(destination, wanted) == ([] if purge else wanted)
        assert not list(destination.rglob(".*"))
        if code == 0:
            return
    pytest.fail("it never finished")


def test_two_processes_at_once(folder: Path, forked_python: Path) -> None:
    """Whoever is first forgets its clip; the other is told so, or comes after it."""
    call = "import streamvid as sv, sys; sv.forget(sys.argv[1], [sys.argv[2]])"
    both = [
        subprocess.Popen([forked_python, "-c", call, str(folder), key], stderr=subprocess.PIPE, text=True)
        for key in ("clip0", "clip1")
    ]
    said = [one.communicate(timeout=120)[1] for one in both]
    won = sum(one.returncode == 0 for one in both)
    assert won >= 1
    assert all("another process" in text for text, one in zip(said, both, strict=True) if one.returncode)
    assert len(sv.Dataset.open(folder).forgotten) == won == read_manifest(str(folder)).revision


def test_on_s3(folder: Path, tmp_path: Path, s3_bucket: str) -> None:
    path = upload(folder, f"s3://{s3_bucket}/forget")
    cache = tmp_path / "cache"
    wanted = traces(folder, sv.Dataset.open(folder))
    before = order(loader(path, cache_dir=cache, fetch="shards"))
    assert any(wanted[0] in file.read_bytes() for file in cache.rglob("*") if file.is_file())
    assert sv.forget(path, list(GONE), purge=True, cache_dir=cache).purged == 2
    assert not any(wanted[0] in file.read_bytes() for file in cache.rglob("*") if file.is_file())
    for fetch in ("shards", "ranges"):
        after = order(loader(path, cache_dir=cache, fetch=fetch))
        assert [key for key, valid in after if valid] == [key for key, _ in before if key not in GONE]
    shutil.rmtree(folder)
    for file in filesystem.list_files(path, recursive=True):
        target = folder / file.removeprefix(f"{path}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.get_file(file, target)
    assert leftovers(folder, wanted) == []


def test_a_shard_is_purged_twice(folder: Path) -> None:
    shards = sv.Dataset.open(folder).clips.shard.tolist()
    both = [f"clip{n}" for n in range(CLIPS) if shards[n] == shards[-1]]
    for key in both:
        sv.forget(folder, [key], purge=True)
    assert sv.verify(folder, progress=False).ok
    assert len([valid for _, valid in order(loader(folder)) if valid]) == CLIPS - len(both)


def test_a_run_whose_revision_a_purge_ends_says_so(folder: Path) -> None:
    run = loader(folder)
    sv.forget(folder, list(GONE), purge=True)
    with pytest.raises(DatasetError, match=r"is gone: revision 1, in which clips were purged, ended the one") as found:
        order(run)
    assert "\n" not in str(found.value)


def test_a_cache_folder_that_would_not_be_looked_at_is_told(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong, said in (
        (3, "cache_dir must be a path"),
        ("s3://b/c", "cache_dir must be a local path"),
        ("~/cache", "only a shell replaces ~"),
    ):
        with pytest.raises(InputError, match=said):
            sv.forget(folder, ["clip4"], purge=True, cache_dir=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="purge=True"):
        sv.forget(folder, ["clip4"], cache_dir=tmp_path)
    assert not len(sv.Dataset.open(folder).forgotten)
    sv.forget(folder, ["clip4"], purge=True, cache_dir=tmp_path / "mistyped")
    assert "there is no folder" in caplog.text
