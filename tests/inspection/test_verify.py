"""Every kind of damage is found, and reported for the right shard and clip."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamvid.checksum import crc32c, file_sha256
from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import SHARD_EXTENSIONS
from streamvid.dataset.revisions import read_manifest
from streamvid.errors import DatasetError, InputError
from streamvid.inspection import beside, checks, shard_check
from streamvid.inspection import verify as verify_module
from streamvid.inspection.checks import sampled
from streamvid.inspection.shard_check import Problem
from streamvid.inspection.verify import VerifyReport, verify
from streamvid.packing.pack import pack
from tests.support import hostile
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import VIDEOS, edit_index, edit_parquet, make_videos, pack_recipes, reseal, upload
from tools.damage import flip_bytes


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips in a few shards; shard 0 holds several."""
    root = tmp_path_factory.mktemp("verify")
    (root / "list.csv").write_text("path,score,text\n" + "".join(f"{n},{i / 2},t{i}\n" for i, n in enumerate(VIDEOS)))
    path = pack_recipes(VIDEOS, root, metadata=[root / "list.csv"], shard_size=40_000)
    counts = [entry.clips for entry in Dataset.open(path).shards]
    assert len(counts) >= 2
    assert counts[0] >= 2
    return path


def said(report: VerifyReport) -> str:
    return "\n".join(f"{p.shard} {p.clip}: {p.what}" for p in report.problems)


@pytest.mark.parametrize("decode", [False, True])
def test_a_whole_dataset_has_no_problems(packed: Path, decode: bool) -> None:
    report = verify(packed, decode=decode)
    assert report.problems == ()
    assert report.ok
    assert report.decoded == decode
    assert report.manifest.clips == 6


def test_a_flipped_byte_in_a_video(copy: Path) -> None:
    clips = Dataset.open(copy).clips
    flip_bytes(copy / "shards/00000000.tar", int(clips.mp4_offset[1] + clips.mp4_size[1] - 5))
    assert verify(copy).problems == (
        Problem("00000000", "", "00000000.tar: its SHA-256 is not the one in dataset.json"),
        Problem("00000000", clips.key[1], "the SHA-256 of its mp4 is not the one in the parquet"),
    )


def test_what_the_disk_cannot_read_is_told_with_all_else(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verify ended with "Input/output error", without a name."""
    clips = Dataset.open(copy).clips
    dead, flipped = int(clips.mp4_offset[0]) + 9, int(clips.mp4_offset[1] + clips.mp4_size[1] - 5)
    flip_bytes(copy / "shards/00000000.tar", flipped)
    error = OSError(errno.EIO, os.strerror(errno.EIO))

    def sha256(path: Path) -> str:
        if path.name in ("00000000.tar", "00000000.idx"):
            raise error
        return file_sha256(path)

    def read(path: Path, start: int, size: int) -> bytes:
        if path.name == "00000000.tar" and start <= dead < start + size:
            raise error
        return read_local(path, start, size)

    def read_file(path: Path, most: int) -> bytes:
        raise error

    read_local = shard_check._read_local
    monkeypatch.setattr(checks, "file_sha256", sha256)
    monkeypatch.setattr(shard_check, "_read_local", read)
    monkeypatch.setattr(checks, "read_file", read_file)
    unread = "it cannot be read (Input/output error): check the disk"
    assert verify(copy).problems == (
        Problem("00000000", "", f"00000000.tar: {unread}"),
        Problem("00000000", "", f"00000000.idx: {unread}"),
        Problem("00000000", clips.key[0], unread),
        Problem("00000000", clips.key[1], "the SHA-256 of its mp4 is not the one in the parquet"),
    )


def _tar(folder: Path, shard: int = 0) -> Path:
    return folder / f"shards/{shard:08d}.tar"


def _parquet(folder: Path) -> Path:
    return folder / "shards/00000000.parquet"


def _flip_in_index(folder: Path) -> None:
    clips = Dataset.open(folder).clips
    flip_bytes(folder / "shards/00000000.packets", int(clips.index_offset[1] + clips.index_size[1]) - 2)


def _edit_index(**columns: Callable[[list[int]], list[int]]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = Dataset.open(folder).index(1)
        edit_index(folder, 1, **{name: edit(getattr(index, name).tolist()) for name, edit in columns.items()})

    return change


def _flip_in(kind: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        clips = Dataset.open(folder).clips
        flip_bytes(_tar(folder), int(getattr(clips, f"{kind}_offset")[1] + getattr(clips, f"{kind}_size")[1] - 2))

    return change


def _truncate(folder: Path) -> None:
    with _tar(folder, 1).open("r+b") as file:
        file.truncate(2000)


def _swap(extension: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        one, two = (folder / f"shards/0000000{n}.{extension}" for n in (0, 1))
        data = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(data)

    return change


def _drop_row(folder: Path) -> None:
    table = pq.read_table(_parquet(folder))
    pq.write_table(table.slice(0, table.num_rows - 1), _parquet(folder))


def _remove(extension: str) -> Callable[[Path], None]:
    return lambda folder: (folder / f"shards/00000000.{extension}").unlink()


def _swap_lines(folder: Path) -> None:
    path = folder / "shards/00000000.idx"
    first, one, two, *rest = path.read_text().split("\n")
    path.write_text("\n".join([first, two, one, *rest]))


def _header(at: int) -> Callable[[Path], None]:
    """Damage a byte of the second clip's first tar header."""
    return lambda folder: flip_bytes(_tar(folder), int(Dataset.open(folder).clips.mp4_offset[1]) - 512 + at)


def _gnu(folder: Path) -> None:
    """Make the first header one of GNU tar, with a checksum that is right."""
    data = bytearray(_tar(folder).read_bytes())
    data[257:265] = b"ustar  \0"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    _tar(folder).write_bytes(data)


def _edit(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        row = pq.read_table(_parquet(folder)).to_pylist()[1]
        edit_parquet(_parquet(folder), 1, **{k: v(row) if callable(v) else v for k, v in values.items()})

    return change


def _drop(column: str) -> Callable[[Path], None]:
    return lambda folder: pq.write_table(pq.read_table(_parquet(folder)).drop_columns([column]), _parquet(folder))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "json": (_flip_in("json"), "its json (cannot be read|does not agree)"),
    "index": (_flip_in_index, "its frame index is damaged: the checksum of block 0 is not the stored one"),
    "truncated": (_truncate, r"00000001\.tar: 2000 bytes instead of"),
    "swapped idx": (_swap("idx"), r"00000000\.idx: its SHA-256"),
    "swapped parquet": (_swap("parquet"), r"00000000\.parquet: its SHA-256"),
    "swapped tar": (_swap("tar"), r"00000000\.tar: \d+ bytes instead of"),
    "missing row": (_drop_row, r"00000000\.parquet has \d rows for \d clips"),
    "missing tar": (_remove("tar"), r"00000000\.tar: missing"),
    "missing idx": (_remove("idx"), r"00000000\.idx: missing"),
    "missing parquet": (_remove("parquet"), r"00000000\.parquet: missing"),
}
DEEP_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "swapped idx": (_swap("idx"), "the idx has .* lines and begins|does not agree with the parquet"),
    "lines of the idx": (_swap_lines, "its line in the idx does not agree with the parquet"),
    "idx is no text": (lambda f: flip_bytes(f / "shards/00000000.idx", 3), "the idx has|does not agree"),
    "a name in the tar": (_header(0), "tar"),
    "the magic in the tar": (_header(258), "tar"),
    "a tar that is not USTAR": (_gnu, "the first header of the tar is not USTAR"),
    "index": (_flip_in_index, "its frame index is damaged"),
    "swapped indexes": (_swap("packets"), "its frame index is damaged|instead of|does not lie within"),
    "json": (_flip_in("json"), "its json"),
    "mp4": (_flip_in("mp4"), "SHA-256 of its mp4"),
    "source": (_edit(source="elsewhere.mp4"), "its json does not agree with the parquet"),
    "label": (_edit(label=3), "its json does not agree"),
    "meta": (_edit(meta='{"a":1}'), "its json does not agree"),
    "meta is no JSON": (_edit(meta="{"), "its json cannot be read"),
    "meta is a list": (_edit(meta="[1]"), "its json cannot be read"),
    "key": (_edit(key="other"), "the tar has"),
    "stsd": (_edit(stsd=lambda row: row["stsd"][:-1] + b"\xff"), "sample description in its mp4"),
    "time base": (_edit(time_base_den=lambda row: row["time_base_den"] + 1), "time base"),
    "pts": (_edit_index(pts=lambda column: [p + 1 if p else 0 for p in column]), "packet 1 of its mp4"),
    "offset": (_edit_index(offset=lambda column: [o - 1 for o in column]), "packet 0 of its mp4 is not where"),
    "size": (_edit_index(size=lambda column: [column[0] - 1, *column[1:]]), "packet 0 of its mp4 is not where"),
    "crc32c": (_edit_index(crc32c=lambda column: [column[0], column[1] ^ 1, *column[2:]]), "packet 1 .*CRC-32C"),
    "no crc32c": (_edit_index(crc32c=lambda column: [*column[:-1], -1]), "CRC-32C"),
    "a gap between indexes": (
        lambda folder: edit_parquet(_parquet(folder), 1, index_offset=0),
        "frame indexes in the .packets file are not one after the other",
    ),
    "mp4 range": (_edit(mp4_offset=lambda row: row["mp4_offset"] + 1), "the tar has|SHA-256 of its mp4"),
    "swapped parquet": (_swap("parquet"), "rows for|frames instead|the tar has"),
    "a typed number": (_edit(meta_score=99.0), "its 'meta_score' in the parquet does not agree with its meta"),
    "a typed text that is gone": (_edit(meta_text=None), "its 'meta_text' in the parquet does not agree"),
    "a column that the meta have alone": (_drop("meta_text"), "its 'meta_text' in the parquet does not agree"),
    "one offset": (
        _edit_index(offset=lambda column: [column[0], column[1] + 1, *column[2:]]),
        "packet 1 of",
    ),
}
SEEN_IN_A_SAMPLE = {
    name: case for name, case in DEEP_DAMAGE.items() if name not in ("lines of the idx", "idx is no text")
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(copy: Path, kind: str) -> None:
    damage, what = DAMAGE[kind]
    damage(copy)
    report = verify(copy)
    assert not report.ok
    assert re.search(what, said(report)), said(report)
    untouched = {f"{n:08d}" for n in range(2, len(report.manifest.shards))}
    assert not untouched & {problem.shard for problem in report.problems}


@pytest.mark.parametrize("kind", DEEP_DAMAGE)
def test_damage_is_found_even_if_the_checksums_agree(copy: Path, kind: str) -> None:
    damage, what = DEEP_DAMAGE[kind]
    damage(copy)
    reseal(copy)
    report = verify(copy)
    assert not report.ok
    assert re.search(what, said(report)), said(report)


@pytest.mark.parametrize("kind", SEEN_IN_A_SAMPLE)
def test_damage_is_found_in_a_sample(copy: Path, kind: str) -> None:
    """Checked clip by clip, without the tar as a whole."""
    damage, what = SEEN_IN_A_SAMPLE[kind]
    damage(copy)
    reseal(copy)
    problems = check_all(copy)
    assert re.search(what.replace("the first header of the tar is not USTAR", "no USTAR header"), problems), problems


def check_all(folder: Path | str) -> str:
    """What is found in a sample of all clips; in this process, which takes less time."""
    found = []
    for entry in read_manifest(str(folder)).shards:
        task = shard_check.ShardTask(str(folder), entry, tuple(range(entry.clips)), False, 1)
        found += [f"{p.shard} {p.clip}: {p.what}" for p in shard_check.check_shard(task).problems]
    return "\n".join(found)


def test_a_sample_is_drawn_from_all_shards_and_the_same_each_time(packed: Path) -> None:
    manifest = read_manifest(str(packed))
    drawn = sampled(manifest, 0.5, 0)
    assert [len(drawn), sum(map(len, drawn))] == [len(manifest.shards), 3]
    assert drawn == sampled(manifest, 0.5, 0)
    assert len({str(sampled(manifest, 0.5, seed)) for seed in range(20)}) > 5
    assert sum(map(len, sampled(manifest, 0.001, 0))) == 1
    assert sampled(manifest, 1.0, 3) == [tuple(range(entry.clips)) for entry in manifest.shards]


@pytest.mark.parametrize("decode", [False, True])
def test_a_sample_of_a_whole_dataset(packed: Path, decode: bool) -> None:
    report = verify(packed, sample=0.5, decode=decode, progress=False)
    assert (report.problems, report.checked, report.decoded) == ((), 3, decode)
    assert verify(packed, progress=False).checked == 6


def test_a_sample_sees_truncated_and_missing_files(copy: Path) -> None:
    _truncate(copy)
    _remove("idx")(copy)
    report = verify(copy, sample=0.01, progress=False)
    assert "00000001.tar: 2000 bytes instead of" in said(report)
    assert "00000000.idx: missing" in said(report)
    _remove("tar")(copy)
    assert "00000000.tar: missing" in said(verify(copy, sample=0.01, progress=False))


def test_a_stale_dataset_json(copy: Path, tmp_path: Path) -> None:
    """An older dataset.json beside the shards of another pack."""
    stale = (copy / "dataset.json").read_bytes()
    make_videos(tmp_path / "in")
    for name in ("a/one.mp4", "b/clip2.mov"):
        (tmp_path / "in" / name).unlink()
    pack([tmp_path / "in"], copy, shard_size=40_000, overwrite=True, progress=False)
    assert verify(copy, progress=False).ok
    (copy / "dataset.json").write_bytes(stale)
    for report in (verify(copy, progress=False), verify(copy, sample=0.01, progress=False)):
        assert "neither idx nor parquet of shard 00000000 are those in dataset.json: it is older or newer" in said(
            report
        )


def test_shards_that_dataset_json_does_not_name(copy: Path) -> None:
    for extension in SHARD_EXTENSIONS:
        shutil.copy(copy / f"shards/00000000.{extension}", copy / f"shards/00000007.{extension}")
    (copy / "shards/notes.txt").write_text("")
    (copy / "unfinished.txt").write_text("")
    report = verify(copy, sample=0.01, progress=False)
    assert report.ok
    assert report.notes[0].startswith("shards/ holds shard 00000007, not named in dataset.json")
    assert report.notes[1].startswith("there is unfinished.txt")
    assert beside.named([f"{n:08d}" for n in range(7)]).endswith("00000004 and 2 more")


def test_packets_that_do_not_decode_are_found_by_decoding(copy: Path) -> None:
    """All sums and indexes agree on a video that is nonsense from its second packet on."""
    dataset = Dataset.open(copy)
    row = list(dataset.clips.codec).index("vp9")
    assert dataset.clips.shard[row] == 0
    start, size = int(dataset.clips.mp4_offset[row]), int(dataset.clips.mp4_size[row])
    data = bytearray(_tar(copy).read_bytes())
    at = start + int(dataset.index(row).offset[1])
    data[at : start + size] = bytes(start + size - at)
    _tar(copy).write_bytes(data)
    edit_parquet(_parquet(copy), row, sha256=hashlib.sha256(data[start : start + size]).hexdigest())
    index = dataset.index(row)
    crcs = [crc32c(data[start + o : start + o + n]) for o, n in zip(index.offset, index.size, strict=True)]
    edit_index(copy, row, crc32c=crcs)
    reseal(copy)
    assert verify(copy).problems == ()
    (problem,) = verify(copy, decode=True).problems
    assert problem.clip == dataset.clips.key[row]
    frames = int(dataset.clips.frames[row])
    assert problem.what.startswith(f"{frames - 1} of its {frames} frames do not decode, 1 to {frames - 1}: ")
    # FFmpeg's VP9 decoder says nothing of damage if it has several threads.
    for workers in (1, 8):
        assert verify(copy, decode=True, workers=workers).problems == (problem,)


def test_frame_counts_must_add_up(copy: Path) -> None:
    """A frame hidden in parquet and index alike, with a count that agrees; dataset.json alone knows better."""
    dataset = Dataset.open(copy)
    index = dataset.index(0)
    flags = index.flags.copy()
    flags[int(index.visible[-1])] |= 8
    edit_index(copy, 0, flags=flags)
    edit_parquet(_parquet(copy), 0, frames=int(dataset.clips.frames[0]) - 1)
    reseal(copy)
    assert "frames instead of" in said(verify(copy))


def test_the_same_key_in_two_shards(copy: Path) -> None:
    clips = Dataset.open(copy).clips
    second = int(np.argmax(clips.shard == 1))
    edit_parquet(copy / "shards/00000001.parquet", 0, key=clips.key[0])
    reseal(copy)
    assert f" {clips.key[0]}: 2 clips have this key" in said(verify(copy))
    assert second


def test_wrong_seconds(copy: Path) -> None:
    path = copy / "dataset.json"
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
    assert "the clips add up to" in said(verify(copy))


@pytest.mark.usefixtures("worker_processes")
def test_any_number_of_workers_finds_the_same(copy: Path) -> None:
    _flip_in("mp4")(copy)
    _truncate(copy)
    assert verify(copy, workers=1).problems == verify(copy, workers=3).problems


@pytest.mark.parametrize(
    ("signum", "text"),
    [
        (signal.SIGKILL, "the process that checks it was killed (SIGKILL)"),
        (signal.SIGSEGV, "checking it crashes FFmpeg (SIGSEGV)"),
    ],
)
@pytest.mark.usefixtures("worker_processes")
def test_a_process_that_is_killed_does_not_blame_ffmpeg(
    signum: int, text: str, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills a process where memory runs out."""
    monkeypatch.setattr(verify_module, "check_shard", partial(hostile.die_by, signum))
    assert {problem.what for problem in verify(packed, workers=1).problems} >= {text}


def test_what_cannot_be_verified(tmp_path: Path, packed: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset at"):
        verify(tmp_path)
    with pytest.raises(InputError, match="workers must be"):
        verify(packed, workers=0)
    for share in (0.0, 1.1, -1.0, float("nan")):
        with pytest.raises(InputError, match="is no share of the clips"):
            verify(packed, sample=share)
    with pytest.raises(InputError, match="seed must be"):
        verify(packed, sample=0.5, seed=-1)


def test_on_a_bucket(copy: Path, s3_bucket: str) -> None:
    from streamvid.storage import filesystem

    url = upload(copy, f"s3://{s3_bucket}/verify")
    assert verify(url).problems == ()
    assert verify(url, sample=0.5, progress=False).problems == ()
    _truncate(copy)
    filesystem.put_file(_tar(copy, 1), f"{url}/shards/00000001.tar")
    filesystem.write_bytes(f"{url}/shards/00000000.idx", b"")
    report = verify(url)
    assert "00000001.tar: 2000 bytes instead of" in said(report)
    assert "the idx has" in said(report)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_where_no_folder_may_be_listed(copy: Path, scheme: str) -> None:
    """As on most web servers, and in buckets that give objects alone, which refuse what is not there."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    with faulty_s3() as site:
        url = site.add_folder(copy, "bucket/set")
        site.fault = lambda method, key, before: None if key in site.objects else "403"
        assert verify(url if scheme == "s3" else f"{site.endpoint}/bucket/set").problems == ()


def test_a_worker_fetches_into_a_folder_of_its_parent_which_removes_it_when_the_worker_is_killed(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamvid.storage import filesystem

    upload(copy, "memory://verify/work")
    held: list[Path] = []
    get = filesystem.get_file
    monkeypatch.setattr(filesystem, "get_file", lambda url, local: (held.append(local), get(url, local))[1])
    entry = read_manifest("memory://verify/work").shards[0]
    task = shard_check.ShardTask("memory://verify/work", entry, None, False, 1, work=str(tmp_path))
    assert shard_check.check_shard(task).problems == []
    assert {local.parent.parent for local in held} == {tmp_path}


def test_of_a_bucket_a_sample_reads_only_its_own_bytes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    from streamvid.storage import filesystem

    upload(copy, "memory://verify/sample")
    fetched: list[str] = []
    ranges: list[tuple[Any, int, int]] = []
    get, read = filesystem.get_file, shard_check.read_ranges
    monkeypatch.setattr(filesystem, "get_file", lambda url, local: (fetched.append(url), get(url, local))[1])
    monkeypatch.setattr(
        shard_check, "read_ranges", lambda wanted, **rest: (ranges.extend(wanted), read(wanted, **rest))[1]
    )
    entry = read_manifest("memory://verify/sample").shards[0]
    task = shard_check.ShardTask("memory://verify/sample", entry, (1,), True, 1)
    assert shard_check.check_shard(task).problems == []
    assert sorted(url.rpartition(".")[2] for url in fetched) == ["idx", "packets", "parquet"]
    clips = Dataset.open(copy).clips
    wanted = [
        (int(getattr(clips, f"{kind}_offset")[1]) - 512, int(getattr(clips, f"{kind}_size")[1]) + 512)
        for kind in ("mp4", "json")
    ]
    assert [(start, end - start) for _, start, end in ranges] == wanted
    _flip_in("mp4")(copy)
    fsspec.filesystem("memory").put(str(_tar(copy)), f"/verify/sample/{entry.file('tar')}")
    (problem,) = shard_check.check_shard(task).problems
    assert problem.what == "the SHA-256 of its mp4 is not the one in the parquet"


def test_the_command(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "unfinished.txt").write_text("")
    assert main(["verify", str(copy), "--sample", "50%", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "6 clips in 2 shards" in out
    assert "indexes checked, and of 3 clips files, indexes and packets checked" in out
    assert "note: there is unfinished.txt" in out
    _truncate(copy)
    assert main(["verify", str(copy), "--sample", "0.1 %"]) == 1
    for wrong in ("1", "0%", "101%", "x%", "-1%", "nan%"):
        with pytest.raises(SystemExit):
            main(["verify", str(copy), f"--sample={wrong}"])
        assert "is no share of the clips; write 1%" in capsys.readouterr().err
