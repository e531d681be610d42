"""Videos in tars of others, and the columns beside them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from streamvid.cli.main import main
from streamvid.errors import InputError
from streamvid.packing.inputs import find_sources
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.places import Places
from streamvid.packing.source_video import SourceVideo
from tests.support.foreign import npy, write_tar

VIDEO = b"a video, for all that finding it matters"


def find(*given: Path) -> tuple[list[SourceVideo], list[dict[str, object]]]:
    """The sources, and the metadata of each."""
    lists = MetadataLists()
    sources = find_sources([str(one) for one in given], lists, places=Places(()))
    return sources, [json.loads(lists.json(source.rows[0])) if source.rows else {} for source in sources]


def test_a_tar_that_a_list_names_and_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\ngone.tar\n")
    ((source,), _) = find(tmp_path / "list.csv")
    assert source.problem == f"there is no file '{tmp_path}/gone.tar'"


def test_members_are_parts_of_the_tar_with_their_columns(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("000.mp4", VIDEO), ("000.txt", b"a cat"), ("000.cls", b"3\n"),
            ("000.json", b'{"width": 5, "key": "000", "ok": true}'), ("000.npy", npy([1, 2.5])),
            ("000.pyd", b"\x80\x04N."), ("001.mp4", VIDEO + b"!"), ("001.cls", b"0"),
        ],
    )  # fmt: skip
    sources, columns = find(path)
    assert [source.key for source in sources] == ["000", "001"]
    assert [source.name for source in sources] == ["a.tar/000.mp4", "a.tar/001.mp4"]
    assert [source.label for source in sources] == [3, 0]
    data = path.read_bytes()
    for source, wanted in zip(sources, (VIDEO, VIDEO + b"!"), strict=True):
        assert source.part is not None
        assert (source.file, source.root) == ("a.tar", str(tmp_path))
        assert data[source.part[0] : sum(source.part)] == wanted
    members = json.loads(str(columns[0].pop("members")))
    assert columns[0] == {"txt": "a cat", "width": 5, "json_key": "000", "ok": True}
    assert {name: data[at : at + size] for name, (at, size, *_) in members.items()} == {
        "txt": b"a cat", "cls": b"3\n", "json": b'{"width": 5, "key": "000", "ok": true}', "npy": npy([1, 2.5]),
        "pyd": b"\x80\x04N.",
    }  # fmt: skip
    assert members["npy"][2:] == ["f4", [2]]
    assert list(json.loads(str(columns[1].pop("members")))) == ["cls"]
    assert set(columns[1].values()) == {None}


def test_members_of_a_sample_may_lie_apart_and_keys_repeat_across_tars(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tar(
            tmp_path / f"{name}.tar",
            [("x.mp4", VIDEO), ("y.mp4", VIDEO), ("x.txt", f"{name} x".encode()), ("y.txt", f"{name} y".encode())],
        )
    sources, columns = find(tmp_path)
    assert [one["txt"] for one in columns] == ["a x", "a y", "b x", "b y"]
    keys = [source.key for source in sources]
    assert len(set(keys)) == 4
    assert keys[0].startswith("a_tar_x-")


def test_keys_with_dots_and_spaces(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [
            ("my clip.1.mp4", VIDEO), ("my clip.2.mp4", VIDEO), ("my clip.1.txt", b"one"), ("my clip.2.txt", b"two"),
            ("my clip.json", b'{"shared": 1}'), ("dir.v2/b.mp4", VIDEO), ("dir.v2/b.info.json", b'{"a": 1}'),
        ],
    )  # fmt: skip
    sources, columns = find(tmp_path / "a.tar")
    by_name = dict(zip((source.name for source in sources), columns, strict=True))
    first, second = by_name["a.tar/my clip.1.mp4"], by_name["a.tar/my clip.2.mp4"]
    assert (first["txt"], first["shared"], second["txt"], second["shared"]) == ("one", 1, "two", 1)
    assert by_name["a.tar/dir.v2/b.mp4"]["info_a"] == 1
    assert all(set(source.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for source in sources)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_gnu_and_pax(tmp_path: Path, format: int) -> None:
    name = "d" * 90 + "/" + "é" * 120
    path = write_tar(tmp_path / "a.tar", [(f"{name}.mp4", VIDEO), (f"{name}.txt", b"long")], format=format)
    (source,), (columns,) = find(path)
    assert source.part is not None
    assert path.read_bytes()[source.part[0] : sum(source.part)] == VIDEO
    assert columns["txt"] == "long"


def test_types_that_disagree_become_text(tmp_path: Path) -> None:
    bodies = [
        b'{"n": 1, "s": "x", "d": {"a": 1}, "l": [1]}',
        b'{"n": "one", "s": null, "d": 4, "l": ["a"]}',
        b"not JSON",
    ]
    members = [(f"{n}.{ext}", data) for n, body in enumerate(bodies) for ext, data in (("mp4", VIDEO), ("json", body))]
    _, columns = find(write_tar(tmp_path / "a.tar", [*members, ("3.mp4", VIDEO), ("3.json", b"[1, 2]")]))
    assert [one["n"] for one in columns] == ["1", "one", None, None]
    assert [one["d"] for one in columns] == ['{"a":1}', "4", None, None]
    assert columns[3]["json"] == [1, 2]


def test_half_a_character_in_json_is_text(tmp_path: Path) -> None:
    data = rb'{"a": "\ud800", "\udfff": [{"\ud800": 1}]}'
    _, (columns,) = find(write_tar(tmp_path / "a.tar", [("0.mp4", VIDEO), ("0.json", data)]))
    assert columns["a"] == "\\ud800"
    assert json.loads(columns["\\udfff"]) == [{"\\ud800": 1}]


def test_arrays_with_pickles_are_no_columns(tmp_path: Path) -> None:
    import io

    import numpy as np

    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    _, (columns,) = find(write_tar(tmp_path / "a.tar", [("0.mp4", VIDEO), ("0.npy", stream.getvalue())]))
    assert "npy" not in columns
    assert len(json.loads(str(columns["members"]))["npy"]) == 2  # bytes, and no array


def test_what_cannot_be_read_where_it_lies_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "cut.tar", [("0.mp4", VIDEO), ("1.mp4", VIDEO * 100)])
    path.write_bytes(path.read_bytes()[:1800])
    (tmp_path / "z.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "no.tar").write_bytes(b"no tar" * 200)
    write_tar(tmp_path / "none.tar", [("0.txt", b"text alone")])
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        link = tarfile.TarInfo("0.mp4")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    problems = {source.name: source.problem for source in find(tmp_path)[0]}
    assert problems.pop("cut.tar/0.mp4") == ""
    assert "ends before it does" in problems["cut.tar/1.mp4"]
    assert "compressed" in problems["z.tar.gz"]
    assert "cannot be read as a tar" in problems["no.tar"]
    assert "holds no videos" in problems["none.tar"]
    assert "link" in problems["link.tar/0.mp4"]


def test_samples_that_give_no_clip_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heic = b"\0\0\0\x18ftypheic" * 9
    pictures = [("0.heic", heic), ("0.json", b"{}"), ("1.jpg", b"\xff\xd8\xff"), ("2.heic", heic), ("2.cls", b"1")]
    write_tar(tmp_path / "pictures.tar", pictures)
    assert [source.key for source in find(tmp_path / "pictures.tar")[0]] == ["1"]
    assert [one.message for one in caplog.records] == [
        "2 samples in tars hold nothing that becomes a clip, and are left out: 2 .heic"
    ]
    caplog.clear()
    write_tar(tmp_path / "videos.tar", [("0.mp4", VIDEO), ("0.txt", b"a cat"), ("1.jpg", b"\xff\xd8\xff")])
    assert [source.key for source in find(tmp_path / "videos.tar")[0]] == ["0"]
    assert [one.message for one in caplog.records] == [
        "1 sample in tars holds nothing that becomes a clip, and is left out: 1 .jpg; give --images to pack images, too"
    ]
    caplog.clear()
    write_tar(tmp_path / "none.tar", [("0.heic", heic), ("1.heic", heic)])
    ((source,), _) = find(tmp_path / "none.tar")
    assert source.problem == "it holds no videos and no images; found 2 .heic"
    (tmp_path / "none.tar").write_bytes((tmp_path / "none.tar").read_bytes()[:2000])
    ((source,), _) = find(tmp_path / "none.tar")
    assert "cannot be read as a tar to its end" in source.problem
    assert not caplog.records


def test_names_in_tars_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning that counts extensions printed them as they were, of any length."""
    members = [("0.mp4", VIDEO), ("1.\x1b[31m\u202e\n", b"a"), (f"2.{'z' * 3000}", b"a")]
    write_tar(tmp_path / "in" / "a.tar", members, format=tarfile.GNU_FORMAT)
    main(["index", str(tmp_path / "in"), str(tmp_path / "ds")])
    said = capsys.readouterr().err.splitlines()[0]
    assert said == (
        "streamvid: 2 samples in tars hold nothing that becomes a clip, and are left out: 1 .\ufffd[31m\ufffd\ufffd, "
        f"1 .{'z' * 19}"
    )


def test_tars_one_behind_the_other_are_read_to_the_last(tmp_path: Path) -> None:
    tars = [write_tar(tmp_path / f"{n}", [(f"{n}.mp4", VIDEO), (f"{n}.txt", b"%d" % n)]).read_bytes() for n in range(3)]
    path = tmp_path / "all.tar"
    path.write_bytes(tars[0] + tars[1][:2560] + tars[2])  # of the second the least zeros that end it
    sources, columns = find(path)
    assert [(source.key, source.problem) for source in sources] == [("0", ""), ("1", ""), ("2", "")]
    assert [one["txt"] for one in columns] == ["0", "1", "2"]
    for source in sources:
        assert source.part is not None
        assert path.read_bytes()[source.part[0] : sum(source.part)] == VIDEO


def test_what_of_a_tar_is_not_read_is_told(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "ab", [("a.mp4", VIDEO), ("b.mp4", VIDEO)]).read_bytes()
    (tmp_path / "tail.tar").write_bytes(data + b"not a tar" * 100)
    (tmp_path / "header.tar").write_bytes(data[:1024] + b"?" * 512 + data[1536:])
    (tmp_path / "end.tar").write_bytes(data[:2048])
    write_tar(tmp_path / "twice.tar", [("a.mp4", b"another"), ("b.mp4", VIDEO), ("./a.mp4", VIDEO)])
    sources, _ = find(*tmp_path.glob("*.tar"))
    assert sum(not source.problem for source in sources) == 2 + 1 + 2 + 2
    problems = {source.name: source.problem for source in sources if source.problem}
    assert "at byte 10240 is no header" in problems["tail.tar"]
    assert "at byte 1024 is no header" in problems["header.tar"]
    assert "ends without the zeros" in problems["end.tar"]
    assert "1 file has the name of one before, 'a.mp4'" in problems["twice.tar"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (gzip.compress(b"tar", mtime=0), "compressed (gzip)"),
        (lzma.compress(b"tar"), "compressed (xz)"),
        (bz2.compress(b"tar"), "compressed (bzip2)"),
        (b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
        (b"\n<!DOCTYPE HTML><html>", "a web page"),
        (b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey', "error message of an object store"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"", "a file of 0 bytes"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_tar_that_is_none_is_told_by_what_it_is(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "a.tar").write_bytes(data and data.ljust(1024, b" "))
    (source,), _ = find(tmp_path)
    assert what in source.problem


def test_braces_name_several_tars(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number:03d}.tar", [(f"{number}.mp4", VIDEO)])
    sources, _ = find(tmp_path / "{000..001}.tar")
    assert [source.key for source in sources] == ["0", "1"]
    sources, _ = find(tmp_path / "{001..001}.tar")
    assert [source.key for source in sources] == ["1"]


def test_braces_in_the_name_of_a_file(tmp_path: Path) -> None:
    write_tar(tmp_path / "a{1,2}.tar", [("1.mp4", VIDEO)])
    sources, _ = find(tmp_path / "a{1,2}.tar")
    assert [source.key for source in sources] == ["1"]
    with pytest.raises(InputError, match=r"no such file or folder: .*/b\{1\.tar"):
        find(tmp_path / "b{1.tar")


def test_an_empty_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no videos in"):
        find(tmp_path)


def header(name: bytes, size: int, kind: bytes = b"0") -> bytes:
    """A header with a size in 12 bytes, as GNU tar writes large ones."""
    number = (b"\x80" if size >= 0 else b"\xff") + (size % (1 << 88)).to_bytes(11, "big")
    start = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + number + b"00000000000\0" + b" " * 8 + kind
    block = (start.ljust(257, b"\0") + b"ustar\x0000").ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


@pytest.mark.parametrize(
    "hostile",
    [
        *(header(b"x", size, kind) for kind in (b"x", b"g", b"L", b"K") for size in (1 << 62, 1 << 40, 8 << 30, -512)),
        header(b"b.mp4", -512),  # the next header is this one
        header(b"b.mp4", -1024, b"5"),
        (header(b"x", 6, b"L") + b"b.mp4".ljust(512, b"\0")) * 2000,
    ],
    ids=lambda one: f"{one[156:157]!r}{len(one)}",
)
def test_sizes_in_headers_are_not_trusted(tmp_path: Path, hostile: bytes) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.mp4", VIDEO)])
    path.write_bytes(path.read_bytes()[:1024] + hostile + header(b"c.mp4", len(VIDEO)) + VIDEO.ljust(10240, b"\0"))
    problems = {source.name: source.problem for source in find(path)[0]}
    assert problems.pop("a.tar/a.mp4") == ""
    assert "cannot be read as a tar to its end" in problems["a.tar"]


def test_json_of_too_many_levels_or_fields_makes_few_columns(tmp_path: Path) -> None:
    nested = b'{"a":' * 900 + b"1" + b"}" * 900
    many = json.dumps({f"k{n}": n for n in range(20_000)}).encode()
    path = write_tar(
        tmp_path / "a.tar",
        [("0.mp4", VIDEO), ("0.json", nested), ("1.mp4", VIDEO), ("1.json", many), ("1.txt", b"text")],
    )
    columns = find(path)[1]
    assert {name for name, value in columns[0].items() if value is not None} == {"members"}
    assert len(columns[1]) < 1100
    assert columns[1]["k0"] == 0
    assert json.loads(str(columns[1]["json"]))["k19999"] == 19999
