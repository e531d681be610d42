"""Every sampler through the loader: the delivered frames are those of `select`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import streamvid as sv
from streamvid.errors import InputError
from streamvid.fetch.plan_samples import clip_times
from streamvid.packing.options import PackOptions
from streamvid.sampling.base import FrameSampler
from tests.support.packed import pack_recipes
from tests.support.sampling import padded, select
from tests.support.shown import Packed, shown
from tools.clips import Recipe

BASE = Recipe(width=96, height=64, gop=8)
RECIPES: dict[str, Recipe] = {
    "h264.mp4": replace(BASE, frames=40, b_frames=3),
    "vfr.mp4": replace(BASE, frames=30, jitter=3, seed=1),
    "trimmed.mp4": replace(BASE, frames=30, trim=12, b_frames=2, seed=2),
    "vp9.webm": replace(BASE, codec="vp9", container="webm", frames=20, fps=Fraction(12), seed=3),
    "short.mp4": replace(BASE, frames=5, seed=4),
    "one.mp4": replace(BASE, frames=1, seed=5),
}
RAW = sv.Transform(layout="THWC", dtype="uint8")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("samplers")
    lines = [
        json.dumps({"path": name, "label": number, "frames": [number, 0, 25], "at": [0.1 * number, 0.5]})
        for number, name in enumerate(RECIPES)
    ]
    (folder / "labels.jsonl").write_text("\n".join(lines) + "\n")
    path = pack_recipes(RECIPES, folder, labels=folder / "labels.jsonl", options=PackOptions("any"))
    dataset = sv.Dataset.open(path)
    return Packed(path, [RECIPES[dataset.clips.source[row]] for row in range(len(dataset))])


def batches(packed: Packed, sampling: FrameSampler, **options: Any) -> list[dict[str, Any]]:
    options = {"batch_size": 4, "num_threads": 2, "device": "cpu", "transform": RAW, **options}
    with sv.StreamLoader(packed.path, sampling=sampling, **options) as loader:
        return list(loader)


def selections(packed: Packed, sampling: FrameSampler, pad: Any) -> Counter[tuple[int, tuple[int, ...]]]:
    """Of samplers without chance: every (clip, frames) that an epoch should bring, and how often."""
    dataset = sv.Dataset.open(packed.path)
    wanted: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for row in range(len(dataset)):
        times = clip_times(dataset, row, dataset.index(row))
        frames, duration = np.array([len(times.pts)]), np.array([times.duration])
        for sample in range(int(sampling.num_samples(frames, duration, times.tick, whole=pad == "none")[0])):
            got = select(sampling, times, np.empty(0), pad, sample=sample)
            wanted[row, tuple(got.frames.tolist())] += 1
    return wanted


def keyframe_every_third(clip: sv.ClipTimes) -> list[int]:
    return [*clip.keyframes[:2], 3]


@pytest.mark.parametrize(
    ("sampling", "pad"),
    [
        (sv.Window(4, stride=2, start="even", windows=3), "edge"),
        (sv.Window(4, fps=10, start="even", windows=2), "none"),
        (sv.MultiRate([(3, 5.0), (3, 10)], start="first"), "reflect_101"),
        (sv.TiledWindows(7), "edge"),
        (sv.TiledWindows(6, step=4, fps=15), "constant"),
        (sv.TiledWindows(6), "none"),
        (sv.Keyframes(3, pick="center"), "edge"),
        (sv.Keyframes(4, pick="first"), "none"),
        (sv.ByClip(3, frames="frames"), "edge"),
        (sv.ByClip(4, seconds="at"), "none"),
        (sv.ByClip(3, frames=keyframe_every_third), "constant"),
    ],
)
def test_an_epoch_brings_every_sample_once(packed: Packed, sampling: FrameSampler, pad: Any) -> None:
    got: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for batch in batches(packed, padded(sampling, pad)):
        assert batch["video"].shape[1] == sampling.num_frames
        got.update(shown(packed, batch, i) for i in np.flatnonzero(batch["valid"]))
    assert got == selections(packed, sampling, pad)


@pytest.mark.parametrize(
    "sampling",
    [
        sv.Window(4, stride=2, jitter=1),
        sv.Window(4, fps=10, jitter=0.1, windows=2),
        sv.Window(5, span=(0.3, 0.9)),
        sv.MultiRate([(3, 5.0), (3, 10)]),
        sv.Keyframes(3),
        sv.RandomFrames(6),
    ],
)
def test_random_ones_are_in_order_and_repeatable(packed: Packed, sampling: FrameSampler) -> None:
    one, two = (
        [shown(packed, batch, i) for batch in batches(packed, sampling, seed=7) for i in range(len(batch["clip"]))]
        for _ in range(2)
    )
    assert one == two
    assert {row for row, _ in one} == set(range(len(RECIPES)))
    assert all(list(frames) == sorted(frames) for _, frames in one)


def test_keyframes_are_key_frames(packed: Packed) -> None:
    dataset = sv.Dataset.open(packed.path)
    for row, recipe in enumerate(packed.recipes):
        times = clip_times(dataset, row, dataset.index(row))
        if recipe.codec == "h264" and recipe.gop and not recipe.trim:
            assert set(times.keyframes.tolist()) >= set(range(0, len(times.pts), recipe.gop))
        assert times.key == dataset.key(row)
        assert times.meta["frames"][1:] == [0, 25]
    trimmed = packed.recipes.index(RECIPES["trimmed.mp4"])
    assert 0 not in clip_times(dataset, trimmed, dataset.index(trimmed)).keyframes


def test_what_is_wrong_with_a_clip_names_it(packed: Packed) -> None:
    dataset = sv.Dataset.open(packed.path)
    with pytest.raises(InputError, match=r"no metadata column 'nothing'") as error:
        batches(packed, sv.ByClip(3, frames="nothing"))
    assert any(repr(dataset.key(row)) in str(error.value) for row in range(len(dataset)))
