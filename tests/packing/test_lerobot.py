"""Episodes of LeRobot datasets as cuts of their video files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.errors import InputError
from streamvid.packing.inputs import find_sources
from streamvid.packing.lerobot import is_lerobot
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.places import Places
from streamvid.storage.parquet import MAX_LISTS
from tests.support.clips import write
from tests.support.faulty_s3 import faulty_s3
from tests.support.foreign import CAMERA, write_lerobot
from tools.clips import Recipe

SMALL = Recipe(width=64, height=64, gop=2, b_frames=0)


def test_each_episode_is_a_cut_of_its_file(tmp_path: Path) -> None:
    place = write_lerobot(tmp_path / "robot", [5, 4, 3], cameras=(CAMERA, "wrist"), recipe=SMALL)
    lists = MetadataLists()
    sources = find_sources([str(place)], lists, places=Places((), (), (CAMERA,)))
    assert [source.name for source in sources] == [f"videos/{CAMERA}/chunk-000/file-00{n}.mp4" for n in (0, 1)]
    cuts = [cut for source in sources for cut in source.cuts or ()]
    assert [cut.frames for cut in cuts] == [5, 4, 3]
    rows = [json.loads(lists.json(cut.rows[0])) for cut in cuts]
    assert rows == [{"task": f"task {n % 2}", "episode": n, "camera": CAMERA} for n in range(3)]
    assert len(find_sources([str(place)], MetadataLists(), places=Places(()))) == 4


def test_a_folder_with_a_dot_in_its_name(tmp_path: Path) -> None:
    """Its files were indexed as a whole, without a word of episodes."""
    place = write_lerobot(tmp_path / "pusht_v3.0", [5, 4], recipe=SMALL)
    for given in (str(place), f"{place}/"):
        sources = find_sources([given], MetadataLists(), places=Places(()))
        assert [len(source.cuts or ()) for source in sources] == [2]


def test_a_file_of_any_name_is_no_folder_of_a_dataset(tmp_path: Path) -> None:
    for name in ("noext", "clip.xyz"):
        write(SMALL, tmp_path / name)
        assert [source.name for source in find_sources([str(tmp_path / name)], MetadataLists(), places=Places(()))] == [
            name
        ]


def test_a_web_server_that_refuses_what_it_does_not_have() -> None:
    with faulty_s3() as server:
        server.answers["bucket/noext/meta/info.json"] = (403, b"", {})
        assert not is_lerobot(f"{server.endpoint}/bucket/noext")


def test_a_camera_that_is_not_there(tmp_path: Path) -> None:
    place = write_lerobot(tmp_path / "robot", [5], recipe=SMALL)
    with pytest.raises(InputError, match=f"no camera 'side': it has {CAMERA}"):
        find_sources([str(place)], MetadataLists(), places=Places((), (), ("side",)))
    with pytest.raises(InputError, match="leave out --camera"):
        find_sources([str(place / "videos")], MetadataLists(), places=Places((), (), ("side",)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"codebase_version": "v2.1"}, "version v2.1"),
        ({"fps": 0}, "fps"),
        ({"features": []}, "cannot read"),
        ({"video_path": "../{video_key}.mp4"}, ""),
    ],
)
def test_what_is_no_dataset_of_version_3(tmp_path: Path, change: dict[str, object], said: str) -> None:
    place = write_lerobot(tmp_path / "robot", [5], recipe=SMALL)
    info = json.loads((place / "meta/info.json").read_text()) | change
    (place / "meta/info.json").write_text(json.dumps(info))
    if said:
        with pytest.raises(InputError, match=said):
            find_sources([str(place)], MetadataLists(), places=Places(()))
    else:
        (source,) = find_sources([str(place)], MetadataLists(), places=Places(()))
        assert "leads out" in source.problem


def test_a_damaged_table_of_episodes(tmp_path: Path) -> None:
    place = write_lerobot(tmp_path / "robot", [5], recipe=SMALL)
    (path,) = (place / "meta/episodes").rglob("*.parquet")
    rows = pq.read_table(path)
    deep: pa.DataType = pa.int64()
    for _ in range(MAX_LISTS + 1):
        deep = pa.list_(deep)
    pq.write_table(rows.append_column("deep", pa.nulls(1, deep)), path)
    nested = path.read_bytes()
    pq.write_table(rows, path, compression="zstd")
    for data in (nested, path.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"zstd"), nested[:-20]):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"cannot read the LeRobot dataset {place}: "):
            find_sources([str(place)], MetadataLists(), places=Places(()))
