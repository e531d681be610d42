"""Inputs → videos with names and keys, and labels for them. No video is opened here, so empty files will do."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.packing.inputs import SourceVideo, find_sources
from streamvid.packing.keys import make_keys
from streamvid.packing.labels import attach_labels, class_names

NAMES = st.text(
    alphabet=st.one_of(st.sampled_from("aAbB01_-. /~é視\n'\"<"), st.characters(codec="utf-8")), min_size=1, max_size=120
)


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder


def names(*inputs: object) -> list[str]:
    return [source.name for source in find_sources([str(given) for given in inputs])]


# Inputs


def test_folders_are_searched_to_the_bottom_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "clip10.mp4", "clip2.MP4", "deep/er/x.webm", "notes.txt", "._clip2.mp4", ".hidden/y.mp4")
    assert names(tmp_path) == ["clip2.MP4", "clip10.mp4", "deep/er/x.webm"]


def test_natural_order_does_not_depend_on_the_order_of_inputs(tmp_path: Path) -> None:
    touch(tmp_path, "a1.mp4", "a01.mp4", "a001.mp4")
    files = [tmp_path / "a1.mp4", tmp_path / "a01.mp4", tmp_path / "a001.mp4"]
    assert names(*files) == names(*reversed(files)) == names(tmp_path)


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


def test_the_same_file_given_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "v/x.mp4", "v/y.mp4")
    monkeypatch.chdir(tmp_path)
    assert names("v", "v/x.mp4", tmp_path / "v", "./v/../v/y.mp4", f"file://{tmp_path}/v/x.mp4") == ["x.mp4", "y.mp4"]


def test_equal_names_from_several_inputs_are_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "p/train/x.mp4", "q/train/x.mp4", "q/train/y.mp4")
    found = find_sources([str(tmp_path / "p/train"), str(tmp_path / "q/train")])
    assert [source.name for source in found] == ["p/train/x.mp4", "q/train/x.mp4", "y.mp4"]
    assert len({source.key for source in found}) == 3


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    bad = tmp_path / "caf\udce9.mp4"
    bad.write_bytes(b"")
    (source,) = find_sources([str(tmp_path)])
    assert source.path == str(bad)
    source.name.encode("utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [("missing", "no such file or folder"), ("empty", r"no videos in .*\.mp4"), ("no*", r"no videos match .*\.mp4")],
)
def test_inputs_that_hold_nothing(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        find_sources([str(tmp_path / given)])


def test_no_inputs() -> None:
    with pytest.raises(InputError, match="nothing to pack"):
        find_sources([])


# Lists


def test_a_csv_list(tmp_path: Path) -> None:
    touch(tmp_path, "v/x.mp4", "v/007")
    table = 'video,caption,seen\nv/x.mp4,"two\nlines, and a comma",2024-01-02\nv/007,,2024-01-03\n'
    (tmp_path / "list.csv").write_text(table)
    found = {source.name: source for source in find_sources([str(tmp_path / "list.csv")])}
    assert list(found) == ["v/007", "v/x.mp4"]
    assert json.loads(found["v/x.mp4"].meta) == {"caption": "two\nlines, and a comma", "seen": "2024-01-02"}


def test_a_csv_of_more_than_one_block_with_line_breaks_in_cells(tmp_path: Path) -> None:
    text = "line\n" * 150_000
    (tmp_path / "list.csv").write_text("path,text\n" + "".join(f'{n}.mp4,"{text}"\n' for n in range(4)))
    assert [json.loads(s.meta)["text"] == text for s in find_sources([str(tmp_path / "list.csv")])] == [True] * 4


def test_a_csv_whose_paths_are_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "001", "002")
    (tmp_path / "list.csv").write_text("path,n\n001,1\n002,2.5\n")
    assert [(s.name, json.loads(s.meta)) for s in find_sources([str(tmp_path / "list.csv")])] == [
        ("001", {"n": 1.0}),
        ("002", {"n": 2.5}),
    ]


def test_a_jsonl_list_keeps_types(tmp_path: Path) -> None:
    rows = [{"path": "a.mp4", "tags": ["x", "y"], "score": 0.5, "box": {"w": 3}, "ok": True, "day": "2024-01-01"}]
    (tmp_path / "list.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (source,) = find_sources([str(tmp_path / "list.jsonl")])
    assert json.loads(source.meta) == {k: v for k, v in rows[0].items() if k != "path"}


def test_a_parquet_list_with_labels_and_absolute_paths(tmp_path: Path) -> None:
    table = pa.table({"path": [f"{tmp_path}/far/p/a.mp4", f"{tmp_path}/far/q/a.mp4"], "label": ["cat", "dog"]})
    (tmp_path / "lists").mkdir()
    pq.write_table(table, tmp_path / "lists/list.parquet")
    found = find_sources([str(tmp_path / "lists/list.parquet")])
    assert [(s.name, s.label) for s in found] == [("p/a.mp4", "cat"), ("q/a.mp4", "dog")]


def test_nan_and_empty_cells_become_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a.mp4", "b.mp4"], "x": [float("nan"), 1.0]}), tmp_path / "l.parquet")
    assert [json.loads(s.meta) for s in find_sources([str(tmp_path / "l.parquet")])] == [{"x": None}, {"x": 1.0}]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("l.csv", "file,label\na.mp4,1\n", "no column 'path' or 'video' but file, label"),
        ("l.csv", "path,x\na.mp4,1\n,2\n", "row 2 .* has nothing in the column 'path'"),
        ("l.csv", "path\n", "lists no videos"),
        ("l.csv", "", "cannot read the list"),
        ("l.csv", "path,x,x\na.mp4,1,2\n", "column 'x' more than once"),
        ("l.csv", "path,source\na.mp4,1\n", "'source', a name that packing itself uses"),
        ("l.csv", "path,n\na.mp4,1\na.mp4,2\n", "listed more than once with different columns"),
        ("l.jsonl", '{"path": ', "cannot read the list"),
        ("l.jsonl", '{"path": 3}\n', "path"),
        ("l.parquet", "no parquet", "cannot read the list"),
    ],
)
def test_lists_that_cannot_be_used(tmp_path: Path, file: str, content: str, said: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        find_sources([str(tmp_path / file)])
    assert "\n" not in str(caught.value)


def test_binary_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a.mp4"], "thumb": [b"\xff"]}), tmp_path / "l.parquet")
    with pytest.raises(InputError, match="bytes values, which JSON cannot"):
        find_sources([str(tmp_path / "l.parquet")])


# Keys


def test_keys_stay_readable() -> None:
    assert make_keys(["clip_1-a.mp4"]) == ["clip_1-a"]
    (key,) = make_keys(["train/my clip.mp4"])
    assert re.fullmatch(r"train_my_clip-[0-9a-f]{8}", key)


def test_colliding_keys_all_get_digits_and_others_none() -> None:
    x, y, other = make_keys(["x.mp4", "X.mkv", "other.mp4"])
    assert re.fullmatch(r"x-[0-9a-f]{8}", x)
    assert re.fullmatch(r"X-[0-9a-f]{8}", y)
    assert other == "other"


def test_a_name_that_looks_like_anothers_digits() -> None:
    plain, _ = make_keys(["x.mp4", "x.mkv"])
    keys = make_keys(["x.mp4", "x.mkv", f"{plain}.mp4"])
    assert len({key.casefold() for key in keys}) == 3


@given(st.lists(NAMES, unique=True, max_size=30))
def test_keys_are_valid_unique_and_independent_of_order(given_names: list[str]) -> None:
    keys = make_keys(given_names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key) for key in keys)
    assert len({key.casefold() for key in keys}) == len(keys)
    backwards = make_keys(given_names[::-1])[::-1]
    assert keys == backwards


@given(NAMES, st.lists(NAMES, max_size=5))
def test_a_key_changes_only_where_it_collides(name: str, others: list[str]) -> None:
    alone = make_keys([name])[0]
    rest = [other for other in dict.fromkeys(others) if other != name]
    # Keys that others might get, plain or with digits: none may be the same as ours, or ours must give way.
    taken = {key.casefold() for other in rest for key in make_keys([other])}
    if alone.casefold() not in taken:
        assert make_keys([name, *rest])[0] == alone


# Labels

SOURCES = [
    SourceVideo(f"/in/{n}", n, k) for n, k in [("a/x.mp4", "a_x-1"), ("b/x.mp4", "b_x-2"), ("c.tar.mp4", "c_tar-3")]
]


def labelled(tmp_path: Path, text: str, file: str = "labels.csv") -> list[SourceVideo]:
    (tmp_path / file).write_text(text)
    return attach_labels(SOURCES, str(tmp_path / file))[0]


@pytest.mark.parametrize("called", ["c.tar.mp4", "c.tar", "./c.tar.mp4", "/in/c.tar.mp4", "c_tar-3"])
def test_what_a_label_may_call_a_video(tmp_path: Path, called: str) -> None:
    assert [s.label for s in labelled(tmp_path, f"path,label\n{called},7\n")] == [None, None, 7]


def test_the_exact_path_wins(tmp_path: Path) -> None:
    sources = [SourceVideo("/in/x.mp4", "x.mp4", "x-1"), SourceVideo("/in/d/x.mp4", "d/x.mp4", "d_x-2")]
    (tmp_path / "l.csv").write_text("path,label\nx.mp4,1\nd/x.mp4,2\n")
    assert [s.label for s in attach_labels(sources, str(tmp_path / "l.csv"))[0]] == [1, 2]


def test_paths_from_where_the_list_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "data/v/x.mp4", "data/v/d/x.mp4", "data/w/y.mp4")
    (tmp_path / "data/l.csv").write_text("path,label\nv/x.mp4,1\nv/d/x.mp4,2\n")
    for where in (tmp_path, tmp_path / "data", tmp_path / "data/w"):
        monkeypatch.chdir(where)
        labelled = attach_labels(find_sources([str(tmp_path / "data/v")]), str(tmp_path / "data/l.csv"))[0]
        assert [(source.name, source.label) for source in labelled] == [("d/x.mp4", 2), ("x.mp4", 1)]


def test_labels_by_key_and_other_columns(tmp_path: Path) -> None:
    found = labelled(tmp_path, "key,label,who\nb_x-2,3,me\n")
    assert found[1].label == 3
    assert json.loads(found[1].meta) == {"who": "me"}


def test_text_labels_become_sorted_classes(tmp_path: Path) -> None:
    found = labelled(tmp_path, "path,label\na/x.mp4,zebra\nb/x.mp4,ant\nc,\n".replace("c,", "c.tar.mp4,"))
    assert class_names({source.label for source in found}) == ("ant", "zebra")


def test_integer_labels_with_gaps(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a/x.mp4", "b/x.mp4"], "label": [2.0, float("nan")]}), tmp_path / "l.parquet")
    found = attach_labels(SOURCES, str(tmp_path / "l.parquet"))[0]
    assert [source.label for source in found] == [2, None, None]
    assert class_names({source.label for source in found}) is None


def test_dictionary_labels(tmp_path: Path) -> None:
    column = pa.array(["u", "t"]).dictionary_encode()
    pq.write_table(pa.table({"path": ["a/x.mp4", "b/x.mp4"], "label": column}), tmp_path / "l.parquet")
    assert [s.label for s in attach_labels(SOURCES, str(tmp_path / "l.parquet"))[0]] == ["u", "t", None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,label\nnope.mp4,1\n", "labels 'nope.mp4', not among the 3 videos"),
        ("path,label\nnope.mp4,1\nnor.mp4,1\nno.mp4,1\n", "'nope.mp4' and 2 more"),
        ("path,label\na/x.mp4,1\na/x,2\n", "names 'a/x.mp4' more than once"),
        ("path,class\na/x.mp4,1\n", "no column 'label' but path, class"),
        ("name,label\na/x.mp4,1\n", "no column 'path' or 'video' or 'key'"),
        ("path,label\nx.mp4,1\n", "'x.mp4' .* may be a/x.mp4 and b/x.mp4"),
        ("path,label\na/x.mp4,-1\n", "below 0"),
        ("path,label\na/x.mp4,1.5\n", "fractions"),
        ("key,label\nx,1\n", "labels 'x', not among"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        labelled(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_labels_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        attach_labels(SOURCES, str(tmp_path / "none.csv"))
    with pytest.raises(InputError, match="not a list"):
        attach_labels(SOURCES, str(tmp_path / "none.txt"))


def test_numbers_and_text_mixed() -> None:
    with pytest.raises(InputError, match="some labels are numbers"):
        class_names({1, "one", None})


def test_logging_is_not_touched() -> None:
    assert logging.getLogger("streamvid").handlers == []
