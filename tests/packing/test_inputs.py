"""Inputs → videos with names. No video is opened here, so empty files will do."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.errors import InputError
from streamvid.packing import places as places_module
from streamvid.packing.inputs import find_sources
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.places import Found, Places
from streamvid.storage import filesystem
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import touch


def names(*inputs: object) -> list[str]:
    return [source.name for source in find_sources([str(given) for given in inputs], MetadataLists())]


# Inputs


def test_folders_are_searched_to_the_bottom_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "clip10.mp4", "clip2.MP4", "deep/er/x.webm", "notes.txt", "._clip2.mp4", ".hidden/y.mp4")
    assert names(tmp_path) == ["clip2.MP4", "clip10.mp4", "deep/er/x.webm"]


def test_files_that_are_left_out_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.mp4", "b.IVF", "c.vob", "d.h264", "e.txt", "sub/f.TXT", "sub/g.xyz", "README", ".hidden.xyz")
    touch(tmp_path, "images/1.png", "images/2.png", "images/timestamps.csv", "mixed/1.png", "mixed/x.gif")
    assert names(tmp_path) == ["a.mp4", "b.IVF", "c.vob", "d.h264", "images", "mixed/x.gif"]
    assert "left out: 2 .txt, 1 .png, 1 .xyz, 1 without one; to pack one, name it" in caplog.text
    with pytest.raises(InputError, match=r"no videos in .*found 1 \.txt, 1 \.xyz"):
        names(tmp_path / "sub")


def test_a_glob_counts_what_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.mp4", "a.json", "b.ts", "b.json")
    assert names(f"{tmp_path}/*") == ["a.mp4", "b.ts"]
    assert "left out: 2 .json" in caplog.text
    with pytest.raises(InputError, match=r"no videos match .*found 2 \.json"):
        names(f"{tmp_path}/*.json")


def test_natural_order_does_not_depend_on_the_order_of_inputs(tmp_path: Path) -> None:
    touch(tmp_path, "a1.mp4", "a01.mp4", "a001.mp4")
    files = [tmp_path / "a1.mp4", tmp_path / "a01.mp4", tmp_path / "a001.mp4"]
    assert names(*files) == names(*reversed(files)) == names(tmp_path)


def test_a_pattern_follows_links_as_deep_as_it_must_and_leaves_out_no_folder_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path / "in", "a.mp4", "sub/b.mp4", ".hidden/c.mp4", "sub/n.txt")
    (tmp_path / "in/sub/up").symlink_to("..")
    (tmp_path / "in/self").symlink_to(".")
    (tmp_path / "in/alias").symlink_to("sub")
    assert names(tmp_path / "in/**/*.mp4") == ["a.mp4", "alias/b.mp4", "sub/b.mp4"]
    assert names(tmp_path / "in/**/sub/*.mp4") == ["sub/b.mp4"]
    scandir, code = os.scandir, [errno.EACCES]

    def failing(path: str) -> object:
        if os.path.basename(path) == "sub":
            raise OSError(code[0], os.strerror(code[0]), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert names(tmp_path / "in/**/*.mp4") == ["a.mp4", "alias/b.mp4"]
    assert "sub may not be searched" in caplog.text
    code[0] = errno.EIO
    with pytest.raises(InputError, match=r"cannot search .*/sub: Input/output error"):
        names(tmp_path / "in/**/*.mp4")


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    touch(tmp_path, "real/x.mp4", "elsewhere/y.mp4")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "real" / "z.mp4").symlink_to(tmp_path / "elsewhere" / "y.mp4")
    assert names(tmp_path / "real") == ["linked/y.mp4", "x.mp4", "z.mp4"]


def test_a_file_may_have_any_extension_if_it_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "video.bin")
    assert names(tmp_path / "video.bin") == ["video.bin"]


def test_globs(tmp_path: Path) -> None:
    touch(tmp_path, "a/x1.mp4", "a/y.mp4", "b/deep/x2.mkv", "b/x3.txt")
    assert names(f"{tmp_path}/*/x*") == ["a/x1.mp4"]
    assert names(f"{tmp_path}/**/x*") == ["a/x1.mp4", "b/deep/x2.mkv"]


def test_brackets_in_a_real_name_are_no_glob(tmp_path: Path) -> None:
    touch(tmp_path, "take[1]/x.mp4")
    assert names(tmp_path / "take[1]") == ["x.mp4"]


def test_secrets_of_urls_are_in_no_names(tmp_path: Path) -> None:
    secret = "https://example.org/v.mp4?token=q7&part=1"
    assert names(secret) == ["v.mp4?token=***&part=1"]  # a video, and no pattern
    assert names("https://example.org/v.mp4?id=7") == ["v.mp4?id=7"]
    assert names("http://[::1]:8000/v.mp4") == ["v.mp4"]
    keys = [f"https://example.org/get?key={name}" for name in ("a/1.mp4", "a%2F2.mp4", "b/1.mp4")]
    (tmp_path / "list.csv").write_text("\n".join(["url", *keys]))  # by which a server names its files
    assert names(tmp_path / "list.csv") == ["get?key=a%2F2.mp4", "get?key=a/1.mp4", "get?key=b/1.mp4"]
    assert names("https://example.org/v.mp4?key=AIzaSy.0&api_key=x.mp4") == ["v.mp4?key=***&api_key=***"]
    (tmp_path / "list.csv").write_text(f"url\n{secret}\nhttps://u:pw@example.net/w.mp4\n")
    assert names(tmp_path / "list.csv") == ["***@example.net/w.mp4", "example.org/v.mp4?token=***&part=1"]
    (tmp_path / "list.csv").write_text(f"url\n{secret}\n{secret.replace('q7', 'q8')}\n")
    with pytest.raises(InputError, match=r"=\*\*\*&part=1 is given more than once, with other secrets"):
        names(tmp_path / "list.csv")


@pytest.mark.parametrize(
    "signature",
    [
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F1&X-Amz-Date={}&X-Amz-Expires=9&X-Amz-Signature={}",
        "AWSAccessKeyId=AK&Expires={}&Signature={}",
        "X-Goog-Credential=a/b&X-Goog-Date={}&X-Goog-Signature={}",
        "Expires={}&Signature={}&Key-Pair-Id=K",
        "sv=2024-11-04&se={}&sr=b&sp=r&sig={}",
    ],
)
def test_a_url_that_is_signed_again_names_the_same_video(tmp_path: Path, signature: str) -> None:
    """As where a list is made anew for a pack that goes on, or has a signed URL in each row."""
    first, again = (f"https://example.org/v.mp4?part=1&{signature.format(n, n)}" for n in (1, 2))
    assert names(first) == names(again) == ["v.mp4?part=1"]
    (tmp_path / "list.csv").write_text(f"url\n{first}\n{again}\n")
    assert names(tmp_path / "list.csv") == ["v.mp4?part=1"]
    assert names("https://example.org/v.mp4?Expires=1&part=2") == ["v.mp4?Expires=1&part=2"]  # not signed


@pytest.mark.parametrize("folder", ["what?", "take[1]", "a::b", "100%25 #"])
def test_remote_folders_of_odd_names(folder: str) -> None:
    with faulty_s3() as site:
        site.objects = {f"bucket/{folder}/x::y.mp4": b"", "bucket/other/z.mp4": b""}
        assert names(f"s3://bucket/{folder}") == ["x::y.mp4"]
        assert names(f"s3://bucket/{folder}/x::y.mp4") == ["x::y.mp4"]


class Counted(str):
    """A path that counts how often any of its kind is looked up."""

    looked = 0

    def __hash__(self) -> int:
        Counted.looked += 1
        return super().__hash__()


@pytest.mark.parametrize("given", ["memory://many", "memory://many/*.mp4"])
def test_twice_as_many_files_are_twice_as_much_work(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    for count in (50, 100):
        files = [Counted(f"memory://many/{n}.{'mp4' if n % 2 else 'txt'}") for n in range(count)]
        monkeypatch.setattr(filesystem, "list_files", lambda *_, files=files, **__: files)
        monkeypatch.setattr(filesystem, "glob", lambda *_, files=files: files)
        Counted.looked = 0
        assert len(names(given)) == count // 2
        looked.append(Counted.looked)
    assert looked[1] <= 2 * looked[0] + 10


def test_the_same_file_given_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "v/x.mp4", "v/y.mp4")
    monkeypatch.chdir(tmp_path)
    assert names("v", "v/x.mp4", tmp_path / "v", "./v/../v/y.mp4", f"file://{tmp_path}/v/x.mp4") == ["x.mp4", "y.mp4"]
    (tmp_path / "list.csv").write_text(f"path\nv/x.mp4\nfile://{tmp_path}/v/x.mp4\nfile://{tmp_path}/v/y.mp4\n")
    assert names("list.csv") == ["v/x.mp4", "v/y.mp4"]


def test_equal_names_from_several_inputs_are_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "p/train/x.mp4", "q/train/x.mp4", "q/train/y.mp4")
    found = find_sources([str(tmp_path / "p/train"), str(tmp_path / "q/train")], MetadataLists())
    assert [source.name for source in found] == ["p/train/x.mp4", "q/train/x.mp4", "y.mp4"]
    assert len({source.key for source in found}) == 3


def test_classes_are_folders_below_an_input_also_where_names_begin_above_it(tmp_path: Path) -> None:
    """Of two files of one name, the classes were the inputs, `train` and `val`."""
    touch(tmp_path, *(f"{part}/{name}.mp4" for part in ("train", "val") for name in ("cats/1", "dogs/more/2", "3")))
    touch(tmp_path, "train/dogs/4.mp4")
    given = [str(tmp_path / part) for part in ("train", "val")]
    found = {source.name: source.label for source in find_sources(given, MetadataLists(), folders=True)}
    assert found == {
        "dogs/4.mp4": "dogs",
        **{f"{part}/cats/1.mp4": "cats" for part in ("train", "val")},
        **{f"{part}/dogs/more/2.mp4": "dogs" for part in ("train", "val")},
        **{f"{part}/3.mp4": None for part in ("train", "val")},
    }
    with pytest.raises(InputError, match="no video lies in a folder"):
        find_sources([str(tmp_path / "train/cats"), str(tmp_path / "val/cats")], MetadataLists(), folders=True)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    bad = tmp_path / "caf\udce9.mp4"
    bad.write_bytes(b"")
    (source,) = find_sources([str(tmp_path)], MetadataLists())
    assert source.path == str(bad)
    source.name.encode("utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("missing", "no such file or folder"), ("empty", r"no videos in .*\.mp4"), ("no*", r"no videos match .*\.mp4"),
        ("loop", "cannot look at .*: Too many levels of symbolic links"), ("pipe", "is a pipe, a device or a socket"),
    ],
)  # fmt: skip
def test_inputs_that_hold_nothing(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=said):
        find_sources([str(tmp_path / given)], MetadataLists())


def test_no_inputs() -> None:
    with pytest.raises(InputError, match="nothing to pack"):
        find_sources([], MetadataLists())


# Lists


def described(path: Path) -> dict[str, Any]:
    """The metadata of the videos that a list names."""
    lists = MetadataLists()
    return {source.name: json.loads(lists.json(*source.rows)) for source in find_sources([str(path)], lists)}


def test_a_csv_list(tmp_path: Path) -> None:
    touch(tmp_path, "v/x.mp4", "v/007")
    table = 'video,caption,seen\nv/x.mp4,"two\nlines, and a comma",2024-01-02\nv/007,,2024-01-03\n'
    (tmp_path / "list.csv").write_text(table)
    found = described(tmp_path / "list.csv")
    assert list(found) == ["v/007", "v/x.mp4"]
    assert found["v/x.mp4"] == {"caption": "two\nlines, and a comma", "seen": "2024-01-02"}


def test_a_csv_of_more_than_one_block_with_line_breaks_in_cells(tmp_path: Path) -> None:
    text = "line\n" * 150_000
    (tmp_path / "list.csv").write_text("path,text\n" + "".join(f'{n}.mp4,"{text}"\n' for n in range(4)))
    assert list(described(tmp_path / "list.csv").values()) == [{"text": text}] * 4


def test_a_csv_whose_paths_are_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "001", "002")
    (tmp_path / "list.csv").write_text("path,n\n001,1\n002,2.5\n")
    assert described(tmp_path / "list.csv") == {"001": {"n": 1.0}, "002": {"n": 2.5}}


def test_a_jsonl_list_keeps_types(tmp_path: Path) -> None:
    rows = [{"path": "a.mp4", "tags": ["x", "y"], "score": 0.5, "box": {"w": 3}, "ok": True, "day": "2024-01-01"}]
    (tmp_path / "list.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert described(tmp_path / "list.jsonl") == {"a.mp4": {k: v for k, v in rows[0].items() if k != "path"}}


def test_a_parquet_list_with_labels_and_absolute_paths(tmp_path: Path) -> None:
    table = pa.table({"path": [f"{tmp_path}/far/p/a.mp4", f"{tmp_path}/far/q/a.mp4"], "label": ["cat", "dog"]})
    (tmp_path / "lists").mkdir()
    pq.write_table(table, tmp_path / "lists/list.parquet")
    found = find_sources([str(tmp_path / "lists/list.parquet")], MetadataLists())
    assert [(s.name, s.label) for s in found] == [("p/a.mp4", "cat"), ("q/a.mp4", "dog")]


def test_nan_is_kept_and_empty_cells_become_null(tmp_path: Path) -> None:
    table = pa.table({"path": ["a.mp4", "b.mp4", "c.mp4"], "x": [float("nan"), 1.0, None]})
    pq.write_table(table, tmp_path / "l.parquet")
    found = described(tmp_path / "l.parquet")
    assert found == {"a.mp4": {"x": "NaN"}, "b.mp4": {"x": 1.0}, "c.mp4": {"x": None}}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("l.csv", "file,label\na.mp4,1\n", "no column 'path' or 'video' but file, label"),
        ("l.csv", "path,x\na.mp4,1\n,2\n", "row 2 .* has nothing in the column 'path'"),
        ("l.csv", "path\n", "lists no videos"),
        ("l.csv", "", "cannot read the list"),
        ("l.csv", "path,x,x\na.mp4,1,2\n", "column 'x' more than once"),
        ("l.csv", "path,n,path\na.mp4,1,a.mp4\n", "column 'path' more than once"),
        ("l.csv", "path,source\na.mp4,1\n", "'source', a name that packing itself uses"),
        ("l.csv", "path,n\na.mp4,1\na.mp4,2\n", "listed more than once with different columns"),
        ("l.csv", 'path,x\na.mp4,"said\nb.mp4,2\n', "mark in line 2 of .* opens a cell, and none closes it"),
        ("l.csv", 'path,x\na.mp4,"1"\nb.mp4,"it ""\nc.mp4,3', "mark in line 3 of .* opens a cell, and none"),
        ("l.csv", 'path,x\na.mp4,"said\nb.mp4,2\nc.mp4,"two"\n', "in line 2 .* closes it, in line 4, has text behind"),
        ("l.csv", '\ufeff"path",x\ra.mp4,"said\rb.mp4,12" wide\r', "in line 2 .* closes it, in line 3, has text"),
        ("l.csv", 'path,x\na.mp4,""said" he"\n', "in line 2 .* closes it, in line 2, has text behind it: close each"),
        ("l.csv", 'path,x\n"a.mp4,1\nb.mp4",2\n', "row 1 of .* has a line break in the column 'path': remove"),
        ("l.csv", 'path,label\nc.mp4,cat\na.mp4,"dog\nb.mp4,5"\n', "row 2 of .* a line break in the column 'label'"),
        ("l.jsonl", '{"path": ', "cannot read the list"),
        ("l.jsonl", '{"path": 3}\n', "path"),
        ("l.parquet", "no parquet", "cannot read the list"),
    ],
)
def test_lists_that_cannot_be_used(tmp_path: Path, file: str, content: str, said: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        find_sources([str(tmp_path / file)], MetadataLists())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "cell", ['"two\nlines"', '",""\n"', '"a ""word"""', '"""word"" said"', '12" wide', 'a"', '"lines\n"', '""']
)
@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_quotation_marks_that_are_closed(tmp_path: Path, cell: str, end: str) -> None:
    (tmp_path / "l.csv").write_text(f"path,x\na.mp4,{cell}\nb.mp4,{cell}{end}", newline="")
    assert len(find_sources([str(tmp_path / "l.csv")], MetadataLists())) == 2


MOMENT = 1_577_836_800_123_456_789


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array([1001], pa.time64("ns")), '"00:00:00.000001"'),
        (pa.array([[1001]], pa.list_(pa.time64("ns"))), '["00:00:00.000001"]'),
        (pa.array([[MOMENT]], pa.large_list(pa.timestamp("ns"))), '["2020-01-01T00:00:00.123456"]'),
        (pa.array([[MOMENT]], pa.list_(pa.timestamp("ns"), 1)), '["2020-01-01T00:00:00.123456"]'),
        (
            pa.array([{"t": MOMENT, "s": None}], pa.struct({"t": pa.timestamp("ns"), "s": pa.string()})),
            '{"t":"2020-01-01T00:00:00.123456","s":null}',
        ),
        (pa.array([[{"t": 1001}]], pa.list_(pa.struct({"t": pa.time64("ns")}))), '[{"t":"00:00:00.000001"}]'),
    ],
)
def test_nanoseconds_are_cut_off(tmp_path: Path, column: pa.Array, stored: str) -> None:
    pq.write_table(pa.table({"path": ["a.mp4"], "c": column}), tmp_path / "l.parquet")
    lists = MetadataLists()
    find_sources([str(tmp_path / "l.parquet")], lists)
    assert lists.json(0) == f'{{"c":{stored}}}'


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([b"\xff"]), "binary, which JSON has no form for: turn it into text or numbers, or leave it out"),
        (pa.array([1], pa.duration("ns")), r"duration\[us\], which JSON"),
        (pa.array([[("a", MOMENT)]], pa.map_(pa.string(), pa.timestamp("ns"))), "map<string, timestamp.*which JSON"),
        (pa.array([4_000_000], pa.date32()), r"date32\[day\] outside of the years 1 to 9999"),
        (pa.array([MOMENT], pa.timestamp("ns", "No/Where")), ".* in an unknown time zone: turn it"),
    ],
)
def test_columns_that_json_cannot_have_are_refused(tmp_path: Path, column: pa.Array, said: str) -> None:
    pq.write_table(pa.table({"path": ["a.mp4"], "thumb": column}), tmp_path / "l.parquet")
    with pytest.raises(InputError, match=f"the column 'thumb' of .*l.parquet holds {said}"):
        find_sources([str(tmp_path / "l.parquet")], MetadataLists())


def test_logging_is_not_touched() -> None:
    assert logging.getLogger("streamvid").handlers == []


def test_the_time_for_a_video_in_place_does_not_grow_with_the_number_of_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a pattern that the shell expands: 30,000 files took half an hour."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        function = getattr(places_module, name)

        def call(path: str) -> object:
            calls[name] += 1
            return function(path)

        monkeypatch.setattr(places_module, name, call)

    for name in ("is_local", "local_path"):
        counted(name)
    files = [str(tmp_path / f"{n}.mp4") for n in range(60)]
    touch(tmp_path, *(f"{n}.mp4" for n in range(60)))
    find_sources(files[:30], MetadataLists(), places=Places(tuple(files[:30])))
    few = Counter(calls)
    find_sources(files, MetadataLists(), places=Places(tuple(files)))
    assert all(calls[name] - few[name] <= 2 * few[name] for name in few)


def test_tars_are_not_compared_with_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of 10,000 tars took a minute for that."""
    for n in range(3):
        with tarfile.open(tmp_path / f"{n}.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(f"{n}.mp4"), io.BytesIO())

    def refuse(one: object, other: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(Found, "__eq__", refuse)
    found = find_sources([str(tmp_path)], MetadataLists(), places=Places((str(tmp_path),)))
    assert [source.name for source in found] == [f"{n}.tar/{n}.mp4" for n in range(3)]
