"""Lists of labels and metadata beside the videos: what is missing, what is too much, and what it takes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.labels import attach_labels, attach_metadata
from streamvid.packing.pack import pack
from tests.support.packed import NATURAL_ORDER, make_videos

SOURCES = [SourceVideo(f"/in/{name}.mp4", f"{name}.mp4", name) for name in ("a", "b", "c")]


def test_missing_and_surplus_rows_of_metadata_are_counted(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,n\nb.mp4,1\nx.mp4,2\ny.mp4,3\n")
    found, join = attach_metadata(SOURCES, str(tmp_path / "l.csv"))
    assert [json.loads(source.meta) for source in found] == [{}, {"n": 1}, {}]
    assert (join.rows, join.joined, join.missing, join.surplus) == (3, 1, 2, 2)
    assert join.missing_names == ("a.mp4", "c.mp4")
    assert join.surplus_names == ("x.mp4", "y.mp4")
    missing, surplus = join.sentences()
    assert missing == f"2 of 3 videos have no row in {tmp_path}/l.csv, such as 'a.mp4', 'c.mp4'"
    assert surplus == f"2 of 3 rows of {tmp_path}/l.csv name no video, such as 'x.mp4', 'y.mp4'"


def test_nothing_to_say_where_all_meet(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({"key": s.key, "n": i}) + "\n" for i, s in enumerate(SOURCES)))
    found, join = attach_metadata(SOURCES, str(tmp_path / "l.jsonl"))
    assert [json.loads(source.meta)["n"] for source in found] == [0, 1, 2]
    assert join.sentences() == []


def test_a_surplus_label_is_an_error_and_a_missing_one_is_counted(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,label\na,1\nx,2\n")
    with pytest.raises(InputError, match="labels 'x', not among the 3 videos"):
        attach_labels(SOURCES, str(tmp_path / "l.csv"))
    (tmp_path / "l.csv").write_text("path,label\na,1\n")
    found, join = attach_labels(SOURCES, str(tmp_path / "l.csv"))
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
        ("n\n1\n", "has no column 'path' or 'video' or 'key'"),
        ("path,n\na,1\na.mp4,2\n", "names 'a.mp4' more than once"),
        ("path,source\na,1\n", "a column 'source', a name that packing itself uses"),
    ],
)
def test_metadata_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        attach_metadata(SOURCES, str(tmp_path / "l.csv"))


def test_labels_without_labels_point_to_metadata(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,n\na,1\n")
    with pytest.raises(InputError, match=r"no column 'label' .* or give the list as --metadata"):
        attach_labels(SOURCES, str(tmp_path / "l.csv"))


def test_names_that_could_be_more_than_one_video(tmp_path: Path) -> None:
    sources = [SourceVideo(f"/in/{n}/x.mp4", f"{n}/x.mp4", f"{n}_x") for n in ("a", "b")]
    (tmp_path / "l.csv").write_text("path,n\nx.mp4,1\n")
    with pytest.raises(InputError, match=r"'x\.mp4' in .* may be a/x\.mp4 and b/x\.mp4"):
        attach_metadata(sources, str(tmp_path / "l.csv"))


def test_the_report_has_it(tmp_path: Path) -> None:
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
    count = 20_000
    sources = [SourceVideo(f"/in/{n // 100}/v{n}.mp4", f"{n // 100}/v{n}.mp4", f"k{n}") for n in range(count)]
    (tmp_path / "l.csv").write_text("path,n,text\n" + "".join(f"v{n}.mp4,{n},some text {n}\n" for n in range(count)))
    tracemalloc.start()
    found, join = attach_metadata(sources, str(tmp_path / "l.csv"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert join.joined == count
    assert json.loads(found[-1].meta) == {"n": count - 1, "text": f"some text {count - 1}"}
    assert peak < 4000 * count, "1 GiB for 100,000 would be 10,000 bytes each, with all that packing itself takes"
