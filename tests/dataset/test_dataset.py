"""Opening datasets, and refusing damaged or forged ones."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.dataset import clip_source
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.frame_indexes import memory_of
from streamvid.dataset.schema import SCHEMA
from streamvid.dataset.selection import select_rows
from streamvid.errors import DatasetError, InputError
from streamvid.inspection.verify import verify
from streamvid.packing.clip_rows import write_parquet
from streamvid.packing.pack import pack
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.range_reader import RangeReader
from tests.support.clock import Clock
from tests.support.packed import SMALL, VIDEOS, edit_json, edit_parquet, pack_recipes

PARQUET = "shards/00000100.parquet"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of six clips in six shards."""
    return pack_recipes(VIDEOS, tmp_path_factory.mktemp("dataset"), shard_size=1)


def test_rows_and_indexes(packed: Path) -> None:
    dataset = Dataset.open(packed)
    assert len(dataset) == 6
    assert dataset.clips.shard.tolist() == list(range(6))
    for i in range(len(dataset)):
        row = pq.read_table(packed / f"shards/{100 * i:08d}.parquet").to_pylist()[0]
        assert dataset.key(i) == row["key"]
        assert dataset.row(row["key"]) == i
        assert dataset.clips.stsds[dataset.clips.stsd_id[i]] == row["stsd"]
        for name in SCHEMA.names:
            if name not in ("stsd", "label", "sha256", "index_blocks"):
                assert getattr(dataset.clips, name)[i] == row[name]
        index = dataset.index(i)
        for name in ("pts", "offset", "size", "flags", "crc32c"):
            assert getattr(index, name).dtype == np.int64
        assert len(index) == row["packets"]
        assert len(index.visible) == row["frames"]
        assert dataset.shard_path(i) == str(packed / f"shards/{100 * i:08d}.tar")
    assert dataset.clips.label.tolist() == [-1] * 6
    assert dataset.classes is None
    wrong: tuple[Any, ...] = (-1, 6, 1.0, True, None, dataset.key(0), "none", [0])
    for one, look_up in itertools.product(wrong, (dataset.key, dataset.index)):
        with pytest.raises(InputError, match="the row of a clip must be a whole number from 0 to 5; it is "):
            look_up(one)
    assert dataset.key(np.array(5)) == dataset.key(np.int32(5)) == dataset.key(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no clip 'none'"):
        dataset.row("none")
    with pytest.raises(InputError, match="key must be the text of a clip's key; it is 3"):
        dataset.row(3)  # type: ignore[arg-type]
    assert dataset.clips.seconds[0] == pytest.approx(12 / 30)


def test_many_clips_in_a_shard(packed: Path, tmp_path: Path) -> None:
    pack([packed.parent / "videos"], tmp_path / "one")
    one, six = Dataset.open(tmp_path / "one"), Dataset.open(packed)
    assert len(one.shards) == 1
    for i in range(6):
        assert np.array_equal(one.index(i).offset, six.index(i).offset)
        assert one.clips.stsds[one.clips.stsd_id[i]] == six.clips.stsds[six.clips.stsd_id[i]]


def test_relative_paths_survive_a_change_of_folder(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed.parent)
    dataset = Dataset.open("set")
    monkeypatch.chdir("/")
    assert len(dataset.index(0)) == 12


def test_pickling_leaves_the_indexes_behind(packed: Path) -> None:
    dataset = Dataset.open(packed)
    small = len(pickle.dumps(dataset))
    for i in range(6):
        dataset.index(i)
    again = pickle.dumps(dataset)
    assert len(again) == small
    assert np.array_equal(pickle.loads(again).index(3).size, dataset.index(3).size)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The tars of each call that read frame indexes."""
    calls: list[list[str]] = []
    read = RangeReader.read

    def counting(reader: RangeReader, ranges: Sequence[ByteRange], **options: Any) -> Any:
        calls.append([Path(one.path).stem for one in ranges])
        return read(reader, ranges, **options)

    monkeypatch.setattr(RangeReader, "read", counting)
    return calls


def test_indexes_are_kept_within_bounds(packed: Path, monkeypatch: pytest.MonkeyPatch, reads: list[list[str]]) -> None:
    dataset = Dataset.open(packed)
    for _ in range(3):
        dataset.index(0), dataset.index(1)
    assert reads == [["00000000"], ["00000100"]]
    reads.clear()
    monkeypatch.setattr(clip_source, "INDEX_BYTES", 2 * memory_of(dataset.index(0)))
    dataset = Dataset.open(packed)
    for row in (0, 1, 0, 2, 0, 1):
        dataset.index(row)
    assert reads == [["00000000"], ["00000100"], ["00000200"], ["00000100"]], "the one used last longest ago goes first"


def test_indexes_that_are_wanted_together_are_read_together(packed: Path, reads: list[list[str]]) -> None:
    dataset = Dataset.open(packed)
    dataset.index(1)
    found = dataset.indexes([3, 1, 3, 0])
    assert reads == [["00000100"], ["00000300", "00000000"]]
    assert found[0] is found[2]
    for row, index in zip([3, 1, 3, 0], found, strict=True):
        assert np.array_equal(index.offset, Dataset.open(packed).index(row).offset)


def test_an_index_is_read_without_the_columns_of_its_shard(packed: Path, tmp_path: Path) -> None:
    """To decode a shard's columns for every clip took 2 to 23 ms a clip."""
    dataset = Dataset.open(shutil.copytree(packed, tmp_path / "ds"))
    for parquet in (tmp_path / "ds/shards").glob("*.parquet"):
        parquet.unlink()
    assert [len(index) for index in dataset.indexes(range(6))] == dataset.clips.packets.tolist()


def test_from_several_threads(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_source, "INDEX_BYTES", 1)
    dataset = Dataset.open(packed)
    with ThreadPoolExecutor(8) as threads:
        lengths = list(threads.map(lambda i: len(dataset.index(i % 6)), range(600)))
    assert lengths == [int(dataset.clips.packets[i % 6]) for i in range(600)]


def test_opening_imports_neither_writers_nor_decoders(packed: Path) -> None:
    script = (
        "import sys; from streamvid.dataset.dataset import Dataset; Dataset.open(sys.argv[1]).index(0)\n"
        "assert not {'av', 'webdataset', 'torch', 'nvidia.dali', 'rich'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", script, str(packed)], check=True, timeout=120)


def test_many_clips_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards, clips = 20, 1000
    folder = tmp_path / "ds/shards"
    folder.mkdir(parents=True)
    entries = []
    for shard in range(shards):
        rows: list[dict[str, Any]] = []
        for clip in range(clips):
            row: dict[str, Any] = {field.name: 1 for field in SCHEMA if pa.types.is_integer(field.type)}
            row |= {field.name: "x" for field in SCHEMA if pa.types.is_string(field.type)}
            row |= {"key": f"clip-{shard}-{clip}", "source": f"videos/some/folder/clip-{shard}-{clip}.mp4"}
            row |= {"sha256": f"{shard * clips + clip:064x}", "stsd": b"\0" * 160, "rotation": 0, "frames": 30}
            row |= {
                "packets": 30,
                "mp4_offset": 512,
                "json_offset": 512,
                "mp4_size": 1000,
                "index_offset": clip * 864,
                "index_size": 864,
            }
            rows.append(row)
        write_parquet(rows, folder / f"{shard:08d}.parquet", pa.table({}))
        with (folder / f"{shard:08d}.tar").open("wb") as tar:
            tar.truncate(10240)
        (folder / f"{shard:08d}.packets").write_bytes(bytes(864 * clips))
        zeros, blocks = "0" * 64, sha256(bytes(864 * clips)).hexdigest()
        entries.append({"name": f"{shard:08d}", "clips": clips, "frames": 30 * clips, "bytes": 10240,
                        "sha256": zeros, "idx_sha256": zeros, "parquet_sha256": zeros,
                        "packets_bytes": 864 * clips, "packets_sha256": blocks})  # fmt: skip
    document = {"format": "streamvid", "version": 2, "name": "big", "clips": shards * clips, "classes": None}
    document |= {"frames": 30 * shards * clips, "bytes": 10240 * shards, "seconds": 1.0, "shards": entries}
    (tmp_path / "ds/dataset.json").write_text(json.dumps(document))
    dataset = Dataset.open(tmp_path / "ds")
    assert len(dataset) == shards * clips
    assert dataset.key(shards * clips - 1) == f"clip-{shards - 1}-{clips - 1}"
    with pytest.raises(DatasetError, match=r"clip 'clip-0-0' \(shard 00000000, byte 0\).*checksum of its directory"):
        dataset.index(0)


# Damage


def edit_shard(folder: Path, **fields: Any) -> None:
    shards = json.loads((folder / "dataset.json").read_text())["shards"]
    edit_json(folder, shards=[shards[0], shards[1] | fields, *shards[2:]])


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "version 3": (lambda d: edit_json(d, version=3), "version 3 dataset.*update streamvid"),
    "version 1": (lambda d: edit_json(d, version=1), "version 1, which this streamvid does not read: pack it again"),
    "version true": (lambda d: edit_json(d, version=True), "version True"),
    "no version": (lambda d: edit_json(d, version=None), "version None"),
    "another format": (lambda d: edit_json(d, format="x"), "does not describe a streamvid dataset"),
    "no json": (lambda d: (d / "dataset.json").write_text("{"), "is not JSON"),
    "no text": (lambda d: (d / "dataset.json").write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "deep json": (lambda d: (d / "dataset.json").write_text("[" * 100_000), "is not JSON"),
    "a list": (lambda d: (d / "dataset.json").write_text("[]"), "does not describe"),
    "no shards": (lambda d: edit_json(d, shards=[], clips=0, frames=0, bytes=0), "holds no clips"),
    "shards of text": (lambda d: edit_json(d, shards=["x"]), "entry is not an object"),
    "totals": (lambda d: edit_json(d, clips=7), "'clips' is 7, its shards add up to 6"),
    "negative": (lambda d: edit_shard(d, clips=-1), "'clips' is -1"),
    "a fraction": (lambda d: edit_shard(d, bytes=1.5), "'bytes' is missing or has the wrong type"),
    "true": (lambda d: edit_shard(d, clips=True), "'clips' is missing or has the wrong type"),
    "name": (lambda d: edit_shard(d, name="../../x"), "'../../x' is not eight digits"),
    "name of other digits": (lambda d: edit_shard(d, name="٠٠٠٠٠٠٠١"), "not eight digits"),
    "name with newline": (lambda d: edit_shard(d, name="00000100\n"), "not eight digits"),
    "name twice": (lambda d: edit_shard(d, name="00000000"), "names a shard twice"),
    "checksum": (lambda d: edit_shard(d, sha256="x"), "shard 00000100.*'sha256' is not 64 hexadecimal digits"),
    "etags of text": (lambda d: edit_shard(d, etags="x"), "shard 00000100.*'etags' is not an object"),
    "an etag of a number": (lambda d: edit_shard(d, etags={"tar": 1}), "has a value that is no ETag"),
    "an etag with a header": (lambda d: edit_shard(d, etags={"tar": 'x"\r\nX: y'}), "has a value that is no ETag"),
    "an etag with a line": (lambda d: edit_shard(d, etags={"packets": "x\n"}), "has a value that is no ETag"),
    "a long etag": (lambda d: edit_shard(d, etags={"parquet": "x" * 201}), "has a value that is no ETag"),
    "no etag": (lambda d: edit_shard(d, etags={"tar": ""}), "has a value that is no ETag"),
    "truncated indexes": (
        lambda d: truncate(d / "shards/00000100.packets", 100),
        r"shard 00000100\.packets is truncated: 100 of \d+ bytes; copy it again or run streamvid verify",
    ),
    "missing indexes": (lambda d: (d / "shards/00000100.packets").unlink(), r"00000100\.packets cannot be opened"),
    "an index beyond its file": (lambda d: edit_parquet(d / PARQUET, 0, index_offset=1), "within the .packets file"),
    "blocks of an index": (lambda d: edit_parquet(d / PARQUET, 0, index_blocks=2), "size of its packets and blocks"),
    "no blocks": (lambda d: edit_parquet(d / PARQUET, 0, index_blocks=0, index_size=336), "packets and blocks"),
    "seconds": (lambda d: edit_json(d, seconds=-1), "'seconds' is -1"),
    "infinity": (lambda d: edit_json(d, seconds=float("inf")), "'seconds' is inf"),
    "classes": (lambda d: edit_json(d, classes=[1]), "'classes'"),
    "truncated tar": (
        lambda d: truncate(d / "shards/00000100.tar", 1000),
        r"shard 00000100\.tar is truncated: 1000 of \d+ bytes; copy it again or run streamvid verify",
    ),
    "longer tar": (lambda d: truncate(d / "shards/00000100.tar", 10**6), r"00000100\.tar is too long"),
    "missing tar": (lambda d: (d / "shards/00000100.tar").unlink(), r"00000100\.tar cannot be opened"),
    "missing parquet": (lambda d: (d / PARQUET).unlink(), r"00000100\.parquet is missing"),
    "truncated parquet": (lambda d: truncate(d / PARQUET, 1000), r"00000100\.parquet cannot be read as Parquet"),
    "parquet of another": (
        lambda d: shutil.copy(d / "shards/00000200.parquet", d / PARQUET),
        "frames instead of|lie within",
    ),
    "no column": (lambda d: drop_column(d / PARQUET, "stsd"), "'stsd' is not binary.*no such column"),
    "column of another type": (lambda d: cast_column(d / PARQUET, "width"), "'width' is not int32"),
    "null": (lambda d: make_null(d / PARQUET, "codec"), "'codec' has empty cells"),
    "no rows": (lambda d: no_rows(d / PARQUET), "has 0 rows for 1 clips"),
    "beyond the tar": (lambda d: edit_parquet(d / PARQUET, 0, mp4_size=10**9), "its mp4 does not lie within the tar"),
    "overflow": (lambda d: edit_parquet(d / PARQUET, 0, mp4_size=2**63 - 1), "its mp4 does not lie within the tar"),
    "negative offset": (lambda d: edit_parquet(d / PARQUET, 0, json_offset=-1), "its json does not lie within"),
    "width": (lambda d: edit_parquet(d / PARQUET, 0, width=0), "pixels wide"),
    "height": (lambda d: edit_parquet(d / PARQUET, 0, height=40_000), "pixels wide"),
    "rotation": (lambda d: edit_parquet(d / PARQUET, 0, rotation=45), "rotation is not"),
    "time base": (lambda d: edit_parquet(d / PARQUET, 0, time_base_num=0), "time base"),
    "duration": (lambda d: edit_parquet(d / PARQUET, 0, duration=-1), "duration"),
    "frames": (lambda d: edit_parquet(d / PARQUET, 0, packets=2), "more frames than packets"),
    "random access": (lambda d: edit_parquet(d / PARQUET, 0, random_access=99), "random access"),
    "label": (lambda d: edit_parquet(d / PARQUET, 0, label=-1), "label is negative"),
    "key": (lambda d: edit_parquet(d / PARQUET, 0, key="../x"), "its key is not"),
    "long key": (lambda d: edit_parquet(d / PARQUET, 0, key="x" * 81), "its key is not"),
    "key of another": (lambda d: edit_parquet(d / PARQUET, 0, key=first_key(d)), "more than once"),
    "stsd": (lambda d: edit_parquet(d / PARQUET, 0, stsd=b""), "no sample description"),
}


def first_key(folder: Path) -> str:
    return str(pq.read_table(folder / "shards/00000000.parquet")["key"][0].as_py())


def drop_column(path: Path, name: str) -> None:
    pq.write_table(pq.read_table(path).drop_columns([name]), path)


def cast_column(path: Path, name: str) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, name, table[name].cast(pa.string())), path)


def make_null(path: Path, name: str) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, name, pa.nulls(1, table.schema.field(name).type)), path)


def no_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 0), path)


@pytest.mark.parametrize("called", ["os.stat", "os.access", "streamvid.dataset.shard_rows.read_parquet"])
def test_a_shard_that_this_user_may_not_read(copy: Path, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be copied again."""
    real = {"os.stat": os.stat, "os.access": os.access}.get(called)

    def denied(path: Any, *rest: Any, **options: Any) -> Any:
        if real is not None and not str(path).endswith("00000100.tar"):
            return real(path, *rest, **options)
        if called == "os.access":
            return False
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(called, denied)
    with pytest.raises(DatasetError, match=r"cannot be opened .Permission denied.: check who owns it and its folder"):
        Dataset.open(copy)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_at_opening(copy: Path, kind: str) -> None:
    damage, said = DAMAGE[kind]
    Dataset.open(copy)
    damage(copy)
    with pytest.raises(DatasetError, match=said) as caught:
        Dataset.open(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value).replace("\\n", "")


def test_no_dataset(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DatasetError, match=r"no dataset at .*there is no dataset\.json"):
            Dataset.open(path)


def test_what_is_there_instead_of_a_dataset(packed: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(packed, tmp_path / "copied", ignore=shutil.ignore_patterns("dataset.json")))
    for name in ("videos/cat/a.mp4", "tars/000.tar", "many/000.tar.gz"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    for path, said in {
        tmp_path / "videos": "this is a folder of videos; pack it first",
        tmp_path / "videos/cat/a.mp4": "this is a video; pack it first",
        tmp_path / "tars": "tar files but no dataset.json, so streamvid has not packed them; index them",
        tmp_path / "tars/000.tar": "tar files but no dataset.json",
        tmp_path / "train-{000..099}.tar": "tar files but no dataset.json",
        tmp_path / "many": "tar files but no dataset.json",
        copied: "there are shards of a dataset without its dataset.json, as in an unfinished copy: copy that file, too",
        packed / "dataset.json": f"this is the file in it; give its folder, {packed}$",
        packed.parent: f"this is a folder of datasets; give one of them: .*{packed.name}",
        packed / "shards": f"this is a part of a dataset; give its folder, {packed}$",
        packed / "shards/00000000.tar": f"this is a part of a dataset; give its folder, {packed}$",
        packed / "shard": "there is no dataset.json; check the path$",
        packed / "shards/{00000000..00000001}.tar": f"this is a part of a dataset; give its folder, {packed}$",
    }.items():
        with pytest.raises(DatasetError, match=rf"no dataset at {re.escape(str(path))}: .*{said}"):
            Dataset.open(path)


def test_what_is_no_path() -> None:
    with pytest.raises(InputError, match=r"Dataset\('x'\) does not open a dataset: write Dataset.open\('x'\)"):
        Dataset("x")
    with pytest.raises(InputError, match=r"dataset must be a path.*\['a', 'b'\]; for several datasets write Mix"):
        Dataset.open(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dataset must be a path, a URL or a Dataset, it is None"):
        Dataset.open(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["clip10.mp4", "b/clip10.mp4"])
def test_a_file_name_in_place_of_a_key(packed: Path, name: str) -> None:
    dataset = Dataset.open(packed)
    key = next(dataset.key(i) for i in range(6) if "clip10" in dataset.key(i))
    with pytest.raises(InputError, match=f"there is no clip '{name}' in .*; did you mean '{key}'"):
        dataset.row(name)
    with pytest.raises(InputError, match=f"'{name}'; write '{key}'"):
        select_rows(dataset, keys=[name])


def test_a_local_parquet_with_another_checksum_is_told(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where a bit of a label has flipped: a wrong label looks like any other."""
    edit_parquet(copy / PARQUET, 0, label=3)
    assert len(Dataset.open(copy)) == 6
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("shard 00000100.parquet is not the one in dataset.json, by its SHA-256: copy it again")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize(("call", "file"), [("open", "dataset.json"), ("open", ".parquet"), ("stat", ".tar")])
def test_a_mounted_storage_that_does_not_answer_is_waited_for(
    copy: Path, monkeypatch: pytest.MonkeyPatch, call: str, file: str, number: int
) -> None:
    clock, real, until = Clock(), getattr(os, call), [5.0]

    def failing(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).endswith(file) and clock.now < until[0]:
            raise OSError(number, os.strerror(number), path)
        return real(path, *given, **more)

    monkeypatch.setattr(os, call, failing)
    assert len(Dataset.open(copy, retry_for=clock.retry())) == 6
    assert clock.now >= 5
    until[0] = math.inf
    with pytest.raises(StorageUnavailable, match=f"{os.strerror(number).lower()}; check the disk, or the network"):
        Dataset.open(copy, retry_for=clock.retry(100))


def test_opening_reads_each_file_once(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with its checksum is what is used, and a mounted storage sends it once."""
    opened, real = [], os.open

    def watched(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(os.path.basename(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", watched)
    dataset = Dataset.open(packed)
    names = [name for name in opened if name.endswith(".parquet")]
    assert sorted(names) == sorted(shard.file("parquet").rpartition("/")[2] for shard in dataset.shards)


def test_a_shard_that_was_replaced_by_one_of_equal_size_is_refused(tmp_path: Path) -> None:
    """Its clips have sound checksums of their own, and would come under the old dataset's name."""
    names = ["one", "two", "three"]
    recipes = {name: replace(SMALL, crf=20 + 5 * n) for n, name in enumerate(names)}
    was = pack_recipes(recipes, tmp_path / "was")
    now = pack_recipes(dict(zip(names, [*recipes.values()][::-1], strict=True)), tmp_path / "now")
    for extension in ("tar", "idx", "packets", "parquet"):
        one, other = (folder / f"shards/00000000.{extension}" for folder in (was, now))
        assert extension in ("parquet", "idx") or one.stat().st_size == other.stat().st_size
        one.write_bytes(other.read_bytes())
    with pytest.raises(DatasetError, match="files of another one are in its place"):
        Dataset.open(was)


def test_metadata_that_are_not_utf8(copy: Path) -> None:
    damaged = pa.array([b"to\xf7n"]).view(pa.string())
    pq.write_table(pq.read_table(copy / PARQUET).append_column("meta_place", damaged), copy / PARQUET)
    with pytest.raises(DatasetError, match=r"text in shards .* is not UTF-8 .*: copy the shard again"):
        Dataset.open(copy)
    assert any("is not UTF-8" in problem.what for problem in verify(copy, progress=False).problems)


def test_a_key_that_is_not_utf8(packed: Path) -> None:
    with pytest.raises(InputError, match=r"there is no clip 'clip.*udcff'"):
        Dataset.open(packed).row("clip\udcff")
    with pytest.raises(InputError, match="1 of the 1 keys are not in the dataset"):
        select_rows(Dataset.open(packed), keys=["clip\udcff"])


def test_a_key_with_an_extension(packed: Path) -> None:
    dataset = Dataset.open(packed)
    with pytest.raises(InputError, match=r"there is no clip 'slow.mp4' in .*; did you mean 'slow'\?"):
        dataset.row("slow.mp4")


def test_strays_and_unknown_fields_are_ignored(copy: Path) -> None:
    (copy / "shards/00000099.parquet").write_text("junk")
    (copy / "shards/notes.txt").write_text("junk")
    edit_json(copy, more={"x": 1})
    edit_shard(copy, colour="red")
    table = pq.read_table(copy / PARQUET)
    pq.write_table(table.append_column("extra", pa.array([1])), copy / PARQUET)
    assert len(Dataset.open(copy)) == 6


def test_a_remote_dataset_through_a_cache(copy: Path, tmp_path: Path) -> None:
    import fsspec

    from streamvid.storage.shard_cache import ShardCache

    memory = fsspec.filesystem("memory")
    memory.put(str(copy), "/remote/cached", recursive=True)
    with ShardCache(tmp_path / "cache", limit_bytes=1 << 30) as cache:
        dataset = Dataset.open("memory://remote/cached", cache=cache)
        memory.rm("/remote/cached/shards/00000300.parquet")
        local = Dataset.open(copy)
        assert np.array_equal(dataset.index(2).pts, local.index(2).pts)
        assert pickle.loads(pickle.dumps(dataset)).cache is None
