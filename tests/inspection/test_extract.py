"""Clips as files: bit-exact to a player, under safe names, never over others, and again after a kill."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError, InputError
from streamvid.fetch import clip_file
from streamvid.fetch.encoded_batch import row_color
from streamvid.inspection.extract import extract
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.sampling.spread import All
from tests.support.clips import write
from tests.support.foreign import encoded, write_tar
from tests.support.packed import VIDEOS, digests, pack_recipes, upload, without
from tests.support.reference import sequential
from tools.clips import Recipe

LONG = Recipe(width=96, height=64, frames=40, gop=12, b_frames=2)


def frames(dataset: Dataset, key: str) -> list[Any]:
    return list(np.asarray(ClipDataset(dataset, sampling=All())[key]["video"]))


def played(path: Path, dataset: Dataset, key: str) -> list[Any]:
    clips, row = dataset.clips, dataset.row(key)
    shown = sequential(path, color=row_color(clips, row))
    return [np.rot90(one, -int(clips.rotation[row]) // 90) for one in shown]


def test_a_player_shows_the_frames_of_the_clip(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_file, "_CHUNK_BYTES", 1500)
    for name in ("packed", "indexed", "fast"):
        dataset = Dataset.open(places / name)
        report = extract(dataset, tmp_path / name, progress=False)
        assert (report.clips, report.there, report.bad) == (len(VIDEOS) + 1, 0, ())
        assert report.bytes == sum(path.stat().st_size for path in (tmp_path / name).glob("*.mp4"))
        for row, key in enumerate(dataset.clips.key):
            shown = played(tmp_path / name / f"{key}.mp4", dataset, key)
            assert len(shown) == dataset.clips.frames[row]
            assert all(map(np.array_equal, shown, frames(dataset, key)))
            if name == "packed":
                data = (tmp_path / name / f"{key}.mp4").read_bytes()
                assert hashlib.sha256(data).hexdigest() == dataset.sha256(row)
    document = json.loads((tmp_path / "packed/top.json").read_text())
    assert document == {
        "key": "top", "source": "top.avi", "label": 3, "class": "t", "score": 1.25, "caption": "a\t5 \x1b[2J é",
    }  # fmt: skip


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
def test_cuts_of_files_in_place(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a long file, most of which begin between key frames; one in a tar; read in more than one piece."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(clip_file, "_CHUNK_BYTES", 2000)
    recipe = Recipe(**{**vars(LONG), "codec": codec, "b_frames": 0 if codec in ("vp9", "av1") else 2})
    (tmp_path / "in").mkdir()
    write(recipe, tmp_path / "in/long.mp4")
    write_tar(tmp_path / "in/others.tar", [("x.txt", b"t"), ("x.mp4", encoded(recipe, tmp_path))])
    index(tmp_path / "in", tmp_path / "set", cutting=FixedLength(7, "frames"), progress=False)
    dataset = Dataset.open(tmp_path / "set")
    extract(dataset, tmp_path / "out", progress=False)
    assert len(dataset) == 12
    for key in dataset.clips.key:
        shown = played(tmp_path / "out" / f"{key}.mp4", dataset, key)
        assert len(shown) == len(frames(dataset, key))
        assert all(map(np.array_equal, shown, frames(dataset, key)))


def test_extract_resumes_and_never_overwrites_other_files(
    places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, out = Dataset.open(places / "indexed"), tmp_path / "out"
    whole = clip_file.ClipFile.read
    written = []

    def fails(self: clip_file.ClipFile) -> Any:
        written.append(self)
        yield from list(whole(self))[:1]
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

    with monkeypatch.context() as patch:
        patch.setattr(clip_file.ClipFile, "read", fails)
        with pytest.raises(DatasetError, match=r"Cannot write .*\.mp4: the disk is full"):
            extract(dataset, out, workers=1, progress=False)
    assert not list(out.glob(".*"))
    (out / ".0123456789abcdef.tmp").write_bytes(b"of a killed process")
    for path in out.glob("*.mp4"):
        path.unlink()
    first = extract(dataset, out, keys=["top", "slow"], progress=False)
    assert (first.clips, first.there) == (2, 0)
    kept = os.stat(out / "top.mp4").st_ino
    rest = extract(dataset, out, progress=False)
    assert (rest.clips, rest.there) == (len(dataset) - 2, 2)
    assert os.stat(out / "top.mp4").st_ino == kept
    assert len(list(out.iterdir())) == 2 * len(dataset)
    before = digests(out)
    for name, content in (("top.mp4", b"mine"), ("top.json", b"{}"), ("top.mp4", before and b"")):
        (out / name).write_bytes(content)
        with pytest.raises(InputError, match=rf"{name} holds something else: .*--overwrite"):
            extract(dataset, out, keys=["top"], progress=False)
        assert (out / name).read_bytes() == content
        extract(dataset, out, keys=["top"], overwrite=True, progress=False)
        assert digests(out) == before
    (tmp_path / "elsewhere").write_bytes((out / "top.mp4").read_bytes())
    (out / "top.mp4").unlink()
    (out / "top.mp4").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="holds something else"):
        extract(dataset, out, keys=["top"], progress=False)
    extract(dataset, out, keys=["top"], overwrite=True, progress=False)
    assert not (out / "top.mp4").is_symlink()


def test_keys_that_differ_in_case_have_names_that_do_not(tmp_path: Path) -> None:
    pack_recipes(dict.fromkeys(("aa", "b"), LONG), tmp_path, options=PackOptions("any"))
    dataset = Dataset.open(tmp_path / "set")
    columns = dataset.__getstate__()
    clips = columns["clips"]
    columns["clips"] = clips.__class__(**(vars(clips) | {"key": clips.key.__class__(_texts(["aa", "AA"]))}))
    extract(Dataset(**columns), tmp_path / "out", keys=["AA"], progress=False)
    extract(Dataset(**columns), tmp_path / "out", progress=False)
    names = {path.name for path in (tmp_path / "out").glob("*.mp4")}
    assert len({name.lower() for name in names}) == 2
    assert all(name.lower().startswith("aa-") for name in names)


def _texts(texts: list[str]) -> Any:
    import pyarrow as pa

    return pa.array(texts, pa.large_string())


def test_a_damaged_clip_costs_itself(places: Path, tmp_path: Path) -> None:
    shutil.copytree(places / "packed", tmp_path / "set")
    dataset = Dataset.open(tmp_path / "set")
    with open(dataset.location(3), "r+b") as file:
        file.seek(int(dataset.clips.mp4_offset[3] + dataset.clips.mp4_size[3]) - 3)
        file.write(b"!")
    report = extract(without(dataset, 0), tmp_path / "out", progress=False)
    assert report.clips == len(dataset) - 2
    ((key, reason),) = report.bad
    assert key == dataset.key(3)
    assert reason.startswith("its bytes are not those that were stored, by their SHA-256")
    assert not (tmp_path / "out" / f"{dataset.key(3)}.mp4").exists()
    shutil.copytree(places / "in", tmp_path / "in")
    os.utime(places / "in/top.avi", ns=(1, 1))
    try:
        report = extract(places / "indexed", tmp_path / "other", progress=False)
        assert [key for key, _ in report.bad] == ["top"]
    finally:
        shutil.copystat(tmp_path / "in/top.avi", places / "in/top.avi")


def test_a_dataset_in_a_bucket_is_extracted(places: Path, tmp_path: Path, s3_bucket: str) -> None:
    extract(upload(places / "packed", f"s3://{s3_bucket}/set"), tmp_path / "a", progress=False)
    extract(places / "packed", tmp_path / "b", progress=False)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    with pytest.raises(InputError, match="into a local folder"):
        extract(places / "packed", f"s3://{s3_bucket}/out", progress=False)


def test_a_clip_whose_json_is_named_as_that_of_a_dataset(tmp_path: Path) -> None:
    """The folder was taken for a dataset the second time."""
    folder = pack_recipes({"dataset": LONG, "other": LONG}, tmp_path)
    for there in (0, 2):
        report = extract(folder, tmp_path / "out", progress=False)
        assert (report.clips, report.there) == (2 - there, there)
