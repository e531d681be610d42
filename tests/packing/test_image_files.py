"""Images as clips of one frame: packed by copy or read where they lie, in folders and tars, beside videos, by all that
reads a dataset."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import streamvid as sv
from streamvid.cli.main import main
from streamvid.errors import InputError
from streamvid.inspection.extract import extract
from streamvid.inspection.verify import verify
from tests.support.clips import write
from tests.support.foreign import write_tar
from tests.support.images import Picture, by_orientation, encode, exif, listed, picture, taken
from tools.clips import Recipe

WHOLE = sv.Transform(layout="THWC", dtype="uint8")
SQUARE = sv.Transform(resize=(32, 48), layout="THWC", dtype="uint8")
VIDEO = Recipe(width=96, height=64, frames=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of image, in the folders cats and dogs; and in dogs those that are listed."""
    root = tmp_path_factory.mktemp("images")
    for number, (name, file) in enumerate(taken().items()):
        target = root / ("cats", "dogs")[number % 2] / f"{name}.{file.extension}"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(file.data)
    for name, (extension, data, _) in listed().items():
        (root / "dogs" / f"{name}.{extension}").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def dataset(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dataset")
    sv.pack(folder, made, labels="folders", progress=False)
    return made


def frames(dataset: Path | sv.Dataset, transform: sv.Transform = WHOLE) -> dict[str, Picture]:
    """The frame of each clip, by the file name of its source."""
    opened = dataset if isinstance(dataset, sv.Dataset) else sv.Dataset.open(dataset)
    clips = sv.ClipDataset(opened, sampling=sv.Window(1), transform=transform)
    sources = opened.clips.source
    return {Path(sources[row]).stem: np.asarray(clips[row]["video"])[0] for row in range(len(opened))}


def test_every_image_is_a_clip_of_its_pixels_or_is_listed(dataset: Path) -> None:
    found = frames(dataset)
    assert set(found) == set(taken())
    for name, file in taken().items():
        apart = np.abs(found[name].astype(int) - file.pixels)
        assert apart.max() <= file.within, name
    reasons = {Path(row["source"]).stem: row["reason"] for row in rejected(dataset)}
    assert set(reasons) == set(listed())
    for name, (_, _, reason) in listed().items():
        assert reason in reasons[name], name


def rejected(dataset: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = pq.read_table(dataset / "rejected.parquet").to_pylist()
    return rows


def test_a_row_says_what_an_image_is_and_its_folder_is_its_class(dataset: Path) -> None:
    opened = sv.Dataset.open(dataset)
    assert opened.manifest.classes == ("cats", "dogs")
    clips = opened.clips
    for row in range(len(opened)):
        name = Path(clips.source[row]).stem
        assert (clips.codec[row], clips.frames[row], clips.packets[row]) == (taken()[name].codec, 1, 1)
        assert opened.manifest.classes[int(clips.label[row])] == Path(clips.source[row]).parent.name
        assert opened.index(row).size.tolist() == [len(taken()[name].data)]


def test_verify_finds_nothing_and_extract_gives_the_files(dataset: Path, tmp_path: Path) -> None:
    assert verify(dataset, decode=True, workers=1, progress=False).problems == ()
    extract(dataset, tmp_path, progress=False)
    by_bytes = {hashlib.sha256(file.data).hexdigest(): name for name, file in taken().items()}
    files = [file for file in tmp_path.iterdir() if file.suffix != ".json"]
    assert {hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == set(by_bytes)
    assert {file.suffix for file in files} == {".jpg", ".png", ".webp", ".tif", ".bmp", ".jp2"}


def test_indexed_where_they_lie_they_are_the_same(folder: Path, tmp_path: Path, dataset: Path) -> None:
    packed = frames(dataset)
    for fast in (False, True):
        made = tmp_path / str(fast)
        report = sv.index(folder, made, fast=fast, labels="folders", progress=False)
        assert len(report.rejected) == len(listed())
        opened = sv.Dataset.open(made)
        for name, frame in frames(opened).items():
            np.testing.assert_array_equal(frame, packed[name])
    assert verify(tmp_path / "True", decode=True, workers=1, progress=False).problems == ()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_stands_upright(form: str, tmp_path: Path) -> None:
    extension = {"JPEG": "jpg", "TIFF": "tif"}.get(form, form.lower())
    upright = picture(24, 40)
    for orientation, pixels in by_orientation(upright).items():
        options = {"lossless": True} if form == "WEBP" else {"quality": 98, "subsampling": 0} if form == "JPEG" else {}
        data = encode(pixels, form, exif=exif(orientation), **options)
        (tmp_path / f"o{orientation}x.{extension}").write_bytes(data)
    sv.pack(tmp_path, tmp_path / "made", images=True, progress=False)
    for name, frame in frames(tmp_path / "made").items():
        assert frame.shape == upright.shape, name
        assert np.abs(frame.astype(int) - upright).max() <= (8 if form == "JPEG" else 0), name


def test_videos_and_images_mix_in_one_loader(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(VIDEO, tmp_path / "in" / "video.mp4")
    for name in ("jpeg_420", "png_rgb"):
        (tmp_path / "in" / f"{name}.{taken()[name].extension}").write_bytes(taken()[name].data)
    with_images, without = tmp_path / "with", tmp_path / "without"
    sv.pack(tmp_path / "in", without, progress=False)
    sv.pack(tmp_path / "in", with_images, images=True, progress=False)
    assert sv.Dataset.open(without).clips.source[:] == ["video.mp4"]
    for sampling in (sv.Window(1), sv.Uniform(1)):
        with sv.StreamLoader(with_images, batch_size=3, sampling=sampling, transform=SQUARE, device="cpu") as loader:
            (batch,) = loader
        assert batch["video"].shape == (3, 1, 32, 48, 3)
        assert batch["mask"].all()
    padded = sv.Window(4, pad="edge")
    with sv.StreamLoader(with_images, batch_size=3, sampling=padded, transform=SQUARE, device="cpu") as loader:
        (batch,) = loader
    images = batch["clip"] != sv.Dataset.open(with_images).row("video")
    assert batch["mask"][images].tolist() == [[True, False, False, False]] * 2
    shown = batch["video"][images]
    assert torch.equal(shown, shown[:, :1].expand_as(shown))


def test_numbered_images_are_a_video_unless_each_is_to_be_a_clip(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "cats"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"cat{number}.jpg").write_bytes(taken()["jpeg_420"].data)
    with pytest.raises(InputError, match="--images"):
        sv.pack(tmp_path / "in", tmp_path / "made", progress=False)
    report = sv.pack(
        tmp_path / "in", tmp_path / "video", options=sv.PackOptions(fps=5, compatible_with="any"), progress=False
    )
    assert (report.clips, report.manifest.frames) == (1, 3)
    report = sv.pack(tmp_path / "in", tmp_path / "made", images=True, labels="folders", progress=False)
    assert (report.clips, report.manifest.frames, report.manifest.classes) == (3, 3, ("cats",))


def test_a_list_names_images_with_their_columns(folder: Path, tmp_path: Path) -> None:
    rows = ["path,label,caption", f"{folder}/cats/jpeg_420.jpg,7,a wave", f"{folder}/dogs/jpeg_444.jpg,8,another"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    sv.pack(tmp_path / "list.csv", tmp_path / "made", progress=False)
    opened = sv.Dataset.open(tmp_path / "made")
    assert opened.clips.label.tolist() == [7, 8]
    assert opened.columns.get("caption").to_pylist() == ["a wave", "another"]


@pytest.mark.parametrize("in_place", [False, True])
def test_tars_of_images_give_clips_with_what_lies_beside_them(tmp_path: Path, in_place: bool) -> None:
    png, jpeg = taken()["png_rgb"], taken()["jpeg_420"]
    members = [
        ("000.jpg", jpeg.data), ("000.cls", b"3"), ("000.json", b'{"caption": "one"}'), ("000.seg.png", png.data),
        ("001.png", png.data), ("001.cls", b"5"), ("001.json", b'{"caption": "two"}'), ("002.txt", b"no picture"),
    ]  # fmt: skip
    tar = write_tar(tmp_path / "shard.tar", members)
    make = sv.index if in_place else sv.pack
    make(tar, tmp_path / "made", progress=False)
    opened = sv.Dataset.open(tmp_path / "made")
    assert opened.clips.label.tolist() == [3, 5]
    assert opened.columns.get("caption").to_pylist() == ["one", "two"]
    found = frames(opened)
    np.testing.assert_array_equal(found["000"], jpeg.pixels)
    np.testing.assert_array_equal(found["001"], png.pixels)
    assert opened.members("000") == (["cls", "json", "seg.png"] if in_place else [])
    assert ("members" in opened.columns.names) == in_place


def test_the_command_packs_images_by_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "made")
    assert main(["pack", str(folder / "cats"), target, "--images", "--labels", "folders"]) == 2
    assert "no video lies in a folder" in capsys.readouterr().err
    assert main(["pack", str(folder), target, "--images", "--labels", "folders"]) == 0
    assert main(["info", target]) == 0
    assert "2 classes: cats" in capsys.readouterr().out
    assert main(["preview", target, "--out", str(tmp_path / "page.html"), "--clips", "4"]) == 0


def test_a_damaged_image_is_quarantined_by_the_packets_checksum(dataset: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(dataset, damaged)
    opened = sv.Dataset.open(damaged)
    row = next(row for row in range(len(opened)) if "png_rgb." in opened.clips.source[row])
    at = int(opened.clips.mp4_offset[row] + opened.index(row).offset[0]) + 60
    tar = damaged / "shards" / "00000000.tar"
    tar.chmod(0o600)
    data = bytearray(tar.read_bytes())
    data[at] ^= 255
    tar.write_bytes(data)
    options = {"sampling": sv.Window(1), "transform": SQUARE, "device": "cpu"}
    with sv.StreamLoader(damaged, batch_size=2, on_error="skip", quarantine=tmp_path / "bad", **options) as loader:
        seen = {clip for batch in loader for clip in batch["clip"].tolist()}
    assert seen == set(range(len(opened))) - {row}
    assert opened.key(row) in "".join(path.read_text() for path in (tmp_path / "bad").iterdir())


def test_an_animated_png_is_a_video(tmp_path: Path) -> None:
    from PIL import Image

    turned = Image.fromarray(picture(64, 64)).rotate(90)
    (tmp_path / "moving.png").write_bytes(encode(picture(64, 64), "PNG", save_all=True, append_images=[turned]))
    report = sv.pack(tmp_path, tmp_path / "made", progress=False)
    assert (report.clips, report.manifest.frames) == (1, 2)
    assert sv.Dataset.open(tmp_path / "made").clips.codec[0] == "h264"


def test_images_are_not_cut_and_go_through_merge_and_reshard(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(replace(VIDEO, frames=30), tmp_path / "in" / "video.mp4")
    (tmp_path / "in" / "one.jpg").write_bytes(taken()["jpeg_420"].data)
    packed, indexed = tmp_path / "packed", tmp_path / "indexed"
    halves = sv.PackOptions(cutting=sv.FixedLength(15, "frames"))
    sv.pack(tmp_path / "in", packed, images=True, options=halves, progress=False)
    assert sv.Dataset.open(packed).clips.key[:] == ["one", "video_000000", "video_000001"]
    sv.index(tmp_path / "in", indexed, images=True, progress=False)
    sv.merge([packed, indexed], tmp_path / "merged", prefix=True)
    sv.reshard(packed, tmp_path / "resharded", shard_size=8192)
    for made, clips in (("merged", 5), ("resharded", 3)):
        report = verify(tmp_path / made, decode=True, workers=1, progress=False)
        assert (report.problems, report.manifest.clips) == ((), clips)
        extract(tmp_path / made, tmp_path / f"out-{made}", progress=False)
        for file in (tmp_path / f"out-{made}").glob("*.jpg"):
            assert file.read_bytes() == taken()["jpeg_420"].data


def test_an_image_named_as_a_clip_of_a_video_that_is_cut(tmp_path: Path) -> None:
    """As thumbnails beside videos may be: the dataset could not be opened."""
    (tmp_path / "in").mkdir()
    write(replace(VIDEO, frames=30), tmp_path / "in" / "a.mp4")
    for name in ("a_000001.jpg", "b_000001.jpg"):
        (tmp_path / "in" / name).write_bytes(taken()["jpeg_420"].data)
    halves = sv.FixedLength(15, "frames")
    sv.pack(tmp_path / "in", tmp_path / "packed", images=True, options=sv.PackOptions(cutting=halves), progress=False)
    sv.index(tmp_path / "in", tmp_path / "indexed", images=True, cutting=halves, progress=False)
    for made in ("packed", "indexed"):
        keys = sv.Dataset.open(tmp_path / made).clips.key[:]
        assert sorted(key.partition("-")[0] for key in keys) == ["a_000000", "a_000001", "a_000001", "b_000001"]


def test_a_row_that_cuts_an_image_is_listed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(VIDEO, tmp_path / "in" / "video.mp4")
    (tmp_path / "in" / "one.jpg").write_bytes(taken()["jpeg_420"].data)
    (tmp_path / "cuts.csv").write_text("path,start,end\none.jpg,0,1\nvideo.mp4,0,0.2\n")
    sv.pack(tmp_path / "in", tmp_path / "made", images=True, cuts=tmp_path / "cuts.csv", progress=False)
    (row,) = rejected(tmp_path / "made")
    assert (row["source"], "nothing can be cut" in row["reason"]) == ("one.jpg", True)
