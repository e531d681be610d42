"""Images in DALI's graph: the batches of the default engine, of images alone and of images and videos together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.dali_engine.support import check_decodable
from streamvid.decode.deadline import LateBatches
from streamvid.errors import ClipError, InputError, VideoError
from streamvid.forks import abandon_pipeline
from streamvid.loader.engine import ENGINES, EngineName
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video import image_decoder
from tests.dali_engine import test_engine
from tests.dali_engine.test_engine import VP9, WINDOW
from tests.dali_engine.test_support import A_GPU
from tests.support.batches import assert_same
from tests.support.clips import write
from tests.support.images import encode, exif, picture, taken
from tests.support.packed import upload

RAW = replace(test_engine.RAW, crop=40)


def loader(dataset: Any, engine: EngineName, **options: Any) -> sv.StreamLoader:
    return test_engine.loader(dataset, engine, **{"transform": RAW, **options})


def batches(dataset: Any, engine: EngineName, **options: Any) -> list[dict[str, Any]]:
    return test_engine.batches(dataset, engine, **{"transform": RAW, **options})


@pytest.fixture(scope="module")
def stills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of image that is taken, and each orientation."""
    folder = tmp_path_factory.mktemp("stills")
    (folder / "files").mkdir()
    for name, file in taken().items():
        (folder / "files" / f"{name}.{file.extension}").write_bytes(file.data)
    for orientation in range(1, 9):
        turned = encode(picture(), "JPEG", quality=90, exif=exif(orientation))
        (folder / "files" / f"turned_{orientation}.jpg").write_bytes(turned)
    pack(folder / "files", folder / "set", images=True, shard_size=60_000, workers=1, progress=False)
    assert len(sv.Dataset.open(folder / "set")) == len(taken()) + 8
    return folder / "set"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and videos, of two matrices, in one dataset."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "files").mkdir()
    for number in range(6):
        (folder / "files" / f"{number}.webp").write_bytes(encode(picture(50 + number, 71), "WEBP", quality=90))
        (folder / "files" / f"{number}.jpg").write_bytes(encode(picture(64 + number, 96), "JPEG", quality=90))
        recipe = replace(VP9, frames=8 + number, seed=number, container="mp4", rotation=90 * (number % 2))
        write(replace(recipe, colour="bt601" if number % 3 else "bt709"), folder / "files" / f"v{number}.mp4")
    pack(folder / "files", folder / "set", images=True, workers=1, progress=False, options=PackOptions("any"))
    assert len(sv.Dataset.open(folder / "set")) == 18
    return folder / "set"


@pytest.mark.parametrize("sampling", [sv.Window(1), sv.Window(3, pad="constant"), sv.Uniform(2)])
def test_images_bit_for_bit(stills: Path, sampling: Any) -> None:
    default, dali = (batches(stills, engine, sampling=sampling, batch_size=7) for engine in ENGINES)
    assert_same(default, dali)


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"shuffle": False, "batch_size": 9}, {"checksum": None}])
@pytest.mark.parametrize("sampling", [WINDOW, sv.Window(4, stride=2, pad="constant")])
def test_videos_and_images_in_a_batch(both: Path, sampling: Any, options: dict[str, Any]) -> None:
    default, dali = (batches(both, engine, sampling=sampling, epochs=2, **options) for engine in ENGINES)
    assert_same(default, dali)


def test_colours_of_videos_alone_are_corrected(both: Path) -> None:
    """By the tags BT.709 is made of DALI's RGB; that of an image is what it is."""
    transform = replace(RAW, color="auto")
    (plain,), (tags,) = (batches(both, "dali", transform=one, batch_size=18) for one in (RAW, transform))
    table = sv.Dataset.open(both).clips
    changed = [not torch.equal(one, two) for one, two in zip(plain["video"], tags["video"], strict=True)]
    rows = tags["clip"].tolist()
    assert changed == [table.codec[row] == "vp9" and table.source[row] in ("v0.mp4", "v3.mp4") for row in rows]
    assert sum(changed) == 2


def test_a_transform_of_images_and_videos(both: Path) -> None:
    transform = sv.Transform(
        random_resized_crop=(0.3, 1.0), crop=32, horizontal_flip=0.5, rotate=20, color="bt601", layout="CTHW"
    )
    default, dali = (batches(both, engine, transform=transform) for engine in ENGINES)
    one, two = (torch.cat([batch.pop("video") for batch in got]) for got in (default, dali))
    assert_same(default, dali)
    assert (one - two).abs().mean() < 0.3 / 255


def test_an_epoch_goes_on_in_the_other_engine(both: Path) -> None:
    whole = batches(both, "default", epochs=2)
    with loader(both, "dali") as begun:
        for _ in zip(range(2), begun, strict=False):
            state = begun.state_dict()
    with loader(both, "default") as resumed:
        resumed.load_state_dict(state)
        assert_same(whole[2:], [batch for _ in range(2) for batch in resumed])


def test_a_mix_of_two_datasets(stills: Path, both: Path) -> None:
    mix = sv.Mix([(stills, 0.5), (both, 0.5)])
    default, dali = (batches(mix, engine, steps_per_epoch=4) for engine in ENGINES)
    assert_same(default, dali)


def test_shards_in_a_bucket(both: Path, tmp_path: Path) -> None:
    """Bytes that no local shard has: DALI reads them of a file that is written for it."""
    remote = upload(both, f"memory://{tmp_path.name}/set")
    here, there = (batches(one, "dali", **options) for one, options in ((both, {}), (remote, {"cache_dir": tmp_path})))
    assert_same(here, there)


@pytest.mark.parametrize("which", [0, 1])
def test_the_graph_by_itself(stills: Path, both: Path, which: int) -> None:
    dataset = (stills, both)[which]
    options: dict[str, Any] = {"sampling": WINDOW, "transform": RAW, "device": "cpu", "num_threads": 2, "seed": 3}
    pipe = sv.dali.pipeline(dataset, batch_size=4, **options)
    made = [batch for (batch,) in sv.dali.iterator(pipe, last_batch_policy="partial")]
    expected = batches(dataset, "default")
    assert torch.equal(torch.cat([one["clip"] for one in made]), torch.cat([one["clip"] for one in expected]))
    for n, one in enumerate(made[:-1]):
        if one["video"].shape == expected[n]["video"].shape:
            assert torch.equal(one["video"], expected[n]["video"])


def test_own_operators_on_clips_of_many_sizes(both: Path) -> None:
    """A graph's views may differ in size, which an operator of the user's own may even out; crops must fit, still."""
    from nvidia.dali import fn

    options: dict[str, Any] = {"batch_size": 18, "sampling": sv.Window(1), "device": "cpu", "num_threads": 2}
    pipe = sv.dali.pipeline(both, **options)
    with pipe:
        video = fn.resize(pipe.nodes["video"], resize_x=24, resize_y=16)
        pipe.set_outputs(video, pipe.nodes["clip"])
    ((batch,),) = list(sv.dali.iterator(pipe, ["video", "clip"]))
    assert batch["video"].shape == (18, 1, 16, 24, 3)
    assert sorted(batch["clip"].tolist()) == list(range(18))
    assert all(one.any() for one in batch["video"])
    with pytest.raises(InputError, match="200"):
        sv.dali.pipeline(both, transform=sv.Transform(crop=200), **options)
    with pytest.raises(InputError, match="different sizes"):
        sv.StreamLoader(both, **options)


def test_images_are_refused_on_a_gpu(stills: Path, both: Path) -> None:
    """In words, before a run; on a CPU all of it is taken."""
    for dataset in map(sv.Dataset.open, (stills, both)):
        rows = np.arange(len(dataset))
        check_decodable(dataset, rows, device_id=None)
        with pytest.raises(InputError, match=r"clips of jpeg .* takes no images.*engine=\"default\""):
            check_decodable(dataset, rows, device_id=A_GPU)


def damage(source: Path, folder: Path, mark: bytes, change: bytes, skip: int) -> str:
    """A copy of a dataset with other bytes so far behind a mark in a JPEG; the image's key."""
    dataset = sv.Dataset.open(source)
    row = next(n for n in range(len(dataset)) if dataset.clips.source[n] == "3.jpg")
    shutil.copytree(source, folder)
    path = Path(sv.Dataset.open(folder).shard_path(int(dataset.clips.shard[row])))
    whole = bytearray(path.read_bytes())
    place = whole.index(mark, int(dataset.clips.mp4_offset[row])) + skip
    whole[place : place + len(change)] = change
    path.write_bytes(bytes(whole))
    return dataset.key(row)


@pytest.mark.parametrize(
    ("mark", "change", "skip", "checksum"),
    [
        pytest.param(b"\xff\xda", b"\x55" * 50, 30, "crc32c", id="pixels"),
        pytest.param(b"\xff\xc0", (9000).to_bytes(2, "big"), 5, None, id="size"),
        pytest.param(b"\xff\xc4", b"\xff" * 20, 5, None, id="tables"),
    ],
)
def test_a_damaged_image(both: Path, tmp_path: Path, mark: bytes, change: bytes, skip: int, checksum: Any) -> None:
    """Found by its checksum; where that is not asked for, by its header, or by the decoder."""
    key = damage(both, tmp_path / "set", mark, change, skip)
    with pytest.raises((ClipError, VideoError), match=key):
        batches(tmp_path / "set", "dali", checksum=checksum, on_error="raise")
    made = batches(tmp_path / "set", "dali", checksum=checksum, quarantine=tmp_path / "bad")
    assert key not in [one for batch in made for one in batch["key"]]
    assert sum(int(batch["valid"].sum()) for batch in made) == 17
    default = batches(tmp_path / "set", "default", checksum=checksum, quarantine=tmp_path / "bad")
    assert {one for batch in default for one in batch["key"]} == {one for batch in made for one in batch["key"]}


def test_a_failed_graph_that_may_have_corrupt_memory_is_never_freed(
    stills: Path, both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIFF's and JPEG 2000's decoders may have corrupted what freeing would follow; JPEG's and WebP's do not."""
    abandoned: list[bool] = []

    def fail(*_: Any) -> Any:
        raise RuntimeError("encountered: nothing")

    def look(pipeline: Any) -> None:
        abandoned.append(pipeline._pipe is not None)
        abandon_pipeline(pipeline)

    monkeypatch.setattr(LateBatches, "wait_for", fail)
    monkeypatch.setattr(image_decoder, "abandon_pipeline", look)
    for dataset, expected in ((both, []), (stills, [True])):
        with pytest.raises(VideoError, match="DALI could not decode"):
            batches(dataset, "dali", on_error="raise", batch_size=48, sampling=sv.Window(1))
        assert abandoned == expected
