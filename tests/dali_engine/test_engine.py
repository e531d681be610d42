"""Both engines of StreamLoader, held to the same: clips, frames, order, masks, resumed runs, S3, and errors in words.

The clips are of codecs that DALI decodes on a CPU. Their frames carry their number, so a wrong frame is seen as such.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.color.render import recolouring
from streamvid.color.tags import Color
from streamvid.dali_engine import chunk_pipeline
from streamvid.dali_engine.chunk_pipeline import ChunkPipeline
from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
from streamvid.loader import rescue
from streamvid.loader.engine import ENGINES, EngineName
from streamvid.mp4.boxes import ROTATIONS
from streamvid.sampling.base import FrameSampler
from streamvid.storage.shard_cache import CacheUnusable, ShardCache
from tests.support.bad_clips import decode_here
from tests.support.batches import assert_same
from tests.support.packed import pack_with_columns, replace_packets, upload
from tests.support.profile import by_profile
from tests.support.shown import Packed, shown
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")

VP9 = Recipe(codec="vp9", container="webm", width=96, height=64, gop=8)
VP8 = replace(VP9, codec="vp8")
MJPEG = replace(VP9, codec="mjpeg", container="avi", gop=1)
_ALT_REF = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
RECIPES: dict[str, Recipe] = {
    "a/vp9.webm": replace(VP9, frames=40),
    "a/vp9_25.mkv": replace(VP9, frames=33, container="mkv", fps=Fraction(25), seed=1),
    "a/vp9_vfr.webm": replace(VP9, frames=30, jitter=3, seed=2),
    # An edit list hides the first frames.
    "a/vp9_trimmed.mp4": replace(VP9, frames=40, trim=13, container="mp4", seed=3),
    "a/vp9_trimmed_end.mp4": replace(VP9, frames=30, trim_end=7, container="mp4", seed=4),
    "b/vp9_delayed.mp4": replace(VP9, frames=20, delay=Fraction(2), container="mp4", seed=5),
    # Superframes, which hide a picture in one packet with the next.
    "b/vp9_hidden.webm": replace(VP9, frames=96, gop=96, options=_ALT_REF, seed=6),
    "b/vp9_slow.webm": replace(VP9, frames=20, fps=Fraction(12), seed=7),
    "b/vp8.webm": replace(VP8, frames=35, seed=8),
    "b/vp8_ntsc.mkv": replace(VP8, frames=31, container="mkv", fps=Fraction(30000, 1001), seed=9),
    "c/mjpeg.avi": replace(MJPEG, frames=24, fps=Fraction(10), seed=10),
    "c/mjpeg.mov": replace(MJPEG, frames=9, container="mov", seed=11),
    "c/full_range.webm": replace(VP9, frames=22, full_range=True, seed=12),
    "c/five.webm": replace(VP9, frames=5, seed=13),
    "c/one.webm": replace(VP8, frames=1, seed=14),
}
RAW = sv.Transform(layout="THWC", dtype="uint8", color="bt601")
"""Of whose colours DALI makes the same pixels."""
WINDOW = sv.Window(6, fps=15)


def make(folder: Path, recipes: dict[str, Recipe]) -> Packed:
    """Write and pack clips as they are, into several shards, with labels and columns."""
    path = pack_with_columns(recipes, folder, shard_size=60_000)
    dataset = sv.Dataset.open(path)
    return Packed(path, [recipes[dataset.clips.source[row]] for row in range(len(dataset))])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    made = make(tmp_path_factory.mktemp("engines"), RECIPES)
    assert len(made.recipes) == len(RECIPES)
    assert len(sv.Dataset.open(made.path).shards) >= 3
    return made


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    recipes = {f"{n}.webm": replace(VP9, frames=12 + n, seed=100 + n) for n in range(5)}
    return make(tmp_path_factory.mktemp("second"), recipes)


def loader(dataset: Any, engine: EngineName, **options: Any) -> sv.StreamLoader:
    path = dataset.path if isinstance(dataset, Packed) else dataset
    known = {"batch_size": 4, "sampling": WINDOW, "transform": RAW, "num_threads": 2, "device": "cpu", "seed": 3}
    return sv.StreamLoader(path, engine=engine, **{**known, **options})


def batches(dataset: Any, engine: EngineName, epochs: int = 1, **options: Any) -> list[dict[str, Any]]:
    with loader(dataset, engine, **options) as one:
        return [batch for _ in range(epochs) for batch in one]


def streamvid_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("streamvid")]


SAMPLINGS: list[FrameSampler] = [
    WINDOW,
    sv.Window(8, stride=3, pad="reflect_101"),
    sv.Window(9, fps=29.97, start="center", pad="constant"),
    sv.Window(7, stride=2, start="first", pad="reflect_1001"),
    sv.Window(5, fps=10, pad="none"),
    sv.Window(4, stride=2, jitter=1),
    sv.Window(5, span=(0.3, 0.9), pad="constant"),
    sv.TiledWindows(6, step=4, fps=15, pad="constant"),
    sv.MultiRate([(3, 5.0), (3, 10)], pad="reflect_101"),
    sv.Uniform(5),
    sv.Keyframes(3, pick="center"),
    sv.RandomFrames(6),
    sv.Frames([4, 0, 4, 30], pad="constant"),
    sv.ByClip(3, frames=lambda clip: [*clip.keyframes[:2], 3]),
    sv.All(pad="constant"),
    sv.All(),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_same_batches_bit_for_bit(packed: Packed, sampling: FrameSampler) -> None:
    default, dali = (batches(packed, engine, sampling=sampling) for engine in ENGINES)
    assert_same(default, dali)


@pytest.mark.parametrize("sampling", SAMPLINGS[:6])
def test_slots_show_the_frames_that_their_times_say(packed: Packed, sampling: FrameSampler) -> None:
    clips = Counter[int]()
    for batch in batches(packed, "dali", sampling=sampling):
        for i in np.flatnonzero(batch["valid"]):
            row, frames = shown(packed, batch, i)
            clips[row] += 1
            assert len(frames) == sampling.num_frames
            assert batch["label"][i] == list(RECIPES.values()).index(packed.recipes[row]) % 3
    assert set(clips.values()) == {1}
    assert len(clips) == len(RECIPES) or sampling.pad == "none"


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "block"},
        {"group_by_size": True},
        {"last_batch": "drop"},
        {"steps_per_epoch": 6},
        {"batch_size": 40},
        {"columns": ["score", "place"]},
        {"rank": 2, "world_size": 3, "ranks_per_node": 1, "locality": "node"},
        {"rank": 5, "world_size": 20},
    ],
)
def test_the_same_order(packed: Packed, options: dict[str, Any]) -> None:
    default, dali = (batches(packed, engine, epochs=2, **options) for engine in ENGINES)
    assert_same(default, dali)
    assert default


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_share_an_epoch(packed: Packed, engine: EngineName) -> None:
    seen: Counter[int] = Counter()
    steps = set()
    for rank in range(3):
        mine = batches(packed, engine, rank=rank, world_size=3, batch_size=2)
        steps.add(len(mine))
        for batch in mine:
            seen.update(batch["clip"][batch["valid"]].tolist())
    assert seen == Counter(range(len(RECIPES)))
    assert len(steps) == 1


def test_a_mix_of_subsets(packed: Packed, second: Packed) -> None:
    mix = sv.Mix([(sv.Subset(str(packed.path), where="score > 0.5"), 0.7), (str(second.path), 0.3)])
    default, dali = (batches(mix, engine, epochs=2) for engine in ENGINES)
    assert_same(default, dali)
    assert {int(part) for batch in dali for part in batch["dataset"]} == {0, 1}


def inverted(frames: Any) -> Any:
    """A user's own operators."""
    from nvidia.dali import fn, types

    return fn.cast(255 - frames, dtype=types.UINT8)


def test_views_are_those_of_the_default_engine(packed: Packed) -> None:
    """Several outputs, each with its own draws."""
    views = {"one": RAW, "two": replace(RAW, crop=(32, 40)), "three": replace(RAW, dali=inverted)}
    default, dali = (batches(packed, engine, transform=views) for engine in ENGINES)
    assert_same(default, dali)


def test_turned_clips_stand_upright(tmp_path: Path) -> None:
    recipe = replace(VP9, container="mp4", width=64, frames=6)
    made = make(tmp_path, {f"{angle}.mp4": replace(recipe, rotation=angle) for angle in ROTATIONS})
    assert sorted(sv.Dataset.open(made.path).clips.rotation.tolist()) == list(ROTATIONS)
    default, dali = (batches(made, engine) for engine in ENGINES)
    assert_same(default, dali)


@pytest.mark.parametrize(
    ("transform", "largest", "mean"),
    [
        # Bounds in levels of 256: the largest difference, and the mean.
        (replace(RAW, resize=48, crop=(40, 44), horizontal_flip=0.5), 6, 0.3),
        (replace(RAW, random_resized_crop=(0.3, 1.0), crop=32, horizontal_flip=0.5), 6, 0.3),
    ],
)
def test_the_same_draws_of_a_transform(packed: Packed, transform: sv.Transform, largest: float, mean: float) -> None:
    """Resized pictures differ by what DALI's resampling and ours round, and by nothing else."""
    default, dali = (batches(packed, engine, transform=transform) for engine in ENGINES)
    one, two = (torch.cat([batch.pop("video") for batch in got]).float() for got in (default, dali))
    assert_same(default, dali)
    assert (one - two).abs().max() <= largest
    assert (one - two).abs().mean() <= mean


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalised_batches(packed: Packed, dtype: Any) -> None:
    transform = sv.Transform(
        crop=48, horizontal_flip=0.5, mean=(0.45,) * 3, std=(0.225,) * 3, layout="CTHW", dtype=dtype, color="bt601"
    )
    default, dali = (batches(packed, engine, transform=transform) for engine in ENGINES)
    for a, b in zip(default, dali, strict=True):
        assert a["video"].dtype == b["video"].dtype
        torch.testing.assert_close(a["video"], b["video"], rtol=0, atol=2e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_an_epoch_goes_on_in_the_other_engine(packed: Packed, first: EngineName, stop: int) -> None:
    (other,) = set(ENGINES) - {first}
    whole = batches(packed, first, epochs=2, batch_size=2)
    with loader(packed, first, batch_size=2) as begun:
        state = begun.state_dict()
        for _ in zip(range(stop), begun, strict=False):
            state = json.loads(json.dumps(begun.state_dict()))
    with loader(packed, other, batch_size=2) as resumed:
        resumed.load_state_dict(state)
        rest = [batch for _ in range(2) for batch in resumed]
    assert_same(whole[stop:], rest)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_goes_on_with_other_ranks_and_batches(packed: Packed, engine: EngineName) -> None:
    seen: Counter[int] = Counter()
    state: Any = None
    for world, batch_size, steps in ((2, 2, 2), (3, 1, 1), (1, 3, None)):
        states = []
        for rank in range(world):
            with loader(packed, engine, rank=rank, world_size=world, batch_size=batch_size) as one:
                if state is not None:
                    one.load_state_dict(state)
                for number, batch in enumerate(one, start=1):
                    seen.update(batch["clip"][batch["valid"]].tolist())
                    now = one.state_dict()
                    if number == steps:
                        break
                states.append(now)
        state = states[0]
        assert all(one == state for one in states)
    assert seen == Counter(range(len(RECIPES)))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_begins_with_its_first_batch(packed: Packed, engine: EngineName) -> None:
    whole = batches(packed, engine, epochs=2, batch_size=2)
    with loader(packed, engine, batch_size=2) as one:
        looked = iter(one)
        next(looked)
        state = one.state_dict()
        del looked
    with loader(packed, engine, batch_size=2) as resumed:
        stray = [iter(resumed)]
        resumed.load_state_dict(state)
        stray += [iter(resumed), iter(resumed)]
        assert resumed.state_dict() == state
        assert not streamvid_threads()
        rest = list(stray[0])
        stray += [iter(resumed)]
        assert_same(whole[1:], rest + list(resumed))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_epoch_left_early(packed: Packed, engine: EngineName) -> None:
    with loader(packed, engine, batch_size=2) as one:
        for _ in one:
            break
        one.set_epoch(0)
        whole = list(one)
        assert sorted(clip for batch in whole for clip in batch["clip"].tolist()) == list(range(len(RECIPES)))
        two, three = iter(one), iter(one)
        for batch in whole:
            assert next(two).keys() == next(three).keys() == batch.keys()
        del two, three
    assert not streamvid_threads()


ALIVE = """
import sys
import streamvid as sv
loader = sv.StreamLoader(sys.argv[1], batch_size=2, sampling=sv.Window(2), engine=sys.argv[2], device="cpu")
iterator = iter(loader)
print(len(next(iterator)["clip"]))
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_python_ends_while_an_iterator_is_alive(packed: Packed, engine: EngineName, forked_python: Path) -> None:
    command = [str(forked_python), "-c", ALIVE, str(packed.path), engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["2"]), done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_begins_before_the_loop(packed: Packed, engine: EngineName) -> None:
    with loader(packed, engine) as one:
        iterator = iter(one)
        assert not streamvid_threads()
        assert len(list(iterator)) == len(one)
        assert one.stats().clips == len(RECIPES)
        assert one.stats().bytes_read > 0


def test_an_error_leaves_no_folder_behind(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wrong = sv.Transform(crop=48, dali=lambda frames: None)
    with loader(packed.path, "dali", transform=wrong) as one, pytest.raises(InputError, match="one DALI node"):
        next(iter(one))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an OSError without a name, and a full disk is not the dataset's fault."""
    monkeypatch.setattr(chunk_pipeline, "mkdtemp", lambda prefix: str(tmp_path / "gone"))
    said = f"^the indexes for DALI's reader cannot be written to {tmp_path}/gone: No such file .* set TMPDIR"
    with loader(packed.path, "dali") as one, pytest.raises(DatasetError, match=said):
        next(iter(one))


def test_clips_that_dali_cannot_decode_are_named_at_the_start(tmp_path: Path) -> None:
    recipes = {
        "vp9.webm": replace(VP9, frames=8),
        "h264.mp4": Recipe(width=96, height=64, frames=8),
        "hidden.webm": replace(VP8, frames=20, hidden=7),
    }
    made = make(tmp_path, recipes)
    with pytest.raises(InputError) as error:
        loader(made, "dali")
    message = str(error.value)
    for words in (
        "1 clip of h264 ",
        "such as h264 (",
        "1 clip of vp8 ",
        "such as hidden (",
        'engine="default"',
        "--codec vp9",
    ):
        assert words in message
    assert "such as vp9" not in message
    assert len(batches(made, "default")) == 1
    assert len(batches(sv.Subset(str(made.path), where="place == 'town 0'"), "dali")) == 1


def test_an_unknown_engine_is_refused(packed: Packed) -> None:
    with pytest.raises(InputError, match="engine must be one of 'default', 'dali'; it is 'nvdec'"):
        loader(packed, "nvdec")  # type: ignore[arg-type]


def test_shards_of_a_bucket_come_through_the_cache(packed: Packed, s3_bucket: str, tmp_path: Path) -> None:
    """Shards come through the cache on disk."""
    remote = upload(packed.path, f"s3://{s3_bucket}/datasets/engines")
    limit = sum(entry.bytes for entry in sv.Dataset.open(packed.path).shards)
    expected = batches(packed, "default", epochs=2)
    for engine in ENGINES:
        folder = tmp_path / engine
        assert_same(expected, batches(remote, engine, epochs=2, cache_dir=folder, cache_bytes=limit))
        files_of = [path for path in folder.iterdir() if path.is_file()]
        assert 0 < sum(512 * path.stat().st_blocks for path in files_of) <= limit  # files of ranges have holes


@pytest.mark.parametrize(
    ("on_error", "change"),
    [("skip", "a bit"), ("mask", "a bit"), ("raise", "cut short"), ("skip", "cut short"), ("skip", "an index")],
)
def test_a_damaged_shard_in_a_bucket_costs_its_damaged_clips(
    packed: Packed, tmp_path: Path, on_error: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache takes no copy of it: what is wanted of it is read where it is, and DALI gets it in a file."""
    monkeypatch.setattr(rescue, "decode_isolated", decode_here)
    shutil.copytree(packed.path, tmp_path / "set")
    opened = sv.Dataset.open(packed.path)
    bad = int(opened.rows(1).stop - 1)
    path = tmp_path / "set" / Path(opened.shard_path(1)).relative_to(packed.path)
    at = int(opened.clips.mp4_offset[bad] + opened.index(bad).offset[0])
    if change == "an index":
        path, at = path.with_suffix(".packets"), int(opened.clips.index_offset[bad] + 40)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data[:at] if change == "cut short" else data)
    url = upload(tmp_path / "set", f"memory://{tmp_path.name}")
    options: dict[str, Any] = {"sampling": sv.Frames([0, 1, 2], pad="constant"), "on_error": on_error, "epochs": 2}
    options |= {"fetch": "shards", "batch_size": 2}

    def of(engine: EngineName) -> list[dict[str, Any]]:
        folder = tmp_path / engine
        return batches(url, engine, **options, cache_dir=folder / "cache", quarantine=folder / "quarantine")

    if on_error == "raise":
        for engine in ENGINES:
            with pytest.raises(StreamvidError, match=f"{opened.key(bad)}|shard 00000001"):
                of(engine)
        return
    default, dali = (of(engine) for engine in ENGINES)
    assert_same(default, dali)
    assert sum(bad in batch["clip"][~batch["valid"]].tolist() for batch in dali) == (2 if on_error == "mask" else 0)
    assert len({clip for batch in dali for clip in batch["clip"][batch["valid"]].tolist()}) == len(RECIPES) - 1


def test_a_cache_that_cannot_be_used(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a disk that is full: shards are read where they are, as by the default engine."""

    def refuse(*_: object, **__: object) -> None:
        raise CacheUnusable("the disk is full.")

    monkeypatch.setattr(ShardCache, "lease", refuse)
    made = batches(
        upload(packed.path, f"memory://{tmp_path.name}"), "dali", cache_dir=tmp_path / "cache", fetch="shards"
    )
    assert_same(batches(packed, "default"), made)


@pytest.mark.parametrize("on_error", ["skip", "mask", "raise"])
def test_a_bad_clip_in_the_middle(
    packed: Packed, tmp_path: Path, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline is built anew from the plan's position: both engines give the same, from any position on."""
    shutil.copytree(packed.path, tmp_path / "set")
    bad = 4
    replace_packets(tmp_path / "set", bad, bytes)
    options: dict[str, Any] = {"on_error": on_error, "batch_size": 2}
    monkeypatch.setattr(rescue, "decode_isolated", decode_here)
    if on_error == "raise":
        for engine in ENGINES:
            with pytest.raises(StreamvidError, match=sv.Dataset.open(packed.path).key(bad)) as error:
                batches(tmp_path / "set", engine, **options)
            assert "\n" not in str(error.value)
        return
    default, dali = (
        batches(tmp_path / "set", engine, epochs=2, quarantine=tmp_path / engine, **options) for engine in ENGINES
    )
    assert_same(default, dali)
    assert not all(batch["valid"].all() for batch in dali)
    for stop in (1, 4):
        with loader(tmp_path / "set", "dali", quarantine=tmp_path / f"begun{stop}", **options) as begun:
            for _ in zip(range(stop), begun, strict=False):
                state = begun.state_dict()
        with loader(tmp_path / "set", "dali", quarantine=tmp_path / f"begun{stop}", **options) as resumed:
            resumed.load_state_dict(state)
            assert_same(default[stop:], [batch for _ in range(2) for batch in resumed])


@pytest.mark.parametrize("pad", ["constant", "edge", "reflect_101", "reflect_1001"])
def test_padding_is_that_of_the_decoders_own_modes(packed: Packed, tmp_path: Path, pad: Any) -> None:
    """Frames are decoded once each, and padded behind the transform; `pad_mode` of fn.decoders.video gives the same."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def stock() -> Any:
        video = fn.external_source(name="video", ndim=1, dtype=types.UINT8)
        return fn.decoders.video(video, device="cpu", start_frame=0, sequence_length=9, stride=4, pad_mode=pad)

    graph = stock()
    graph.build()
    row = packed.recipes.index(RECIPES["a/vp9.webm"])
    short = packed.recipes.index(RECIPES["c/five.webm"])
    sampling = sv.Window(9, stride=4, start="first", pad=pad)
    (batch,) = batches(packed, "dali", sampling=sampling, shuffle=False, batch_size=len(RECIPES))
    sv.extract(packed.path, tmp_path / "out", keys=[batch["key"][row], batch["key"][short]], progress=False)
    for n in (row, short):
        (path,) = (tmp_path / "out").rglob(f"*{batch['key'][n]}*.mp4")
        graph.feed_input("video", [np.fromfile(path, dtype=np.uint8)])
        (frames,) = graph.run()
        np.testing.assert_array_equal(batch["video"][n].numpy(), np.array(frames.at(0)))


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Clips of all matrices and ranges, of colours of which few lie outside of RGB by any matrix."""
    recipes = {
        f"{matrix}_{full}.webm": replace(VP9, frames=4, colour=matrix, full_range=full, seed=n)
        for n, (matrix, full) in enumerate(product(("bt601", "bt709", "bt2020"), (False, True)))
    }
    return make(tmp_path_factory.mktemp("tagged"), recipes)


def test_colours_are_those_of_the_tags(tagged: Packed) -> None:
    """DALI's RGB, which is BT.601, times 3x3: see docs/dali.md for how near that comes to the default engine."""
    options: dict[str, Any] = {"sampling": sv.All(), "shuffle": False, "batch_size": 6}
    plain, tags = (
        batches(tagged, "dali", transform=replace(RAW, color=color), **options) for color in ("bt601", "auto")
    )
    (expected,) = batches(tagged, "default", transform=replace(RAW, color="auto", resize_in="rgb"), **options)
    for n, recipe in enumerate(tagged.recipes):
        before, after = plain[0]["video"][n].numpy(), tags[0]["video"][n].numpy()
        factors = recolouring(Color(recipe.colour, recipe.full_range, (1, 0)))  # type: ignore[arg-type]
        wanted = np.clip(before @ factors.T, 0, 255)
        assert np.abs(after - wanted).max() <= 0.51
        assert np.array_equal(before, after) == (recipe.colour == "bt601")
        off = np.abs(after.astype(int) - expected["video"][n].numpy())
        print(f"{recipe.colour} full={recipe.full_range}: {off.mean():.2f} on average, {off.max()} at most")
        assert off.mean() < 1.5
        if recipe.colour != "bt601":
            assert off.mean() < np.abs(before.astype(int) - expected["video"][n].numpy()).mean() / 2


@pytest.mark.parametrize("color", ["bt709", "bt2020"])
def test_a_matrix_whatever_the_tags(tagged: Packed, color: Any) -> None:
    options: dict[str, Any] = {"sampling": sv.All(), "shuffle": False, "batch_size": 6}
    auto, given = (batches(tagged, "dali", transform=replace(RAW, color=one), **options)[0] for one in ("auto", color))
    same = [bool(torch.equal(one, two)) for one, two in zip(auto["video"], given["video"], strict=True)]
    assert same == [recipe.colour == color for recipe in tagged.recipes]


@pytest.mark.parametrize("on_error", ["skip", "mask", "raise"])
def test_a_clip_that_dali_alone_does_not_decode(
    packed: Packed, tmp_path: Path, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg has nothing against it, so DALI is asked clip by clip; the run goes on without it."""
    shutil.copytree(packed.path, tmp_path / "set")
    bad = 4
    replace_packets(tmp_path / "set", bad, bytes)
    monkeypatch.setattr(rescue, "decode_isolated", lambda slices, **_: [None] * len(slices))
    options: dict[str, Any] = {"batch_size": 3, "quarantine": tmp_path / "quarantine", "on_error": on_error}
    options |= {"checksum": None, "epochs": 2}
    if on_error == "raise":
        with pytest.raises(VideoError, match="DALI could not decode"):
            batches(tmp_path / "set", "dali", **options)
        return
    made = batches(tmp_path / "set", "dali", **options)
    key = sv.Dataset.open(packed.path).key(bad)
    assert [json.loads(line)["key"] for path in (tmp_path / "quarantine").iterdir() for line in path.open()] == [key]
    good = [clip for batch in made for clip in batch["clip"][batch["valid"]].tolist()]
    assert Counter(good) == Counter({row: 2 for row in range(len(RECIPES)) if row != bad})
    assert (bad in [clip for batch in made for clip in batch["clip"].tolist()]) == (on_error == "mask")


def test_a_decoder_that_decodes_nothing_is_no_clips_fault(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "decode_isolated", lambda slices, **_: [None] * len(slices))

    def fail(self: ChunkPipeline) -> Any:
        raise VideoError("a driver error")

    with monkeypatch.context() as patch:
        patch.setattr(ChunkPipeline, "__iter__", fail)
        with pytest.raises(VideoError, match="a driver error"):
            batches(packed, "dali", quarantine=tmp_path / "quarantine")
    assert not (tmp_path / "quarantine").exists()


def any_run(draw: random.Random) -> dict[str, Any]:
    """Options of a loader: sampling, padding, ranks, batches, order."""
    frames, pad = draw.randint(1, 9), draw.choice(["edge", "constant", "reflect_101", "reflect_1001", "none"])
    start = draw.choice(["random", "center", "first"])
    some = [draw.randrange(40) for _ in range(frames)]
    samplers: list[FrameSampler] = [
        sv.Window(frames, stride=draw.randint(1, 5), start=start, pad=pad),
        sv.Window(frames, fps=draw.choice([4, 12.5, 29.97, 60]), start=start, pad=pad),
        sv.Window(frames, span=(0.1, draw.uniform(0.2, 2)), jitter=0.05, pad="constant"),
        sv.TiledWindows(frames, step=draw.randint(1, 9), stride=draw.randint(1, 4), pad=pad),
        sv.MultiRate([(frames, 3.0), (draw.randint(1, 4), 20)], start=start, pad=pad),
        sv.Uniform(frames),
        sv.RandomFrames(frames),
        sv.Keyframes(frames, pick="random"),
        sv.Frames(some, pad="constant"),
    ]
    world, last_batch = draw.randint(1, 4), draw.choice(["partial", "fill", *(["drop"] if pad != "none" else [])])
    return {
        "sampling": draw.choice(samplers),
        "batch_size": draw.randint(1, len(RECIPES) // world if last_batch == "drop" else 7),
        "world_size": world,
        "rank": draw.randrange(world),
        "seed": draw.randrange(1 << 40),
        "shuffle": draw.choice(["full", "block", "none"]),
        "last_batch": last_batch,
    }


@pytest.mark.parametrize("seed", range(by_profile(ci=6, nightly=200)))
def test_any_run_is_that_of_the_default_engine(packed: Packed, seed: int) -> None:
    """From any step on, in either engine."""
    draw = random.Random(seed)
    options = any_run(draw)
    default, dali = (batches(packed, engine, **options) for engine in ENGINES)
    assert_same(default, dali)
    stop, (first, other) = draw.randint(0, len(dali)), draw.sample(ENGINES, 2)
    with loader(packed, first, **options) as begun:
        state = begun.state_dict()
        for _ in zip(range(stop), begun, strict=False):
            state = begun.state_dict()
    with loader(packed, other, **options) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed) if stop < len(dali) else []
    assert_same(dali[stop:], rest)
