"""Lists of labels and metadata beside the videos: what is missing, what is too much, and what it takes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.packing.inputs import find_sources
from streamvid.packing.labels import attach_labels, attach_metadata, class_names
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.pack import pack
from streamvid.packing.source_video import SourceVideo
from tests.support.packed import NATURAL_ORDER, make_videos, touch

SOURCES = [SourceVideo(f"/in/{name}.mp4", f"{name}.mp4", name) for name in ("a", "b", "c")]


def test_missing_and_surplus_rows_of_metadata_are_counted(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,n\nb.mp4,1\nx.mp4,2\ny.mp4,3\n")
    lists = MetadataLists()
    found, join = attach_metadata(SOURCES, str(tmp_path / "l.csv"), lists)
    assert [[json.loads(lists.json(row)) for row in source.rows] for source in found] == [[], [{"n": 1}], []]
    assert (join.rows, join.joined, join.missing, join.surplus) == (3, 1, 2, 2)
    assert join.missing_names == ("a.mp4", "c.mp4")
    assert join.surplus_names == ("x.mp4", "y.mp4")
    missing, surplus = join.sentences()
    assert missing == f"2 of 3 videos have no row in {tmp_path}/l.csv, such as 'a.mp4', 'c.mp4'"
    assert surplus == f"2 of 3 rows of {tmp_path}/l.csv name no video, such as 'x.mp4', 'y.mp4'"


def test_complete_metadata_give_no_message(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"key": s.key, "n": i}) + "\n" for i, s in enumerate(SOURCES)))
    lists = MetadataLists()
    found, join = attach_metadata(SOURCES, str(tmp_path / "l.jsonl"), lists)
    assert [json.loads(lists.json(*source.rows))["n"] for source in found] == [0, 1, 2]
    assert join.sentences() == []


def test_a_surplus_label_is_an_error_and_a_missing_one_is_counted(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,label\na,1\nx,2\n")
    with pytest.raises(InputError, match="labels 'x', not among the 3 videos"):
        attach_labels(SOURCES, str(tmp_path / "l.csv"), MetadataLists())
    (tmp_path / "l.csv").write_text("path,label\na,1\n")
    found, join = attach_labels(SOURCES, str(tmp_path / "l.csv"), MetadataLists())
    assert [source.label for source in found] == [1, None, None]
    assert (join.joined, join.missing, join.surplus) == (1, 2, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,label\na,1\n", "has a column 'label': give the list as --labels"),
        (
            "path,n\nx,1\ny,2\n",
            "none of the 2 rows of .* names one of the 3 videos, such as 'x', 'y': correct the paths",
        ),
        ("n\n1\n", "has no column 'path' or 'video' or 'key' but n: name one so in its first line"),
        ("path, n\na, 1\n", "has a column ' n', with spaces around its name: remove them"),
        ("path,n\na,x, y\n", "Expected 2 columns, got 3: a,x, y; give each row as many cells as the first line has"),
        ("", "Empty CSV file; its first line names the columns"),
        ("path,n\na,1\na.mp4,2\n", "names 'a.mp4' more than once"),
        ("path,source\na,1\n", "a column 'source', a name that packing itself uses"),
        ("path;n\na;1\n", "has ';' between its columns: write commas there"),
        ("path\tn\na\t1\n", r"has '\\t' between its columns"),
        ("path,n\na,1\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("path,n\na,é\n".encode("latin-1"), "the column 'n' of .* is not UTF-8: save the list as UTF-8"),
        pytest.param("path,n\na," + "x" * (40 << 20), "a row of it has more than 16 MiB", id="a long row"),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path: Path, text: str | bytes, said: str) -> None:
    (tmp_path / "l.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match=said):
        attach_metadata(SOURCES, str(tmp_path / "l.csv"), MetadataLists())


def test_a_column_of_numbers_and_texts(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text('{"path": "a", "n": 1}\n{"path": "b/x", "n": "1"}\n')
    with pytest.raises(InputError, match=r"changed from number to string in row 2; write all its values alike"):
        attach_metadata(SOURCES, str(tmp_path / "l.jsonl"), MetadataLists())


@pytest.mark.parametrize("text", ["path,label\na, cat\nb,cat\n", "path,label\na,cat\nb,cat \n", "path,label\na,  \n"])
def test_labels_with_spaces_are_no_classes_of_their_own(tmp_path: Path, text: str) -> None:
    """The spaces made classes: of ' cat', of 'cat' and of 'cat '."""
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=r"l\.csv has the label '.*', with spaces around it: remove them"):
        attach_labels(SOURCES, str(tmp_path / "l.csv"), MetadataLists())


def test_labels_without_labels_point_to_metadata(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,n\na,1\n")
    with pytest.raises(InputError, match=r"no column 'label' .* or give the list as --metadata"):
        attach_labels(SOURCES, str(tmp_path / "l.csv"), MetadataLists())


@pytest.mark.parametrize("given", ["folder", "Folders"])
def test_folders_misspelt(given: str) -> None:
    with pytest.raises(InputError, match=f"labels are a list or 'folders'; they are '{given}'; did you mean 'folders'"):
        attach_labels(SOURCES, given, MetadataLists())


def test_names_that_could_be_more_than_one_video(tmp_path: Path) -> None:
    sources = [SourceVideo(f"/in/{n}/x.mp4", f"{n}/x.mp4", f"{n}_x") for n in ("a", "b")]
    (tmp_path / "l.csv").write_text("path,n\nx.mp4,1\n")
    with pytest.raises(InputError, match=r"'x\.mp4' in .* may be a/x\.mp4 and b/x\.mp4"):
        attach_metadata(sources, str(tmp_path / "l.csv"), MetadataLists())


def test_the_report_counts_missing_and_surplus_rows(tmp_path: Path) -> None:
    make_videos(tmp_path / "in")
    (tmp_path / "l.csv").write_text(f"path,label\n{NATURAL_ORDER[0]},1\n")
    (tmp_path / "m.csv").write_text(f"path,n\n{NATURAL_ORDER[0]},1\n{NATURAL_ORDER[1]},2\nx.mp4,3\n")
    report = pack(
        [tmp_path / "in"], tmp_path / "ds", labels=tmp_path / "l.csv", metadata=[tmp_path / "m.csv"], progress=False
    )
    assert [(join.joined, join.missing, join.surplus) for join in report.joins] == [(1, 5, 0), (2, 4, 1)]
    document = json.loads((tmp_path / "ds/pack-report.json").read_text())
    assert document["lists"] == [
        {"name": "l.csv", "rows": 1, "videos": 1, "missing": 5, "surplus": 0},
        {"name": "m.csv", "rows": 3, "videos": 2, "missing": 4, "surplus": 1},
    ]
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.columns.get("n").to_pylist() == [1, 2, None, None, None, None]
    assert dataset.clips.label.tolist() == [1] + [-1] * 5


def test_many_videos_take_little_memory(tmp_path: Path) -> None:
    count = 5_000
    sources = [SourceVideo(f"/in/{n // 100}/v{n}.mp4", f"{n // 100}/v{n}.mp4", f"k{n}") for n in range(count)]
    (tmp_path / "l.csv").write_text("path,n,text\n" + "".join(f"v{n}.mp4,{n},some text {n}\n" for n in range(count)))
    lists = MetadataLists()
    tracemalloc.start()
    found, join = attach_metadata(sources, str(tmp_path / "l.csv"), lists)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert join.joined == count
    assert json.loads(lists.json(*found[-1].rows)) == {"n": count - 1, "text": f"some text {count - 1}"}
    assert peak < 4000 * count, "1 GiB for 100,000 would be 10,000 bytes each, with all that packing itself takes"


NAMED = [
    SourceVideo(f"/in/{n}", n, k) for n, k in [("a/x.mp4", "a_x-1"), ("b/x.mp4", "b_x-2"), ("c.tar.mp4", "c_tar-3")]
]


def labelled(tmp_path: Path, text: str, file: str = "labels.csv") -> list[SourceVideo]:
    (tmp_path / file).write_text(text)
    return attach_labels(NAMED, str(tmp_path / file), MetadataLists())[0]


@pytest.mark.parametrize("called", ["c.tar.mp4", "c.tar", "./c.tar.mp4", "/in/c.tar.mp4", "c_tar-3"])
def test_what_a_label_may_call_a_video(tmp_path: Path, called: str) -> None:
    assert [s.label for s in labelled(tmp_path, f"path,label\n{called},7\n")] == [None, None, 7]


def test_the_exact_path_wins(tmp_path: Path) -> None:
    sources = [SourceVideo("/in/x.mp4", "x.mp4", "x-1"), SourceVideo("/in/d/x.mp4", "d/x.mp4", "d_x-2")]
    (tmp_path / "l.csv").write_text("path,label\nx.mp4,1\nd/x.mp4,2\n")
    assert [s.label for s in attach_labels(sources, str(tmp_path / "l.csv"), MetadataLists())[0]] == [1, 2]


def test_paths_from_where_the_list_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "data/v/x.mp4", "data/v/d/x.mp4", "data/w/y.mp4")
    (tmp_path / "data/l.csv").write_text("path,label\nv/x.mp4,1\nv/d/x.mp4,2\n")
    for where in (tmp_path, tmp_path / "data", tmp_path / "data/w"):
        monkeypatch.chdir(where)
        labelled = attach_labels(
            find_sources([str(tmp_path / "data/v")], MetadataLists()), str(tmp_path / "data/l.csv"), MetadataLists()
        )[0]
        assert [(source.name, source.label) for source in labelled] == [("d/x.mp4", 2), ("x.mp4", 1)]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_absolute_paths_name_videos_of_a_relative_input(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "v/x.mp4", "v/d/x.mp4", "w/y.mp4")
    (tmp_path / "l.csv").write_text(f"path,label\n{scheme}{tmp_path}/v/x.mp4,1\n{scheme}{tmp_path}/v/d/x.mp4,2\n")
    monkeypatch.chdir(tmp_path / "w")
    labelled = attach_labels(find_sources(["../v"], MetadataLists()), "../l.csv", MetadataLists())[0]
    assert [(source.name, source.label) for source in labelled] == [("d/x.mp4", 2), ("x.mp4", 1)]


def test_labels_by_key_and_other_columns(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("key,label,who\nb_x-2,3,me\n")
    lists = MetadataLists()
    found, _ = attach_labels(NAMED, str(tmp_path / "l.csv"), lists)
    assert found[1].label == 3
    assert json.loads(lists.json(*found[1].rows)) == {"who": "me"}


def test_text_labels_become_sorted_classes(tmp_path: Path) -> None:
    found = labelled(tmp_path, "path,label\na/x.mp4,zebra\nb/x.mp4,ant\nc,\n".replace("c,", "c.tar.mp4,"))
    assert class_names({source.label for source in found}) == ("ant", "zebra")


def test_integer_labels_with_gaps(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": ["a/x.mp4", "b/x.mp4"], "label": [2.0, float("nan")]}), tmp_path / "l.parquet")
    found = attach_labels(NAMED, str(tmp_path / "l.parquet"), MetadataLists())[0]
    assert [source.label for source in found] == [2, None, None]
    assert class_names({source.label for source in found}) is None


def test_dictionary_labels(tmp_path: Path) -> None:
    column = pa.array(["u", "t"]).dictionary_encode()
    pq.write_table(pa.table({"path": ["a/x.mp4", "b/x.mp4"], "label": column}), tmp_path / "l.parquet")
    assert [s.label for s in attach_labels(NAMED, str(tmp_path / "l.parquet"), MetadataLists())[0]] == ["u", "t", None]


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
        ("path,label\na/x.mp4,inf\n", "above 2\\^31"),
        ("path,label\na/x.mp4,1e30\n", "above 2\\^31"),
        ("key,label\nx,1\n", "labels 'x', not among"),
        ("path,label\n", "gives no label: fill in its column 'label'"),
        ("path,label\na/x.mp4,\nb/x.mp4,\n", "gives no label: fill in its column 'label'"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        labelled(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_labels_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        attach_labels(NAMED, str(tmp_path / "none.csv"), MetadataLists())
    with pytest.raises(InputError, match="not a list"):
        attach_labels(NAMED, str(tmp_path / "none.txt"), MetadataLists())


def test_numbers_and_text_mixed() -> None:
    with pytest.raises(InputError, match="some labels are numbers"):
        class_names({1, "one", None})


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl", "l.parquet"])
def test_a_list_that_git_lfs_has_not_fetched_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    with pytest.raises(InputError, match="git lfs pull"):
        attach_labels(SOURCES, str(tmp_path / name), MetadataLists())


def test_a_caption_of_two_megabytes(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,caption\na," + "x" * (2 << 20))
    lists = MetadataLists()
    found, _ = attach_metadata(SOURCES, str(tmp_path / "l.csv"), lists)
    assert len(json.loads(lists.json(*found[0].rows))["caption"]) == 2 << 20
